# SPDX-License-Identifier: Apache-2.0
"""A client of a Triton server, HTTP or gRPC.

Requests are checked against the model's signature before they are sent.
"""

import contextlib
import dataclasses
import importlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Self

from recsys.errors import UserError
from recsys.installation import command_for
from recsys.serve.client.requests import (
    Arrays,
    BadRequestError,
    array_of_json,
    check_arrays,
    num_rows,
    parse_json,
    row_of_columns,
)
from recsys.serve.signature import FIELDS, HISTORY, LINE, Signature, TensorSignature, dtype_of_wire

Protocol = Literal["http", "grpc"]
_SHOWN = 12
"""How many characters of a line a message shows."""


class EndpointError(UserError):
    """A server is unreachable, does not have the model, or refuses a request.

    Attributes:
        status: HTTP code, or name of the gRPC code; empty if there was no response.
    """

    def __init__(self, message: str, status: str = "", *, setting: str | None = None) -> None:
        super().__init__(message, setting=setting)
        self.status = status


class OverloadedError(EndpointError):
    """A server refuses a request because too many are waiting."""


_here = threading.local()
"""Number of open HTTP connections of each thread."""
_SCHEMES: Mapping[str, Protocol] = {"http://": "http", "grpc://": "grpc"}
_OF_GRPC = ("dns:///", "ipv4:", "ipv6:", "unix:")
"""Addresses in gRPC's own spelling, which gRPC resolves itself."""


def address(url: str, protocol: Protocol = "http") -> tuple[str, Protocol]:
    """Returns host:port and protocol of a URL; the protocol defaults to the given one.

    Raises:
        EndpointError: the URL has no port, or is not an address.
    """
    if url.startswith(_OF_GRPC):
        return url, "grpc"
    host_port = url
    for scheme, named in _SCHEMES.items():
        if url.startswith(scheme):
            host_port, protocol = url.removeprefix(scheme).rstrip("/"), named
    server, _, path = host_port.partition("/")
    if path and (protocol == "grpc" or "//" in host_port):  # a proxy may serve HTTP below a path
        raise EndpointError(
            f"`url` {url}: expected host:port, http://host:port or grpc://host:port", setting="url"
        )
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= float(port) < 1 << 16:
        raise EndpointError(
            f"`url` {url}: expected host:port with a port from 1 to 65535, such as "
            "127.0.0.1:8000; "
            "`recsys-recipes serve` prints its addresses",
            setting="url",
        )
    return host_port, protocol


_REFUSED_FOR_LOAD = {
    "maximum queue size": "its queue is full (`max_queue_size` of the deployment)",
    "Request timeout expired": "the request waited too long (`timeout_us` of the deployment, "
    "or `timeout_s` of the client)",
}
"""Message of the server -> what it means."""
_NOT_HTTP = (("geventhttpclient.response", "HTTPParseError"), ("rapidjson", "JSONDecodeError"))
"""Exceptions of a client if the server does not speak HTTP, or is not Triton's."""
_OF_OTHER_PROTOCOL = ("Socket closed", "Trying to connect an http1.x server", "Expected HTTP/")
"""Messages of a client if the server speaks the other protocol."""
_NOBODY_THERE = ("onnect", "DNS", "Name or service", "name resolution", "timed out")
"""Messages of a client that reached no server; "onnect" matches connect and Connection."""


def keep_shared() -> None:
    """Counts an HTTP connection of this thread, so that gevent's event loop stays in use.

    The loop is destroyed with the last connection, which leaks about 14 KiB each time. A thread
    that opens connections again and again calls this once more to keep its loop.
    """
    _here.connections = getattr(_here, "connections", 0) + 1


