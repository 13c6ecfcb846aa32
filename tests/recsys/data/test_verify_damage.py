# SPDX-License-Identifier: Apache-2.0
"""What python -m dataspec.verify finds in damaged datasets: file, feature, row and value."""

import pytest

from recsys.data.verify.run import verify
from tests.recsys.data.damage import cut, edit, overwrite, put, remove
from tests.recsys.data.datasets import write_dataset


def problems(root):
    return verify(root)[0].problems


# name -> (damage, lists of fragments; each list must stand in one problem)
DAMAGED = {
    "content": (
        overwrite("train/numerical.bin", 0, b"\x00\x3c\x00\x3c"),
        [["train/numerical.bin: checksum", "copy it again"]],
    ),
    "size": (
        cut("train/cat_1.bin", 2),
        [
            ["train/cat_1.bin: has 126 bytes, the manifest says 128", "copy it again"],
            ["train: the file sizes fit neither flavour", "cut short"],
        ],
    ),
    "missing": (
        remove("test/label.bin"),
        [["test/label.bin: is missing, the manifest lists it"], ["label.bin", "expects this file"]],
    ),
    "extra": (
        put("train/cat_3.bin", bytes(64)),
        [["train/cat_3.bin: is not in the manifest", "remove it"], ["cat_3.bin", "no feature"]],
    ),
    "id": (
        overwrite("test/cat_0.bin", 5, b"\x07\xff"),
        [["test/cat_0.bin: feature cat_0, row 5: id 7 is outside [0, 5) (and 1 more", "prepare"]],
    ),
    "label": (
        overwrite("test/label.bin", 2, b"\x03"),
        [["test/label.bin: feature label, row 2: value 3 is neither 0 nor 1"]],
    ),
    "numerical": (
        overwrite("test/numerical.bin", 4 * 3 + 2, b"\x00\x7e"),
        [["test/numerical.bin: feature num_1, row 3: value nan is not finite"]],
    ),
    "numerical values of every kind": (
        overwrite("test/numerical.bin", 0, bytes.fromhex("007c 00fc 017c 01fe") * 6),
        [
            ["numerical.bin: feature num_0, row 0: value inf is not finite (and 11 more rows)"],
            ["numerical.bin: feature num_1, row 0: value -inf is not finite (and 11 more rows)"],
        ],
    ),
    "specs": (
        edit("model_size.json", "199", "198"),
        [["model_size.json: feature cat_1: highest id 198, feature_spec.yaml has", "restore"]],
    ),
    "spec lengths": (
        put("model_size.json", '{"_c14": 4}'),
        [["model_size.json: 1 features, feature_spec.yaml has 3"]],
    ),
    "spec and manifest": (
        edit("feature_spec.yaml", "cardinality: 5\n", "cardinality: 6\n"),
        [["manifest.json: cardinalities [5, 200, 40000] differ"]],
    ),
    "declared dtype": (
        edit("feature_spec.yaml", "dtype: int16", "dtype: int32"),
        [["train/cat_1.bin: feature cat_1 is stored as int16, feature_spec.yaml declares int32"]],
    ),
    "spec": (put("feature_spec.yaml", "a: 1"), [["feature_spec.yaml: key 'feature_spec' must"]]),
    "manifest": (put("manifest.json", "a"), [["manifest.json: not readable as JSON"]]),
    "fingerprint": (
        edit("manifest.json", '"fingerprint": "', '"fingerprint": "0'),
        [["manifest.json: the fingerprint does not belong to its list of files"]],
    ),
    "clicks": (
        edit("manifest.json", '"train": 16', '"train": 17'),
        [["train: 16 clicks as split binary (narrow), the manifest says 17", "prepare"]],
    ),
    "part": (
        overwrite("parquet/test/part_00000.parquet", 4, b"\xff" * 60),
        [["part_00000.parquet: row group 0 is not readable", "prepare the dataset again"]],
    ),
    "records": (
        cut("test_data.bin", 24),
        [["test_data.bin: has 264"], ["12 rows as split binary", "11 as binary records"]],
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found(tmp_path, name):
    damage, expected = DAMAGED[name]
    root = write_dataset(tmp_path)
    damage(root)
    found = problems(root)
    for fragments in expected:
        assert any(all(f in line for f in fragments) for line in found), found


def test_all_problems_are_listed_at_once(tmp_path):
    root = write_dataset(tmp_path)
    for name, (damage, _) in DAMAGED.items():
        if name in ("content", "id", "label", "numerical", "part", "clicks"):
            damage(root)
    text = "\n".join(problems(root))
    for column in ("feature cat_0", "feature label", "feature num_1", "row group 0", "16 clicks"):
        assert column in text
    assert text.count("checksum") == 5
