# SPDX-License-Identifier: Apache-2.0
"""Chooses the windows of the histories to train on."""

import dataclasses

import numpy as np
import numpy.typing as npt

from bert4rec.config import WindowKind
from recsys.data.sequences.histories import numbered


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
    """Ranges of consecutive items in histories; one int64 element per window.

    Attributes:
        users: index of the user.
        starts: position of the first item in the user's history.
        lengths: number of items.
    """

    users: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.users)

    def take(self, index: npt.NDArray[np.int64]) -> "Windows":
        """Returns some of the windows, in the order of `index`."""
        return Windows(self.users[index], self.starts[index], self.lengths[index])

    def ends(self, max_len: int) -> "Windows":
        """Shortens the windows to their last `max_len` items."""
        lengths = np.minimum(self.lengths, max_len)
        return Windows(self.users, self.starts + self.lengths - lengths, lengths)


def make_windows(
    kind: WindowKind,
    known_lengths: npt.NDArray[np.int64],
    max_len: int,
    generator: np.random.Generator,
    dupe_factor: int = 1,
) -> Windows:
    """Chooses the windows of an epoch.

    Args:
        kind: `recent`: the last max_len items of each user; `random`: max_len consecutive items of
            each user, anywhere; `sliding`: windows that overlap by nine tenths over the whole
            history (TorchRec's example); `prefix`: the items before each item but the first, so
            the last item is in no window (RecBole).
        known_lengths: [U] int64, items of each user to train on.
        max_len: items of the longest window.
        generator: draws the random starts.
        dupe_factor: copies of each window; each copy is masked anew.

    Returns:
        The windows, user by user; users with nothing to train on get no window.
    """
    users = np.flatnonzero(known_lengths >= 1)
    known = known_lengths[users]
    lengths = np.minimum(known, max_len)
    if kind == "recent":
        windows = Windows(users, known - lengths, lengths)
    elif kind == "random":
        starts = generator.integers(0, known - lengths, endpoint=True)
        windows = Windows(users, starts, lengths)
    elif kind == "sliding":
        step = max(max_len // 10, 1)
        # From the end backwards by the step, and the beginning.
        spare = known - lengths
        counts = -(-spare // step) + 1
        step_number = numbered(counts)
        owner = np.repeat(np.arange(len(users)), counts)
        starts = np.maximum(spare[owner] - step * step_number, 0)
        windows = Windows(users[owner], starts, lengths[owner])
    else:
        counts = known - 1
        owner = np.repeat(np.arange(len(users)), counts)
        ends = numbered(counts) + 1
        starts = np.maximum(ends - max_len, 0)
        windows = Windows(users[owner], starts, ends - starts)
    if dupe_factor > 1:
        windows = windows.take(np.repeat(np.arange(len(windows)), dupe_factor))
    return windows
