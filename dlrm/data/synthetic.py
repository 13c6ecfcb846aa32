# SPDX-License-Identifier: Apache-2.0
"""Generates random data: batches on the device, or a dataset on disk."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.data.batch import Batch, mixed_seed
from dlrm.data.loader import count_batches
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest, fingerprint
from recsys.data.split_binary import SplitBinaryWriter
from recsys.files.durable import durable_rename

ZIPF_EXPONENT = 1.1
"""Gives as many distinct ids in a batch as Criteo: 0.15 per lookup at 32,768 rows."""

CLICK_RATE = 0.5
_TRAIN_ROWS_PER_EVALUATION_ROW = 16
_WRITE_ROWS = 1 << 18


def draw_ids(
    table_sizes: Tensor, num_rows: int, distribution: str, generator: torch.Generator
) -> Tensor:
    """Draws random ids of every feature, without waiting for the device.

    Args:
        table_sizes: [F] integers, rows of each table; ids of feature i are in [0, table_sizes[i]).
        num_rows: number of samples.
        distribution: `uniform` or `zipf` (low ids are frequent, as in a prepared dataset).
        generator: random generator on the device of `table_sizes`.

    Returns:
        [num_rows, F] int64. Zipf ids are drawn by inverting the continuous distribution function.
    """
    sizes, device = table_sizes.to(torch.float64), table_sizes.device
    shape = (num_rows, len(sizes))
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
    if distribution == "zipf":
        exponent = 1 - ZIPF_EXPONENT
        top = (sizes + 1) ** exponent
        uniform = ((1 - uniform * (1 - top)) ** (1 / exponent) - 1) / sizes
    return torch.minimum((uniform * sizes).to(torch.int64), sizes.to(torch.int64) - 1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticBatches:
    """Random batches, drawn on the device while training (`synthetic_gpu`).

    Attributes:
        spec: features of the samples.
        num_rows: samples of an epoch.
        batch_size: samples per batch.
        device: device of the batches.
        distribution: distribution of the ids, `uniform` or `zipf`.
        drop_last: whether to leave out the last, shorter batch.
        seed: random seed; batch i of an epoch is the same in every run.
    """

    spec: FeatureSpec
    num_rows: int
    batch_size: int
    device: torch.device
    distribution: str
    drop_last: bool
    seed: int = 0

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return count_batches(self.num_rows, self.batch_size, self.drop_last, None)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[Tensor]]:
        """Yields an epoch's batches from number `start` on."""
        generator = torch.Generator(self.device)
        table_sizes = torch.tensor(self.spec.table_sizes, device=self.device)
        for index in range(start, self.num_batches):
            generator.manual_seed(mixed_seed(self.seed, epoch, index))
            rows = min(self.batch_size, self.num_rows - index * self.batch_size)
            yield self._make(rows, table_sizes, generator)

    def _make(self, rows: int, table_sizes: Tensor, generator: torch.Generator) -> Batch[Tensor]:
        device = self.device
        return Batch(
            torch.rand(rows, len(self.spec.numerical), generator=generator, device=device),
            draw_ids(table_sizes, rows, self.distribution, generator),
            (torch.rand(rows, generator=generator, device=device) < CLICK_RATE).float(),
        )


def write_synthetic_dataset(
    root: Path, spec: FeatureSpec, num_rows: int, distribution: str, seed: int
) -> None:
    """Writes a split-binary dataset of random samples.

    Args:
        root: folder to create; it appears when it is complete.
        spec: features of the samples.
        num_rows: rows of the train split; each other split has a sixteenth of them.
        distribution: distribution of the ids, `uniform` or `zipf`.
        seed: random seed.

    Raises:
        FileExistsError: `root` exists.
    """
    if root.exists():
        raise FileExistsError(f"{root} exists; remove it, or choose another folder")
    staging = root.with_name(root.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed run, maybe with other features
    generator = torch.Generator().manual_seed(seed)
    evaluation_rows = max(num_rows // _TRAIN_ROWS_PER_EVALUATION_ROW, 1)
    sizes = {"train": num_rows, "validation": evaluation_rows, "test": evaluation_rows}
    positives = {}
    for split, rows in sizes.items():
        positives[split] = 0
        with SplitBinaryWriter(staging / split, spec, rows) as writer:
            for start in range(0, rows, _WRITE_ROWS):
                columns = _columns(spec, min(_WRITE_ROWS, rows - start), distribution, generator)
                positives[split] += int(columns.label.sum())
                writer.write(start, columns)
    spec.save(staging)
    files = Manifest.describe_files(staging)
    Manifest(
        kind="synthetic",
        engine={"name": "synthetic"},
        semantics={"distribution": distribution, "seed": seed},
        source_files=[],
        rows=sizes,
        positives=positives,
        rejected={},
        cardinalities=list(spec.table_sizes),
        files=files,
        fingerprint=fingerprint(files),
    ).save(staging)
    durable_rename(staging, root)


def _columns(
    spec: FeatureSpec, rows: int, distribution: str, generator: torch.Generator
) -> ClickColumns:
    ids = draw_ids(torch.tensor(spec.table_sizes), rows, distribution, generator).numpy()
    return ClickColumns(
        torch.rand(rows, generator=generator).numpy() < CLICK_RATE,
        torch.rand(rows, len(spec.numerical), generator=generator).numpy().astype(np.float16),
        tuple(ids[:, i].astype(f.dtype) for i, f in enumerate(spec.categorical)),
    )


def write_dataset_of(config: DlrmConfig) -> None:
    """Writes the synthetic dataset that settings describe; see `write_synthetic_dataset`."""
    data = config.data
    sizes, num_numerical = data.synthetic_dataset_table_sizes, config.model.num_numerical_features
    write_synthetic_dataset(
        Path(data.synthetic_dataset_dir),
        FeatureSpec.criteo(sizes, num_numerical),
        data.synthetic_dataset_num_entries,
        data.synthetic_distribution,
        config.run.seed,
    )


def ensure_synthetic_dataset(config: DlrmConfig, print_line: Callable[[str], None]) -> None:
    """Writes a run's synthetic dataset, unless its folder exists."""
    root = Path(config.data.synthetic_dataset_dir)
    if root.exists():
        print_line(f"Using the synthetic dataset in {root}; remove it to make a new one")
        return
    print_line(f"Writing {config.data.synthetic_dataset_num_entries} synthetic rows to {root}")
    write_dataset_of(config)
