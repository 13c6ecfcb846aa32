# SPDX-License-Identifier: Apache-2.0
"""Settings of a BERT4Rec run, under the names of the flags.

Defaults are those of TorchRec's example where it has the setting. A YAML file (`--config`, or the
name of one in `configs/`) replaces defaults, a flag replaces both.
"""

from bert4rec.config.data import DataConfig, WindowKind
from bert4rec.config.model import EXPERTS, Activation, AdapterConfig, ModelConfig
from bert4rec.config.optimizer import ObjectiveConfig
from bert4rec.config.run import RunConfig
from bert4rec.config.whole import Bert4RecConfig

__all__ = [
    "EXPERTS",
    "Activation",
    "AdapterConfig",
    "Bert4RecConfig",
    "DataConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "RunConfig",
    "WindowKind",
]
