# SPDX-License-Identifier: Apache-2.0
"""How the extension is built: with and without compilers, as a wheel, and what is reported."""

import re
import shutil
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch

from cuda_ext import compile_report, library
from cuda_ext.emu import build
from tests import harness
from tests.harness import assert_tells
from tests.tools import needs

BUILD = ("setup.py", "build_ext", "--inplace")

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


def python(folder, *arguments, **options):
    return harness.python(*arguments, folder=folder, PYTHONPATH=None, **options)


def run_example(folder):
    answer = python(folder, "-c", textwrap.dedent(LOOKS_RIGHT))
    assert str(folder) in answer.stdout
    return answer


@pytest.fixture
def sources(tmp_path):
    """A copy of what the build reads, without anything built."""
    copy = tmp_path / "copy"
    skip = shutil.ignore_patterns(".*", "build", "*.so", "*.egg-info", "shared", "__pycache__")
    shutil.copytree(harness.REPOSITORY, copy, ignore=skip)
    return copy


@pytest.mark.release
def test_built_without_a_compiler_the_ops_run_in_plain_pytorch_and_say_so_once(sources):
    python(sources, *BUILD, CC="/nonexistent/cc", CXX="/nonexistent/c++")
    assert not list(sources.rglob("*.so"))
    answer = run_example(sources)
    assert answer.stdout.split()[-1] == "reference"
    assert answer.stderr.count("RuntimeWarning: cuda_ext ") == 1
    assert "make build" in answer.stderr
    described = python(sources, "-m", "cuda_ext").stdout
    assert_tells(described, "cpu: plain PyTorch")


