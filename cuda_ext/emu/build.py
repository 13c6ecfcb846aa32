# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels for the emulator: as torch ops, or with a driver program of a test.

The ops are those of the real library under another namespace, `torch.ops.cuda_ext_emulated`, for CPU
tensors. Only sources that changed are compiled again.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from cuda_ext import registration

NAMESPACE = "cuda_ext_emulated"

PACKAGE = Path(__file__).resolve().parents[1]
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-DRECSYS_EMULATOR")
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


def kernel_sources(package: Path = PACKAGE) -> list[Path]:
    """Returns what every emulator build compiles: the scheduler and the launches.

    Args:
        package: folder with `csrc` and `emu`, cuda_ext or a copy of it.
    """
    return [*sorted((package / "emu").glob("*.cpp")), *sorted((package / "csrc").glob("*.cu"))]


def _digest(paths: Iterable[Path], flags: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(flags).encode())
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def compiler() -> str:
    """Returns the C++ compiler, CXX of the environment or g++.

    Raises:
        FileNotFoundError: there is none.
    """
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        raise FileNotFoundError("the emulator needs g++, or the compiler that CXX names")
    return found


def link(
    sources: Sequence[Path],
    folder: Path,
    name: str,
    *,
    package: Path = PACKAGE,
    compile_flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
) -> Path:
    """Compiles and links sources, or returns the file of an earlier call with the same ones.

    Args:
        sources: C++ and CUDA sources; CUDA is compiled as C++ for the emulator.
        folder: for the objects and the result.
        name: begins the result's file name.
        package: folder with `csrc` and `emu`.
        compile_flags: in addition.
        link_flags: in addition.

    Returns:
        The library or program.
    """
    headers = sorted([*package.glob("csrc/**/*.h"), *package.glob("emu/*.h")])
    flags = [*_FLAGS, *_WARNINGS, f"-I{package / 'csrc'}", *compile_flags]
    folder.mkdir(parents=True, exist_ok=True)
    objects = []
    for source in sources:
        target = folder / f"{source.stem}-{_digest([source, *headers], flags)}.o"
        objects.append(str(target))
        if not target.exists():
            unfinished = target.with_suffix(f".{os.getpid()}")
            _run([compiler(), *flags, "-x", "c++", "-c", str(source), "-o", str(unfinished)])
            unfinished.replace(target)
    target = folder / f"{name}-{_digest(map(Path, objects), link_flags)}"
    if not target.exists():
        unfinished = target.with_suffix(f".{os.getpid()}")
        _run([compiler(), *objects, "-o", str(unfinished), *link_flags])
        unfinished.replace(target)
    return target


@functools.cache
def load() -> ctypes.CDLL:
    """Builds the emulated ops, loads them and registers their autograd, once.

    Returns:
        The library, for `set_seed` and `last_error`.
    """
    root = Path(torch.__file__).parent
    library = link(
        [*sorted((PACKAGE / "csrc").glob("*.cpp")), *kernel_sources()],
        PACKAGE.parent / "build" / "emulator",
        "ops",
        compile_flags=(
            "-DTORCH_TARGET_VERSION=0x020b000000000000",
            f"-isystem{root / 'include'}",
        ),
        link_flags=("-shared", f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu"),
    )
    torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    registration.register(NAMESPACE)
    loaded = ctypes.CDLL(str(library))
    loaded.emulator_last_error.restype = ctypes.c_char_p
    loaded.emulator_set_seed.argtypes = [ctypes.c_ulonglong]
    return loaded


def set_seed(seed: int) -> None:
    """Chooses the order in which the threads of later launches run."""
    load().emulator_set_seed(seed)


def last_error() -> str:
    """Returns what the last launch that failed did wrong."""
    return bytes(load().emulator_last_error()).decode()
