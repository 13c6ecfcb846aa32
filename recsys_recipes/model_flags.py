# SPDX-License-Identifier: Apache-2.0
"""Which models have a flag; no torch."""

from recsys.program import new_flags
from recsys_recipes.commands import COMMANDS, Program
from recsys_recipes.models import MODELS


def models_with(flag: str, program: Program) -> list[str]:
    """Returns the models for which the command of a program has a flag.

    Args:
        flag: without its dashes, as the user typed it.
        program: which lacks it.
    """
    programs = next(c.programs for c in COMMANDS.values() if program in c.programs.values())
    found = []
    for name in programs.keys() & MODELS.keys():
        values = new_flags()
        MODELS[name].define_flags(values)
        if flag in map(programs[name].flag, values):
            found.append(name)
    return [name for name in programs if name in found]
