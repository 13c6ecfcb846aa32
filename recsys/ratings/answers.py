# SPDX-License-Identifier: Apache-2.0
"""Formats recommendations: JSON lines for machines, tables for people."""

import dataclasses
import json
from collections.abc import Sequence

from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
from recsys.ratings.config import HistoriesConfig
from recsys.ratings.data.opened import OpenedHistories

_LONGEST_TITLE = 60
_SHOWN_HISTORY = 5
"""How many of the newest items of a history a table shows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Catalogue:
    """Raw ids and titles of the items 1, 2, ...

    Attributes:
        raw_ids: [I] ids as in the ratings.
        titles: [I] titles, empty for an item without one; None if the dataset has no titles.
    """

    raw_ids: list[str]
    titles: list[str] | None

    @classmethod
    def of(cls, dataset: OpenedHistories, config: HistoriesConfig) -> "Catalogue":
        """Reads the catalogue of a dataset; in a generated one the raw ids are the numbers."""
        if dataset.root is None:
            return cls([str(i + 1) for i in range(config.random_item_count)], None)
        raw_ids = read_item_map(dataset.root).raw.to_pylist()
        return cls(raw_ids, read_titles(dataset.root, len(raw_ids)))

    def titles_of(self, items: Sequence[int]) -> list[str | None] | None:
        """Returns the titles of items; None if the dataset has no titles."""
        titles = self.titles
        return None if titles is None else [titles[item - 1] or None for item in items]

    def shown(self, item: int) -> str:
        """Returns an item's title for a terminal, or its raw id."""
        title = self.titles[item - 1] if self.titles is not None else ""
        return _printable(title or self.raw_ids[item - 1])


def name_of(source: int | str) -> str:
    """Returns the key of a source: "line" for a number, "user" for an id."""
    return "line" if isinstance(source, int) else "user"


def as_json(
    source: int | str, items: Sequence[int], scores: Sequence[float], catalogue: Catalogue
) -> str:
    """Returns the recommendations for a history as JSON."""
    answer = {
        name_of(source): source,
        "items": [catalogue.raw_ids[item - 1] for item in items],
        "scores": [round(score, 6) for score in scores],
    }
    titles = catalogue.titles_of(items)
    return json.dumps(answer if titles is None else answer | {"titles": titles})


def as_table(
    source: int | str,
    history: Sequence[int],
    items: Sequence[int],
    scores: Sequence[float],
    catalogue: Catalogue,
) -> str:
    """Returns a history, and a table of its recommendations."""
    newest = [catalogue.shown(item) for item in history[-_SHOWN_HISTORY:]]
    before = len(history) - len(newest)
    more = f"{before} more, " if before else ""
    head = f"{name_of(source)} {source}, oldest first: {more}{', '.join(newest)}"
    ids = [_printable(catalogue.raw_ids[item - 1]) for item in items]
    columns = [["rank", *(str(rank) for rank in range(1, len(items) + 1))]]
    if catalogue.titles is not None:
        titles = catalogue.titles_of(items) or []
        columns.append(["title", *(_printable(title or "") for title in titles)])
    columns.append(["id", *ids])
    columns.append(["score", *(f"{score:.4f}" for score in scores)])
    widths = [max(map(len, column)) for column in columns]
    rows = (
        "  ".join(
            cell.ljust(width) if column[0] in ("title", "id") else cell.rjust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in zip(*columns, strict=True)
    )
    return "\n".join((head, *rows, ""))


def _printable(text: str) -> str:
    """Cuts a long text and replaces control characters."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _LONGEST_TITLE else f"{text[: _LONGEST_TITLE - 3]}..."
