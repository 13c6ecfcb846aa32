# SPDX-License-Identifier: Apache-2.0
"""python -m dataspec.verify: what it finds, what it tells, how it exits."""

import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataspec.verify import main
from recsys.data import row_reader
from recsys.data.feature_spec import FeatureSpec
from recsys.data.verify.run import verify
from tests import harness
from tests.recsys.data.damage import cut, edit, fifo, overwrite, put, remove, set_key
from tests.recsys.data.datasets import (
    SPEC,
    make_columns,
    problems,
    write_binary_records,
    write_dataset,
    write_manifest,
    write_split,
)


def warnings(root):
    findings, _ = verify(root)
    assert findings.problems == []
    return findings.warnings


def cells(report, name):
    """Returns the cells of a row of the report's tables."""
    return next(re.split("  +", line) for line in report.splitlines() if line.startswith(name))


def test_a_sound_dataset(tmp_path, capsys):
    root = write_dataset(tmp_path, rows={"train": 64, "test": 40})
    set_key("rejected", {"columns": 3, "hex": 1_000})(root / "manifest.json")
    assert main(["verify", str(root)]) == 0
    report = capsys.readouterr().out
    formats = "split binary (narrow), parquet, binary records"
    assert cells(report, "train") == ["train", "64", "64", "16", "0.2500", formats]
    both = make_columns(SPEC, 64), make_columns(SPEC, 40, seed=1)
    shares = [f"{(c.categorical[0] == 0).mean():.2%}" for c in both]
    assert cells(report, "cat_0") == ["cat_0", "5", "4", *shares]
    values = np.concatenate([c.numerical[:, 1] for c in both]).astype(np.float64)
    figures = [f"{v:.4g}" for v in (values.min(), values.mean(), values.max())]
    assert cells(report, "num_1") == ["num_1", *figures]
    harness.assert_tells(report, "1,003", "18 of 18", "2 numerical", "3 categorical")


def test_a_damaged_dataset_fails_the_program(tmp_path):
    root = write_dataset(tmp_path / "dataset", ("split",))
    assert main(["verify", str(root), "--quick"]) == 0
    overwrite(3, b"\x63")(root / "train/cat_0.bin")
    done = harness.python("-m", "dataspec.verify", root, status=1)
    harness.assert_tells(done.stdout, "FAILED", "2 problems", "cat_0.bin", "row 3")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "DIR"),
        (["x", "y"], "DIR"),
        (["nowhere"], "nowhere"),
        (["x", "--fast"], "'fast'"),
        ([".", "--num_numerical=-1"], "--num_numerical"),
        (["--num_numerical=x"], "--num_numerical"),
    ],
)
def test_wrong_usage(arguments, named, capsys):
    assert main(["verify", *arguments]) == 2
    assert named in capsys.readouterr().err


def test_formats_of_a_split_must_hold_the_same_rows_in_the_same_order(tmp_path):
    root = write_dataset(tmp_path, ("split",), manifest=False)
    columns, records = make_columns(SPEC, 64), root / "train_data.bin"
    write_binary_records(records, SPEC, columns)
    assert problems(root) == []
    records.unlink()
    write_binary_records(records, SPEC, columns[::-1])
    (found,) = problems(root)
    harness.assert_tells(found, "label, num_0, num_1, cat_0, cat_1, cat_2")
    records.unlink()
    columns.label[1] = True
    write_binary_records(records, SPEC, columns)
    (found,) = problems(root)
    assert harness.tells(found, "label")
    assert not harness.tells(found, "num_0")


def test_quick_reads_no_checksums_and_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(row_reader, "BLOCK_ROWS", 10)
    root = write_dataset(tmp_path, ("split",), rows={"train": 1000, "test": 40})
    overwrite(0, b"\x00\x3c\x00\x3c")(root / "train/numerical.bin")
    assert len(problems(root)) == 1
    findings, report = verify(root, quick=True)
    assert findings.problems == []
    assert cells(report, "train")[1:3] == ["1,000", "160"]
    overwrite(999, b"\x05")(root / "train/label.bin")  # the last block is always read
    assert len(problems(root, quick=True)) == 1


