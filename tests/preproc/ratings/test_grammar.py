# SPDX-License-Identifier: Apache-2.0
"""Which rows are good: the code against plain regular expressions, on text made to be nasty."""

import dataclasses
import datetime
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from preproc.clicks.kernel.rating_rows import RatingReader
from preproc.clicks.schema import rating_fields
from preproc.clicks.schema.rating_fields import RATING_REASONS, Rating
from preproc.ratings.format import formats_of
from preproc.ratings.header import with_names
from preproc.ratings.parse import ReferenceReader
from tests.tools import needs

(
    MOVIELENS_CSV,
    MOVIELENS_TOKEN_CSV,
    MOVIELENS_DAT,
    MOVIELENS_UDATA,
    AMAZON_CSV,
    AMAZON_ITEM_FIRST_CSV,
    AMAZON_JSON,
    TEXT,
) = formats_of(
    (
        *("movielens_csv", "movielens_dat", "movielens_udata"),
        *("amazon_2014", "amazon_2018", "amazon_json", "text"),
    )
)
AMAZON_JSON = AMAZON_JSON.as_objects()
PAGE = (Path(__file__).resolve().parents[3] / "docs/dataset_format.md").read_text()
LINE_FORMATS = {
    "movielens_csv": MOVIELENS_CSV,
    "movielens_dat": MOVIELENS_DAT,
    "movielens_udata": MOVIELENS_UDATA,
    "amazon_csv": AMAZON_CSV,
    "amazon_item_first_csv": AMAZON_ITEM_FIRST_CSV,
    "text": TEXT,
    "movielens_csv_of_tokens": MOVIELENS_TOKEN_CSV,
    "csv_with_another_column": with_names(
        AMAZON_CSV,
        dict(zip(AMAZON_CSV.columns, "uirt", strict=True)),
        ["u", "i", "r", "t", "other"],
    ),
    "csv_with_real_times": AMAZON_CSV.with_time("any_real"),
    "csv_with_dates_of_digits": AMAZON_CSV.with_time("any_digits"),
    "tabs": AMAZON_CSV.with_dialect("\t"),
}
READERS = [
    pytest.param(RatingReader, marks=needs("compiled Criteo kernel"), id="kernel"),
    pytest.param(ReferenceReader, id="reference"),
]
CSV_FIELD = r'(?:"(?:[^"]|"")*"|(?!")[^,]*)'

NASTY = r"""
1 0 01 -1 +1 1.5 .5 5. 1e3 nan NULL "1" 1:2 B00X 12345678901234567890 1234.5 0x1 1_0 true 007 -0 -77
a\b 1.50000 999.9999 -999999999999999999 zoë 李 "a,b" "say""so" "zoë" "4.5" a"b "a"b " 7.0 -7.25 5.
"7.5" 0.1 .5
"""
FIELDS = st.one_of(
    st.sampled_from(NASTY.encode().split()),
    st.sampled_from(
        [b'"a b"', b'""', b'"a\tb"', b"\xc2\x85", b"\xc2\xa0", b'"\xff"', b"\xed\xa0\x80"]
    ),
    st.sampled_from([b"", b" 1", b"1 ", b"\xff", b"\x00", b"1\r", b"\xd9\xa1", b"\t"]),
    st.integers(0, 10**18).map(lambda n: str(n).encode()),
    st.binary(max_size=5).map(lambda b: b.replace(b"\n", b"")),
)


def parse(text: bytes, layout, reader=ReferenceReader, block=2**20):
    """Returns the good rows as tuples of raw values, and the places of the bad ones."""
    opened = reader(dataclasses.replace(layout.rows, has_header=False))
    for start in range(0, len(text), block):
        opened.feed(text[start : start + block])
    opened.finish()
    rows = opened.take()
    opened.close()
    lines = text.split(b"\n")
    assert rows.lines == text.count(b"\n")
    for offset, line, row in rows.rejected:
        assert row == lines[line - 1].removesuffix(b"\r")
        assert text[:offset].count(b"\n") == line - 1
    bad, ratings, times = [line - 1 for _, line, _ in rows.rejected], rows.ratings, rows.times
    columns = [rows.users.to_pylist(), rows.items.to_pylist()]
    if "rating" in layout.columns:
        columns += [ratings.tolist(), (as_floats(times) if layout.real_times else times).tolist()]
    return list(zip(*columns, strict=True)), bad


