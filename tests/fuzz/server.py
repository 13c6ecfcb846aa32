# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the requests of a real server.

    python -m tests.fuzz.server [--minutes N] [--seed N] [--first N]

Run it with the Python that has Triton (.venv-triton/bin/python). The server has a DLRM on the
native backend, the same on the Python backend, and a BERT4Rec. A case is a good request with other
values, types, shapes, names and numbers of rows, or with other bytes on the wire. The two DLRMs
must answer alike or both refuse. Where the arrays are known, answers must be those of the model
offline, and what is refused offline must be refused. The server must not end. Cases are sent
together, so good and bad ones share batches. A seed draws the same cases again, and `--first`
starts at one.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from bert4rec.serve.served import ServedBert4Rec
from dlrm.serve.native import NativeDlrm
from recsys.errors import UserError
from recsys.serve.served import ServedModel
from recsys.serve.server.instances import find_instances
from recsys_recipes.serving.raw_clicks import ServedRawClicks
from tests.fuzz.documents import edited_json
from tests.fuzz.recommending import near_lists
from tests.fuzz.target import Draws
from tests.load.client import DEADLINE_S, Client, Reply
from tests.load.messages import WAYS, Message, encode
from tests.load.models import Arrays, Model, serving_models
from tests.triton.test_supervisor import Served

_TOGETHER = 16
"""Cases that are sent at the same time."""
_ROWS = (1, 2, 3, 17, 64)
_NUMBERS = (0, -1, 1, 7, 500, 1 << 31, (1 << 63) - 1, -(1 << 63))
_FLOATS = (0.0, -0.0, -1.0, 0.5, 1e38, -1e38, 1e-45, float("nan"), float("inf"), -float("inf"))
_TYPES = (*(np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_), np.object_)
_NAMES = ("", "x", "line", "fields", "numerical", "categorical", "factors", "history", "a" * 300)
_TEXTS = (b"", b"\t", b"\0", b"\xff", b"nan", b"1e400", b"-", b"\n", b'"', b"0" * 5000)
_OF_BATCH = "incomplete string data"
"""Triton's Python backend refuses a whole batch if the length of a text in it is wrong."""
_MOST_SHAPE = 1_000_000
"""JSON of a greater shape is known to end this release of Triton (docs/deployment.md, Security)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A request, once for each model that must treat it alike.

    Attributes:
        arrays: what is asked, if the model gets exactly these.
        edits: what was done to a good request, for people.
    """

    messages: tuple[Message, ...]
    arrays: Arrays | None
    edits: str


def drawn(models: Mapping[str, Model], seed: int, number: int) -> Case:
    """Returns a case of a seed."""
    rng = random.Random(f"{seed} {number}")
    draws = Draws(rng.randbytes(8 << rng.randrange(6)))
    twins = ("items",) if draws.below(4) == 3 else ("clicks", "python_clicks")
    model, way = models[twins[0]], draws.pick(WAYS)
    arrays, edits = _arrays(draws, model)
    on_wire = draws.below(3) == 2
    if way == "json" and not _in_json(arrays):
        way = "binary"
    messages = [encode("", name, way, arrays) for name in twins]
    if on_wire:
        rest = draws.bytes(1 << 12)  # both twins get the same edits
        messages = [_on_wire(Draws(rest), message) for message in messages]
    return Case(
        tuple(messages) if all(map(_is_harmless, messages)) else (),
        None if on_wire else arrays,
        f"{way}, {edits}{', edited on the wire' if on_wire else ''}",
    )


