# SPDX-License-Identifier: Apache-2.0
"""Datasets that grow: each day is the same by both engines, and known ids and numbers stay."""

import itertools
from pathlib import Path
from typing import Any

from preproc.clicks.applied import dictionaries_of_dataset
from preproc.clicks.growth.days import refitted, semantics_of_day
from preproc.clicks.rules import ClicksSemantics
from preproc.files.days import next_day
from preproc.ratings.growth import rules_of_day
from recsys.data.manifest import Manifest
from recsys.data.verify.run import verify
from recsys.errors import UserError
from tests.fuzz.logs import schema_of, semantics_of_document, text_of_log
from tests.fuzz.target import Draws, Target
from tests.preproc.clicks.rows import outcome
from tests.preproc.ratings import oracle


def growing_logs(folder: Path, data: bytes) -> None:
    """Adds days to a dataset by the kernel and by the reference; some of them are refused."""
    compare_growth(folder, data, "reference")


def compare_growth(folder: Path, data: bytes, other: str) -> None:
    """Adds days to a dataset by the native engine and by another one."""
    draws = Draws(data)
    document, schema = schema_of(draws.below(2048))
    first = semantics_of_document(document)
    if first is None:
        return
    (folder / "schema.yaml").write_text(document)
    found: list[list[list[object]]] = []
    for number in range(2 + draws.below(2)):
        log = folder / f"log_{number}.csv"
        log.write_bytes(text_of_log(draws, schema))
        refit = draws.below(4) == 1
        native, expected = (
            _outcome(folder / engine, log, first, refit=refit) for engine in ("native", other)
        )
        assert native == expected, f"day {number}: {native}\n{expected}"
        if not native.startswith("refused: "):
            _, last = next_day(folder / "native")
            assert last is not None
            dictionaries, columns = dictionaries_of_dataset(last), Manifest.load(last).cardinalities
            found.append([[*dictionaries.load_column(column)] for column in range(len(columns))])
    for old, new in itertools.pairwise(found):
        for before, after in zip(old, new, strict=True):
            assert after[: len(before)] == before, "the ids of an earlier day moved"


def _outcome(root: Path, log: Path, first: ClicksSemantics, *, refit: bool) -> str:
    day, last = next_day(root)
    try:
        semantics = first if last is None else semantics_of_day(last, {})
        if refit and last is not None:
            semantics = refitted(semantics, root)
    except UserError as error:
        return f"refused: {error}".replace(str(root), "")
    schema = root.parent / "schema.yaml"
    told = outcome(log, day, root.name, extend=root, semantics=semantics, schema=schema)
    return told.replace(str(root), "")


def growing_ratings(folder: Path, data: bytes) -> None:
    """Adds days of ratings; the histories are those of all rows by plain Python."""
    draws = Draws(data)
    filters: dict[str, Any] = {
        "min_rating": draws.pick((0.0, 2.0, 5.0)),
        "min_user_count": draws.pick((3, 4)),
        "min_item_count": draws.below(4),
        "kcore": draws.pick(("iterated", "once")),
    }
    rows: list[oracle.Row] = []
    numbered: list[str] = []
    for number in range(1 + draws.below(3)):
        users, items = 1 + draws.below(6), 1 + draws.below(9)
        of_day = [
            (
                str(draws.below(users)),
                str(draws.below(items) * draws.pick((1, 1, 7))),
                draws.pick((1.0, 2.0, 3.5, 5.0)),
                draws.below(20) - 3,
            )
            for _ in range(10 + draws.below(60))
        ]
        text = "".join(f"{u}::{i}::{r:g}::{t}\n" for u, i, r, t in of_day)
        log = folder / f"day_{number}.dat"
        log.write_text(f"{text}{100 + number}::1::1::100\n")  # a file that comes again is refused
        of_day.append((str(100 + number), "1", 1.0, 100))
        root = folder / "days"
        day, last = next_day(root)
        size = 10 + draws.below(600)
        try:
            rules = filters if last is None else rules_of_day(last)
            oracle.run(log, day, extend=root, chunk_bytes=size, **rules)
        except UserError:
            assert not day.exists()
            if rows and all(row[2] < filters["min_rating"] for row in of_day):
                continue  # it would add nothing
            if not _expected(rows + of_day, filters)[0]:
                continue  # no user is left
            raise
        rows += of_day
        histories, items_in_order, fingerprint = _expected(rows, filters)
        numbered += [item for item in items_in_order if item not in numbered]
        assert oracle.decode(day) == (histories, numbered)
        assert Manifest.load(day).statistics["split_fingerprint"] == fingerprint
        assert verify(day)[0].problems == []


def _expected(
    rows: list[oracle.Row], filters: dict[str, Any]
) -> tuple[dict[str, list[str]], list[str], str]:
    return oracle.expected(
        rows,
        min_rating=filters["min_rating"],
        min_users=filters["min_user_count"],
        min_items=filters["min_item_count"],
        kcore=filters["kcore"],
    )


TARGETS = (Target(growing_logs), Target(growing_ratings))
