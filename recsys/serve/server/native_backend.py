# SPDX-License-Identifier: Apache-2.0
"""The shared library of the native backend, built by setup.py."""

from pathlib import Path

NAME = "recsys"
"""Name of the backend in config.pbtxt; Triton looks for a folder and a library of that name."""

LIBRARY = Path(__file__).with_name(f"libtriton_{NAME}.so")


def is_built() -> bool:
    """Returns whether the library exists."""
    return LIBRARY.is_file()
