# SPDX-License-Identifier: Apache-2.0
"""Raw logs with a schema: the engines make the same dataset of a file, or refuse it alike."""

import bz2
import functools
import gzip
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from preproc.clicks.job import semantics_of_schema
from preproc.clicks.rules import ClicksSemantics
from recsys.errors import UserError
from tests.fuzz.target import Draws, Target
from tests.preproc.clicks import schema_log
from tests.preproc.clicks.rows import outcome

_VALUES = (
    *("", "n/a", "0", "1", "-1", "7", "007", "7.0", "+7", "-0", "1e3", ".5", "5.", "-.5e-3", "1,5"),
    *("2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *("3.4e38", "3.4028235677973366e38", "1e-999", "nan", "inf", "0x1f", "ff", "FFFFFFFF"),
    *("123456789", "g", "a b", "a  b", " a", "a ", "größe", "später", "yes", "no", "YES", "x" * 8),
    *(
        "x" * 1024,
        "x" * 1025,
        "é" * 512,
        "é" * 513,
        "7:1",
        "7:.5|8:-2e-3",
        "7:",
        ":1",
        "7:1|",
        "a/b",
    ),
    *("a//b", "w1|w2", "28.02.2026 10:00", "29.02.2026 10:00", "01.01.1970 00:00", "2026-03-01"),
    *('"', '""', '"a"', 'a"b', "a;b", "a\nb", "a\rb", "\r", "\0", "\x7f", "\udcff", "\udced\udca0"),
    *("日本", "\ufeff", "\u2028", "1_000", "\u0661", "1 ", "\t", "{}", "[1]", "0" * 64, "0" * 65),
)
_ENDS = (b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\r\n", b"")
PACKINGS: tuple[Callable[[bytes], bytes], ...] = (bytes, bytes, bytes, gzip.compress, bz2.compress)


@functools.lru_cache(maxsize=2048)
def schema_of(number: int) -> tuple[str, dict[str, Any]]:
    """Returns one of many schemas, as YAML and as a document."""
    rng = random.Random(number)
    has_lists, has_header = rng.random() < 0.3, rng.random() < 0.6
    columns = [
        column
        for column in schema_log.SCHEMA["columns"]
        if rng.random() < 0.6 and (has_lists or column["role"] != "categorical_list")
    ]
    if not has_header:
        columns = [{"name": "bought", "role": "label"}, *columns]
    schema = schema_log.SCHEMA | {"columns": columns}
    schema["dialect"] = {
        "delimiter": rng.choice((";", ",", "\t", "\x01")),
        "quote": rng.choice(('"', '"', "none")),
        "header": has_header,
    }
    schema["missing"] = rng.choice((["n/a"], [], ["0"], ["n/a", "größe"], ["-1", "a b"]))
    schema["defaults"] = {"frequency_limit": rng.randrange(3)}
    schema["split"] = rng.choice(
        ({"fractions": [0.8, 0.1, 0.1]}, {"rows": [2, 0, -1]}, {"fractions": [0.5, 0.5, 0]})
    )
    return yaml.safe_dump(schema, allow_unicode=True), schema


def _field(draws: Draws, text: str, dialect: dict[str, object]) -> bytes:
    field = text.encode(errors="surrogateescape")
    quote, delimiter = str(dialect["quote"]).encode(), str(dialect["delimiter"]).encode()
    if quote == b"none":
        return field
    must = quote in field or delimiter in field
    if draws.below(16) < 2 + 13 * must:
        field = quote + field.replace(quote, quote * 2) + quote
    return field


def text_of_log(draws: Draws, schema: dict[str, Any]) -> bytes:
    names, dialect = ["bought"], schema["dialect"]
    for column in schema["columns"][0 if dialect["header"] else 1 :]:
        given = column["name"]
        names += given if isinstance(given, list) else ["C1", "C2"] if "{" in given else [given]
    delimiter = str(dialect["delimiter"]).encode()
    good = schema_log.rows(4, seed=draws.below(4))
    lines = [delimiter.join(name.encode() for name in names)] if dialect["header"] else []
    for number in range(8):
        row = dict(good[number % len(good)])
        for _ in draws.some(3):
            row[draws.pick(names)] = draws.pick(_VALUES)
        fields = [_field(draws, row[name], dialect) for name in names]
        if draws.below(16) == 1:
            fields = fields[: draws.below(len(fields))]
        lines.append(delimiter.join(fields))
    end = draws.pick(_ENDS)
    ends = [draws.pick(_ENDS) if draws.below(8) == 1 else end or b"\n" for _ in lines]
    text = b"".join(line + end for line, end in zip(lines, ends, strict=True))
    return draws.edited(draws.pick((b"", b"", b"", b"\xef\xbb\xbf")) + text)


@functools.lru_cache(maxsize=2048)
def semantics_of_document(document: str) -> ClicksSemantics | None:
    """Returns the semantics of a schema; None if it is refused, which another target tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schema.yaml")
        path.write_text(document)
        try:
            return semantics_of_schema(path, {})
        except UserError:
            return None


def logs(folder: Path, data: bytes) -> None:
    """Prepares a log by the kernel and by the reference."""
    compare_engines(folder, data, "reference")


def compare_engines(folder: Path, data: bytes, other: str) -> None:
    """Prepares a log by the native engine and by another one."""
    draws = Draws(data)
    document, schema = schema_of(draws.below(2048))
    semantics = semantics_of_document(document)
    if semantics is None:
        return
    (folder / "schema.yaml").write_text(document)
    (folder / "logs").mkdir()
    for number in range(1 + draws.below(2)):
        text = draws.pick(PACKINGS)(text_of_log(draws, schema))
        (folder / "logs" / f"{number}.csv").write_bytes(draws.edited(text, 1))
    has_lists = any(column["role"] == "categorical_list" for column in schema["columns"])
    formats = (("split",), ("parquet",), ("split", "parquet"))
    settings = {"format": draws.pick(formats[: 1 if has_lists else 3])}
    native, expected = (
        outcome(
            *(folder / "logs", folder / engine, engine),
            semantics=semantics,
            schema=folder / "schema.yaml",
            **settings,
        )
        for engine in ("native", other)
    )
    assert native == expected, f"{native}\n{expected}"


TARGETS = (Target(logs),)
