# SPDX-License-Identifier: Apache-2.0
"""Sends requests at the moments at which they are due, whatever the server does."""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import aiohttp
import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from tests.load.messages import HEADER_LENGTH, Message
from tests.load.models import Arrays, Model

DEADLINE_S = 60.0
"""Longest wait for an answer or an error, as that of `recsys-recipes ask`."""
_RECONNECT_MS = 100
_CONNECTIONS = 512
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_CHANNEL = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # By default a channel waits up to two minutes before it connects again.
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
]
_NO_SERVER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_DTYPES = {"FP32": np.float32, "INT64": np.int64}

RIGHT, REFUSED, ERROR, WRONG, LOST = range(5)
"""Outcomes: a right answer; a refusal; an error instead of either; a wrong answer, which any answer
to a bad request is; neither answer nor error within the deadline."""
_UNSENT = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What came back: an answer with a version, or a text that says why not."""

    text: str = ""
    version: int = 0
    outputs: Arrays | None = None
    refused: bool = False


@dataclasses.dataclass(slots=True)
class Record:
    """What became of requests.

    Attributes:
        due: seconds from the start; each array has a number for each request.
        numbers: its message.
        sent: when it was sent.
        done: when its answer or error came.
        outcome: one of the five; _UNSENT before that.
        texts: number of a request -> why it has no right answer or refusal.
    """

    due: Any
    numbers: Any
    sent: Any
    done: Any
    outcome: Any
    texts: dict[int, str]

    @classmethod
    def of(cls, due: Any, numbers: Any) -> Self:
        """Returns the record before the start."""
        sent, done = np.full((2, len(due)), np.nan)
        return cls(due, numbers, sent, done, np.full(len(due), _UNSENT, np.uint8), {})

    @property
    def latency(self) -> Any:
        """Seconds from the moment at which each was due."""
        return self.done - self.due

    def finished(self) -> Self:
        """Returns the record of the requests that were sent."""
        kept = self.outcome != _UNSENT
        arrays = (self.due, self.numbers, self.sent, self.done, self.outcome)
        names = np.flatnonzero(kept).tolist()
        texts = {new: self.texts[old] for new, old in enumerate(names) if old in self.texts}
        return type(self)(*(array[kept] for array in arrays), texts)


class Client:
    """Connections to a server; an asynchronous context manager.

    Args:
        http: host:port, likewise `grpc_`.
        messages: what can be sent.
        models: compare the answers.
    """

    def __init__(
        self, http: str, grpc_: str, messages: Sequence[Message], models: Sequence[Model]
    ) -> None:
        self._http, self._grpc, self._messages = http, grpc_, messages
        self._models: Mapping[str, Model] = {model.name: model for model in models}

    async def __aenter__(self) -> Self:
        limit = aiohttp.TCPConnector(limit=_CONNECTIONS)
        # The deadline is `_within`'s, which counts the wait for a connection too.
        self._session = aiohttp.ClientSession(connector=limit, timeout=aiohttp.ClientTimeout())
        self._channel = grpc.aio.insecure_channel(self._grpc, options=_CHANNEL)
        self._infer = self._channel.unary_unary(_INFER)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._channel.close()

    async def run(self, record: Record, start: float) -> None:
        """Sends requests when they are due, and waits for what becomes of them.

        Args:
            record: the requests; is filled in.
            start: time of `time.perf_counter` from which they are due.
        """
        waiting: set[asyncio.Task[None]] = set()
        for number, due in enumerate(record.due.tolist()):
            wait = start + due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self._one(record, number, start))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            if wait <= 0 and not number % 8:
                await asyncio.sleep(0)  # to those under way
        if waiting:
            await asyncio.wait(waiting)

    async def _one(self, record: Record, number: int, start: float) -> None:
        message = self._messages[record.numbers[number]]
        record.sent[number] = time.perf_counter() - start
        call = asyncio.ensure_future(self.ask(message))
        # Not `wait_for`: it would cancel the call, and cancelled gRPC calls end this server.
        done, _ = await asyncio.wait([call], timeout=DEADLINE_S)
        record.done[number] = time.perf_counter() - start
        if done:
            outcome, text = self._outcome(message, call.result())
        else:
            outcome, text = LOST, f"neither answer nor error within {DEADLINE_S:.0f} s"
            if message.way != "grpc":
                call.cancel()
        record.outcome[number] = outcome
        if text:
            record.texts[number] = text

    def _outcome(self, message: Message, reply: Reply) -> tuple[int, str]:
        if reply.outputs is None:
            if not message.form and reply.refused:
                return REFUSED, ""
            return ERROR, reply.text
        if not message.form:
            return WRONG, f"version {reply.version} answered {reply.outputs} to a bad request"
        model = self._models[message.model]
        fault = model.fault(reply.version, message.form, message.start, reply.outputs)
        return (WRONG, f"version {reply.version}: {fault}") if fault else (RIGHT, "")

    async def ask(self, message: Message) -> Reply:
        """Sends a request; returns what came back, or why nothing did."""
        try:
            if message.way == "socket":
                return await self._hang_up(message)
            return await (self._over_grpc if message.way == "grpc" else self._over_http)(message)
        except (OSError, aiohttp.ClientError, EOFError) as error:
            return Reply(f"{type(error).__name__}: {error}")
        except grpc.aio.AioRpcError as error:
            text = f"{error.code().name}: {error.details()}"
            return Reply(text, refused=error.code() not in _NO_SERVER)

    async def _over_http(self, message: Message) -> Reply:
        length = message.header_length
        headers = {} if length is None else {HEADER_LENGTH: str(length)}
        url = f"http://{self._http}{message.path}"
        async with self._session.post(url, data=message.body, headers=headers) as response:
            body = await response.read()
            if response.status != 200:
                text = f"{response.status}: {body[:500].decode(errors='replace')}"
                return Reply(text, refused=True)
            length = int(response.headers.get(HEADER_LENGTH, len(body)))
        head, outputs = json.loads(body[:length]), {}
        for tensor in head["outputs"]:
            dtype = _DTYPES[tensor["datatype"]]
            if "data" in tensor:
                array = np.array(tensor["data"], dtype)
            else:
                size = tensor["parameters"]["binary_data_size"]
                array = np.frombuffer(body[length : length + size], dtype)
                length += size
            outputs[tensor["name"]] = array.reshape(tensor["shape"])
        return Reply(version=int(head["model_version"]), outputs=outputs)

    async def _over_grpc(self, message: Message) -> Reply:
        response = service_pb2.ModelInferResponse.FromString(await self._infer(message.body))
        outputs = {
            tensor.name: np.frombuffer(raw, _DTYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }
        return Reply(version=int(response.model_version), outputs=outputs)

    async def _hang_up(self, message: Message) -> Reply:
        """Sends some bytes and closes the connection."""
        host, _, port = self._http.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(message.body)
        with contextlib.suppress(OSError):  # the server may have closed it first
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        return Reply("closed", refused=True)
