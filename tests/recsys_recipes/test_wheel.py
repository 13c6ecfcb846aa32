# SPDX-License-Identifier: Apache-2.0
"""The sdist, and the wheel without compiled code, used from a folder without the sources.

The compiled wheel takes minutes: `make wheel` checks it, tests/cuda_ext/test_build.py builds one.
"""

import json
import shutil
import tarfile
import zipfile

import pytest

from tests import harness


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, made where libraries were built in place."""
    copy = tmp_path_factory.mktemp("sources") / "copy"
    skip = shutil.ignore_patterns(".*", "build", "*.egg-info", "shared", "__pycache__", "tests")
    shutil.copytree(harness.REPOSITORY, copy, ignore=skip)
    (copy / "cuda_ext" / "_kernels.so").write_bytes(b"of this machine")
    harness.python("setup.py", "--quiet", "sdist", "--dist-dir", "dist", folder=copy)
    (file,) = (copy / "dist").glob("*.tar.gz")
    return file


def test_the_sdist_has_all_sources_and_nothing_that_was_built(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"setup.py", "cuda_ext/csrc/wheel/old_glibc.h", "preproc/prepare_dataset.sh"}
    wanted |= {"preproc/criteo/kernel/criteo_kernel.cpp", "preproc/nvtabular/requirements.txt"}
    wanted |= {"dlrm/presets/small.yaml", "benchmark/configs/dlrm_small.yaml"}
    assert wanted <= names
    assert not [name for name in names if name.endswith(".so")]


def test_the_pure_wheel_prepares_data_from_a_folder_without_the_sources(sdist, tmp_path):
    harness.python(
        *("-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", tmp_path, sdist),
        folder=tmp_path,
        RECIPES_WHEEL="pure",
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 5_000_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")

    def recipes(*arguments):
        where = {"folder": tmp_path, "PYTHONPATH": str(tmp_path / "installed")}
        return harness.python("-W", "ignore", "-m", "recsys_recipes", *arguments, **where).stdout

    parts = {each["name"]: each for each in json.loads(recipes("doctor", "--json"))}
    assert f"installed in {tmp_path / 'installed'}" in parts["recsys-recipes"]["detail"]
    assert parts["native"]["state"] == parts["CPU kernels"]["state"] == "slow"
    assert "manylinux_2_28_x86_64.whl" in parts["native"]["add"]
    recipes("generate", "criteo", "--output=raw", "--rows=600", "--days=3", "--threads=1")
    recipes(
        *("prepare", "criteo", "--input=raw", "--output=data", "--frequency_limit=0"),
        *("--engine=reference", "--progress=none"),
    )
    assert "no problems" in recipes("verify", "data")


def test_an_unknown_kind_of_wheel_is_refused():
    done = harness.python("setup.py", "--version", RECIPES_WHEEL="musl", status=1)
    assert "RECIPES_WHEEL=musl: expected manylinux_2_28 or pure" in done.stderr
