# SPDX-License-Identifier: Apache-2.0
"""Files of requests: JSON objects, or rows of a table."""

import contextlib
import csv
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint, request_from_json
from recsys.serve.client.requests import Arrays, row_of_columns
from recsys.serve.signature import FIELDS, Signature

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@contextlib.contextmanager
def of_line(where: str) -> Iterator[None]:
    """Names file and line of a request that is refused."""
    try:
        yield
    except UserError as error:
        raise UserError(f"`request` {where}: {error}; no later line was sent") from error


def read_requests(endpoint: Endpoint, name: str) -> Iterator[tuple[str, Arrays]]:
    """Yields file:line and the checked request of each line.

    Raises:
        UserError: the file cannot be read, holds no request, or one that is refused.
    """
    delimiter, request = _DELIMITERS.get(Path(name).suffix.lower()), None
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
                raise UserError(f"`request` {name}: {error.strerror}") from error
        if delimiter is None:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            parse = functools.partial(request_from_json, endpoint.signature)
        else:
            table = csv.reader(file, delimiter=delimiter)
            header = _read_header(endpoint, table, name)
            lines = enumerate(table, 2)
            parse = functools.partial(_request_of_row, endpoint.signature, header)
        for number, line in lines:
            where = f"{name}:{number}"
            with of_line(where):
                request = parse(line)
                endpoint.check(request)
            yield where, request
    if request is None:
        raise UserError(f"`request` {name}: holds no request")


def _read_header(endpoint: Endpoint, table: Iterator[list[str]], name: str) -> list[str]:
    """Reads the columns of a table, which names each feature once."""
    if FIELDS not in (tensor.name for tensor in endpoint.signature.inputs):
        raise UserError(f"`request` {name}: {endpoint.model} takes no rows of a table, only JSON")
    header = next(table, [])
    features = endpoint.signature.input(FIELDS).columns
    if lacking := [feature for feature in features if feature not in header]:
        raise UserError(f"`request` {name}: the header lacks {', '.join(lacking)}")
    if twice := [feature for feature in features if header.count(feature) > 1]:
        raise UserError(f"`request` {name}: the header names {', '.join(twice)} more than once")
    return header


def _request_of_row(signature: Signature, header: list[str], row: list[str]) -> Arrays:
    """Returns the request of a row; drops other columns than the features."""
    if len(row) != len(header):
        raise UserError(f"has {len(row)} fields, the header {len(header)}")
    values = dict(zip(header, row, strict=True))
    features = signature.input(FIELDS).columns
    return row_of_columns(signature, {name: values[name] for name in features})
