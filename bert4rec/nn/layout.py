# SPDX-License-Identifier: Apache-2.0
"""Offsets of the sequences of a batch, mostly without padding.

Every layer except attention works on single tokens, so a batch is kept packed: [N, D] for the N
real tokens of B sequences, one sequence after the other. Only attention needs their offsets.
"""

import dataclasses
import functools

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class SequenceLayout:
    """Offsets of packed sequences, or of sequences padded to T tokens each.

    With padded sequences, no shape depends on the data, so that the network can be exported; layers
    then compute the padding too.

    Attributes:
        offsets: [B + 1] int64 index of each sequence's first token, then N.
        max_length: T.
        num_tokens: N; B T for padded sequences.
        token_lengths: [B] int64 tokens of each padded sequence without its padding, at least 1;
            None for packed ones.
    """

    offsets: Tensor
    max_length: int
    num_tokens: int
    token_lengths: Tensor | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def of_lengths(cls, lengths: Tensor, max_length: int, num_tokens: int) -> "SequenceLayout":
        """Computes the offsets from the lengths of the sequences.

        Args:
            lengths: [B] int64.
            max_length: T or more; given, so that the host need not wait for the device.
            num_tokens: N.
        """
        return cls(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), max_length, num_tokens)

    @classmethod
    def of_padded(cls, token_lengths: Tensor, max_length: int) -> "SequenceLayout":
        """Computes the offsets of [B, T] tokens with [B] `token_lengths`."""
        count = token_lengths.shape[0]
        offsets = torch.arange(count + 1, device=token_lengths.device) * max_length
        return cls(offsets, max_length, count * max_length, token_lengths=token_lengths)

    def with_offsets(self, offsets: Tensor) -> "SequenceLayout":
        """Returns the layout with other offsets, such as a copy on another device."""
        return SequenceLayout(offsets, self.max_length, self.num_tokens)

    @property
    def batch_size(self) -> int:
        """B."""
        return self.offsets.shape[0] - 1

    @property
    def is_dense(self) -> bool:
        """True if every sequence has T tokens, none of them padding."""
        return self.token_lengths is None and self.num_tokens == self.batch_size * self.max_length

    @property
    def _is_view(self) -> bool:
        """True if [B, T, ...] is a view of [N, ...]."""
        return self.token_lengths is not None or self.is_dense

    def lengths(self) -> Tensor:
        """Returns [B] int64 tokens of each sequence, without padding."""
        return self.offsets.diff() if self.token_lengths is None else self.token_lengths

    def sequence_of_token(self) -> Tensor:
        """Returns [N] int64 index of each token's sequence."""
        if self.token_lengths is None:
            return self._sequence_of_token
        sequences = torch.arange(self.batch_size, device=self.offsets.device)
        return sequences.unsqueeze(1).expand(-1, self.max_length).flatten()

    def position_of_token(self) -> Tensor:
        """Returns [N] int64 positions in the sequences; padding repeats the last one."""
        if self.token_lengths is None:
            return self._position_of_token
        positions = torch.arange(self.max_length, device=self.offsets.device)
        return torch.minimum(positions, self.token_lengths.unsqueeze(1) - 1).flatten()

    # Cached: repeated in each layer, these launches took two fifths of a GPU's forward pass.
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
        """Maps [N, ...] to [B, T, ...]; zeros pad packed sequences."""
        shape = (self.batch_size, self.max_length, *packed.shape[1:])
        if self._is_view:
            return packed.reshape(shape)
        flat = packed.new_zeros(self.batch_size * self.max_length, *packed.shape[1:])
        return flat.index_copy(0, self._padded_index, packed).view(shape)

    def packed(self, padded: Tensor) -> Tensor:
        """Maps [B, T, ...] to [N, ...]; packed sequences lose their padding."""
        flat = padded.flatten(0, 1)
        return flat if self._is_view else flat.index_select(0, self._padded_index)

    def is_token(self) -> Tensor:
        """Returns [B, T] bool, False for padding."""
        positions = torch.arange(self.max_length, device=self.offsets.device)
        return positions < self.lengths().unsqueeze(1)
