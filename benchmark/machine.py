# SPDX-License-Identifier: Apache-2.0
"""Describes the machine, the packages and the commit of a measurement."""

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

from recsys.resources import available_cores

PACKAGES = (
    "numpy",
    "torch",
    "pyarrow",
    "polars",
    "duckdb",
    "scikit-learn",
    "lightgbm",
    "catboost",
    "fbgemm-gpu-cpu",
    "torchrec",
    "merlin-dataloader",
)

CPUINFO = Path("/proc/cpuinfo")

CPU_KINDS = (
    ("AMX", {"amx_tile", "amx_bf16"}),
    ("AVX-512 BF16", {"avx512f", "avx512_bf16"}),
    ("AVX-512", {"avx512f", "avx512bw"}),
    ("AVX2", {"avx2", "fma"}),
)
"""Kinds of x86 processors, the most capable first, and the CPU flags that identify them."""


def cpu_kind(cpuinfo: str) -> str:
    """Returns the kind of processor, such as `AVX-512 BF16`.

    Args:
        cpuinfo: text of /proc/cpuinfo; if it lists no flags, the kind is the architecture.
    """
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags is None:
        return platform.machine() or "unknown"
    present = set(flags[1].split())
    return next((kind for kind, needed in CPU_KINDS if needed <= present), "x86-64")


def hardware() -> dict[str, Any]:
    """Returns CPU, its kind, cores and clock, memory and GPU."""
    text = CPUINFO.read_text() if CPUINFO.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    clocks = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*(.*)$", text, re.MULTILINE)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cpu_kind": cpu_kind(text),
        "cores": available_cores(),
        "mhz": round(statistics.median(clocks)) if clocks else None,
        "memory_gib": round(memory / 2**30),
        "gpu": _gpu(),
    }


def _gpu() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().replace("\n", ", ") or None if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Returns {name: version} of Python and the installed `PACKAGES`."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def git(*arguments: str, checkout: Path | None = None) -> str:
    """Returns what git prints about a checkout, by default this one; empty if it fails."""
    folder = str(checkout or Path(__file__).parent)
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def commit(checkout: Path | None = None) -> str:
    """Returns the commit of a checkout, by default this one, with `+` if modified."""
    changed = git("status", "--porcelain", "--untracked-files=no", checkout=checkout)
    number = git("rev-parse", "--short=12", "HEAD", checkout=checkout)
    return number + ("+" if changed else "") if number else "unknown"
