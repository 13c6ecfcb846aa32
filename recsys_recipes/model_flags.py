# SPDX-License-Identifier: Apache-2.0
"""Finds the models that have a flag, without torch."""

from recsys.program import new_flags
from recsys_recipes.commands import COMMANDS, Program
from recsys_recipes.models import MODELS


def models_with(flag: str, program: Program) -> list[str]:
    """Returns the models for which the command of a program has a flag.

    Args:
        flag: without its dashes, as the user typed it.
        program: program that lacks the flag.
    """
    programs = next(c.programs for c in COMMANDS.values() if program in c.programs.values())
    return [name for name in programs if name in MODELS and flag in _flags(name, programs[name])]


def _flags(name: str, program: Program) -> list[str]:
    """Returns the flags that a command has for a model."""
    values = new_flags()
    MODELS[name].define_flags(values)
    return [program.flag(setting) for setting in values]
