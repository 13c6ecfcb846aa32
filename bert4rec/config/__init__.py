# SPDX-License-Identifier: Apache-2.0
"""Settings of a BERT4Rec run, under the names of the flags.

Defaults are those of TorchRec's example where it has the setting. A YAML file (`--config`, or the
name of one in `configs/`) replaces defaults, a flag replaces both.
"""

from bert4rec.config.adapter import EXPERTS, AdapterConfig, AdapterKind
from bert4rec.config.data import (
    DataConfig,
    DatasetName,
    TemporalTargets,
    TemporalValidation,
    WindowKind,
)
from bert4rec.config.evaluation import EvaluationConfig
from bert4rec.config.model import Activation, ModelConfig, Norm, PositionsFrom
from bert4rec.config.objective import MaskLastOf, Objective, ObjectiveConfig
from bert4rec.config.optimizer import OptimizerConfig, PrecisionConfig
from bert4rec.config.removed import REMOVED, require_current
from bert4rec.config.run import Mode, RunConfig
from bert4rec.config.whole import SECTIONS, Bert4RecConfig

__all__ = [
    "EXPERTS",
    "REMOVED",
    "SECTIONS",
    "Activation",
    "AdapterConfig",
    "AdapterKind",
    "Bert4RecConfig",
    "DataConfig",
    "DatasetName",
    "EvaluationConfig",
    "MaskLastOf",
    "Mode",
    "ModelConfig",
    "Norm",
    "Objective",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PositionsFrom",
    "PrecisionConfig",
    "RunConfig",
    "TemporalTargets",
    "TemporalValidation",
    "WindowKind",
    "require_current",
]
