# SPDX-License-Identifier: Apache-2.0
"""The documents and the commands in them."""

import functools
import re
import shlex

from tests.harness import REPOSITORY, forked

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


@functools.cache
def flags_in_help(module):
    """Returns the flags that a program's help lists, switches in both spellings."""
    text = forked("-m", module, "--help").stdout
    switches = re.findall(r"--\[no\](\w+)", text)
    return {*re.findall(r"--(\w+)", text), *switches, *(f"no{switch}" for switch in switches)}


def check_flags(module, words):
    """Checks that a program's help lists the flags among its words."""
    given = {w.partition("=")[0].removeprefix("--") for w in words if w.startswith("--")}
    assert given <= flags_in_help(module), module