@dataclasses.dataclass(frozen=True, slots=True)
class ServerTimes:
    """Cumulative statistics of a model since the server started.

    Attributes:
        requests: successful requests.
        rows: rows of these requests.
        executions: runs of the model; fewer than requests if the server combined some.
        queue_s: seconds that requests waited, summed.
        compute_s: seconds of computation, including copies of inputs and outputs, summed.
    """

    requests: int
    rows: int
    executions: int
    queue_s: float
    compute_s: float

    def since(self, earlier: "ServerTimes") -> "ServerTimes":
        """Returns the statistics since `earlier`."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True)
        return ServerTimes(*(now - then for now, then in pairs))


class Endpoint:
    """A connection to one model on a server, for use by one thread.

    As a context manager it closes itself.

    Args:
        url: host:port of the server; http:// or grpc:// before it names the protocol.
        model: name of the model.
        version: version of the model; empty leaves the choice to the server.
        protocol: protocol if the URL names none.
        timeout_s: longest wait for each answer, also for answers about the model.

    Attributes:
        max_batch_size: largest number of rows of a request; None if the model sets no limit.
        served_versions: versions that the server answers with; only `version` if it is named.
        answered: versions that answered requests.

    Raises:
        EndpointError: the URL is malformed, the server is unreachable or does not have the model,
            or tritonclient is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        version: str = "",
        protocol: Protocol = "http",
        timeout_s: float = 60.0,
    ) -> None:
        url, protocol = address(url, protocol)
        self.url, self.model, self.version = url, model, version
        self.answered: set[int] = set()
        self.protocol, self.timeout_s = protocol, timeout_s
        self._library = _library(protocol)
        self._refused: type[Exception] = importlib.import_module(
            "tritonclient.utils"
        ).InferenceServerException
        self._broken: tuple[type[Exception], ...] = (OSError, EOFError)
        if protocol == "http":
            for module, error in _NOT_HTTP:
                self._broken += (getattr(importlib.import_module(module), error),)
            # These limit each read, and a reply may take many reads: `_deadline` limits them all.
            limits = {"connection_timeout": 2 * timeout_s, "network_timeout": 2 * timeout_s}
            self._as_json: Mapping[str, Any] = {}
            self._timeout: Mapping[str, Any] = {}
            gevent = importlib.import_module("gevent")
            self._deadline: Callable[[], contextlib.AbstractContextManager[Any]] = lambda: (
                gevent.Timeout(timeout_s, self._late())
            )
            self._thread = threading.get_ident()
            keep_shared()
        else:
            limits, self._as_json = {}, {"as_json": True}
            self._timeout = {"client_timeout": timeout_s}
            self._deadline = contextlib.nullcontext
        self._client = self._library.InferenceServerClient(url, **limits)
        try:
            metadata = self._query("get_model_metadata")
            config = self._query("get_model_config")
        except BaseException:
            self.close()
            raise
        config = config.get("config", config)  # gRPC wraps it
        self.max_batch_size = int(config.get("max_batch_size", 0)) or None
        optional = {tensor["name"] for tensor in config["input"] if tensor.get("optional")}
        told = {  # written by config_text
            name: json.loads(parameter["string_value"])
            for tensor in config["input"]
            for name in (tensor["name"], f"{tensor['name']}_dialect")
            if (parameter := config.get("parameters", {}).get(name)) is not None
        }
        self.served_versions = [int(version) for version in metadata["versions"]]
        self.signature = Signature(
            inputs=tuple(_tensor(t, t["name"] in optional, told) for t in metadata["inputs"]),
            outputs=tuple(_tensor(t, False, {}) for t in metadata["outputs"]),
        )

    def again(self, version: str | None = None) -> "Endpoint":
        """Returns another connection to the model, for another thread or version."""
        version = self.version if version is None else version
        return Endpoint(self.url, self.model, version, self.protocol, self.timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; an open one delays a server that stops."""
        self._client.close()
        if self.protocol == "http" and self._thread == threading.get_ident():
            self._thread = 0
            _here.connections -= 1
            if not _here.connections and threading.current_thread() is not threading.main_thread():
                # The pool holds two descriptors for each thread and would keep them.
                importlib.import_module("gevent").get_hub().destroy()

    def _query(self, method: str) -> Any:
        return self._call(getattr(self._client, method), self.model, self.version, **self._as_json)

    def _late(self) -> EndpointError:
        return EndpointError(
            f"{self.model} at {self.url}: no answer within {self.timeout_s:g} s (`timeout_s`); the "
            "server is busy or hangs, or another program is using its port",
            "DEADLINE_EXCEEDED",
            setting="timeout_s",
        )

    def _call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            with self._deadline():
                return function(*arguments, **options, **self._timeout)
        except self._refused as error:
            reason: Any = error
            # The code is StatusCode.INVALID_ARGUMENT over gRPC, 400 over HTTP.
            status = str(reason.status() or "").removeprefix("StatusCode.")
            if status == "DEADLINE_EXCEEDED":
                raise self._late() from error
            for said, meaning in _REFUSED_FOR_LOAD.items():
                if said in reason.message():
                    raise OverloadedError(
                        f"{self.model} at {self.url} is overloaded: {meaning} ({said})", status
                    ) from error
            text = f"{self.model} at {self.url}: {reason.message()}"
            if "unknown model" in text:
                wrong = "version" if f"version {self.version} is" in text else "model"
                text += f"; use a `{wrong}` that the server printed when it was ready"
            raise EndpointError(text + self._remedy(status, text), status) from error
        except self._broken as error:  # raised only by the HTTP client
            text = f"{self.model} at {self.url}: no answer: {error}"
            raise EndpointError(text + self._remedy("UNAVAILABLE", text)) from error

    def _remedy(self, status: str, text: str) -> str:
        """Returns advice for a model that did not answer."""
        if status != "UNAVAILABLE":
            return ""
        other = "http" if self.protocol == "grpc" else "grpc"
        if any(words in text for words in _OF_OTHER_PROTOCOL):
            return (
                f"\n  this looks like the port of {other.upper().replace('GRPC', 'gRPC')}: give "
                f"`protocol` {other}, or `url` {other}://{self.url}"
            )
        if any(words in text for words in _NOBODY_THERE):
            return "\n  is `recsys-recipes serve` running? it prints its addresses"
        return ""

    def check(self, arrays: Arrays) -> None:
        """Refuses arrays that the server would refuse.

        Raises:
            BadRequestError: names the wrong array and what was expected.
        """
        check_arrays(self.signature, arrays)
        rows = num_rows(arrays)
        if self.max_batch_size is not None and rows > self.max_batch_size:
            raise BadRequestError(
                f"{rows} rows are more than the {self.max_batch_size} that {self.model} accepts in "
                "one request; send them in parts, or deploy with a larger `max_batch_size`",
                setting="max_batch_size",
            )

    def predict(self, arrays: Arrays) -> dict[str, Any]:
        """Sends rows, input name -> [B, ...], and returns the outputs by name.

        Raises:
            BadRequestError: the arrays do not fit the signature; nothing was sent.
            EndpointError: the server refuses the rows, or does not answer.
        """
        self.check(arrays)
        return self.send(arrays)

    def send(self, arrays: Arrays) -> dict[str, Any]:
        """Sends rows without checking them.

        Raises:
            EndpointError: the server refuses the rows, or does not answer.
        """
        to_wire = importlib.import_module("tritonclient.utils").np_to_triton_dtype
        inputs = []
        for name, array in arrays.items():
            tensor = self._library.InferInput(name, list(array.shape), to_wire(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        response = self._call(
            self._client.infer,
            self.model,
            inputs,
            model_version=self.version,
            timeout=round(self.timeout_s * 1e6),  # the server drops requests nobody waits for
        )
        sent = response.get_response()
        self.answered.add(
            int(sent["model_version"] if self.protocol == "http" else sent.model_version)
        )
        outputs = {t.name: response.as_numpy(t.name) for t in self.signature.outputs}
        rows = num_rows(arrays)
        for name, output in outputs.items():
            # A Python backend built for another NumPy answers with empty tensors and status 200.
            if output is None or len(output) != rows:
                answered = "no" if output is None else len(output)
                raise EndpointError(
                    f"{self.model} at {self.url}: {answered} rows of {name!r} for a request of "
                    f"{rows}; the server's environment must have the NumPy that its Python backend "
                    "was built for"
                )
        return outputs

    def times(self) -> ServerTimes:
        """Returns the statistics of the model, over all versions.

        Raises:
            EndpointError: the server does not answer.
        """
        versions = self._query("get_inference_statistics")["model_stats"]
        statistics = [version.get("inference_stats", {}) for version in versions]

        def nanoseconds(*names: str) -> float:
            return sum(float(entry.get(n, {}).get("ns", 0)) for entry in statistics for n in names)

        return ServerTimes(
            requests=sum(int(entry.get("success", {}).get("count", 0)) for entry in statistics),
            rows=sum(int(version.get("inference_count", 0)) for version in versions),
            executions=sum(int(version.get("execution_count", 0)) for version in versions),
            queue_s=nanoseconds("queue") / 1e9,
            compute_s=nanoseconds("compute_input", "compute_infer", "compute_output") / 1e9,
        )


def predict_in_order(
    endpoint: Endpoint, requests: Iterable[Arrays], concurrency: int
) -> Iterator[dict[str, Any]]:
    """Yields responses in the order of the requests; raises the errors of `predict`.

    Requests are read while responses are consumed.
    """
    own = threading.local()
    opened: list[Endpoint] = []

    def predict(request: Arrays) -> dict[str, Any]:
        if not hasattr(own, "endpoint"):  # so that its errors are raised for the request
            own.endpoint = endpoint.again()
            opened.append(own.endpoint)
        response: dict[str, Any] = own.endpoint.predict(request)
        return response

    with ThreadPoolExecutor(concurrency) as pool:
        in_flight: list[Future[dict[str, Any]]] = []
        try:
            for request in requests:
                if len(in_flight) == concurrency:
                    yield in_flight.pop(0).result()
                in_flight.append(pool.submit(predict, request))
            while in_flight:
                yield in_flight.pop(0).result()
        finally:
            pool.shutdown(cancel_futures=True)
            for connection in opened:
                endpoint.answered |= connection.answered
                connection.close()


def request_from_json(signature: Signature, text: str) -> Arrays:
    """Parses a request: a JSON object with rows for each input.

    For a model that takes raw rows it may also be a single row, with a value for each column of the
    log. Numbers are converted to the types of the signature, without rounding.

    Raises:
        BadRequestError: the text is not such an object, or a value does not fit its input.
    """
    try:
        values = parse_json(text)
    except ValueError as error:
        raise BadRequestError(
            f"not JSON: {error}; a request is an object {_form(signature, text)}"
        ) from error
    if not isinstance(values, dict):
        raise BadRequestError(f"expected an object {_form(signature)}, got {text[:60]}")
    known = {tensor.name: tensor for tensor in signature.inputs}
    if FIELDS in known and not any(isinstance(values.get(n), list) for n in known):
        return row_of_columns(signature, values)
    arrays: dict[str, Any] = {}
    for name, rows in values.items():
        if name not in known:
            raise BadRequestError(f"unknown input {name!r}; known: {', '.join(known)}")
        arrays[name] = array_of_json(known[name], _evened(known[name], rows))
    return arrays


def _form(signature: Signature, text: str = "") -> str:
    """Returns the form of a request as text, and for a raw line the form that takes it."""
    names = [tensor.name for tensor in signature.inputs]
    if LINE in names and "\t" in text:
        return f'{{"{LINE}": [[{json.dumps(text[:_SHOWN])[:-1]}..."]]}}'
    tables = "; rows of a table are read from .csv and .tsv files" if FIELDS in names else ""
    return "{" + ", ".join(f'"{name}": [...]' for name in names) + "}" + tables


def _evened(tensor: TensorSignature, rows: Any) -> Any:
    """Pads short rows of inputs of any length; refuses other rows of unequal length."""
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return rows
    lengths = [len(row) for row in rows]
    if len(set(lengths)) <= 1:
        return rows
    if tensor.shape == (-1,):  # a history, in which 0 and the empty string mean no item
        nothing = "" if tensor.dtype == "string" else 0
        return [row + [nothing] * (max(lengths) - len(row)) for row in rows]
    row = next(number for number, length in enumerate(lengths) if length != lengths[0])
    expected = ", ".join(map(str, tensor.shape))
    pad = "; pad short ones with 0" if tensor.name == HISTORY else ""
    raise BadRequestError(
        f"input {tensor.name!r}: expected [{expected}] in each row, got {lengths[0]} values in row "
        f"0 and {lengths[row]} in row {row}{pad}"
    )


def _tensor(
    metadata: Mapping[str, Any], optional: bool, told: Mapping[str, list[str]]
) -> TensorSignature:
    """Returns a tensor of the model; `told` holds parameters that `config_text` wrote."""
    name = metadata["name"]
    delimiter, quote = told.get(f"{name}_dialect", ("", ""))
    return TensorSignature(
        name=name,
        dtype=dtype_of_wire(metadata["datatype"]),
        shape=tuple(int(n) for n in metadata["shape"][1:]),  # without the batch dimension
        optional=optional,
        columns=tuple(told.get(name, ())),
        delimiter=delimiter,
        quote=quote,
    )


def _library(protocol: Protocol) -> Any:
    try:
        return importlib.import_module(f"tritonclient.{protocol}")
    except ModuleNotFoundError as error:
        raise EndpointError(
            f"{error.name} is not installed, but requests over {protocol} need it: "
            f"{command_for('triton')}"
        ) from error
