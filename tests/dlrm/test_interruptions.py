# SPDX-License-Identifier: Apache-2.0
"""Runs in processes of their own that are killed or told to stop."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.dlrm.conftest import SMALL_MODEL
from tests.dlrm.test_program import latest, weights

REPOSITORY = Path(__file__).resolve().parents[2]


def command(dataset, folder, *arguments):
    return [
        sys.executable,
        "-m",
        "dlrm.scripts.main",
        f"--dataset={dataset}",
        f"--save_checkpoint_path={folder}",
        f"--log_path={folder}.json",
        "--num_threads=1",
        "--epochs=4",
        "--save_freq=5",
        "--print_freq=1",
        "--optimizer=rowwise_adagrad",
        "--dropout=0.1",
        "--shuffle_batch_order",
        *SMALL_MODEL,
        *arguments,
    ]


def start(arguments):
    return subprocess.Popen(
        arguments, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_step(process, step):
    """Reads the output until a step is printed; returns whether it came."""
    pattern = re.compile(r"Epoch:\[(\d+)/\d+\] \[(\d+)/(\d+)\]")
    for line in process.stdout:
        found = pattern.search(line)
        if found and int(found[1]) * int(found[3]) + int(found[2]) >= step:
            return True
    return False


@pytest.mark.slow
def test_killed_at_random_steps_and_resumed_gives_the_same_parameters(dataset, tmp_path):
    subprocess.run(command(dataset, tmp_path / "whole"), cwd=REPOSITORY, check=True)
    generator = random.Random(4)
    for step in sorted(generator.sample(range(3, 170), 3)):
        process = start(command(dataset, tmp_path / "killed", "--resume"))
        assert wait_for_step(process, step)
        time.sleep(generator.random() * 0.02)  # also between steps, or inside a save
        process.kill()
        process.wait()
        process.stdout.close()
    subprocess.run(command(dataset, tmp_path / "killed", "--resume"), cwd=REPOSITORY, check=True)
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[k], killed[k]) for k in whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_exits_zero_and_prints_how_to_resume(dataset, tmp_path, number):
    process = start(command(dataset, tmp_path / "run", "--save_freq=100000", "--epochs=2000"))
    assert wait_for_step(process, 10)
    os.kill(process.pid, number)
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait(timeout=600) == 0, rest
    assert f"{number.name}: stopped after step" in rest
    step = latest(tmp_path / "run").state["step"]
    assert step >= 10
    resume = shlex.split(rest.strip().splitlines()[-1])
    assert "--resume" in resume
    again = subprocess.run(
        [*resume, f"--max_steps={step + 3}"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"at step {step}" in again.stdout
    assert latest(tmp_path / "run").state["step"] == step + 3
