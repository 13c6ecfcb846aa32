# SPDX-License-Identifier: Apache-2.0
"""Datasets of other software, written byte by byte from the description of their formats.

No writer of this project takes part: the bytes come from struct.pack and literals.
"""

import json
import struct

import numpy as np
import pytest

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader
from recsys.data.verify.run import verify
from tests.harness import assert_tells, refusal
from tests.recsys.data.datasets import problems, write_manifest

ROWS = 3
LABELS = (1, 0, 1)
NUMERICAL = tuple(tuple(0.5 * row + column for column in range(13)) for row in range(ROWS))


def write_narrow(folder, ids, codes, *, label="label.bin", numerical="numerical.bin", names=None):
    """Writes a split in NVIDIA's layout; `codes` are struct codes b, h or i per feature."""
    folder.mkdir(parents=True)
    (folder / label).write_bytes(struct.pack("<3?", *map(bool, LABELS)))
    values = [v for row in NUMERICAL for v in row]
    (folder / numerical).write_bytes(struct.pack("<39e", *values))
    names = names or [f"cat_{i}.bin" for i in range(len(ids))]
    for name, column, code in zip(names, ids, codes, strict=True):
        (folder / name).write_bytes(struct.pack(f"<3{code}", *column))


def write_earlier_era(root, highest):
    """Writes a dataset of the era of model_size.json: each feature holds ids 0, 1, highest.

    The splitter of that era takes the smallest type whose maximum exceeds the highest *id*.
    """
    ids = [(0, min(1, h), h) for h in highest]
    codes = ["b" if h < 127 else "h" if h < 32_767 else "i" for h in highest]
    for split in ("train", "val", "test"):
        write_narrow(root / split, ids, codes)
    sizes = ", ".join(f'"_c{14 + i}": {h}' for i, h in enumerate(highest))
    (root / "model_size.json").write_bytes(b"{" + sizes.encode() + b"}")
    return ids


def check_rows(reader, ids):
    assert reader.num_rows == ROWS
    rows = reader.read(0, ROWS)
    assert rows.label.tolist() == [True, False, True]
    assert rows.numerical.tolist() == [list(r) for r in NUMERICAL]
    assert [c.tolist() for c in rows.categorical] == [list(c) for c in ids]


# 126 and 32766 are the highest ids whose table has 127 and 32767 rows: the splitter stored them
# in the smaller type, and the loader of that era read them as the larger one.
HIGHEST = (0, 125, 126, 127, 128, 32_765, 32_766, 32_767, 40_000_000)


@pytest.mark.parametrize("access", ["pread", "memmap"])
def test_earlier_era(tmp_path, access):
    ids = write_earlier_era(tmp_path, HIGHEST)
    spec = FeatureSpec.load(tmp_path)
    assert spec.table_sizes == tuple(h + 1 for h in HIGHEST)
    for split in ("train", "validation", "test"):
        reader = SplitBinaryReader(tmp_path, split, access=access)
        check_rows(reader, ids)
        widths = [c.dtype.itemsize for c in reader.read(0, ROWS).categorical]
        assert widths == [1, 1, 1, 2, 2, 2, 2, 4, 4]
        reader.close()
    findings, report = verify(tmp_path)
    assert findings.problems == []
    assert_tells(report, "manifest.json")
    stored = [w for w in findings.warnings if "int8" in w or "int16" in w]
    assert len(stored) == 6  # two features in three splits
    assert_tells(stored[0], "cat_2", "int8", "int16")


def test_the_order_in_model_size_is_the_order_of_tables(tmp_path):
    write_earlier_era(tmp_path, (300, 5))
    (tmp_path / "model_size.json").write_text('{"_c15": 300, "_c14": 5}')
    assert FeatureSpec.load(tmp_path).table_sizes == (301, 6)


def write_later_era(root, order=(0, 1, 2)):
    """Writes a dataset of the era of feature_spec.yaml, which leaves validation out."""
    ids = [(99, 0, 1), (126, 5, 0), (32_766, 2, 1)]
    for split in ("train", "test", "validation"):
        write_narrow(root / split, ids, "bhi")
    numerical, categorical = [f"num_{i}" for i in range(13)], [f"cat_{i}.bin" for i in range(3)]
    features = {name: {"dtype": "float16"} for name in numerical} | {"label": {"dtype": "bool"}}
    for name, dtype, rows in zip(
        categorical, ("int8", "int16", "int32"), (100, 127, 32_767), strict=True
    ):
        features[name] = {"dtype": dtype, "cardinality": rows}
    columns = [("numerical.bin", numerical), ("label.bin", ["label"])]
    columns += [(name, [name]) for name in categorical]
    document = {
        "feature_spec": features,
        "source_spec": {
            split: [
                {"type": "split_binary", "features": names, "files": [f"{split}/{file}"]}
                for file, names in columns
            ]
            for split in ("train", "test")
        },
        "channel_spec": {
            "categorical": [categorical[i] for i in order],
            "numerical": numerical,
            "label": ["label"],
        },
        "metadata": {},
    }
    (root / "feature_spec.yaml").write_text(json.dumps(document))  # YAML holds JSON
    return ids


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_later_era(tmp_path, order):
    """The order of the channel rules over the numbers of files, in every split."""
    names = [f"cat_{i}.bin" for i in order]
    ids = write_later_era(tmp_path, order)
    spec = FeatureSpec.load(tmp_path)
    assert [f.name for f in spec.categorical] == names
    assert spec.files["train"].categorical == tuple(f"train/{name}" for name in names)
    for split in ("train", "validation", "test"):  # validation is not in source_spec
        check_rows(SplitBinaryReader(tmp_path, split), [ids[i] for i in order])
    assert problems(tmp_path) == []


