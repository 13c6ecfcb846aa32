# SPDX-License-Identifier: Apache-2.0
"""Click logs with a schema: what its columns mean, and what does not fit."""

import csv
import decimal
import gzip
import json
import math
import random

import numpy as np
import pytest
import xxhash

from dlrm.model.weights import DlrmCheckpoint
from preproc.clicks import __main__ as program
from preproc.clicks.job import semantics_of, semantics_of_schema
from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from tests.dlrm.conftest import final, make_program
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import assert_same, good_text, run
from tests.preproc.clicks.schema_log import (
    NAMES,
    SINGLE,
    assert_served,
    columns_of,
    prepare,
    rows,
    text_of,
    write_log,
    write_schema,
)
from tests.tools import needs


def number(text: str) -> str:
    return "0" if text in ("", "n/a") else text


def odd_fields(count: int, seed: int) -> list[bytes]:
    """Returns numbers and texts with a few bytes changed, and bytes of any kind."""
    rng = random.Random(seed)
    seeds = ["0", "1.5e3", "123456789012345678901234567890e-20", "-12.000", "9223372036854775807"]
    seeds += ["ffffffff", "größe €", "\U0001f600", "\ue000", "7:1|8:.5", "a/b", "x y"]
    pieces = [
        *b"e + - . 0 9 f | : / \x7f \xc2\x85 \xc2 \xed\xa0\x80 \xf4\x90".split(b" "),
        b" ",
        b"\t",
    ]
    fields = []
    for _ in range(count):
        field = (
            rng.choice(seeds).encode() if rng.random() < 0.8 else rng.randbytes(rng.randrange(9))
        )
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(field) + 1)
            field = field[:at] + rng.choice(pieces) + field[at + rng.randrange(2) :]
        fields.append(bytes(byte for byte in field if byte not in b";\n\r"))
    return fields


@needs("compiled Criteo kernel")
def test_odd_fields_are_read_alike(tmp_path):
    """One odd field in each row, of each column in turn."""
    good = text_of(rows(4000, seed=2)).split(b"\n")[1:-1]
    lines = [";".join(NAMES).encode()]
    for i, (row, field) in enumerate(zip(good, odd_fields(4000, seed=3), strict=True)):
        fields = row.split(b";")
        fields[i % len(fields)] = field
        lines.append(b";".join(fields))
    (tmp_path / "log.csv").write_bytes(b"\n".join(lines))
    schema = write_schema(tmp_path)
    expected = prepare(tmp_path / "log.csv", schema, tmp_path / "reference", engine="reference")
    assert all(
        count > 30 for name, count in expected.rejected.items() if name in ("hex", "integer")
    )
    assert expected.rejected["encoding"] > 30
    assert_same(prepare(tmp_path / "log.csv", schema, tmp_path / "made"), expected)


@needs("compiled Criteo kernel")
def test_a_log_of_as_many_features_as_there_may_be(tmp_path):
    """The features of a time lie on both sides of a border of 64."""
    rng = random.Random(7)
    names = [f"n{i}" for i in range(256)], [f"c{i}" for i in range(253)]
    columns = [
        *({"name": name, "role": "numerical", "type": "float"} for name in names[0]),
        *({"name": n, "role": "categorical", "type": ("string", "hex")[i % 2]}
          for i, n in enumerate(names[1])),
    ]  # fmt: skip
    when = {"name": "when", "role": "timestamp", "features": ["hour", "weekday", "weekend"]}
    columns.insert(256 + 126, when)
    lines = [";".join(["bought", *(str(column["name"]) for column in columns)])]
    for _ in range(600):
        fields = [rng.choice(["", f"{rng.random():.3f}"]) for _ in names[0]]
        fields += [rng.choice(["", f"{rng.randrange(9):x}"]) for _ in names[1]]
        fields.insert(256 + 126, rng.choice(["", f"2026-03-{rng.randrange(1, 29):02}"]))
        lines.append(";".join([rng.choice(["no", "yes"]), *fields]))
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    schema = write_schema(tmp_path, columns=columns)
    expected = prepare(tmp_path / "log", schema, tmp_path / "reference", engine="reference")
    assert_same(prepare(tmp_path / "log", schema, tmp_path / "made"), expected)
    assert_served(tmp_path, lines)


