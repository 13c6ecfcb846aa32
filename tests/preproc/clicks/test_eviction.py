# SPDX-License-Identifier: Apache-2.0
"""Ids of categories that no longer occur, which new categories get."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from preproc.clicks.applied import dictionaries_of_dataset
from preproc.clicks.job import semantics_of_schema
from preproc.clicks.rules import order_keys
from recsys.data.growing.categories import reused_ids
from tests.harness import refusal
from tests.preproc.clicks.passing_days import ALL_FOR_TRAINING, LIMIT, rules, write_day
from tests.preproc.clicks.rows import SEMANTICS, TEXTS, assert_same, extend, good_text
from tests.preproc.clicks.schema_log import columns_of, columns_without, rows, text_of, write_schema
from tests.preproc.clicks.test_growth import KERNEL, SMALL, contents
from tests.preproc.programs import called
from tests.tools import needs


def add(folder: Path, log: Path, *args: object, **options: object) -> Path:
    """Adds a day; returns its folder."""
    extend(folder, log, *args, **options)
    return max(folder.iterdir())


class Column:
    """The stated rule, done naively for a column."""

    def __init__(self, after: int, below: int | None) -> None:
        self.after, self.below = after, below
        self.ids: list[int] = []  # category of each id from 1
        self.last: dict[int, int] = {}
        self.count = Counter[int]()
        self.rare = Counter[int]()

    def add_day(self, day: int, values: list[int | None]) -> list[int]:
        """Returns the ids of a day's rows."""
        known = set(self.ids)
        self.rare.update(value for value in values if value is not None and value not in known)
        new = order_keys(self.rare, LIMIT)
        for category in new:
            del self.rare[category]
        idle = [
            (self.last[c], self.count[c], place)
            for place, c in enumerate(self.ids)
            if day - self.last[c] > self.after
            and (self.below is None or self.count[c] < self.below)
        ]
        places = sorted(place for _, _, place in sorted(idle)[: len(new)])
        for place, category in zip(places, new, strict=False):
            del self.last[self.ids[place]], self.count[self.ids[place]]
            self.ids[place] = category
        self.ids += new[len(places) :]
        number = {category: i for i, category in enumerate(self.ids, start=1)}
        made = [0 if value is None else number.get(value, 0) for value in values]
        for category in new:
            self.last[category] = day
        for value in values:
            if value in number:
                self.last[value] = day
                self.count[value] += 1
        return made


@pytest.mark.parametrize(("after", "below"), [(1, None), (2, 4)])
def test_eviction_is_the_stated_rule(tmp_path, after, below):
    columns = [Column(after, below) for _ in range(26)]
    num_reused = 0
    for number in range(7):
        log = write_day(tmp_path / "logs", number)
        day = add(tmp_path / "made", log, rules(after, below), engine="reference")
        fields = [line.split(b"\t")[14:] for line in log.read_bytes().splitlines()]
        _, reader = columns_of(day, "train")
        made = np.stack(reader.read(0, reader.num_rows).categorical, 1)
        for column, expected in enumerate(columns):
            values = [int(row[column], 16) if row[column] else None for row in fields]
            before = list(expected.ids)
            assert made[:, column].tolist() == expected.add_day(number, values)
            assert list(dictionaries_of_dataset(day).load_column(column)) == expected.ids
            pairs = zip(before, expected.ids[: len(before)], strict=True)
            changed = [i for i, (was, now) in enumerate(pairs, start=1) if was != now]
            assert reused_ids(day, column).tolist() == changed
            num_reused += len(changed)
    assert num_reused > 20


