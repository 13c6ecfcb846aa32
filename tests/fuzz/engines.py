# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the engines that scale out: they make what the embedded engine makes, or refuse it alike.

    python -m tests.fuzz.engines ENGINE [--minutes N] [--seed N] [--first N]

Spark, or NVTabular on the CPU, starts once and prepares one small input after the other: logs with
a schema, days of them, Criteo's logs and ratings. A seed draws the same cases again, and `--first`
starts at one.
"""

import argparse
import contextlib
import functools
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from preproc.clicks.engines.nvtabular import run as nvtabular_clicks
from preproc.clicks.rules import ClicksSemantics
from preproc.ratings.engines import nvtabular as nvtabular_ratings
from preproc.ratings.job import AMAZON, MOVIELENS
from preproc.spark import session
from recsys.data.manifest import Manifest
from recsys.errors import UserError
from tests.fuzz.growth import compare_growth
from tests.fuzz.logs import PACKINGS, compare_engines
from tests.fuzz.ratings import FIELDS
from tests.fuzz.target import Draws
from tests.fuzz.worker import runner, scratch
from tests.preproc.clicks.rows import contents, good_text, outcome
from tests.preproc.conftest import LOCAL_SPARK, nvtabular_on_cpu
from tests.preproc.nvtabular import environment
from tests.preproc.ratings import oracle

Compare = Callable[[Path, bytes, str], None]


def compare_criteo(folder: Path, data: bytes, other: str) -> None:
    """Prepares days of Criteo's form by the native engine and by another one."""
    draws = Draws(data)
    (folder / "logs").mkdir()
    for day in range(1 + draws.below(3)):
        text = good_text(draws.below(60), draws.below(4), draws.pick((5, 3000)))
        text = text.replace(b"\n", draws.pick((b"\n", b"\n", b"\r\n")))
        text = draws.pick(PACKINGS)(draws.edited(text))
        (folder / "logs" / f"day_{day}").write_bytes(draws.edited(text, 1))
    semantics = ClicksSemantics(
        numerical_offset=draws.pick((1, 2, 100_000)),
        numerical_min=draws.pick((0, 0, 5)),
        numerical_missing=draws.pick(("raw_zero", "output_zero")),
        frequency_limit=draws.below(4),
        category_modulus=draws.pick((None, None, 7, 2**31 - 1, 2**32)),
        bin_numerical=draws.below(2) == 1,
        split_fractions=draws.pick(((0.8, 0.1, 0.1), (0.0, 0.5, 0.5), (1.0, 0.0, 0.0))),
        dictionary_days=draws.pick(("all", "train")),
        shuffle_seed=draws.pick((None, 3)),
    )
    fields = {"semantics": semantics, "format": draws.pick((("split",), ("split", "parquet")))}
    made, expected = (
        outcome(folder / "logs", folder / engine, engine, **fields) for engine in (other, "native")
    )
    assert made == expected, f"{made}\n{expected}"


def compare_ratings(folder: Path, data: bytes, other: str) -> None:
    """Prepares ratings by the embedded engine and by another one."""
    draws = Draws(data)
    family, separator = draws.pick(((MOVIELENS, b"::"), (AMAZON, b",")))
    lines = []
    users, items = 1 + draws.below(9), 1 + draws.below(12)
    for _ in range(10 + draws.below(80)):
        rating, moment = draws.pick((b"1", b"2.5", b"4", b"5.0")), draws.below(20) - 3
        fields = [b"%d" % draws.below(users), b"%d" % draws.below(items), rating, b"%d" % moment]
        if draws.below(16) == 1:
            fields[draws.below(4)] = draws.pick(FIELDS)
        lines.append(separator.join(fields) + draws.pick((b"\n", b"\n", b"\n", b"\r\n", b"\n\n")))
    source = folder / "ratings"
    source.write_bytes(draws.edited(draws.pick(PACKINGS)(draws.edited(b"".join(lines))), 1))
    settings = {
        "family": family,
        "min_rating": draws.pick((0.0, 2.0, 4.5)),
        "min_user_count": draws.pick((3, 4)),
        "min_item_count": draws.below(4),
        "kcore": draws.pick(("iterated", "once")),
        "max_bad_fraction": draws.pick((0.0, 1.0, 1.0)),
        "chunk_bytes": draws.pick((100, 2**20)),
    }
    made, expected = (
        _ratings_outcome(source, folder / engine, engine, settings) for engine in (other, "pyarrow")
    )
    assert made == expected, f"{made}\n{expected}"


def _ratings_outcome(source: Path, output: Path, engine: str, settings: dict[str, Any]) -> str:
    try:
        oracle.run(source, output, engine=engine, **settings)
    except UserError as error:
        assert not output.exists()
        return f"refused: {error}".replace(str(output), "")
    made = Manifest.load(output)
    return f"{contents(output, made)}{made.statistics}"


@contextlib.contextmanager
def spark() -> Iterator[None]:
    """A Spark that every run in this process finds."""
    with session.connect(LOCAL_SPARK):
        yield


@contextlib.contextmanager
def nvtabular() -> Iterator[None]:
    """An NVTabular that every run in this process uses."""
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        nvtabular_on_cpu(Path(folder, "nvtabular.log")) as process,
    ):
        for module in (nvtabular_clicks, nvtabular_ratings):
            environment.share(process, module, patch)
        yield


ENGINES: dict[str, tuple[Callable[[], Any], tuple[Compare, ...]]] = {
    "spark": (spark, (compare_engines, compare_growth, compare_criteo, compare_ratings)),
    "nvtabular": (nvtabular, (compare_criteo, compare_ratings)),
}
"""Engine -> how it starts, and what it is compared on."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 at the first fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.engines", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args(arguments)
    start, compares = ENGINES[options.engine]
    counts: Counter[str] = Counter()
    with start(), scratch() as root:
        end, number = time.monotonic() + 60 * options.minutes, options.first
        while time.monotonic() < end:
            compare = compares[number % len(compares)]
            rng = random.Random(f"{options.seed} {number}")
            data = rng.randbytes(16 << rng.randrange(7))
            try:
                runner(functools.partial(compare, other=options.engine), root)(data)
            except Exception:  # noqa: BLE001  (whatever the fault is)
                traceback.print_exc()
                print(f"case {number} ({compare.__name__}): a fault", file=sys.stderr)
                return 1
            counts[compare.__name__] += 1
            number += 1
    told = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
    print(f"{told}; no fault")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main(sys.argv[1:]))