def clicks(**counts):
    def change(split, columns):
        columns.label[:] = np.arange(1000) < counts[split]

    return change


def zero_the_end(split, columns):
    columns.numerical[700 if split == "train" else 1000 :] = 0
    columns.categorical[2][0 if split == "test" else 1000 :] = 0


def one_number(_, columns):
    columns.numerical[:, 1] = 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (clicks(train=0, test=10), [("train", "base rate 0")]),
        (clicks(train=1000, test=990), [("train", "base rate 1")]),
        (zero_the_end, [("train", "300 of 1,000"), ("test", "feature cat_2", "id 0")]),
        (one_number, [("train", "feature num_1", "3"), ("test", "feature num_1", "3")]),
    ],
)
def test_what_can_be_trained_on_and_is_suspicious(tmp_path, change, expected):
    SPEC.save(tmp_path)
    for split in ("train", "test"):
        columns = make_columns(SPEC, 1000)
        change(split, columns)
        write_split(tmp_path, split, SPEC, columns)
    for warning, facts in zip(warnings(tmp_path), expected, strict=True):
        harness.assert_tells(warning, *facts)


def test_missing_splits(tmp_path):
    root = write_dataset(tmp_path / "one", ("split",), rows={"train": 8}, manifest=False)
    (warning,) = warnings(root)
    harness.assert_tells(warning, root, "test")
    rows = {"train": 8, "test": 8}
    write_manifest(root, rows=rows, positives={}, cardinalities=list(SPEC.table_sizes))
    assert any(harness.tells(p, "test split", "8 rows") for p in problems(root))
    SPEC.save(tmp_path)
    (problem,) = problems(tmp_path)
    harness.assert_tells(problem, f"{tmp_path}:", "parquet", "npy")


def test_a_dataset_without_rows_and_with_another_file(tmp_path):
    root = write_dataset(tmp_path, ("split",), rows={"train": 0, "test": 0})
    (root / "notes.txt").write_text("x")
    other, _ = warnings(root)
    harness.assert_tells(other, root / "notes.txt")


def test_parquet_carries_its_spec_or_is_checked_without(tmp_path, capsys):
    root = write_dataset(tmp_path / "ours", ("parquet",), manifest=False)
    for name in ("feature_spec.yaml", "model_size.json"):
        (root / name).unlink()
    assert warnings(root) == []
    part = root / "parquet/train/part_00001.parquet"
    pq.write_table(pq.read_table(part, partitioning=None).drop_columns(["num_0"]), part)
    assert any(harness.tells(p, part, "num_0") for p in problems(root))
    theirs = tmp_path / "theirs/train/part.0.parquet"
    theirs.parent.mkdir(parents=True)
    pq.write_table(pa.table({"label": [0, 1], "cat_0": [3, 4]}), theirs)
    assert main(["verify", str(tmp_path / "theirs")]) == 0
    harness.assert_tells(capsys.readouterr().out, "num_embeddings_per_feature 5")
    theirs.with_name("._part.0.parquet").write_bytes(b"leftover of macOS")
    assert main(["verify", str(tmp_path / "theirs")]) == 0
    theirs.write_bytes(b"PAR1")
    assert str(theirs) in problems(tmp_path / "theirs")[0]


def test_model_size_alone_needs_the_number_of_numerical_features(tmp_path):
    root = write_dataset(tmp_path, ("split",), manifest=False)
    (root / "feature_spec.yaml").unlink()
    assert any(harness.tells(p, "64 rows", "13 features") for p in problems(root))
    assert problems(root, num_numerical=2) == []


def test_a_dataset_of_an_unknown_kind_is_a_problem(tmp_path):
    write_manifest(tmp_path, rows={}, positives={}, cardinalities=[], kind="graph")
    (problem,) = problems(tmp_path)
    harness.assert_tells(problem, "graph")


