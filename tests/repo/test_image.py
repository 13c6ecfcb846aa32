# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles, as far as they can be checked where no image can be built: that of training only
runs scripts that `make` runs too, and those scripts work."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests import harness
from tests.harness import REPOSITORY

STEPS = sorted((REPOSITORY / "docker").glob("*.sh"))


def instructions(dockerfile="Dockerfile"):
    """Returns (instruction, argument) of each line of a Dockerfile, continuations joined."""
    text = (REPOSITORY / dockerfile).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def arguments_of(name):
    return [argument for instruction, argument in instructions() if instruction == name]


def run_step(name, folder, **options):
    options = {"PYTHON": sys.executable} | options
    return harness.run(REPOSITORY / "docker" / name, folder=folder, **options)


def test_every_run_line_is_one_script():
    assert all(re.fullmatch(r"docker/\w+\.sh", line) for line in arguments_of("RUN"))
    of_training = [step.name for step in STEPS if step.name != "smoke_serving.sh"]
    assert sorted(arguments_of("RUN")) == [f"docker/{name}" for name in of_training]


def test_the_serving_image_keeps_numpy_and_asks_its_server_at_last():
    steps = [(name, a) for name, a in instructions("triton/Dockerfile") if name in ("RUN", "USER")]
    assert steps[-2:] == [("USER", "${USER_ID}"), ("RUN", "docker/smoke_serving.sh")]
    installs = [" ".join(argument.split()) for name, argument in steps if "install" in argument]
    system, torch, ours, project = installs
    assert (system, ours.split()[-1]) == ("docker/install_system.sh", "docker/install_python.sh")
    assert torch.endswith('"${torch}"')
    assert project == "python3 -m pip install --no-build-isolation --no-deps ."


def test_no_environment_is_sent_to_the_builder():
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert {".venv*", "**/*.so", "build", "data", "demo", "log.json*"} <= set(ignored)


def test_the_last_step_is_the_smoke_test_by_a_user_who_is_not_root():
    order = [(name, argument) for name, argument in instructions() if name in ("RUN", "USER")]
    assert order[-2:] == [("USER", "${USER_ID}"), ("RUN", "docker/smoke.sh")]
    assert "USER_ID=1000" in arguments_of("ARG")


def test_the_base_image_is_an_argument():
    assert arguments_of("FROM") == ["${BASE_IMAGE}"]
    assert [a for a in arguments_of("ARG") if "/" in a] == [arguments_of("ARG")[0]]


def test_the_working_directory_is_off_the_module_path():
    assert any("PYTHONSAFEPATH=1" in argument.split() for argument in arguments_of("ENV"))


def test_every_build_argument_is_read():
    names = [argument.split("=")[0] for argument in arguments_of("ARG")]
    readers = "".join(step.read_text() for step in STEPS) + " ".join(arguments_of("FROM"))
    assert [name for name in names if f"${{{name}" not in readers] == []


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_is_clean_and_make_runs_it(step):
    assert os.access(step, os.X_OK)
    assert "set -euo pipefail" in step.read_text().splitlines()
    harness.run(Path(sys.executable).with_name("shellcheck"), step)
    assert f"/{step.name}" in (REPOSITORY / "Makefile").read_text()


def test_python_packages_are_installed_around_the_torch_that_is_there(tmp_path):
    done = run_step("install_python.sh", tmp_path, PIP_DRY_RUN="1", PIP_NO_INDEX="1")
    assert "torch is still" in done.stdout
    assert not re.search(r"Would install .*\btorch-", done.stdout)


def test_an_image_without_torch_is_refused(tmp_path):
    harness.python("-m", "venv", "--without-pip", tmp_path / "bare")
    python = str(tmp_path / "bare/bin/python")
    done = run_step("install_python.sh", tmp_path, status=1, PYTHON=python)
    assert "has no torch; take a base image that has one" in done.stderr


def test_an_unknown_group_of_packages_is_refused(tmp_path):
    done = run_step("install_python.sh", tmp_path, status=1, EXTRAS="dev,nothing")
    assert "no group 'nothing' in pyproject.toml; it has benchmark, peers, dev" in done.stderr


def test_apex_is_left_out_unless_asked_for(tmp_path):
    done = run_step("install_apex.sh", tmp_path, WITH_APEX="0")
    assert "apex is there already" in done.stdout or "left out" in done.stdout


def test_system_packages_that_are_there_need_no_root(tmp_path):
    run_step("install_system.sh", tmp_path, USER_ID="")


def test_the_user_of_the_image_exists_and_can_write_where_runs_start(tmp_path):
    calls = tmp_path / "calls"
    stubs = {
        "getent": "exit 2",
        "useradd": 'echo useradd "$@" >>calls',
        "chown": 'echo chown "$@" >>calls',
    }
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    run_step("install_system.sh", tmp_path, USER_ID="4321", PATH=path)
    assert calls.read_text().splitlines() == [
        "useradd --create-home --uid 4321 --shell /bin/bash recipes",
        "chown 4321 .",
    ]


@pytest.mark.slow
def test_the_smoke_test_passes_from_any_folder(tmp_path):
    done = run_step("smoke.sh", tmp_path, BASE_DEVICE="cpu", PYTHONSAFEPATH="1")
    assert done.stdout.endswith("smoke.sh: this installation works\n")
    assert list(tmp_path.iterdir()) == []
