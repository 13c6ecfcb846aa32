# SPDX-License-Identifier: Apache-2.0
"""Measures the DLRM loader, with files in the page cache.

    python -m benchmark.dlrm.loader --rows 3000000

`narrow` batches have storage dtypes, as they are copied to a GPU; `wide` ones have the model's
dtypes, as on the CPU. If merlin-dataloader is installed (`make merlin`), it is compared with our
parquet reader in that environment.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from benchmark.record import RESULTS, make_record, write_records
from dlrm.config import DataConfig, DatasetType
from dlrm.data.loader import BatchLoader
from dlrm.data.merlin import MerlinLoader
from dlrm.data.opened import OpenedDataset
from dlrm.data.synthetic import write_synthetic_dataset
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import FOLDER, PART_ROWS, ParquetReader, part_name, write_parquet_part
from recsys.data.split_binary import SplitBinaryReader

# Cardinalities of the Criteo Terabyte set at frequency limit 15, capped at 100,000: the same
# storage dtypes but for five features, without gigabytes of ids.
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


def samples_per_s(batches: Callable[[], Iterable[object]], num_samples: int) -> float:
    """Measures samples per second over an epoch."""
    started = time.perf_counter()
    for _ in batches():
        pass
    return num_samples / (time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all loaders of this environment, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--batch_size", type=int, default=32_768)
    parser.add_argument("--repeats", type=int, default=5)
    name = "loader_merlin" if MERLIN in candidates() else "loader"
    parser.add_argument("--results", type=Path, default=RESULTS / f"{name}.jsonl")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # widening is the only arithmetic; readers have threads of their own
    samples: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "dataset"
        spec = make_dataset(root, options.rows)
        for _ in range(options.repeats):
            for candidate in candidates():
                loader = open_loader(candidate, root, spec, options.batch_size)
                rows = loader.num_batches * options.batch_size
                for width, batches in (
                    ("narrow", loader.narrow_batches),
                    ("wide", loader.batches),
                ):
                    rate = samples_per_s(batches, rows)
                    samples.setdefault((candidate, width), []).append(rate)
    config = {"rows": options.rows, "batch_size": options.batch_size, "page_cache": "warm"}
    records = [
        make_record(
            name, c, f"{w} batches", rates, unit="samples/s", direction="higher", config=config
        )
        for (c, w), rates in samples.items()
    ]
    write_records(options.results, records)
    for record in records:
        print(f"{record.candidate:8s} {record.metric:15s} {record.value or 0:14,.0f} samples/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
