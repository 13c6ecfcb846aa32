# SPDX-License-Identifier: Apache-2.0
"""Starts the programs of this package: flags, arguments, exit status."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from absl import flags

from recsys import program
from recsys.flags import values_from_flags
from recsys.settings import section_from_dict

T = TypeVar("T")


def start(
    sections: Mapping[type[T], str],
    run: Callable[[T, list[str]], int],
    argv: Sequence[str],
    description: str | None,
    *,
    takes_arguments: bool = True,
) -> int:
    """Parses a command line and runs; returns the exit status.

    Args:
        sections: the only section of flags, and its heading.
        run: takes the settings and the arguments that are not flags; returns the exit status.
        argv: the program and its arguments.
        description: text above the flags in --help.
        takes_arguments: accept arguments that are not flags.
    """
    (section,) = sections
    arguments: list[str] = []

    def call(flag_values: flags.FlagValues) -> int:
        values, _ = values_from_flags(flag_values, sections)
        return run(section_from_dict(section, values), arguments)

    flag_values = program.new_flags(sections)
    taken = arguments if takes_arguments else None
    return program.run_command(call, flag_values, argv, description, arguments=taken)
