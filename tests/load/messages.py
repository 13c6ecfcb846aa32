# SPDX-License-Identifier: Apache-2.0
"""The requests: good ones of one row up to the greatest, and bad ones, over HTTP and gRPC."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from tests.load.models import Arrays, Model

Way = Literal["json", "binary", "grpc", "socket"]
"""How a request is sent: `socket` is bytes that are no whole HTTP request."""
WAYS: tuple[Way, ...] = ("json", "binary", "grpc")

SMALL = ("1 row", "8 rows")
"""Kinds whose latency counts."""
GOOD = {"1 row": 1, "8 rows": 8, "64 rows": 64}
LARGEST, TOO_LARGE = "largest", "too large"
_SHARES = {"1 row": 0.64, "8 rows": 0.18, "64 rows": 0.06, "bad": 0.1165, "huge": 0.0035}
"""Of all requests."""
_MODEL_SHARES = (0.6, 0.25, 0.15)
_VARIANTS = {"1 row": 100, "8 rows": 20, "64 rows": 4}
_HUGE_BYTES = 8 << 20
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A request as bytes.

    Attributes:
        kind: what it is, for the figures.
        model: name of the model that it is sent to.
        path: of HTTP.
        form: way to ask of the rows; empty for a request that must be refused.
        start: first row of the pool.
    """

    kind: str
    model: str
    way: Way
    body: bytes
    path: str = ""
    header_length: int | None = None
    form: str = ""
    start: int = 0


def messages(models: Sequence[Model]) -> tuple[list[Message], np.ndarray]:
    """Returns all requests, and how often each is sent (the sum is 1)."""
    made: list[Message] = []
    shares: list[float] = []
    for model, of_model in zip(models, _MODEL_SHARES, strict=True):
        groups: dict[str, list[Message]] = {
            kind: [*_good(model, kind, rows, _VARIANTS[kind])] for kind, rows in GOOD.items()
        }
        groups["bad"] = [*_bad(model)]
        groups["huge"] = [*_huge(model)]
        for kind, group in groups.items():
            made += group
            shares += [of_model * _SHARES[kind] / len(group)] * len(group)
    return made, np.array(shares) / sum(shares)


def _good(model: Model, kind: str, rows: int, variants: int) -> Iterator[Message]:
    for form, pool in model.forms.items():
        most = len(next(iter(pool.values()))) - rows
        for start in np.linspace(0, most, variants).astype(int).tolist():
            arrays = model.rows(form, start, rows)
            for way in WAYS:
                yield encode(kind, model.name, way, arrays, form=form, start=start)