def test_memory_does_not_grow_with_rows(tmp_path):
    spec = FeatureSpec.criteo((100,) * 4, num_numerical=4)
    peaks = []
    for rows in (300_000, 1_200_000):
        root = write_dataset(tmp_path / str(rows), ("split",), spec=spec, rows={"train": 1000})
        (root / "manifest.json").unlink()
        for path in (root / "train").iterdir():
            path.write_bytes(path.read_bytes() * (rows // 1000))
        tracemalloc.start()
        assert problems(root) == []
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


LABEL, NUMBERS, PART = "test/label.bin", "test/numerical.bin", "parquet/test/part_00000.parquet"
# the damaged file, how, and the facts of one problem each
DAMAGED = {
    "content": ("train/numerical.bin", overwrite(0, b"\x00\x3c\x00\x3c"), ["numerical.bin"]),
    "size": ("train/cat_1.bin", cut(2), ["cat_1.bin", "126 bytes", "128 bytes"], ["cat_1.bin", 64]),
    "missing": (LABEL, remove, ["label.bin", "12 bytes"], ["label.bin", "test"]),
    "extra": ("train/cat_3.bin", put(bytes(64)), ["cat_3.bin", "manifest"], ["cat_3.bin", "spec"]),
    "group": ("train/group.bin", put(bytes(64)), ["group.bin", "64 bytes", "64 rows", 512]),
    "id": ("test/cat_0.bin", overwrite(5, b"\x07\xff"), ["cat_0.bin", "feature cat_0, row 5", 7]),
    "label": (LABEL, overwrite(2, b"\x03"), ["label.bin", "feature label, row 2", 3]),
    "numbers": (
        NUMBERS,
        overwrite(0, bytes.fromhex("007c 00fc 017c 01fe") * 6),
        ["numerical.bin", "feature num_0, row 0", "inf"],
        ["numerical.bin", "feature num_1, row 0", "-inf"],
    ),
    "specs": ("model_size.json", edit("199", "198"), ["model_size.json", 199, 200]),
    "spec lengths": ("model_size.json", put('{"_c14": 4}'), ["model_size.json", "[5]", 200]),
    "spec and manifest": (
        "feature_spec.yaml",
        edit("cardinality: 5\n", "cardinality: 6\n"),
        ["manifest.json", "[5, 200, 40000]", "[6, 200, 40000]"],
    ),
    "declared dtype": (
        "feature_spec.yaml",
        edit("dtype: int16", "dtype: int32"),
        ["train/cat_1.bin", "feature cat_1", "int16", "int32"],
    ),
    "fingerprint": ("manifest.json", edit('rint": "', 'rint": "0'), ["manifest.json"]),
    "clicks": ("manifest.json", edit('"train": 16', '"train": 17'), ["train", "16 clicks", 17]),
    "rows": ("manifest.json", edit('"train": 64', '"train": 63'), ["train", "64 rows", 63]),
    "part": (PART, overwrite(4, b"\xff" * 60), ["part_00000.parquet", "row group 0"]),
    "part that is a FIFO": (PART, fifo, ["part_00000.parquet"]),
    "records": ("test_data.bin", cut(24), ["test_data.bin", 264], ["11 rows", 12]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found(tmp_path, name):
    file, damage, *expected = DAMAGED[name]
    root = write_dataset(tmp_path)
    damage(root / file)
    found = problems(root)
    for facts in expected:
        assert any(harness.tells(line, *facts) for line in found), found


def test_all_problems_are_listed_at_once(tmp_path):
    root = write_dataset(tmp_path)
    for name in ("content", "id", "label", "numbers", "part", "clicks"):
        file, damage, *_ = DAMAGED[name]
        damage(root / file)
    text = "\n".join(problems(root))
    facts = "feature cat_0", "feature label", "feature num_1", "row group 0", "16 clicks"
    harness.assert_tells(text, *facts)
    assert text.count("checksum") == 2 * 5  # that of now and that of the manifest
