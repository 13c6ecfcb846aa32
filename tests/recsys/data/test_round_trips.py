# SPDX-License-Identifier: Apache-2.0
"""What a writer wrote, its reader returns: any shape of dataset, any ranges of rows."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import CategoricalFeature, FeatureSpec, index_dtype
from recsys.data.formats.records import BinaryRecordsReader, record_bytes
from recsys.data.parquet import ParquetReader, part_name, write_parquet_part
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from tests.harness import refusal
from tests.recsys.data.datasets import (
    assert_equal,
    make_columns,
    write_binary_records,
    write_split,
)

INTERESTING = [1, 2, 126, 127, 128, 32_766, 32_767, 32_768, 10_000_000, 2**31 - 2]
cardinalities = st.lists(
    st.one_of(st.sampled_from(INTERESTING), st.integers(1, 70_000)), max_size=4
)
specs = st.builds(
    FeatureSpec.criteo,
    cardinalities,
    st.integers(0, 3),
    st.sampled_from(["float16", "float32"]),
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x85"), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("cardinality", "dtype"),
    [
        (1, "int8"),
        (126, "int8"),
        (127, "int16"),
        (32_766, "int16"),
        (32_767, "int32"),
        (2**31 - 2, "int32"),
    ],
)
def test_ids_take_the_smallest_type_strictly_above_the_cardinality(cardinality, dtype):
    assert index_dtype(cardinality) == np.dtype(dtype)


def test_a_cardinality_beyond_int32_is_refused():
    with refusal(2**31 - 1, "int32", kind=DatasetError):
        index_dtype(2**31 - 1)


@given(specs)
def test_feature_spec(spec):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        spec.save(root)
        loaded = FeatureSpec.load(root)
        no_columns = {} if spec.numerical else {"numerical_dtype": "float16"}
        assert loaded == dataclasses.replace(spec, **no_columns)
        assert set(loaded.files) == {"train", "test"}
        (root / "feature_spec.yaml").unlink()
        earlier = FeatureSpec.load(root, len(spec.numerical))
        assert earlier.table_sizes == spec.table_sizes
        assert sorted(p.name for p in root.iterdir()) == ["model_size.json"]


@settings(max_examples=30)
@given(st.lists(names, min_size=2, max_size=5, unique=True))
def test_any_feature_name_survives_the_yaml(words):
    categorical = tuple(CategoricalFeature(n, 7) for n in words[1:])
    spec = FeatureSpec(categorical=categorical, numerical=(), label=words[0])
    with tempfile.TemporaryDirectory() as folder:
        spec.save(Path(folder))
        assert FeatureSpec.load(Path(folder)) == spec


@given(specs, st.integers(0, 40), st.data(), st.sampled_from(["pread", "memmap"]))
def test_split_binary(spec, rows, data, access):
    columns = make_columns(spec, rows, seed=rows)
    cut = data.draw(st.integers(0, rows))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with SplitBinaryWriter(root / "train", spec, rows) as writer:
            writer.write(cut, columns[cut:])  # rows may come in any order
            writer.write(0, columns[:cut])
        reader = SplitBinaryReader(root, "train", spec, access)
        assert reader.num_rows == rows
        assert reader.flavour == "narrow"
        start = data.draw(st.integers(0, rows))
        stop = data.draw(st.integers(start, rows))
        found = reader.read(start, stop)
        assert_equal(found, columns[start:stop])
        assert [c.dtype for c in found.categorical] == [f.dtype for f in spec.categorical]
        if rows:
            assert found.numerical.dtype == spec.numerical_dtype
        reader.close()


@given(specs, st.integers(0, 20), st.integers(0, 20))
def test_binary_records(spec, rows, more):
    columns, others = make_columns(spec, rows), make_columns(spec, more, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train_data.bin")
        write_binary_records(path, spec, columns)
        write_binary_records(path, spec, others)
        assert path.stat().st_size == (rows + more) * record_bytes(spec)
        reader = BinaryRecordsReader(Path(folder), "train", spec)
        assert reader.num_rows == rows + more
        both = ClickColumns.concatenate([columns, others])
        assert_equal(reader.read(0, rows + more), both)
        assert_equal(reader.read(rows, rows + more), others)
        reader.close()


@given(specs, st.lists(st.integers(0, 20), min_size=1, max_size=3))
def test_parquet(spec, parts):
    with tempfile.TemporaryDirectory() as folder:
        written = []
        for index, rows in enumerate(parts):
            columns = make_columns(spec, rows, seed=index)
            write_parquet_part(Path(folder, "parquet/train", part_name(index)), spec, [columns])
            written.append(columns)
        reader = ParquetReader(Path(folder), "train", spec)
        assert reader.num_rows == sum(parts)
        groups = list(reader.stream())
        if groups:
            assert_equal(ClickColumns.concatenate(groups), ClickColumns.concatenate(written))
        if spec.categorical:
            carried = ParquetReader(Path(folder), "train").spec
            assert carried.table_sizes == spec.table_sizes
            assert carried.numerical == spec.numerical


def test_float16_is_rounded_twice(tmp_path):
    # ln 10364: float64 -> float16 gives another value than float64 -> float32 -> float16.
    spec = FeatureSpec.criteo([], num_numerical=1)
    value = np.log(np.float64(10_364))
    assert np.float16(value) != np.float16(np.float32(value))
    columns = ClickColumns(np.ones(1, np.bool_), np.full((1, 1), value), ())
    write_split(tmp_path, "train", spec, columns)
    stored = np.fromfile(tmp_path / "train/numerical.bin", "<f2")
    assert stored[0] == np.float16(np.float32(value))
