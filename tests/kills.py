# SPDX-License-Identifier: Apache-2.0
"""Kills commands at random moments, runs them again, and compares what is left with one whole run.

    python -m tests.kills [--kills N] [--seed N] [SCENARIO ...]

A command is killed with its children (SIGKILL) after a random part of the time that a whole run
takes, then started again with the same arguments, until it ends by itself. Its files must be those
of the whole run, byte for byte, and there must be no other files. The seed draws the moments; which
instruction a moment meets differs from run to run.
"""

import argparse
import dataclasses
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from recsys.serve.manifest import Deployment
from tests.checkpoints import tensors
from tests.harness import REPOSITORY
from tests.preproc.clicks.rows import write_days

Contents = dict[str, str]

_MODEL = (
    *("--embedding_dim=8", "--bottom_mlp_sizes=16,8", "--top_mlp_sizes=16,1", "--batch_size=64"),
    *("--test_batch_size=4096", "--lr=0.5", "--warmup_steps=0", "--decay_steps=0", "--epochs=1"),
)


def files(root: Path) -> Contents:
    """Returns the checksum of every file and the names of all folders."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "a folder"
        for path in sorted(root.rglob("*"))
    }


def run_tensors(root: Path) -> Contents:
    """Returns the checksum of every tensor of a run's latest checkpoint, and the run's files.

    Logs and reports hold times, so only their names count.
    """
    found = {
        name: hashlib.sha256(tensor.contiguous().view(-1).numpy().tobytes()).hexdigest()
        for name, tensor in tensors(root / "run").items()
    }
    return found | {path.relative_to(root).as_posix(): "" for path in sorted(root.rglob("*"))}


def version(root: Path) -> Contents:
    """Returns the checksums of a deployed version; some of its files hold the time."""
    folder = root / "models" / "dlrm" / "1"
    Deployment.open(folder, "dlrm")
    found = files(root)
    return found | {
        name: "" for name in found if name.endswith(("deployment.json", ".pbtxt", ".pyc"))
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A command that is killed.

    Attributes:
        command: its arguments, from (inputs, output folder).
        contents: what its output folder must hold.
        before: writes what the output folder holds before the command.
    """

    command: Callable[[Path, Path], Sequence[object]]
    contents: Callable[[Path], Contents]
    before: Callable[[Path, Path], None] = lambda inputs, folder: None


def _train(inputs: Path, folder: Path) -> Sequence[object]:
    flags = (
        f"--dataset={inputs / 'dataset'}",
        f"--save_checkpoint_path={folder / 'run'}",
        "--resume",
    )
    return ("-m", "dlrm.scripts.main", *_MODEL, *flags, "--save_freq=10")


SCENARIOS = {
    "prepare": Scenario(
        lambda inputs, folder: (
            *("-m", "preproc.clicks", f"--input={inputs / 'logs'}", "--shuffle_seed=3"),
            *(f"--output={folder / 'made'}", "--format=parquet,npy,split", "--progress=none"),
        ),
        files,
    ),
    "extend": Scenario(
        lambda inputs, folder: (
            *("-m", "recsys_recipes", "prepare", "clicks", f"--extend={folder / 'days'}"),
            *(f"--input={inputs / 'next'}", "--progress=none"),
        ),
        files,
        lambda inputs, folder: shutil.copytree(inputs / "days", folder / "days") and None,
    ),
    "train": Scenario(_train, run_tensors),
    "deploy": Scenario(
        lambda inputs, folder: (
            *("-m", "recsys_recipes", "deploy", f"--checkpoint={inputs / 'run'}", "--version=1"),
            *(f"--repository={folder / 'models'}", "--verify=64"),
        ),
        version,
    ),
}


def start(arguments: Sequence[object], log: Path) -> "subprocess.Popen[bytes]":
    """Starts Python in a process group of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=REPOSITORY,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def whole(arguments: Sequence[object], log: Path) -> float:
    """Runs a command to its end; returns the seconds that it took."""
    began = time.monotonic()
    if start(arguments, log).wait():
        raise SystemExit(f"{log.read_text()}\nfailed: {' '.join(map(str, arguments))}")
    return time.monotonic() - began


def make_inputs(folder: Path) -> None:
    """Writes what the commands read."""
    log = folder / "log"
    write_days(folder / "logs", days=2, rows=3000)
    write_days(folder / "first", days=1, rows=3000, seed=7)
    write_days(folder / "next", days=1, rows=3000, seed=8)
    prepare = ("-m", "preproc.clicks", f"--input={folder / 'logs'}", "--progress=none")
    whole((*prepare, f"--output={folder / 'dataset'}"), log)
    extend = ("-m", "recsys_recipes", "prepare", "clicks", f"--extend={folder / 'days'}")
    whole((*extend, f"--input={folder / 'first'}", "--preset=dlrm", "--progress=none"), log)
    whole(_train(folder, folder), log)


def attempt(scenario: Scenario, inputs: Path, folder: Path, seconds: float, kills: Sequence[float]):
    """Runs a command that is killed after parts of the time; returns (its contents, kills, log)."""
    output, log = folder / "output", folder / "log"
    output.mkdir(parents=True)
    scenario.before(inputs, output)
    done = 0
    for part in (*kills, None):
        process = start(scenario.command(inputs, output), log)
        try:
            process.wait(None if part is None else part * seconds)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done += 1
    # A command that was killed after its last rename may say that its work is done.
    return scenario.contents(output), done, log.read_text()


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if something differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--kills", type=int, default=200, help="kills in all")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    names = options.scenarios or [*SCENARIOS]
    rng, faults = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="kills_") as name:
        root = Path(name)
        make_inputs(root)
        for label in names:
            scenario, kills, runs = SCENARIOS[label], 0, 0
            (root / label / "output").mkdir(parents=True)
            scenario.before(root, root / label / "output")
            whole_run = scenario.command(root, root / label / "output")
            seconds = whole(whole_run, root / label / "log")
            expected = scenario.contents(root / label / "output")
            while kills < options.kills // len(names):
                moments = [rng.random() for _ in range(1 + rng.randrange(3))]
                folder = root / f"{label}_{runs}"
                try:
                    found, done, log = attempt(scenario, root, folder, seconds, moments)
                    differing = sorted(
                        name
                        for name in found.keys() | expected.keys()
                        if found.get(name) != expected.get(name)
                    )
                except Exception as error:  # noqa: BLE001  (whatever a reader says of the leftovers)
                    differing, done, log = [repr(error)], 1, (folder / "log").read_text()
                kills, runs = kills + done, runs + 1
                if differing:
                    faults += 1
                    print(f"{label}, run {runs}, moments {moments}: {differing[:9]}\n{log[-2000:]}")
                shutil.rmtree(folder)
            print(f"{label}: {kills} kills in {runs} runs of {seconds:.1f} s", flush=True)
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