def _arrays(draws: Draws, model: Model) -> tuple[Arrays, str]:
    form = draws.pick([*model.forms])
    rows = draws.pick((*_ROWS, model.most_rows) if draws.below(50) == 1 else _ROWS)
    pool = len(next(iter(model.forms[form].values())))
    arrays = {k: v.copy() for k, v in model.rows(form, draws.below(pool - rows + 1), rows).items()}
    edits = [f"{rows} rows of {form}"]
    for _ in draws.some(3):
        if not arrays:
            break
        name = draws.pick([*arrays])
        edit = draws.pick((_values, _values, _values, _type, _shape, _name))
        edits.append(f"{edit.__name__.strip('_')} of {name}")
        edit(draws, arrays, name)
    return arrays, ", ".join(edits)


def _values(draws: Draws, arrays: Arrays, name: str) -> None:
    flat = arrays[name].reshape(-1)
    for _ in range(1 + draws.below(3)):
        if not len(flat):
            return
        at = draws.below(len(flat))
        if flat.dtype == np.object_:
            text = flat[at] if isinstance(flat[at], bytes) else str(flat[at]).encode()
            flat[at] = draws.edited(text) if draws.below(3) else draws.pick(_TEXTS)
        elif flat.dtype.kind == "f":
            with np.errstate(over="ignore"):
                flat[at] = draws.pick(_FLOATS)
        else:
            flat[at] = np.int64(draws.pick(_NUMBERS)).astype(flat.dtype)
    arrays[name] = flat.reshape(arrays[name].shape)


def _type(draws: Draws, arrays: Arrays, name: str) -> None:
    array, dtype = arrays[name], draws.pick(_TYPES)
    if array.dtype == np.object_:
        arrays[name] = np.zeros(array.shape, dtype) if dtype != np.object_ else array
    elif dtype == np.object_:
        texts = [str(value).encode() for value in array.reshape(-1).tolist()]
        arrays[name] = np.array(texts, np.object_).reshape(array.shape)
    else:
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(dtype)


def _shape(draws: Draws, arrays: Arrays, name: str) -> None:
    array, kind = arrays[name], draws.below(7)
    if kind == 0:
        array = array[..., None]
    elif kind == 1:
        array = array.reshape(-1)
    elif kind == 2:
        array = array[: draws.below(len(array) + 1)] if array.ndim else array
    elif kind == 3 and array.ndim > 1:
        array = array[:, : draws.below(array.shape[1] + 1)]
    elif kind == 4 and array.ndim > 1:
        array = np.concatenate([array, array[:, : 1 + draws.below(3)]], 1)
    elif kind == 5:
        array = array.T
    else:
        array = array.reshape(-1)[:1].reshape(()) if array.size else array
    arrays[name] = np.ascontiguousarray(array) if array.ndim else array


def _name(draws: Draws, arrays: Arrays, name: str) -> None:
    array, other = arrays[name], draws.pick(_NAMES)
    if draws.below(2):
        del arrays[name]
    if draws.below(4):
        arrays[other] = array


def _in_json(arrays: Arrays) -> bool:
    """Whether JSON has all values."""
    texts = [t for a in arrays.values() if a.dtype == np.object_ for t in a.reshape(-1).tolist()]
    try:
        for text in texts:
            text.decode()
    except UnicodeDecodeError:
        return False
    return all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f")


def _on_wire(draws: Draws, message: Message) -> Message:
    """Edits what is sent: the fields of its header, or any of its bytes."""
    replace, kind = dataclasses.replace, draws.below(4)
    if message.way == "grpc":
        if kind == 0:
            # Not the name: it is another one for each twin.
            return replace(message, body=_edited_grpc(draws, message.body))
        return replace(message, body=_edited_fields(draws, message.body))
    length = len(message.body) if message.header_length is None else message.header_length
    header, data = message.body[:length], message.body[length:]
    if kind == 0:
        return replace(message, body=draws.edited(message.body))
    if kind == 1:
        data = draws.edited(data)
    else:
        header = edited_json(draws, header)
    if message.header_length is None:
        return replace(message, body=header + data)
    length = len(header) if draws.below(8) else draws.pick((0, 1, len(header) - 1, 1 << 31))
    return replace(message, body=header + data, header_length=length)


