# SPDX-License-Identifier: Apache-2.0
"""Datasets that grow by a day: ids that never move, counts that continue, days that are refused."""

import dataclasses
import itertools
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from preproc.clicks import finish
from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.job import semantics_of, semantics_of_schema
from preproc.clicks.rules import order_keys
from recsys.data.manifest import Manifest
from tests.documents import change_document
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import (
    SEMANTICS,
    TEXTS,
    assert_same,
    extend,
    good_text,
    run,
    stopped,
)
from tests.preproc.clicks.schema_log import (
    columns_of,
    columns_without,
    rows,
    text_of,
    with_quantiles,
    write_schema,
)
from tests.preproc.programs import called
from tests.tools import needs

KERNEL = needs("compiled Criteo kernel")
ALL_FOR_TRAINING = (-1, 0, 0)
SMALL = NativeSettings(unit_bytes=3000, table_bytes=1, merge_bytes=2**21)
"""Many units and runs of a short log."""


def write_texts(folder: Path, days: int, count: int = 150) -> list[Path]:
    """Writes days of a Criteo log, whose categories come again and are partly new."""
    folder.mkdir(parents=True, exist_ok=True)
    for day in range(days):
        (folder / f"log_{day}").write_bytes(good_text(count, seed=day, vocabulary=60 * (day + 1)))
    return sorted(folder.glob("log_*"))


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def categories(dataset: Path, column: int) -> list[object]:
    """Returns the categories of a column, in id order from 1."""
    return list(dictionaries_of_dataset(dataset).load_column(column))


@KERNEL
@settings(max_examples=8, phases=[Phase.generate])
@given(
    days=st.lists(TEXTS, min_size=2, max_size=3),
    rules=SEMANTICS,
    fractions=st.sampled_from([None, (0.8, 0.1, 0.1)]),
    scope=st.sampled_from(["all", "train"]),
    seed=st.sampled_from([None, 7]),
    unit_bytes=st.sampled_from([900, 10**6]),
)
def test_native_equals_reference(tmp_path_factory, days, rules, fractions, scope, seed, unit_bytes):
    folder = tmp_path_factory.mktemp("random")
    split = {"split_fractions": fractions} if fractions else {"split_rows": ALL_FOR_TRAINING}
    first = dataclasses.replace(
        rules, dictionary_days=scope, shuffle_seed=seed, unlabelled=False, **split
    )
    native = dataclasses.replace(SMALL, unit_bytes=unit_bytes)
    for number, text in enumerate(days):
        log = folder / f"log_{number}"
        log.write_bytes(good_text(20, seed=number, vocabulary=9) + text)
        made = extend(folder / "native", log, first, settings=native)
        assert_same(made, extend(folder / "reference", log, first, engine="reference"))


def test_admission_is_the_stated_rule(tmp_path):
    """A category gets the next id on the first day on which its count so far reaches the limit."""
    limit = 5
    first = semantics_of("dlrm", {"frequency_limit": limit, "split_rows": ALL_FOR_TRAINING})
    counts, ids = [Counter[int]() for _ in range(26)], [list[int]() for _ in range(26)]
    for log in write_texts(tmp_path / "logs", days=4):
        extend(tmp_path / "made", log, first, engine="reference")
        day = sorted((tmp_path / "made").iterdir())[-1]
        fields = [line.split(b"\t")[14:] for line in log.read_bytes().splitlines()]
        _, reader = columns_of(day, "train")
        made = np.stack(reader.read(0, reader.num_rows).categorical, 1)
        for column in range(26):
            values = [int(row[column], 16) if row[column] else None for row in fields]
            counts[column].update(value for value in values if value is not None)
            before = set(ids[column])
            new = {k: n for k, n in counts[column].items() if k not in before}
            ids[column] += order_keys(new, limit)
            assert categories(day, column) == ids[column]
            number = {None: 0} | {key: i for i, key in enumerate(ids[column], start=1)}
            assert made[:, column].tolist() == [number.get(value, 0) for value in values]


@KERNEL
def test_without_a_limit_every_day_has_its_final_ids(tmp_path):
    first = semantics_of("dlrm", {"frequency_limit": 1, "split_rows": ALL_FOR_TRAINING})
    logs = write_texts(tmp_path / "logs", days=3)
    for log in logs:
        extend(tmp_path / "made", log, first)
    days = sorted((tmp_path / "made").iterdir())
    split = {"split_rows": ALL_FOR_TRAINING}
    for log, day in zip(logs, days, strict=True):
        output = tmp_path / f"{day.name}_by_final_ids"
        semantics = semantics_of_dataset(days[-1], split)
        run(log, output, semantics=semantics, dictionaries=days[-1])
        (_, made), (_, expected) = columns_of(day, "train"), columns_of(output, "train")
        of_day, of_all = (reader.read(0, reader.num_rows) for reader in (made, expected))
        assert np.array_equal(np.stack(of_day.categorical), np.stack(of_all.categorical))


