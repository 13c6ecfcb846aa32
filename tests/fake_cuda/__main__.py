# SPDX-License-Identifier: Apache-2.0
"""Compiles the fake device, loads it before PyTorch, and runs the tests on it."""

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "device.cpp"
LIBRARY = HERE.parents[1] / "build" / "fake_cuda.so"


def folder_of_torch() -> Path:
    """Returns the folder of PyTorch, without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def compile_device() -> Path:
    """Compiles the fake device if its source or PyTorch is newer; returns the library."""
    torch = folder_of_torch()
    newest = max(path.stat().st_mtime for path in (SOURCE, torch / "version.py"))
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > newest:
        return LIBRARY
    LIBRARY.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LIBRARY.parent) as folder:
        built = Path(folder) / LIBRARY.name
        command = [os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC", str(SOURCE)]
        command += [f"-I{torch / 'include'}", f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"]
        subprocess.run([*command, "-lc10", "-ltorch_cpu", "-o", str(built)], check=True)
        built.replace(LIBRARY)
    return LIBRARY


if __name__ == "__main__":
    if (folder_of_torch() / "lib" / "libtorch_cuda.so").exists():
        print("not run: this PyTorch has CUDA itself, which a fake device cannot take the place of")
        sys.exit(0)
    ctypes.CDLL(str(compile_device()), ctypes.RTLD_GLOBAL)
    import pytest

    sys.exit(pytest.main([*sys.argv[1:], "-m", "fake_cuda", str(HERE)]))
