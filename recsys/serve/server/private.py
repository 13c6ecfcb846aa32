# SPDX-License-Identifier: Apache-2.0
"""The library that keeps a server's key and shared memory from other users; setup.py builds it."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("libprivate.so")


def from_environment(name: str) -> str:
    """Returns the end of an argument of tritonserver that stands for a variable's value."""
    return f"\n{name}"
