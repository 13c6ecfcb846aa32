# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a file of a dataset."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.documents import change_document, with_checksum

Damage = Callable[[Path], object]

remove: Damage = Path.unlink


def edit(old: str, new: str) -> Damage:
    def damage(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(with_checksum(text.replace(old, new, 1)))

    return damage


def put(content: bytes | str) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def overwrite(offset: int, data: bytes) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset : offset + len(data)] = data
        path.write_bytes(content)

    return damage


def cut(count: int) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[:-count])


def fifo(path: Path) -> None:
    """Puts a FIFO in a file's place, at which a reader waits forever."""
    path.unlink()
    os.mkfifo(path)


def set_key(key: str, value: object) -> Damage:
    """Changes a key of a JSON file."""
    return lambda path: change_document(path, lambda document: document | {key: value})


def inside(name: str, damage: Damage) -> Damage:
    """Damages a file of a folder."""
    return lambda folder: damage(folder / name)


def each(*damages: Damage) -> Damage:
    """Does several things to a file, in order."""
    return lambda path: [damage(path) for damage in damages]
