# SPDX-License-Identifier: Apache-2.0
"""Bytes changed at random: a reader answers with data or with a DatasetError, nothing else."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest
from recsys.data.parquet import ParquetReader
from recsys.data.verify.run import verify
from tests.recsys.data.datasets import SPEC, write_dataset

ROWS = {"train": 8, "test": 4}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A small dataset that every example copies."""
    return write_dataset(tmp_path_factory.mktemp("sound"), rows=ROWS)


edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=4), st.integers(0, 6)),
    min_size=1,
    max_size=4,
)


def apply(data: bytes, changes) -> bytes:
    """Replaces `skip` bytes at some places by others."""
    for place, new, skip in changes:
        at = int(place * len(data))
        data = data[:at] + new + data[at + skip :]
    return data


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("feature_spec.yaml", FeatureSpec.load),
        ("model_size.json", lambda root: FeatureSpec.load_model_size(root / "model_size.json")),
        ("manifest.json", Manifest.load),
        (
            "parquet/train/part_00000.parquet",
            lambda root: list(ParquetReader(root, "train", SPEC).stream()),
        ),
    ],
)
@settings(max_examples=150)
@given(changes=edits)
def test_readers(sound, name, read, changes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(apply((sound / name).read_bytes(), changes))
        message = ""
        try:
            read(Path(folder))
        except DatasetError as error:
            message = str(error)
        assert not message or name in message


FILES = (
    "feature_spec.yaml",
    "model_size.json",
    "manifest.json",
    "train/label.bin",
    "train/numerical.bin",
    "test/cat_1.bin",
    "train_data.bin",
    "parquet/test/part_00001.parquet",
)


@settings(max_examples=60)
@given(name=st.sampled_from(FILES), changes=edits)
def test_verify_finds_any_change(sound, name, changes):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "dataset")
        shutil.copytree(sound, root)
        data = (root / name).read_bytes()
        (root / name).write_bytes(apply(data, changes))
        findings, _ = verify(root)
        if apply(data, changes) != data and name != "manifest.json":
            assert any(name in problem for problem in findings.problems)
