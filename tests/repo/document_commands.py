# SPDX-License-Identifier: Apache-2.0
"""The documents and the commands in them."""

import re
import shlex

from tests.harness import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OF_SHELL = {"|", "||", ">", "2>&1", "&"}
"""Words after which a command's own arguments end."""


def commands_of(text):
    """Returns the lines of the shell fences, continuations joined, comments left out."""
    commands = []
    for language, body in FENCE.findall(text):
        if language in ("bash", "sh"):
            lines = body.replace("\\\n", " ").splitlines()
            commands += [" ".join(shlex.split(line, comments=True)) for line in lines]
    return [command for command in commands if command]
