# SPDX-License-Identifier: Apache-2.0
"""Sequences on disk: what is written is read, and what breaks the contract is found."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.errors import DatasetError
from recsys.data.manifest import TITLES_FILE, Manifest
from recsys.data.sequences import files as module
from recsys.data.sequences import histories
from recsys.data.sequences.files import (
    ITEM_MAP_FILE,
    ITEM_MAP_SCHEMA,
    SEQUENCE_SCHEMA,
    USER_MAP_FILE,
    USER_MAP_SCHEMA,
    part_name,
    read_item_map,
    read_sequences,
    read_user_map,
    write_sequences,
)
from recsys.data.sequences.histories import RawIds, Sequences, order_raw_ids
from recsys.data.sequences.split import split_fingerprint
from recsys.data.sequences.titles import TITLE_SCHEMA, read_titles, write_titles
from recsys.data.verify.run import verify
from tests.harness import assert_tells, refusal
from tests.recsys.data.damage import fifo
from tests.recsys.data.datasets import assert_found, problems, sign_again, write_manifest

PAGE = (Path(__file__).resolve().parents[3] / "docs/dataset_format.md").read_text()
HISTORIES = [[1, 2, 3, 1], [2, 1, 3], [1, 4, 2, 1, 1], [3, 1, 2]]


def make(histories=HISTORIES) -> tuple[Sequences, RawIds, RawIds]:
    lengths = np.array([len(h) for h in histories], np.int64)
    items = np.array([i for h in histories for i in h], np.int32)
    counts = np.bincount(items)[1:]
    sequences = Sequences(items, np.concatenate([[0], np.cumsum(lengths)]), len(counts))
    users = RawIds(pa.array([f"u{i}" for i in range(len(lengths))]), lengths)
    return sequences, users, RawIds(pa.array([f"i{i}" for i in range(len(counts))]), counts)


def write(root: Path, histories=HISTORIES) -> Path:
    """Writes a dataset with its manifest."""
    root.mkdir(parents=True, exist_ok=True)
    sequences, users, items = make(histories)
    write_sequences(root, sequences, users, items)
    count, total = sequences.num_users, len(sequences.items)
    write_manifest(
        root,
        rows={"train": total - 2 * count, "validation": count, "test": count},
        positives={},
        kind="sequences",
        cardinalities=[sequences.num_items + 1],
        statistics={
            "users": count,
            "items": sequences.num_items,
            "interactions": total,
            "split_fingerprint": split_fingerprint(sequences, users, items),
        },
    )
    return root


def test_what_is_written_is_read(tmp_path):
    root = write(tmp_path / "d")
    read = read_sequences(root)
    assert [read[u].tolist() for u in range(read.num_users)] == HISTORIES
    assert read.num_items == 4
    assert read.items.dtype == np.int32
    assert read.offsets.dtype == np.int64
    assert read.lengths.tolist() == [4, 3, 5, 3]
    assert read.test_items.tolist() == [1, 3, 1, 2]
    assert read.validation_items.tolist() == [3, 1, 1, 1]
    assert read_user_map(root).raw.to_pylist() == ["u0", "u1", "u2", "u3"]
    assert read_item_map(root).counts.tolist() == [7, 4, 3, 1]
    with refusal("user 4", kind=IndexError):
        read[4]
    assert problems(root) == []


@given(st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=7), min_size=1, max_size=9))
def test_parts_and_groups_do_not_matter(tmp_path_factory, histories):
    histories[0] += range(1, 10)  # so that every id occurs
    root = tmp_path_factory.mktemp("d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_USERS", 4)
        patch.setattr(module, "ROW_GROUP_USERS", 2)
        write_sequences(root, *make(histories))
    names = sorted(p.name for p in (root / "sequences").iterdir())
    assert names == [part_name(i) for i in range(-(-len(histories) // 4))]
    read = read_sequences(root)
    assert [read[u].tolist() for u in range(read.num_users)] == histories


def test_one_row_group_is_read_without_a_copy(tmp_path):
    read = read_sequences(write(tmp_path / "d"))
    assert not read.items.flags.owndata
    assert not read.items.flags.writeable  # it is Arrow's memory


@pytest.mark.parametrize(
    ("histories", "facts"),
    [([[1, 2, 3], [1, 2]], ["user 1", 2, 3]), ([[1, 2, 3], [0, 1, 2]], ["user 1", 0, "[1, 3]"])],
)
def test_the_writer_refuses_what_breaks_the_contract(tmp_path, histories, facts):
    with refusal(*facts, kind=DatasetError):
        write_sequences(tmp_path, *make(histories))
    assert list(tmp_path.iterdir()) == []


def rewrite(path: Path, change) -> None:
    table = change(pq.read_table(path))
    pq.write_table(table, path)


ITEMS = SEQUENCE_SCHEMA.field("items").type


def with_histories(*histories, kind=ITEMS):
    field = pa.field("items", kind, nullable=False)
    return lambda table: table.set_column(1, field, [pa.array(histories, kind)])


def with_raw_ids(*ids):
    return lambda table: table.set_column(1, "raw_id", [list(ids)])


FIRST, *OTHERS = HISTORIES
PART = f"sequences/{part_name(0)}"
DAMAGE = {  # the file, how, and what is told of it
    "id above the catalogue": (PART, with_histories([1, 2, 5], *OTHERS), "user 0", 5, "[1, 4]"),
    "padding": (PART, with_histories(*HISTORIES[:3], [3, 0, 2]), "user 3", 0, "[1, 4]"),
    "short": (PART, with_histories(*HISTORIES[:3], [3, 1]), "user 3", 2, 3),
    "users out of order": (PART, lambda t: t.take([1, 0, 2, 3]), "user_id", "0, 1, ..."),
    "no user_id": (PART, lambda t: t.drop(["user_id"]), "user_id int64"),
    "item ids": (ITEM_MAP_FILE, lambda t: t.take([1, 0, 2, 3]), "item_id", "1, 2, ..."),
    "missing user": (USER_MAP_FILE, lambda t: t.slice(0, 3), 3, 4),
    "another history": (PART, with_histories([1, 2, 3, 2], *OTHERS), "row 0", 7),
    "another length": (
        *(PART, with_histories([1, 2, 3], [1, 2, 1, 3], *HISTORIES[2:])),
        *("row 0", 4),
    ),
    "another order": (PART, with_histories([1, 2, 1, 3], *OTHERS), "split_fingerprint"),
    "wider ids": (PART, with_histories(*HISTORIES, kind=pa.list_(pa.int64())), "user_id int64"),
    "raw id twice": (USER_MAP_FILE, with_raw_ids("u0", "u1", "u1", "u3"), "'u1'"),
    "users by another rule": (USER_MAP_FILE, with_raw_ids("u1", "u0", "u2", "u3"), USER_MAP_FILE),
    "missing value": (USER_MAP_FILE, with_raw_ids("u0", None, "u2", "u3"), "raw_id"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_verify_finds_what_checksums_cannot(tmp_path, case):
    name, change, *facts = DAMAGE[case]
    root = write(tmp_path / "d")
    rewrite(root / name, change)
    assert_found(root, [root / name])
    sign_again(root)
    assert_found(root, facts)


def test_lists_of_other_writers_are_read(tmp_path):
    root = write(tmp_path / "d")
    others = pa.list_(pa.field("element", pa.int32()))
    rewrite(root / PART, with_histories(*HISTORIES, kind=others))
    assert read_sequences(root)[2].tolist() == HISTORIES[2]
    rewrite(root / PART, with_histories([1, 2, None], *OTHERS, kind=others))
    with refusal(kind=DatasetError, path=root / PART):
        read_sequences(root)


def test_items_by_another_rule_are_found(tmp_path):
    swapped = [[{1: 2, 2: 1}.get(i, i) for i in history] for history in HISTORIES]
    root = write(tmp_path / "d", swapped)
    assert_found(root, [root / ITEM_MAP_FILE])


@pytest.mark.parametrize("key", ["users", "items", "interactions", "split_fingerprint"])
def test_figures_of_the_manifest_are_compared(tmp_path, key):
    root = write(tmp_path / "d")
    manifest = Manifest.load(root)
    dataclasses.replace(manifest, statistics=manifest.statistics | {key: 1}).save(root)
    assert_found(root, [root / "manifest.json", f"{key} 1"])


def test_missing_and_cut_files_are_named(tmp_path):
    root = write(tmp_path / "d")
    part = root / PART
    content = part.read_bytes()
    part.write_bytes(content[:-20])
    with refusal(kind=DatasetError, path=part):
        read_sequences(root)
    part.write_bytes(content)
    part.rename(part.with_name(part_name(1)))
    with refusal("part-0000.parquet", "part-0001.parquet", kind=DatasetError):
        read_sequences(root)
    part.with_name(part_name(1)).unlink()
    with refusal("part-0000.parquet", kind=DatasetError):
        read_sequences(root)
    (root / ITEM_MAP_FILE).unlink()
    with refusal(kind=DatasetError, path=root / ITEM_MAP_FILE):
        read_sequences(root)


@pytest.mark.parametrize("name", [PART, ITEM_MAP_FILE, USER_MAP_FILE])
def test_fifo_in_the_place_of_a_file(tmp_path, name):
    root = write(tmp_path / "d")
    fifo(root / name)
    assert_found(root, [root / name])


def test_verify_works_without_a_manifest(tmp_path):
    root = write(tmp_path / "d")
    (root / "manifest.json").unlink()
    findings, report = verify(root)
    assert findings.problems == []
    assert "4 users, 4 items, 15 interactions" in report


def test_the_fingerprint_is_as_the_page_says():
    sequences, users, items = make()
    text = "u0\t2\ti2\ti0\nu1\t1\ti0\ti2\nu2\t3\ti0\ti0\nu3\t1\ti0\ti1\n"
    expected = xxhash.xxh3_128(text.encode()).hexdigest()
    assert split_fingerprint(sequences, users, items) == expected


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_raw_ids_that_are_numbers_go_by_value(numbers):
    order = order_raw_ids(pa.array(map(str, numbers), pa.string()))
    assert [numbers[i] for i in order] == sorted(numbers)


def test_titles_that_are_not_of_the_items_are_found(tmp_path):
    root = write(tmp_path / "d")
    before = Manifest.load(root).fingerprint
    write_titles(root, ["Ä (1)", "", "c, the third", "d"])
    sign_again(root)
    assert problems(root) == []
    assert Manifest.load(root).fingerprint == before
    assert read_titles(root, 4) == ["Ä (1)", "", "c, the third", "d"]
    write_titles(root, ["a", "b"])
    sign_again(root)
    assert_found(root, [root / TITLES_FILE, "item_id", "1, 2, ... 4"])
    (root / TITLES_FILE).write_bytes(b"no parquet")
    sign_again(root)
    assert_found(root, [root / TITLES_FILE])
    (root / TITLES_FILE).unlink()
    assert_found(root, [root / TITLES_FILE])


def test_the_columns_of_the_page_are_those_of_the_code():
    table = PAGE[PAGE.index("<!-- sequence columns") :].split("\n\n")[1]
    found = re.findall(r"^\| `([^`]+)` \| `(\w+)` \| (\S+(?: int32>)?) \|", table, re.MULTILINE)
    schemas = {
        "sequences/part-NNNN.parquet": SEQUENCE_SCHEMA,
        ITEM_MAP_FILE: ITEM_MAP_SCHEMA,
        USER_MAP_FILE: USER_MAP_SCHEMA,
        TITLES_FILE: TITLE_SCHEMA,
    }
    expected = [(name, f.name, str(f.type)) for name, s in schemas.items() for f in s]
    assert found == [(n, c, t.replace(" not null", "")) for n, c, t in expected]
    figures = module.PART_USERS, module.ROW_GROUP_USERS, histories.MIN_LENGTH
    assert_tells(PAGE[PAGE.index("## Sequences") :], *(f"{figure:,}" for figure in figures))
