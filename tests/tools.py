# SPDX-License-Identifier: Apache-2.0
"""The tools that a machine may lack, and the one way to skip a test: for lack of one of them."""

import functools
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

HIDDEN = "RECIPES_HIDE_TOOLS"
"""Variable that makes every tool of this table missing, to see that the suite passes without."""

MAIN_PYTHON = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
"""Python of `make setup`, for tests that run in another environment."""

AARCH64_COMPILER, AARCH64_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def _programs(*names: str) -> Callable[[], bool]:
    return lambda: all(map(shutil.which, names))


def _compiler() -> bool:
    return bool(shutil.which("g++") or shutil.which("clang++"))


def _kernels() -> bool:
    from cuda_ext import library

    return library.LOAD_ERROR is None and "cpu" in library.COMPILED_FOR


def _clicks_kernel() -> bool:
    from preproc.clicks.kernel import binding

    return binding.is_built()


def _native_backend() -> bool:
    from recsys.serve.server import native_backend

    return native_backend.is_built()


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _spark() -> bool:
    from preproc.files.errors import PreprocError
    from preproc.spark.session import find_java

    if importlib.util.find_spec("pyspark") is None:
        return False
    try:
        find_java()
    except PreprocError:
        return False
    return True


def _perf_analyzer() -> bool:
    from benchmark.peers.perf_analyzer import find_perf_analyzer

    return find_perf_analyzer() is not None


def _nvtabular() -> bool:
    from preproc.nvtabular.process import DEFAULT_PYTHON

    return DEFAULT_PYTHON.exists()


def _site() -> bool:
    from tests.repo.test_site import SITE

    return SITE.is_dir()


def _browser() -> bool:
    from tests.browser import CHROMIUM

    return bool(CHROMIUM)


TOOLS: dict[str, Callable[[], bool]] = {
    "C++ compiler": _compiler,
    "CatBoost": lambda: importlib.util.find_spec("catboost") is not None,
    "compiled cuda_ext kernels": _kernels,
    "compiled Criteo kernel": _clicks_kernel,
    "compiled Triton backend": _native_backend,
    "aarch64 compiler and emulator": _programs(AARCH64_COMPILER, AARCH64_EMULATOR),
    "NVTabular": _nvtabular,
    "Polars": lambda: importlib.util.find_spec("polars") is not None,
    "TorchRec": lambda: importlib.util.find_spec("torchrec") is not None,
    "built site": _site,
    "CUDA device": _cuda,
    "CUDA compiler": _programs("nvcc", "c++filt"),
    "Chromium": _browser,
    "GnuPG": _programs("gpg"),
    "Python headers": lambda: (Path(sysconfig.get_path("include")) / "Python.h").exists(),
    "Spark": _spark,
    "environment .venv": lambda: MAIN_PYTHON.exists(),
    "Python 3.11": lambda: sys.version_info[:2] == (3, 11) or bool(shutil.which("python3.11")),
    "another user": lambda: hasattr(os, "geteuid") and os.geteuid() == 0,
    "curl": _programs("curl"),
    "nginx": _programs("nginx", "openssl"),
    "node": _programs("node"),
    "perf_analyzer": _perf_analyzer,
    "promtool": _programs("promtool"),
    "systemd": _programs("systemd-analyze"),
    "second core": lambda: len(os.sched_getaffinity(0)) > 1,
    "control group": lambda: os.geteuid() == 0,
    "right to mount": lambda: os.geteuid() == 0,
    "network namespaces": lambda: os.geteuid() == 0 and shutil.which("ip") is not None,
    "real data": lambda: True,
    "machine without CUDA device": lambda: not _cuda(),
}
"""Name of each tool, and the test whether it is here; `require` may ask for more."""


@functools.cache
def is_here(tool: str) -> bool:
    """Returns True if this machine has a tool."""
    return HIDDEN not in os.environ and TOOLS[tool]()


def needs(*tools: str) -> pytest.MarkDecorator:
    """Marks tests that skip where one of these tools is missing."""
    assert set(tools) <= set(TOOLS), tools
    return pytest.mark.needs(*tools)


def require(tool: str, usable: object = True) -> None:
    """Skips the running test where a tool is missing, or turned out not to be usable."""
    if not (is_here(tool) and usable):
        pytest.skip(reason(tool))


def reason(tool: str) -> str:
    """Words of a skip for lack of a tool."""
    return f"no {tool}"
