# SPDX-License-Identifier: Apache-2.0
"""Writes tensors in the format of safetensors, piece by piece.

The library writes whole tensors from memory, which a table in a file need not fit. The bytes are
those of the library. Source of the format: https://github.com/huggingface/safetensors, "Format".
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from cuda_ext import ops

_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types that checkpoints contain, in the order in which a file has them."""
_ALIGNMENT = 8


def write_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a file.

    Args:
        tensors: name -> tensor on any device.
        path: file to write.

    Raises:
        OSError: it cannot be written, for example on a full disk.
    """
    places = {dtype: number for number, dtype in enumerate(_NAMES)}
    ordered = sorted(tensors.items(), key=lambda item: (places[item[1].dtype], item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, tensor in ordered:
            for piece in ops.pieces(tensor.detach().cpu().contiguous()):
                file.write(piece.view(torch.uint8).numpy().data)
