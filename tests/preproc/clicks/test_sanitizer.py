# SPDX-License-Identifier: Apache-2.0
"""The kernel under sanitizers, for each kind of processor."""

import shutil
from pathlib import Path

import pytest

from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.serving.feature_file import write_feature_file
from tests import harness
from tests.preproc.clicks import schema_log
from tests.preproc.clicks.rows import run, write_days
from tests.tools import AARCH64_COMPILER, AARCH64_EMULATOR, needs

FOLDER = Path(__file__).parent
VARIANTS = ((), ("-DCLICKS_WITHOUT_AVX512",), ("-DCLICKS_PORTABLE",))
"""What this processor has, at most AVX2, and no special instructions."""

COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """A folder with the features of a small dataset, and the arguments of the driver in it."""
    folder = tmp_path_factory.mktemp("driven")
    rules = ClicksSemantics(frequency_limit=1, bin_numerical=True)
    write_days(folder / "logs")
    run(folder / "logs", folder / "dataset", "reference", semantics=rules)
    write_feature_file(folder / "dataset", folder / "features.bin", "float16")
    days = [FOLDER.parent / "conformance" / f"day_{day}.tsv" for day in range(3)]
    # A log with lists, whose label stands first.
    names, log = schema_log.NAMES, folder / "lists.tsv"
    table = schema_log.rows(300, seed=5)
    log.write_bytes(
        schema_log.text_of(table, names, is_quoted=lambda _: False).replace(b";", b"\t")
    )
    schema = schema_log.write_schema(folder, dialect={"delimiter": "\t", "quote": "none"})
    schema_log.prepare(log, schema, folder / "data", engine="reference")
    write_feature_file(folder / "data", folder / "lists.bin", "float32")
    log.write_bytes(log.read_bytes().partition(b"\n")[2])
    objects = folder / "log.json"
    objects.write_text(f'{{"x": [1, {{"{chr(233)}": "\\ud83d\\ude00"}}], "": "1\\n"}}\n' * 900)
    return folder, (("15", "features.bin", *days), ("15", "lists.bin", log, objects))


def build(folder, *options, compiler=COMPILER):
    """Compiles the kernel and its driver; returns the program."""
    program = folder / "kernel_driver"
    flags = ("-std=c++17", "-O0", "-g1", *options, "-o", program)
    harness.run(compiler, *flags, FOLDER / "kernel_driver.cpp")
    return program


@pytest.mark.release
@needs("C++ compiler")
def test_no_error_on_edge_cases_and_random_damage(driven, tmp_path):
    folder, calls = driven
    outputs = []
    for variant in VARIANTS:
        sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
        program = build(tmp_path, *sanitizers, *variant)
        done = [harness.run(program, *arguments, folder=folder) for arguments in calls]
        assert {each.stderr for each in done} == {""}
        outputs.append([each.stdout for each in done])
    assert outputs[0] == outputs[1] == outputs[2]
    assert [len(output.splitlines()) for output in outputs[0]] == [48, 32]
    assert not all(line.endswith(" 0") for line in outputs[0][1].splitlines())


@pytest.mark.release
@needs("aarch64 compiler and emulator")
@needs("C++ compiler")
def test_aarch64_makes_the_same_bytes(driven, tmp_path):
    folder, (arguments, _) = driven
    here = harness.run(build(tmp_path), *arguments, folder=folder)
    there = build(tmp_path, "-static", compiler=AARCH64_COMPILER)
    done = harness.run(AARCH64_EMULATOR, there, *arguments, folder=folder)
    assert (done.stdout, done.stderr) == (here.stdout, "")
