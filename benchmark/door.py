# SPDX-License-Identifier: Apache-2.0
"""Starts the programs of this package: flags, arguments, exit status."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from absl import flags

from recsys import program
from recsys.flags import values_from_flags
from recsys.settings import Sections, section_from_dict

T = TypeVar("T")


def start(
    section: type[T],
    run: Callable[[T, list[str]], int],
    argv: Sequence[str],
    description: str | None,
) -> int:
    """Parses a command line and runs; returns the exit status.

    `run` gets the settings, and the arguments that are no flags; --help begins with `description`.
    """
    sections: Sections = {section: "options"}
    arguments: list[str] = []

    def call(flag_values: flags.FlagValues) -> int:
        values, _ = values_from_flags(flag_values, sections)
        return run(section_from_dict(section, values), arguments)

    flag_values = program.new_flags(sections)
    return program.run_command(call, flag_values, argv, description, arguments=arguments)
