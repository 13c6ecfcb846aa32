# SPDX-License-Identifier: Apache-2.0
"""New rows of a log with a schema: in memory, as lines or fields, and as another dataset."""

import numpy as np
import pytest

from preproc.clicks import __main__ as program
from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.line_transform import LineTransform
from recsys.errors import BadRowError
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.schema_log import (
    LINE,
    NAMES,
    SINGLE,
    columns_of,
    prepare,
    rows,
    text_of,
    write_log,
    write_schema,
)
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

TRAINED, NEW = 900, 200
USED = [name for name in LINE if name != "note"]


SPLIT = {"rows": [TRAINED, 0, NEW]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset whose last rows are its test split, and these rows."""
    folder = tmp_path_factory.mktemp("schema")
    table = write_log(folder, TRAINED + NEW, seed=3)
    prepare(folder / "log.csv", write_schema(folder, split=SPLIT), folder / "dataset")
    return folder / "dataset", table[TRAINED:]


@pytest.fixture(scope="module")
def transform(made):
    dataset, _ = made
    path = dataset.parent / "features.bin"
    write_feature_file(dataset, path, "float32")
    return LineTransform(path)


def test_lines_and_fields_have_the_features_of_the_dataset(made, transform):
    dataset, table = made
    row = semantics_of_dataset(dataset, {}).line_format
    assert (list(row.names), list(row.features)) == (LINE, USED)
    spec, reader = columns_of(dataset, "test")
    expected = reader.read(0, NEW)
    lines = text_of(table, list(row.names)).splitlines()[1:]
    fields = [[each[name].encode() for name in row.features] for each in table]
    for features in (transform.transform(lines), transform.transform_fields(fields)):
        numerical = np.asarray(expected.numerical, np.float32)
        assert features.numerical.tobytes() == numerical.tobytes()
        assert np.array_equal(features.ids[:, : len(SINGLE)], np.stack(expected.categorical, 1))
    tables = (*spec.categorical, *spec.lists)
    assert transform.cardinalities == tuple(f.cardinality for f in tables)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_two_characters_may_stand_between_fields(made, transform, tmp_path, engine):
    """As MovieLens has them; also between those of a line."""
    dataset, new = made
    table = rows(TRAINED + NEW, seed=3)
    text = text_of(table, delimiter="::")
    (tmp_path / "log").write_bytes(text)
    schema = write_schema(tmp_path, split=SPLIT, dialect={"delimiter": "::"})
    prepare(tmp_path / "log", schema, tmp_path / "made", engine=engine)
    for path in sorted(path for path in dataset.rglob("*.bin") if path.name != "features.bin"):
        assert (tmp_path / "made" / path.relative_to(dataset)).read_bytes() == path.read_bytes()
    write_feature_file(tmp_path / "made", tmp_path / "features.bin", "float32")
    lines = text_of(new, LINE, delimiter="::").splitlines()[1:]
    with LineTransform(tmp_path / "features.bin") as opened:
        made_of_lines = opened.transform(lines)
        expected = transform.transform(text_of(new, LINE).splitlines()[1:])
        assert np.array_equal(made_of_lines.ids, expected.ids)
        assert made_of_lines.numerical.tobytes() == expected.numerical.tobytes()
        with refusal("seen", "'2x'", kind=BadRowError, row=0):
            opened.transform([b"::".join([b"", b"1", b"2x", *[b""] * (len(LINE) - 3)])])
        with refusal("2", len(LINE), "'::'", kind=BadRowError, row=0):
            opened.transform([b"1;2::3"])


@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("price", "1.5", ["'1.5'", "(integer)", 32]),
        ("weight", "nan", ["'nan'", "(number)"]),
        ("item", "xyz", ["'xyz'", "(hex)", 8]),
        ("shop", "\udc85", [r"'\x85'", "(encoding)", "UTF-8"]),
        ("shop", "é" * 513, ["(string)", 1024]),
        ("when", "1.13.2026 9:00", ["'1.13.2026 9:00'", "(time)", 1970, 2199, "%d.%m.%Y %H:%M"]),
        ("sku", "7.5", ["'7.5'", "(integer)", 64]),
    ],
)
def test_a_wrong_field_is_named_by_its_column(made, transform, name, value, facts):
    _, table = made
    good, bad = dict(table[0]), table[0] | {name: value}
    lines = text_of([good, bad], LINE).split(b"\n")[1:-1]
    fields = [[row[n].encode(errors="surrogateescape") for n in USED] for row in (good, bad)]
    for call, given in ((transform.transform, lines), (transform.transform_fields, fields)):
        with refusal(name, *facts, kind=BadRowError, row=1):
            call(given)


def test_a_line_of_other_fields_is_refused(transform):
    with refusal(3, 20, "';'", kind=BadRowError):
        transform.transform([b"1;2;3"])
    with refusal("price", "(quote)", kind=BadRowError):
        transform.transform([b'1;"2;3'])
    with refusal("seen", r"'2\t3'", kind=BadRowError):
        transform.transform_fields([[b"", b"1", b"2\t3", *[b""] * (len(USED) - 3)]])


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("form", ["labelled", "label_unread", "without_label"])
def test_dictionaries_of_a_dataset_give_new_rows_the_same_bytes(made, tmp_path, engine, form):
    dataset, table = made
    left_out = {"labelled": (), "label_unread": ("note",), "without_label": ("bought",)}[form]
    names = [name for name in reversed(NAMES) if name not in left_out]
    (tmp_path / "new.csv").write_bytes(text_of(table, names))
    flags = [f"--input={tmp_path / 'new.csv'}", f"--output={tmp_path / 'new'}"]
    flags += [f"--dictionaries={dataset}", f"--engine={engine}", "--progress=none"]
    flags += [] if form == "labelled" else ["--unlabelled"]
    assert program.main(["prepare", *flags]) == 0
    for path in sorted((dataset / "test").iterdir()):
        made_here = (tmp_path / "new" / "test" / path.name).read_bytes()
        if path.name == "label.bin" and form != "labelled":
            assert made_here == bytes(len(made_here))
        else:
            assert made_here == path.read_bytes(), path.name


def test_a_header_without_the_label_is_refused_where_one_is_expected(made, tmp_path, capsys):
    dataset, table = made
    (tmp_path / "new.csv").write_bytes(text_of(table, [n for n in NAMES if n != "bought"]))
    flags = (f"--input={tmp_path / 'new.csv'}", f"--output={tmp_path / 'new'}")
    assert program.main(["prepare", *flags, f"--dictionaries={dataset}"]) == 2
    assert_tells(capsys.readouterr().err, tmp_path / "new.csv", "'bought'", "--unlabelled")
