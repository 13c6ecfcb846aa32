# SPDX-License-Identifier: Apache-2.0
"""The DLRM loader, with files in the page cache.

`narrow` batches keep the storage dtypes, as they are copied to a GPU; `wide` batches have the
model's dtypes, as on the CPU. If merlin-dataloader is installed (`make merlin`), it is compared
with our parquet reader in that environment.
"""

import dataclasses
import functools
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmark.case import Case, Group, Key, Values
from dlrm.config import DataConfig, DatasetType
from dlrm.data.loader import BatchLoader
from dlrm.data.merlin import MerlinLoader
from dlrm.data.opened import OpenedDataset
from dlrm.data.synthetic import write_synthetic_dataset
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import FOLDER, PART_ROWS, ParquetReader, part_name, write_parquet_part
from recsys.data.split_binary import SplitBinaryReader
from recsys.settings import setting

# Cardinalities of the Criteo Terabyte set at frequency limit 15, capped at 100,000 to avoid
# gigabytes of ids: all but five features keep their storage dtype.
TABLE_SIZES = (
    100000, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 100000, 100000, 100000, 11, 2209, 10667,
    104, 4, 968, 15, 100000, 100000, 100000, 100000, 12022, 97, 35,
)  # fmt: skip
DATASET_TYPES: tuple[DatasetType, ...] = ("split", "memmap", "parquet")
MERLIN = "merlin"


def make_dataset(root: Path, rows: int) -> FeatureSpec:
    """Writes a random dataset as split binary and parquet."""
    spec = FeatureSpec.criteo(TABLE_SIZES)
    write_synthetic_dataset(root, spec, rows, "zipf", seed=1)
    reader = SplitBinaryReader(root, "train", spec)
    for number, start in enumerate(range(0, rows, PART_ROWS)):
        columns = reader.read(start, min(start + PART_ROWS, rows))
        write_parquet_part(root / FOLDER / "train" / part_name(number), spec, [columns])
    reader.close()
    return spec


def candidates() -> tuple[str, ...]:
    """Returns the loaders that this environment can measure."""
    has_merlin = importlib.util.find_spec("merlin") is not None
    return ("parquet", MERLIN) if has_merlin else DATASET_TYPES


def open_loader(
    candidate: str, root: Path, spec: FeatureSpec, batch_size: int
) -> BatchLoader | MerlinLoader:
    """Opens the training split with a loader, on the CPU."""
    device = torch.device("cpu")
    if candidate == MERLIN:
        reader = ParquetReader(root, "train", spec)
        return MerlinLoader(reader=reader, batch_size=batch_size, device=device, drop_last=True)
    (dataset_type,) = (t for t in DATASET_TYPES if t == candidate)
    data = DataConfig(dataset=str(root), dataset_type=dataset_type)
    source = OpenedDataset(data, spec).rows("train")
    return BatchLoader(source=source, batch_size=batch_size, device=device, drop_last=True)


def _samples_per_s(batches: Callable[[], Iterable[object]], num_samples: int) -> float:
    started = time.perf_counter()
    for _ in batches():
        pass
    return num_samples / (time.perf_counter() - started)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Loader(Case):
    """The loaders of this environment."""

    rows: int = setting(3_000_000, "Generated rows")
    batch_size: int = setting(32_768, "Samples of a batch")

    @property
    def name(self) -> str:
        """Name of the results, another one with merlin-dataloader."""
        return "loader_merlin" if MERLIN in candidates() else "loader"

    def config(self) -> dict[str, Any]:
        """Returns the sizes."""
        return {"rows": self.rows, "batch_size": self.batch_size, "page_cache": "warm"}

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields a candidate for each loader."""
        torch.set_num_threads(1)  # widening is the only arithmetic; readers have their own threads
        root = folder / "dataset"
        spec = make_dataset(root, self.rows)

        def measure(candidate: str, _seed: int) -> Values:
            loader = open_loader(candidate, root, spec, self.batch_size)
            rows = loader.num_batches * self.batch_size
            widths = {"narrow batches": loader.narrow_batches, "wide batches": loader.batches}
            return {
                Key(candidate, width, "samples/s"): _samples_per_s(batches, rows)
                for width, batches in widths.items()
            }

        yield Group(candidates={name: functools.partial(measure, name) for name in candidates()})


CASE = Loader
