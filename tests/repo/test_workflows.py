# SPDX-License-Identifier: Apache-2.0
"""Scheduled workflows start commands that exist, with flags that they have."""

import re
import shlex

import pytest
import yaml

from tests.harness import REPOSITORY
from tests.repo.document_commands import check_program

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))

RUNNER = {"cp", "docker", "gh", "mkdir"}
"""Programs of the machine that runs a workflow."""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_modules_scripts_targets_and_flags_of_a_workflow_exist(workflow):
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", command).partition(" || ")[0])
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] in RUNNER:
            continue
        elif "-m" in words:
            start = words.index("-m") + 1
            check_program(words[start], words[start + 1 :])
        else:
            assert (REPOSITORY / words[0]).is_file(), command
