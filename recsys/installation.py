# SPDX-License-Identifier: Apache-2.0
"""Commands that install what a checkout or an installed wheel lacks."""

import platform
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IS_CHECKOUT = (ROOT / "Makefile").is_file()

_REQUIREMENTS = ROOT / "preproc" / "nvtabular" / "requirements.txt"
_WHEEL = f"recsys_recipes-*-manylinux_2_28_{platform.machine()}.whl"


def _extra(name: str) -> str:
    return f"pip install 'recsys-recipes[{name}]'"


_COMMANDS: dict[str, tuple[str, str]] = {
    "torch": ("make setup", "pip install --force-reinstall torch"),
    "kernels": ("make build", f"pip install --force-reinstall --no-deps {_WHEEL}"),
    "cuda kernels": (
        "FORCE_CUDA=1 make build",
        "FORCE_CUDA=1 pip install --no-build-isolation --no-deps recsys_recipes-*.tar.gz",
    ),
    "spark": ("make spark", _extra("spark")),
    "nvtabular": (
        "make nvtabular",
        f"python3.11 -m venv NVT && NVT/bin/pip install --no-deps -r {_REQUIREMENTS}",
    ),
    "torchrec": ("make torchrec", _extra("torchrec")),
    "merlin": ("make merlin", "a checkout's make merlin (Python 3.11)"),
    "triton-server": ("make triton-env", _extra("triton-server")),
    "triton environment": (
        "make triton-env PYTHON=/path/to/python3.11",
        f"python3.11 -m venv TRITON && TRITON/bin/{_extra('triton-server')}",
    ),
    "triton": (_extra("triton"), _extra("triton")),
    "page": (_extra("page"), _extra("page")),
    "onnx": (_extra("onnx"), _extra("onnx")),
    "benchmark": (_extra("benchmark"), _extra("benchmark")),
    "report": (_extra("report"), _extra("report")),
    "tensorboard": (_extra("tensorboard"), _extra("tensorboard")),
}
"""Component -> (command for a checkout, command for an installed wheel)."""


def command_for(component: str) -> str:
    """Returns the command that adds a component to this installation."""
    checkout, installed = _COMMANDS[component]
    return checkout if IS_CHECKOUT else installed
