# SPDX-License-Identifier: Apache-2.0
"""Texts of ratings: the kernel reads and refuses the rows that the reference does."""

import dataclasses
from pathlib import Path

from preproc.clicks.kernel.rating_rows import RatingReader
from preproc.clicks.kernel.shared_library import LineTooLongError
from preproc.ratings.format import formats_of
from preproc.ratings.parse import ReferenceReader
from tests.fuzz.target import Draws, Target

_NAMES = ("movielens_csv", "movielens_dat", "movielens_udata", "amazon_2014", "amazon_2018", "text")
_LINES = tuple(formats_of(_NAMES))
_OBJECTS = formats_of(("amazon_json",))[0].as_objects()
_FORMATS = (
    *_LINES,
    _OBJECTS,
    _OBJECTS,
    *(line.with_time("any_real") for line in _LINES[:2]),
    *(line.with_time("any_digits") for line in _LINES[:2]),
    _LINES[0].with_dialect("\t"),
)
FIELDS = (
    *(b"1", b"2", b"4.5", b"978300760", b"x", b"", b"-1", b"+1", b"007", b".5", b"5.", b"1e3"),
    *(b'"1"', b'"a,b"', b'"a""b"', b'"', b'""', b'a"b', b"::", b" 1", b"1 ", b"\xff", b"\0"),
    *(b"\xc3\xa9", b"\xed\xa0\x80", b"12345678901234567890", b"-0.0", b"1999-01-02", b"\t", b"\r"),
    *(b"01 2, 2003", b"1e999", b"978300760.25", b"9" * 18, b"x" * 300, b"0x1", b"nan", b"1_0"),
)
_OBJECT = b'{"reviewerID": "A1", "asin": "B1", "overall": 5.0, "unixReviewTime": 7}'
_JSON = (
    *(b'"asin"', b'"A\\u00e9"', b'"\\ud83d\\ude00"', b'"\\ud800"', b"null", b"true", b"-0", b"01"),
    *(b"1e5", b"[1, {}]", b"{", b"}", b",", b":", b" ", b'"vote": 1', b"NaN", b'"\\x"', b"\\"),
)


def _line(draws: Draws, separator: bytes, columns: int, *, is_object: bool) -> bytes:
    if is_object:
        line = _OBJECT
        for _ in draws.some(3):
            at = draws.below(len(line) + 1)
            line = line[:at] + draws.pick(_JSON) + line[at + draws.below(8) :]
        return line
    fields = [b"1", b"2", b"4.5", b"978300760", b"x"][:columns]
    for _ in draws.some(3):
        if fields:
            fields[draws.below(len(fields))] = draws.pick(FIELDS)
    if draws.below(16) == 1:
        fields = fields[:-1]
    return separator.join(fields)


def ratings(folder: Path, data: bytes) -> None:
    """Reads a text in pieces by the kernel, and whole by the reference."""
    del folder
    draws = Draws(data)
    layout = draws.pick(_FORMATS)
    rows = dataclasses.replace(layout.rows, has_header=draws.below(4) == 1)
    is_object, separator = layout is _OBJECTS, layout.rows.delimiter
    ends = (b"\n", b"\n", b"\r\n", b"\n\n", b"\r\r\n")
    lines = [
        _line(draws, separator, len(layout.columns), is_object=is_object) + draws.pick(ends)
        for _ in range(1 + draws.below(6))
    ]
    text = draws.edited(draws.pick((b"", b"", b"\xef\xbb\xbf")) + b"".join(lines), 3)
    size = 1 + draws.below(max(1, len(text)))
    read = []
    for reader, pieces in ((RatingReader, size), (ReferenceReader, len(text) + 1)):
        opened = reader(rows)
        try:
            for start in range(0, len(text), pieces):
                opened.feed(text[start : start + pieces])
            opened.finish()
            found = opened.take()
        except LineTooLongError:
            read.append(None)
            continue
        finally:
            opened.close()
        values = (found.users, found.items)
        numbers = (found.ratings.tobytes(), found.times.tobytes())
        texts = tuple(column.cast("string").to_pylist() for column in values)
        read.append((texts, numbers, found.rejected, found.lines))
    assert read[0] == read[1], f"{read[0]}\n{read[1]}"


TARGETS = (Target(ratings),)