def test_source_spec_may_name_any_file(tmp_path):
    ids = write_later_era(tmp_path)
    path = tmp_path / "feature_spec.yaml"
    written = path.read_text()
    for name in ("train/clicks.bin", "clicks.bin"):
        path.write_text(written.replace("train/label.bin", name))
        (tmp_path / "train/label.bin").rename(tmp_path / name)
        check_rows(SplitBinaryReader(tmp_path, "train"), ids)
        (tmp_path / name).rename(tmp_path / "train/label.bin")
    # A file outside the folder of its split leaves validation to the standard names.
    spec = FeatureSpec.load(tmp_path)
    assert spec.files["train"].moved("train", "validation") is None
    check_rows(SplitBinaryReader(tmp_path, "validation"), ids)


def write_wide(folder, ids):
    """Writes a split in the layout of TorchRec with NVTabular: 4 bytes everywhere."""
    folder.mkdir(parents=True)
    (folder / "label.bin").write_bytes(struct.pack("<3f", *LABELS))
    (folder / "numerical.bin").write_bytes(struct.pack("<39f", *[v for r in NUMERICAL for v in r]))
    for i, column in enumerate(ids):
        (folder / f"cat_{i}.bin").write_bytes(struct.pack("<3i", *column))


@pytest.mark.parametrize("base", [".", "split"])
@pytest.mark.parametrize("access", ["pread", "memmap"])
def test_the_wide_flavour_is_detected(tmp_path, base, access):
    ids = [(i, 0, 2 * i) for i in range(26)]
    for split in ("train", "validation", "test"):
        write_wide(tmp_path / base / split, ids)
    sizes = sum(p.stat().st_size for p in (tmp_path / base / "train").iterdir())
    assert sizes == 160 * ROWS
    with refusal("feature_spec.yaml", "TorchRec", "model_size.json", kind=DatasetError):
        SplitBinaryReader(tmp_path, "train")
    (tmp_path / "model_size.json").write_text(json.dumps({f"_c{14 + i}": 60 for i in range(26)}))
    for split in ("train", "validation", "test"):
        reader = SplitBinaryReader(tmp_path, split, access=access)
        assert reader.flavour == "wide"
        check_rows(reader, ids)
        rows = reader.read(1, 2)
        assert rows.numerical.dtype == np.float32
        assert {c.dtype for c in rows.categorical} == {np.dtype(np.int32)}
        reader.close()
    findings, report = verify(tmp_path)
    assert findings.problems == []
    assert "split binary (wide)" in report


@pytest.mark.parametrize(
    ("label", "numerical", "flavour", "rows"),
    [
        # label.bin is one float32, as a wide row of all-int8 ids would have
        (b"\0\0\0\1", struct.pack("<4e", 1, 2, 3, 4), "narrow", 4),
        # sizes cannot tell: the first label that is not 0 does
        (b"\0\0\0\1" * 2, b"", "narrow", 8),
        (struct.pack("<2f", 0, 1), b"", "wide", 2),
    ],
)
def test_one_byte_features_do_not_hide_the_flavour(tmp_path, label, numerical, flavour, rows):
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "label.bin").write_bytes(label)
    (folder / "numerical.bin").write_bytes(numerical)
    (folder / "cat_0.bin").write_bytes(b"\1\0\0\0" * (len(label) // 4))
    spec = FeatureSpec.criteo([9], num_numerical=int(bool(numerical)))
    reader = SplitBinaryReader(tmp_path, "train", spec)
    assert (reader.flavour, reader.num_rows) == (flavour, rows)
    assert reader.read(0, rows).label.sum() == label.count(b"\1") + label.count(b"\x3f")


def test_ambiguous_sizes_with_no_click_are_refused_unless_a_manifest_tells(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "label.bin").write_bytes(bytes(8))
    (folder / "cat_0.bin").write_bytes(bytes(8))
    spec = FeatureSpec.criteo([9], num_numerical=0)
    with refusal(folder, "manifest.json", kind=DatasetError):
        SplitBinaryReader(tmp_path, "train", spec)
    for rows, flavour in ((8, "narrow"), (2, "wide")):
        (tmp_path / "manifest.json").unlink(missing_ok=True)
        write_manifest(tmp_path, rows={"train": rows}, positives={}, cardinalities=[9])
        assert SplitBinaryReader(tmp_path, "train", spec).flavour == flavour
