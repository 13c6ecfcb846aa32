# SPDX-License-Identifier: Apache-2.0
"""Compares BERT4Rec models by the ranks of the same targets.

    python -m benchmark.compare_ranks a.parquet b.parquet
    python -m benchmark.compare_ranks a1.parquet,a2.parquet b1.parquet,b2.parquet c.parquet

`--ranks_file` writes the files. Join the files of several seeds of one model by commas to compare
the mean of their metrics. Every model but the first may instead be given as lists of
recommendations in the format of RecTools (user_id, item_id, rank), written by `--lists_file` or by
other software.

Prints how each model differs from the first, with a 95% interval (bootstrap over users, Efron 1979)
and the probability that a difference as large arises by chance, from 9,999 exchanges of the two
models at random users (Fisher's randomization test). Holm's correction (1979) makes that
probability hold for all printed rows together. The intervals account for the choice of users only:
other seeds may differ by more.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from benchmark.door import start
from recsys.errors import UserError
from recsys.ratings.ranking.metrics import GAINS, paired_difference
from recsys.settings import require_positive, setting

_TARGET = ["user", "item", "history_length"]
_LIST = ["user_id", "item_id", "rank"]
_AT_ONCE = 100
"""Exchanges that are computed together, to bound the memory."""
_NOT_LISTED = 1 << 31
"""Rank of a target that is not in its list."""


_NAMES = ", ".join(f"{name}@K" for name in GAINS)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CompareRanksSettings:
    """Settings of this program."""

    metrics: tuple[str, ...] = setting(("hr@10", "ndcg@10"), f"Metrics to compare: {_NAMES} or mrr")
    exchanges: int = setting(
        9999, "Random exchanges of the test; the smallest possible p is the number of rows / this"
    )

    def __post_init__(self) -> None:
        """Refuses unknown metrics."""
        for metric in self.metrics:
            if not re.fullmatch(rf"mrr|({'|'.join(GAINS)})@[1-9]\d*", metric):
                raise UserError(
                    f"`metrics` must be {_NAMES} or mrr; got {metric}", setting="metrics"
                )
        require_positive(self, "exchanges")


SECTIONS = {CompareRanksSettings: "options"}


def read_ranks(path: Path, reference: pa.Table | None, metrics: Sequence[str]) -> pa.Table:
    """Reads the ranks of a test, or finds the ranks of its targets in lists.

    Raises:
        UserError: the file is missing, does not hold ranks, or its lists are too short.
    """
    try:
        table = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
        if reference is not None and set(_LIST) <= set(table.column_names):
            longest = pc.max(table["rank"]).as_py()
            short = [m for m in metrics if m == "mrr" or int(m.partition("@")[2]) > longest]
            if short:
                raise UserError(
                    f"{path}: lists of {longest} items are too short for {', '.join(short)}",
                    path=path,
                )
            return _ranks_in_lists(path, table, reference.select(_TARGET))
        table.select([*_TARGET, "rank"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: not a file that `ranks_file` writes ({error})",
            setting="ranks_file",
            path=path,
        ) from error
    return table


def _ranks_in_lists(path: Path, lists: pa.Table, targets: pa.Table) -> pa.Table:
    """Returns targets with their rank in the lists of their users."""
    users = set(targets["user"].cast("string").to_pylist())
    if lacking := users - set(lists[_LIST[0]].cast("string").to_pylist()):
        raise UserError(
            f"{path}: has no list for {len(lacking):,} of the {len(users):,} users of the first "
            f"file, such as {min(lacking)}; give a list for each user, by their ids in the ratings",
            path=path,
        )
    ranks = dict(zip(_pairs(lists, _LIST), lists["rank"].to_pylist(), strict=True))
    of_targets = [ranks.get(pair, _NOT_LISTED) for pair in _pairs(targets, _TARGET)]
    return targets.append_column("rank", pa.array(of_targets))


def _pairs(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs of texts from the first two of the named columns."""
    return zip(*(table[name].cast("string").to_pylist() for name in names[:2]), strict=True)


