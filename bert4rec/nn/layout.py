# SPDX-License-Identifier: Apache-2.0
"""Offsets of the sequences of a batch in tensors without padding.

Every layer but attention works on single tokens, so a batch is kept packed: [N, D] for the N real
tokens of B sequences, one sequence after the other. Attention alone needs to know where each
begins. Letters: B sequences, N tokens in all, T tokens of the longest, D columns.
"""

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class SequenceLayout:
    """Beginnings of packed sequences.

    Attributes:
        offsets: [B + 1] int64, where each sequence begins, then N.
        max_length: T.
        num_tokens: N.
    """

    offsets: Tensor
    max_length: int
    num_tokens: int

    @classmethod
    def of_lengths(cls, lengths: Tensor, max_length: int, num_tokens: int) -> "SequenceLayout":
        """Lays out sequences one after the other.

        Args:
            lengths: [B] int64.
            max_length: the largest of them, or more; a number of the host, so nothing waits.
            num_tokens: their sum, likewise.
        """
        return cls(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), max_length, num_tokens)

    @property
    def batch_size(self) -> int:
        """B."""
        return self.offsets.shape[0] - 1

    @property
    def is_dense(self) -> bool:
        """Returns whether every sequence has T tokens: padding is a view."""
        return self.num_tokens == self.batch_size * self.max_length

    def lengths(self) -> Tensor:
        """Returns [B] int64."""
        return self.offsets.diff()

    def sequence_of_token(self) -> Tensor:
        """Returns [N] int64."""
        sequences = torch.arange(self.batch_size, device=self.offsets.device)
        return torch.repeat_interleave(sequences, self.lengths(), output_size=self.num_tokens)

    def place_of_token(self) -> Tensor:
        """Returns [N] int64, each token's position in its sequence, from 0."""
        tokens = torch.arange(self.num_tokens, device=self.offsets.device)
        return tokens - self.offsets[self.sequence_of_token()]

    def _padded_index(self) -> Tensor:
        return self.sequence_of_token() * self.max_length + self.place_of_token()

    def padded(self, packed: Tensor) -> Tensor:
        """Maps [N, ...] to [B, T, ...], zeros behind each sequence."""
        shape = (self.batch_size, self.max_length, *packed.shape[1:])
        if self.is_dense:
            return packed.reshape(shape)
        flat = packed.new_zeros(self.batch_size * self.max_length, *packed.shape[1:])
        return flat.index_copy(0, self._padded_index(), packed).view(shape)

    def packed(self, padded: Tensor) -> Tensor:
        """Maps [B, T, ...] to [N, ...], leaving the padding out."""
        flat = padded.flatten(0, 1)
        return flat if self.is_dense else flat.index_select(0, self._padded_index())

    def is_token(self) -> Tensor:
        """Returns [B, T] bool: a token, not padding."""
        places = torch.arange(self.max_length, device=self.offsets.device)
        return places < self.lengths().unsqueeze(1)


@dataclasses.dataclass(frozen=True, slots=True)
class PaddedLayout(SequenceLayout):
    """Sequences that begin T tokens apart, each with padding behind it.

    No shape depends on the data, so an exporter sees through it; layers compute the padding too.

    Attributes:
        token_lengths: [B] int64, tokens of each sequence that are no padding, at least 1.
    """

    token_lengths: Tensor

    @classmethod
    def of_padded(cls, token_lengths: Tensor, max_length: int) -> "PaddedLayout":
        """Lays out [B, T] tokens.

        Args:
            token_lengths: [B] int64.
            max_length: T.
        """
        batch_size = token_lengths.shape[0]
        offsets = torch.arange(batch_size + 1, device=token_lengths.device) * max_length
        return cls(offsets, max_length, batch_size * max_length, token_lengths)

    @property
    def is_dense(self) -> bool:
        """False: attention must leave the padding out."""
        return False

    def lengths(self) -> Tensor:
        """Returns [B] int64."""
        return self.token_lengths

    def sequence_of_token(self) -> Tensor:
        """Returns [B T] int64."""
        sequences = torch.arange(self.batch_size, device=self.offsets.device)
        return sequences.unsqueeze(1).expand(-1, self.max_length).flatten()

    def place_of_token(self) -> Tensor:
        """Returns [B T] int64; padding gets the place of the last token."""
        places = torch.arange(self.max_length, device=self.offsets.device)
        return torch.minimum(places, self.token_lengths.unsqueeze(1) - 1).flatten()

    def padded(self, packed: Tensor) -> Tensor:
        """Maps [B T, ...] to [B, T, ...]."""
        return packed.view(self.batch_size, self.max_length, *packed.shape[1:])

    def packed(self, padded: Tensor) -> Tensor:
        """Maps [B, T, ...] to [B T, ...]."""
        return padded.flatten(0, 1)
