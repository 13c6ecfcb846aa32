# SPDX-License-Identifier: Apache-2.0
"""The latest checkpoints of runs, and their comparison."""

from pathlib import Path

import torch

from recsys.train.checkpoint import Checkpoint, read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder


def latest(run: Path) -> Checkpoint:
    """Opens the latest checkpoint of a run."""
    return read_checkpoint(CheckpointFolder(run).latest())


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Reads all tensors of a run's latest checkpoint, by group and name."""
    checkpoint = latest(run)
    return {
        f"{group}.{name}": tensor
        for group in checkpoint.groups()
        for name, tensor in checkpoint.tensors(group).items()
    }


def assert_same(first: Path, second: Path, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Compares the latest checkpoints of two runs, by default their bits."""
    found, expected = tensors(first), tensors(second)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{first}, {n}: {m}"
        )
