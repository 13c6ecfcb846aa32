# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles, as far as they can be checked where no image can be built: that of training only
runs scripts, and those scripts work."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

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


def test_every_run_line_is_one_script():
    assert all(re.fullmatch(r"docker/\w+\.sh", line) for line in arguments_of("RUN"))
    of_training = [script.name for script in SCRIPTS if script.stem not in OTHERS]
    assert sorted(arguments_of("RUN")) == [f"docker/{name}" for name in of_training]


def test_the_serving_image_keeps_numpy_and_asks_its_server_at_last():
    steps = [(name, a) for name, a in instructions("triton/Dockerfile") if name in ("RUN", "USER")]
    assert steps[-2:] == [("USER", "${USER_ID}"), ("RUN", "docker/smoke_serving.sh")]
    assert [argument for name, argument in steps if "install" in argument] == [
        "docker/install_system.sh",
        "docker/install_torch.sh",
        "docker/install_python.sh",
        "python3 -m pip install --no-build-isolation --no-deps .",
    ]


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
    readers = "".join(script.read_text() for script in SCRIPTS) + " ".join(arguments_of("FROM"))
    own = [name for name in names if not name.startswith("PIP_")]  # pip reads those
    assert [name for name in own if f"${{{name}" not in readers] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_clean(script):
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text().splitlines()
    harness.run(Path(sys.executable).with_name("shellcheck"), script)


def test_python_packages_are_installed_around_the_torch_that_is_there(tmp_path):
    done = run_step("install_python.sh", tmp_path, PIP_DRY_RUN="1", PIP_NO_INDEX="1")
    assert "torch is still" in done.stdout
    assert not re.search(r"Would install .*\btorch-", done.stdout)


def test_an_image_without_torch_is_refused(tmp_path):
    harness.python("-m", "venv", "--without-pip", tmp_path / "bare")
    python = str(tmp_path / "bare/bin/python")
    done = run_step("install_python.sh", tmp_path, status=1, PYTHON=python)
    assert "has no torch; take a base image that has one" in done.stderr


def test_torch_is_installed_where_the_base_has_none_and_from_the_folder_alone(tmp_path):
    harness.python("-m", "venv", tmp_path / "bare")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    bare = str(tmp_path / "bare/bin/python")
    done = run_step("install_torch.sh", tmp_path, status=1, PYTHON=bare, **pip)
    assert "No matching distribution found for torch==" in done.stderr
    assert "is there already" in run_step("install_torch.sh", tmp_path, **pip).stdout


def test_java_and_pyspark_are_left_out_unless_asked_for(tmp_path):
    assert "left out" in run_step("install_spark.sh", tmp_path).stdout


def test_an_unknown_group_of_packages_is_refused(tmp_path):
    done = run_step("install_python.sh", tmp_path, status=1, EXTRAS="dev,nothing")
    assert "no group 'nothing' in pyproject.toml; it has benchmark, dev" in done.stderr


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


def test_a_container_runs_the_command_that_it_is_given(tmp_path):
    done = run_step("entrypoint.sh", tmp_path, "echo", "two words", "*")
    assert done.stdout == "two words *\n"


def test_a_container_of_an_executor_starts_what_spark_asks_for(tmp_path):
    """Java and the place of PySpark are outside: programs that print what they were asked."""
    (tmp_path / "python3").write_text("#!/bin/sh\necho /pyspark\n")
    (tmp_path / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    for program in ("python3", "java"):
        (tmp_path / program).chmod(0o755)
    names = ("MEMORY", "ID", "CORES", "POD_IP", "POD_NAME")
    variables = {f"SPARK_EXECUTOR_{name}": f"its {name}" for name in names}
    variables |= {f"SPARK_JAVA_OPT_{number}": f"-D{number}=a b" for number in (10, 9)}
    variables |= {"SPARK_DRIVER_URL": "spark://driver", "SPARK_APPLICATION_ID": "application"}
    variables |= {"SPARK_RESOURCE_PROFILE_ID": "0"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
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


def image_check(folder, *arguments, programs=(), **options):
    """Runs image_check.sh where only basic programs are on the PATH, and `programs`."""
    for name in ("bash", "dirname", "env", *programs):
        (folder / name).symlink_to(shutil.which(name) or "/bin/true")
    return run_step("image_check.sh", folder, *arguments, PATH=str(folder), **options)


def test_building_images_without_an_engine_names_what_to_install(tmp_path):
    done = image_check(tmp_path, status=1, programs=("podman", "runc"))
    assert "no Docker daemon answers, and these are missing: buildah debootstrap" in done.stderr
    assert "apt-get install --no-install-recommends buildah debootstrap" in done.stderr


def test_building_images_with_docker_alone_needs_its_daemon(tmp_path):
    done = image_check(tmp_path, status=1, programs=("podman",), ENGINE="docker")
    assert "ENGINE=docker: its daemon does not answer" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["inference"], {}, "no image 'inference': expected training, serving or spark"),
        ([], {"ENGINE": "kaniko"}, "ENGINE=kaniko: expected docker or podman"),
    ],
)
def test_a_wrong_request_for_images_is_refused(tmp_path, arguments, options, message):
    assert message in image_check(tmp_path, *arguments, status=1, **options).stderr


@pytest.mark.release
def test_the_smoke_test_passes_from_any_folder(tmp_path):
    done = run_step("smoke.sh", tmp_path, BASE_DEVICE="cpu", PYTHONSAFEPATH="1")
    assert done.stdout.endswith("smoke.sh: this installation works\n")
    assert list(tmp_path.iterdir()) == []
