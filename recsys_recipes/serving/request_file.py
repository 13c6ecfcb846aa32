# SPDX-License-Identifier: Apache-2.0
"""Files of requests: JSON objects, or rows of a table."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from preproc.clicks.schema.row_format import split_fields
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint, request_from_json
from recsys.serve.client.requests import Arrays, row_of_columns
from recsys.serve.signature import FIELDS, LINE, Signature

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@contextlib.contextmanager
def of_line(where: str) -> Iterator[None]:
    """Adds the file and the line to the error of a refused request."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"`request` {where}: {error}; no later line was sent", setting="request"
        ) from error


def read_requests(endpoint: Endpoint, name: str) -> Iterator[tuple[str, Arrays]]:
    """Yields file:line and the checked request of each line.

    Raises:
        UserError: the file cannot be read, or has no request or a refused one.
    """
    usual, request = _DELIMITERS.get(Path(name).suffix.lower()), None
    lines: Iterable[tuple[int, Any]]
    parse: Callable[[Any], Arrays]
    with contextlib.ExitStack() as stack:
        file = sys.stdin
        if name != "-":
            try:
                file = stack.enter_context(
                    Path(name).open(encoding="utf-8-sig", errors="surrogateescape", newline="")
                )
            except OSError as error:
                raise UserError(f"`request` {name}: {error.strerror}", setting="request") from error
        if usual is None:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            parse = functools.partial(request_from_json, endpoint.signature)
        else:
            table = _Table.of(endpoint, file.readline(), usual, name)
            lines = enumerate(file, 2)
            parse = functools.partial(table.request, endpoint.signature)
        for number, line in lines:
            where = f"{name}:{number}"
            with of_line(where):
                request = parse(line)
                endpoint.check(request)
            yield where, request
    if request is None:
        raise UserError(f"`request` {name}: has no requests", setting="request")


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """Rows of a table, in the format of the model's log or of the file name's extension.

    Attributes:
        header: names of the columns.
        delimiter: between two fields.
        quote: around fields that contain delimiters; empty if there are no quotes.
    """

    header: list[str]
    delimiter: str
    quote: str

    @classmethod
    def of(cls, endpoint: Endpoint, line: str, usual: str, name: str) -> "_Table":
        """Reads the header, which names each feature once.

        Raises:
            UserError: the model takes no rows, or the header lacks or repeats a feature.
        """
        if FIELDS not in (tensor.name for tensor in endpoint.signature.inputs):
            raise UserError(
                f"`request` {name}: {endpoint.model} takes no rows of a table, only JSON",
                setting="request",
            )
        log, features = endpoint.signature.input(LINE), endpoint.signature.input(FIELDS).columns
        spellings = [(log.delimiter, log.quote)] if log.delimiter else []
        tables = [cls([], *spelling)._with_header(line) for spelling in (*spellings, (usual, '"'))]
        table = max(tables, key=lambda each: len({*features} & {*each.header}))
        header = table.header
        if lacking := [feature for feature in features if feature not in header]:
            raise UserError(
                f"`request` {name}: the header lacks {', '.join(lacking)}; it was read with "
                f"{table.delimiter!r} between names",
                setting="request",
            )
        if twice := [feature for feature in features if header.count(feature) > 1]:
            raise UserError(
                f"`request` {name}: the header names {', '.join(twice)} more than once",
                setting="request",
            )
        return table

    def _with_header(self, line: str) -> "_Table":
        return dataclasses.replace(self, header=self._fields(line) or [])

    def _fields(self, line: str) -> list[str] | None:
        """Returns the fields of a line; None if its quotes are wrong."""
        row = line.removesuffix("\n").removesuffix("\r").encode(errors="surrogateescape")
        fields = split_fields(row, self.delimiter.encode(), self.quote.encode())
        if fields is None:
            return None
        return [field.decode(errors="surrogateescape") for field in fields]

    def request(self, signature: Signature, line: str) -> Arrays:
        """Returns the request of a row; drops other columns than the features."""
        row = self._fields(line)
        if row is None:
            raise UserError(
                "has a field with an opening quote but no closing quote before "
                f"{self.delimiter!r} or the end"
            )
        if len(row) != len(self.header):
            raise UserError(f"has {len(row)} fields, but the header has {len(self.header)}")
        values = dict(zip(self.header, row, strict=True))
        features = signature.input(FIELDS).columns
        return row_of_columns(signature, {name: values[name] for name in features})
