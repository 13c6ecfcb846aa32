# SPDX-License-Identifier: Apache-2.0
"""The programs of triton/ as their command lines run them, and a trained DLRM."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from tests.dlrm.conftest import Program, dataset  # noqa: F401  (a fixture)

REPOSITORY = Path(__file__).resolve().parents[2]


def script(name):
    """Imports a script of triton/, which is no package."""
    spec = importlib.util.spec_from_file_location(
        f"triton_{name}", REPOSITORY / f"triton/{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def deploy(checkpoint, repository, *arguments):
    """Deploys a checkpoint, as the deployer's command line does, in this process."""
    deployer = script("deployer")
    values = flags.FlagValues()
    deployer.define_flags(values)
    values(["deployer", f"--checkpoint={checkpoint}", f"--repository={repository}", *arguments])
    deployer.run(values)


def run(*arguments, code=0):
    """Runs a script in a process of its own and returns what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def dlrm_checkpoint(dataset, tmp_path_factory):  # noqa: F811
    """A small DLRM, trained on a dataset that it can learn."""
    folder = tmp_path_factory.mktemp("dlrm")
    Program(folder)(f"--dataset={dataset}", f"--save_checkpoint_path={folder / 'run'}")
    return folder / "run"
