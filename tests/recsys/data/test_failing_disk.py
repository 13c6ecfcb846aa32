# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be opened, mapped or read: the message says which and what to do."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.records import BinaryRecordsReader
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from recsys.data.verify import files as verify_files
from tests.recsys.data.datasets import SPEC, num_open_files, problems, write_dataset


def refuse(name):
    """Returns an os.open that may not open files of a name."""
    real = os.open

    def refusing(path, *arguments, **options):
        if Path(path).name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *arguments, **options)

    return refusing


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    root = write_dataset(tmp_path)
    before = num_open_files()
    monkeypatch.setattr(os, "open", refuse("cat_2.bin"))
    with pytest.raises(DatasetError, match=r"train/cat_2.bin: Permission denied; make it readable"):
        SplitBinaryReader(root, "train")
    monkeypatch.setattr(os, "open", refuse("train_data.bin"))
    with pytest.raises(DatasetError, match=r"train_data.bin: Permission denied; make it readable"):
        BinaryRecordsReader(root, "train")
    assert num_open_files() == before


def test_a_file_that_may_not_be_mapped(tmp_path, monkeypatch):
    root = write_dataset(tmp_path)

    def refuse_map(*arguments, **options):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(np, "memmap", refuse_map)
    with pytest.raises(DatasetError, match=r"label.bin: cannot be mapped: .*`dataset_type` split"):
        SplitBinaryReader(root, "train", access="memmap")


def test_a_writer_that_cannot_make_its_files_closes_those_it_made(tmp_path, monkeypatch):
    before = num_open_files()
    monkeypatch.setattr(os, "open", refuse("cat_2.bin"))
    with pytest.raises(PermissionError):
        SplitBinaryWriter(tmp_path / "train", SPEC, 8)
    assert num_open_files() == before


def test_descriptors_for_native_writers(tmp_path):
    with SplitBinaryWriter(tmp_path / "train", SPEC, 2) as writer:
        label, numerical, categorical = writer.file_descriptors()
        os.pwrite(label, b"\1\0", 0)
        os.pwrite(numerical, bytes.fromhex("003c 0000 003c 0000"), 0)
        assert len(categorical) == 3
    rows = SplitBinaryReader(tmp_path, "train", SPEC).read(0, 2)
    assert rows.label.tolist() == [True, False]
    assert rows.numerical.tolist() == [[1, 0], [1, 0]]
    spec = FeatureSpec.criteo([3], num_numerical=0)
    with SplitBinaryWriter(tmp_path / "test", spec, 2) as writer:
        assert writer.file_descriptors()[1] == -1


def test_verify_goes_on_after_a_file_it_cannot_read(tmp_path, monkeypatch):
    root = write_dataset(tmp_path, ("split",))
    real = verify_files.file_checksum

    def checksum(path):
        if path.name == "cat_1.bin":
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(verify_files, "file_checksum", checksum)
    found = problems(root)
    assert len(found) == 3
    assert "cat_1.bin: Input/output error" in found[0]