def bins_of(manifest: Manifest) -> list[object]:
    """Returns the edges of each column's bins."""
    return [column["bins"] for column in manifest.semantics["schema"]["columns"]]


@KERNEL
def test_edges_are_found_anew_with_refit(tmp_path):
    """They are those of the day's rows alone; a bin keeps its id, and later days keep the edges."""
    schema = write_schema(tmp_path, columns=with_quantiles(columns_without(), 4))
    first = semantics_of_schema(schema, {"split_rows": ALL_FOR_TRAINING})
    logs = []
    for number in range(3):
        logs.append(tmp_path / f"log_{number}.csv")
        logs[-1].write_bytes(text_of(rows(150, seed=number)))
    for engine in ("native", "reference"):
        flags = ("--extend", tmp_path / engine, f"--engine={engine}")
        called("clicks", *flags, "--input", logs[0], "--schema", schema)
        called("clicks", *flags, "--input", logs[1], "--refit")
        called("clicks", *flags, "--input", logs[2])
    days = [Manifest.load(path) for path in sorted((tmp_path / "native").iterdir())]
    for number, day in enumerate(days):
        assert_same(day, Manifest.load(tmp_path / "reference" / f"day_{number:04d}"))
    alone = run(logs[1], tmp_path / "alone", semantics=first, schema=schema)
    assert bins_of(days[1]) == bins_of(days[2]) == bins_of(alone) != bins_of(days[0])
    for column in range(len(days[0].cardinalities)):
        of_days = [categories(tmp_path / "native" / f"day_{n:04d}", column) for n in range(3)]
        for old, new in itertools.pairwise(of_days):
            assert new[: len(old)] == old


@KERNEL
def test_refit_without_anything_to_find_is_refused(tmp_path):
    log, *_ = write_texts(tmp_path / "logs", days=1)
    flags = ("clicks", "--extend", tmp_path / "days", "--input", log)
    assert_tells(called(*flags, "--preset=dlrm", "--refit", status=2), "--refit")
    called(*flags, "--preset=dlrm")
    log.write_bytes(log.read_bytes()[:-1])
    assert_tells(called(*flags, "--refit", status=2), "--refit", tmp_path / "days")
    assert len(list((tmp_path / "days").iterdir())) == 1


@KERNEL
@pytest.mark.parametrize("changes", [{}, {"split": {"fractions": [0.8, 0.1, 0.1]}}])
def test_every_kind_of_column_grows(tmp_path, changes):
    """Texts, integers, lists, buckets, limits of ids, times, and bins that keep their edges."""
    columns = with_quantiles(columns_without(), 4)
    changed = {
        "C{1..2}": {"vocabulary": "c"},
        "user": {"frequency_limit": 1, "max_ids": 50},  # reached on the second day
    }
    columns = [column | changed.get(str(column["name"]), {}) for column in columns]
    schema = write_schema(tmp_path, columns=columns, **changes)
    split = "split_fractions" if changes else "split_rows"
    overrides = {split: (0.8, 0.1, 0.1) if changes else ALL_FOR_TRAINING}
    first = semantics_of_schema(schema, overrides)
    edges, sizes, before = [], [], None
    for number in range(3):
        log = tmp_path / f"log_{number}.csv"
        log.write_bytes(text_of(rows(200, seed=number)))
        made = extend(tmp_path / "native", log, first, settings=SMALL, schema=schema)
        expected = extend(tmp_path / "reference", log, first, engine="reference", schema=schema)
        assert_same(made, expected)
        edges.append([column["bins"] for column in made.semantics["schema"]["columns"]])
        sizes.append(made.cardinalities)
        day = tmp_path / "native" / f"day_{number:04d}"
        now = [categories(day, column) for column in range(len(made.cardinalities))]
        for old, new in zip(before or [], now, strict=False):
            assert new[: len(old)] == old
        before = now
    assert edges[0] == edges[1] == edges[2]
    user = [column.name for column in first.schema.with_dictionaries].index("user")
    assert sizes[0][user] < sizes[1][user] == sizes[2][user] == 51


@KERNEL
def test_the_command_adds_a_day(tmp_path):
    first, second = write_texts(tmp_path / "logs", days=2)
    folder = tmp_path / "made"
    called("clicks", "--extend", folder, "--input", first, "--frequency_limit=2")
    called("clicks", "--extend", folder, "--input", second)
    days = [Manifest.load(folder / name) for name in ("day_0000", "day_0001")]
    assert [manifest.rows["train"] for manifest in days] == [150, 150]
    assert days[1].semantics == days[0].semantics
    assert days[1].history == [
        {
            "name": "day_0000",
            "fingerprint": days[0].fingerprint,
            "sources": [days[0].source_files[0]["xxh3_128"]],
        }
    ]
    assert {path.name for path in folder.iterdir()} == {"day_0000", "day_0001"}


