# SPDX-License-Identifier: Apache-2.0
"""Checks of requests, shared by server and client."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.errors import UserError
from recsys.serve.signature import FIELDS, LINE, Signature, TensorSignature

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


_MOST_INT64 = 2**63 - 1
_MOST_FLOAT32 = float(np.finfo(np.float32).max)
_SHOWN = 40
"""How many characters of a value a message shows."""


class BadRequestError(UserError):
    """A request has a wrong value, which the message names."""


def num_rows(request: Arrays) -> int:
    """Returns B, the number of rows of a request."""
    return len(next(iter(request.values())))


def parse_json(text: str | bytes) -> Any:
    """Returns the value of an untrusted JSON text.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has a string that is not valid
            Unicode.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def array_of_json(tensor: TensorSignature, rows: Any) -> Array:
    """Converts the rows of an input, lists of values, without rounding.

    Raises:
        BadRequestError: names the row and the value that does not fit.
    """
    if not isinstance(rows, list):
        raise BadRequestError(f"input {tensor.name!r}: expected a list of rows, got {_shown(rows)}")
    for row, values in enumerate(rows):
        for feature, value in enumerate(values if isinstance(values, list) else [values]):
            if expected := _unlike(tensor, value):
                raise BadRequestError(
                    f"input {tensor.name!r}, row {row}, feature {feature}: expected {expected}, "
                    f"got {_shown(value)}"
                )
    try:
        return np.asarray(rows, dtype=tensor.numpy_dtype)
    except ValueError as error:
        raise BadRequestError(f"input {tensor.name!r}: {error}") from error


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _unlike(tensor: TensorSignature, value: Any) -> str:
    """Returns the expected kind of value; empty if the value is of that kind."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if tensor.dtype == "bool":
        return "" if isinstance(value, bool) else "true or false"
    if tensor.dtype == "string":
        return "" if is_number or isinstance(value, str) else "a text or a number"
    if tensor.dtype == "int64":
        is_whole = is_number and value % 1 == 0 and -_MOST_INT64 - 1 <= value <= _MOST_INT64
        return "" if is_whole else "a whole number of 64 bits"
    if not is_number:
        return "a number"
    is_too_large = math.isfinite(value) and abs(value) > _MOST_FLOAT32
    return f"a number within {_MOST_FLOAT32:.3g}" if is_too_large else ""


def row_of_columns(signature: Signature, values: Mapping[str, Any]) -> Arrays:
    """Returns the request for one row that is given by columns.

    Args:
        signature: signature of a model that takes `fields`.
        values: name of a column -> its text or number; a missing column, or None, is missing data.

    Raises:
        BadRequestError: a column is unknown, or its value is neither text nor number.
    """
    features = signature.input(FIELDS).columns
    known = {*features, *signature.input(LINE).columns}
    for name, value in values.items():
        if name not in known:
            raise BadRequestError(
                f"unknown column {name!r}; the features are {', '.join(features)}"
            )
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise BadRequestError(
                f"column {name}: expected a text, a number or null, got {value!r}; write a list "
                "as one text, as in the raw log"
            )
    given = [values.get(name) for name in features]
    texts = ["" if value is None else str(value) for value in given]
    return {
        FIELDS: np.array([[text.encode(errors="surrogateescape") for text in texts]], np.object_)
    }


def check_arrays(signature: Signature, arrays: Arrays) -> None:
    """Refuses arrays, [B, ...], of other names, types or shapes.

    Raises:
        BadRequestError: names the tensor, its value and what was expected.
    """
    known = {tensor.name for tensor in signature.inputs}
    unknown = sorted(arrays.keys() - known)
    if unknown:
        raise BadRequestError(
            f"unknown input {unknown[0]!r}; the model takes {', '.join(sorted(known))}"
        )
    rows: dict[str, int] = {}
    for tensor in signature.inputs:
        if tensor.name in arrays:
            _check_array(tensor, arrays[tensor.name])
            rows[tensor.name] = len(arrays[tensor.name])
        elif not tensor.optional:
            raise BadRequestError(f"input {tensor.name!r} is missing")
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise BadRequestError(f"inputs differ in their number of rows: {counts}")
    if not (rows and all(rows.values())):
        raise BadRequestError("the request has no row; leave it out, or send at least one")


def _check_array(tensor: TensorSignature, array: Array) -> None:
    if array.dtype != tensor.numpy_dtype:
        raise BadRequestError(
            f"input {tensor.name!r}: expected {tensor.dtype}, got {array.dtype}; values are not "
            "converted"
        )
    fits = array.ndim == 1 + len(tensor.shape) and all(
        want in (-1, got) for want, got in zip(tensor.shape, array.shape[1:], strict=True)
    )
    if not fits:
        expected = ", ".join(["rows", *("any" if n == -1 else str(n) for n in tensor.shape)])
        raise BadRequestError(
            f"input {tensor.name!r}: expected shape [{expected}], got {list(array.shape)}"
        )
    if tensor.dtype == "float32" and not np.isfinite(array).all():
        row, *index = np.argwhere(~np.isfinite(array))[0].tolist()
        raise BadRequestError(
            f"input {tensor.name!r}, row {row}, feature {index[0] if index else 0}: "
            f"{array[(row, *index)]} is not a finite number"
        )


def check_ids(name: str, ids: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
    """Refuses ids outside [0, end).

    Args:
        name: name of the input, for the message.
        ids: [B, F] int64.
        ends: [F] int64 ends of the ranges, or [1] for all features.

    Raises:
        BadRequestError: names row, feature, value and range.
    """
    outside = (ids < 0) | (ids >= ends)
    if outside.any():
        row, feature = np.argwhere(outside)[0].tolist()
        end = int(np.broadcast_to(ends, ids.shape)[row, feature])
        raise BadRequestError(
            f"input {name!r}, row {row}, feature {feature}: {ids[row, feature]} is not in "
            f"[0, {end})"
        )
