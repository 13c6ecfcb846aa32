# SPDX-License-Identifier: Apache-2.0
"""Faults planted in the CUDA embedding kernels are noticed: by wrong sums, or by the sanitizer."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from cuda_ext.emu import build

DRIVER = Path(__file__).parent / "drivers" / "embedding_driver.cpp"
SANITIZE = ("-O0", "-g1", "-fsanitize=address")


@dataclass(frozen=True)
class Fault:
    """A text of a kernel source that stands there once, and what takes its place."""

    name: str
    source: str
    text: str
    replacement: str
    noticed_by: str = "FAILED"


FAULTS = (
    Fault(
        "a crossing segment misses its last chunk",
        "embedding_fix_up.h",
        "segment.first_chunk + 1 + segment.following, arguments.dim",
        "segment.first_chunk + segment.following, arguments.dim",
    ),
    Fault(
        "no barrier before the sums of the slices are added",
        "embedding_fix_up.h",
        "add_slice<Width>(chunk_sums, slices, arguments.dim, team);\n  sync_block();",
        "add_slice<Width>(chunk_sums, slices, arguments.dim, team);",
    ),
    Fault(
        "a chunk takes a segment that began before it for a whole one",
        "embedding_segments.h",
        "return starts_inside && (ends",
        "return false && (ends",
    ),
    Fault(
        "an overflow is not looked at",
        "embedding_update.h",
        "if (arguments.overflow != nullptr && *arguments.overflow) {",
        "if (false) {",
    ),
    Fault(
        "idle lanes store beyond the row",
        "embedding_update.h",
        "const bool has_columns = column < arguments.dim;",
        "const bool has_columns = true;",
        "heap-buffer-overflow",
    ),
    Fault(
        "a row outside the table is read",
        "embedding_lookup.h",
        "if (!is_row(row, arguments.num_table_rows)) {",
        "if (row < 0) {",
        "heap-buffer-overflow",
    ),
)


LAUNCHES = {"launch_lookup.cu", "launch_update.cu"}


def build_driver(folder: Path, flags: tuple[str, ...], package: Path, *launches: str) -> Path:
    """Returns the driver in a folder; the launches named come from a package, the others from ours.

    Only what may differ is compiled again.
    """
    ours = build.PACKAGE / "csrc"
    sources = [DRIVER, ours / "sort.cu", *(build.PACKAGE / "emu").glob("*.cpp")]
    sources += [ours / name for name in LAUNCHES.difference(launches)]
    theirs = [package / "csrc" / name for name in launches]
    objects = [
        *build.compile_sources(sorted(sources), build.FOLDER, flags),
        *build.compile_sources(theirs, folder, flags, package=package),
    ]
    return build.link(objects, folder / "embedding_driver", flags)


def run_driver(driver: Path, seed: int) -> subprocess.CompletedProcess[str]:
    """Runs all cases with the threads in the order of a seed."""
    return subprocess.run([driver, str(seed)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_access_outside_the_buffers(seed: int) -> None:
    done = run_driver(build_driver(build.FOLDER, SANITIZE, build.PACKAGE), seed)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    package = tmp_path / "cuda_ext"
    for part in ("csrc", "emu"):
        shutil.copytree(build.PACKAGE / part, package / part)
    source = package / "csrc" / "kernels" / fault.source
    before = source.read_text()
    assert before.count(fault.text) == 1
    source.write_text(before.replace(fault.text, fault.replacement))
    flags = SANITIZE if fault.noticed_by != "FAILED" else ("-O0",)
    launch = "launch_lookup.cu" if "lookup" in fault.source else "launch_update.cu"
    done = run_driver(build_driver(tmp_path, flags, package, launch), 1)
    assert done.returncode != 0
    assert fault.noticed_by in done.stdout + done.stderr
