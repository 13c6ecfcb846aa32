# SPDX-License-Identifier: Apache-2.0
"""Tells which parts work here, and what adds the missing ones.

    recsys-recipes doctor [--json]

Exit status: 0 what every command needs works, 1 some of it does not.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from absl import flags

from preproc.clicks.kernel import binding
from preproc.files.errors import PreprocError
from preproc.nvtabular.process import DEFAULT_PYTHON
from recsys import program
from recsys.errors import FAILED
from recsys.flags import values_from_flags
from recsys.installation import IS_CHECKOUT, ROOT, command_for
from recsys.resources import available_cores
from recsys.serve.server.install import ServerError, find_server
from recsys.settings import section_from_dict, setting
from recsys_recipes import __version__
from recsys_recipes.command import NAME

State = Literal["ok", "slow", "missing", "broken"]
"""A part that is slow is replaced by a slower one; only a broken one stops commands."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A part of the installation.

    Attributes:
        group: heading under which it is listed.
        name: of the part.
        state: whether it can be used.
        detail: version, or what is wrong, or what it is for.
        add: the command that adds or mends it; empty where it works.
    """

    group: str
    name: str
    state: State
    detail: str
    add: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """Settings of this program."""

    json: bool = setting(False, "Print a JSON list, one object for each part")


SECTIONS: dict[type, str] = {DoctorOptions: "doctor"}
"""Sections of the flags, and their headings."""


def _package(group: str, distribution: str, purpose: str, add: str) -> Finding:
    """Reports a package that only some settings need."""
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Finding(group, distribution, "missing", purpose, add)
    return Finding(group, distribution, "ok", f"{version}; {purpose}")


def python() -> Iterator[Finding]:
    """Reports the interpreter, this project and the cores it may use."""
    yield Finding("base", "Python", "ok", f"{platform.python_version()} {sys.prefix}")
    kind = "checkout" if IS_CHECKOUT else "installed"
    detail = f"{__version__}, {kind} in {ROOT}, {available_cores()} cores"
    yield Finding("base", NAME, "ok", detail)


def torch_and_kernels() -> Iterator[Finding]:
    """Reports torch, the compiled ops with their instruction set, and the GPU."""
    try:
        import torch

        from cuda_ext import library
    except (ImportError, OSError) as error:
        add = command_for("torch")
        yield Finding("base", "torch", "broken", str(error), add)
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("base", "torch", "ok", f"{torch.__version__}, {build}")
    if "cpu" in library.COMPILED_FOR:
        yield _instruction_set(torch.ops.cuda_ext.cpu_instruction_set)
    else:
        detail = f"plain PyTorch runs, slower: {library.why_not_compiled('cpu')}"
        add = command_for("kernels")
        yield Finding("base", "CPU kernels", "slow", detail, add)
    yield _gpu(torch.cuda.is_available(), "cuda" in library.COMPILED_FOR, torch.version.cuda)


def _instruction_set(chosen: Callable[[], str]) -> Finding:
    """Reports the instruction set of the kernels, and who has chosen it."""
    wanted = os.environ.get("RECSYS_CPU_KERNELS")
    reason = "asked for by RECSYS_CPU_KERNELS" if wanted else "the best that this processor has"
    try:
        detail = f"compiled, {chosen()}: {reason}"
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        return Finding("base", "CPU kernels", "broken", first, "unset RECSYS_CPU_KERNELS")
    return Finding("base", "CPU kernels", "ok", detail)


def _gpu(has_gpu: bool, has_kernels: bool, cuda: str | None) -> Finding:
    """Reports the GPU and the kernels for it."""
    if not has_gpu:
        detail = "no CUDA device" if cuda else "this torch is built for CPUs alone"
        return Finding("base", "GPU", "missing", f"{detail}; CPUs do all")
    import torch

    name = torch.cuda.get_device_name()
    if has_kernels:
        return Finding("base", "GPU", "ok", f"{name}, compiled kernels")
    detail = f"{name}; plain PyTorch runs on it, without our kernels"
    return Finding("base", "GPU", "slow", detail, command_for("cuda kernels"))


def engines() -> Iterator[Finding]:
    """Reports the engines of preprocessing."""
    group = "preprocessing"
    if binding.is_built():
        detail = f"version {binding.kernel_version()}, compiled; the default engine"
        yield Finding(group, "native", "ok", detail)
    else:
        add = command_for("kernels")
        detail = "its library is not built or does not load; the engine reference takes over"
        yield Finding(group, "native", "slow", detail, add)
    spark = _package(group, "pyspark", "--engine spark", command_for("spark"))
    yield _with_java(spark) if spark.state == "ok" else spark
    worker = os.access(DEFAULT_PYTHON, os.X_OK)
    detail = "--engine nvtabular" + ("" if IS_CHECKOUT else " --nvtabular_python NVT/bin/python")
    if worker:
        yield Finding(group, "nvtabular", "ok", detail)
    else:
        yield Finding(group, "nvtabular", "missing", detail, command_for("nvtabular"))


def _with_java(spark: Finding) -> Finding:
    """Adds the check for Java, which no Python package installs."""
    from preproc.spark.session import find_java

    try:
        find_java()
    except PreprocError as error:
        add = "apt install openjdk-17-jre-headless"
        return dataclasses.replace(spark, state="missing", detail=str(error), add=add)
    return spark


def serving() -> Iterator[Finding]:
    """Reports the server, its client and the formats of networks."""
    group = "serving"
    with tempfile.TemporaryDirectory() as folder:
        try:
            detail = f"{find_server(Path(folder)).binary}"
        except ServerError as error:
            add = command_for("triton-server")
            detail = str(error).partition(";")[0]
            yield Finding(group, "Triton server", "missing", detail, add)
        else:
            yield Finding(group, "Triton server", "ok", detail)
    yield _package(group, "tritonclient", f"{NAME} ask", command_for("triton"))
    yield _package(group, "onnxruntime", f"{NAME} deploy --format onnx", command_for("onnx"))


def others() -> Iterator[Finding]:
    """Reports what single flags and the benchmarks need."""
    group = "training"
    dmp = "train bert4rec --parallelism dmp"
    yield _package(group, "torchrec", dmp, command_for("torchrec"))
    merlin = "train dlrm --loader merlin"
    yield _package(group, "merlin-dataloader", merlin, command_for("merlin"))
    for peer in ("duckdb", "polars", "scikit-learn", "lightgbm"):
        yield _package("peers", peer, "benchmarks beside it", command_for("benchmark"))


def findings() -> list[Finding]:
    """Runs all checks."""
    groups = (python, torch_and_kernels, engines, serving, others)
    return [finding for group in groups for finding in group()]


def table(parts: Sequence[Finding]) -> str:
    """Returns the findings as a table, the commands below what they add."""
    width = max(len(each.name) for each in parts)
    lines: list[str] = []
    for group in dict.fromkeys(each.group for each in parts):
        lines += ["", f"{group}:"] if lines else [f"{group}:"]
        for each in parts:
            if each.group == group:
                lines.append(f"  {each.state:7} {each.name:{width}}  {each.detail}")
                lines += [f"  {'':7} {'':{width}}  -> {each.add}"] if each.add else []
    return "\n".join(lines)


def run(flag_values: flags.FlagValues) -> int:
    """Prints what is there; returns 1 if something needed is broken."""
    values, _ = values_from_flags(flag_values, SECTIONS)
    options = section_from_dict(DoctorOptions, values)
    parts = findings()
    as_json = json.dumps([dataclasses.asdict(each) for each in parts], indent=1)
    program.print_line(as_json if options.json else table(parts))
    return FAILED if any(each.state == "broken" for each in parts) else 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return program.run_command(run, program.new_flags(SECTIONS), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
