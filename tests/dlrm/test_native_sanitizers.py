# SPDX-License-Identifier: Apache-2.0
"""The native backend under sanitizers and on aarch64: wrong requests, damaged versions, threads."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import harness
from tests.dlrm.deployed import raw_checkpoint
from tests.dlrm.native_sources import CSRC, INSTRUCTION_SETS
from tests.recsys.serve.checkpoints import without_checksums
from tests.tools import AARCH64_COMPILER, AARCH64_EMULATOR, needs
from tests.triton.conftest import deployer

DRIVERS = Path(__file__).with_name("native_drivers")
COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = ("-std=c++17", "-O0", "-g1", "-I.", "-pthread", "-Wno-psabi")

pytestmark = [
    pytest.mark.release,
    needs("C++ compiler"),
]


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """A deployed DLRM of a small dataset that takes raw rows."""
    folder = tmp_path_factory.mktemp("raw")
    flags = (*raw_checkpoint(folder), "--backend=native", "--verify=8")
    assert deployer(folder / "models", *flags) == 0
    return folder / "models" / "dlrm" / "1"


@pytest.fixture(scope="module")
def unchecked(version, tmp_path_factory):
    """That version without checksums, so that damages reach what they damage."""
    return without_checksums(shutil.copytree(version, tmp_path_factory.mktemp("old") / "1"))


def build(folder, *options, compiler=COMPILER):
    """Compiles the backend and its drivers; returns the folder of the programs."""

    def compile_source(source):
        extra = INSTRUCTION_SETS.get(source.name, ()) if compiler == COMPILER else ()
        target = folder / f"{source.stem}.o"
        harness.run(compiler, *FLAGS, *options, *extra, "-c", source, "-o", target)
        return target

    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        backend = list(pool.map(compile_source, CSRC.glob("*.cpp")))
        for driver in pool.map(compile_source, DRIVERS.glob("*.cpp")):
            program = folder / f"native_{driver.stem}"
            harness.run(compiler, *options, "-pthread", *backend, driver, "-o", program)
    return folder


@pytest.mark.parametrize(
    ("sanitizer", "rounds"),
    [("address,undefined", 400), ("thread", 20)],
    ids=["memory", "threads"],
)
def test_sanitizers_have_nothing_to_say(version, unchecked, tmp_path, sanitizer, rounds):
    programs = build(tmp_path, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    names = set()
    for kernels in ("portable", "avx2", "avx512"):
        damaged = tmp_path / kernels
        damaged.mkdir()
        done = harness.run(
            *(programs / "native_damage", unchecked, damaged, rounds),
            status=None,
            RECSYS_CPU_KERNELS=kernels,
        )
        if "RECSYS_CPU_KERNELS" in done.stderr:
            assert kernels != "portable"
            continue
        assert (done.returncode, done.stderr) == (0, "")
        names.add(kernels)
        counts = re.fullmatch(r"(\w+): (\d+) answered, (\d+) refused, (\d+) .*\n", done.stdout)
        assert counts[1] == kernels
        assert all(int(counts[group]) > rounds // 4 for group in (2, 3, 4))
    assert "portable" in names
    failures = harness.run(programs / "native_failures", version)
    assert failures.stderr == ""
    loads, alone, together = (int(number) for number in re.findall(r"\d+", failures.stdout))
    assert loads > 50
    assert alone > 50
    assert together > 1


@needs("aarch64 compiler and emulator")
def test_aarch64_answers_and_refuses_the_same(unchecked, tmp_path):
    def numbers(programs, *emulator):
        damaged = programs / "damaged"
        damaged.mkdir()
        words = (*emulator, programs / "native_damage", unchecked, damaged, 100)
        printed = harness.run(*words, RECSYS_CPU_KERNELS="portable").stdout
        return [float(number) for number in re.findall(r"-?[\d.]+", printed)]

    here = numbers(build(tmp_path / "here"))
    there = build(tmp_path / "there", "-static", compiler=AARCH64_COMPILER)
    assert here[0] > 100
    assert numbers(there, AARCH64_EMULATOR) == pytest.approx(here, rel=1e-5)
