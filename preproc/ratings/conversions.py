# SPDX-License-Identifier: Apache-2.0
"""Files of other forms: their names, and commands that convert them."""

import shlex
from collections.abc import Sequence

from preproc.files.input_file import InputFile
from preproc.ratings.format import JSON_KEYS, load_json, split_csv
from preproc.ratings.header import header_names, names_by_column, suggestion

PARQUET_MARK = b"PAR1"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

_SEPARATORS = {b"\t": "tabs", b";": "semicolons", b"|": "bars"}
_PARQUET = (
    "import sys, pyarrow, pyarrow.csv, pyarrow.parquet; pyarrow.csv.write_csv(pyarrow.parquet."
    "read_table(pyarrow.BufferReader(sys.stdin.buffer.read())), sys.stdout.buffer)"
)
_DICTIONARIES = (
    "import ast, json, sys; "
    "sys.stdout.writelines(json.dumps(ast.literal_eval(row)) + '\\n' for row in sys.stdin)"
)
_FIELDS = (
    "import csv, sys; "
    "csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter='{}', quoting={}))"
)
_OBJECTS = (
    "import csv, json, sys; keys = {}; csv.writer(sys.stdout).writerows("
    "[keys, *([row[key] for key in keys] for row in map(json.loads, sys.stdin))])"
)


def conversion(file: InputFile, line: bytes) -> str | None:
    """Returns the form of a refused file, and a command that converts it.

    None if the first line tells no other form.
    """
    if line.startswith(PARQUET_MARK):
        return _told(file, "is a parquet file", _python(_PARQUET))
    if line.startswith(UTF16_MARKS):
        return _told(file, "is UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8")
    if line.startswith(b"{"):
        return _of_objects(file, line)
    if b"\r" in line:
        return _told(file, "has lines that end with CR alone", r"tr '\r' '\n'")
    separator = max(_SEPARATORS, key=line.count)
    if line.count(separator) <= line.count(b","):
        return None
    quoting = 3 if separator == b"\t" else 0  # quotes between tabs are text, as a rule
    code = _FIELDS.format(separator.decode().replace("\t", r"\t"), quoting)
    names = header_names(line.replace(separator, b","))
    return _told(file, f"has {_SEPARATORS[separator]} between fields", _python(code), names)


def _of_objects(file: InputFile, line: bytes) -> str | None:
    row = load_json(line)
    if isinstance(row, str):
        form = row.partition(";")[0]
        return _told(file, f"has {form}", _python(_DICTIONARIES)) if "Python" in form else None
    if JSON_KEYS.keys() <= row.keys():
        return None
    keys = list(names_by_column(list(row)).values())
    form = f"has objects with the keys {', '.join(row)}, needed are {', '.join(JSON_KEYS)}"
    return _told(file, form, _python(_OBJECTS.format(keys)), keys)


def without_first_line(file: InputFile, form: str) -> str:
    """Returns an error message for a file whose first line must go."""
    return _told(file, form, "tail -n +2")


def with_header(file: InputFile, line: bytes) -> str:
    """Returns an error message for a csv file that lacks a header."""
    names = [f"c{number}" for number, _ in enumerate(split_csv(line) or [], 1)]
    return _told(file, "has no header", f"(echo {','.join(names)}; cat)", names)


def _python(code: str) -> str:
    return f'python -c "{code}"'


def _told(file: InputFile, form: str, command: str, names: Sequence[str] = ()) -> str:
    reader = "zcat" if file.compression == "gzip" else "cat"
    made = file.path.with_name(f"{file.path.name.partition('.')[0]}_converted")
    columns = f" with `columns` {suggestion(names)}" if names else ""
    return (
        f"{file.path}: {form}. Convert it:\n  {reader} {shlex.quote(str(file.path))} | {command} > "
        f"{shlex.quote(str(made))}\nand give the new file{columns}"
    )
