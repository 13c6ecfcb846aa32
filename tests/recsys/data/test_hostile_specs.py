# SPDX-License-Identifier: Apache-2.0
"""Malformed specs and manifests: each is refused, naming the file and what to do."""

import json

import pytest

from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest
from tests.recsys.data.damage import MODEL_SIZE, SPEC_FILE, Case, assert_refused, edit, put, remove


def edit_manifest(key: str, value: object):
    def damage(root):
        document = json.loads((root / "manifest.json").read_text())
        document[key] = value
        (root / "manifest.json").write_text(json.dumps(document))

    return damage


def only_model_size(content: str):
    def damage(root):
        (root / SPEC_FILE).unlink()
        (root / MODEL_SIZE).write_text(content)

    return damage


load_spec, load_manifest = FeatureSpec.load, Manifest.load
BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)

CASES = {
    # feature_spec.yaml
    "spec is no YAML": Case(put(SPEC_FILE, "a: [1"), load_spec, SPEC_FILE, "not readable as YAML"),
    "spec is binary": Case(put(SPEC_FILE, b"\xff\xfe\x00"), load_spec, SPEC_FILE, "not readable"),
    "spec is empty": Case(put(SPEC_FILE, ""), load_spec, SPEC_FILE, "a mapping.*dataset_format"),
    "spec runs code": Case(
        put(SPEC_FILE, "!!python/object/apply:os.getcwd []"), load_spec, SPEC_FILE, "not readable"
    ),
    "spec is deep": Case(put(SPEC_FILE, "[" * 3000), load_spec, SPEC_FILE, "not readable"),
    "spec multiplies": Case(
        put(SPEC_FILE, BOMB + "feature_spec: *i\n"), load_spec, SPEC_FILE, "must be a mapping"
    ),
    "spec key twice": Case(
        edit(SPEC_FILE, "  cat_1:\n", "  cat_0:\n"), load_spec, SPEC_FILE, "'cat_0' is there twice"
    ),
    "no channel_spec": Case(
        edit(SPEC_FILE, "channel_spec:", "channels:"), load_spec, SPEC_FILE, "'channel_spec' must"
    ),
    "unknown feature": Case(
        edit(SPEC_FILE, "  - cat_1\n", "  - cat_9\n"),
        load_spec,
        SPEC_FILE,
        r"names unknown features: \['cat_9'\]; describe them",
    ),
    "feature in two channels": Case(
        edit(SPEC_FILE, "  - cat_1\n", "  - num_0\n"), load_spec, SPEC_FILE, "num_0.*must be an int"
    ),
    "feature listed twice": Case(
        lambda root: [
            edit(SPEC_FILE, "  - cat_1\n", "  - cat_0\n")(root),
            edit(SPEC_FILE, "source_spec:", "unused:")(root),
        ],
        load_spec,
        SPEC_FILE,
        r"must differ, used more than once: \['cat_0'\]",
    ),
    "channel is no list": Case(
        edit(SPEC_FILE, "  label:\n  - label\n", "  label: label\n"),
        load_spec,
        SPEC_FILE,
        "channel_spec.label must be a list of names, got 'label'",
    ),
    "two labels": Case(
        edit(SPEC_FILE, "  label:\n  - label\n", "  label:\n  - label\n  - num_0\n"),
        load_spec,
        SPEC_FILE,
        "label must name one",
    ),
    "cardinality is text": Case(
        edit(SPEC_FILE, "cardinality: 200", "cardinality: auto"),
        load_spec,
        SPEC_FILE,
        "cat_1.cardinality must be an integer, got 'auto'.*resolved when the dataset is prepared",
    ),
    "cardinality is 0": Case(
        edit(SPEC_FILE, "cardinality: 200", "cardinality: 0"), load_spec, SPEC_FILE, "at least 1"
    ),
    "cardinality is huge": Case(
        edit(SPEC_FILE, "cardinality: 200", "cardinality: 2147483647"),
        load_spec,
        SPEC_FILE,
        "feature cat_1: a cardinality of 2147483647 does not fit int32.*category_modulus",
    ),
    "ids are floats": Case(
        edit(SPEC_FILE, "dtype: int16", "dtype: float32"),
        load_spec,
        SPEC_FILE,
        "cat_1.dtype must be one of int8, int16, int32, got 'float32'",
    ),
    "numerical is float64": Case(
        lambda root: [edit(SPEC_FILE, "float16", "float64")(root) for _ in range(2)],
        load_spec,
        SPEC_FILE,
        "numerical dtype must be float16 or float32, got float64",
    ),
    "numerical dtypes differ": Case(
        edit(SPEC_FILE, "float16", "float32"), load_spec, SPEC_FILE, "must share one dtype"
    ),
    "chunk of another type": Case(
        edit(SPEC_FILE, "type: split_binary", "type: csv"),
        load_spec,
        SPEC_FILE,
        "source_spec.test: type must be split_binary, got 'csv'",
    ),
    "chunk without files": Case(
        edit(SPEC_FILE, "    files:\n    - test/label.bin\n", ""),
        load_spec,
        SPEC_FILE,
        "each chunk needs type, features and files",
    ),
    "chunk of two files": Case(
        edit(SPEC_FILE, "- test/label.bin", "- test/label.bin\n    - test/more.bin"),
        load_spec,
        SPEC_FILE,
        "exactly one file",
    ),
    "file outside the dataset": Case(
        edit(SPEC_FILE, "test/label.bin", "../../secret"),
        load_spec,
        SPEC_FILE,
        "'../../secret' must be a path inside the dataset folder",
    ),
    "absolute file": Case(
        edit(SPEC_FILE, "test/label.bin", "/secret"), load_spec, SPEC_FILE, "path inside the"
    ),
    "file for two features": Case(
        edit(SPEC_FILE, "test/cat_1.bin", "test/cat_0.bin"), load_spec, SPEC_FILE, "in two chunks"
    ),
    "feature without file": Case(
        edit(SPEC_FILE, "  - features:\n    - cat_1\n", "  - features:\n    - other\n"),
        load_spec,
        SPEC_FILE,
        r"no chunk holds exactly the features \['cat_1'\].*need a chunk of their own",
    ),
    # model_size.json
    "no spec at all": Case(
        lambda root: [(root / n).unlink() for n in (SPEC_FILE, MODEL_SIZE)],
        load_spec,
        "neither feature_spec.yaml nor model_size.json",
        "prepare_dataset.sh makes one",
    ),
    "sizes are no JSON": Case(only_model_size("{"), load_spec, MODEL_SIZE, "JSON.*restore"),
    "sizes are deep": Case(only_model_size("[" * 99_999), load_spec, MODEL_SIZE, "JSON.*restore"),
    "sizes are a list": Case(only_model_size("[1]"), load_spec, MODEL_SIZE, r"expected \{\"_c14\""),
    "sizes are negative": Case(
        only_model_size('{"_c14": -1}'), load_spec, MODEL_SIZE, "integers >= 0, got .'_c14': -1"
    ),
    "sizes key twice": Case(
        only_model_size('{"_c14": 1, "_c14": 2}'), load_spec, MODEL_SIZE, "'_c14' is there twice"
    ),
    "sizes are huge": Case(
        only_model_size('{"_c14": 2147483646}'), load_spec, MODEL_SIZE, "does not fit int32"
    ),
    # manifest.json
    "no manifest": Case(
        remove("manifest.json"), load_manifest, "manifest.json", "missing.*prepare"
    ),
    "manifest is no JSON": Case(
        put("manifest.json", "{'"), load_manifest, "manifest.json", "not readable as JSON"
    ),
    "manifest of others": Case(
        put("manifest.json", "{}"), load_manifest, "manifest.json", "key format.*remove it"
    ),
    "manifest of the future": Case(
        edit_manifest("format_version", 2),
        load_manifest,
        "manifest.json",
        "format version 2, this code reads 1; update the code",
    ),
    "manifest key unknown": Case(
        edit_manifest("colour", "red"), load_manifest, "manifest.json", "unknown keys: colour"
    ),
    "manifest rows negative": Case(
        edit_manifest("rows", {"train": -1}), load_manifest, "manifest.json", "rows is malformed"
    ),
    "manifest file outside": Case(
        edit_manifest("files", {"../x": {"bytes": 1, "xxh3_128": ""}}),
        load_manifest,
        "manifest.json",
        "files is malformed.*prepare",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_is_refused(tmp_path, name):
    assert_refused(CASES[name], tmp_path)
