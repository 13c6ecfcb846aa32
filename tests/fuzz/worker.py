# SPDX-License-Identifier: Apache-2.0
"""Fuzzes one target, guided by the branches that its inputs take; `__main__` starts it.

python -m tests.fuzz.worker TARGET LIBFUZZER_ARGUMENT...
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.registry import PACKAGES, load


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory, where there is one: syncs to a disk would take most of the time."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz_", dir=place) as folder:
        yield Path(folder)


def runner(check: Callable[[Path, bytes], None], root: Path) -> Callable[[bytes], None]:
    """Returns a function that checks an input in a folder of its own."""

    def run(data: bytes) -> None:
        folder = root / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        check(folder, data)

    return run


def main(name: str, arguments: list[str]) -> None:
    """Runs until a fault, or until the limits of the arguments are reached."""
    import atheris

    with atheris.instrument_imports(include=list(PACKAGES)):
        target = load(name)
    with scratch() as root:
        atheris.Setup([sys.argv[0], *arguments], runner(target.check, root))
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
