# SPDX-License-Identifier: Apache-2.0
"""Folders of parts, as Spark and others leave them: what is read, in which order, what is told."""

import gzip
import random
from pathlib import Path

import fsspec
import pytest
import yaml

from preproc.files.raw.parts import parts_of
from recsys.data.manifest import Manifest
from tests.preproc.programs import called
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

HEADER = "click,price,site\n"
SCHEMA = {
    "label": {"column": "click"},
    "columns": [
        {"name": "price", "role": "numerical", "type": "float"},
        {"name": "site", "role": "categorical", "type": "string"},
    ],
    "split": {"fractions": [0.8, 0.1, 0.1]},
}
HOURS = [f"hour_{hour}.csv" for hour in range(12)]


def rows_of(hour: int) -> str:
    draw = random.Random(hour)
    return "".join(
        f"{int(draw.random() < 0.3)},{hour}.{i},{draw.choice('abcdef')}\n" for i in range(20)
    )


@pytest.fixture
def schema(tmp_path) -> Path:
    path = tmp_path / "schema.yaml"
    path.write_text(yaml.safe_dump(SCHEMA))
    return path


@pytest.fixture
def whole(tmp_path, schema) -> Manifest:
    """The dataset of all rows in one file, hour by hour."""
    (tmp_path / "whole.csv").write_text(HEADER + "".join(map(rows_of, range(12))))
    return prepared(tmp_path / "whole.csv", schema)[0]


@pytest.fixture
def parts(tmp_path) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    for hour, name in enumerate(HOURS):
        (folder / name).write_text(HEADER + rows_of(hour))
    return folder


def prepared(source: object, schema: Path, *flags: str) -> tuple[Manifest, str]:
    """Returns the dataset of a log, and what was printed."""
    output = schema.parent / "made"
    words = (f"--input={source}", f"--schema={schema}", f"--output={output}", "--overwrite")
    errors = called("clicks", *words, *flags)
    return Manifest.load(output), errors


def spark_leaves(folder: Path) -> None:
    """Adds marks, checksums and parts without rows."""
    for mark in ("_SUCCESS", "_committed_42", "_started_42", "._SUCCESS.crc", ".hour_0.csv.crc"):
        (folder / mark).write_bytes(b"crc\0" if "crc" in mark else b"")
    (folder / "_temporary").mkdir()
    (folder / "hour_12.csv").touch()
    (folder / "hour_13.csv").write_text(HEADER)
    (folder / "hour_14.csv").write_text(HEADER.rstrip())
    (folder / "hour_15.csv").write_text(HEADER + "\n")
    (folder / "hour_16.csv.gz").write_bytes(gzip.compress(b""))
    (folder / "hour_17.csv.gz").write_bytes(gzip.compress(HEADER.encode()))
    (folder / "hour_18.csv").write_text("\n\n")


ENGINES = ["reference", pytest.param("native", marks=needs("compiled Criteo kernel"))]
OF_ONE_MACHINE = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.parametrize("engine", [*ENGINES, pytest.param("spark", marks=needs("Spark"))])
def test_parts_are_read_by_the_numbers_in_their_names(parts, schema, whole, engine, request):
    if engine == "spark":
        request.getfixturevalue("spark_session")
    spark_leaves(parts)
    made, errors = prepared(parts, schema, f"--engine={engine}")
    assert made.files == whole.files
    assert [source["name"] for source in made.source_files] == HOURS
    line = next(line for line in errors.splitlines() if str(parts) in line)
    assert "12" in line
    assert line.index(HOURS[0]) < line.index(HOURS[-1])
    assert "7" in line, "parts without rows"
    assert "_SUCCESS" in line


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\r\n\n"])
@OF_ONE_MACHINE
def test_each_part_may_end_with_blank_lines(parts, schema, whole, engine, end):
    for number, path in enumerate(sorted(parts.iterdir())):
        text = path.read_bytes() + end.encode()
        if number % 2:
            path.write_bytes(text)
        else:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text))
            path.unlink()
    made, _ = prepared(parts, schema, f"--engine={engine}")
    assert made.files == whole.files


@OF_ONE_MACHINE
def test_a_blank_line_inside_is_a_rejected_row(parts, schema, whole, engine):
    for name in (HOURS[0], HOURS[7]):
        lines = (parts / name).read_text().splitlines(keepends=True)
        (parts / name).write_text("".join([*lines[:9], "\n", *lines[9:]]) + "\n")
    made, _ = prepared(parts, schema, f"--engine={engine}", "--max_bad_fraction=0.1")
    assert made.rejected["columns"] == 2
    assert (
        made.files.items()
        >= {
            name: described for name, described in whole.files.items() if name.endswith(".bin")
        }.items()
    )