@needs("compiled Criteo kernel")
def test_bins_of_numbers_are_categories(tmp_path):
    """An edge belongs to the bin above it; a missing number has none."""
    columns = [
        {"name": "age", "role": "numerical", "type": "int", "bins": [18, 30.5, 65]},
        {"name": "shop", "role": "categorical", "type": "hex"},
        {
            **{"name": "gain", "role": "numerical", "type": "float", "transform": "standardise"},
            **{"deviation": 0.5, "bins": [-1.5]},
        },
    ]
    ages, gains = ["", "17", "18", "30", "31", "65", "99"], ["", "-1.5", "-1.6", "2", "-3.4e38"]
    rng = random.Random(6)
    drawn = [(rng.choice(ages), rng.choice(gains)) for _ in range(900)]
    lines = ["bought;age;shop;gain", *(f"{rng.choice(['no', 'yes'])};{a};7;{g}" for a, g in drawn)]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    schema = write_schema(tmp_path, columns=columns)
    expected = prepare(tmp_path / "log", schema, tmp_path / "reference", engine="reference")
    assert_same(prepare(tmp_path / "log", schema, tmp_path / "made"), expected)
    spec, reader = columns_of(tmp_path / "made", "train")
    assert [f.name for f in spec.categorical] == ["age_bin", "shop", "gain_bin"]
    assert [f.cardinality for f in spec.categorical] == [5, 2, 3]
    ids = reader.read(0, 720).categorical
    least = reader.read(0, 720).numerical[:, 1].min()
    assert least == -np.finfo(np.float32).max, "further away than float32 reaches"
    bins = {"17": 0, "18": 1, "30": 1, "31": 2, "65": 3, "99": 3}
    for age, id_of_bin in zip([age for age, _ in drawn], ids[0].tolist(), strict=False):
        assert (id_of_bin == 0) == (age == "")
    pairs = {(bins[a], i) for (a, _), i in zip(drawn, ids[0].tolist(), strict=False) if a}
    assert len(pairs) == 4, "each bin has one id"
    pairs = {(float(g) >= -1.5, i) for (_, g), i in zip(drawn, ids[2].tolist(), strict=False) if g}
    assert len(pairs) == 2
    assert_served(tmp_path, lines)


@needs("compiled Criteo kernel")
def test_logarithms_are_the_nearest_float32(tmp_path):
    """Of numbers whose logarithm lies in the middle between two float32, to the last bits."""
    rng = np.random.default_rng(5)
    below = rng.uniform(-40, 40, 3000).astype(np.float32)
    above = np.nextafter(below, np.float32(99))
    middle = (below.astype(np.float64) + above) / 2
    numbers = [repr(math.exp(m)) for m in middle]
    (tmp_path / "log").write_text("".join(f"1,{n},a\n" for n in numbers))
    schema = write_schema(
        tmp_path,
        dialect={"header": False},
        label={"column": "click"},
        columns=[
            {"name": "click", "role": "label"},
            {"name": "x", "role": "numerical", "type": "float", "min": 1e-30, "offset": 0},
            {"name": "c", "role": "categorical", "type": "hex"},
        ],
    )
    expected = prepare(tmp_path / "log", schema, tmp_path / "reference", engine="reference")
    assert_same(prepare(tmp_path / "log", schema, tmp_path / "made"), expected)
    _, reader = columns_of(tmp_path / "made", "train")
    made = reader.read(0, reader.num_rows).numerical[:, 0]
    for i in range(0, len(made), 100):
        with decimal.localcontext(prec=60):
            exact = decimal.Decimal(float(numbers[i])).ln()
            other = below[i] if made[i] == above[i] else above[i]
            assert abs(exact - decimal.Decimal(float(made[i]))) < abs(
                exact - decimal.Decimal(float(other))
            )


