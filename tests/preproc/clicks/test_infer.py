# SPDX-License-Identifier: Apache-2.0
"""Drafts of schemas: what they say of logs whose columns are known, and that they can be used."""

import datetime
import gzip
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from preproc.clicks import __main__ as program
from preproc.clicks.schema.draft.infer import infer_schema
from preproc.clicks.schema.read import load_schema
from preproc.files.errors import PreprocError
from recsys.data.manifest import Manifest
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.schema_log import columns_of as columns_of_dataset
from tests.preproc.clicks.schema_log import prepare


def columns_of(draft: str) -> dict[str, dict[str, object]]:
    """Returns the columns of a draft by name, without their names."""
    entries = yaml.safe_load(draft)["columns"]
    return {entry.pop("name"): entry for entry in entries}


def prepared(log: Path, *flags: str) -> Manifest:
    """Prepares a log by its draft as it is, by default without a row left out."""
    schema, output = log.with_name("schema.yaml"), log.with_name("data")
    schema.write_text(infer_schema(log))
    made = (f"--output={output}", "--progress=none", "--max_bad_fraction=0", *flags)
    assert program.main(["prepare", f"--input={log}", f"--schema={schema}", *made]) == 0
    return Manifest.load(output)


def write_log(path: Path, rows: int, header: bool = True, delimiter: str = ",") -> None:
    rng = random.Random(3)
    lines = ["id,click,age,price,code,plz,city,hash,seen,empty"] if header else []
    for i in range(rows):
        fields = [
            *(f"{i + 10**20}", rng.choice("0001"), str(int(rng.expovariate(0.05)))),
            *(f"{rng.random():.3f}", str(rng.choice([7, 300, 12, 5])), f"0{rng.randrange(500)}"),
            *(rng.choice(["Köln", "Rom", ""]), f"{rng.randrange(300) * 2654435761 % 2**32:08x}"),
            *(rng.choice(["-1", "4", "9"]), ""),
        ]
        lines.append(",".join(fields))
    path.write_text("\n".join(lines).replace(",", delimiter) + "\n")


EXPECTED = {
    "id": {"role": "ignored"},
    "age": {"role": "numerical", "type": "int"},
    "price": {"role": "numerical", "type": "float"},
    "code": {"role": "categorical", "type": "int"},
    "plz": {"role": "categorical", "type": "string"},
    "city": {"role": "categorical", "type": "string"},
    "hash": {"role": "categorical", "type": "hex"},
    "seen": {"role": "categorical", "type": "int", "missing": ["-1"]},
    "empty": {"role": "ignored"},
}


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|", "::"])
def test_each_column_has_the_role_of_its_values(delimiter, tmp_path):
    write_log(tmp_path / "log.csv", 2000, delimiter=delimiter)
    draft = infer_schema(tmp_path / "log.csv")
    assert columns_of(draft) == EXPECTED
    assert yaml.safe_load(draft)["dialect"]["delimiter"] == delimiter
    assert yaml.safe_load(draft)["label"] == {"column": "click"}


def test_fields_in_quotes_are_read(tmp_path):
    (tmp_path / "log").write_text('"click",a,b\n' + '1,"x, 1",7\n0,"y ""2""",8\n' * 9)
    draft = infer_schema(tmp_path / "log")
    assert yaml.safe_load(draft)["dialect"]["quote"] == '"'
    assert columns_of(draft)["a"] == {"role": "categorical", "type": "string"}


def test_a_log_without_a_header_has_numbered_columns(tmp_path):
    write_log(tmp_path / "log.csv", 500, header=False)
    columns = columns_of(infer_schema(tmp_path / "log.csv"))
    assert columns.pop("c1") == {"role": "label"}
    assert list(columns.values()) == list(EXPECTED.values())


def test_middle_and_tail_of_a_long_log_are_read(tmp_path):
    write_log(tmp_path / "log.csv", 80_000)
    with (tmp_path / "log.csv").open("a") as file:
        file.write("1,1,1,x,1,1,1,1,1,1\n" * 3)
    assert (tmp_path / "log.csv").stat().st_size > 2**22
    assert re.search(r"\b3 .*'x'", infer_schema(tmp_path / "log.csv"))


def test_a_draft_is_a_schema(tmp_path, capsys):
    write_log(tmp_path / "log.csv", 3000)
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
    words = ["", f"--input={tmp_path / 'log.csv.gz'}"]
    schema = tmp_path / "schema.yaml"
    assert program.main([*words, f"--infer={schema}"]) == 0
    assert capsys.readouterr().out == f"{schema}\n"
    assert program.main([*words, f"--infer={schema}"]) == 2
    assert_tells(capsys.readouterr().err, "--infer", schema)
    made = (f"--schema={schema}", f"--output={tmp_path / 'made'}", "--engine=reference")
    assert program.main([*words, *made]) == 0
    assert Manifest.load(tmp_path / "made").rows == {"train": 2400, "validation": 300, "test": 300}


