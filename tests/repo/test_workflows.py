# SPDX-License-Identifier: Apache-2.0
"""Scheduled workflows start commands that exist, with flags that they have."""

import re
import shlex

import pytest
import yaml

from tests import harness
from tests.harness import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))

RUNNER = {"cp", "docker", "gh", "mkdir"}
"""Programs of the machine that runs a workflow."""


def steps(workflow):
    content = yaml.safe_load(workflow.read_text())
    return [step for job in content["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_modules_scripts_targets_and_flags_of_a_workflow_exist(workflow):
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert commands
    known: dict[str, str] = {}
    for command in commands:
        words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", command).partition(" || ")[0])
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] in RUNNER:
            continue
        elif "-m" in words:
            module = words[words.index("-m") + 1]
            if module not in known:
                known[module] = harness.forked("-m", module, "--help").stdout
            for word in words:
                assert not word.startswith("--") or word in known[module], command
        else:
            assert (REPOSITORY / words[0]).is_file(), command


def test_the_schedule_measures_on_a_cpu_and_in_a_container_on_a_gpu():
    content = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "benchmark.yml").read_text())
    assert content[True]["schedule"]  # YAML 1.1 reads `on` as true
    assert {"cpu", "gpu"} <= content["jobs"].keys()
    assert "--ipc=host" in content["jobs"]["gpu"]["container"]["options"]
