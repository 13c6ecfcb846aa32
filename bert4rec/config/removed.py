# SPDX-License-Identifier: Apache-2.0
"""Settings of earlier versions, which their checkpoints name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import UserError

_OF_THE_NETWORK: dict[str, Any] = {
    "residual": "plain",
    "embedding_norm": True,
    "adapter_alpha": 16.0,
    "adapter_experts": 4,
}

REMOVED: dict[str, Any] = _OF_THE_NETWORK | {
    "adapter_dropout": 0.0,
    "choose_by": "full",
    "ema_decay": 0.0,
    "embedding_lr_factor": 1.0,
    "focal_gamma": 0.0,
    "gbce_calibration": 0.75,
    "item_rule": "auto",
    "item_update": "auto",
    "negative_sampler": "uniform",
    "no_decay_bias_norm": False,
    "warmup_ratio": None,
}
"""Removed setting -> the value that all runs have now; a run with another cannot continue."""


def require_current(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuses a network that this version cannot compute.

    Args:
        path: checkpoint or deployed version, for the message.
        settings: those of its network and adapters, as stored.

    Raises:
        UserError: a removed setting has another value than the one that is left.
    """
    for name, left in _OF_THE_NETWORK.items():
        if settings.get(name, left) != left:
            raise UserError(
                f"{path}: has `{name}` {settings[name]}, and this version computes {left} alone: "
                "use the version that trained it",
                setting=name,
                path=path,
            )
