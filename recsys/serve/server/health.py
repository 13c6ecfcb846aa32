# SPDX-License-Identifier: Apache-2.0
"""Health of a supervised server over HTTP, for probes and for Prometheus."""

import contextlib
import dataclasses
import http.client
import http.server
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Literal, Self

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

from recsys.serve.server.ports import check_port, family_of, free_ports
from recsys.serve.server.process import Version, version_text

disable_created_metrics()  # type: ignore[no-untyped-call]  # would be metrics of their own

Status = Literal["starting", "ok", "degraded", "restarting", "unknown"]

_FRESH_S = 10.0
"""A report older than this does not say that all is well: looks are half a second apart."""
_STALE_S = 60.0
"""A report older than this is not believed at all."""
_METRICS_S = 5.0
"""Longest wait for the server's own metrics; Prometheus waits 10 s by default."""
_CONNECTION_S = 10.0
"""Longest life of a connection, however slowly its bytes come."""
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclasses.dataclass(kw_only=True, slots=True)
class HealthReport:
    """State of a server and its models at a moment.

    Attributes:
        status: ok; degraded, if a model or its newest version does not load, or the last look at
            server and repository failed; else not serving.
        fault: why that look failed; empty if it did not.
        models: name -> versions that answer.
        failures: version -> reason why it does not answer.
        restarts: time and reason of each of the last restarts, of the server or of a model.
        num_restarts: restarts since the program began.
        probes: version -> monotonic time at which its recorded row was last answered right.
        failed_probes: version -> number of times that it was not.
        listed: names of all models that the server was to load.
        metrics_url: host:port of the server's own metrics; empty before its first start.
    """

    status: Status
    fault: str = ""
    models: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    failures: dict[Version, str] = dataclasses.field(default_factory=dict)
    restarts: tuple[str, ...] = ()
    num_restarts: int = 0
    probes: dict[Version, float] = dataclasses.field(default_factory=dict)
    failed_probes: dict[Version, int] = dataclasses.field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    metrics_url: str = ""
    made: float = dataclasses.field(default_factory=time.monotonic)

    def current(self) -> tuple[Status, str]:
        """Returns the status at this moment, and what is wrong; only a fresh look says ok."""
        age_s = time.monotonic() - self.made
        if age_s > _STALE_S:
            return "unknown", f"the supervisor stands still for {age_s:.0f} s"
        if age_s > _FRESH_S and self.status in ("ok", "degraded"):
            return "degraded", f"the last look at the server ended {age_s:.0f} s ago"
        return self.status, self.fault

    @property
    def serves(self) -> bool:
        """Whether the server answers requests."""
        status, _ = self.current()
        return status == "ok" or (status == "degraded" and any(self.models.values()))


class HealthEndpoint:
    """Answers GET /healthz, /healthz/MODEL and /metrics in a thread; a context manager.

    The status of health is 200 while the server, or the model, answers requests, else 503; 404 of a
    model that a server which answers has not. A server none of whose models answers any more does
    not answer. /metrics are the server's own, if it gives them, and what only its supervisor knows.

    Attributes:
        report: what is answered; replaced as a whole.
        port: the port; a free one where 0 was asked for.
    """

    def __init__(self, host: str, port: int) -> None:
        self.report = HealthReport(status="starting")
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def setup(self) -> None:
                super().setup()
                self._deadline = threading.Timer(_CONNECTION_S, self._end)
                self._deadline.daemon = True
                self._deadline.start()

            def _end(self) -> None:
                with contextlib.suppress(OSError):  # it has ended
                    self.connection.shutdown(socket.SHUT_RDWR)

            def finish(self) -> None:
                self._deadline.cancel()
                super().finish()

            def do_GET(self) -> None:
                if self.path.partition("?")[0] == "/metrics":
                    code, kind, text = 200, _METRICS_TYPE, endpoint.metrics()
                else:
                    code, body = endpoint.answer(self.path)
                    kind, text = "application/json", json.dumps(body, indent=2).encode() + b"\n"
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Leaves probes out of the program's output."""

        class Server(http.server.ThreadingHTTPServer):
            address_family = family_of(host)
            request_queue_size = 64

            def get_request(self) -> Any:
                try:
                    return super().get_request()
                except OSError:  # no descriptor is left, and the connection waits for one
                    time.sleep(0.1)
                    raise

            def handle_error(self, request: object, client_address: object) -> None:
                """Leaves out connections that broke, or found no thread."""

        self.port = port or free_ports(host, ["health_port"])["health_port"]
        check_port(host, "health_port", self.port)
        self._server = Server((host, self.port), Handler)

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
            return 404, {"error": "only /healthz, /healthz/MODEL and /metrics are here"}
        status, error = report.current()
        if model and report.serves and model not in report.listed:
            known = ", ".join(sorted(report.listed)) or "none"
            return 404, {"error": f"no model {model!r} is here, only {known}"}
        serves = report.serves and (not model or bool(report.models.get(model)))
        body: dict[str, Any] = {"status": status} | ({"error": error} if error else {})
        if status != "unknown":
            failures = {version_text(version): why for version, why in report.failures.items()}
            body |= {"models": report.models, "failures": failures, "restarts": report.restarts}
        return 200 if serves else 503, body

    def metrics(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        report = self.report
        own = _own_metrics(report)
        if not report.metrics_url:
            return own
        try:
            url = f"http://{report.metrics_url}/metrics"
            with urllib.request.urlopen(url, timeout=_METRICS_S) as response:
                return bytes(response.read()) + own
        except (OSError, http.client.HTTPException):  # it is being started again
            return own


def _own_metrics(report: HealthReport) -> bytes:
    """Returns the text of what the server's own metrics do not say."""
    degraded, starts = report.current()[0] == "degraded", {(): report.num_restarts}
    ready = {
        (model, str(number)): 1
        for model, numbers in (report.models.items() if report.serves else ())
        for number in numbers
    }
    ages = {version: time.monotonic() - right for version, right in report.probes.items()}
    failed, unanswered = dict.fromkeys(report.failures, 1), report.failed_probes
    registry = CollectorRegistry()
    kinds: list[tuple[type[Gauge | Counter], str, str, Mapping[Any, float]]] = [
        (Gauge, "serving", "1 while the server answers requests, else 0", {(): report.serves}),
        (Gauge, "degraded", "1 while /healthz says degraded, else 0", {(): degraded}),
        (Counter, "server_restarts", "Times that the server or a model was started again", starts),
        (Gauge, "version_ready", "1 for each version that answers requests", ready),
        (Gauge, "version_failed", "1 for each version with a failure", failed),
        (Gauge, "probe_age_seconds", "Time since a right answer to the probe", ages),
        (Counter, "probe_failures", "Probes with a wrong answer or none", unanswered),
    ]
    for kind, name, text, values in kinds:
        labels = () if () in values else ("model", "version")
        metric = kind(f"recsys_{name}", text, labels, registry=registry)
        for version, value in values.items():
            (metric.labels(*version) if version else metric).inc(value)
    return generate_latest(registry)
