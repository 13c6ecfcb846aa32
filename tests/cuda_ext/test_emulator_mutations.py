# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels under AddressSanitizer, as they are and with planted faults."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cuda_ext.emu import build
from tests import harness
from tests.tools import needs

from .mutations import MUTATIONS, Mutation

DRIVERS = Path(__file__).with_name("drivers")
FLAGS = ("-O0", "-fsanitize=address", "-g1")  # most of the time goes into compiling
FOLDER = build.FOLDER / "address_sanitizer"

pytestmark = needs("C++ compiler")


def run_driver(driver: str, package: Path, mutated: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a driver with the kernels of a package; those not of `mutated` are the project's own."""
    own = [s for s in build.kernel_sources() if not (mutated and s.match(mutated))]
    objects = build.compile_sources([DRIVERS / f"{driver}.cpp", *own], FOLDER, FLAGS)
    if mutated:
        source = package / "csrc" / mutated
        objects += build.compile_sources([source], package / "objects", FLAGS, package=package)
    program = build.link(objects, (package / driver) if mutated else (FOLDER / driver), FLAGS)
    return harness.run(program, status=None)


@pytest.mark.parametrize("driver", ["interaction_driver", "embedding_driver"])
def test_kernels_stay_inside_their_memory(driver):
    done = run_driver(driver, build.PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.release
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_fault_is_noticed(tmp_path: Path, mutation: Mutation):
    for folder in ("csrc", "emu"):
        shutil.copytree(build.PACKAGE / folder, tmp_path / folder)
    mutated = tmp_path / "csrc" / mutation.file
    source = mutated.read_text()
    assert mutation.text in source
    mutated.write_text(source.replace(mutation.text, mutation.replacement))
    done = run_driver(mutation.driver, tmp_path, mutation.launches)
    assert done.returncode != 0, "the fault went unnoticed"
