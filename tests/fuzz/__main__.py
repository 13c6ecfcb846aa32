# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the readers and the request paths.

    python -m tests.fuzz [--minutes N] [--seed N] [TARGET ...]

Each target gets its share of the minutes and starts from its corpus, tests/fuzz/corpus/TARGET. New
inputs that reach new branches are kept in build/fuzz/TARGET. An input that shows a fault is written
to build/fuzz/faults and ends its target; `python -m tests.fuzz --replay FILE TARGET` runs it again.
The same seed, corpus and code make the same inputs.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import compiled
from tests.fuzz.registry import NAMES, load
from tests.fuzz.target import CORPUS
from tests.fuzz.worker import runner, scratch

_ROOT = Path(__file__).parents[2]
_FOUND = _ROOT / "build" / "fuzz"
_FAULTS = _FOUND / "faults"
_LIMITS = ("-timeout=60", "-rss_limit_mb=6000", "-max_len=4096", "-len_control=0")
"""An input that takes a minute, or six gigabytes, is a fault."""


def fuzz(name: str, seconds: float, seed: int) -> bool:
    """Fuzzes a target, and prints a line about it; returns whether it found no fault."""
    kept, faults = _FOUND / name, _FAULTS / name
    kept.mkdir(parents=True, exist_ok=True)
    faults.mkdir(parents=True, exist_ok=True)
    before = {*faults.iterdir()}
    limits = (*_LIMITS, f"-max_total_time={seconds:.0f}", f"-seed={seed}")
    flags = (*limits, f"-artifact_prefix={faults}/", "-print_final_stats=1")
    corpus = [str(folder) for folder in (kept, CORPUS / name) if folder.is_dir()]
    environment = dict(os.environ)
    if name in compiled.NAMES:
        command = [str(compiled.build(name, _FOUND)), *flags, *corpus]
        environment["RECSYS_FUZZ_FOLDER"] = str(compiled.inputs(_FOUND))
    else:
        command = [sys.executable, "-m", "tests.fuzz.worker", name, *flags, *corpus]
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    cases = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    found = sorted({*faults.iterdir()} - before)
    count = int(cases[1]) if cases else 0
    line = f"{name}: {count:,} cases in {time.monotonic() - start:.0f} s"
    if not found and done.returncode == 0:
        print(f"{line}, no fault", flush=True)
        return True
    print(f"{line}, a fault: {', '.join(map(str, found)) or 'see below'}", flush=True)
    told = (line for line in (done.stderr + done.stdout).splitlines() if line[:1] not in "#I0M")
    print("\n".join([*told][-40:]), flush=True)
    return False


def replay(name: str, file: Path) -> None:
    """Runs one input; shows the traceback of its fault."""
    with scratch() as root:
        runner(load(name).check, root)(file.read_bytes())


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(EVERY))
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="an input to run once")
    options = parser.parse_args(arguments)
    every = EVERY if compiled.compiler() else NAMES
    targets = options.targets or every
    if unknown := {*targets} - {*EVERY}:
        parser.error(f"unknown targets {', '.join(sorted(unknown))}")
    if options.replay is not None:
        try:
            replay(targets[0], options.replay)
        except Exception:  # noqa: BLE001  (whatever the fault is)
            traceback.print_exc()
            return 1
        return 0
    if not options.targets and every is NAMES:
        print(f"not run without clang++: {', '.join(compiled.NAMES)}", flush=True)
    seconds = 60 * options.minutes / len(targets)
    results = [fuzz(name, seconds, options.seed) for name in targets]
    return 0 if all(results) else 1


EVERY = (*NAMES, *compiled.NAMES)

if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main(sys.argv[1:]))