def test_columns_have_the_names_and_values_of_the_log(tmp_path):
    table = write_log(tmp_path, 1000, seed=1)
    prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "made", engine="reference")
    spec, reader = columns_of(tmp_path / "made", "train")
    assert spec.label == "bought"
    assert spec.numerical == ("price", "seen", "rate", "weight", "gain")
    assert [f.name for f in spec.categorical] == SINGLE
    train = reader.read(0, reader.num_rows)
    assert reader.num_rows == 800
    assert train.numerical.dtype == np.float32
    price = np.array([max(int(number(row["price"])), 0) + 1 for row in table[:800]])
    np.testing.assert_array_equal(train.numerical[:, 0], np.log(price).astype(np.float32))
    rate = (np.array([float(row["rate"] or -0.3) for row in table[:800]]) + 0.3) / 0.7
    np.testing.assert_array_equal(train.numerical[:, 2], rate.astype(np.float32))
    weight = [max(float(number(row["weight"])), 0.5) - 0.25 for row in table[:800]]
    np.testing.assert_array_equal(train.numerical[:, 3], [np.float32(math.log(w)) for w in weight])
    z = (np.array([float(row["gain"] or 0.1) for row in table[:800]]) - 0.1) / 1e-3
    signed_logs = np.copysign(np.log1p(np.abs(z)), z)
    np.testing.assert_allclose(train.numerical[:, 4], signed_logs, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(train.label, [row["bought"] != "no" for row in table[:800]])
    # FFFFFFFF and ffffffff, 0a and A are one category each; C2 is of numbers seen once, of C3 the
    # zeros are missing.
    assert [f.cardinality for f in spec.categorical][1:4] == [3, 1, 2]
    # 7, 007 and 7.0 are one, and so is -0 with 0; of 7 buckets all are there.
    assert [f.cardinality for f in spec.categorical][5:7] == [5, 8]
    shops = [row["shop"] for row in table[:800]]
    ids = dict(zip(shops, train.categorical[4].tolist(), strict=True))
    buckets = {xxhash.xxh64_intdigest(shop.encode()) % 50 for shop in ids if ids[shop]}
    assert ids[""] == 0
    assert spec.categorical[4].cardinality == 1 + len(buckets)
    items = [row["item"] for row in table[:800]]
    kept = [item for item in set(items) if items.count(item) >= 3]
    assert spec.categorical[0].cardinality == 1 + len(kept)
    most = max(kept, key=lambda item: (items.count(item), -int(item, 16)))
    np.testing.assert_array_equal(train.categorical[0] == 1, [item == most for item in items])


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("missing", [[], ["n/a"]], ids=["as Criteo's", "field by field"])
def test_a_schema_of_criteos_columns_makes_criteos_bytes(tmp_path, missing):
    text = good_text(3000, seed=5)
    names = ["click", *(f"I{i}" for i in range(13)), *(f"C{i}" for i in range(26))]
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "headed").write_bytes("\t".join(names).encode() + b"\n" + text)
    schema = write_schema(
        tmp_path,
        dialect={"delimiter": "\t", "quote": "none"},
        missing=missing,
        label={"column": "click"},
        numbers="float16",
        defaults={"frequency_limit": 3, "count": "all", "min": -1, "offset": 2},
        columns=[
            {"name": "I{0..12}", "role": "numerical", "type": "int"},
            {"name": "C{0..25}", "role": "categorical", "type": "hex"},
        ],
    )
    made = prepare(tmp_path / "headed", schema, tmp_path / "made")
    semantics = {"split_fractions": (0.8, 0.1, 0.1), "frequency_limit": 3}
    plain = run(tmp_path / "plain", tmp_path / "criteo", semantics=semantics_of("dlrm", semantics))
    names_of = ("feature_spec.yaml", "manifest.json")
    assert {n: f for n, f in made.files.items() if n not in names_of} == {
        n: f for n, f in plain.files.items() if n not in names_of
    }


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize(
    ("column", "value", "facts"),
    [
        ("weight", "n.a.", ["(number)", 'missing: ["n.a."]']),
        ("sku", "7x", ["(integer)", "`type` string"]),
        ("bought", "maybe", ["(label)"]),
    ],
)
def test_a_refused_row_tells_its_column(engine, column, value, facts, tmp_path):
    table = rows(200, seed=4)
    table[150][column] = value
    (tmp_path / "log.csv").write_bytes(text_of(table))
    schema = write_schema(tmp_path)
    where = "log.csv", "line 152", column, value
    with refusal(*where, *facts, kind=TooManyRejectedRowsError):
        prepare(tmp_path / "log.csv", schema, tmp_path / "made", engine=engine, max_bad_fraction=0)


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_refused_row_is_of_one_of_two_files_of_the_same_name(engine, tmp_path):
    """Their columns are in different orders, so that the row says something else in the other."""
    table = rows(200, seed=4)
    table[150]["weight"] = "oops"
    for day, names in (("1", NAMES), ("2", NAMES[::-1])):
        (tmp_path / "raw" / day).mkdir(parents=True)
        text = text_of(table if day == "1" else table[:150], names)
        (tmp_path / "raw" / day / "log.csv").write_bytes(text)
    schema = write_schema(tmp_path, split={"files": {"train": "1/log.csv", "test": "2/log.csv"}})
    with refusal("1/log.csv", "line 152", "weight", "oops", kind=TooManyRejectedRowsError):
        prepare(tmp_path / "raw", schema, tmp_path / "made", engine=engine, max_bad_fraction=0)
    made = prepare(tmp_path / "raw", schema, tmp_path / "made", engine=engine, max_bad_fraction=0.1)
    assert [(file["name"], file["rejected"]) for file in made.source_files] == [
        ("1/log.csv", 1),
        ("2/log.csv", 0),
    ]
    with (tmp_path / "made" / "quarantine.csv").open(newline="") as file:
        assert [row["file"] for row in csv.DictReader(file)] == ["1/log.csv"]