def read_model(
    names: str, reference: pa.Table | None, metrics: Sequence[str]
) -> tuple[pa.Table, dict[str, Any]]:
    """Reads the runs of a model.

    Args:
        names: the files of the runs, joined by commas.
        reference: a table of the same targets; None for the first model.
        metrics: metrics for which lists must be long enough.

    Returns:
        (the first table, name of a ranking -> [runs, T] ranks from 0, -1 where left out).

    Raises:
        UserError: a file has other targets, or ranks them among other items.
    """
    tables = []
    for path in map(Path, names.split(",")):
        table = read_ranks(path, reference, metrics)
        reference = table if reference is None else reference
        for name in _TARGET:
            if not table[name].cast("string").equals(reference[name].cast("string")):
                raise UserError(
                    f"{path}: its column {name} differs from that of the first file, which has "
                    f"{reference.num_rows:,} targets ({table.num_rows:,} here); test all models "
                    "on the same split of the same dataset",
                    path=path,
                )
        if table.column_names not in (reference.column_names, [*_TARGET, "rank"]):
            given, first = (" ".join(_rankings(each)) for each in (table, reference))
            raise UserError(
                f"{path}: its rankings {given} differ from those of the first file, {first}; test "
                "both with the same `num_eval_negatives`",
                setting="num_eval_negatives",
                path=path,
            )
        tables.append(table)
    ranks = {
        name: np.stack([table[name].fill_null(0).to_numpy() - 1 for table in tables])
        for name in _rankings(min(tables, key=lambda table: table.num_columns))
    }
    for name, of_runs in ranks.items():
        valid = reference[name].is_valid().to_numpy() if reference is not None else None
        if ((of_runs >= 0) != valid).any():
            raise UserError(f"{names}: {name} leaves out other users than the first file")
    return tables[0], ranks


def _rankings(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith("rank")]


def randomization_test(of_users: npt.NDArray[np.float64], exchanges: int) -> float:
    """Computes the probability that two equal models differ by as much.

    Args:
        of_users: [U] difference of each user.
        exchanges: number of trials, each of which swaps the two models at random users.
    """
    reached, total = 1, of_users.sum()
    least = abs(total) * (1 - 1e-12)  # equal sums differ by rounding
    generator, width = np.random.default_rng(0), -(-len(of_users) // 8)
    for done in range(0, exchanges, _AT_ONCE):
        count = min(_AT_ONCE, exchanges - done)
        bits = np.frombuffer(generator.bytes(count * width), np.uint8).reshape(count, width)
        exchanged = np.unpackbits(bits, axis=1, count=len(of_users)) @ of_users
        reached += int((abs(total - 2 * exchanged) >= least).sum())
    return reached / (exchanges + 1)


def holm(probabilities: Sequence[float]) -> npt.NDArray[np.float64]:
    """Corrects the probabilities of several tests for their number. Source: Holm 1979."""
    order = np.argsort(probabilities)
    corrected = np.empty(len(order))
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.maximum.accumulate(np.asarray(probabilities)[order] * factors)
    return corrected.clip(max=1)


def run(settings: CompareRanksSettings, models: list[str]) -> int:
    """Prints how every model differs from the first; returns the exit status."""
    if len(models) < 2:
        raise UserError("name the ranks of at least two models")
    reference, first = read_model(models[0], None, settings.metrics)
    users = reference["user"].dictionary_encode().combine_chunks().indices.to_numpy()
    rows, probabilities = [], []
    for model in models[1:]:
        _, ranks = read_model(model, reference, settings.metrics)
        for ranking in ranks:
            kept = first[ranking][0] >= 0
            pair = ranks[ranking][:, kept], first[ranking][:, kept]
            for metric in settings.metrics:
                difference = paired_difference(*pair, metric, users[kept])
                values = f"{difference.second:.4f} {difference.first:.4f}"
                rows.append((f"{ranking:20} {metric:8} {values}", difference, model))
                probabilities.append(randomization_test(difference.of_users, settings.exchanges))
    print(f"{reference.num_rows:,} targets; second minus first, 95% interval, p after Holm")
    least = 1 / (settings.exchanges + 1)  # no exchange reached the difference
    corrected = holm(probabilities)
    for (text, difference, model), own, p in zip(rows, probabilities, corrected, strict=True):
        bound = "<= " if own <= least else ""
        interval = f"[{difference.low:+.4f}, {difference.high:+.4f}]"
        print(f"{text} {difference.value:+.4f} {interval} p {bound}{p:.4f}  {model}")
    return 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start(SECTIONS, run, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
