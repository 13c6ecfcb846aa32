# SPDX-License-Identifier: Apache-2.0
"""Shows which parts work here, and how to add the missing ones.

    recsys-recipes doctor [--json]

Exit status: 0 if everything that all commands need works, 1 otherwise.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from recsys.serve.server.install import ServerError, find_server, python_with_server
from recsys.settings import section_from_dict, setting
from recsys_recipes import __version__
from recsys_recipes.command import NAME

_FIND_SERVER = (
    "import pathlib, sys; from recsys.serve.server.install import find_server; "
    "print(find_server(pathlib.Path(sys.argv[1])).command[0])"
)
State = Literal["ok", "slow", "missing", "broken"]
"""A slow part is replaced by a slower one; only a broken part stops commands."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A part of the installation.

    Attributes:
        state: whether it can be used.
        detail: its version, its problem, or its purpose.
        add: command that installs or repairs it; empty if it works.
    """

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


def _package(distribution: str, purpose: str, component: str) -> Finding:
    """Reports a package that only some settings need."""
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Finding(distribution, "missing", purpose, command_for(component))
    return Finding(distribution, "ok", f"{version}; {purpose}")


def base() -> Iterator[Finding]:
    """Reports Python, this project, torch, its compiled ops and the GPU."""
    yield Finding("Python", "ok", f"{platform.python_version()} {sys.prefix}")
    kind = "checkout" if IS_CHECKOUT else "installed"
    yield Finding(NAME, "ok", f"{__version__}, {kind} in {ROOT}, {available_cores()} cores")
    try:
        import torch

        from cuda_ext import library
    except (ImportError, OSError) as error:
        yield Finding("torch", "broken", str(error), command_for("torch"))
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("torch", "ok", f"{torch.__version__}, {build}")
    if "cpu" in library.COMPILED_FOR:
        yield _instruction_set(torch.ops.cuda_ext.cpu_instruction_set)
    else:
        detail = f"plain PyTorch runs instead, slower: {library.why_not_compiled('cpu')}"
        yield Finding("CPU kernels", "slow", detail, command_for("kernels"))
    if not torch.cuda.is_available():
        why = "no CUDA device" if torch.version.cuda else "this torch is built only for CPUs"
        yield Finding("GPU", "missing", f"{why}; everything runs on CPUs")
    elif "cuda" in library.COMPILED_FOR:
        yield Finding("GPU", "ok", f"{torch.cuda.get_device_name()}, compiled kernels")
    else:
        detail = f"{torch.cuda.get_device_name()}; plain PyTorch runs on it, without our kernels"
        yield Finding("GPU", "slow", detail, command_for("cuda kernels"))


def _instruction_set(chosen: Callable[[], str]) -> Finding:
    """Reports the instruction set of the kernels, and why it was chosen."""
    wanted = os.environ.get("RECSYS_CPU_KERNELS")
    reason = (
        "asked for by RECSYS_CPU_KERNELS" if wanted else "the best that this processor supports"
    )
    try:
        return Finding("CPU kernels", "ok", f"compiled, {chosen()}: {reason}")
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        return Finding("CPU kernels", "broken", first, "unset RECSYS_CPU_KERNELS")


def preprocessing() -> Iterator[Finding]:
    """Reports the engines of preprocessing."""
    if binding.is_built():
        detail = f"version {binding.kernel_version()}, compiled; the default engine"
        yield Finding("native", "ok", detail)
    else:
        detail = "its library is not built or does not load; the engine reference is used instead"
        yield Finding("native", "slow", detail, command_for("kernels"))
    spark = _package("pyspark", "--engine spark", "spark")
    yield _with_java(spark) if spark.state == "ok" else spark
    detail = "--engine nvtabular" + ("" if IS_CHECKOUT else " --nvtabular_python NVT/bin/python")
    if os.access(DEFAULT_PYTHON, os.X_OK):
        yield Finding("nvtabular", "ok", detail)
    else:
        yield Finding("nvtabular", "missing", detail, command_for("nvtabular"))


def _with_java(spark: Finding) -> Finding:
    """Also checks for Java, which no Python package installs."""
    from preproc.spark.session import find_java

    try:
        find_java()
    except PreprocError as error:
        add = "apt install openjdk-17-jre-headless"
        return dataclasses.replace(spark, state="missing", detail=str(error), add=add)
    return spark


def _server() -> str:
    """Returns the binary that `serve` starts, even from another environment."""
    with tempfile.TemporaryDirectory() as folder:
        if (python := python_with_server()) is None:
            return find_server(Path(folder)).command[0]
        done = subprocess.run(
            [python, "-P", "-c", _FIND_SERVER, folder], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ServerError(done.stderr.strip().rpartition("\n")[2])
        return f"{done.stdout.strip()}; {NAME} serve runs in {python.parents[1]}"


def serving() -> Iterator[Finding]:
    """Reports the server, its client and the formats of networks."""
    try:
        yield Finding("Triton server", "ok", _server())
    except ServerError as error:
        detail = str(error).partition(";")[0]
        yield Finding("Triton server", "missing", detail, command_for("triton-server"))
    yield _package("tritonclient", f"{NAME} ask", "triton")
    yield _package("gradio", f"{NAME} ask --mode page", "page")
    yield _package("onnxruntime", f"{NAME} deploy --format onnx", "onnx")


def training() -> Iterator[Finding]:
    """Reports what individual training flags need."""
    yield _package("torchrec", "train bert4rec --parallelism dmp", "torchrec")
    yield _package("merlin-dataloader", "train dlrm --loader merlin", "merlin")
    yield _package("matplotlib", "train --report", "report")
    yield _package("tensorboard", "train --tensorboard", "tensorboard")


def peers() -> Iterator[Finding]:
    """Reports what the benchmarks need."""
    for peer in ("duckdb", "polars", "scikit-learn", "lightgbm"):
        yield _package(peer, "benchmarks against it", "benchmark")


GROUPS = (base, preprocessing, serving, training, peers)
"""Checks, whose names are the headings of their findings."""


def table(findings: Mapping[str, Sequence[Finding]]) -> str:
    """Returns the findings as a table, each with the command that adds it below."""
    width = max(len(each.name) for group in findings.values() for each in group)
    blocks = []
    for group, members in findings.items():
        lines = [f"{group}:"]
        for each in members:
            lines.append(f"  {each.state:7} {each.name:{width}}  {each.detail}")
            lines += [f"  {'':7} {'':{width}}  -> {each.add}"] if each.add else []
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def run(flag_values: flags.FlagValues) -> int:
    """Prints the findings; returns 1 if a part that commands need is broken."""
    values, _ = values_from_flags(flag_values, SECTIONS)
    options = section_from_dict(DoctorOptions, values)
    findings = {check.__name__: [*check()] for check in GROUPS}
    parts = [(group, each) for group, members in findings.items() for each in members]
    as_json = [{"group": group, **dataclasses.asdict(each)} for group, each in parts]
    program.print_line(json.dumps(as_json, indent=1) if options.json else table(findings))
    return FAILED if any(each.state == "broken" for _, each in parts) else 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return program.run_command(run, program.new_flags(SECTIONS), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
