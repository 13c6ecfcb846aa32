# SPDX-License-Identifier: Apache-2.0
"""Health of a supervised server over HTTP, for probes and for Prometheus."""

import dataclasses
import http.client
import http.server
import json
import socket
import threading
import time
import urllib.request
from typing import Any, Literal, Self

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # would be metrics of their own

Status = Literal["starting", "ok", "degraded", "restarting"]
Version = tuple[str, str]
"""Model and version; the version is empty where a model has none that can be read."""

_STALE_S = 60.0
"""A report older than this is not believed."""
_METRICS_S = 5.0
"""Longest wait for the server's own metrics; Prometheus waits 10 s by default."""
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HealthReport:
    """State of a server and its models at a moment.

    Attributes:
        status: ok; degraded, if a model or its newest version does not load; else not serving.
        models: name -> versions that answer.
        failures: version -> reason why it does not answer.
        restarts: time and reason of each of the last restarts.
        num_restarts: restarts since the program began.
        metrics_url: host:port of the server's own metrics; empty before its first start.
    """

    status: Status
    models: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    failures: dict[Version, str] = dataclasses.field(default_factory=dict)
    restarts: tuple[str, ...] = ()
    num_restarts: int = 0
    metrics_url: str = ""
    made: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.made

    @property
    def serves(self) -> bool:
        """Whether the server answers requests."""
        return self.status in ("ok", "degraded") and self.age_s <= _STALE_S


class HealthEndpoint:
    """Answers GET /healthz, /healthz/MODEL and /metrics in a thread; a context manager.

    The status of health is 200 while the server, or the model, answers requests, else 503.
    /metrics are the server's own, if it gives them, and what only its supervisor knows.

    Attributes:
        report: what is answered; replaced as a whole.
        port: the port; a free one where 0 was asked for.
    """

    def __init__(self, host: str, port: int) -> None:
        self.report = HealthReport(status="starting")
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5  # a silent connection does not keep its thread

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
            return 404, {"error": "only /healthz, /healthz/MODEL and /metrics are here"}
        if report.age_s > _STALE_S:
            return 503, {
                "status": "unknown",
                "error": f"the supervisor stands still for {report.age_s:.0f} s",
            }
        serves = bool(report.models.get(model)) if model else report.serves
        return 200 if serves else 503, {
            "status": report.status,
            "models": report.models,
            "failures": {version_text(version): why for version, why in report.failures.items()},
            "restarts": report.restarts,
        }

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


def version_text(version: Version) -> str:
    """Returns a model and version for readers."""
    return " version ".join(filter(None, version))


def _own_metrics(report: HealthReport) -> bytes:
    """Returns the text of what the server's own metrics do not say."""
    registry = CollectorRegistry()
    of_version = ("model", "version")
    serving = ("recsys_serving", "1 while the server answers requests, else 0")
    restarts = ("recsys_server_restarts", "Times that the server was started again")
    ready = ("recsys_version_ready", "1 for each version that answers requests", of_version)
    failed = ("recsys_version_failed", "1 for each version that does not load", of_version)
    Gauge(*serving, registry=registry).set(report.serves)
    Counter(*restarts, registry=registry).inc(report.num_restarts)
    ready_versions = Gauge(*ready, registry=registry)
    for model, numbers in report.models.items() if report.serves else ():
        for number in numbers:
            ready_versions.labels(model, number).set(1)
    failed_versions = Gauge(*failed, registry=registry)
    for version in report.failures:
        failed_versions.labels(*version).set(1)
    return generate_latest(registry)
