# SPDX-License-Identifier: Apache-2.0
"""Lets a random call of the system fail in a command, or changes a limit or the clock at it."""

import dataclasses
import errno
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests import harness
from tests.kills.processes import Command
from tests.kills.scenarios import Expected, Inputs, Scenario, ViolationError

_COUNTED = ("READ", "WRITE", "BYTES", "FSYNC", "RENAME", "OPEN", "CHANGE", "CLOCK")
"""What the library counts, in its order."""
_KINDS = (*_COUNTED, "MEMORY", "DESCRIPTORS")
"""The last two are limits that it sets when a file is opened."""

_OF_LIBRARIES = ("cannot allocate memory for thread-local data", "memory allocation of ")
"""What the C library and Rust's say before they end the process, which no program can prevent."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Attributes:
        kind: one of the library's.
        value: draws its FAULT_VALUE.
        must_succeed: whether the command must end as if nothing were.
    """

    kind: str
    value: Callable[[random.Random], int]
    must_succeed: bool = False


def _error(number: int) -> Callable[[random.Random], int]:
    return lambda rng: number


FAULTS = {
    "a read fails": Fault("READ", _error(errno.EIO)),
    "a write fails": Fault("WRITE", _error(errno.EIO)),
    "the disk is full": Fault("BYTES", _error(errno.ENOSPC)),
    "the quota is used up": Fault("BYTES", _error(errno.EDQUOT)),
    "a sync fails": Fault("FSYNC", _error(errno.EIO)),
    "a rename fails": Fault("RENAME", _error(errno.EIO)),
    "a file cannot be opened": Fault("OPEN", _error(errno.EMFILE)),
    "the disk turns read-only": Fault("CHANGE", _error(errno.EROFS)),
    "few descriptors": Fault("DESCRIPTORS", lambda rng: rng.randint(0, 8)),
    "little memory": Fault("MEMORY", lambda rng: 1 << rng.randint(16, 28)),
    "the clock jumps": Fault("CLOCK", lambda rng: rng.randint(-50_000, 50_000), must_succeed=True),
}


class Disturber:
    """Lets a scenario's command meet faults.

    Args:
        scenario: the command.
        inputs: what it reads.
        folder: an empty folder for a whole run, whose calls are counted.

    Attributes:
        seen: number of runs by fault and by whether the command ended with an error.
    """

    def __init__(self, scenario: Scenario, inputs: Inputs, folder: Path) -> None:
        self._scenario, self._inputs = scenario, inputs
        self._library = folder / "faults.so"
        self.seen: Counter[tuple[str, bool]] = Counter()
        folder.mkdir()
        compiler = shutil.which("cc") or shutil.which("gcc")
        source = Path(__file__).with_name("faults.c")
        harness.run(compiler, "-O1", "-shared", "-fPIC", "-o", self._library, source, "-ldl")
        self._expected = Expected.of(scenario, inputs, folder, self._variables(folder))
        counts = struct.unpack(f"{len(_COUNTED)}q", (folder / "counts").read_bytes())
        self._counts = dict(zip(_COUNTED, counts, strict=True))

    def _arguments(self, folder: Path) -> list[object]:
        return [*self._scenario.command(self._inputs, folder / "output")]

    def _variables(self, folder: Path) -> dict[str, str]:
        counts = folder / "counts"
        counts.write_bytes(bytes(8 * len(_COUNTED)))
        return {
            "LD_PRELOAD": str(self._library),
            "FAULT_COUNTS": str(counts),
            "FAULT_OUTPUT": str(folder / "output"),
            "FAULT_FILES": str(folder.parent),
        }

    def disturb(self, folder: Path, rng: random.Random) -> int:
        """Runs the command with one fault, in an empty folder; returns 1, the number of faults.

        Raises:
            Exception: it neither succeeds nor says what is wrong, or does not leave what it should.
        """
        name = rng.choice([*FAULTS])
        fault = FAULTS[name]
        calls = self._counts.get(fault.kind, self._counts["OPEN"])
        at, value = rng.randint(1, max(1, calls)), fault.value(rng)
        try:
            self.seen[name, self._run(folder, fault, at, value)] += 1
        except Exception as error:
            raise ViolationError(f"{name} (at {at} of {calls}, value {value}): {error}") from error
        return 1

    def _run(self, folder: Path, fault: Fault, at: int, value: int) -> bool:
        """Returns whether the command ended with an error."""
        output = folder / "output"
        self._scenario.start(self._inputs, output)
        numbers = {"KIND": _KINDS.index(fault.kind), "AT": at, "VALUE": value}
        variables = {f"FAULT_{key}": str(number) for key, number in numbers.items()}
        command = Command(self._arguments(folder), folder, self._variables(folder) | variables)
        status = command.wait()
        if status:
            said = command.stderr.read_text(errors="replace")
            _require_one_line(status, said)
            if fault.must_succeed:
                raise ViolationError("must not matter")
            self._expected.require_nothing_half_written(output)
        if status or not self._expected.is_whole(output):
            # If it failed after its last rename, it may say that its work is done. If it could not
            # remove an obsolete checkpoint, this is no error, and it does now.
            Command(self._arguments(folder), folder).wait()
        self._expected.require_whole(output)
        return status != 0


def _require_one_line(status: int, said: str) -> None:
    """Raises an error unless a command ended by itself and said in one line what is wrong."""
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    of_libraries = [line for line in lines if line.startswith(_OF_LIBRARIES)]
    ended_itself = status > 0 and len(errors) == 1
    if not (ended_itself or of_libraries) or "Traceback" in said:
        raise ViolationError(f"status {status}, {len(errors)} lines of errors")