def test_a_build_says_what_it_compiles_how_long_that_takes_and_what_it_lacks(sources, tmp_path):
    """With a compiler that writes empty files; unchanged files are not compiled again."""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; : > "$2"\n')
    compiler.chmod(0o755)
    tools = dict.fromkeys(("CC", "CXX", "LDSHARED", "LDCXXSHARED"), str(compiler))
    build = ("setup.py", "--quiet", *BUILD[1:])
    options = {**tools, "FORCE_CUDA": "0", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = python(sources, *build, **options).stdout.splitlines()
    heads = [line for line in said if line.startswith("Building ")]
    assert "Building cuda_ext/_kernels, some minutes" in heads[1]
    assert len(heads) == 4
    compiled = [line for line in said if re.fullmatch(r"  [\w/]+\.cpp: \d+ s", line)]
    assert len(compiled) + len(heads) == len(said) > 20
    for built in sources.rglob("*.so"):
        built.unlink()
    shutil.rmtree(sources / "build")
    assert python(sources, *build, **options).stdout.splitlines() == heads
    options |= {"FORCE_CUDA": "1", "CUDA_HOME": str(sources / "nowhere")}
    refused = python(sources, *build, "--force", status=1, **options)
    assert_tells(refused.stderr + refused.stdout, "nvcc")


def test_a_library_that_does_not_load_is_named(tmp_path, monkeypatch):
    damaged = tmp_path / "_kernels.so"
    damaged.write_bytes(b"no library")
    monkeypatch.setattr(library, "KERNELS", damaged)
    assert_tells(library._load(), damaged)


CSRC = build.PACKAGE / "csrc"


@needs("C++ compiler")
@pytest.mark.release
@pytest.mark.parametrize(
    "source",
    [path for path in sorted(CSRC.glob("*/*.cpp")) if path.parent.name != "cpu"],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_source_compiles_for_cuda_without_a_toolkit(source):
    command = [build.compiler(), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    defines = ["-DRECSYS_CUDA", "-DTORCH_TARGET_VERSION=0x020b000000000000"]
    headers = Path(torch.__file__).with_name("include")
    harness.run(*command, *defines, "-isystem", headers, source)


@pytest.mark.release
@pytest.mark.timeout(3600)  # everything is compiled, while others compile too
@needs("compiled cuda_ext kernels")
def test_an_isolated_build_gives_one_wheel_for_every_python(sources, tmp_path):
    """One build for all that needs a whole one: with CUDA kernels where nvcc is here.

    They load into a torch without CUDA too. Compilers need not optimize, which takes most of the
    time: the kernels of `make build` are those that all other tests run. A build elsewhere finds
    the objects of the first. An op refuses with a C++ library of its own linked in.
    """
    devices = ["cpu"] if shutil.which("nvcc") is None else ["cpu", "cuda"]
    compiler, calls = tmp_path / "c++", tmp_path / "calls"
    compiler.write_text(
        f'#!/bin/bash\necho "$@" >> {calls}\nexec {build.compiler()} "${{@/#-O3/-O0}}"\n'
    )
    compiler.chmod(0o755)
    settings = {
        "CC": str(compiler),
        "CXX": str(compiler),
        **dict.fromkeys(("LDSHARED", "LDCXXSHARED"), f"{compiler} -shared -static-libstdc++"),
        "FORCE_CUDA": str(int("cuda" in devices)),
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "NVCC_APPEND_FLAGS": "-Xptxas=-O0",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    python(
        sources,
        *("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "-w", tmp_path, "."),
        **settings,
    )
    compiled = calls.read_text().count(" -c ")
    assert compiled == len(set(re.findall(" -c .*", calls.read_text()))) > 10
    shutil.rmtree(sources / "build")
    python(sources, *BUILD, **settings)
    assert calls.read_text().count(" -c ") == compiled
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    preproc = "preproc/clicks/kernel/clicks_kernel.so"
    backend = "recsys/serve/server/libtriton_recsys.so"
    private = "recsys/serve/server/libprivate.so"
    assert {"cuda_ext/_kernels.so", preproc, backend, private} <= set(names)
    assert not [n for n in names if n.startswith(("triton/", "tests/", "shared/"))]
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert run_example(installed).stdout.split()[-1] == "compiled"
    script = "from cuda_ext import library; print(sorted(library.COMPILED_FOR))"
    assert python(installed, "-c", script).stdout == f"{devices}\n"
    script = "import torch; from cuda_ext.ops.registration import kernels as ops\n"
    script += "ops.relu_backward(torch.ones(2, 3), torch.ones(3, 2), False)"
    refused = python(installed, "-c", script, status=1)
    assert_tells(refused.stderr.splitlines()[-1], "RuntimeError", "gradient", "output")


PTXAS = """\
ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function 'void cub::sort<int, 2>(int)' for 'sm_90'
    8 bytes stack frame, 16 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compiling entry function 'void recsys::kernels::interact_vectors<recsys::float16, \
float, 2>(recsys::InteractionArguments)' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 120 registers, used 0 barriers
ptxas info    : Compiling entry function 'void recsys::kernels::gather<4>(int)' for 'sm_90'
    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 130 registers, used 1 barriers, 48 bytes smem
"""


def test_own_kernels_are_read_and_their_faults_named():
    usages = compile_report.parse_usage(PTXAS)
    assert usages == [
        ("interact_vectors<float16, float, 2>", "80", 120, 0, 0),
        ("gather<4>", "90", 130, 48, 12),
    ]
    spills, registers = compile_report.violations(usages)
    assert_tells(spills, "gather<4>", "sm_90", "12 bytes")
    assert_tells(registers, "gather<4>", "sm_90", 130, 128)


def test_table_has_a_column_for_each_architecture():
    usages = [
        compile_report.KernelUsage("gather<4>", arch, int(arch) // 2, 48, 0)
        for arch in ("120", "80")
    ]
    assert compile_report.table(usages).splitlines()[-1] == "| `gather<4>` | 48 | 40 | 60 |"


@pytest.mark.release
@needs("CUDA compiler")
def test_lookup_kernels_compile_without_spills():
    text = compile_report.compile_source(
        compile_report.CSRC / "lookup" / "cuda" / "lookup_launch.cu", ["90"]
    )
    usages = compile_report.parse_usage(text)
    assert any(usage.kernel.startswith("gather_rows<") for usage in usages)
    assert compile_report.violations(usages) == []


@needs("CUDA compiler")
def test_error_of_the_compiler_is_shown(tmp_path):
    source = tmp_path / "broken.cu"
    source.write_text("int main() { return missing; }\n")
    with pytest.raises(RuntimeError, match="missing"):
        compile_report.compile_source(source, ["90"])
