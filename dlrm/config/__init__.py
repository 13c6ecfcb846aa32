# SPDX-License-Identifier: Apache-2.0
"""Settings of a DLRM run: names, defaults, help and checks.

`scripts/flags.py` turns each field into a flag of the same name.
"""

from dlrm.config.data import DataConfig, DatasetType, LoaderType
from dlrm.config.model import (
    EmbeddingStorage,
    EmbeddingType,
    InteractionOp,
    ModelConfig,
    current_settings,
)
from dlrm.config.optimizer import OptimizerConfig, PrecisionConfig
from dlrm.config.run import Mode, RunConfig
from dlrm.config.whole import SECTIONS, DlrmConfig

__all__ = [
    "SECTIONS",
    "DataConfig",
    "DatasetType",
    "DlrmConfig",
    "EmbeddingStorage",
    "EmbeddingType",
    "InteractionOp",
    "LoaderType",
    "Mode",
    "ModelConfig",
    "OptimizerConfig",
    "PrecisionConfig",
    "RunConfig",
    "current_settings",
]
