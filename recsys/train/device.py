# SPDX-License-Identifier: Apache-2.0
"""Which device a run takes."""

import torch


def resolve_device(base_device: str) -> torch.device:
    """Returns the device of a run.

    Raises:
        ValueError: CUDA was asked for and is not there.
    """
    if base_device == "auto":
        base_device = "cuda" if torch.cuda.is_available() else "cpu"
    if base_device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "--base_device cuda: this machine (or this build of torch) has no CUDA device; "
            "use --base_device auto or cpu"
        )
    return torch.device(base_device)
