# SPDX-License-Identifier: Apache-2.0
"""Outputs in documents are those of the commands above them, but for the numbers."""

import itertools
import re

import pytest

from tests import harness
from tests.repo.document_commands import FENCE, commands_of

DOCS = harness.REPOSITORY / "docs"


def example(document):
    """Returns the first shell commands of a document that an output follows, and that output."""
    text = (DOCS / document).read_text()
    return next(
        (commands_of(commands[0]), output[2])
        for commands, output in itertools.pairwise(FENCE.finditer(text))
        if output[1] == "text" and text[commands.end() : output.start()].isspace()
    )


def without_numbers(text):
    return re.sub(r"\d[\d.,:]*", "#", text)


def test_the_plan_is_that_of_the_command():
    (command,), output = example("several_devices.md")
    assert harness.forked(*command.split()[1:]).stdout == output


@pytest.mark.release
def test_the_training_is_that_of_the_commands(real_data, tmp_path):
    commands, output = example("dlrm.md")
    places = {"/data/kaggle": real_data / "criteo_kaggle", "/data/dlrm": tmp_path}
    for command in commands:
        for documented, here in places.items():
            command = command.replace(documented, str(here))
        environment = {"PYTHONPATH": str(harness.REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
        done = harness.forked(*command.split()[1:], folder=tmp_path, **environment)
    assert without_numbers(done.stdout) == without_numbers(output)
