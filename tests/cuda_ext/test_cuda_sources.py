# SPDX-License-Identifier: Apache-2.0
"""The C++ sources as a build with CUDA compiles them, which needs no toolkit for these."""

from pathlib import Path

import pytest
import torch

from cuda_ext import library
from cuda_ext.emu.build import compiler
from tests.harness import run
from tests.tools import needs

CSRC = Path(library.__file__).with_name("csrc")
SOURCES = [path for path in sorted(CSRC.glob("*/*.cpp")) if path.parent.name != "cpu"]


@needs("C++ compiler")
@pytest.mark.release
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_source_compiles_for_cuda(source):
    command = [compiler(), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    torch_headers = Path(torch.__file__).with_name("include")
    defines = ["-DRECSYS_CUDA", "-DTORCH_TARGET_VERSION=0x020b000000000000"]
    run(*command, *defines, "-isystem", torch_headers, source)
