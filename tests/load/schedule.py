# SPDX-License-Identifier: Apache-2.0
"""What happens when: a seed draws the requests, the changes and the kills."""

import random

import numpy as np

from recsys.serve.client.arrivals import arrival_times
from tests.load.client import Record

KILL_INSTANCE, KILL_SERVER = "kill an instance", "kill the server"
DEPLOY, APPLY, ROLL_BACK, REMOVE = "deploy", "apply a delta", "roll back", "remove old versions"
_ROUND_S = 300.0
_CHANGES = (DEPLOY, DEPLOY, APPLY, APPLY, ROLL_BACK, REMOVE)


def plan(seconds: float, seed: int) -> list[tuple[float, str]]:
    """Draws the changes and kills, at their seconds from the start.

    A round has six changes, and a kill after every second one. The server is killed only in the
    first half, so that the second shows the memory of one process.
    """
    rng = random.Random(seed)
    rounds = max(1, round(seconds / _ROUND_S))
    planned = []
    for number in range(rounds):
        changes = rng.sample(_CHANGES, len(_CHANGES))
        kills = [
            KILL_INSTANCE,
            KILL_INSTANCE,
            KILL_SERVER if 2 * number < rounds else KILL_INSTANCE,
        ]
        rng.shuffle(kills)
        events = [
            event
            for place, kill in enumerate(kills)
            for event in (*changes[2 * place : 2 * place + 2], kill)
        ]
        pause_s = seconds / rounds / len(events)
        for place, event in enumerate(events, number * len(events)):
            planned.append(((place + rng.uniform(0.2, 0.8)) * pause_s, event))
    return planned


def draw(shares: np.ndarray, rate: float, seconds: float, seed: int) -> Record:
    """Draws the requests of a Poisson process, with the share of each message."""
    due = arrival_times(rate, seconds, seed)
    numbers = np.random.default_rng(seed + 1).choice(len(shares), len(due), p=shares)
    return Record.of(due[due < seconds], numbers[due < seconds])
