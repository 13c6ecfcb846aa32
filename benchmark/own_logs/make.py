# SPDX-License-Identifier: Apache-2.0
"""Makes the csv file of a public log from its source, with the same bytes for everyone.

    python -m benchmark.own_logs.make                     # lists the logs and their sources
    python -m benchmark.own_logs.make --log coupon --source coupon.csv --output logs/coupon.csv

The sources are not part of the project, since most of their licences do not allow it: download the
file that the list names. If a log has several source files, --source is the folder that holds them.
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
    """Which log to make, and from which source."""

    log: str | None = setting(None, "Name of the log to make (default: list all logs)")
    source: Path | None = setting(
        None, "Local copy of the source: the file, or a folder if there are several"
    )
    output: Path | None = setting(None, "csv file to write")

    def __post_init__(self) -> None:
        """Refuses unknown logs and missing paths."""
        if self.log is not None and self.log not in LOGS:
            raise UserError(f"`log` {self.log!r} must be one of {', '.join(LOGS)}", setting="log")
        if self.log is not None and (self.source is None or self.output is None):
            raise UserError(
                "`log` needs `source`, the local copy of the log's source, and `output`, the csv "
                "file to write",
                setting="output",
            )


def _describe(log: OwnLog) -> str:
    """Describes a log in words."""
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