def as_floats(keys):
    """Returns the floats whose order the keys are."""
    return np.where(keys < 0, keys ^ np.iinfo(np.int64).max, keys).view(np.float64)


def expected_row(row: bytes, layout):
    """Returns the values of a good row, None of a bad one; written from the format page."""
    kinds = dict(re.findall(r"^    ([A-Z]+) += (.+)$", PAGE, re.MULTILINE))
    names = {"digits": "ID", "name": "NAME", "token": "TOKEN"}
    text = row.decode(errors="surrogateescape")
    fields = text.split(layout.delimiter)
    if layout.rows.quote:
        if not re.fullmatch(f"{CSV_FIELD}(,{CSV_FIELD})*", text, re.DOTALL):
            return None
        written = re.findall(f"(?:^|,)({CSV_FIELD})", text, re.DOTALL)
        fields = [w[1:-1].replace('""', '"') if w.startswith('"') else w for w in written]
    if len(fields) != len(layout.columns):
        return None
    values = {}
    for column, field in zip(layout.columns, fields, strict=True):
        if column == "ignored":
            continue
        if re.search("[\udc80-\udcff]", field):
            return None
        if column == "timestamp" and re.fullmatch("-?[0-9]{1,2}[eE][+]?[0-9]{1,2}", field):
            field = str(int(float(field)))  # as the page says of exponents
        kind = {"rating": "NUMBER", "timestamp": "TIME"}.get(column, names[layout.id_type])
        if not re.fullmatch(kinds[kind], field):
            return None
        values[column] = field
    if "rating" not in values:
        return values["user"], values["item"]
    if not 0 <= float(values["rating"]) < 1000 or len(values["rating"]) > 64:
        return None
    time = expected_time(values["timestamp"], layout)
    row = values["user"], values["item"], float(values["rating"]), time
    return row if time is not None else None


def expected_time(text: str, layout):
    """Returns the value of a number, None where it is no time."""
    whole, _, decimals = text.partition(".")
    if layout.real_times:
        return float(text)
    if not layout.dates_of_digits:
        return None if decimals.strip("0") else int(whole)
    form = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(text))
    try:
        time = datetime.datetime.strptime(text, form or "no date")
    except ValueError:
        return None
    return int(time.replace(tzinfo=datetime.UTC).timestamp())


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", LINE_FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_rows_are_judged_as_the_page_says(reader, name, data):
    layout = LINE_FORMATS[name]
    separator = layout.rows.delimiter
    good = [b"1", b"2", b"4.5", b"978300760", b"x"][: len(layout.columns)]
    rows = data.draw(
        st.lists(
            st.one_of(
                st.just(good),
                st.builds(
                    lambda place, field: [*good[:place], field, *good[place + 1 :]],
                    st.integers(0, len(good) - 1),
                    FIELDS,
                ),
                st.lists(FIELDS, min_size=len(good), max_size=len(good)),
                st.lists(FIELDS, max_size=6),
            ),
            min_size=1,
            max_size=12,
        )
    )
    lines = [separator.join(fields) for fields in rows]
    ends = data.draw(st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=12, max_size=12))
    text = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    stripped = [
        line.removesuffix(b"\r") if e == b"\n" else line
        for line, e in zip(lines, ends, strict=False)
    ]
    wanted = [expected_row(line, layout) for line in stripped]
    found, bad = parse(text, layout, reader, data.draw(st.sampled_from([1, 7, 2**20])))
    assert bad == [i for i, row in enumerate(wanted) if row is None]
    assert found == [row for row in wanted if row is not None]
    for place in bad:
        reason, message = layout.read(stripped[place])
        assert reason in RATING_REASONS
        assert message
    assert [layout.is_good(line) for line in stripped] == [row is not None for row in wanted]


