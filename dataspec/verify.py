# SPDX-License-Identifier: Apache-2.0
"""Checks a dataset before training: files, spec, rows of every split.

    python -m dataspec.verify DIR [--quick]

Exit status: 0 no problems, 1 problems (all of them are listed), 2 wrong usage.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from recsys import program
from recsys.data.verify.run import verify
from recsys.errors import FAILED, UserError
from recsys.flags import values_from_flags
from recsys.settings import require_not_negative, section_from_dict, setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VerifyOptions:
    """Settings of this program."""

    quick: bool = setting(
        False, "Compare sizes instead of checksums, and read a sample of the rows"
    )
    num_numerical: int = setting(
        13, "Numerical features of a dataset that only model_size.json describes"
    )

    def __post_init__(self) -> None:
        """Refuses a negative number of features."""
        require_not_negative(self, "num_numerical")


SECTIONS: dict[type, str] = {VerifyOptions: "check"}
"""Sections of the flags, and their headings."""


def run(flag_values: flags.FlagValues, folders: Sequence[str]) -> int:
    """Prints the report on a dataset; returns 1 if it has problems."""
    values, _ = values_from_flags(flag_values, SECTIONS)
    options = section_from_dict(VerifyOptions, values)
    if len(folders) != 1:
        raise UserError("give one folder: recsys-recipes verify DIR")
    folder = Path(folders[0])
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder")
    findings, report = verify(folder, quick=options.quick, num_numerical=options.num_numerical)
    program.print_with_flags(report)
    return FAILED if findings.problems else 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    folders: list[str] = []
    return program.run_command(
        lambda values: run(values, folders),
        program.new_flags(SECTIONS),
        argv,
        __doc__,
        arguments=folders,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
