# SPDX-License-Identifier: Apache-2.0
"""Texts and 64-bit integers as categories: their dictionaries, and texts of one hash."""

import random
from collections import Counter

import numpy as np
import pytest
import xxhash

from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.line_transform import LineTransform
from tests.preproc.clicks.rows import assert_same
from tests.preproc.clicks.schema_log import columns_of, prepare, write_log, write_schema
from tests.tools import needs


def test_dictionaries_of_texts_and_integers_are_in_the_order_of_counts(tmp_path):
    """Each brand is kept; of users those of -2 and 7 alone are seen twice."""
    table = write_log(tmp_path, 1000, seed=1)
    prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "made", engine="reference")
    folder, counted = tmp_path / "made" / "dictionaries", table[:800]
    ends = np.fromfile(folder / "cat_7.ends.bin", "<u8")
    text = (folder / "cat_7.bin").read_bytes()
    brands = [text[a:b] for a, b in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
    counts = Counter(row["brand"].encode() for row in counted if row["brand"])
    assert brands == sorted(counts, key=lambda b: (-counts[b], len(b), b))
    assert np.fromfile(folder / "cat_8.bin", "<i8").tolist() == [7, -2]


def text_of_one_hash(text: bytes, rng: random.Random) -> bytes:
    """Returns another text of 16 bytes with the XXH64 of `text`.

    Its first half is drawn; for each there is one second half, which is not always printable.
    """
    p1, p2, p4, p5 = (
        *(0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F),
        *(0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
    )
    mask = 2**64 - 1

    def turned(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & mask

    def after(half: bytes) -> int:
        word = turned(int.from_bytes(half, "little") * p2 & mask, 31) * p1 & mask
        return (turned((p5 + 16) & mask ^ word, 27) * p1 + p4) & mask

    second = turned(int.from_bytes(text[8:], "little") * p2 & mask, 31) * p1 & mask
    while True:
        first = bytes(rng.choice(b"abcdefghijklmnopqrstuvwxyz") for _ in range(8))
        word = after(text[:8]) ^ second ^ after(first)
        word = turned(word * pow(p1, -1, 2**64) & mask, 33) * pow(p2, -1, 2**64) & mask
        half = word.to_bytes(8, "little")
        if all(0x20 < byte < 0x7F and byte not in b";" for byte in half):
            return first + half


@pytest.mark.parametrize(
    "engine", ["reference", pytest.param("native", marks=needs("compiled Criteo kernel"))]
)
def test_texts_of_one_hash_are_told_apart(engine, tmp_path):
    rng = random.Random(4)
    first = b"kettle and a cup"
    texts = [first, *(text_of_one_hash(first, rng) for _ in range(5))]
    assert len({xxhash.xxh64_intdigest(text) for text in texts}) == 1
    lines = [b"%d;%b" % (i % 2, texts[i % 2 * (1 + i // 2 % 5)]) for i in range(3000)]
    (tmp_path / "log").write_bytes(b"\n".join(lines))
    schema = write_schema(
        tmp_path,
        dialect={"header": False, "delimiter": ";"},
        label={"column": "click"},
        columns=[
            {"name": "click", "role": "label"},
            {"name": "item", "role": "categorical", "type": "string"},
        ],
        split={"rows": [2000, 0, -1]},
    )
    small = NativeSettings(unit_bytes=3000, table_bytes=1) if engine == "native" else None
    prepare(tmp_path / "log", schema, tmp_path / "made", engine=engine, settings=small)
    _, reader = columns_of(tmp_path / "made", "train")
    ids = reader.read(0, reader.num_rows).categorical[0].tolist()
    given = dict(zip((line[2:] for line in lines), ids, strict=False))
    assert given[first] == 1
    # Those of the same count are in the order of their bytes.
    assert sorted(given, key=given.__getitem__) == [first, *sorted(given.keys() - {first})]
    if engine == "native":
        write_feature_file(tmp_path / "made", tmp_path / "features.bin", "float32")
        with LineTransform(tmp_path / "features.bin") as transform:
            served = transform.transform([*given, b"kettle and a pot"]).ids[:, 0].tolist()
            assert served == [*given.values(), 0]


@needs("compiled Criteo kernel")
def test_texts_in_the_columns_of_a_criteo_log(tmp_path):
    """Such a log has the roles of Criteo's, whose parser would take hexadecimal numbers alone."""
    lines = (
        "\t".join(["01"[i % 2], *("7" for _ in range(13)), *(["red", "blue"][i % 2],) * 26])
        for i in range(20)
    )
    (tmp_path / "log.tsv").write_text("\n".join(lines))
    schema = write_schema(
        tmp_path,
        dialect={"delimiter": "\t", "header": False},
        missing=[],
        label={"column": "y"},
        columns=[
            {"name": "y", "role": "label"},
            {"name": "I{1..13}", "role": "numerical", "type": "int"},
            {"name": "C{1..26}", "role": "categorical", "type": "string"},
        ],
    )
    made, expected = (
        prepare(tmp_path / "log.tsv", schema, tmp_path / engine, engine=engine)
        for engine in ("native", "reference")
    )
    assert_same(made, expected)
    assert made.rejected["hex"] == 0
    assert (tmp_path / "native" / "dictionaries" / "cat_25.bin").read_bytes() == b"redblue"
