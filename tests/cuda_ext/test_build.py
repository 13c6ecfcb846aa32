# SPDX-License-Identifier: Apache-2.0
"""How the extension is built: with and without compilers, as a wheel, and what runs without it."""

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from cuda_ext import library

REPOSITORY = Path(__file__).resolve().parents[2]

LOOKS_RIGHT = """
    import torch
    import _triton_shadow
    from cuda_ext import library, ops, reference
    table, rows = torch.randn(30, 8), torch.arange(12).view(4, 3)
    bottom = torch.randn(4, 8).requires_grad_()
    anchor = ops.row_gradient_anchor((4, 3, 8), torch.float32, table.device)
    found = ops.gather_dot_interaction(table, rows, bottom, anchor=anchor)
    torch.testing.assert_close(found, reference.gather_dot_interaction(table, rows, bottom))
    found.sum().backward()
    assert anchor.grad.shape == (4, 3, 8) and anchor.grad.abs().sum() > 0
    before = table.clone()
    ops.update_rows("sgd", table, {}, rows.reshape(-1), anchor.grad.reshape(-1, 8),
                    ops.RowStep(torch.tensor(0.1), torch.tensor(1.0)))
    assert not torch.equal(table, before)
    print(library.__file__, library.path_of("cpu"))
"""


def run(*command, folder, **environment):
    return subprocess.run(
        list(command),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_example(folder, *flags):
    answer = run(sys.executable, *flags, "-c", textwrap.dedent(LOOKS_RIGHT), folder=folder)
    assert answer.returncode == 0, answer.stderr
    assert str(folder) in answer.stdout
    return answer


@pytest.fixture
def sources(tmp_path):
    """A copy of what the build reads, without anything built."""
    copy = tmp_path / "copy"
    skip = shutil.ignore_patterns(".*", "build", "*.so", "*.egg-info", "shared", "__pycache__")
    shutil.copytree(REPOSITORY, copy, ignore=skip)
    return copy


def test_without_kernels_the_ops_run_in_plain_pytorch_and_say_so_once(sources):
    answer = run_example(sources)
    assert answer.stdout.split()[-1] == "reference"
    assert answer.stderr.count("RuntimeWarning: cuda_ext runs in plain PyTorch on cpu") == 1
    assert "make build" in answer.stderr
    described = run(sys.executable, "-m", "cuda_ext", folder=sources)
    assert "cpu: plain PyTorch, without compiled kernels: they are not built" in described.stdout


def test_a_build_without_a_compiler_leaves_a_working_package(sources):
    build = run(
        *(sys.executable, "setup.py", "build_ext", "--inplace"),
        folder=sources,
        CC="/nonexistent/cc",
        CXX="/nonexistent/c++",
    )
    assert build.returncode == 0, build.stderr
    assert not list(sources.rglob("*.so"))
    assert run_example(sources).stdout.split()[-1] == "reference"


def test_a_library_that_does_not_load_is_named(sources):
    (sources / "cuda_ext" / "_kernels.so").write_bytes(b"no library")
    answer = run_example(sources)
    assert answer.stdout.split()[-1] == "reference"
    assert "do not load into torch" in answer.stderr


def test_forcing_cuda_without_a_toolkit_says_what_to_do(sources):
    build = run(
        *(sys.executable, "setup.py", "build_ext", "--inplace"),
        folder=sources,
        FORCE_CUDA="1",
        CUDA_HOME=str(sources / "nowhere"),
    )
    assert build.returncode != 0
    assert "there is no nvcc" in build.stderr + build.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)  # everything is compiled, while others compile too
@pytest.mark.skipif("cpu" not in library.COMPILED_FOR, reason="no C++ compiler built the kernels")
def test_an_isolated_build_gives_one_wheel_for_every_python(sources, tmp_path):
    """One build for all that needs a whole one: with CUDA kernels where nvcc is here.

    They load into a torch without CUDA too. The assembler of nvcc need not optimize: none runs.
    """
    devices = ["cpu"] if shutil.which("nvcc") is None else ["cpu", "cuda"]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = run(
        *(*pip, "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), "."),
        folder=sources,
        FORCE_CUDA=str(int("cuda" in devices)),
        TORCH_CUDA_ARCH_LIST="9.0",
        NVCC_APPEND_FLAGS="-Xptxas=-O0",
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    preproc = "preproc/criteo/engines/native/kernel/criteo_kernel.so"
    assert {"cuda_ext/_kernels.so", preproc} <= set(names)
    assert not [n for n in names if n.startswith(("triton/", "tests/", "shared/"))]
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert run_example(installed).stdout.split()[-1] == "compiled"
    script = "from cuda_ext import library; print(sorted(library.COMPILED_FOR))"
    answer = run(sys.executable, "-c", script, folder=installed)
    assert answer.stdout == f"{devices}\n", answer.stderr