@pytest.mark.parametrize("block", [1, 2**20])
@pytest.mark.parametrize("reader", READERS)
def test_a_mark_of_utf8_is_no_part_of_the_first_row(reader, block):
    text = b"\xef\xbb\xbf1,2,3,4\n1,3,x,5\n"
    assert parse(text, MOVIELENS_CSV, reader, block) == ([("1", "2", 3.0, 4)], [1])


GOOD_OBJECT = {"reviewerID": "A1", "asin": "B1", "overall": 5.0, "unixReviewTime": 7}
GOOD_LINE = json.dumps(GOOD_OBJECT).encode()


def with_more(text: bytes) -> bytes:
    """Returns a good line with more of them, and another text before its end."""
    return GOOD_LINE[:-1] + b", " + text + b"}"


JSON_TEXTS = {  # text after the keys of a good line -> whether the line is good
    b'"vote": 1, "vote": 2': True,
    b'"style": {"asin": 1, "asin": 2}': True,
    b'"asin": "B1"': False,
    b'"as\\u0069n": null': False,
    b'"asin\\u0000": "B2"': True,
    b'"x": %s%s' % (b"[" * 99, b"]" * 99): True,
    b'"x": %s%s' % (b"[" * 100, b"]" * 100): False,
    b'"x": %s1%s' % (b'{"a":' * 5000, b"}" * 5000): False,
    b'"x": "%s \\" ]"' % (b"[" * 5000): True,
    b'"x": -%s' % (b"1" * 5000): True,
    b'"x": 1e999': True,
    b'"x": 01': False,
    b'"x": NaN': True,
    b'"x": Inf': False,
    b'"x": -Infinity': True,
    b'"x": -': False,
    b'"x": 1.': False,
    b'"x": .5': False,
    b'"x": nul': False,
    b'"x": "\\x41"': False,
    b'"x": "\\u12g4"': False,
    b"x: 1": False,
    b'"x" 1': False,
    b'"x": {"a" 1}': False,
    b'"x": [1, ]': False,
    b'"x": "\xff"': False,
    b'"x": "\xed\xa0\x80"': False,
    b'"x": "\\ud800 \xf0\x9f\x98\x80 \\/"': True,
    b'"x": "\t"': False,
    b'"x": 1,': False,
    b'"x": 1 // no comment': False,
}
VALUES = {  # a value of the item or the rating -> what is read, None where the line is bad
    b'"asin": "a\\u00e9\\ud83d\\ude00\\/\\"\\\\"': ("asin", 'a\u00e9\U0001f600/"\\'),
    b'"a\\u0073in": "B2"': ("asin", "B2"),
    b'"asin": "a\\tb"': None,
    b'"asin": "\\ud800"': None,
    b'"asin": "\\u0085"': None,
    b'"asin": ""': None,
    b'"asin": null': None,
    b'"asin": NaN': None,
    b'"asin": ["B2"]': None,
    b'"asin": {}': None,
    b'"asin": 7': ("asin", "7"),
    b'"asin": 7.0': ("asin", "7"),
    b'"asin": -0.0': ("asin", "0"),
    b'"asin": 123456789012345678901234': ("asin", "123456789012345678901234"),
    b'"overall": "3.5"': ("overall", 3.5),
    b'"overall": 35e-1': ("overall", 3.5),
    b'"overall": true': None,
    b'"overall": 1000': None,
    b'"overall": Infinity': None,
}

