# SPDX-License-Identifier: Apache-2.0
"""Settings of a DLRM run: names, defaults, help and checks.

`scripts/flags.py` turns each field into a flag of the same name.
"""

from dlrm.config.data import DataConfig, DatasetType
from dlrm.config.model import EmbeddingStorage, ModelConfig
from dlrm.config.optimizer import OptimizerConfig
from dlrm.config.run import BestBy, RunConfig
from dlrm.config.whole import DlrmConfig

__all__ = [
    "BestBy",
    "DataConfig",
    "DatasetType",
    "DlrmConfig",
    "EmbeddingStorage",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
]
