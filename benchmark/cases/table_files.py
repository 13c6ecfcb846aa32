# SPDX-License-Identifier: Apache-2.0
"""DLRM with its tables in files on disk (`--table_memory`), beside tables in memory.

Ids are drawn from a Zipf distribution, as in Criteo's logs. The first two candidates have the same
tables, which fit in memory. The third has larger ones, which do not fit; its ratio is to the
throughput of the tables in memory. Before they are timed, all make enough steps for the rows in use
to be in memory.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchmark.case import Case, Group, Key, Values
from benchmark.programs import DLRM, run_training
from recsys.settings import require_positive, setting
from recsys.sizes import format_bytes

WIDTH = 128
_SHARES = (0.25, 0.24, 0.22, 0.17, 0.08, 0.02, 0.01, 0.009)
"""Rows of the larger tables, as fractions of all rows; about those of Criteo's features."""
_SMALL = (34_000, 20_000, 17_000, 12_000, 11_000, 7_300, 7_100, 2_200, 1_400, 970, 100, 100, 63)
_SMALLEST = (35, 15, 11, 4, 4)
FLAGS = (
    *("--dataset_type=synthetic_gpu", "--synthetic_distribution=zipf", "--base_device=cpu"),
    *("--synthetic_dataset_num_entries=100000000", "--test_after=2", "--baselines="),
)
_RATIO = "ratio of throughput"


def table_sizes(rows: int) -> str:
    """Returns the rows of 26 tables, `rows` together, as a flag's value."""
    large = (int(rows * share) for share in _SHARES)
    return ",".join(map(str, (*large, *_SMALL, *_SMALLEST)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TablesInFiles(Case):
    """Throughput and memory of training with tables on disk."""

    repeats: ClassVar[int] = 3

    rows: int = setting(16_000_000, "Rows of the tables that fit in memory, 512 bytes each")
    rows_beyond: int = setting(78_000_000, "Rows of the tables that do not")
    memory: int = setting(4 * 2**30, "--table_memory of the tables that fit", unit="bytes")
    memory_beyond: int = setting(
        14 * 2**30, "--table_memory of the tables that do not", unit="bytes"
    )
    batch_size: int = setting(8192, "Samples of a step")
    steps: int = setting(500, "Steps of a run")
    warmup: int = setting(300, "Steps of a run before it is timed")

    def __post_init__(self) -> None:
        """Refuses counts below one."""
        require_positive(self, "rows", "rows_beyond", "memory", "memory_beyond", "batch_size")
        require_positive(self, "steps", "warmup")

    def config(self) -> dict[str, Any]:
        """Returns the flags of the training."""
        return {"DLRM": " ".join(FLAGS), "batch size": self.batch_size, "steps": self.steps}

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields tables in memory and in files, which take turns."""

        def measure(name: str, rows: int, place: tuple[str, ...], _seed: int) -> Values:
            run = (
                *(f"--synthetic_dataset_table_sizes={table_sizes(rows)}", *FLAGS, *place),
                *(f"--batch_size={self.batch_size}", f"--max_steps={self.steps}"),
                f"--benchmark_warmup_steps={self.warmup}",
            )
            figures = run_training(DLRM, "--mode=train", *run)
            return {Key(name, "training", "samples/s"): figures["average_train_throughput"]}

        def named(rows: int, where: str) -> str:
            return f"{format_bytes(rows * WIDTH * 4)} of tables, {where}"

        in_memory = named(self.rows, "in memory")
        others = {
            named(rows, f"{format_bytes(memory)} of them in memory"): (rows, memory)
            for rows, memory in (
                (self.rows, self.memory),
                (self.rows_beyond, self.memory_beyond),
            )
        }
        candidates = {in_memory: functools.partial(measure, in_memory, self.rows, ())} | {
            name: functools.partial(measure, name, rows, (f"--table_memory={memory}",))
            for name, (rows, memory) in others.items()
        }

        def derive(values: Mapping[str, Values]) -> Values:
            rates = {name: values[name][Key(name, "training", "samples/s")] for name in candidates}
            return {Key(name, _RATIO): rates[name] / rates[in_memory] for name in others}

        yield Group(candidates=candidates, derive=derive)


CASE = TablesInFiles