def _edited_grpc(draws: Draws, body: bytes) -> bytes:
    """Edits the bytes after the model's name."""
    request = service_pb2.ModelInferRequest.FromString(body)
    named = service_pb2.ModelInferRequest(model_name=request.model_name)
    request.ClearField("model_name")
    return named.SerializeToString() + draws.edited(request.SerializeToString())


def _edited_fields(draws: Draws, body: bytes) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(body)
    for _ in range(1 + draws.below(3)):
        kind = draws.below(9)
        if not request.inputs:
            break
        tensor = request.inputs[draws.below(len(request.inputs))]
        if kind == 0:
            tensor.datatype = draws.pick(
                ("FP32", "INT64", "BYTES", "BOOL", "FP16", "BF16", "", "x")
            )
        elif kind == 1:
            values = (0, 1, -1, 39, _MOST_SHAPE, (1 << 63) - 1)
            tensor.shape[:] = [draws.pick(values) for _ in range(draws.below(4))]
        elif kind == 2 and request.raw_input_contents:
            at = draws.below(len(request.raw_input_contents))
            request.raw_input_contents[at] = draws.edited(request.raw_input_contents[at])
        elif kind == 3 and request.raw_input_contents:
            del request.raw_input_contents[draws.below(len(request.raw_input_contents))]
        elif kind == 4:
            request.raw_input_contents.append(draws.bytes(draws.below(40)))
        elif kind == 5:
            request.inputs.append(tensor)
        elif kind == 6:
            tensor.contents.int64_contents.extend(range(draws.below(60)))
        elif kind == 7:
            request.outputs.add(name=draws.pick(("logit", "probability", "items", "", "x")))
        else:
            request.model_version = draws.pick(("1", "01", "-1", "0", "2", "x", "1" * 400))
    return request.SerializeToString()


def _is_harmless(message: Message) -> bool:
    """Whether a request is none of those that this release of Triton is known not to survive.

    Nor one of those that its Python backend never answers: they have no row and no column.
    """
    if message.way == "grpc":
        try:
            request = service_pb2.ModelInferRequest.FromString(message.body)
        except DecodeError:
            return True
        return not any([*tensor.shape][:2] == [0, 0] for tensor in request.inputs)
    length = message.header_length
    try:
        header = json.loads(message.body if length is None else message.body[:length])
    except (ValueError, RecursionError):
        return True
    shapes = [*_shapes(header)]
    return not any(shape[:2] == [0, 0] or max(shape, default=0) > _MOST_SHAPE for shape in shapes)


