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

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would be separate metrics

Status = Literal["starting", "ok", "degraded", "restarting", "unknown"]

_FRESH_S = 10.0
"""A report older than this does not count as ok; new ones come every half second."""
_STALE_S = 60.0
"""A report older than this is ignored."""
_METRICS_S = 5.0
"""Longest wait for the server's own metrics; Prometheus waits 10 s by default."""
_CONNECTION_S = 10.0
"""Longest life of a connection, however slowly its bytes arrive."""
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclasses.dataclass(kw_only=True, slots=True)
class HealthReport:
    """State of a server and its models at one moment.

    Attributes:
        status: ok; degraded, if a model or its newest version does not load, or the last check of
            server and repository failed; otherwise not serving.
        fault: why that check failed; empty if it did not.
        models: name -> versions that answer.
        failures: version -> reason why it does not answer.
        restarts: time and reason of each of the last restarts, of the server or of a model.
        num_restarts: restarts since the program started.
        probes: version -> monotonic time of the last correct answer to its recorded row.
        failed_probes: version -> number of wrong or missing answers to that row.
        listed: names of all models that the server should load.
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
        """Returns the current status, and what is wrong; only a recent report counts as ok."""
        age_s = time.monotonic() - self.made
        if age_s > _STALE_S:
            return "unknown", f"the supervisor has hung for {age_s:.0f} s"
        if age_s > _FRESH_S and self.status in ("ok", "degraded"):
            return "degraded", f"the server was last checked {age_s:.0f} s ago"
        return self.status, self.fault

    @property
    def serves(self) -> bool:
        """Whether the server answers requests."""
        status, _ = self.current()
        return status == "ok" or (status == "degraded" and any(self.models.values()))


class HealthEndpoint:
    """Answers GET /healthz, /healthz/MODEL and /metrics in a thread; a context manager.

    The status is 200 while the server, or the model, answers requests; 503 if not; and 404 if the
    server is up but does not have the model. A server counts as down if none of its models answers
    any more. /metrics combines the server's own metrics, if it gives them, with those that only its
    supervisor knows.

    Attributes:
        report: the answer; always replaced as a whole.
        port: the port; a free one if 0 was asked for.
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
                with contextlib.suppress(OSError):  # the connection has ended
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
                """Keeps probes out of the program's output."""

        class Server(http.server.ThreadingHTTPServer):
            address_family = family_of(host)
            request_queue_size = 64

            def get_request(self) -> Any:
                try:
                    return super().get_request()
                except OSError:  # no descriptor is left; the connection waits for one
                    time.sleep(0.1)
                    raise

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignores connections that broke, or for which no thread could start."""

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
            return 404, {"error": "only /healthz, /healthz/MODEL and /metrics are served"}
        status, error = report.current()
        if model and report.serves and model not in report.listed:
            known = ", ".join(sorted(report.listed)) or "none"
            return 404, {"error": f"no model {model!r} is served, only {known}"}
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
        except (OSError, http.client.HTTPException):  # the server is restarting
            return own


def _own_metrics(report: HealthReport) -> bytes:
    """Returns the metrics that the server itself does not report, as text."""
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
