# SPDX-License-Identifier: Apache-2.0
"""Tests the compiled kernels on a GPU before their first use.

    python -m cuda_ext --selftest

Each family of kernels runs on small inputs against float64 (`self_test_cases`), in a process of its
own: an illegal access would end every later call of the process that made it. A family with an
error beyond rounding, or that fails, is switched off, and its ops run their references. What was
found is kept for the next start, by device, driver and build.
"""

import ctypes
import dataclasses
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from cuda_ext import library
from cuda_ext.self_test_cases import FAMILIES

logger = logging.getLogger(__name__)

LIMIT_S = 300
"""Seconds for the process that tests; on a GPU it takes some ten."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The test of a family.

    Attributes:
        family: its name.
        cases: that ran.
        excess: largest error relative to what rounding can make.
        worst: the case with that error.
        failure: why it could not run to its end; empty if it did.
    """

    family: str
    cases: int = 0
    excess: float = 0.0
    worst: str = ""
    failure: str = ""

    @property
    def is_right(self) -> bool:
        """True if all cases ran, with errors of rounding alone."""
        return not self.failure and self.excess <= 1

    def reason(self) -> str:
        """Returns what is wrong."""
        return self.failure or f"{self.worst}: an error is {self.excess:.3g} times rounding's"


def run_family(family: str, device: torch.device) -> Outcome:
    """Runs the cases of a family in this process."""
    outcome = Outcome(family)
    try:
        for name, excess in FAMILIES[family](device):
            is_worst = excess > outcome.excess
            outcome = dataclasses.replace(
                outcome,
                cases=outcome.cases + 1,
                excess=excess if is_worst else outcome.excess,
                worst=name if is_worst else outcome.worst,
            )
    except (RuntimeError, ValueError) as error:
        return dataclasses.replace(outcome, failure=str(error).splitlines()[0])
    return outcome


def run(device: str, families: Sequence[str] = tuple(FAMILIES)) -> list[Outcome]:
    """Runs families in a process, in another after a failure.

    Args:
        device: `cuda`, with a number or without, or `cpu`.
        families: names.

    Returns:
        The outcome of each.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < len(families):
        rest = families[len(outcomes) :]
        finished, ending = _run_process(device, rest)
        outcomes += finished
        failed_itself = bool(finished) and finished[-1].failure != ""
        if len(finished) < len(rest) and not failed_itself:
            outcomes.append(Outcome(rest[len(finished)], failure=ending))
    return outcomes


def _run_process(device: str, families: Sequence[str]) -> tuple[list[Outcome], str]:
    """Returns outcomes up to a failure, and how the process ended."""
    command = [sys.executable, "-m", "cuda_ext", "--selftest", "--device", device]
    command += ["--json", "--families", ",".join(families)]
    folder = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        text = output.decode() if isinstance(output, bytes) else output
        return _outcomes(text), f"no result within {LIMIT_S} s"
    lines = done.stderr.strip().splitlines()
    return _outcomes(done.stdout), f"ended with status {done.returncode}: {(lines or ['-'])[-1]}"


def _outcomes(text: str) -> list[Outcome]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return [Outcome(**json.loads(line)) for line in lines]


def switch_off_what_fails(device: torch.device) -> None:
    """Tests the kernels of a GPU, once, and switches wrong ones off.

    Args:
        device: of the run; nothing happens on others than GPUs with compiled kernels.
    """
    if device.type != "cuda" or "cuda" not in library.COMPILED_FOR:
        return
    key, known = _key(device), _read_known()
    if key not in known:
        logger.info("testing the kernels on %s, once", torch.cuda.get_device_name(device))
        began = time.monotonic()
        outcomes = run(str(device))
        known[key] = {o.family: o.reason() for o in outcomes if not o.is_right}
        _write_known(known)
        logger.info("tested in %.0f s", time.monotonic() - began)
    for family, reason in known[key].items():
        library.switch_off("cuda", family, reason)


def _key(device: torch.device) -> str:
    kernels = hashlib.sha256(library.KERNELS.read_bytes()).hexdigest()[:16]
    driver = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    return f"{name}, sm_{major}{minor}, driver {driver.value}, torch {torch.__version__}, {kernels}"


def known_file() -> Path:
    """Returns the file of what was found, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "recsys-recipes" / "self_test.json"


def _read_known() -> dict[str, dict[str, str]]:
    try:
        known: dict[str, dict[str, str]] = json.loads(known_file().read_text())
    except (OSError, ValueError):
        return {}
    return known


def _write_known(known: dict[str, dict[str, str]]) -> None:
    target = known_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
            json.dump(known, file, indent=1)
        Path(file.name).replace(target)
    except OSError as error:
        logger.info("what was found is not kept: %s", error)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Formats outcomes as a table."""
    lines = [
        "| family | cases | largest error, of rounding's | verdict |",
        "| --- | ---: | ---: | --- |",
    ]
    for o in outcomes:
        verdict = "right" if o.cases else "nothing to test here"
        verdict = verdict if o.is_right else f"switched off: {o.reason()}"
        lines.append(f"| {o.family} | {o.cases} | {o.excess:.3g} | {verdict} |")
    return "\n".join(lines)
