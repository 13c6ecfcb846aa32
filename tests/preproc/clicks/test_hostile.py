# SPDX-License-Identifier: Apache-2.0
"""Hostile files of a schema: every engine refuses the same rows, or the whole with one message."""

import bz2
import gzip
import random
from pathlib import Path

import pytest
import yaml

from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.job import semantics_of_schema
from preproc.files.errors import PreprocError
from recsys.data.manifest import QUARANTINE_FILE
from tests.preproc.clicks.rows import run
from tests.preproc.clicks.test_engines import ENGINES
from tests.tools import needs

SCHEMA = {
    "missing": ["-"],
    "label": {"column": "click", "positive": ["1", "yes"], "negative": ["0", "no"]},
    "columns": [
        {"name": "text", "role": "categorical", "type": "string"},
        {"name": "bucket", "role": "categorical", "type": "int", "buckets": 7},
        {"name": "hash", "role": "categorical", "type": "hex"},
        {"name": "count", "role": "numerical", "type": "int"},
        {"name": "price", "role": "numerical", "type": "float"},
        {"name": "at", "role": "timestamp", "features": ["hour"]},
        {
            **{"name": "seen", "role": "categorical_list", "type": "string"},
            **{"weight_separator": ":"},
        },
    ],
    "split": {"fractions": [0.8, 0.1, 0.1]},
}
HEADER = b"click,text,bucket,hash,count,price,at,seen\n"
GOOD = [
    b"1,a,7,ff,3,1.5,2026-03-01,x:1|y:2\n",
    b'no,"b, ""c""",-7,0,-3,.5,2026-03-01T10:00Z,\n',
    b"0,,,,,,,\n",
    b"yes,-,-,-,-,-,-,-\n",
]
BODY = HEADER + b"".join(GOOD * 6)


def with_fields(*values: bytes, column: int) -> bytes:
    """Rows of which one field each is another one."""
    rows = []
    for value in values:
        fields = GOOD[0].rstrip(b"\n").split(b",")
        fields[column] = value
        rows.append(b",".join(fields) + b"\n")
    return BODY + b"".join(rows)


def damaged(seed: int) -> bytes:
    """A file with some bytes changed, removed or added."""
    draw, text = random.Random(seed), bytearray(BODY * 3)
    for _ in range(25):
        at = draw.randrange(len(HEADER), len(text))
        text[at : at + draw.randrange(3)] = draw.choice(
            [b",", b'"', b"\r", b"\0", b"\xff", b"|", b":", b"\n", b"-", b"9" * 20, b"\xc3\xa9"]
        )
    return bytes(text)


