# SPDX-License-Identifier: Apache-2.0
"""The files of checkpoints, compared with those of the library."""

import safetensors.torch
import torch

from recsys.train.saving.safetensors_file import write_safetensors

TENSORS = {
    "weight": torch.arange(12.0).view(3, 4),
    "first": torch.arange(3.0),
    'über "all"': torch.tensor([1.5, -2.0], dtype=torch.float64),
    "count": torch.tensor(7),
    "narrow": torch.tensor([1, -1], dtype=torch.int32),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "float16": torch.ones(1, dtype=torch.float16),
    "state": torch.arange(5, dtype=torch.uint8),
    "flag": torch.tensor(True),
    "empty": torch.zeros(0, 4),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "larger": torch.arange(5_000_000, dtype=torch.int32),  # than a piece
}


def test_the_bytes_are_those_of_the_library(tmp_path):
    file = tmp_path / "tensors.safetensors"
    write_safetensors(TENSORS, file)
    contiguous = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    assert file.read_bytes() == safetensors.torch.save(contiguous)
    write_safetensors({}, file)
    assert file.read_bytes() == safetensors.torch.save({})
