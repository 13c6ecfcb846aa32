# SPDX-License-Identifier: Apache-2.0
"""Health of a supervised server over HTTP, for probes."""

import dataclasses
import http.server
import json
import socket
import threading
import time
from typing import Any, Literal, Self

Status = Literal["starting", "ok", "degraded", "restarting"]

_STALE_S = 60.0
"""A report older than this is not believed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HealthReport:
    """State of a server and its models at a moment.

    Attributes:
        status: ok; degraded, if a model or its newest version does not load; else not serving.
        models: name -> versions that answer.
        failures: model and version -> reason why it does not answer.
        restarts: time and reason of each restart.
    """

    status: Status
    models: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    restarts: tuple[str, ...] = ()
    made: float = dataclasses.field(default_factory=time.monotonic)


class HealthEndpoint:
    """Answers GET /healthz and /healthz/MODEL in a thread; a context manager.

    The status is 200 while the server, or the model, answers requests, else 503.

    Args:
        host: address to listen on.
        port: port; 0 takes a free one.

    Attributes:
        report: what is answered; replaced as a whole.
        port: the port.
    """

    def __init__(self, host: str, port: int) -> None:
        self.report = HealthReport(status="starting")
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5  # a silent connection does not keep its thread

            def do_GET(self) -> None:
                code, body = endpoint.answer(self.path)
                text = json.dumps(body, indent=2).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Leaves probes out of the program's output."""

        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self._server = Server((host, port), Handler)
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Returns status and body for a path."""
        report = self.report
        head, _, model = path.partition("?")[0].removeprefix("/").partition("/")
        if head != "healthz":
            return 404, {"error": "only /healthz and /healthz/MODEL are here"}
        body = dataclasses.asdict(report)
        age = time.monotonic() - body.pop("made")
        if age > _STALE_S:
            return 503, {
                "status": "unknown",
                "error": f"the supervisor stands still for {age:.0f} s",
            }
        serves = bool(report.models.get(model)) if model else report.status in ("ok", "degraded")
        return 200 if serves else 503, body