@KERNEL
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_an_interrupted_day_continues(tmp_path, engine):
    first = semantics_of("dlrm", {"frequency_limit": 3, "split_rows": ALL_FOR_TRAINING})
    logs = write_texts(tmp_path / "logs", days=2)
    for log in logs:
        expected = extend(tmp_path / "expected", log, first, engine=engine)
    extend(tmp_path / "made", logs[0], first, engine=engine)
    before = contents(tmp_path / "made")
    with stopped(finish, "dataset_spec"):
        extend(tmp_path / "made", logs[1], first, engine=engine)
    assert (
        contents(tmp_path / "made" / "day_0000").items()
        <= {name.partition("/")[2]: value for name, value in before.items()}.items()
    )
    assert not (tmp_path / "made" / "day_0001").exists()
    assert_same(extend(tmp_path / "made", logs[1], first, engine=engine), expected)


def refused(tmp_path: Path, *flags: object, tells: tuple[object, ...]) -> None:
    """Runs an extension that must be refused and change nothing."""
    before = contents(tmp_path)
    assert_tells(called("clicks", "--extend", tmp_path / "made", *flags, status=2), *tells)
    assert contents(tmp_path) == before


def test_days_that_are_refused(tmp_path):
    logs = write_texts(tmp_path / "logs", days=3)
    engine = "--engine=reference"
    split = ("--split_fractions=0.5,0.25,0.25", "--frequency_limit=2")
    made = tmp_path / "made"
    called("clicks", "--extend", made, "--input", logs[0], engine, *split)
    called("clicks", "--extend", made, "--input", logs[1], engine)
    again = tmp_path / "logs" / "renamed"
    shutil.copyfile(logs[0], again)
    refused(tmp_path, "--input", again, engine, tells=(again, made, "day_0000"))
    narrow = tmp_path / "logs" / "narrow"
    narrow.write_bytes(logs[2].read_bytes().replace(b"\t", b","))
    refused(tmp_path, "--input", narrow, engine, tells=(narrow,))
    short = tmp_path / "logs" / "short"
    short.write_bytes(b"".join(logs[2].read_bytes().splitlines(keepends=True)[:2]))
    refused(tmp_path, "--input", short, engine, tells=("validation",))
    refused(tmp_path, "--input", logs[2], "--frequency_limit=9", tells=("--frequency_limit",))
    refused(tmp_path, "--input", logs[2], "--preset=nvidia", tells=("--preset", made))
    for flag in ("--output", "--dictionaries"):
        refused(tmp_path, "--input", logs[2], flag, made / "day_0000", tells=(flag, "--extend"))


def test_days_that_do_not_follow_each_other(tmp_path):
    logs = write_texts(tmp_path / "logs", days=4)
    made = tmp_path / "made"
    for log in logs[:3]:
        called("clicks", "--extend", made, "--input", log, "--engine=reference")
    shutil.move(made / "day_0001", tmp_path / "aside")
    flags = ("--input", logs[3], "--engine=reference")
    refused(tmp_path, *flags, tells=(made, "day_0001"))
    shutil.move(tmp_path / "aside", made / "day_0001")
    changed = made / "day_0001" / "manifest.json"
    change_document(changed, lambda manifest: manifest | {"fingerprint": "0" * 32})
    refused(tmp_path, *flags, tells=(made / "day_0002",))
    shutil.rmtree(made / "day_0000")
    shutil.rmtree(made / "day_0001")
    called("clicks", "--extend", made, *flags)  # earlier days are not needed
    assert len(Manifest.load(made / "day_0003").history) == 3


def test_folders_that_are_not_days(tmp_path):
    log, more = write_texts(tmp_path / "logs", days=2)
    called("clicks", "--extend", tmp_path / "made", "--input", log, "--engine=reference")
    for other in (tmp_path / "made" / "day_0000", log):
        flags = ("--extend", other, "--input", more, "--engine=reference")
        assert_tells(called("clicks", *flags, status=2), other, "--extend")
    assert not (tmp_path / "made" / "day_0000" / "day_0000").exists()


def test_the_first_day_must_have_counts(tmp_path):
    log, more = write_texts(tmp_path / "logs", days=2)
    made = tmp_path / "made" / "day_0000"
    semantics = semantics_of("dlrm", {"split_rows": ALL_FOR_TRAINING})
    run(log, made, "reference", semantics=semantics)
    with refusal(made.parent, "counts", settings=("extend",)):
        extend(made.parent, more, semantics, engine="reference")
