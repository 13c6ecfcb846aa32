# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA kernels for the emulator, as ops or test drivers.

The ops are those of the real library under another namespace, `torch.ops.cuda_ext_emulated`, for
CPU tensors. Only sources that changed are compiled again.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from cuda_ext.ops import registration

NAMESPACE = "cuda_ext_emulated"

PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = PACKAGE.parent / "build" / "emulator"
SCHEDULER = tuple(PACKAGE / "emu" / f"{name}.cpp" for name in ("block_scheduler", "global_memory"))
"""Sources of the scheduler, which runs kernels."""

# nvcc contracts a product and a sum into one operation, rounded once; g++ does so if told to.
_CONTRACTED = (
    ("-ffp-contract=fast", "-mfma")
    if torch.backends.cpu.get_cpu_capability().startswith("AVX")
    else ("-ffp-contract=fast",)
)
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-DRECSYS_EMULATOR", *_CONTRACTED)
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


def kernel_sources(package: Path = PACKAGE) -> list[Path]:
    """Returns the sources of every emulator build: the scheduler and the launches."""
    return [*sorted((package / "emu").glob("*.cpp")), *sorted((package / "csrc").rglob("*.cu"))]


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
        FileNotFoundError: the compiler is not found.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise FileNotFoundError("compiler not found: install g++ or set CXX to a C++ compiler")
    return compiler


def compile_sources(
    sources: Sequence[Path], folder: Path, flags: Sequence[str] = (), *, package: Path = PACKAGE
) -> list[Path]:
    """Compiles C++ and CUDA sources for the emulator, keeping objects in `folder`.

    Headers are those of `csrc` and `emu` in `package`, cuda_ext or a copy of it.
    """
    headers = sorted(
        [*package.glob("csrc/**/*.h"), *package.glob("csrc/**/*.cuh"), *package.glob("emu/*.h")]
    )
    all_flags = [*_FLAGS, *_WARNINGS, f"-I{package / 'emu'}", f"-I{package / 'csrc'}", *flags]
    folder.mkdir(parents=True, exist_ok=True)

    def compile_source(source: Path) -> Path:
        target = folder / f"{source.stem}-{_digest([source, *headers], all_flags)}.o"
        if not target.exists():
            unfinished = target.with_suffix(f".{os.getpid()}")
            _run([compiler(), *all_flags, "-x", "c++", "-c", str(source), "-o", str(unfinished)])
            unfinished.replace(target)
        return target

    with (folder / "lock").open("w") as lock, ThreadPoolExecutor(os.cpu_count()) as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling the same objects
        return list(threads.map(compile_source, sources))


def link(objects: Sequence[Path], target: Path, flags: Sequence[str] = ()) -> Path:
    """Links objects into a library or program, whose path begins with `target`."""
    result = target.with_name(f"{target.name}-{_digest(objects, flags)}")
    if not result.exists():
        unfinished = result.with_suffix(f".{os.getpid()}")
        hidden = "-Wl,--exclude-libs,ALL"  # as in setup.py
        _run([compiler(), *map(str, objects), "-o", str(unfinished), hidden, *flags])
        unfinished.replace(result)
    return result


@functools.cache
def load() -> ctypes.CDLL:
    """Builds the emulated ops, loads them and registers their autograd, once."""
    root = Path(torch.__file__).parent
    families = sorted((PACKAGE / "csrc").glob("*/*.cpp"))
    ops = [PACKAGE / "csrc" / "registration.cpp"]
    ops += [source for source in families if source.with_name("cuda").is_dir()]
    flags = ("-DTORCH_TARGET_VERSION=0x020b000000000000", f"-isystem{root / 'include'}")
    library = link(
        [*compile_sources(ops, FOLDER, flags), *compile_sources(kernel_sources(), FOLDER)],
        FOLDER / "ops",
        ("-shared", f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu"),
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
    """Returns the message of the last launch that failed."""
    return bytes(load().emulator_last_error()).decode()