def _shapes(value: Any) -> Iterator[list[float]]:
    """Yields the numbers of each shape."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "shape":
                sizes = each if isinstance(each, list) else [each]
                yield [abs(size) for size in sizes if isinstance(size, (int, float))]
            yield from _shapes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _shapes(each)


class Fuzz:
    """A running server, and the models offline."""

    def __init__(self, served: Served, models: Sequence[Model], repository: Path, seed: int):
        self._served, self._seed = served, seed
        self._models = {model.name: model for model in models}
        classes: dict[str, type[ServedModel]] = {
            "clicks": NativeDlrm,
            "python_clicks": ServedRawClicks,
            "items": ServedBert4Rec,
        }
        cpu = torch.device("cpu")
        self._offline = {n: c.open(repository / n / "1", cpu) for n, c in classes.items()}
        self.outcomes: Counter[str] = Counter()

    async def run(self, seconds: float, first: int) -> list[str]:
        """Sends cases until the time is over or one shows a fault; returns what is wrong."""
        http = self._served.http.removeprefix("http://")
        processes = self._processes()
        end, number, told = time.monotonic() + seconds, first, time.monotonic()
        async with Client(http, self._served.grpc, (), ()) as client:
            while time.monotonic() < end:
                numbers = range(number, number + _TOGETHER)
                cases = [drawn(self._models, self._seed, each) for each in numbers]
                asked = [
                    asyncio.create_task(client.ask(message), name=f"case {each} ({case.edits})")
                    for each, case in zip(numbers, cases, strict=True)
                    for message in case.messages
                ]
                _, lost = await asyncio.wait(asked, timeout=DEADLINE_S)
                if lost:
                    return [f"{task.get_name()}: no reply in {DEADLINE_S:.0f} s" for task in lost]
                all_replies = [task.result() for task in asked]
                replies, faults = iter(all_replies), []
                for each, case in zip(numbers, cases, strict=True):
                    of_case = [next(replies) for _ in case.messages]
                    fault = self._fault(case, of_case)
                    if fault and any(_OF_BATCH in reply.text for reply in of_case):
                        fault = self._fault(case, [await client.ask(m) for m in case.messages])
                        self.outcomes["refused with their batch"] += 1
                    if fault:
                        faults.append(f"case {each} ({case.edits}): {fault}")
                number += _TOGETHER
                if not all(Path(f"/proc/{pid}").exists() for pid in processes):
                    faults.append(f"a process ended in the cases {numbers.start} to {numbers[-1]}")
                if faults:
                    return faults
                if time.monotonic() > told + 60:
                    told = time.monotonic()
                    print(f"{number - first:,} cases", flush=True)
        return []

    def _processes(self) -> list[int]:
        server = self._served.server_pid
        assert server is not None
        return [server, *(each.pid for each in find_instances(server))]

    def _fault(self, case: Case, replies: Sequence[Reply]) -> str:
        for message, reply in zip(case.messages, replies, strict=True):
            outcome = "answered" if reply.outputs is not None else "refused"
            if reply.outputs is None and not reply.refused:
                return f"{message.model}: no reply: {reply.text}"
            if "Traceback" in reply.text or 'File "' in reply.text:
                return f"{message.model}: {reply.text}"
            self.outcomes[outcome] += 1
            if case.arrays is not None and (fault := self._unlike_offline(message, case, reply)):
                return f"{message.model}: {fault}"
        if len(replies) == 2:
            one, other = replies
            if (one.outputs is None) != (other.outputs is None):
                return f"the twins differ: {_shown(one)}; {_shown(other)}"
            if one.outputs is not None and other.outputs is not None:
                return unlike(one.outputs, other.outputs)
        return ""

    def _unlike_offline(self, message: Message, case: Case, reply: Reply) -> str:
        assert case.arrays is not None
        try:
            expected = self._offline[message.model].respond(case.arrays)
        except UserError as error:
            return "" if reply.outputs is None else f"answered; offline refuses: {error}"
        if reply.outputs is None:
            most = self._models[message.model].most_rows
            rows = len(next(iter(case.arrays.values())))
            return "" if rows > most else f"refused: {reply.text}"
        return unlike(reply.outputs, expected)


def unlike(got: Arrays, expected: Arrays) -> str:
    """Says how two answers differ; empty if they agree."""
    if got.keys() != expected.keys():
        return f"outputs {sorted(got)} instead of {sorted(expected)}"
    for name, array in expected.items():
        if got[name].shape != array.shape:
            return f"{name} has shape {got[name].shape} instead of {array.shape}"
        if name != "items" and not np.allclose(got[name], array, rtol=1e-4, atol=1e-4):
            return f"{name} is {got[name].tolist()} instead of {array.tolist()}"
    if "items" in expected and not near_lists(got, expected):
        return f"{got} instead of {expected}"
    return ""


def _shown(reply: Reply) -> str:
    return reply.text or str(reply.outputs)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args(arguments)
    with serving_models() as (served, repository, models):
        fuzz = Fuzz(served, models, repository, options.seed)
        faults = asyncio.run(fuzz.run(60 * options.minutes, options.first))
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(fuzz.outcomes.items()))
    print(f"{told}; {f'{len(faults)} faults' if faults else 'no fault'}")
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main(sys.argv[1:]))