JSON_LINES = st.one_of(
    st.just(GOOD_LINE),
    st.sampled_from([*map(with_more, JSON_TEXTS)]),
    st.builds(
        lambda key, value: json.dumps(GOOD_OBJECT | {key: value}).encode(),
        st.sampled_from([*GOOD_OBJECT, "vote"]),
        st.one_of(
            st.sampled_from([None, "", "x y", "7", True, [], {}, "\u00e9", "\ud800"]),
            st.sampled_from([7, 7.5, 7.0, -0.0, -1, 1000, 1e-300, float("nan"), float("inf")]),
            st.sampled_from([10**18 - 1, 10**18, -(2**63), 2**64, 10**4000]),
        ),
    ),
    st.builds(
        lambda key: json.dumps({k: v for k, v in GOOD_OBJECT.items() if k != key}).encode(),
        st.sampled_from(list(GOOD_OBJECT)),
    ),
    st.builds(
        lambda start, stop, text: GOOD_LINE[:start] + text + GOOD_LINE[stop:],
        st.integers(0, len(GOOD_LINE)),
        st.integers(0, len(GOOD_LINE)),
        st.one_of(st.sampled_from([*JSON_TEXTS, *b'{ } [ ] " : , 1E2 -'.split()]), st.binary()),
    ),
    st.sampled_from([b"", b" ", b"{}", b"[]", b"1", b'{"a":1}{"a":2}', b"{'reviewerID': 'A'}"]),
    st.sampled_from([GOOD_LINE * 2, GOOD_LINE + b" x", b"\xef\xbb\xbf" + GOOD_LINE]),
    st.sampled_from(["utf-16", "utf-16-be", "utf-32"]).map(GOOD_LINE.decode().encode),
).map(lambda line: line.replace(b"\n", b" ").rstrip(b"\r"))


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("real_times", [False, True])
@settings(max_examples=60)
@given(lines=st.lists(JSON_LINES, min_size=1, max_size=6), block=st.sampled_from([1, 7, 2**20]))
@example(lines=[GOOD_LINE * 2, b""], block=1)
def test_a_line_of_json_is_judged_alone(real_times, lines, block):
    layout = AMAZON_JSON.with_time("any_real" if real_times else "any")
    read = [layout.read(line) for line in lines]
    as_time = float if real_times else int
    good = [
        (row.user, row.item, row.rating, as_time(row.time))
        for row in read
        if isinstance(row, Rating)
    ]
    text = b"".join(line + b"\n" for line in lines)
    marked = text.startswith(b"\xef\xbb\xbf")  # of a file, and no part of its first line
    found, bad = parse(b"\n" * marked + text, layout, RatingReader, block)
    assert bad == [0] * marked + [
        i + marked for i, row in enumerate(read) if not isinstance(row, Rating)
    ]
    assert found == good


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", JSON_TEXTS)
def test_the_grammar_of_json(reader, text):
    line = with_more(text)
    values = [tuple(GOOD_OBJECT.values())] if JSON_TEXTS[text] else []
    for neighbours in (b"", b"{}\n", b"\xff\n", (GOOD_LINE + b"\n") * 600):
        found, bad = parse(neighbours + line + b"\n", AMAZON_JSON, reader)
        assert found[-len(values) or len(found) :] == values
        assert (neighbours.count(b"\n") in bad) == (not values)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", VALUES)
def test_values_of_json_are_cells(reader, text):
    others = {k: v for k, v in GOOD_OBJECT.items() if k.encode() != text[1:].partition(b'"')[0]}
    others.pop("asin" if b"u0073" in text else "", None)
    line = b"{" + text + b"," + json.dumps(others).encode()[1:]
    wanted = VALUES[text]
    read = [tuple((GOOD_OBJECT | dict([wanted])).values())] if wanted else []
    assert parse(line + b"\n", AMAZON_JSON, reader) == (read, [] if wanted else [0])