def test_files_of_each_split(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for i, name in enumerate(["a", "b", "c", "d"]):
        (folder / f"{name}.csv").write_bytes(text_of(rows(50 + i, seed=i)))
    files = {"train": ["d.csv", "a.csv"], "validation": "b.csv", "test": "c.csv"}
    schema = write_schema(tmp_path, split={"files": files})
    made = prepare(folder, schema, tmp_path / "made", engine="reference")
    assert made.rows == {"train": 103, "validation": 51, "test": 52}
    assert [source["name"] for source in made.source_files] == ["d.csv", "a.csv", "b.csv", "c.csv"]


def test_a_file_without_a_header(tmp_path):
    columns = [
        {"name": "item", "role": "categorical", "type": "hex"},
        {"name": "bought", "role": "label"},
    ]
    label = {"column": "bought", "positive": ["1"], "negative": "other"}
    schema = write_schema(tmp_path, dialect={"header": False}, columns=columns, label=label)
    (tmp_path / "log").write_bytes(b"a,1\nb,\na,\xff\n" * 20)
    made = prepare(tmp_path / "log", schema, tmp_path / "made", engine="reference")
    assert made.rows == {"train": 48, "validation": 6, "test": 6}
    assert made.cardinalities == [3]
    assert made.positives["train"] == 16


BAD_SCHEMAS = {  # the line at fault, and what is said of it
    "colums: []": (1, "colums", "columns"),
    "columns: 3": (1, "columns"),
    "columns:\n- {name: a, role: categorical, type: string, buckets: 4294967297}": (
        *(2, "columns.buckets", 4294967297),
    ),
    "columns:\n- {name: a, role: categorical, type: hex}\nlabel: {column: c}": (
        *(1, "split", "fractions", None),
    ),
    "columns:\n- {name: a, role: categorical, type: float}": (2, "columns.type", "float"),
    "columns:\n- {name: [twin, twin], role: categorical, type: hex}\nlabel: {column: c}": (
        *(1, "columns", "twin"),
    ),
    'dialect: {quote: "\'"}\ncolumns: []': (1, "dialect.quote", '"\'"'),
    "dialect: {delimiter: '\"'}\ncolumns: []": (1, "dialect.delimiter"),
    "dialect: {delimiter: ab}\ncolumns: []": (1, "dialect.delimiter", "ab"),
    "columns:\n- {name: 'C{1..257}', role: categorical, type: hex}\nlabel: {column: c}": (
        *(1, "columns", 257, 256),
    ),
    "columns:\n- {name: a, role: categorical, type: hex, frequency_limit: -1}": (
        *(2, "columns.frequency_limit", -1),
    ),
    "columns:\n- {name: a, role: numerical, type: float, offset: 0}": (
        *(2, "columns", "min", "offset", "0.0 + 0.0"),
    ),
    "columns:\n- {name: 'C{1..1000000000}', role: ignored}\nlabel: {column: c}": (
        *(1, "columns", 1000),
    ),
    "columns:\n- {name: a, role: ignored}\nlabel: {column: c}": (1, "columns"),
    "missing: [-1]\ncolumns: []": (1, "missing", "[-1]"),
    "label: {column: c, positive: [a], negative: [b, a]}\n"
    "columns:\n- {name: a, role: categorical, type: hex}": (1, "label.negative", "'a'"),
    "a: [": (1,),
    "missing: []\nmissing: []\ncolumns: []": (2, "missing"),
    "missing: []\nlabel: 2026-02-30": (2, "2026-02-30"),
}

BAD_LISTS = {
    "type: float": ("type", "float"),
    "type: int, separator: ','": ("separator", "','"),
    "type: int, weight_separator: '|'": ("weight_separator", "'|'"),
    "type: int, max_length: 0": ("max_length", 0),
    "type: int, pooling: max": ("pooling", "max"),
}
BAD_NUMBERS = {
    "type: int, transform: standardise": ("transform", "log", "standardise"),
    "type: int, mean: 1": ("mean", "log"),
    "type: float, transform: none, deviation: 2": ("deviation", "none"),
    "type: float, transform: standardise, offset: 2": ("offset", "standardise"),
    "type: float, transform: standardise, deviation: 0": ("deviation", 0.0),
    "type: float, transform: standardise, mean: .inf": ("mean", "inf"),
    "type: float, transform: standardise, mean: a": ("mean", "'a'"),
    "type: float, bins: [2, 1]": ("bins", "[2, 1]"),
    "type: float, bins: [.nan]": ("bins", "[nan]"),
    "type: float, bins: [.inf]": ("bins", "[inf]"),
    f"type: float, bins: [1{'0' * 400}]": ("bins", f"[1{'0' * 400}]"),
    "type: int, bins: 7": ("bins", 7),
    "type: int, bins: quantiles:1": ("bins", "'quantiles:1'", 2, 255),
    "type: float, bins: quantiles:256": ("bins", "'quantiles:256'", 2, 255),
    "type: float, bins: quantiles": ("bins", "'quantiles'", "quantiles:N"),
    "type: float, bins: {quantiles: 9}": ("bins", "{'quantiles': 9}", "quantiles:N"),
}
BAD_ENTRIES = {
    **{f"role: numerical, {words}": facts for words, facts in BAD_NUMBERS.items()},
    **{f"role: categorical_list, {words}": facts for words, facts in BAD_LISTS.items()},
    'role: timestamp, format: "%Y-%m"': ("format", "'%Y-%m'"),
    'role: timestamp, format: "%Y%m%d%j"': ("format", "unix_s", "%H", "'%Y%m%d%j'"),
    'role: timestamp, format: "%Y%m%d%Y"': ("format", "'%Y%m%d%Y'"),
    "role: timestamp, time_zone: Europe/Berlin": ("time_zone", "UTC", "Europe/Berlin"),
    "role: timestamp, features: [[hour]]": ("features", "[['hour']]"),
    "role: timestamp, features: [month]": ("features", "hour", "['month']"),
    'role: timestamp, format: "%Y-%m-%d %I:%M"': ("format", "%I", "%p"),
    "role: timestamp, type: int": ("type", "timestamp", "time_zone"),
    "role: categorical, type: hex, separator: '|'": ("separator", "categorical", "buckets"),
}
BAD_SPLITS = {
    "{time: {validation: 2026-03-03, test: 2026-03-01}}": ("split.time", "validation", "test"),
    "{time: {validation: 2026-03-03}}": ("split.time", "validation", "test"),
    "{time: {validation: 2026-03-03, test: 2026-03-04, column: x}}": ("split.time", "ts"),
    "{time: {validation: 2026-03-03, column: [ts]}}": ("split.time", "ts"),
    "{random: {fractions: [0.5, 0.4, 0.2]}}": ("split.random.fractions", "(0.5, 0.4, 0.2)"),
    "{random: {fractions: [1, 0, 0], by: x}}": ("split.random.by", "'x'"),
    "{random: {fractions: [1, 0, 0], by: click}}": ("split.random.by", "'click'"),
    "{random: {fractions: [.nan, 0, 1]}}": ("split.random.fractions", "(nan, 0, 1)"),
    "{random: {fractions: [1, 0, 0], seed: -1}}": ("split.random.seed", -1),
}
AROUND = (
    "label: {column: click}\ncolumns:\n- {name: ts, %s}\n"
    "- {name: a, role: categorical, type: hex}\nsplit: %s"
)
BAD_SCHEMAS |= {
    AROUND % (entry, "{fractions: [1, 0, 0]}"): (3, f"columns.{key}", *facts)
    for entry, (key, *facts) in BAD_ENTRIES.items()
}
BAD_SCHEMAS |= {
    AROUND % ("role: timestamp", split): (5, *facts) for split, facts in BAD_SPLITS.items()
}


@pytest.mark.parametrize("text", BAD_SCHEMAS)
def test_a_wrong_schema_is_refused_with_its_line(text, tmp_path):
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    line, *facts = BAD_SCHEMAS[text]
    with refusal(f"{path}:{line}", *facts, kind=PreprocError, path=path, line=line):
        semantics_of_schema(path, {})


HEADER = ";".join(NAMES)
BAD_FILES = {
    HEADER.replace(";shop", ""): ("shop", "';'"),
    HEADER + ";id": ("id", "role: ignored"),
    HEADER.replace(";", ","): ("';'", "shop"),
    HEADER.replace("price", "bought"): ("bought",),
    HEADER + "\n1" + ";" * 19 + "\n": (1, "label"),
    HEADER: (),
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_file_that_does_not_fit_is_refused_before_any_work(text, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(text)
    with refusal(log, *BAD_FILES[text], kind=PreprocError, path=log):
        prepare(log, write_schema(tmp_path), tmp_path / "made", engine="reference")
    assert not (tmp_path / "made").exists()


def test_flags_beside_a_schema(tmp_path, capsys):
    write_log(tmp_path, 100, seed=1)
    schema = write_schema(tmp_path)
    flags = ["", f"--input={tmp_path / 'log.csv'}", f"--schema={schema}", "--engine=reference"]
    for flag, facts in {
        "--preset=kaggle": ["--schema", "--preset"],
        "--frequency_limit=3": ["--frequency_limit"],
        "--layout=torchrec": ["--layout", "torchrec", "nvidia"],
        "--engine=nvtabular": ["--engine", "nvtabular", "native", "reference", "spark"],
    }.items():
        assert program.main([*flags, f"--output={tmp_path / 'x'}", flag]) == 2
        assert_tells(capsys.readouterr().err, *facts)
        assert not (tmp_path / "x").exists()
    assert program.main([*flags, f"--output={tmp_path / 'y'}", "--split_rows=70,10,-1"]) == 0
    manifest = json.loads((tmp_path / "y" / "manifest.json").read_text())
    assert manifest["rows"] == {"train": 70, "validation": 10, "test": 20}
    assert manifest["semantics"]["schema"]["split"] == "rows"
    assert manifest["semantics"]["schema"]["values"] == [70, 10, -1]


@needs("compiled Criteo kernel")
def test_the_avazu_log_trains(real_data, tmp_path):
    """No numerical feature, a column beyond int64 ignored, -1 for a missing category."""
    log = real_data / "avazu" / "train_8k.csv.gz"
    with gzip.open(log, "rt") as file:
        header = file.readline().rstrip().split(",")
    used = [name for name in header if name not in ("id", "hour", "click")]
    schema = write_schema(
        tmp_path,
        dialect={},
        label={"column": "click"},
        columns=[
            {"name": ["id", "hour"], "role": "ignored"},
            {
                **{"name": used, "role": "categorical", "type": "string", "buckets": 10**6},
                "missing": ["-1"],
            },
        ],
    )
    made = prepare(log, schema, tmp_path / "made")
    assert sum(made.rows.values()) == 8087
    assert made.rejected == dict.fromkeys(made.rejected, 0)
    trained = make_program(tmp_path)(
        *(f"--dataset={tmp_path / 'made'}", "--optimizer=adagrad", "--lr=0.02", "--epochs=2"),
        f"--save_checkpoint_path={tmp_path / 'run'}",
    )
    assert final(trained)["best_auc"] > 0.65
    _, reader = columns_of(tmp_path / "made", "train")
    train = reader.read(0, reader.num_rows)
    tables = DlrmCheckpoint.open(tmp_path / "run").load().embeddings
    stored = tables.stored_tables()
    untrained = [f for f, ids in enumerate(train.categorical) if ids.min() > 0]
    assert len(untrained) >= 3
    for feature in untrained:  # an unknown category has no random vector
        assert not tables.shards()[feature].view(stored)[0].any()
