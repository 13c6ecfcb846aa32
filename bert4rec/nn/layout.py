# SPDX-License-Identifier: Apache-2.0
"""Offsets of the sequences of a batch in tensors without padding.

Every layer but attention works on single tokens, so a batch is kept packed: [N, D] for the N real
tokens of B sequences, one sequence after the other. Attention alone needs their offsets.
"""

import dataclasses
import functools

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class SequenceLayout:
    """Offsets of packed sequences.

    Attributes:
        offsets: [B + 1] int64 index of each sequence's first token, then N.
        max_length: T.
        num_tokens: N.
    """

    offsets: Tensor
    max_length: int
    num_tokens: int

    @classmethod
    def of_lengths(cls, lengths: Tensor, max_length: int, num_tokens: int) -> "SequenceLayout":
        """Computes the offsets from the lengths of the sequences.

        Args:
            lengths: [B] int64.
            max_length: T or more; known to the host, which so need not wait for the device.
            num_tokens: N.
        """
        return cls(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), max_length, num_tokens)

    def with_offsets(self, offsets: Tensor) -> "SequenceLayout":
        """Returns the layout with its offsets elsewhere, as on another device."""
        return SequenceLayout(offsets, self.max_length, self.num_tokens)

    @property
    def batch_size(self) -> int:
        """B."""
        return self.offsets.shape[0] - 1

    @property
    def is_dense(self) -> bool:
        """True if every sequence has T tokens; then padding is a view."""
        return self.num_tokens == self.batch_size * self.max_length

    def lengths(self) -> Tensor:
        """Returns [B] int64 tokens of each sequence."""
        return self.offsets.diff()

    def sequence_of_token(self) -> Tensor:
        """Returns [N] int64 index of each token's sequence."""
        return self._sequence_of_token

    def position_of_token(self) -> Tensor:
        """Returns [N] int64 position of each token in its sequence."""
        return self._position_of_token

    # Kept: in each layer anew, these launches took two fifths of a GPU's forward pass.
    @functools.cached_property
    def _sequence_of_token(self) -> Tensor:
        sequences = torch.arange(self.batch_size, device=self.offsets.device)
        return torch.repeat_interleave(sequences, self.lengths(), output_size=self.num_tokens)

    @functools.cached_property
    def _position_of_token(self) -> Tensor:
        tokens = torch.arange(self.num_tokens, device=self.offsets.device)
        return tokens - self.offsets[self._sequence_of_token]

    @functools.cached_property
    def _padded_index(self) -> Tensor:
        return self._sequence_of_token * self.max_length + self._position_of_token

    def padded(self, packed: Tensor) -> Tensor:
        """Maps [N, ...] to [B, T, ...], with zeros as padding."""
        shape = (self.batch_size, self.max_length, *packed.shape[1:])
        if self.is_dense:
            return packed.reshape(shape)
        flat = packed.new_zeros(self.batch_size * self.max_length, *packed.shape[1:])
        return flat.index_copy(0, self._padded_index, packed).view(shape)

    def packed(self, padded: Tensor) -> Tensor:
        """Maps [B, T, ...] to [N, ...], leaving the padding out."""
        flat = padded.flatten(0, 1)
        return flat if self.is_dense else flat.index_select(0, self._padded_index)

    def is_token(self) -> Tensor:
        """Returns [B, T] bool, False for padding."""
        positions = torch.arange(self.max_length, device=self.offsets.device)
        return positions < self.lengths().unsqueeze(1)


@dataclasses.dataclass(frozen=True)
class PaddedLayout(SequenceLayout):
    """Offsets of sequences padded to T tokens each.

    No shape depends on the data, so such a network can be exported; layers compute the padding too.

    Attributes:
        token_lengths: [B] int64 tokens of each sequence without padding, at least 1.
    """

    token_lengths: Tensor

    @classmethod
    def of_padded(cls, token_lengths: Tensor, max_length: int) -> "PaddedLayout":
        """Computes the offsets of [B, T] tokens.

        Args:
            token_lengths: [B] int64 tokens of each sequence without padding.
            max_length: T.
        """
        batch_size = token_lengths.shape[0]
        offsets = torch.arange(batch_size + 1, device=token_lengths.device) * max_length
        return cls(offsets, max_length, batch_size * max_length, token_lengths)

    @property
    def is_dense(self) -> bool:
        """False, since attention must skip the padding."""
        return False

    def lengths(self) -> Tensor:
        """Returns [B] int64 tokens of each sequence without padding."""
        return self.token_lengths

    def sequence_of_token(self) -> Tensor:
        """Returns [B T] int64 index of each token's sequence."""
        sequences = torch.arange(self.batch_size, device=self.offsets.device)
        return sequences.unsqueeze(1).expand(-1, self.max_length).flatten()

    def position_of_token(self) -> Tensor:
        """Returns [B T] int64 positions; padding has the last token's."""
        positions = torch.arange(self.max_length, device=self.offsets.device)
        return torch.minimum(positions, self.token_lengths.unsqueeze(1) - 1).flatten()

    def padded(self, packed: Tensor) -> Tensor:
        """Maps [B T, ...] to [B, T, ...]."""
        return packed.view(self.batch_size, self.max_length, *packed.shape[1:])

    def packed(self, padded: Tensor) -> Tensor:
        """Maps [B, T, ...] to [B T, ...]."""
        return padded.flatten(0, 1)
