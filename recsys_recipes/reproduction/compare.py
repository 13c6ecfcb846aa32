# SPDX-License-Identifier: Apache-2.0
"""Compares files, tensors and values of two runs, by default to the bit."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

_CHUNK = 1 << 24
"""Numbers of a tensor that are compared at a time."""

Files = Mapping[str, Mapping[str, Any]]
"""Name -> size and checksum, as manifests list them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparedFiles:
    """Two lists of files, compared by size and checksum.

    Attributes:
        files: number of files of the original.
        different: files of both that differ.
        missing: files that only the original has.
        added: files that only the reproduced one has.
    """

    files: int
    different: list[str]
    missing: list[str]
    added: list[str]

    @property
    def equal(self) -> bool:
        """Whether both have the same files with the same content."""
        return not (self.different or self.missing or self.added)

    @property
    def text(self) -> str:
        """How many files are equal, and the number of those that are new."""
        equal = self.files - len(self.different) - len(self.missing)
        added = f", {len(self.added)} more" if self.added else ""
        return f"{equal} of {self.files} files equal{added}"


def compare_files(original: Files, reproduced: Files) -> ComparedFiles:
    """Compares two lists of files."""
    return ComparedFiles(
        files=len(original),
        different=[n for n, entry in sorted(original.items()) if reproduced.get(n, entry) != entry],
        missing=sorted(original.keys() - reproduced.keys()),
        added=sorted(reproduced.keys() - original.keys()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparedTensors:
    """The tensors of two files.

    Attributes:
        tensors: number of tensors in the original.
        different: number of tensors that differ, or that only one file has.
        largest_difference: largest absolute difference of two numbers; None if tensors of other
            shapes or types make it unknown.
        largest_in: name of the tensor with it; None if no number differs.
    """

    tensors: int
    different: int
    largest_difference: float | None
    largest_in: str | None


def compare_tensors(original: Path, reproduced: Path) -> ComparedTensors:
    """Compares the tensors of two safetensors files, one at a time."""
    differences: dict[str, float] = {}
    with (
        safetensors.safe_open(original, framework="pt") as one,
        safetensors.safe_open(reproduced, framework="pt") as other,
    ):
        names, others = set(one.keys()), set(other.keys())
        for name in names & others:
            difference = _difference(one.get_tensor(name), other.get_tensor(name))
            if difference is not None:
                differences[name] = difference
    differences |= dict.fromkeys(names ^ others, math.nan)
    known = {name: value for name, value in differences.items() if math.isfinite(value)}
    largest_in = max(sorted(known), key=lambda name: known[name], default=None)
    is_known = len(known) == len(differences)
    largest = max(known.values(), default=0.0) if is_known else None
    return ComparedTensors(
        tensors=len(names),
        different=len(differences),
        largest_difference=largest,
        largest_in=largest_in,
    )


def _difference(one: Tensor, other: Tensor) -> float | None:
    """Returns the largest absolute difference, NaN if there is none to tell; None if bit-equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.nan
    if torch.equal(_bytes(one), _bytes(other)):
        return None
    first, second = one.flatten(), other.flatten()
    parts = [slice(at, at + _CHUNK) for at in range(0, len(first), _CHUNK)]
    return max(float((first[part].double() - second[part].double()).abs().max()) for part in parts)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


Pair = dict[str, Any]
"""The value of the `original` and the `reproduced` run."""


def pair(original: Any, reproduced: Any) -> Pair:
    """Returns two values of one thing."""
    return {"original": original, "reproduced": reproduced}


def differing(
    original: Mapping[str, Any], reproduced: Mapping[str, Any], leave_out: Collection[str] = ()
) -> dict[str, Pair]:
    """Returns the values of the original that the reproduced one has not, by name.

    Names that only the reproduced one has are those of later versions, and are left out.
    """
    return {
        name: pair(value, reproduced.get(name))
        for name, value in sorted(original.items())
        if name not in leave_out and not is_same(value, reproduced.get(name))
    }


def is_same(one: Any, other: Any) -> bool:
    """Returns whether two values are equal; NaN equals NaN."""
    both_nan = all(isinstance(each, float) and math.isnan(each) for each in (one, other))
    return both_nan or bool(one == other)