@pytest.mark.parametrize("reader", READERS)
def test_fields_of_no_interest_are_not_looked_at(reader):
    lines = [
        GOOD_OBJECT | {"reviewText": 'a "quoted"\nline \u2603', "vote": "1,234"},
        GOOD_OBJECT | {"style": {"Color": " red"}, "vote": 3, "image": ["x"], "verified": True},
    ]
    found, bad = parse("".join(json.dumps(o) + "\n" for o in lines).encode(), AMAZON_JSON, reader)
    assert (len(found), bad) == (2, [])


MOMENTS = [
    *("2024-01-31", "31.01.2024", "2024-01-31T09", "2024-01-31 0915", "2024-01-31_09:15:07"),
    *("2024-01-31T091507.25", "2024-01-31T09:15:07,123456789", "31.01.2024 09:15 UTC"),
    *("2024-01-31T09:15Z", "2024-01-31T09:15:07+01:00", "2024-01-31 09:15:07 -0530"),
    *("1969-12-31T23:59:59.75", "0001-01-01", "9999-12-31T23:59:59.999999+00:00:30"),
    *("4.0E+00", "1.5e3", "-9.25e1", "1.7e9", "1.23456789e1", "9e18", "9e19", "1e-3", "12e99"),
    *("2024-02-30", "2024-01-31T24:00", "2024-01-31T", "2024-01-31T9", "2024-01-31T09:15:", "1e"),
    *("2024-01-31T09:15+24:00", "2024-01-31T09:15+01:", "2024-01-31Z", "2024-1-31", "31.1.2024"),
    *(
        "2024-01-31T09:1",
        "2024-01-31T09:15:07.",
        "2024-01-31T09:15z",
        "20240131T0915",
        "4 Dec 1997",
    ),
    *(
        "20240131",
        "202401310915",
        "20240131091507",
        "20240230",
        "00000101",
        " 2024-01-31",
        "٣",
        "4 Dec 1997",
    ),
]


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("kind", [*rating_fields.ANY_TIMES, "iso8601", "%d/%m/%y", "unix_ms"])
def test_the_kernel_reads_the_times_of_the_reference(kind):
    layout = AMAZON_CSV.with_time(kind)
    slashes = ["31/01/24", "31/01/70", "32/01/24", "1500", "1500.5"]
    text = "".join(f"u,i,4,{time}\n" for time in [*MOMENTS, *slashes]).encode()
    kernel, bad = parse(text, layout, RatingReader)
    assert (kernel, bad) == parse(text, layout, ReferenceReader)
    assert kernel


@pytest.mark.parametrize("text", MOMENTS)
def test_dates_are_those_of_python(text):
    """Of the forms that are read; a time without a zone is UTC."""
    seconds = rating_fields.read_time(text, AMAZON_CSV.with_time("any_real").time)
    written = re.sub(r"^(\d\d)\.(\d\d)\.(\d{4})", r"\3-\2-\1", text).removesuffix(" UTC")
    try:
        time = datetime.datetime.fromisoformat(written)
    except ValueError:
        time = None
    if time is None or "-" not in written[4:5]:
        assert seconds is None or re.fullmatch(r"[-+0-9.eE]+", text)
        return
    time = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
    assert seconds == time.timestamp()


def test_the_grammar_of_the_page_is_that_of_the_code():
    kinds = dict(re.findall(r"^    ([A-Z]+) += (.+)$", PAGE, re.MULTILINE))
    code = {
        "ID": rating_fields.DIGITS,
        "TOKEN": rating_fields.TOKEN,
        "NAME": rating_fields.NAME,
        "NUMBER": rating_fields.NUMBER,
        "TIME": rating_fields.TIME,
    }
    assert kinds == {name: pattern.replace("(?:", "(") for name, pattern in code.items()}
    section = PAGE[PAGE.index("### Raw rows") :]
    for reason in RATING_REASONS:
        assert f"`{reason}`" in section
    for layout in formats_of(("movielens_csv", "amazon_2023", "amazon_2023_asin")):
        assert f"`{layout.header.decode()}`" in section
    for key in AMAZON_JSON.used:
        assert f"`{key}`" in section
