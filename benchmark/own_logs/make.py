# SPDX-License-Identifier: Apache-2.0
"""Makes the csv file of a public log from its source, the same for everyone.

    python -m benchmark.own_logs.make                     # lists the logs and their sources
    python -m benchmark.own_logs.make --log coupon --source coupon.csv --output logs/coupon.csv

The sources are not part of the project, since most of their licences do not allow it: download the
file that the list names. Where there are several, --source is the folder that holds them.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.door import start
from benchmark.own_logs.catalogue import LOGS
from benchmark.own_logs.log import OwnLog
from recsys.errors import UserError
from recsys.settings import setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MakeSettings:
    """Which log, from what."""

    log: str | None = setting(None, "Name of the log (default: list them)")
    source: Path | None = setting(None, "Local copy of its source: the file, or a folder of them")
    output: Path | None = setting(None, "The csv file to write")

    def __post_init__(self) -> None:
        """Refuses names that are not there."""
        if self.log is not None and self.log not in LOGS:
            raise UserError(f"`log` {self.log!r} must be one of {', '.join(LOGS)}", setting="log")
        if self.log is not None and (self.source is None or self.output is None):
            raise UserError(
                "`log` needs `source`, its local copy, and `output`, the csv file", setting="output"
            )


def _describe(log: OwnLog) -> str:
    """Returns what is known of a log, for a person."""
    about = [log.origin, f"licence: {log.licence}", *log.files, log.label, log.changed]
    return "\n  ".join([f"{log.name} ({log.kind}, {log.rows:,} rows)", *filter(None, about)])


def run(settings: MakeSettings, _arguments: list[str]) -> int:
    """Makes one log or lists all; returns the exit status."""
    if settings.log is None or settings.source is None or settings.output is None:
        print("\n".join(map(_describe, LOGS.values())))
        return 0
    log = LOGS[settings.log]
    log.write(settings.source, settings.output)
    print(f"{settings.output}: {log.rows:,} rows, as measured (sha256 {log.sha256})")
    return 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start({MakeSettings: "Log"}, run, argv, __doc__, takes_arguments=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
