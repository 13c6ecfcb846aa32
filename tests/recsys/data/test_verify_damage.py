# SPDX-License-Identifier: Apache-2.0
"""What python -m dataspec.verify finds in damaged datasets: file, feature, row and value."""

import pytest

from recsys.data.verify.run import verify
from tests.recsys.data.damage import cut, edit, overwrite, put, remove
from tests.recsys.data.datasets import write_dataset


def problems(root):
    return verify(root)[0].problems


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
        overwrite(4 * 3 + 2, b"\x00\x7e"),
        "test/numerical.bin: feature num_1, row 3: value nan is not finite",
    ),
    "numerical values of every kind": (
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
