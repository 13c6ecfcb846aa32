# SPDX-License-Identifier: Apache-2.0
"""Checks that a comparison finds planted changes, and none in equal code.

    python -m benchmark.self_check --trials 20

Copies the code of this checkout and changes the copy: its training step takes 5% longer, its AUC is
0.002 lower, its process holds 10% more memory. Then `benchmark.run --beside` measures copy and
checkout in turns: as the new code each change must be worse, as the old one better. Two copies of
the same code are compared `--trials` times; none may differ. Exits 1 if a verdict is wrong.
"""

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark import run
from benchmark.compare import Comparison
from benchmark.configurations import read_configuration

PACKAGES = ("benchmark", "bert4rec", "cuda_ext", "dataspec", "dlrm", "preproc", "recsys", "triton")
_CONFIGURATIONS = Path(__file__).parent / "configs"

SLOWER, LESS_ACCURATE, LARGER = "5% slower", "AUC 0.002 lower", "10% more memory"
PLANTED: Mapping[str, tuple[str, str, str]] = {
    SLOWER: (
        "recsys/train/loop.py",
        "                self._losses.append(self.step(batch, lr).detach())\n",
        "                self._losses.append(self.step(batch, lr).detach())\n"
        "                _until = time.perf_counter()\n"
        "                _until += 0.053 * (_until - waiting_since)\n"
        "                while time.perf_counter() < _until:\n"
        "                    pass\n",
    ),
    LESS_ACCURATE: (
        "dlrm/train/metrics.py",
        "    return half_pairs / 2 / total\n",
        "    return half_pairs / 2 / total - 0.002\n",
    ),
    LARGER: (
        "recsys/train/run.py",
        '"""A run of any model: ',
        '_HELD = bytearray(b"x") * (48 << 20)\n"""A run of any model: ',
    ),
}
"""Change -> (file, text in it, text in its place)."""

WATCHED = {
    SLOWER: ("bert4rec_5m", "step_time_p10"),
    LESS_ACCURATE: ("dlrm_small", "auc"),
    LARGER: ("dlrm_small", "peak_memory"),
}
"""Change -> (configuration, metric) that must show it.

The steps of the small DLRM are so short that they wander by a tenth from process to process.
"""


def copy_code(folder: Path, planted: str | None = None) -> Path:
    """Copies the packages of this checkout, with a planted change.

    Raises:
        ValueError: the text to change is not in its file once.
    """
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(run.HERE / package, folder / package, ignore=ignored)
    if planted is not None:
        name, before, after = PLANTED[planted]
        text = (folder / name).read_text()
        if text.count(before) != 1:
            raise ValueError(f"{name}: {before!r} is there {text.count(before)} times, not once")
        (folder / name).write_text(text.replace(before, after))
    return folder


def compared(
    name: str, new: Path, old: Path, output: Path, repeats: tuple[int, int], first_seed: int
) -> dict[str, Comparison]:
    """Measures two checkouts in turns; returns a comparison per metric.

    Args:
        name: configuration.
        new: folder of the new code.
        old: folder of the old code.
        output: folder of data and runs.
        repeats: least and most runs of each, see `run.measure`.
        first_seed: seed of the first run.
    """
    configuration = read_configuration(_CONFIGURATIONS / f"{name}.yaml")
    with contextlib.redirect_stdout(io.StringIO()):
        checkouts = {"new": new, "old": old}
        results = run.measure(
            [configuration], checkouts, output, repeats[0], first_seed, repeats[1]
        )
    comparisons = run.compare_checkouts([configuration], results)
    return {comparison.new.metric: comparison for comparison in comparisons}


def in_words(comparison: Comparison) -> str:
    """Returns the verdict, the change and the change that counts as noise."""
    change, ignored = comparison.relative
    return f"{comparison.verdict} ({change}, noise {ignored})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side of a comparison")
    parser.add_argument("--trials", type=int, default=20, help="comparisons of equal code")
    parser.add_argument(
        "--most_repeats", type=int, default=0, help="more runs, until noise is below the thresholds"
    )
    parser.add_argument(
        "--planted",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the planted changes too",
    )
    options = parser.parse_args(arguments)
    repeats = (options.repeats, max(options.repeats, options.most_repeats))
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="self-check-") as temporary:
        folder = Path(temporary)
        plain = copy_code(folder / "plain")
        changes = WATCHED if options.planted else {}
        for planted, (name, metric) in changes.items():
            changed = copy_code(folder / planted, planted)
            for new, old, expected in ((changed, plain, "worse"), (plain, changed, "better")):
                comparisons = compared(name, new, old, folder / "runs", repeats, 1)
                wrong += comparisons[metric].verdict != expected
                shown = in_words(comparisons[metric])
                print(f"{planted}: {expected} expected, {shown}", flush=True)
        again = copy_code(folder / "again")
        for trial in range(options.trials):
            seed = 1 + trial * repeats[1]
            name = ("bert4rec_5m", "dlrm_small")[trial % 2]
            every = compared(name, again, plain, folder / "runs", repeats, seed)
            different = {m: in_words(c) for m, c in every.items() if c.verdict != "balanced"}
            wrong += bool(different)
            print(f"equal code, trial {trial + 1}, {name}: {different or 'balanced'}", flush=True)
    print(f"{wrong} wrong of {2 * len(changes) + options.trials}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
