# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles, as far as they can be checked where no image can be built: that of training only
runs scripts, and those scripts work."""

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from tests import harness
from tests.harness import REPOSITORY

SCRIPTS = sorted((REPOSITORY / "docker").glob("*.sh"))
# Run when a container starts, by another script, or to build the images.
OTHERS = {"ask_server", "entrypoint", "image_check", "slim", "smoke_serving", "tiny_model"}


def instructions(dockerfile="Dockerfile"):
    """Returns (instruction, argument) of each line of a Dockerfile, continuations joined."""
    text = (REPOSITORY / dockerfile).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def arguments_of(name):
    return [argument for instruction, argument in instructions() if instruction == name]


def run_step(name, folder, *arguments, **options):
    options = {"PYTHON": sys.executable} | options
    return harness.run(REPOSITORY / "docker" / name, *arguments, folder=folder, **options)


def stand_ins(folder, **programs):
    """Writes programs of a shell line each; returns a PATH on which they come first."""
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_every_run_line_is_one_script_and_the_last_is_the_smoke_test_of_a_user():
    of_training = [script.name for script in SCRIPTS if script.stem not in OTHERS]
    assert sorted(arguments_of("RUN")) == [f"docker/{name}" for name in of_training]
    order = [(name, argument) for name, argument in instructions() if name in ("RUN", "USER")]
    assert order[-2:] == [("USER", "${USER_ID}"), ("RUN", "docker/smoke.sh")]
    assert "USER_ID=1000" in arguments_of("ARG")


def test_the_serving_image_keeps_numpy_and_asks_its_server_at_last():
    steps = [(name, a) for name, a in instructions("triton/Dockerfile") if name in ("RUN", "USER")]
    assert steps[-2:] == [("USER", "${USER_ID}"), ("RUN", "docker/smoke_serving.sh")]
    assert [argument for name, argument in steps if "install" in argument] == [
        "docker/install_system.sh",
        "docker/install_torch.sh",
        "docker/install_python.sh",
        "python3 -m pip install --no-build-isolation --no-deps .",
    ]


def test_the_base_image_is_an_argument_and_the_builder_gets_the_sources_alone():
    assert arguments_of("FROM") == ["${BASE_IMAGE}"]
    assert [a for a in arguments_of("ARG") if "/" in a] == [arguments_of("ARG")[0]]
    # The working directory is off the module path.
    assert any("PYTHONSAFEPATH=1" in argument.split() for argument in arguments_of("ENV"))
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert {".venv*", "**/*.so", "build", "data", "demo", "log.json*"} <= set(ignored)


def test_every_build_argument_is_read():
    names = [argument.split("=")[0] for argument in arguments_of("ARG")]
    readers = "".join(script.read_text() for script in SCRIPTS) + " ".join(arguments_of("FROM"))
    own = [name for name in names if not name.startswith("PIP_")]  # pip reads those
    assert [name for name in own if f"${{{name}" not in readers] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_runs_and_stops_at_an_error(script):
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text().splitlines()


def test_python_packages_are_installed_around_the_torch_that_is_there(tmp_path):
    done = run_step("install_python.sh", tmp_path, PIP_DRY_RUN="1", PIP_NO_INDEX="1")
    harness.assert_tells(done.stdout, torch.__version__)
    assert not re.search(r"Would install .*\btorch-", done.stdout)


def test_torch_is_installed_where_the_base_has_none_and_from_the_folder_alone(tmp_path):
    harness.python("-m", "venv", "--without-pip", tmp_path / "bare")
    (packages,) = tmp_path.glob("bare/lib/python*/site-packages")
    # By its path: to look for pip as a module changes which distutils this process imports.
    (packages / "pip").symlink_to(Path(sysconfig.get_path("purelib"), "pip"))
    options = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    bare = str(tmp_path / "bare/bin/python")
    done = run_step("install_torch.sh", tmp_path, status=1, PYTHON=bare, **options)
    assert "No matching distribution found for torch==" in done.stderr
    there = run_step("install_torch.sh", tmp_path, **options).stdout
    harness.assert_tells(there, torch.__version__)
    done = run_step("install_python.sh", tmp_path, status=1, PYTHON=bare)
    harness.assert_tells(done.stderr, bare, "torch", "BASE_IMAGE")


@pytest.mark.parametrize(
    ("script", "options", "status", "facts"),
    [
        ("install_spark.sh", {}, 0, ["WITH_SPARK=1"]),
        ("install_apex.sh", {"WITH_APEX": "0"}, 0, ["install_apex.sh"]),
        # What is there needs no root.
        ("install_system.sh", {"USER_ID": ""}, 0, []),
        (
            "install_python.sh",
            {"EXTRAS": "dev,nothing"},
            1,
            ["'nothing'", "pyproject.toml", "benchmark"],
        ),
    ],
)
def test_a_step_leaves_out_what_is_not_asked_for(tmp_path, script, options, status, facts):
    done = run_step(script, tmp_path, status=status, **options)
    harness.assert_tells(done.stdout + done.stderr, *facts)


def test_the_user_of_the_image_exists_and_can_write_where_runs_start(tmp_path):
    note = 'echo "$(basename "$0")" "$@" >>calls'
    path = stand_ins(tmp_path, getent="exit 2", useradd=note, chown=note)
    run_step("install_system.sh", tmp_path, USER_ID="4321", PATH=path)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "useradd --create-home --uid 4321 --shell /bin/bash recipes",
        "chown 4321 .",
    ]


def test_a_container_runs_the_command_that_it_is_given(tmp_path):
    done = run_step("entrypoint.sh", tmp_path, "echo", "two words", "*")
    assert done.stdout == "two words *\n"


def test_a_container_of_an_executor_starts_what_spark_asks_for(tmp_path):
    """Java and the place of PySpark are outside: programs that print what they were asked."""
    path = stand_ins(tmp_path, python3="echo /pyspark", java='printf "%s\\n" "$@"')
    names = ("MEMORY", "ID", "CORES", "POD_IP", "POD_NAME")
    variables = {f"SPARK_EXECUTOR_{name}": f"its {name}" for name in names}
    variables |= {f"SPARK_JAVA_OPT_{number}": f"-D{number}=a b" for number in (10, 9)}
    variables |= {"SPARK_DRIVER_URL": "spark://driver", "SPARK_APPLICATION_ID": "application"}
    variables |= {"SPARK_RESOURCE_PROFILE_ID": "0"}
    done = run_step("entrypoint.sh", tmp_path, "executor", PATH=path, **variables)
    java, backend = done.stdout.splitlines()[:6], done.stdout.splitlines()[6:]
    assert java[:5] == ["-D9=a b", "-D10=a b", "-Xmsits MEMORY", "-Xmxits MEMORY", "-cp"]
    assert java[5] == "/pyspark/conf:/pyspark/jars/*:"
    assert backend[0] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(backend[1::2], backend[2::2], strict=True)) == {
        "--driver-url": "spark://driver",
        "--executor-id": "its ID",
        "--cores": "its CORES",
        "--app-id": "application",
        "--hostname": "its POD_IP",
        "--resourceProfileId": "0",
        "--podName": "its POD_NAME",
    }


@pytest.mark.parametrize(
    ("arguments", "programs", "options", "facts"),
    [
        (
            (),
            ("podman", "runc"),
            {},
            ["Docker", "apt-get install --no-install-recommends buildah debootstrap"],
        ),
        ((), ("podman",), {"ENGINE": "docker"}, ["ENGINE=docker"]),
        (("inference",), (), {}, ["'inference'", "training", "serving", "spark"]),
        ((), (), {"ENGINE": "kaniko"}, ["ENGINE=kaniko", "docker", "podman"]),
    ],
)
def test_images_that_cannot_be_built_are_refused(tmp_path, arguments, programs, options, facts):
    """Basic programs are on the PATH, and those of an engine."""
    for name in ("bash", "dirname", "env", *programs):
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    options = {"PATH": str(tmp_path), "status": 1} | options
    done = run_step("image_check.sh", tmp_path, *arguments, **options)
    harness.assert_tells(done.stderr, *facts)


@pytest.mark.release
def test_the_smoke_test_passes_from_any_folder(tmp_path):
    run_step("smoke.sh", tmp_path, BASE_DEVICE="cpu", PYTHONSAFEPATH="1")
    assert list(tmp_path.iterdir()) == []
