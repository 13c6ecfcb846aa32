# SPDX-License-Identifier: Apache-2.0
"""Findings of `verify`, and their report."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from recsys.data.errors import DatasetError


@dataclasses.dataclass(slots=True)
class Findings:
    """Facts, warnings and problems, in the order in which they were found.

    Attributes:
        facts: (name, text) lines at the top of the report.
        tables: lines of the statistics.
        warnings: suspicious properties that do not prevent training.
        problems: violations of the format.
    """

    facts: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    tables: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Records as a problem what a reader refuses or cannot read, and continues."""
        try:
            yield
        except (DatasetError, OSError) as error:
            self.problems.append(str(error))

    def table(self, columns: Mapping[str, tuple[Iterable[object], str]]) -> None:
        """Adds a table of name -> (values, their format), unless it has no rows."""
        texts = [[name, *(format(v, how) for v in of)] for name, (of, how) in columns.items()]
        first, *others = texts
        if len(first) > 1:
            aligned = [[text.ljust(max(map(len, first))) for text in first]]
            aligned += [[text.rjust(max(map(len, column))) for text in column] for column in others]
            self.tables += [*("  ".join(row) for row in zip(*aligned, strict=True)), ""]

    def report(self, seconds: float) -> str:
        """Returns the text of the report, with the verdict at the end."""
        width = max(len(name) for name, _ in self.facts)
        lines = [f"{name.ljust(width)}  {text}" for name, text in self.facts]
        lines += ["", *self.tables]
        lines += [f"warning: {w}" for w in self.warnings]
        lines += [f"problem: {p}" for p in self.problems]
        lines += [""] if self.warnings or self.problems else []
        counts = f"{_count(self.problems, 'problem')}, {_count(self.warnings, 'warning')}"
        verdict = "FAILED" if self.problems else "OK"
        return "\n".join([*lines, f"{verdict}: {counts} ({seconds:.1f} s)"])


def _count(items: list[str], noun: str) -> str:
    return f"{len(items) or 'no'} {noun}{'' if len(items) == 1 else 's'}"
