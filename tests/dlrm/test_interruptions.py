# SPDX-License-Identifier: Apache-2.0
"""Runs in processes of their own that are killed or told to stop."""

import random
import re
import shlex
import signal
import time

import pytest
import torch

from tests import harness
from tests.dlrm.conftest import SMALL_MODEL
from tests.dlrm.test_program import latest, weights


def command(dataset, folder, *arguments):
    return [
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
        "--reset_embeddings",
        *SMALL_MODEL,
        *arguments,
    ]


def wait_for_step(process, step):
    """Reads the output until a step is printed."""
    pattern = re.compile(r"Epoch:\[(\d+)/\d+\] \[(\d+)/(\d+)\]")

    def is_there(line):
        match = pattern.search(line)
        return match and int(match[1]) * int(match[3]) + int(match[2]) >= step

    harness.wait_for_line(process, is_there)


@pytest.mark.release
def test_killed_at_random_steps_and_resumed_gives_the_same_parameters(dataset, tmp_path):
    harness.forked(*command(dataset, tmp_path / "whole"))
    generator = random.Random(4)
    for step in sorted(generator.sample(range(3, 170), 3)):
        with harness.started_forked(*command(dataset, tmp_path / "killed", "--resume")) as process:
            wait_for_step(process, step)
            time.sleep(generator.random() * 0.02)  # also between steps, or inside a save
    harness.forked(*command(dataset, tmp_path / "killed", "--resume"))
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[k], killed[k]) for k in whole)


@pytest.mark.slow
def test_a_signal_saves_exits_zero_and_prints_how_to_resume(dataset, tmp_path):
    arguments = command(dataset, tmp_path / "run", "--save_freq=100000", "--epochs=2000")
    step = 0
    for number in (signal.SIGTERM, signal.SIGINT):
        with harness.started_forked(*arguments) as process:
            wait_for_step(process, step + 10)
            process.send_signal(number)
            rest = process.stdout.read()
            assert process.wait(harness.PATIENCE_S) == 0, rest
        assert f"{number.name}: stopped after step" in rest
        saved = latest(tmp_path / "run").state["step"]
        assert saved >= step + 10
        step = saved
        _python, *arguments = shlex.split(rest.strip().splitlines()[-1])
        assert "--resume" in arguments
    again = harness.forked(*arguments, f"--max_steps={step + 3}")
    assert f"at step {step}" in again.stdout
    assert latest(tmp_path / "run").state["step"] == step + 3
