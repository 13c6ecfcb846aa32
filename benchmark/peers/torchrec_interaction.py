# SPDX-License-Identifier: Apache-2.0
"""TorchRec's dot interaction (environment of `make peers`)."""

import importlib.util
from collections.abc import Callable

from torch import Tensor


def has_torchrec() -> bool:
    """Returns whether TorchRec and FBGEMM are installed."""
    return all(importlib.util.find_spec(name) for name in ("torchrec", "fbgemm_gpu"))


def interaction_arch(num_tables: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Builds InteractionArch: ([B, D], [B, F, D]) -> [B, D + F(F+1)/2]."""
    from torchrec.models.dlrm import InteractionArch

    module: Callable[[Tensor, Tensor], Tensor] = InteractionArch(num_tables)
    return module
