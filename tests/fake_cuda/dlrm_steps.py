# SPDX-License-Identifier: Apache-2.0
"""The parts of a DLRM run on the fake device, built as the program builds them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlrm.config import DataConfig, DlrmConfig, ModelConfig, OptimizerConfig
from dlrm.data.batch import Batch, NarrowBatch, SplitBatches
from dlrm.data.loader import to_device
from dlrm.data.open_split import SplitPass
from dlrm.data.opened import OpenedDataset
from dlrm.model.network import DlrmNetwork
from dlrm.scripts.plan_placement import CRITEO_LIMIT_15
from dlrm.train.devices import build_model, build_train_step, open_batches
from dlrm.train.step import DlrmTrainStep
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, Processes
from tests.fake_cuda.device import DEVICE
from tests.fake_cuda.recorder import Recorder

SPEC = FeatureSpec.criteo(CRITEO_LIMIT_15)
"""The tables of the Terabyte log with 33 million rows: fake ones take no memory."""

PRECISIONS = {
    "float32": Precision(device_type="cuda"),
    "float16": Precision(device_type="cuda", dtype=torch.float16, loss_scale=1024.0),
    "bfloat16": Precision(device_type="cuda", dtype=torch.bfloat16),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's settings, dataset and model."""

    config: DlrmConfig
    dataset: OpenedDataset
    model: DlrmNetwork[Any]

    @classmethod
    def build(cls, config: DlrmConfig, processes: Processes = ALONE) -> "Run":
        """Builds the model of a process."""
        dataset = OpenedDataset(config.data, SPEC)
        model = build_model(config, dataset, DEVICE, processes, lambda _: None)
        return cls(config, dataset, model)

    def train_step(self, precision: Precision) -> DlrmTrainStep[Any]:
        """Builds the training step."""
        return build_train_step(self.config, self.model, precision)

    def batches(self, wanted: SplitPass) -> SplitBatches[Any]:
        """Opens the batches of a split."""
        return open_batches(self.config, self.dataset, wanted, self.model, DEVICE)


def build(optimizer: str = "sgd", embedding_l2: float = 0.0, **model: object) -> Run:
    """Builds NVIDIA's model with these settings."""
    config = DlrmConfig(
        data=DataConfig(dataset="none"),
        model=ModelConfig(**model),
        optimizer=OptimizerConfig(optimizer=optimizer, embedding_l2=embedding_l2),
    )
    return Run.build(config)


def read_batch(rows: int) -> NarrowBatch:
    """Returns a batch as a reader thread does, in storage types."""
    columns = ClickColumns(
        np.zeros(rows, np.bool_),
        np.zeros((rows, len(SPEC.numerical)), np.float16),
        tuple(np.zeros(rows, feature.dtype) for feature in SPEC.categorical),
    )
    return NarrowBatch.from_columns(columns).pinned()


def load_batch(rows: int) -> Batch[Tensor]:
    """Brings a batch to the device as the loader does."""
    (batch,) = to_device(iter([read_batch(rows)]), DEVICE)
    return batch


def record_step(run: Run, precision: str, rows: int) -> Recorder:
    """Records a batch's way from the reader through a step of training."""
    return record(run, precision, lambda: load_batch(rows))


def record(run: Run, precision: str, load: Callable[[], Batch[Any]]) -> Recorder:
    """Records what brings a batch to the device, and a step of training on it."""
    step = run.train_step(PRECISIONS[precision])
    with Recorder() as recorder:
        loss = step(load(), 0.1)
    assert loss.device == DEVICE
    assert loss.dtype == torch.float32
    return recorder
