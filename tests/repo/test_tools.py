# SPDX-License-Identifier: Apache-2.0
"""The suite passes on a machine that lacks every optional tool."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import harness, tools

OTHER_WAYS = re.compile(r"pytest\.skip\(|importorskip|mark\.skip|skipif")


def test_a_test_skips_for_lack_of_a_tool_alone():
    files = set(harness.repository_files("tests/*.py")) - {Path(tools.__file__), Path(__file__)}
    assert [str(file) for file in files if OTHER_WAYS.search(file.read_text())] == []


@pytest.mark.release
def test_without_any_tool_the_tests_are_collected_and_skip(tmp_path):
    """Nothing but git is on the path, and nothing compiled counts as built."""
    (tmp_path / "git").symlink_to(shutil.which("git"))
    hidden = {"PATH": str(tmp_path), tools.HIDDEN: "1"}
    done = harness.run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "needs", "tests"),
        **hidden,
    )
    assert re.search(r"^\d{3,} skipped", done.stdout.splitlines()[-1]), done.stdout
