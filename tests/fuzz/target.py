# SPDX-License-Identifier: Apache-2.0
"""What a fuzz target is, and how it builds structured input from bytes."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CORPUS = Path(__file__).with_name("corpus")
"""A folder per target, of the cases that every change is tested with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Something that is fuzzed.

    Attributes:
        check: raises an error other than those that users are told if an input shows a fault. It
            gets an empty folder, and bytes to build the input from.
    """

    check: Callable[[Path, bytes], None]

    @property
    def name(self) -> str:
        """Name on the command line, and of the folder in the corpus."""
        return self.check.__name__


class Draws:
    """Choices made by the bytes of an input, one after the other.

    Small changes of the bytes make small changes of what is built from them, which is what guides a
    fuzzer. After their end every choice is the first one.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def bytes(self, count: int) -> bytes:
        """Returns up to `count` bytes, fewer at the end."""
        self._at += count
        return self._data[self._at - count : self._at]

    def below(self, limit: int) -> int:
        """Returns a number from [0, limit)."""
        size = max(1, (limit - 1).bit_length() + 7 >> 3)
        return int.from_bytes(self.bytes(size), "little") % limit

    def pick(self, choices: Sequence[T]) -> T:
        """Returns one of the choices."""
        return choices[self.below(len(choices))]

    def some(self, most: int) -> Iterator[int]:
        """Yields 0, 1, ... up to `most` times, while there are bytes."""
        for number in range(self.below(most + 1)):
            if self._at >= len(self._data):
                return
            yield number

    def edited(self, data: bytes, most: int = 4) -> bytes:
        """Returns `data` with up to `most` places flipped, cut, repeated or replaced."""
        for _ in self.some(most):
            at, kind = self.below(len(data) + 1), self.below(6)
            length = self.below(16)
            if kind == 0 and data:  # a single bit
                at %= len(data)
                data = data[:at] + bytes([data[at] ^ 1 << length % 8]) + data[at + 1 :]
            elif kind == 1:
                data = data[:at] + self.bytes(length) + data[at + length :]
            elif kind == 2:
                data = data[:at] + self.bytes(length) + data[at:]
            elif kind == 3:
                data = data[:at] + data[at + length :]
            elif kind == 4:
                data = data[:at]
            else:
                data = data[: at + length] + data[at:]
        return data
