# SPDX-License-Identifier: Apache-2.0
"""What one preprocessing run is asked to do, validated."""

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Literal, get_args

from preproc.criteo.rules import PRESETS, CriteoSemantics
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressMode
from preproc.spark.settings import SparkSettings

EngineName = Literal["native", "reference", "spark", "nvtabular"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

NvtabularDevice = Literal["auto", "cpu", "gpu"]
NVTABULAR_DEVICES: tuple[NvtabularDevice, ...] = get_args(NvtabularDevice)

Format = Literal["split", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

Layout = Literal["nvidia", "torchrec"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_UNITS = {
    "": 1,
    "B": 1,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def default_threads() -> int:
    """Returns the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def parse_memory_size(text: str) -> int:
    """Returns bytes for `4GiB`, `512M`, `1.5GB`, `100000`.

    Raises:
        PreprocError: the spelling is none of these.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise PreprocError(
            "--memory_limit must be a number with a unit, such as 4GiB, 512MiB or 2GB; "
            f"got {text!r}"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_bytes(count: float) -> str:
    """Returns a size for a message, such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CriteoJob:
    """Settings of one run; the fields are the flags of the same name.

    Attributes:
        input: folder with day_0 ... day_N, or one file.
        output: the dataset folder to make.
        semantics: what numbers and ids mean.
        preset: the name `semantics` began as, for the manifest.
        engine: who does the work.
        format: what to write.
        layout: `nvidia` is split binary in the narrow flavour; `torchrec` in the wide one, with
            TorchRec's column names and a `_metadata` file beside parquet.
        memory_limit: bytes of anonymous memory of the process.
        threads: worker threads.
        max_bad_fraction: share of bad rows above which the run stops.
        progress: how to report it.
        overwrite: replace the dataset at `output`, once the new one is complete.
        work_dir: keeps the work state, for further runs on the same input; None: next to the
            output, removed after success.
        nvtabular_python: interpreter that has NVTabular; None takes .venv-nvtabular.
        nvtabular_device: where NVTabular works; `auto` is a GPU with cuDF where there is one.
        spark: how to reach Spark and what to ask of it.
    """

    input: Path
    output: Path
    semantics: CriteoSemantics = PRESETS["dlrm"]
    preset: str = "dlrm"
    engine: EngineName = "native"
    format: tuple[Format, ...] = ("split",)
    layout: Layout = "nvidia"
    memory_limit: int = 4 * 2**30
    threads: int = dataclasses.field(default_factory=default_threads)
    max_bad_fraction: float = 1e-4
    progress: ProgressMode = "none"
    overwrite: bool = False
    work_dir: Path | None = None
    nvtabular_python: Path | None = None
    nvtabular_device: NvtabularDevice = "auto"
    spark: SparkSettings = dataclasses.field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        """Refuses settings that cannot be carried out."""
        if self.engine not in ENGINES:
            raise PreprocError(f"--engine must be one of {', '.join(ENGINES)}; got {self.engine!r}")
        unknown = [f for f in self.format if f not in FORMATS]
        if unknown or not self.format or len(set(self.format)) < len(self.format):
            raise PreprocError(
                f"--format must be a comma-separated list of {', '.join(FORMATS)}; "
                f"got {','.join(self.format)!r}"
            )
        if self.nvtabular_device not in NVTABULAR_DEVICES:
            raise PreprocError(
                f"--nvtabular_device must be one of {', '.join(NVTABULAR_DEVICES)}; got "
                f"{self.nvtabular_device!r}"
            )
        if self.layout not in LAYOUTS:
            raise PreprocError(f"--layout must be one of {', '.join(LAYOUTS)}; got {self.layout!r}")
        if self.threads < 1:
            raise PreprocError(f"--threads must be at least 1, got {self.threads}")
        if not (0 <= self.max_bad_fraction <= 1) or math.isnan(self.max_bad_fraction):
            raise PreprocError(
                f"--max_bad_fraction must lie in [0, 1], got {self.max_bad_fraction}"
            )
