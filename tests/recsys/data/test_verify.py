# SPDX-License-Identifier: Apache-2.0
"""python -m dataspec.verify: what it prints, what it finds, how it exits."""

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


def test_a_sound_dataset(tmp_path, capsys):
    root = write_dataset(tmp_path)
    assert main(["verify", str(root)]) == 0
    report = capsys.readouterr().out
    for text in (
        "made by   test (synthetic)",
        "files     26 of 26 have the right size",
        "checksums match (",
        "MB/s)",
        "features  2 numerical, 3 categorical with 40,205 ids in all",
        "train         64    64      16     0.2500  split binary (narrow), parquet, binary records",
        "categorical  cardinality  highest id  id 0 in train  id 0 in validation  id 0 in test",
        "cat_2             40,000      39,999",
        "numerical     min     mean    max",
        "\nOK: no problems, no warnings (",
    ):
        assert text in report
    assert len(report.splitlines()) < 30


def test_figures(tmp_path):
    write_dataset(tmp_path, ("split",), rows={"train": 40, "test": 40}, manifest=False)
    one, other = make_columns(SPEC, 40), make_columns(SPEC, 40, seed=1)
    report = verify(tmp_path)[1].splitlines()
    line = next(x for x in report if x.startswith("cat_0")).split()
    shares = [f"{(c.categorical[0] == 0).mean():.2%}" for c in (one, other)]
    assert line == ["cat_0", "5", "4", *shares]
    values = np.concatenate([one.numerical[:, 1], other.numerical[:, 1]]).astype(np.float64)
    line = next(x for x in report if x.startswith("num_1")).split()
    assert line[1:] == [f"{v:.4g}" for v in (values.min(), values.mean(), values.max())]


