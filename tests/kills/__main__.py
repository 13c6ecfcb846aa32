# SPDX-License-Identifier: Apache-2.0
"""Disturbs commands at random moments, runs them again, and compares what is left with a whole run.

    python -m tests.kills [--kills N] [--faults N] [--seed N] [--first N] [SCENARIO ...]

Kills: a command, or one of its processes, gets SIGKILL after a random part of the time that a whole
run takes, and is started again with the same arguments until it ends by itself. Faults: a random
call of the system fails, or a limit or the clock changes at it. Then the command must end as if
nothing were, or say in one line what is wrong, after which it is started again without the fault.

Its files must be those of the whole run, byte for byte, there must be no other files, and what has
appeared meanwhile must be whole. The seed draws the moments; which instruction a moment meets
differs from run to run. Each violation is printed with the command that repeats its run.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kills import faults, killed, serving
from tests.kills.processes import kill_all
from tests.kills.scenarios import SCENARIOS, Expected, Inputs
from tests.tools import is_here

NAMES = (*SCENARIOS, serving.NAME)
FAULTY = ("prepare", "extend", "train", "deploy", "delta", "apply")
"""Scenarios that meet faults too."""

Disturb = Callable[[Path, random.Random], int]
"""(empty folder, draws) -> number of kills or faults; raises an error if something is wrong."""


class Disturbances:
    """Kills and faults of several scenarios.

    Args:
        root: an empty folder.
        seed: draws the moments.
        first: number of a scenario's first run.

    Attributes:
        violations: number so far.
    """

    def __init__(self, root: Path, seed: int, first: int) -> None:
        self._root, self._seed, self._first = root, seed, first
        self._inputs = Inputs(root / "inputs")
        self.violations = 0

    def kill(self, label: str, number: int) -> None:
        """Kills a scenario's command so often."""
        self._repeat("kills", label, number, self._killer(label))

    def _killer(self, label: str) -> Disturb:
        folder = self._root / label
        if label == serving.NAME:
            return serving.Disturber(self._inputs, folder).disturb
        expected = Expected.of(SCENARIOS[label], self._inputs, folder)
        return killed.Disturber(expected, self._inputs).disturb

    def meet_faults(self, label: str, number: int) -> None:
        """Lets a scenario's command meet so many faults."""
        folder = self._root / f"{label}_counted"
        disturber = faults.Disturber(SCENARIOS[label], self._inputs, folder)
        self._repeat("faults", label, number, disturber.disturb)
        for (name, is_told), seen in sorted(disturber.seen.items()):
            print(f"  {name}: {seen} {'told' if is_told else 'without effect'}")

    def _repeat(self, what: str, label: str, number: int, disturb: Disturb) -> None:
        done = runs = 0
        while done < number:
            run = self._first + runs
            folder = self._root / f"{label}_{what}_{run}"
            folder.mkdir()
            try:
                done += disturb(folder, random.Random(f"{self._seed} {what} {label} {run}"))
            except Exception as error:  # noqa: BLE001  (whatever a reader says of the leftovers)
                done, self.violations = done + 1, self.violations + 1
                said = (folder / "stderr").read_text(errors="replace")
                print(f"VIOLATION: {label}, {type(error).__name__}: {error}\n{said[-1500:]}")
                numbers = {"kills": 0, "faults": 0, what: 1, "seed": self._seed, "first": run}
                flags = " ".join(f"--{name}={number}" for name, number in numbers.items())
                print(f"again: python -m tests.kills {flags} {label}", flush=True)
            runs += 1
            kill_all(folder)
            shutil.rmtree(folder)
        print(f"{label}: {done} {what} in {runs} runs", flush=True)


def _lacks(label: str) -> list[str]:
    """Returns what a scenario needs and this machine lacks."""
    if label == serving.NAME:
        return serving.lacks()
    return [tool for tool in SCENARIOS[label].needs if not is_here(tool)]


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if something was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(NAMES))
    parser.add_argument("--kills", type=int, default=200, help="kills in all")
    parser.add_argument("--faults", type=int, default=200, help="faults in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of a scenario's first run")
    options = parser.parse_args(arguments)
    names = options.scenarios or NAMES
    faulty = [name for name in names if name in FAULTY]
    with tempfile.TemporaryDirectory(prefix="kills_") as name:
        root = Path(name).resolve()
        disturbances = Disturbances(root, options.seed, options.first)
        try:
            for label in names:
                if lacking := _lacks(label):
                    print(f"{label}: skipped, this machine has no {', '.join(lacking)}")
                    continue
                if kills := options.kills // len(names):
                    disturbances.kill(label, kills)
                if label in faulty and (met := options.faults // len(faulty)):
                    disturbances.meet_faults(label, met)
        finally:
            kill_all(root)
    print(f"{disturbances.violations} violations")
    return 1 if disturbances.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
