# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheels, used from a folder without the sources.

The compiled wheel takes minutes: `make wheel` builds it and then runs the tests marked `wheel`;
tests/cuda_ext/test_build.py builds one for this machine.
"""

import email
import importlib.metadata
import json
import os
import platform
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import recsys
from recsys_recipes.commands import COMMANDS
from tests import harness
from tests.recsys.serve.checkpoints import dlrm_checkpoint

DIST = Path(os.environ.get("DIST", harness.REPOSITORY / "dist"))
"""Folder of what `make wheel` built."""

TYPED = {
    *("benchmark", "bert4rec", "cuda_ext", "dataspec", "dlrm", "preproc", "recsys"),
    "recsys_recipes",
}
"""Packages whose types a checker reads."""

FORWARD = """
import sys
from pathlib import Path
import numpy as np
import torch
from dlrm.serve.native import NativeDlrm
from dlrm.serve.served import ServedDlrm
folder = Path(sys.argv[1])
request = {
    "numerical": np.array([[0.5, 1]], np.float32),
    "categorical": np.array([[3, 4]], np.int64),
}
(native,) = NativeDlrm(folder).predict([request])
(eager,) = ServedDlrm.open(folder, torch.device("cpu")).predict([request])
np.testing.assert_allclose(native["logit"], eager["logit"], rtol=1e-5, atol=1e-5)
print(native["logit"])
"""


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


def check_named(wheel):
    """README tells which file of a release to install."""
    name = wheel.name.replace(recsys.__version__, "VERSION").replace(platform.machine(), "x86_64")
    assert name in (harness.REPOSITORY / "README.md").read_text()


def build_wheel(sources, kind, folder, **environment):
    """Builds a wheel of an sdist, as `make wheel` does; returns its path."""
    harness.python(
        *("-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder, sources),
        folder=folder,
        RECIPES_WHEEL=kind,
        **environment,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_sdist_has_all_sources_and_nothing_that_was_built(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"setup.py", "cuda_ext/csrc/wheel/old_glibc.h", "preproc/prepare_dataset.sh"}
    wanted |= {"preproc/clicks/kernel/clicks_kernel.cpp", "preproc/nvtabular/requirements.txt"}
    wanted |= {"dlrm/presets/small.yaml", "benchmark/cases/dlrm_small.yaml"}
    assert wanted <= names
    assert not [name for name in names if name.endswith(".so")]


def check_metadata(metadata):
    """The page of the package: who made it, what it is for, and no link into the repository."""
    assert metadata["Author"]

    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= {
        *metadata.get_all("Classifier")
    }
    assert metadata["Version"] == recsys.__version__
    page = metadata.get_payload()
    assert page.startswith("# Recsys Recipes")
    assert re.findall(r"\]\((?!https?:|#)", page) == []


def test_links_of_the_page_lead_into_the_repository_that_a_release_names():
    """The first link of README, as `make release` writes it."""
    shown = harness.python(
        *("setup.py", "--long-description"), RECIPES_URL="https://example.com/of/recipes/"
    ).stdout
    assert "](https://example.com/of/recipes/blob/HEAD/docs/dlrm.md)" in shown
    assert re.findall(r"\]\((?!https?:|#)", shown) == []


@pytest.mark.release
def test_the_pure_wheel_prepares_data_from_a_folder_without_the_sources(sdist, tmp_path):
    wheel = build_wheel(sdist, "pure", tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    check_named(wheel)
    assert wheel.stat().st_size < 5_000_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (installed,) = (tmp_path / "installed").glob("*.dist-info/METADATA")
    check_metadata(email.message_from_string(installed.read_text()))
    assert {p.parent.name for p in (tmp_path / "installed").glob("*/py.typed")} == TYPED
    stubs = (tmp_path / "installed" / "recsys_recipes").glob("*.pyi")
    assert {path.stem for path in stubs} == {"clicks", "ratings"}

    def recipes(*arguments, status=0):
        where = {"folder": tmp_path, "PYTHONPATH": str(tmp_path / "installed"), "status": status}
        done = harness.python("-W", "ignore", "-m", "recsys_recipes", *arguments, **where)
        return done.stderr if status else done.stdout

    parts = {each["name"]: each for each in json.loads(recipes("doctor", "--json"))}
    assert not [each for each in parts.values() if re.search(r"(?<!'s )make ", str(each))]
    harness.assert_tells(parts["recsys-recipes"]["detail"], tmp_path / "installed")
    assert parts["native"]["state"] == parts["CPU kernels"]["state"] == "slow"
    assert "manylinux_2_28_x86_64.whl" in parts["native"]["add"]
    recipes("generate", "criteo", "--output=raw", "--rows=600", "--days=3", "--threads=1")
    recipes(
        *("prepare", "criteo", "--input=raw", "--output=data", "--frequency_limit=0"),
        *("--engine=reference", "--progress=none"),
    )
    recipes("verify", "data")
    checkpoint = f"--checkpoint={dlrm_checkpoint(tmp_path / 'checkpoint')[0]}"
    recipes("deploy", checkpoint, "--repository=models", "--verify=4")
    refused = recipes("deploy", checkpoint, "--repository=m", "--backend=native", status=2)
    harness.assert_tells(refused, "--backend native", parts["native"]["add"])
    refused = recipes("serve", "--repository=models", status=1)
    harness.assert_tells(refused, parts["Triton server"]["add"])


@pytest.fixture(scope="module")
def compiled_wheel():
    """The wheel of `make wheel`, as auditwheel was shown it."""
    (wheel,) = DIST.glob("*-manylinux_2_28_*.whl")
    return wheel


@pytest.fixture(scope="module")
def python_with_the_wheel(compiled_wheel, tmp_path_factory):
    """A fresh environment with the wheel and what it requires.

    The requirements are links to those of this environment, which has them installed already.
    """
    folder = tmp_path_factory.mktemp("fresh")
    harness.python("-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in required("recsys-recipes"):
        package = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).is_symlink():
                (site / top).symlink_to(package.locate_file(top))
    harness.python(
        *("-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"),
        *("--no-index", "--no-deps", compiled_wheel),
        folder=folder,
    )
    return python


def required(name, known=()):
    """Returns the names of the installed packages that a package requires, directly or not."""
    names = set(known)
    for requirement in importlib.metadata.requires(name) or ():
        if "extra ==" in requirement:
            continue
        needed = re.match(r"[\w.-]+", requirement)[0]
        try:
            importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or an older Python
        if needed not in names:
            names |= required(needed, {*names, needed})
    return names


def libraries(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".so" in name}


@pytest.mark.wheel
def test_the_compiled_wheel_is_small_and_auditwheel_adds_no_library(compiled_wheel):
    assert compiled_wheel.stat().st_size <= 5_000_000
    check_named(compiled_wheel)
    (checked,) = (DIST / "checked").glob("*.whl")  # it may add the tag of an older glibc
    assert libraries(compiled_wheel) == libraries(checked)
    assert libraries(compiled_wheel) == {
        "cuda_ext/_kernels.so",
        "preproc/clicks/kernel/clicks_kernel.so",
        "recsys/serve/server/libtriton_recsys.so",
        "recsys/serve/server/libprivate.so",
    }


@pytest.mark.wheel
@pytest.mark.parametrize(("kind", "tag"), [("pure", "any"), ("manylinux_2_28", platform.machine())])
def test_the_same_sources_give_the_same_bytes_again(kind, tag, tmp_path):
    (sources,) = DIST.glob("*.tar.gz")
    (wheel,) = DIST.glob(f"*{tag}.whl")
    time = harness.run("git", "log", "-1", "--format=%ct").stdout.strip()
    again = build_wheel(sources, kind, tmp_path, SOURCE_DATE_EPOCH=time)
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.wheel
def test_a_fresh_environment_with_the_compiled_wheel_is_complete_and_serves(
    python_with_the_wheel, tmp_path
):
    def recipes(*arguments):
        command = (python_with_the_wheel, "-m", "recsys_recipes", *arguments)
        return harness.run(*command, folder=tmp_path).stdout

    parts = {each["name"]: each for each in json.loads(recipes("doctor", "--json"))}
    site = python_with_the_wheel.parents[1]
    harness.assert_tells(parts["recsys-recipes"]["detail"], site)
    assert parts["native"]["state"] == parts["CPU kernels"]["state"] == "ok"
    for word, command in COMMANDS.items():
        for name in filter(None, command.programs):
            assert f"recsys-recipes {word} {name}" in recipes(word, name, "--help")
    assert "--repeats" in recipes("bench", "--help")
    recipes(
        *("train", "dlrm", "--base_device=cpu", "--dataset_type=synthetic_gpu"),
        *("--num_numerical_features=2", "--synthetic_dataset_table_sizes=10,20"),
        *("--embedding_dim=16", "--synthetic_dataset_num_entries=256", "--batch_size=64"),
        *("--test_batch_size=64", "--max_steps=2", "--bottom_mlp_sizes=16,16"),
        *("--top_mlp_sizes=16,1", "--save_checkpoint_path=checkpoint"),
    )
    recipes("deploy", "--checkpoint=checkpoint", "--repository=models", "--backend=native")
    (version,) = (tmp_path / "models").glob("*/1")
    done = harness.run(python_with_the_wheel, "-c", FORWARD, version, folder=tmp_path)
    assert re.fullmatch(r"\[\[-?\d.*\]\]\n", done.stdout)


def test_an_unknown_kind_of_wheel_is_refused():
    done = harness.python("setup.py", "--version", RECIPES_WHEEL="musl", status=1)
    harness.assert_tells(done.stderr, "RECIPES_WHEEL=musl", "manylinux_2_28", "pure")
