# SPDX-License-Identifier: Apache-2.0
"""libFuzzer targets in C++, under AddressSanitizer and UndefinedBehaviorSanitizer."""

import functools
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from preproc.clicks.serving.feature_file import write_feature_file
from tests import harness
from tests.dlrm.deployed import raw_checkpoint
from tests.dlrm.native_sources import CSRC, INSTRUCTION_SETS
from tests.recsys.serve.checkpoints import without_checksums

SOURCES = Path(__file__).with_name("csrc")
BACKEND = ("requests", "versions")
"""Targets with the native backend."""
NAMES = ("kernel", "features", *BACKEND)

_FLAGS = ("-std=c++17", "-O1", "-g1", "-I.", "-pthread", "-Wno-psabi")
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compiler() -> str | None:
    """Returns clang++, which has libFuzzer; None if it is not installed."""
    return shutil.which("clang++") or shutil.which("clang++-14")


def build(name: str, folder: Path) -> Path:
    """Compiles a target; returns the program.

    Raises:
        SystemExit: there is no clang++.
    """
    clang = compiler()
    if clang is None:
        raise SystemExit(
            f"{name} needs clang++ with libFuzzer (Debian: apt install clang libclang-rt-14-dev)"
        )
    program = folder / "programs" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    objects: list[Path] = []
    if name in BACKEND:
        objects = _backend(clang, program.parent)
    options = (*_FLAGS, *_SANITIZERS, "-fsanitize=fuzzer")
    harness.run(clang, *options, SOURCES / f"{name}.cpp", *objects, "-o", program)
    return program


@functools.cache
def _backend(clang: str, folder: Path) -> list[Path]:
    """Compiles the native backend."""

    def compile_source(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        extra = INSTRUCTION_SETS.get(source.name, ())
        options = (*_FLAGS, *_SANITIZERS, "-fsanitize=fuzzer-no-link", *extra)
        harness.run(clang, *options, "-c", source, "-o", target)
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_source, sorted(CSRC.glob("*.cpp"))))


@functools.cache
def inputs(folder: Path) -> Path:
    """Makes what the targets read: a version of a DLRM, and its feature file."""
    made = folder / "inputs"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    flags = (*raw_checkpoint(made), "--backend=native", "--verify=8")
    command = ("-m", "recsys_recipes", "deploy", f"--repository={made / 'models'}", *flags)
    harness.python(*command)
    shutil.move(made / "models" / "dlrm" / "1", made / "version")
    without_checksums(made / "version")
    write_feature_file(made / "dataset", made / "features.bin", "float16")
    return made
