# SPDX-License-Identifier: Apache-2.0
"""The parts of a DLRM run on the fake device, built as the program builds them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dlrm.config import DataConfig, DlrmConfig, ModelConfig, OptimizerConfig
from dlrm.data.batch import Batch, NarrowBatch
from dlrm.data.loader import to_device
from dlrm.data.opened import OpenedDataset
from dlrm.scripts.plan_placement import CRITEO_LIMIT_15
from dlrm.train.devices import OneDevice, SeveralDevices
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.train.optimizers.precision import Precision
from tests.fake_cuda.device import DEVICE
from tests.fake_cuda.recorder import Recorder

SPEC = FeatureSpec.criteo(CRITEO_LIMIT_15)
"""The tables of the Terabyte log with 33 million rows: fake ones take no memory."""

PRECISIONS = {
    "float32": Precision(device_type="cuda"),
    "float16": Precision(device_type="cuda", dtype=torch.float16, loss_scale=1024.0),
    "bfloat16": Precision(device_type="cuda", dtype=torch.bfloat16),
}


def build(optimizer: str = "sgd", **model: object) -> OneDevice:
    """Builds NVIDIA's model with these settings."""
    config = DlrmConfig(
        data=DataConfig(dataset="none"),
        model=ModelConfig(**model),
        optimizer=OptimizerConfig(optimizer=optimizer),
    )
    return OneDevice.build(config, OpenedDataset(config.data, SPEC), DEVICE)


def read_batch(rows: int) -> NarrowBatch:
    """Returns a batch as a reader thread does, in storage types."""
    columns = ClickColumns(
        np.zeros(rows, np.bool_),
        np.zeros((rows, len(SPEC.numerical)), np.float16),
        tuple(np.zeros(rows, feature.dtype) for feature in SPEC.categorical),
    )
    return NarrowBatch.from_columns(columns).pinned()


def load_batch(recorder: Recorder, rows: int) -> Batch[Tensor]:
    """Brings a batch to the device as the loader does; its copies alone may touch the host."""
    with recorder.in_stage("input"):
        (batch,) = to_device(iter([read_batch(rows)]), DEVICE)
    return batch


def record_step(devices: OneDevice, precision: str, rows: int) -> Recorder:
    """Records a batch's way from the reader through a step of training."""
    return record(devices, precision, lambda recorder: load_batch(recorder, rows))


def record(
    devices: OneDevice | SeveralDevices,
    precision: str,
    load: Callable[[Recorder], Batch[Any]],
) -> Recorder:
    """Records what brings a batch to the device, and a step of training on it."""
    step, model = devices.train_step(PRECISIONS[precision]), devices.model
    stages: dict[str, list[tuple[object, str]]] = {
        "bottom MLP": [(model.bottom_mlp, "forward")],
        "lookup and interaction": [
            *((model.embeddings, name) for name in ("prepare", "interact", "forward")),
            (model.interaction, "forward"),
        ],
        "top MLP": [(model.top_mlp, "forward")],
        "loss": [(step._gradients, "loss")],
        "overflow": [(step, "_find_overflow")],
        "row gradients": [(step.embedding_optimizer, "gradients")],
        "table update": [(step.embedding_optimizer, "step")],
        "MLP update": [(step.mlp_optimizer, "step")],
    }
    with Recorder() as recorder, pytest.MonkeyPatch.context() as patch:
        for stage, methods in stages.items():
            for owner, name in methods:
                if owner is None:  # frozen
                    continue
                patch.setattr(owner, name, recorder.staged(getattr(owner, name), stage))
        batch = load(recorder)
        with recorder.in_stage("step"):
            loss = step(batch, 0.1)
    assert loss.device == DEVICE
    assert loss.dtype == torch.float32
    return recorder
