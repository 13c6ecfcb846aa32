# SPDX-License-Identifier: Apache-2.0
"""Commands that are killed at random moments or meet faults end as an undisturbed run does."""

import pytest

from tests import harness
from tests.kills.__main__ import FAULTY, main
from tests.kills.scenarios import SCENARIOS
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

MARKS = {"prepare_spark": needs("Spark"), "train_ranks": pytest.mark.multiprocess}
CASES = [pytest.param(name, marks=MARKS.get(name, ())) for name in SCENARIOS]


def assert_nothing_is_violated(*arguments: object) -> None:
    done = harness.python("-m", "tests.kills", *arguments, status=None)
    assert done.stdout.endswith("\n0 violations\n"), done.stdout + done.stderr


@pytest.mark.release
@pytest.mark.parametrize("scenario", CASES)
def test_killed_commands_leave_what_a_whole_run_leaves(scenario):
    assert_nothing_is_violated("--kills=6", "--faults=0", scenario)


@needs("C++ compiler")
def test_a_preparation_whose_disk_fails_once_says_so_and_then_ends_well(capsys):
    assert main(["--kills=0", "--faults=1", "--seed=0", "prepare"]) == 0
    assert "a write fails: 1 told" in capsys.readouterr().out


@pytest.mark.release
@needs("C++ compiler")
@pytest.mark.parametrize("scenario", FAULTY)
def test_commands_that_meet_faults_end_well_or_say_why(scenario):
    assert_nothing_is_violated("--kills=0", "--faults=10", scenario)
