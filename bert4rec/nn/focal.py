# SPDX-License-Identifier: Apache-2.0
"""Focal loss: cross entropy that counts well predicted targets less.

Source: Lin et al. 2017 (arXiv:1708.02002), with the softmax in place of their sigmoid.
"""

import torch
from torch import Tensor


def focal_loss(losses: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Weighs cross entropies by (1 - p)^gamma, p the target's probability.

    The slope times the gradient of the cross entropy is that of the focal loss, so a softmax in
    blocks needs one number per target for it.

    Args:
        losses: cross entropy -log p of each target, of any shape.
        gamma: exponent, at least 0; 0 is the cross entropy itself.

    Returns:
        (focal losses, their derivatives by the cross entropies), in the shape of `losses`.
    """
    losses = losses.clamp_min(0.0)  # rounding may leave a negative one
    true = torch.exp(-losses)
    # A target with p = 1 has no loss and no slope; without the bound gamma < 1 would divide by 0.
    other = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)
    weights = other**gamma
    return weights * losses, weights * (1 + gamma * true * losses / other)
