# SPDX-License-Identifier: Apache-2.0
"""Trained models, deployed as a user would, and a real server that serves them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.dlrm.conftest import SMALL_MODEL, dataset  # noqa: F401  (a fixture)

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*arguments, code=0):
    """Runs a program of this repository and returns what it prints.

    Paths that begin with triton/ are run by path, other names as modules.
    """
    command = arguments if arguments[0].startswith("triton/") else ("-m", *arguments)
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="session")
def dlrm_checkpoint(dataset, tmp_path_factory):  # noqa: F811
    """A small DLRM, trained on a dataset that it can learn."""
    folder = tmp_path_factory.mktemp("dlrm")
    run(
        "dlrm.scripts.main",
        f"--dataset={dataset}",
        f"--save_checkpoint_path={folder / 'run'}",
        f"--log_path={folder / 'log.json'}",
        "--num_threads=1",
        *SMALL_MODEL,
    )
    return folder / "run"


def deploy(checkpoint, repository, *arguments):
    """Deploys a checkpoint with the deployer's command line."""
    return run(
        "triton/deployer.py",
        f"--checkpoint={checkpoint}",
        f"--repository={repository}",
        *arguments,
    )
