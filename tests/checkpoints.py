# SPDX-License-Identifier: Apache-2.0
"""The latest checkpoints of runs, and their comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from recsys.data.manifest import file_checksum
from recsys.train.checkpoint import MANIFEST_FILE, Checkpoint, read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from tests.documents import change_document


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


Tensors = dict[str, torch.Tensor]


def rewrite(file: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Changes the tensors of a checkpoint's file, or makes it, and has the manifest agree."""
    stored = safetensors.torch.load_file(file) if file.exists() else {}
    safetensors.torch.save_file(change(stored), file)
    manifest = file.parent / MANIFEST_FILE
    entry = {"bytes": file.stat().st_size, "xxh3_128": file_checksum(file)}

    def agree(document: dict[str, Any]) -> dict[str, Any]:
        before = document["files"].get(file.name, {})
        return document | {"files": document["files"] | {file.name: before | entry}}

    change_document(manifest, agree)
