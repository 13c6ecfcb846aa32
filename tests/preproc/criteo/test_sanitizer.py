# SPDX-License-Identifier: Apache-2.0
"""The kernel under AddressSanitizer and UndefinedBehaviorSanitizer, for each kind of processor."""

import shutil
from pathlib import Path

import pytest

from preproc.criteo.rules import CriteoSemantics
from preproc.criteo.serving.feature_file import write_feature_file
from tests import harness
from tests.preproc.criteo.rows import run, write_days

FOLDER = Path(__file__).parent
VARIANTS = ((), ("-DCRITEO_WITHOUT_AVX512",), ("-DCRITEO_PORTABLE",))
"""What this processor has, at most AVX2, and no special instructions."""

COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_no_error_on_edge_cases_and_random_damage(tmp_path):
    rules = CriteoSemantics(frequency_limit=1, bin_numerical=True)
    write_days(tmp_path / "logs")
    run(tmp_path / "logs", tmp_path / "dataset", "reference", semantics=rules)
    write_feature_file(tmp_path / "dataset", tmp_path / "features.bin", "float16")
    days = [str(FOLDER.parent / "conformance" / f"day_{day}.tsv") for day in range(3)]
    outputs = []
    for number, variant in enumerate(VARIANTS):
        program = tmp_path / f"kernel_driver{number}"
        sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        options = ["-std=c++17", "-O0", "-g1", *sanitizers, *variant, "-o", str(program)]
        harness.run(COMPILER, *options, FOLDER / "kernel_driver.cpp")
        done = harness.run(program, "15", "features.bin", *days, folder=tmp_path)
        assert done.stderr == ""
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(outputs[0].splitlines()) == 48
