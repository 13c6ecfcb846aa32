# SPDX-License-Identifier: Apache-2.0
"""Writes that fail late, at fsync: the run stops, and the same command makes the right bytes."""

import shutil
from pathlib import Path

import pytest

from recsys.data.manifest import Manifest
from tests import harness
from tests.harness import assert_tells
from tests.preproc.programs import program
from tests.tools import needs

COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = needs("C++ compiler", "compiled Criteo kernel")

release = pytest.mark.release
COLUMNS = ("train/cat_3.bin", "--format=split")
FLOAT32 = ("float32/", "--format=parquet")
WIDE = ("dataset/test/cat_0.bin", "--layout=torchrec")
CASES = [
    pytest.param(*COLUMNS, 2, id="columns"),
    pytest.param(*COLUMNS, 1, id="columns, first unit", marks=release),
    pytest.param(*COLUMNS, 3, id="columns, closed", marks=release),
    pytest.param(*FLOAT32, 1, id="float32", marks=release),
    pytest.param(*WIDE, 1, id="wide", marks=release),
    pytest.param(*WIDE, 2, id="wide, closed", marks=release),
    pytest.param("unit_", "--shuffle_seed=3", 1, id="buckets", marks=release),
    pytest.param("shuffle/dataset/train/cat_3", "--shuffle_seed=3", 1, id="shuffle", marks=release),
    pytest.param("/merge/", "--format=split", 3, id="dictionary", marks=release),
    pytest.param("/scan/", "--format=split", 3, id="scan", marks=release),
    pytest.param("parquet/train", "--format=parquet", 1, id="parquet", marks=release),
]
"""Part of the path of files, a setting, and the number of the fsync of them that fails."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> Path:
    """The library that makes fsync fail, see there."""
    library = tmp_path_factory.mktemp("disk") / "losing_disk.so"
    source = Path(__file__).with_name("losing_disk.c")
    harness.run(COMPILER, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread")
    return library


@pytest.mark.parametrize(("path", "setting", "fsync"), CASES)
def test_a_late_error_undoes_the_unit(tmp_path, disk, days, path, setting, fsync):
    def prepare(name: str, **options: object) -> str:
        flags = (f"--input={days}", f"--output={tmp_path / name}", "--frequency_limit=3", setting)
        return program("clicks", "--threads=1", *flags, **options)

    lost = {"LD_PRELOAD": str(disk), "LOSING_PATH": path, "LOSING_FSYNC": str(fsync)}
    assert_tells(prepare("made", status=2, **lost), tmp_path, "--output", "--work_dir")
    assert not (tmp_path / "made").exists()
    prepare("made")
    prepare("alone")
    made = Manifest.load(tmp_path / "made")
    assert Manifest.describe_files(tmp_path / "made") == made.files
    assert made == Manifest.load(tmp_path / "alone")