def _huge(model: Model) -> Iterator[Message]:
    for form, pool in model.forms.items():
        for way in WAYS:
            yield encode(LARGEST, model.name, way, model.rows(form, 0, model.most_rows), form)
            more = {
                name: np.resize(array, (model.most_rows + 1, *array.shape[1:]))
                for name, array in pool.items()
            }
            yield encode(TOO_LARGE, model.name, way, more)
    if "line" in model.forms:
        line: Arrays = {"line": np.array([[b"\t".join([b"0"] * (_HUGE_BYTES // 2))]], np.object_)}
        for way in WAYS:
            yield encode(TOO_LARGE, model.name, way, line)


def _bad(model: Model) -> Iterator[Message]:
    """Yields each bad request in each way that can express it."""
    form = [*model.forms][-1]
    good = model.rows(form, 0, 2)
    (first, array), *others = good.items()
    rest = dict(others)
    ids = "history" if "history" in good else "categorical"
    arrays: dict[str, Arrays] = {
        "wrong shape": {first: array[:, :, None]} | rest,
        "wrong type": {first: array.astype(np.float64)} | rest,
        "missing input": rest or {"exclude_seen": np.ones((2, 1), np.bool_)},
        "unknown input": good | {"other": array},
        "other number of rows": {first: array[:1], "exclude_seen": np.ones((2, 1), np.bool_)}
        if not rest
        else {first: array[:1]} | rest,
        "no row": {name: each[:0] for name, each in good.items()},
        "unknown id": good | {ids: np.full_like(good[ids], 1 << 40)},
        "negative id": good | {ids: np.full_like(good[ids], -1)},
    }
    if "history" in good:
        arrays["no item"] = {"history": np.zeros_like(array)}
    else:
        lines = [b"", b"\t" * 37, b"\t" * 39, b"1.5" + b"\t" * 38, b"\xff\x00" + b"\t" * 38]
        arrays |= {
            f"bad line {number}": {"line": np.array([[line]], np.object_)}
            for number, line in enumerate(lines)
        }
    for kind, each in arrays.items():
        for way in WAYS:
            if way != "json" or b"\xff\x00" not in str(each).encode():
                yield encode(kind, model.name, way, each)
    for way in WAYS:
        yield encode("unknown model", f"no_{model.name}", way, good)
        yield encode("unknown version", model.name, way, good, version="999999")
        if "numerical" in good:
            not_finite = good | {"numerical": np.full_like(good["numerical"], np.nan)}
            yield encode("not finite", model.name, way, not_finite)
    yield from _broken(model, good)


def _broken(model: Model, good: Arrays) -> Iterator[Message]:
    """Yields bytes that are no whole request."""
    whole = encode("", model.name, "json", good)
    binary = encode("", model.name, "binary", good)
    grpc = encode("", model.name, "grpc", good)
    for body in (whole.body[:-9], b"", b"{", b'{"inputs": 3}', b"[[[[", b"\xff" * 99, b"null"):
        yield dataclasses.replace(whole, kind="malformed", body=body)
    yield dataclasses.replace(binary, kind="short data", body=binary.body[:-8])
    yield dataclasses.replace(binary, kind="wrong header length", header_length=1 << 30)
    yield dataclasses.replace(binary, kind="wrong header length", header_length=3)
    message = service_pb2.ModelInferRequest.FromString(grpc.body)
    message.raw_input_contents[0] = message.raw_input_contents[0][:-8]
    yield dataclasses.replace(grpc, kind="short data", body=message.SerializeToString())
    yield dataclasses.replace(grpc, kind="malformed", body=grpc.body[:-9])
    head = f"POST {whole.path} HTTP/1.1\r\nHost: server\r\nContent-Length: {len(whole.body)}\r\n"
    half = head.encode() + b"\r\n" + whole.body[: len(whole.body) // 2]
    for body in (half, half[:20], b"\x16\x03\x01" + bytes(99), b"\r\n" * 50):
        yield Message("cut off", model.name, "socket", body)


def encode(
    kind: str,
    model: str,
    way: Way,
    arrays: Arrays,
    form: str = "",
    start: int = 0,
    version: str = "",
) -> Message:
    if way == "grpc":
        body = _grpc(model, version, arrays)
        return Message(kind, model, way, body, form=form, start=start)
    of_version = f"/versions/{version}" if version else ""
    path = f"/v2/models/{model}{of_version}/infer"
    if way == "json":
        inputs = [tensor | {"data": _plain(array)} for tensor, array in _described(arrays)]
        text = json.dumps({"inputs": inputs}).encode()
        return Message(kind, model, way, text, path, form=form, start=start)
    parts = [_raw(array) for array in arrays.values()]
    inputs = [
        tensor | {"parameters": {"binary_data_size": len(part)}}
        for (tensor, _), part in zip(_described(arrays), parts, strict=True)
    ]
    asked = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    header = json.dumps(asked).encode()
    body = b"".join([header, *parts])
    return Message(kind, model, way, body, path, len(header), form, start)


def _described(arrays: Arrays) -> Iterable[tuple[dict[str, Any], Any]]:
    for name, array in arrays.items():
        datatype = np_to_triton_dtype(array.dtype)
        yield {"name": name, "shape": list(array.shape), "datatype": datatype}, array


def _plain(array: Any) -> list[Any]:
    flat = array.reshape(-1).tolist()
    if array.dtype == np.object_:
        return [text.decode(errors="replace") for text in flat]
    return flat


def _raw(array: Any) -> bytes:
    if array.dtype == np.object_:
        return serialize_byte_tensor(array).item() if array.size else b""
    return np.ascontiguousarray(array).tobytes()


def _grpc(model: str, version: str, arrays: Arrays) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    for tensor, array in _described(arrays):
        request.inputs.add(**tensor)
        request.raw_input_contents.append(_raw(array))
    return request.SerializeToString()
