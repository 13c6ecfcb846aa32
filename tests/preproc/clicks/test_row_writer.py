# SPDX-License-Identifier: Apache-2.0
"""The kernel writes cells of a table as the definition in Python does."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preproc.clicks.kernel import row_writer
from preproc.files.raw import tables
from preproc.files.raw.tables import TableColumn, cells_of, escaped
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]
INDICES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]
PIECES = ["\t", "\n", "\r", "\\", "\\n", "a\nb", "é", "\0", "|", " "]
CELL = st.one_of(
    st.none(),
    st.just(""),
    st.sampled_from(PIECES),
    st.text("ab\\", max_size=3),
    st.integers(0, 70).map(lambda size: "x" * size),  # around what is copied at once
)


def column_of(values: list[str | None], rng: random.Random) -> pa.Array:
    """Makes a column of a type drawn at random, cut out of a longer one."""
    before, after = rng.randrange(10), rng.randrange(3)
    padded = [rng.choice([None, "", "p\np"]) for _ in range(before)] + values + ["z" * after]
    array = pa.array(padded, pa.string())
    if rng.random() < 0.4:
        # A dictionary that is cut itself, has twins and texts that no cell has.
        words = [None, "\n", *dict.fromkeys(padded), *rng.sample(padded, min(len(padded), 4))]
        numbers = [None if v is None and rng.random() < 0.5 else words.index(v) for v in padded]
        cut = pa.array(["cut", *words, "cut"]).cast(rng.choice(KINDS[:4])).slice(1, len(words))
        indices = pa.array(numbers, rng.choice(INDICES))
        array = pa.DictionaryArray.from_arrays(indices, cut)
    else:
        array = array.cast(rng.choice(KINDS))
    return array.slice(before, len(values))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.data())
def test_rows_are_those_of_the_definition(columns, rows, data):
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    distinct = data.draw(st.lists(CELL, min_size=1, max_size=12))
    texts = [[rng.choice(distinct) for _ in range(rows)] for _ in range(columns)]
    table = [column_of(values, rng) for values in texts]
    cells = [cells_of(each, TableColumn(name="")) for each in table]
    written = row_writer.write_cells(cells)
    assert written == tables.write_cells(cells)
    lines = zip(*([escaped((v or "").encode()) for v in values] for values in texts), strict=True)
    assert written == b"".join(b"\t".join(line) + b"\n" for line in lines)


@pytest.mark.parametrize("wide", [False, True])
def test_a_missing_cell_is_empty_whatever_bytes_it_has(wide):
    """Arrow allows bytes below a null, and a buffer that ends with its last text."""
    kind, ends = (pa.large_binary(), np.int64) if wide else (pa.binary(), np.int32)
    text = b"first" + b"gone\n" + b"last"
    offsets = np.array([0, 5, 10, 14], ends)
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(offsets), pa.py_buffer(text)]
    column = pa.Array.from_buffers(kind, 3, buffers)
    assert row_writer.write_cells([column]) == b"first\n\nlast\n"
    assert row_writer.write_cells([column.slice(1)] * 2) == b"\t\nlast\tlast\n"
    nothing = pa.DictionaryArray.from_arrays(pa.nulls(3, pa.int32()), pa.array([], kind))
    assert row_writer.write_cells([nothing, column]) == b"\tfirst\n\t\n\tlast\n"
    assert row_writer.write_cells([pa.nulls(2, kind)] * 2) == b"\t\n\t\n"
    assert row_writer.write_cells([column.slice(3)]) == b""
