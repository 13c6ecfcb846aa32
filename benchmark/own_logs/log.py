# SPDX-License-Identifier: Apache-2.0
"""Describes a public log and makes its file from the source."""

import csv
import dataclasses
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from recsys.errors import UserError
from recsys.files.durable import whole_file

Kind = Literal["ids", "mixed", "numbers", "next_item"]
"""Columns of a click log: only categories, both, or only numbers; or else a log of items."""

RowsOfFields = Iterable[Sequence[str]]
"""Rows of a log in its order, the header first."""

_SCHEMAS = Path(__file__).with_name("schemas")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnLog:
    """A public log.

    Attributes:
        name: name of the csv file, without its suffix.
        kind: what its columns hold.
        origin: who published it, and where.
        files: the source, each file as `repository@commit: path`.
        licence: what its publisher states.
        label: which rows are clicks, and what their label stands for.
        rows: number of rows of the csv file, without the header.
        sha256: checksum of the csv file.
        make: takes the local copies of `files` in that order; returns the rows in time order, or
            shuffled if they have no times.
        changed: how the values differ from those that were published first.
    """

    name: str
    kind: Kind
    origin: str
    files: tuple[str, ...]
    licence: str
    rows: int
    sha256: str
    make: Callable[..., RowsOfFields]
    label: str = ""
    changed: str = ""

    @property
    def schema(self) -> Path:
        """File of the schema of a click log: columns, roles, labels and split."""
        return _SCHEMAS / self.kind / f"{self.name}.yaml"

    def sources(self, source: Path) -> list[Path]:
        """Returns the local copies of `files`.

        Args:
            source: the file, or a folder with all of them, each by the last part of its path.

        Raises:
            UserError: a file is missing.
        """
        if source.is_file() and len(self.files) == 1:
            return [source]
        paths = [source / PurePosixPath(file.split(": ", 1)[1]).name for file in self.files]
        if missing := [path.name for path in paths if not path.is_file()]:
            raise UserError(
                f"`source` {source} must be a folder with {', '.join(p.name for p in paths)}; "
                f"missing: {', '.join(missing)}",
                setting="source",
            )
        return paths

    def check(self, path: Path) -> None:
        """Refuses a file that differs from what `write` makes.

        Raises:
            UserError: the file differs.
        """
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise UserError(
                f"{path} differs from the {self.name} that was measured: its sha256 is {found}, "
                f"expected {self.sha256}; python -m benchmark.own_logs.make makes the right file"
            )

    def write(self, source: Path, output: Path) -> None:
        """Makes the file of this log.

        Args:
            source: see `sources`.
            output: the csv file to write.

        Raises:
            UserError: the source differs from the one that was measured.
        """
        paths = self.sources(source)
        digest, rows = hashlib.sha256(), -1
        with whole_file(output) as file:
            for line in _lines(self.make(*paths)):
                digest.update(line)
                rows += 1
                file.write(line)
            if digest.hexdigest() != self.sha256:
                raise UserError(
                    f"`source` {source} does not give the {self.name} that was measured: it has "
                    f"{rows} rows with sha256 {digest.hexdigest()}, expected {self.rows} rows "
                    f"with {self.sha256}; download the source from {self.files}",
                    setting="source",
                )


def _lines(rows: RowsOfFields) -> Iterator[bytes]:
    """Yields each row as a line of csv."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for row in rows:
        writer.writerow(row)
        yield line.getvalue().encode()
        line.seek(0)
        line.truncate()
