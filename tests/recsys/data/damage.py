# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a dataset, and the check that a reader names what is wrong."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.data.errors import DatasetError
from tests.recsys.data.datasets import write_dataset

SPEC_FILE, MODEL_SIZE = "feature_spec.yaml", "model_size.json"


@dataclasses.dataclass(frozen=True)
class Case:
    """One malformed input."""

    damage: Callable[[Path], object]
    read: Callable[[Path], object]
    file: str  # that the message must name
    says: str  # what is wrong and what to do, as a pattern


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def damage(root):
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new, 1))

    return damage


def put(name: str, content: bytes | str) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda root: (root / name).write_bytes(data)


def overwrite(name: str, offset: int, data: bytes) -> Callable[[Path], object]:
    def damage(root):
        content = bytearray((root / name).read_bytes())
        content[offset : offset + len(data)] = data
        (root / name).write_bytes(content)

    return damage


def cut(name: str, count: int) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-count])


def remove(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def assert_refused(case: Case, root: Path) -> None:
    """Reads a good dataset, damages it, and compares the message."""
    write_dataset(root)
    case.read(root)
    case.damage(root)
    with pytest.raises(DatasetError) as caught:
        case.read(root)
    message = str(caught.value)
    assert case.file in message
    assert re.search(case.says, message, re.DOTALL), message
    assert len(message) < 1000
