# SPDX-License-Identifier: Apache-2.0
"""Draws negatives on the device, shared by all targets of a batch.

Letters: I items, S negatives.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.data.split import known_lengths
from recsys.data.sequences import Sequences


@dataclasses.dataclass(frozen=True, slots=True)
class Negatives:
    """Items that targets are compared with.

    Attributes:
        items: [S] int64, item numbers from 1; one may occur more than once.
        log_expected: [S] float32, logarithm of how often S draws are expected to give each.
    """

    items: Tensor
    log_expected: Tensor


class NegativeSampler:
    """Draws negatives with replacement.

    Args:
        num_items: I.
        count: S.
        popularity: [I], weight of each item; None draws uniformly.
        device: of the draws.
    """

    def __init__(
        self,
        num_items: int,
        count: int,
        popularity: npt.NDArray[np.float64] | None,
        device: torch.device,
    ) -> None:
        self._num_items = num_items
        self._count = count
        self._device = device
        self._cumulative: Tensor | None = None
        if popularity is not None:
            shares = torch.from_numpy(popularity / popularity.sum())
            self._log_expected = torch.log(shares * count).to(device, torch.float32)
            self._cumulative = shares.cumsum(0).to(device)

    def draw(self, generator: torch.Generator) -> Negatives:
        """Draws the negatives of a batch.

        Args:
            generator: of the device.
        """
        device = self._device
        if self._cumulative is None:
            items = torch.randint(
                1, self._num_items + 1, (self._count,), generator=generator, device=device
            )
            expected = math.log(self._count / self._num_items)
            return Negatives(items, torch.full((self._count,), expected, device=device))
        drawn = torch.rand(self._count, generator=generator, device=device, dtype=torch.float64)
        # The last sum may fall short of one by rounding.
        rows = torch.searchsorted(self._cumulative, drawn).clamp_(max=self._num_items - 1)
        return Negatives(rows + 1, self._log_expected[rows])


def training_popularity(sequences: Sequences) -> npt.NDArray[np.float64]:
    """Returns how often training meets each item, plus one.

    With the one, an item that only occurs among the held-out ones can be drawn too.

    Returns:
        [I].
    """
    known = known_lengths(sequences, "train")
    position = np.arange(len(sequences.items)) - np.repeat(
        sequences.offsets[:-1], sequences.lengths
    )
    items = sequences.items[position < np.repeat(known, sequences.lengths)]
    counts = np.bincount(items, minlength=sequences.num_items + 1)[1:]
    return counts.astype(np.float64) + 1.0
