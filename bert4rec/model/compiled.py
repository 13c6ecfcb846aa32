# SPDX-License-Identifier: Apache-2.0
"""The network's layers under torch.compile, compiled once for all batches.

Batches differ in every size: sequences, tokens, targets and the longest of both. The sizes are
symbolic in the compiled code, and are rounded up to multiples of 8. The work on item tables
(lookups, row gradients and the loss in blocks) stays outside, since it is single kernels already.
"""

import dataclasses
import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.fx.experimental import _config as symbol_config
from torch.nn import functional as F

from bert4rec.model.network import Bert4Rec
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import TargetTokens
from recsys.errors import UserError

_SMALLEST = 8
"""Sizes are multiples of it, because torch.compile makes separate graphs for sizes 0 and 1."""


@dataclasses.dataclass(frozen=True)
class RoundedLayout(SequenceLayout):
    """Packed sequences with added tokens and sequences that are ignored.

    Attributes:
        sequence: [N] int64 sequence of each token; 0 for added tokens.
        position: [N] int64 position of each token in its sequence; 0 for added tokens.
        slot: [N] int64 index among the B T padded tokens; B T for added tokens.
        token_lengths: [B] int64 tokens of each sequence; 1 for added sequences.
    """

    sequence: Tensor
    position: Tensor
    slot: Tensor

    def sequence_of_token(self) -> Tensor:
        """Returns [N] int64 index of each token's sequence."""
        return self.sequence

    def position_of_token(self) -> Tensor:
        """Returns [N] int64 position of each token in its sequence."""
        return self.position

    def padded(self, packed: Tensor) -> Tensor:
        """Maps [N, ...] to [B, T, ...], with zeros as padding."""
        count = self.batch_size * self.max_length
        flat = packed.new_zeros(count + 1, *packed.shape[1:]).index_copy(0, self.slot, packed)
        return flat[:count].view(-1, self.max_length, *packed.shape[1:])

    def packed(self, padded: Tensor) -> Tensor:
        """Maps [B, T, ...] to [N, ...]; added tokens get arbitrary values."""
        flat = padded.flatten(0, 1)
        return flat.index_select(0, self.slot.clamp(max=flat.shape[0] - 1))


class CompiledNetwork:
    """A network without its item lookups, compiled at the first batch.

    Args:
        model: the network to train.

    Raises:
        UserError: this machine has no C++ compiler, which PyTorch needs on a CPU.
    """

    def __init__(self, model: Bert4Rec) -> None:
        self._model = model
        if not model.head.bias.is_cuda:
            _require_compiler()
        self._run: Callable[..., Tensor] = torch.compile(self._layers, dynamic=True, fullgraph=True)

    def __call__(
        self,
        items: Tensor,
        vectors: Tensor,
        layout: SequenceLayout,
        targets: TargetTokens,
        causal: bool,
    ) -> Tensor:
        """Computes the output of `Bert4Rec.forward` from embeddings of the items.

        Args:
            items: [N] int64 packed item numbers; tokens that are added here are padding, item 0.
            vectors: [N, D] embeddings of the items.
            layout: offsets of the sequences in `vectors`.
            targets: positions of the M targets.
            causal: no token attends to a later one.

        Returns:
            [M, D].
        """
        every_token = targets.layout is layout
        size, sequences = _rounded(layout.num_tokens), _rounded(layout.batch_size)
        tokens, longest = self._packed_index(layout, sequences, items)
        lengths = layout.lengths()
        lengths = F.pad(lengths, (0, sequences - lengths.shape[0]), value=1)
        chosen, longest_chosen = tokens, longest
        if not every_token:
            chosen, longest_chosen = self._packed_index(
                targets.layout, sequences, targets.index, targets.positions
            )
        vectors = F.pad(vectors, (0, 0, 0, size - vectors.shape[0]))
        # Sizes that happen to be equal in the first batch differ in others.
        with symbol_config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            hidden = self._run(
                vectors, tokens, lengths, longest, chosen, longest_chosen, every_token, causal
            )
        return hidden[: targets.index.shape[0]]

    def _packed_index(
        self, layout: SequenceLayout, sequences: int, *values: Tensor
    ) -> tuple[Tensor, int]:
        """Returns ([3 + V, N] sequence, position, slot and V values of each token, T), rounded."""
        sequence, position = layout.sequence_of_token(), layout.position_of_token()
        longest = _rounded(layout.max_length)
        rows = [sequence, position, sequence * longest + position, *values]
        added = _rounded(layout.num_tokens) - layout.num_tokens
        fills = [0, 0, sequences * longest, *[0] * len(values)]
        padded = [F.pad(row, (0, added), value=fill) for row, fill in zip(rows, fills, strict=True)]
        return torch.stack(padded), longest

    def _layers(
        self,
        vectors: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        longest: int,
        chosen: Tensor,
        longest_chosen: int,
        every_token: bool,
        causal: bool,
    ) -> Tensor:
        layout = _layout(tokens, lengths, longest)
        if every_token:
            targets = TargetTokens(tokens[0], layout, layout.position)
        else:
            targets = TargetTokens(chosen[3], _layout(chosen, lengths, longest_chosen), chosen[4])
        hidden: Tensor = self._model(tokens[3], layout, targets, causal=causal, vectors=vectors)
        return hidden


def _rounded(size: int) -> int:
    return max(-(-size // _SMALLEST), 1) * _SMALLEST


def _layout(index: Tensor, lengths: Tensor, longest: int) -> RoundedLayout:
    sequence, position, slot = index[0], index[1], index[2]
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    shape = (offsets, longest, index.shape[1])
    return RoundedLayout(*shape, sequence, position, slot, token_lengths=lengths)


def _require_compiler() -> None:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if not any(map(shutil.which, names)):
        raise UserError(
            f"`torch_compile` needs a C++ compiler on a CPU, but {' or '.join(names)} was not "
            "found: install one, set CXX to it, or drop `torch_compile`",
            setting="torch_compile",
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise UserError(
            f"`torch_compile` needs Python's headers, but {headers}/Python.h is missing: install "
            "them (Debian: python3-dev), or drop `torch_compile`",
            setting="torch_compile",
        )