def test_a_damaged_dataset_fails_the_program(tmp_path):
    root = write_dataset(tmp_path / "dataset", ("split",))
    assert main(["verify", str(root), "--quick"]) == 0
    overwrite(3, b"\x63")(root / "train/cat_0.bin")
    done = harness.python("-m", "dataspec.verify", root, status=1)
    assert "FAILED: 2 problems, no warnings" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one folder is needed"),
        (["x", "y"], "one folder is needed"),
        (["nowhere"], "nowhere is not a folder"),
        (["x", "--fast"], "'fast'"),
        ([".", "--num_numerical=-1"], "--num_numerical must not be negative"),
        (["--num_numerical=x"], "--num_numerical"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    assert main(["verify", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_formats_of_a_split_must_hold_the_same_rows_in_the_same_order(tmp_path):
    root = write_dataset(tmp_path, ("split",), manifest=False)
    columns = make_columns(SPEC, 64)
    write_binary_records(root / "train_data.bin", SPEC, columns)
    assert problems(root) == []
    (root / "train_data.bin").unlink()
    write_binary_records(root / "train_data.bin", SPEC, columns[::-1])
    where = "in split binary (narrow) than in binary records"
    expected = [f"feature label holds other labels {where}"]
    expected += [f"feature num_{i} holds other numbers {where}" for i in range(2)]
    expected += [f"feature cat_{i} holds other ids {where}" for i in range(3)]
    for problem, words in zip(problems(root), expected, strict=True):
        assert words in problem


def warnings(root):
    findings, _ = verify(root)
    assert findings.problems == []
    return findings.warnings


def write_changed(root, rows, change, spec=SPEC, splits=("train", "test")):
    """Writes splits whose rows were changed: change(split, columns)."""
    spec.save(root)
    for split in splits:
        columns = make_columns(spec, rows)
        change(split, columns)
        write_split(root, split, spec, columns)


def test_what_was_not_written_to_its_end(tmp_path):
    def zero_the_end(split, columns):
        if split == "train":
            columns.numerical[700:] = 0
        else:
            columns.categorical[2][:] = 0

    write_changed(tmp_path, 1000, zero_the_end)
    assert warnings(tmp_path) == [
        "train: 300 of 1,000 rows have 0 in every numerical feature: were the files written to "
        "their end?",
        "test: feature cat_2: has id 0 in every row",
    ]
    put(bytes(4000))(tmp_path / "train/numerical.bin")
    assert warnings(tmp_path)[:2] == [f"train: feature num_{i}: is 0 in every row" for i in (0, 1)]


def test_quick_reads_no_checksums_and_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(row_reader, "BLOCK_ROWS", 10)
    rows = {"train": 1000, "test": 40}
    root = write_dataset(tmp_path, ("split",), rows=rows)
    overwrite(0, b"\x00\x3c\x00\x3c")(root / "train/numerical.bin")
    assert len(problems(root)) == 1
    findings, report = verify(root, quick=True)
    assert findings.problems == []
    assert "checksums not compared (`quick`)" in report
    line = next(x for x in report.splitlines() if x.startswith("train")).split()
    assert line[1:3] == ["1,000", "160"]
    overwrite(999, b"\x05")(root / "train/label.bin")  # the last block is always read
    assert len(problems(root, quick=True)) == 1


@pytest.mark.parametrize(
    ("clicks", "expected"),
    [
        ({"train": 0, "test": 10}, ["train: base rate 0: every label is"]),
        ({"train": 1000, "test": 990}, ["train: base rate 1: every label is"]),
        (
            {"train": 250, "validation": 260, "test": 500},
            ["base rate 0.2500 in train, 0.5000 in test: they differ strongly"],
        ),
    ],
)
def test_base_rates(tmp_path, clicks, expected):
    def change(split, columns):
        columns.label[:] = np.arange(1000) < clicks[split]

    write_changed(tmp_path, 1000, change, splits=clicks)
    found = warnings(tmp_path)
    assert [w[: len(e)] for w, e in zip(found, expected, strict=True)] == expected


def test_tables_and_numerical_features_that_nothing_uses(tmp_path):
    def change(_, columns):
        columns.categorical[1][:] = np.minimum(columns.categorical[1], 498)
        columns.numerical[:, 1] = 3

    write_changed(tmp_path, 2000, change, FeatureSpec.criteo((1000, 1000), num_numerical=2))
    assert warnings(tmp_path) == [
        "feature cat_1: the highest id is 498, its table has 1,000 rows: more than half of it is "
        "never used",
        "feature num_1: is 3 in every row",
    ]


def test_missing_splits(tmp_path):
    root = write_dataset(tmp_path / "one", ("split",), rows={"train": 8}, manifest=False)
    assert warnings(root) == [f"{root}: there is no test split"]
    rows = {"train": 8, "test": 8}
    write_manifest(root, rows=rows, positives={}, cardinalities=list(SPEC.table_sizes))
    assert any("the test split is missing, the manifest says 8 rows" in p for p in problems(root))
    SPEC.save(tmp_path)
    assert any("no split could be read" in p for p in problems(tmp_path))


def test_a_dataset_without_rows(tmp_path):
    root = write_dataset(tmp_path, ("split",), rows={"train": 0, "test": 0})
    assert warnings(root) == ["no split has rows"]


def test_labels_of_two_formats_that_differ(tmp_path):
    root = write_dataset(tmp_path, ("split", "binary"), manifest=False)
    overwrite(1, b"\1")(root / "train/label.bin")
    (found,) = problems(root)
    assert "train: 17 clicks in split binary (narrow), 16 in binary records; the formats" in found


def test_rows_left_out_by_preprocessing_are_counted(tmp_path):
    root = write_dataset(tmp_path, ("split",))
    set_key("rejected", {"columns": 3, "hex": 1_000})(root / "manifest.json")
    set_key("semantics", {"preset": "dlrm"})(root / "manifest.json")
    report = verify(root)[1]
    assert "made by   test (synthetic, preset dlrm, 1,003 raw rows were left out)" in report


def test_other_files_are_a_warning(tmp_path):
    root = write_dataset(tmp_path, ("split",))
    (root / "notes.txt").write_text("x")
    assert warnings(root) == [f"{root / 'notes.txt'}: is not in the manifest; no reader uses it"]


def test_dictionaries_must_fit_their_cardinality(tmp_path):
    root = write_dataset(tmp_path, ("split",), manifest=False)
    (root / "dictionaries").mkdir()
    (root / "dictionaries/cat_0.bin").write_bytes(bytes(4 * 4))
    assert problems(root) == []
    (root / "dictionaries/cat_1.bin").write_bytes(bytes(4 * 200))
    (found,) = problems(root)
    assert (
        "dictionaries/cat_1.bin: has 800 bytes, feature cat_1 with cardinality 200 needs 796"
        in found
    )


def test_parquet_alone_carries_its_spec(tmp_path):
    root = write_dataset(tmp_path, ("parquet",), manifest=False)
    for name in ("feature_spec.yaml", "model_size.json"):
        (root / name).unlink()
    findings, report = verify(root)
    assert findings.problems == []
    assert "features  2 numerical, 3 categorical" in report
    part = root / "parquet/train/part_00001.parquet"
    pq.write_table(pq.read_table(part, partitioning=None).drop_columns(["num_0"]), part)
    assert any(f"{part}: columns ['num_0']" in p for p in problems(root))


def test_parquet_of_other_software_is_checked_without_a_spec(tmp_path, capsys):
    folder = tmp_path / "train"
    folder.mkdir()
    pq.write_table(pa.table({"label": [0, 1], "cat_0": [3, 4]}), folder / "part.0.parquet")
    assert main(["verify", str(tmp_path)]) == 0
    assert "by the largest ids --num_embeddings_per_feature 5\n" in capsys.readouterr().out
    (folder / "._part.0.parquet").write_bytes(b"leftover of macOS")
    assert main(["verify", str(tmp_path)]) == 0
    (folder / "part.0.parquet").write_bytes(b"PAR1")
    assert "part.0.parquet: not readable as parquet" in problems(tmp_path)[0]


def test_model_size_alone_needs_the_number_of_numerical_features(tmp_path):
    root = write_dataset(tmp_path, ("split",), manifest=False)
    (root / "feature_spec.yaml").unlink()
    assert any("not 64 rows x 13 features" in p for p in problems(root))
    assert problems(root, num_numerical=2) == []


def test_a_dataset_of_an_unknown_kind_is_a_problem(tmp_path):
    write_manifest(tmp_path, rows={}, positives={}, cardinalities=[], kind="graph")
    (problem,) = problems(tmp_path)
    assert "kind graph is unknown; update the code" in problem


def test_memory_does_not_grow_with_rows(tmp_path):
    spec = FeatureSpec.criteo((100,) * 4, num_numerical=4)
    peaks = []
    for rows in (300_000, 1_200_000):
        root = tmp_path / str(rows)
        (root / "train").mkdir(parents=True)
        spec.save(root)
        columns = make_columns(spec, 1000)
        for name, data in {
            "label.bin": columns.label,
            "numerical.bin": columns.numerical,
            **{f"cat_{i}.bin": c for i, c in enumerate(columns.categorical)},
        }.items():
            (root / "train" / name).write_bytes(data.tobytes() * (rows // 1000))
        tracemalloc.start()
        assert problems(root) == []
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


# the damaged file, how, and problems of which these fragments must be a part
DAMAGED = {
    "content": (
        "train/numerical.bin",
        overwrite(0, b"\x00\x3c\x00\x3c"),
        "train/numerical.bin: checksum ... copy it again",
    ),
    "size": (
        "train/cat_1.bin",
        cut(2),
        "train/cat_1.bin: has 126 bytes, the manifest says 128 ... copy it again",
        "train: the file sizes fit neither flavour ... cut short",
    ),
    "missing": (
        "test/label.bin",
        remove,
        "test/label.bin: is missing, the manifest lists it",
        "label.bin ... expects this file",
    ),
    "extra": (
        "train/cat_3.bin",
        put(bytes(64)),
        "train/cat_3.bin: is not in the manifest ... remove it",
        "cat_3.bin ... no feature",
    ),
    "id": (
        "test/cat_0.bin",
        overwrite(5, b"\x07\xff"),
        "test/cat_0.bin: feature cat_0, row 5: id 7 is outside [0, 5) (and 1 more ... prepare",
    ),
    "label": (
        "test/label.bin",
        overwrite(2, b"\x03"),
        "test/label.bin: feature label, row 2: value 3 is neither 0 nor 1",
    ),
    "numerical": (
        "test/numerical.bin",
        overwrite(0, bytes.fromhex("007c 00fc 017c 01fe") * 6),
        "numerical.bin: feature num_0, row 0: value inf is not finite (and 11 more rows)",
        "numerical.bin: feature num_1, row 0: value -inf is not finite (and 11 more rows)",
    ),
    "specs": (
        "model_size.json",
        edit("199", "198"),
        "model_size.json: feature cat_1: highest id 198, feature_spec.yaml has ... restore",
    ),
    "spec lengths": (
        "model_size.json",
        put('{"_c14": 4}'),
        "model_size.json: 1 features, feature_spec.yaml has 3",
    ),
    "spec and manifest": (
        "feature_spec.yaml",
        edit("cardinality: 5\n", "cardinality: 6\n"),
        "manifest.json: cardinalities [5, 200, 40000] differ",
    ),
    "declared dtype": (
        "feature_spec.yaml",
        edit("dtype: int16", "dtype: int32"),
        "train/cat_1.bin: feature cat_1 is stored as int16, feature_spec.yaml declares int32",
    ),
    "fingerprint": (
        "manifest.json",
        edit('"fingerprint": "', '"fingerprint": "0'),
        "manifest.json: the fingerprint does not belong to its list of files",
    ),
    "clicks": (
        "manifest.json",
        edit('"train": 16', '"train": 17'),
        "train: 16 clicks as split binary (narrow), the manifest says 17 ... prepare",
    ),
    "part": (
        "parquet/test/part_00000.parquet",
        overwrite(4, b"\xff" * 60),
        "part_00000.parquet: row group 0 is not readable ... prepare the dataset again",
    ),
    "part that is a FIFO": (
        "parquet/test/part_00000.parquet",
        fifo,
        "part_00000.parquet: not readable as parquet: is no regular file",
    ),
    "records": (
        "test_data.bin",
        cut(24),
        "test_data.bin: has 264",
        "12 rows as split binary ... 11 as binary records",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found(tmp_path, name):
    file, damage, *expected = DAMAGED[name]
    root = write_dataset(tmp_path)
    damage(root / file)
    found = problems(root)
    for problem in expected:
        fragments = problem.split(" ... ")
        assert any(all(f in line for f in fragments) for line in found), found


def test_all_problems_are_listed_at_once(tmp_path):
    root = write_dataset(tmp_path)
    for name, (file, damage, *_) in DAMAGED.items():
        if name in ("content", "id", "label", "numerical", "part", "clicks"):
            damage(root / file)
    text = "\n".join(problems(root))
    for column in ("feature cat_0", "feature label", "feature num_1", "row group 0", "16 clicks"):
        assert column in text
    assert text.count("checksum") == 5