HOSTILE = {
    "control characters": with_fields(b"\0", b"\x7f", b"\xc2\x80", b"\t", column=1),
    "broken UTF-8": with_fields(
        b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", column=1
    ),
    "long texts": with_fields(b"x" * 1025, b"x" * 1024, "é".encode() * 512, column=1),
    "integers": with_fields(b"9223372036854775808", b"-", b"--1", b"1.5", b" 1", b"+1", column=2),
    "hexadecimal numbers": with_fields(b"0x1f", b"123456789", b"g", b"\xef\xbc\x91", column=3),
    "counts": with_fields(b"2147483648", b"-2147483649", b"1e3", b"1.0", b"1_000", column=4),
    "decimals": with_fields(b"inf", b"nan", b"1e39", b"1,5"[:1] + b".5.", b"1e1000", column=5),
    "times": with_fields(b"2026-13-01", b"2026-02-29", b"1969-12-31", b"2200-01-01", column=6),
    "lists": with_fields(b"x", b"x:", b":1", b"x:1|", b"|x:1", b"x:1:", b"x:nan", column=7),
    "labels": with_fields(b"", b"2", b"YES", b" 1", b"\xff", column=0),
    "open quotes": with_fields(b'"', b'"a', b'"a"b', b'"""', b'a"b', column=1),
    "quoted numbers": with_fields(b'"7"', b'""', b'" 7"', b'"7""8"', column=2),
    "fields": BODY + b"1,a\n" + b"1" + b"," * 8 + b"\n" + b"\n" + b",,,,,,,\n" + b"1,,,,,,\n",
    "line feeds in quotes": BODY + b'1,"a\nb",7,ff,3,1.5,2026-03-01,\n',
    "CRLF": BODY.replace(b"\n", b"\r\n"),
    "mixed line ends": BODY
    + b"1,a,7,ff,3,1.5,2026-03-01,x:1\r\r\n"
    + GOOD[0].replace(b"\n", b"\r\n"),
    "no last line end": BODY + GOOD[0].rstrip(b"\n"),
    "a last quote": BODY + b'1,"a',
    "a byte order mark": b"\xef\xbb\xbf" + BODY,
    "UTF-16": BODY.decode().encode("utf-16"),
    "CR alone": BODY.replace(b"\n", b"\r"),
    "gzip members": gzip.compress(BODY[:200]) + gzip.compress(BODY[200:]),
    "bzip2": bz2.compress(BODY),
    "zeros": BODY + b"\0" * 5000 + b"\n",
    "long rows": BODY + b"1," + b"a" * 100_000 + b",,,,,,\n",
    **{f"damage {seed}": damaged(seed) for seed in range(8)},
    "a blank end": BODY + b"\n",
    "blank ends": BODY + b"\r\n\n\r\n" + b"\n" * 2000,
    "a blank end of CRLF": BODY.replace(b"\n", b"\r\n") + b"\r\n",
    "a blank end of gzip": gzip.compress(BODY + b"\n\n"),
    "a blank end, packed apart": gzip.compress(BODY[:-1]) + gzip.compress(b"\n\r\n") * 2,
    "blank lines before a row": BODY + b"\n\r\n" + GOOD[0] + b"\n",
    "blanks in the last line": BODY + b"  \n",
    "gzip cut": gzip.compress(BODY * 100)[:-20],
    "gzip damaged": gzip.compress(BODY * 100)[:60] + b"\1" * 60,
    "a line without end": BODY + b"a" * 2_000_000,
    "a header alone": HEADER,
    "another header": HEADER.replace(b"price", b"cost") + b"".join(GOOD),
    "a header twice": HEADER.replace(b"price", b"count") + b"".join(GOOD),
    "no good row": HEADER + b"2,a,7,ff,3,1.5,2026-03-01,\n" * 9,
    "an empty file": b"",
}


GOOD_FORMS = (
    *("control characters", "CRLF", "no last line end", "a byte order mark", "UTF-16", "CR alone"),
    *("gzip members", "bzip2"),
    *(name for name in HOSTILE if name.startswith(("a blank end", "blank ends"))),
)
REFUSED = tuple(HOSTILE)[list(HOSTILE).index("gzip cut") :]
READ = tuple(name for name in HOSTILE if name not in REFUSED)
TOGETHER = "together"


def outcome(folder: Path, name: str, engine: str) -> str:
    """Returns the rejected rows, or the message of the refusal."""
    source, schema = folder / "logs", folder / "schema.yaml"
    source.mkdir(exist_ok=True)
    for number, each in enumerate(READ if name == TOGETHER else [name]):
        (source / f"{number:02}.csv").write_bytes(HOSTILE[each])
    schema.write_text(yaml.safe_dump(SCHEMA))
    output = folder / f"{name} {engine}"
    small = NativeSettings(unit_bytes=777, table_bytes=1) if engine == "native" else None
    semantics = semantics_of_schema(schema, {})
    try:
        made = run(source, output, engine, small, semantics=semantics, schema=schema)
    except PreprocError as error:
        return f"refused: {error}".replace(str(folder), "")
    assert (sum(made.rejected.values()) == 0) == (name in GOOD_FORMS)
    quarantine = output / QUARANTINE_FILE
    rejected = quarantine.read_text() if quarantine.exists() else ""
    return f"{made.fingerprint} {made.rows} {made.rejected}\n{rejected}"


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    names = (*HOSTILE, TOGETHER)
    return {name: outcome(tmp_path_factory.mktemp("hostile"), name, "reference") for name in names}


def test_what_is_refused_as_a_whole_says_so(expected):
    assert len(HOSTILE) >= 40
    for name, result in expected.items():
        assert result.startswith("refused: ") == (name in REFUSED), (name, result[:300])


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("name", [*HOSTILE, TOGETHER])
def test_the_native_engine_refuses_the_same_rows(name, expected, tmp_path):
    assert outcome(tmp_path, name, "native") == expected[name]


@ENGINES["spark"]
@pytest.mark.usefixtures("spark_session")
@pytest.mark.parametrize("name", [TOGETHER, "gzip cut"])
def test_spark_refuses_the_same_rows(name, expected, tmp_path):
    assert outcome(tmp_path, name, "spark") == expected[name]