def test_the_logs_of_avazu_and_criteo(real_data):
    """Of Avazu's integers none is a number, of Criteo's all but one with few values."""
    avazu = columns_of(infer_schema(real_data / "avazu" / "train_8k.csv.gz"))
    assert avazu.pop("id") == avazu.pop("hour") == {"role": "ignored"}  # all rows are of one hour
    assert {column["role"] for column in avazu.values()} == {"categorical"}
    assert avazu["C20"]["missing"] == ["-1"]
    assert [name for name in avazu if avazu[name]["type"] == "hex"] == [
        *("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
        *("device_id", "device_ip", "device_model"),
    ]
    criteo = columns_of(infer_schema(real_data / "criteo_kaggle" / "sample_100k.tsv.gz"))
    kinds = [criteo[f"c{i}"]["role"] for i in range(40)]
    assert kinds == ["label", *["numerical"] * 9, "categorical", *["numerical"] * 3, *kinds[14:]]
    assert set(kinds[14:]) == {"categorical"}


def test_parquet_is_read_by_its_types(tmp_path):
    """A label of truth values, texts with delimiters, nulls, integers beside nulls, and times."""
    table = pa.table(
        {
            "click": [True, False, False, True] * 50,
            "title": pa.array(["a, 1", 'b "2"', None, "größe"] * 50).dictionary_encode(),
            "shop": [7, None, 9, 7] * 50,
            "price": pa.array([24.9, 0.1, None, 1e-20] * 50, pa.float32()),
            "at": [datetime.datetime(2026, 3, 1, hour, 15) for hour in (9, 16)] * 100,
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet", row_group_size=70)
    schema = tmp_path / "schema.yaml"
    prepare = [f"--input={tmp_path / 'log.parquet'}", "--progress=none"]
    assert program.main(["prepare", *prepare, f"--infer={schema}"]) == 0
    label = yaml.safe_load(schema.read_text())["label"]
    assert label == {"column": "click", "positive": ["true"], "negative": ["false"]}
    prepare += [f"--schema={schema}", f"--output={tmp_path / 'data'}", "--shuffle_seed=none"]
    assert program.main(["prepare", *prepare]) == 0
    assert Manifest.load(tmp_path / "data").positives == {"train": 80, "validation": 10, "test": 10}
    spec, reader = columns_of_dataset(tmp_path / "data", "train")
    rows = reader.read(0, 4)
    assert [f.name for f in spec.categorical] == ["title", "shop", "at_hour"]
    ids = [[1, 2, 0, 3], [1, 0, 2, 1], [1, 2, 1, 2]]
    assert [own.tolist() for own in rows.categorical] == ids
    logs = np.log(np.array([25.9, 1.1, 1, 1])).astype(np.float32)
    assert rows.numerical[:, 0].tolist() == logs.tolist()


def test_lists_in_parquet_are_lists(tmp_path):
    log = tmp_path / "log.parquet"
    tags = [["red", "blue"], [], None, ["red"], ["blue", "red", "tan"], ["tan", "red"]] * 40
    parquet.write_table(pa.table({"click": [0, 1, 1] * 80, "tags": tags}), log)
    assert columns_of(infer_schema(log))["tags"]["separator"] == "|"
    prepared(log, "--shuffle_seed=none")
    lists = columns_of_dataset(tmp_path / "data", "train")[1].read(0, 6).lists[0]
    assert lists.offsets.tolist() == [0, 2, 2, 2, 3, 6, 8]
    assert [lists.ids.tolist().count(i) for i in (1, 2, 3)] == [4, 2, 2]
    for other, separator in ([["a|b"], ["c"]], ";"), ([["a|;b"]], ","), ([["a|b;", "c,"]], "|"):
        parquet.write_table(pa.table({"click": [1] * len(other), "tags": other}), log)
        column = columns_of(infer_schema(log))["tags"]
        assert (column["role"], column["separator"]) == ("categorical_list", separator)
    parquet.write_table(pa.table({"click": [1, 0], "tags": [{"a": 1}, {"a": 2}]}), log)
    assert columns_of(infer_schema(log))["tags"]["role"] == "ignored"


def test_a_draft_of_a_table_goes_by_its_types(tmp_path):
    """Values alone would make other columns of these, or need a delimiter."""
    times = [datetime.datetime(2026, 3, 1, n % 24, tzinfo=datetime.UTC) for n in range(200)]
    table = {
        "click": [["no\n", "yes\n"][n % 2] for n in range(200)],
        "te\nxt": pa.array(["one\ntwo\0", "three, four\n"] * 100),
        "price": [float(n % 7) for n in range(200)],
        "shop": pa.array([float(n % 3) if n % 5 else None for n in range(200)]),
        "when": pa.array(times, pa.timestamp("us", "UTC")),
        "items": [[n % 3, n % 5] for n in range(200)],
    }
    parquet.write_table(pa.table(table), tmp_path / "log.parquet", row_group_size=30)
    draft = infer_schema(tmp_path / "log.parquet")
    label = {"column": "click", "positive": ["yes\n"], "negative": ["no\n"]}
    assert yaml.safe_load(draft)["label"] == label
    columns = columns_of(draft)
    kinds = {name: (column["role"], column.get("type")) for name, column in columns.items()}
    assert kinds == {
        "te\nxt": ("categorical", "string"),
        "price": ("numerical", "float"),
        "shop": ("categorical", "int"),
        "when": ("timestamp", None),
        "items": ("categorical_list", "int"),
    }
    assert columns["when"]["format"] == "iso8601"
    assert sum(prepared(tmp_path / "log.parquet").rows.values()) == 200


def test_columns_of_a_table_that_no_role_reads_are_ignored(tmp_path):
    """The draft can be used as it is, and the label is told beside columns without texts."""
    rng = random.Random(5)
    table = {
        "bought": [n % 2 for n in range(200)],
        "shop": ["a", "b"] * 100,
        "uuid": pa.array([rng.randbytes(16) for _ in range(200)], pa.binary(16)),
        "marks": [[b"\xfe" * (n % 3)] for n in range(200)],
        "vector": pa.array([[rng.random(), 1.0] for _ in range(200)], pa.list_(pa.float32(), 2)),
        "visits": [[1.0, float(n % 3)] for n in range(200)],
        "nested": [{"a": n} for n in range(200)],
        "note": [b"K\xf6ln"] + [b"Ems", b"Rom"] * 99 + [b"Ems"],
    }
    parquet.write_table(pa.table(table), tmp_path / "log.parquet")
    draft = infer_schema(tmp_path / "log.parquet")
    assert yaml.safe_load(draft)["label"] == {"column": "bought"}
    roles = {name: column["role"] for name, column in columns_of(draft).items()}
    assert roles == {
        "shop": "categorical",
        **dict.fromkeys(("uuid", "marks", "vector", "nested"), "ignored"),
        "visits": "categorical_list",
        "note": "categorical",
    }
    made = prepared(tmp_path / "log.parquet", "--max_bad_fraction=0.01")
    assert sum(made.rows.values()) == 199


def draft_of(tmp_path, names: str, *rows: str) -> str:
    """Returns the draft of a log of these rows, 40 times each."""
    (tmp_path / "log").write_text("".join(f"{row}\n" for row in (names, *rows * 40)))
    return infer_schema(tmp_path / "log")


@pytest.mark.parametrize("values", ["no yes", "N Y", "false true"])
def test_a_label_is_asked_for_where_two_columns_may_be_it(tmp_path, values):
    no, yes = values.split()
    draft = draft_of(tmp_path, "opened,is_mobile,c", f"{no},0,a", f"{yes},1,b", f"{no},1,a")
    assert yaml.safe_load(draft)["label"]["column"] == ""
    assert_tells(draft, f"opened ({no} 67%, {yes} 33%); is_mobile (1 67%, 0 33%)")


def test_what_is_read_otherwise_than_it_looks_is_told(tmp_path):
    names = "click;price;tags;at;end;start"
    rows = (
        '0;20,43;["S1"];01/05/2026 09:13;31/12/2026;31.12.2026 09:15',
        ('1;3,5;["S2", "S1"];02/06/2026 10:13;30/12/2026;30.12.2026 10:15'),
    )
    draft = draft_of(tmp_path, names, *rows)
    columns = columns_of(draft)
    assert columns["price"] == columns["tags"] == {"role": "ignored"}
    assert_tells(draft, "docs/own_clicks.md")
    formats = [columns[name]["format"] for name in ("at", "end", "start")]
    assert formats == ["%m/%d/%Y %H:%M", "%d/%m/%Y", "%d.%m.%Y %H:%M"]
    assert [line for line in draft.splitlines() if "%d/%m/%Y" in line and "%m/%d" in line]


def test_a_compressed_file_is_sampled_to_its_end(tmp_path):
    rows = "".join(f"{i % 2},{i * (-1 if i > 700_000 else 1)}.5,{i % 7}\n" for i in range(800_000))
    with gzip.open(tmp_path / "log.gz", "wt", compresslevel=1) as file:
        file.write("click,profit,shop\n" + rows)
    assert columns_of(infer_schema(tmp_path / "log.gz"))["profit"]["transform"] == "standardise"


def test_lists_are_told_from_texts(tmp_path):
    rng = random.Random(8)

    def several(draw, separator):
        return separator.join(str(draw()) for _ in range(rng.randrange(5)))

    lines = ["click;genres;viewed;words;numbers;name;title"]
    for _ in range(900):
        fields = [
            *(rng.choice("01"), several(lambda: rng.choice(["Action", "Film-Noir"]), "|")),
            several(lambda: f"B{rng.randrange(40):04}:{rng.random():.2f}", "|"),
            *(
                several(lambda: f"w{rng.randrange(30)}", ","),
                several(lambda: rng.randrange(50), "|"),
            ),
            f"{rng.choice(['Meyer', 'Roth'])}, {rng.choice(['Ada', 'Bo'])}",
            f"{rng.randrange(10**9)}|{rng.randrange(10**9)}",
        ]
        lines.append(";".join(fields))
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    listed = {"role": "categorical_list", "type": "string"}
    assert columns_of(infer_schema(tmp_path / "log.csv")) == {
        "genres": {**listed, "separator": "|"},
        "viewed": {**listed, "separator": "|", "weight_separator": ":"},
        "words": {**listed, "separator": ","},
        "numbers": {**listed, "separator": "|", "type": "int"},
        "name": {"role": "categorical", "type": "string"},
        "title": {"role": "ignored"},
    }


def test_a_few_odd_values_are_told_and_change_no_role(tmp_path):
    rng = random.Random(8)
    lines = ["click;price;seen;when"]
    for day in range(999):
        seen = "|".join(f"B{rng.randrange(9)}:{rng.random():.2f}" for _ in range(rng.randrange(4)))
        when = datetime.datetime(2026, 3, 1) + datetime.timedelta(hours=day)
        lines.append(f"{rng.choice('01')};{rng.random() - 0.1:.3f};{seen};{when.isoformat()}")
    lines.insert(500, "1;12,50 EUR;B1:0.5||B2:x;yesterday")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    draft = infer_schema(tmp_path / "log.csv")
    assert {name: column["role"] for name, column in columns_of(draft).items()} == {
        "price": "numerical", "seen": "categorical_list", "when": "timestamp"
    }  # fmt: skip
    assert columns_of(draft)["seen"]["weight_separator"] == ":"
    assert columns_of(draft)["price"]["transform"] == "standardise"  # some are negative
    for odd in ("'12,50 EUR'", "'B1:0.5||B2:x'", "'yesterday'"):
        assert re.search(rf"\b1 .*{re.escape(odd)}", draft)


def test_the_delimiter_of_a_file_separates_no_lists(tmp_path):
    rng = random.Random(8)
    lines = ["click,tags"]
    for _ in range(300):
        tags = ",".join(rng.choice("abcdef") for _ in range(rng.randrange(2, 5)))
        lines.append(f'{rng.choice("01")},"{tags}"')
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    columns = columns_of(infer_schema(tmp_path / "log.csv"))
    assert columns == {"tags": {"role": "categorical", "type": "string"}}


def test_marks_and_names_that_yaml_reads_otherwise_are_quoted(tmp_path):
    (tmp_path / "log").write_text("click,null,yes\n" + "1,NULL,a\n0,web,null\n" * 50)
    (tmp_path / "schema.yaml").write_text(infer_schema(tmp_path / "log"))
    columns = {column.name: column for column in load_schema(tmp_path / "schema.yaml").columns}
    assert columns["null"].missing == ("NULL",)
    assert columns["yes"].missing == ("null",)


def test_headers_of_an_index_and_of_a_number_are_told(tmp_path):
    log, schema = tmp_path / "log.csv", tmp_path / "schema.yaml"
    rows = "".join(f"{i},u{i % 7},{i % 3}.5,{i % 2}\n" for i in range(200))
    for names in (",user,price,clicked", "7,user,price,clicked"):
        log.write_text(f"{names}\n{rows}")
        schema.write_text(infer_schema(log))
        read = load_schema(schema)
        assert (read.header, read.named("label")[0].name) == (True, "clicked")
        assert read.columns[1].role == "ignored"
        made = ["prepare", f"--input={log}", f"--schema={schema}", f"--output={tmp_path / names}"]
        assert program.main([*made, "--progress=none"]) == 0
    log.write_text(f"user,user,price,clicked\n{rows}")
    with refusal("user", kind=PreprocError, path=log):
        infer_schema(log)


def test_integers_that_are_all_as_frequent_are_ids(tmp_path):
    """Their counts have no rank correlation: a warning, and here an error."""
    draft = draft_of(tmp_path, "click,shop", *(f"{i % 2},{7 * i}" for i in range(20)))
    assert columns_of(draft)["shop"] == {"role": "categorical", "type": "int"}


def test_negative_numbers_are_not_drafted_as_logarithms(tmp_path):
    rows = "".join(f"{i % 2},{(i % 9 - 4) / 3:.3f},{'xyz'[i % 3]}\n" for i in range(200))
    (tmp_path / "log").write_text("click,delta,a\n" + rows)
    draft = infer_schema(tmp_path / "log")
    numbers = np.array([round((i % 9 - 4) / 3, 3) for i in range(200)])
    assert columns_of(draft)["delta"] == {
        **{"role": "numerical", "type": "float", "transform": "standardise"},
        "mean": pytest.approx(numbers.mean(), rel=1e-5),
        "deviation": pytest.approx(numbers.std(), rel=1e-5),
    }
    assert_tells(draft, "45%")


def test_far_values_of_both_signs_are_drafted_as_signed_logarithms(tmp_path):
    rng = np.random.default_rng(2)
    balance = rng.normal(50, 200, 2000) * np.where(rng.random(2000) < 0.02, 500, 1)
    (tmp_path / "log").write_text(
        "click,balance,a\n" + "".join(f"{i % 2},{x:.2f},x\n" for i, x in enumerate(balance))
    )
    drafted = columns_of(infer_schema(tmp_path / "log"))["balance"]
    assert drafted["transform"] == "signed_log"
    assert (drafted["mean"], drafted["deviation"]) == (
        pytest.approx(50, abs=20), pytest.approx(200, rel=0.1)
    )  # fmt: skip


def test_a_label_that_cannot_be_told_is_asked_for(tmp_path):
    """The edited line suffices: a column that `label` names is no feature."""
    log, schema = tmp_path / "log.csv", tmp_path / "schema.yaml"
    log.write_text("event,user\n" + "view,u1\nbuy,u2\nview,u3\nbuy,u1\n" * 25)
    draft = infer_schema(log)
    schema.write_text(draft)
    assert_tells(draft, "event (view 50%, buy 50%); user (u1 50%, u2 25%, u3 25%)")
    prepare = ["prepare", f"--input={log}", f"--schema={schema}", f"--output={tmp_path / 'data'}"]
    with refusal("label", kind=PreprocError, path=schema, line=3):
        load_schema(schema)
    given = 'column: event, positive: ["buy"], negative: ["view"]'
    schema.write_text(draft.replace('column: "", positive: ["1"], negative: ["0"]', given))
    assert program.main([*prepare, "--progress=none"]) == 0
    assert Manifest.load(tmp_path / "data").positives == {"train": 40, "validation": 5, "test": 5}


@pytest.mark.parametrize(
    ("text", "facts"),
    {
        "a b c\n" * 30: ["docs/own_clicks.md"],
        "a,b\n": [],
        "click,b\n" + "1,x,\n0,y,\n" * 30: [2, 3],
    }.items(),
)
def test_what_cannot_be_told_is_refused(text, facts, tmp_path):
    (tmp_path / "log").write_text(text)
    with refusal(*facts, kind=PreprocError, path=tmp_path / "log"):
        infer_schema(tmp_path / "log")


@pytest.mark.parametrize("rows_of_csv", [40, 40_000])
def test_a_folder_of_csv_and_parquet_is_drafted_from_the_larger_part(rows_of_csv, tmp_path):
    """A dataset is made of both; either is drafted alone, as the names and values are the same."""
    folder, schema = tmp_path / "log", tmp_path / "schema.yaml"
    folder.mkdir()
    rows = {"click": [0, 1] * 2000, "shop": ["a", "b", "c", "d"] * 1000}
    parquet.write_table(pa.table(rows), folder / "p1.parquet")
    (folder / "p2.csv").write_text("shop,click\n" + "a,0\nb,1\n" * (rows_of_csv // 2))
    schema.write_text(infer_schema(folder))
    assert columns_of(schema.read_text())["shop"] == {"role": "categorical", "type": "string"}
    assert sum(prepare(folder, schema, tmp_path / "data").rows.values()) == 4000 + rows_of_csv


@pytest.mark.parametrize("text", ['[{"click": 1}]\n', '[\n{"click": 1}\n]\n'])
def test_an_array_of_json_is_refused_with_the_same_remedy_as_by_a_schema(tmp_path, text):
    """A header of it would otherwise be said to lack columns."""
    log, schema = tmp_path / "log", tmp_path / "schema.yaml"
    schema.write_text(draft_of(tmp_path, "click,site", "1,a", "0,b"))
    log.write_text(text)
    with refusal("jq -c '.[]' log", path=log):
        infer_schema(log)
    with refusal("jq -c '.[]' log", path=log):
        prepare(log, schema, tmp_path / "data")


def test_times_are_drafted_with_the_features_that_differ(tmp_path):
    """Also as numbers, where the name says so; their split is an alternative of a line."""
    moments = [datetime.datetime(2026, 3, 1 + i // 40, i % 24, i % 60) for i in range(200)]
    lines = ["day,hour,sent_at,ts,code,click,since"]
    for i, each in enumerate(moments):
        seconds = int(each.replace(tzinfo=datetime.UTC).timestamp())
        stamp = each.strftime("%y%m%d%H")
        lines.append(f"{each.date()},{stamp},{each.isoformat()}Z,{seconds},{seconds},{i % 2}")
        lines[-1] += f",{1970 + i % 2}-01-01"
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    draft = infer_schema(tmp_path / "log.csv")
    drafted = columns_of(draft)
    time = {"role": "timestamp"}
    assert drafted["day"] == time | {"format": "iso8601", "features": ["weekday"]}
    assert drafted["hour"] == time | {"format": "%y%m%d%H", "features": ["hour", "weekday"]}
    assert drafted["sent_at"] == time | {"format": "iso8601", "features": ["hour", "weekday"]}
    assert drafted["ts"] == time | {"format": "unix_s", "features": ["hour", "weekday"]}
    assert drafted["since"] == drafted["day"]
    assert drafted["code"] == {"role": "ignored"}
    (split,) = re.findall(r"\{time: (\{.*?\})\}", draft)
    assert yaml.safe_load(split) == {
        "validation": "2026-03-05T00:00:00",
        "test": "2026-03-05T12:00:00",
    }


def write_columns(path: Path, **columns: list[object]) -> dict[str, dict[str, object]]:
    """Writes a log of these columns and a label; returns the draft's columns."""
    rows = [*zip(*columns.values(), strict=True)]
    lines = [f"{i % 2};{';'.join(map(str, row))}" for i, row in enumerate(rows)]
    path.write_text("\n".join([";".join(["click", *columns]), *lines]) + "\n")
    return columns_of(infer_schema(path))


@pytest.mark.parametrize("marks", ["?", "inf", "-inf nan", "unknown", "NULL", "-", "n/a", "abc"])
@pytest.mark.parametrize("share", [0.02, 0.05, 0.3])
def test_marks_beside_numbers_are_drafted_as_missing(marks, share, tmp_path):
    """So that the draft prepares every row; other words that are many make a text."""
    rng = random.Random(4)

    def with_marks(draw):
        return [rng.choice(marks.split()) if rng.random() < share else draw() for _ in range(600)]

    kinds = {
        "price": (lambda: f"{rng.gauss(9, 4):.2f}", {"role": "numerical", "type": "float"}),
        "visits": (lambda: int(rng.expovariate(0.1)), {"role": "numerical", "type": "int"}),
        "code": (lambda: rng.choice([7, 300, 12]), {"role": "categorical", "type": "int"}),
        "when": (
            lambda: f"2026-03-{rng.randrange(1, 29):02}", {"role": "timestamp", "format": "iso8601"}
        ),
    }  # fmt: skip
    log = tmp_path / "log"
    drafted = write_columns(log, **{name: with_marks(draw) for name, (draw, _) in kinds.items()})
    for name, (_, expected) in kinds.items():
        if marks == "abc" and share > 0.1:
            assert "missing" not in drafted[name]
            continue
        assert {key: drafted[name][key] for key in expected} == expected
        assert {*drafted[name]["missing"]} == {*marks.split()}
    if marks == "abc" and share > 0.1:
        return
    assert prepared(log).rows == {"train": 480, "validation": 60, "test": 60}


@pytest.mark.parametrize("length", [3, 5, 9])
def test_a_list_has_another_separator_than_the_header(length, tmp_path):
    rng = random.Random(4)
    lines = ["click,site,hist"]
    for i in range(200):
        lines.append(
            f"{i % 2},s{i % 4}," + "|".join(f"i{rng.randrange(30)}" for _ in range(length))
        )
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    draft = infer_schema(tmp_path / "log")
    assert yaml.safe_load(draft)["dialect"]["delimiter"] == ","
    listed = {"role": "categorical_list", "type": "string", "separator": "|"}
    assert columns_of(draft)["hist"] == listed


@pytest.mark.parametrize("count", [40, 2000])
def test_lists_with_blanks_after_their_commas_are_lists(count, tmp_path):
    rng = random.Random(4)
    articles = [
        [f"ART-{rng.randrange(300):04}" for _ in range(rng.randrange(1, 5))] for _ in range(count)
    ]
    names = [
        ", ".join(rng.choice(["Löffel", "Schüssel", "Kanne"]) for _ in each) for each in articles
    ]
    columns = {"articles": [", ".join(each) for each in articles], "names": names}
    columns["person"] = [
        f"{rng.choice(['Meyer', 'Roth'])}, {rng.choice(['Ada', 'Bo'])}" for _ in names
    ]
    drafted = write_columns(tmp_path / "log", **columns)
    listed = {"role": "categorical_list", "type": "string", "separator": ","}
    text = {"role": "categorical", "type": "string"}
    assert drafted == {"articles": listed, "names": listed, "person": text}
    schema, output = tmp_path / "schema.yaml", tmp_path / "data"
    schema.write_text(infer_schema(tmp_path / "log").replace("limit: 2", "limit: 1"))
    made = ["prepare", f"--input={tmp_path / 'log'}", f"--schema={schema}", f"--output={output}"]
    assert program.main([*made, "--progress=none"]) == 0
    spec, _ = columns_of_dataset(output, "train")
    of_train = {article for each in articles[: int(0.8 * count)] for article in each}
    assert [own.cardinality for own in spec.lists] == [len(of_train) + 1, 4]


@pytest.mark.parametrize(
    ("name", "texts", "form"),
    [
        ("timestamp", [874_785_527 + 9999 * n for n in range(300)], "unix_s"),
        ("ts", [999_999_000 + 10 * n for n in range(300)], "unix_s"),  # of 9 and 10 digits
        ("event_time", [999_999_000_000 + 10_000 * n for n in range(300)], "unix_ms"),
        ("time", [999_999_000_000_000 + 10**7 * n for n in range(300)], "unix_us"),
        ("time", [f"{999_999_000 + 10 * n}.5" for n in range(300)], "unix_s"),
        ("date", [f"202401{1 + n % 28:02}" for n in range(300)], "%Y%m%d"),
        ("bought", [f"202401{1 + n % 28:02}" for n in range(300)], "%Y%m%d"),
        ("bought", [f"202401{1 + n % 28:02}0915" for n in range(300)], "%Y%m%d%H%M"),
        ("bought", [f"202401{1 + n % 28:02}091500" for n in range(300)], "%Y%m%d%H%M%S"),
        ("hour", [f"202401{1 + n % 28:02}23" for n in range(300)], "%Y%m%d%H"),
        ("bought", [f"202414{1 + n % 28:02}" for n in range(300)], None),
        ("bought", [874_785_527 + 9999 * (n % 90) for n in range(300)], None),
    ],
)
def test_times_of_digits_are_told(name, texts, form, tmp_path):
    drafted = write_columns(tmp_path / "log", **{name: texts})[name]
    assert drafted.get("format") == form
    assert (drafted["role"] == "timestamp") == (form is not None)


@pytest.mark.parametrize(
    ("end", "drafted", "told"),
    [
        ("", None, "time_zone"),
        ("Z", None, "Z"),
        ("+01:00", "+01:00", "+01:00"),
        ("+0100", "+01:00", "+0100"),
        ("-07", "-07:00", "-07"),
        (("+01:00", "+02:00"), None, "+01:00, +02:00"),
    ],
)
def test_the_zone_of_times_is_told(end, drafted, told, tmp_path):
    ends = [end] if isinstance(end, str) else end
    texts = [f"2026-03-{1 + n % 28:02}T{n % 24:02}:15:00{ends[n % len(ends)]}" for n in range(300)]
    column = write_columns(tmp_path / "log", at=texts)["at"]
    assert column.get("time_zone") == drafted
    assert_tells(infer_schema(tmp_path / "log"), told)
    if drafted is None:
        return
    prepared(tmp_path / "log")
    with refusal("columns", kind=PreprocError):
        load_schema(write_without_features(tmp_path / "schema.yaml"))
    spec, reader = columns_of_dataset(tmp_path / "data", "train")
    assert spec.categorical[0].name == "at_hour"
    assert reader.num_rows == 240


def write_without_features(path: Path) -> Path:
    """Writes a schema whose times have no features."""
    made = path.with_name("without.yaml")
    text = re.sub(r"features: .*?\]", "features: []", path.read_text())
    made.write_text(re.sub(r", time_zone: [^}]*", "", text))
    return made


@pytest.mark.parametrize(
    "values", ["1,234 20,544 7,064", "12,345.5 999 1,000.25", "1.234.567 7.064.000"]
)
def test_thousands_separators_are_told(values, tmp_path):
    texts = values.split()
    drafted = write_columns(tmp_path / "log", views=[texts[n % len(texts)] for n in range(90)])
    assert drafted["views"] == {"role": "ignored"}
    assert_tells(infer_schema(tmp_path / "log"), "docs/own_clicks.md")


def test_long_scales_of_integers_are_numbers(tmp_path):
    rng = np.random.default_rng(3)
    order = rng.permutation(3000)
    drafted = write_columns(
        tmp_path / "log",
        duration=rng.lognormal(6, 1, 5000).astype(int),
        age=np.clip(rng.normal(40, 12, 5000), 18, 90).astype(int),
        ad=order[np.minimum(rng.zipf(1.3, 5000), 2999)],
        room=rng.integers(0, 1000, 5000),
        place=5060 + rng.geometric(0.1, 5000),
        user_id=rng.lognormal(6, 1, 5000).astype(int),
    )
    for name in ("duration", "age"):
        assert drafted[name] == {"role": "numerical", "type": "int"}
    named = {"role": "categorical", "type": "int"}
    assert {drafted[name] == named for name in ("ad", "room", "place", "user_id")} == {True}


@pytest.mark.parametrize(("no", "yes"), [("0", "1"), ("0.0", "1.0"), ("false", "true")])
def test_labels_of_two_texts_are_found(no, yes, tmp_path):
    rows = "".join(f"{(no, yes)[i % 3 == 0]},s{i % 4}\n" for i in range(90))
    (tmp_path / "log").write_text("bought,site\n" + rows)
    assert prepared(tmp_path / "log").positives == {"train": 24, "validation": 3, "test": 3}


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "groups.parquet"])
def test_a_sample_is_from_all_over_a_log(kind, tmp_path):
    """Of a log in the order of its shops a draft knows what is in a small part of it alone."""
    count, rng = 250_000, random.Random(3)
    shops = [f"shop number {i // 2500}" for i in range(count)]
    visits = ["NULL" if 0.3 < i / count < 0.34 else f"{rng.random():.4f}" for i in range(count)]
    late = ["7" if 0.8 < i / count < 0.84 else "" for i in range(count)]
    clicks = [rng.choice("01") for _ in range(count)]
    table = pa.table({"click": clicks, "shop": shops, "visits": visits, "late": late})
    log = tmp_path / f"log.{kind}"
    if "parquet" in kind:
        parquet.write_table(table, log, row_group_size=9000 if "groups" in kind else count)
    else:
        rows = zip(clicks, shops, visits, late, strict=True)
        text = "click,shop,visits,late\n" + "".join(",".join(row) + "\n" for row in rows)
        log.write_bytes(gzip.compress(text.encode(), 1) if "gz" in kind else text.encode())
        assert len(text) > 2**22
    columns = columns_of(infer_schema(log))
    assert columns["visits"] == {"role": "numerical", "type": "float", "missing": ["NULL"]}
    assert columns["late"]["role"] == "categorical"


def test_a_sample_of_a_small_file_is_all_of_it(tmp_path):
    write_log(tmp_path / "log.csv", 30_000)
    for name in ("log.csv", "log.csv.gz"):
        if name.endswith("gz"):
            (tmp_path / name).write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
        assert_tells(infer_schema(tmp_path / name).splitlines()[0], "30,000")


def test_rows_that_are_long_are_sampled(tmp_path):
    rows = "".join(f"{i % 2},{i % 7},{'x' * 300_000}{i}\n" for i in range(40))
    (tmp_path / "log.csv").write_text("click,shop,text\n" + rows)
    columns = columns_of(infer_schema(tmp_path / "log.csv"))
    assert columns["shop"] == {"role": "categorical", "type": "int"}
    assert columns["text"] == {"role": "ignored"}


def test_ids_are_told_from_numbers_by_their_values(tmp_path):
    """Ids have rows by what they name; numbers have about those of their neighbours."""
    rng, count = np.random.default_rng(7), 20_000
    popularity = rng.lognormal(0, 1.2, 400) / np.arange(1, 401) ** 0.3
    apps = rng.choice(np.arange(1, 401), count, p=popularity / popularity.sum())
    few = rng.choice(np.arange(1, 21), count, p=rng.permutation(np.arange(1, 21) ** 2 / 2870))
    hours = np.where(
        rng.random(count) < 0.7, 5 * rng.integers(2, 13, count), rng.integers(1, 90, count)
    )
    gain = np.where(rng.random(count) < 0.9, 0, rng.choice(rng.lognormal(8, 1.5, 150), count) + 100)
    weight = rng.choice(rng.lognormal(12, 0.5, 15_000).astype(int), count)
    counts = rng.geometric(0.3, count)
    drafted = write_columns(
        tmp_path / "log",
        **{"a": apps, "b": few, "c": hours, "d": gain.astype(int), "e": weight, "f": counts},
        g=rng.normal(45, 14, count).astype(int),
    )
    roles = {name: column["role"] for name, column in drafted.items()}
    assert roles == dict.fromkeys("ab", "categorical") | dict.fromkeys("cdefg", "numerical")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("device_id", "categorical"),
        ("trafficType", "categorical"),
        ("country", "categorical"),
        ("days_waited", "numerical"),
        ("num_orders", "numerical"),
        ("capital-gain", "numerical"),
        ("house_number", "categorical"),
    ],
)
def test_names_tell_ids_from_numbers(name, role, tmp_path):
    """Of integers in no order."""
    rng = random.Random(4)
    values = rng.choices(range(1, 61), [rng.expovariate(1) ** 2 for _ in range(60)], k=4000)
    values = sorted(values) if name == "country" else values
    assert write_columns(tmp_path / "log", **{name: values})[name]["role"] == role


def test_integers_whose_click_rates_rise_are_numbers(tmp_path):
    rng = random.Random(4)
    lines = ["click,level,kind"]
    odds = [rng.random() for _ in range(16)]
    for _ in range(20_000):
        level, kind = (rng.choices(range(1, 17), odds)[0] for _ in range(2))
        chance = (level + 7 * kind % 16) / 40
        lines.append(f"{int(rng.random() < chance)},{level},{kind}")
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    columns = columns_of(infer_schema(tmp_path / "log"))
    assert [columns[name]["role"] for name in ("level", "kind")] == ["numerical", "categorical"]


def test_integers_that_were_written_as_decimals_are_integers(tmp_path):
    """As pandas writes them beside missing ones."""
    agents = ["" if i % 5 == 0 else f"{7 * (i * i % 23)}.0" for i in range(900)]
    drafted = write_columns(
        tmp_path / "log", agent=agents, price=[f"{i % 9}.0" for i in range(900)]
    )
    assert drafted["agent"] == {"role": "categorical", "type": "int"}
    assert drafted["price"] == {"role": "numerical", "type": "float"}
    assert sum(prepared(tmp_path / "log").rows.values()) == 900


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ("-1 3 4", ["-1"]),
        ("-1 0 1 2", ["-1"]),
        ("-2 -1 0 1 2", None),
        ("-1 0 1", None),
        ("-1 0.5 -0.5", None),
        ("a ? b", ["?"]),
        ("a NULL b", ["NULL"]),
        ("DE NA FR", None),
        ("high NA low", ["NA"]),
    ],
)
@pytest.mark.parametrize("share", [0.004, 0.4])
def test_marks_are_told_from_values(values, missing, share, tmp_path):
    """However few they are."""
    rng, (first, *others) = random.Random(4), values.split()
    mark = next((text for text in values.split() if text in ("-1", "?", "NULL", "NA")), first)
    others = [text for text in values.split() if text != mark]
    texts = [mark if rng.random() < share else rng.choice(others) for _ in range(3000)]
    assert write_columns(tmp_path / "log", x=texts)["x"].get("missing") == missing


def test_blanks_are_missing(tmp_path):
    totals = [" " if i in (30, 500) else f"{i % 97}.25" for i in range(900)]
    drafted = write_columns(tmp_path / "log", total=totals, kind=["a", " ", "b"] * 300)
    assert drafted["total"] == {"role": "numerical", "type": "float", "missing": [" "]}
    assert drafted["kind"]["missing"] == [" "]
    assert sum(prepared(tmp_path / "log").rows.values()) == 900


def test_hours_of_one_digit_are_times(tmp_path):
    times = [f"2017-11-0{1 + i % 9} {i % 24}:0{i % 10}" for i in range(900)]
    column = write_columns(tmp_path / "log", click_time=times)["click_time"]
    assert (column["role"], column["format"]) == ("timestamp", "%Y-%m-%d %H:%M")
    assert column["features"] == ["hour", "weekday"]
    assert sum(prepared(tmp_path / "log").rows.values()) == 900


@pytest.mark.parametrize("size", ["", "e-07", "e+09"])
def test_a_draft_of_numbers_alone_is_prepared(size, tmp_path):
    rng = random.Random(4)
    lines = [
        f"{rng.choice('01')},{rng.gauss(0, 1):.4f}{size},{rng.random():.3f}" for _ in range(900)
    ]
    log = tmp_path / "log"
    log.write_text("\n".join(["target,a,b", *lines]) + "\n")
    assert prepared(log).rows == {"train": 720, "validation": 90, "test": 90}
    spec, _ = columns_of_dataset(tmp_path / "data", "train")
    assert (spec.numerical, spec.categorical) == (("a", "b"), ())


def test_a_draft_of_ids_that_all_differ_is_prepared(tmp_path):
    (tmp_path / "log").write_text("user,click\n" + "".join(f"u{i},{i % 2}\n" for i in range(300)))
    assert sum(prepared(tmp_path / "log").rows.values()) == 300


def test_a_draft_keeps_within_the_limits_of_a_schema(tmp_path):
    """No more features than there may be, and no two of one name."""
    rng = random.Random(4)
    names = [f"f{i}" for i in range(300)]
    lines = [",".join(["click", *names, "day", "day_weekday", ""])]
    for i in range(300):
        day = f"2026-03-{1 + i % 28:02}"
        lines.append(
            ",".join([str(i % 2), *(rng.choice("abc") for _ in names), day, "x", f"{i % 3}"])
        )
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    assert sum(prepared(tmp_path / "log").rows.values()) == 300


@pytest.mark.parametrize(
    ("name", "values", "label"),
    [
        ("income", ["<=50K", ">50K", "<=50K"], (">50K", "<=50K")),
        ("Churn", ["Yes", "No", "Yes"], ("Yes", "No")),
        ("class", ["UP", "DOWN", "DOWN"], ("UP", "DOWN")),
        ("class", ["1", "2", "1"], ("2", "1")),
        ("y", ["-1", "1", "1"], ("1", "-1")),
        ("is_bought", ["n", "y", "y"], ("y", "n")),
        ("last", ["view", "buy", "buy"], ("buy", "view")),
    ],
)
def test_a_label_of_two_texts_is_drafted(name, values, label, tmp_path):
    """It is named as one, or comes last, and what is a click is said or rarer."""
    log = tmp_path / "log"
    rows = "".join(f"{'mf'[i % 2]},{'abc'[i % 3]},{values[i % 3]}\n" for i in range(300))
    log.write_text(f"sex,site,{name}\n{rows}")
    yes, no = label
    expected = {"column": name, "positive": [yes], "negative": [no]}
    assert yaml.safe_load(infer_schema(log))["label"] == expected
    assert sum(prepared(log).positives.values()) == 100 * values.count(yes)


def test_columns_that_tell_the_label_are_drafted_as_ignored(tmp_path):
    rng = random.Random(4)
    lines = ["click,site,at_click,status,amount,partly"]
    for i in range(3000):
        click = rng.random() < 0.1
        fields = [int(click), rng.choice("abc"), f"2026-03-01 09:{i % 60:02}" if click else ""]
        fields += [rng.choice("xy") if click else "z", 1 + rng.random() if click else rng.random()]
        lines.append(",".join(map(str, [*fields, click and rng.random() < 0.9])))
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    roles = {name: c["role"] for name, c in columns_of(infer_schema(tmp_path / "log")).items()}
    assert roles == {
        **{"site": "categorical", "partly": "categorical"},
        **dict.fromkeys(("at_click", "status", "amount"), "ignored"),
    }
    assert sum(prepared(tmp_path / "log").rows.values()) == 3000


def test_a_list_shares_the_vocabulary_of_its_ids(tmp_path):
    """Not that of other ids, or of none."""
    rng = random.Random(4)
    lines = ["click;user;film;liked;tags"]
    for _ in range(4000):
        liked = "|".join(str(int(rng.paretovariate(0.6)) % 300) for _ in range(rng.randrange(5)))
        tags = "|".join(rng.choice(["long", "new", "old"]) for _ in range(rng.randrange(4)))
        film = int(rng.paretovariate(0.6)) % 300
        lines.append(f"{rng.choice('01')};{rng.randrange(100)};{film};{liked};{tags}")
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    columns = columns_of(infer_schema(tmp_path / "log"))
    shared = {name: column.get("vocabulary") for name, column in columns.items()}
    assert shared == {"user": None, "film": "film", "liked": "film", "tags": None}
    assert sum(prepared(tmp_path / "log").rows.values()) == 4000
