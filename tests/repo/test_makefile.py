# SPDX-License-Identifier: Apache-2.0
"""How the Makefile runs groups of tests, and what it says of them."""

from tests import harness

GROUPS = r"""
include {repository}/Makefile
.PHONY: all-groups good-groups good skipped bad broken waiting dry
all-groups:
	$(call together,waiting skipped bad broken good dry)
good-groups:
	$(call together,good skipped)
good:
	@printf 'a\\b\n  1 passed\nlast'
	@touch done
waiting:
	@while [ ! -e done ]; do sleep 0.01; done
skipped:
	@echo "not run: there is no device"
bad:
	@printf 'FAILED tests/x.py::test_y - assert 1 == 2\n1 failed\n'; exit 3
dry:
	@while [ ! -e build/test-logs/bad.failed ]; do sleep 0.01; done
	@env -u MAKEFLAGS -u MAKELEVEL make --dry-run all-groups >/dev/null
broken:
	@echo "x.py: error: no such name"; exit 4
"""


def groups(folder, target, status):
    (folder / "Makefile").write_text(GROUPS.replace("{repository}", str(harness.REPOSITORY)))
    done = harness.run("make", target, folder=folder, status=status, MAKEFLAGS=None, MAKELEVEL=None)
    lines = done.stdout.splitlines()
    verdicts = [line.split(" after ")[0] for line in lines if " after " in line or ": not" in line]
    return lines, verdicts, done.stderr


def test_a_group_that_is_not_run_is_not_called_passed(tmp_path):
    lines, verdicts, _ = groups(tmp_path, "good-groups", 0)
    assert sorted(verdicts) == [
        *("good: passed", "skipped: not run", "skipped: not run: there is no device")
    ]
    of_good = [line for line in lines if line.startswith("good")]
    assert of_good[:3] == ["good: a\\b", "good:   1 passed", "good: last"]


def test_a_group_that_fails_fails_the_whole_after_the_others(tmp_path):
    """Also where a test runs `make --dry-run` in the meantime, as those of documents do."""
    _, verdicts, errors = groups(tmp_path, "all-groups", 2)  # ends: the groups run together
    skipped = ["skipped: not run", "skipped: not run: there is no device"]
    assert sorted(verdicts) == ["dry: passed", "good: passed", *skipped, "waiting: passed"]
    assert errors.splitlines()[-1].startswith("make: ")
    named, _, verdict = errors.partition("failed: ")
    assert verdict.startswith("bad broken\n")
    assert "FAILED tests/x.py::test_y - assert 1 == 2\nx.py: error: no such name\n" in named