@pytest.mark.parametrize("name", ["day=0", "day=10", "more"])
@pytest.mark.parametrize("infers", [False, True])
def test_folders_within_a_folder_are_refused(parts, schema, tmp_path, name, infers):
    (parts / name).mkdir()
    (parts / name / "part-0.csv").write_text(HEADER + rows_of(0))
    made = ("--schema", schema, "--output", tmp_path / "made")
    words = ("--input", parts, *(("--infer", tmp_path / "draft.yaml") if infers else made))
    error = called("clicks", *words, status=2)
    assert name in error
    assert "--input" in error
    assert not (tmp_path / "made").exists()


def test_folders_of_a_remote_folder_are_refused(parts, schema, tmp_path):
    system = fsspec.filesystem("memory")
    system.put(str(parts), "/parts", recursive=True)
    made, _ = prepared("memory://parts", schema)
    assert [source["name"] for source in made.source_files] == HOURS
    system.put(str(parts), "/parts/day=0", recursive=True)
    words = ("--input=memory://parts", f"--schema={schema}", f"--output={tmp_path / 'other'}")
    assert "day=0" in called("clicks", *words, status=2)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("text", ["", HEADER])
def test_a_folder_without_rows_is_refused(schema, tmp_path, text):
    folder = tmp_path / "empty"
    folder.mkdir()
    words = ("--input", folder, "--schema", schema, "--output", tmp_path / "made")
    for _ in range(2):
        error = called("clicks", *words, status=2)
        assert str(folder) in error
        (folder / "part-0.csv").write_text(text)
        (folder / "_SUCCESS").touch()
    assert "--input" in called("clicks", *words, status=2)


def test_a_long_first_row_is_not_taken_for_no_row(parts, schema):
    (parts / HOURS[5]).write_text(HEADER + "1,2," + "a" * 600_000 + "\n" + rows_of(5))
    words = (f"--input={parts}", f"--schema={schema}", f"--output={parts.parent / 'made'}")
    assert HOURS[5] in called("clicks", *words, status=2)


def test_infer_takes_a_folder_as_prepare_does(parts, tmp_path):
    spark_leaves(parts)
    draft = tmp_path / "draft.yaml"
    errors = called("clicks", "--input", parts, "--infer", draft)
    assert "_SUCCESS" in errors
    drafted = yaml.safe_load(draft.read_text())
    assert drafted["dialect"]["header"] is True
    assert [column["name"] for column in drafted["columns"]] == ["price", "site"]
    assert drafted["label"]["column"] == "click"
    made, _ = prepared(parts, draft)
    assert sum(made.rows.values()) == 240


def test_names_with_several_numbers(tmp_path):
    names = ["d2_h10.csv", "d2_h9.csv", "d10_h1.csv", "d2.csv", "a.csv", "d02_h9.csv", "10", "9"]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in parts_of(tmp_path)] == [
        *("9", "10", "a.csv", "d2.csv"),
        *("d02_h9.csv", "d2_h9.csv", "d2_h10.csv", "d10_h1.csv"),
    ]


def test_files_of_a_split_may_lie_elsewhere(tmp_path, parts, schema):
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.write_text(HEADER + rows_of(0))
    files = {"train": HOURS[1:], "validation": [], "test": [str(elsewhere)]}
    schema.write_text(yaml.safe_dump(SCHEMA | {"split": {"files": files}}))
    made, _ = prepared(parts, schema)
    assert made.rows == {"train": 220, "validation": 0, "test": 20}


def test_a_part_of_one_column_may_hold_missing_rows_alone(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.csv").write_text("click,site\n" + "1,a\n0,b\n" * 30)
    columns = [{"name": "site", "role": "categorical", "type": "string"}]
    schema = tmp_path / "schema.yaml"
    schema.write_text(yaml.safe_dump(SCHEMA | {"columns": columns}))
    prepared(folder, schema)
    new = tmp_path / "new"
    new.mkdir()
    (new / "a.csv").write_text("site\na\n")
    (new / "b.csv").write_text("site\n\n\n")
    output = tmp_path / "rows"
    words = (f"--input={new}", f"--output={output}", f"--dictionaries={tmp_path / 'made'}")
    called("clicks", *words, "--unlabelled")
    assert Manifest.load(output).rows["test"] == 3
