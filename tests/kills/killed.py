# SPDX-License-Identifier: Apache-2.0
"""Kills a command at random moments and starts it again, until it ends by itself."""

import random
import subprocess
from pathlib import Path

from tests.kills import processes
from tests.kills.processes import Command
from tests.kills.scenarios import Expected, Inputs


class Disturber:
    """Kills a scenario's command.

    Args:
        expected: the command, and what it leaves.
        inputs: what it reads.

    Attributes:
        seconds: time of a whole run.
    """

    def __init__(self, expected: Expected, inputs: Inputs) -> None:
        self._expected, self._inputs = expected, inputs
        self.seconds = expected.seconds

    def disturb(self, folder: Path, rng: random.Random) -> int:
        """Kills the command one to three times in an empty folder; returns the number of kills.

        Either all its processes are killed, or one of them, upon which the others must end.

        Raises:
            Exception: what is left is not what it should be.
        """
        output, kills = folder / "output", 0
        self._expected.scenario.start(self._inputs, output)
        arguments = self._expected.scenario.command(self._inputs, output)
        for _ in range(rng.randint(1, 3)):
            command = Command(arguments, folder)
            try:
                command.process.wait(rng.random() * self.seconds)
                command.wait()
                break
            except subprocess.TimeoutExpired:
                if rng.random() < 0.5:
                    command.kill()
                else:
                    processes.kill(rng.choice(command.pids()))
                kills += 1
            if command.wait() == 0:  # it does without the one that was killed
                break
            self._expected.require_nothing_half_written(output)
        else:
            # Killed after its last rename, it may say that its work is done.
            Command(arguments, folder).wait()
        self._expected.require_whole(output)
        return kills