@KERNEL
@settings(max_examples=8, phases=[Phase.generate])
@given(
    days=st.lists(TEXTS, min_size=3, max_size=4),
    rule=SEMANTICS,
    after=st.integers(1, 2),
    below=st.sampled_from([None, 3]),
    seed=st.sampled_from([None, 7]),
)
def test_native_equals_reference(tmp_path_factory, days, rule, after, below, seed):
    folder = tmp_path_factory.mktemp("random")
    first = dataclasses.replace(
        *(rule,),
        evict_after=after,
        evict_below=below,
        shuffle_seed=seed,
        unlabelled=False,
        split_rows=ALL_FOR_TRAINING,
    )
    for number, text in enumerate(days):
        log = folder / f"log_{number}"
        log.write_bytes(good_text(20, seed=number, vocabulary=9) + text)
        native = dataclasses.replace(SMALL, unit_bytes=900)
        made = extend(folder / "native", log, first, settings=native)
        assert_same(made, extend(folder / "reference", log, first, engine="reference"))


@KERNEL
def test_every_kind_of_column_is_evicted(tmp_path):
    """Texts, integers, lists and shared ids; both engines, and ids that differ in no other way."""
    changed = {"C{1..2}": {"vocabulary": "c"}}
    columns = [
        {n: v for n, v in column.items() if n != "max_ids"} | changed.get(str(column["name"]), {})
        for column in columns_without()
    ]
    schema = write_schema(tmp_path, columns=columns)
    first = semantics_of_schema(schema, {"split_rows": ALL_FOR_TRAINING, "evict_after": 1})
    num_reused = 0
    for number in range(5):
        log = tmp_path / f"log_{number}.csv"
        log.write_bytes(text_of(rows(120, seed=number)))
        made = [
            extend(tmp_path / engine, log, first, schema=schema, engine=engine)
            for engine in ("native", "reference")
        ]
        assert_same(*made)
        day = max((tmp_path / "native").iterdir())
        tables = len(first.schema.with_dictionaries)
        num_reused += sum(len(reused_ids(day, table)) for table in range(tables))
        shared = [table for table in range(tables) if len(first.vocabularies[table]) > 1]
        assert len({tuple(reused_ids(day, table)) for table in shared}) == 1
    assert num_reused > 20


@needs("NVTabular")
@pytest.mark.merlin
def test_nvtabular_gives_the_same_bytes(tmp_path):
    for number in range(4):
        log = write_day(tmp_path / "logs", number)
        first = rules(1)
        made = extend(tmp_path / "nvtabular", log, first, engine="nvtabular")
        assert_same(made, extend(tmp_path / "reference", log, first, engine="reference"))


@KERNEL
def test_datasets_without_eviction_have_no_further_files(tmp_path):
    day = add(tmp_path / "days", write_day(tmp_path / "logs", 0), rules(1))
    names = {path.name for path in (day / "dictionaries").iterdir()}
    assert {"seen_0.bin", "rare_0.bin"} < names
    without = dataclasses.replace(rules(1), evict_after=None)
    day = add(tmp_path / "without", tmp_path / "logs" / "log_0", without)
    assert not any(path.name.startswith(("seen", "reused")) for path in day.rglob("*"))
    assert "evict_after" not in (day / "manifest.json").read_text()


@KERNEL
def test_a_damaged_file_of_occurrences_is_named(tmp_path):
    day = add(tmp_path / "days", write_day(tmp_path / "logs", 0), rules(1))
    file = day / "dictionaries" / "seen_3.bin"
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))
    before = contents(tmp_path / "days")
    with refusal(file):
        extend(tmp_path / "days", write_day(tmp_path / "logs", 1), rules(1))
    assert contents(tmp_path / "days") == before


@KERNEL
def test_settings_that_contradict_are_refused(tmp_path):
    log = write_day(tmp_path / "logs", 0)
    run = ("clicks", f"--input={log}", "--preset=dlrm")
    for flags, named in (
        ((f"--output={tmp_path / 'out'}", "--evict_after=3"), "--extend"),
        ((f"--extend={tmp_path / 'days'}", "--evict_below=3"), "--evict_after"),
        ((f"--extend={tmp_path / 'days'}", "--evict_after=0"), "--evict_after"),
    ):
        assert named in called(*run, *flags, status=2)
    limited = write_schema(tmp_path)
    with refusal("max_ids"):
        semantics_of_schema(limited, {"split_rows": ALL_FOR_TRAINING, "evict_after": 1})
