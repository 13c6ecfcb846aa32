# SPDX-License-Identifier: Apache-2.0
"""The planted changes still fit the code that they change."""

import py_compile

import pytest

from benchmark import self_check
from tests import harness


@pytest.mark.parametrize("planted", self_check.PLANTED)
def test_a_planted_change_is_in_the_copy_alone_and_runs(tmp_path, planted):
    copy = self_check.copy_code(tmp_path / "copy", planted)
    name, _, after = self_check.PLANTED[planted]
    assert after in (copy / name).read_text()
    assert after not in (harness.REPOSITORY / name).read_text()
    py_compile.compile(str(copy / name), doraise=True)


@pytest.mark.release
def test_a_lower_auc_is_worse_and_equal_code_is_not(tmp_path):
    plain = self_check.copy_code(tmp_path / "plain")
    changed = self_check.copy_code(tmp_path / "changed", self_check.LESS_ACCURATE)
    comparison = self_check.compared("dlrm_small", changed, plain, tmp_path / "runs", (1, 1), 1)[
        "auc"
    ]
    assert (comparison.verdict, comparison.relative) == ("worse", ("-0.002", "0.001"))
    same = self_check.compared("dlrm_small", plain, plain, tmp_path / "runs", (1, 1), 1)["auc"]
    assert self_check.in_words(same) == "balanced (+0, noise 0.001)"
