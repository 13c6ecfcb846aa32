# SPDX-License-Identifier: Apache-2.0
"""What the health port says of a report, as JSON and as metrics."""

import re
import time

import pytest

from recsys.serve.server.health import HealthEndpoint, HealthReport


@pytest.fixture
def endpoint():
    with HealthEndpoint("127.0.0.1", 0) as endpoint:
        yield endpoint


def told(endpoint, **report):
    """Returns what both sides tell of a report: HTTP status and status, serving and degraded."""
    age_s = report.pop("age_s", 0)
    endpoint.report = HealthReport(**report, made=time.monotonic() - age_s)
    code, body = endpoint.answer("/healthz")
    text = endpoint.metrics().decode()
    values = [
        float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])
        for name in ("recsys_serving", "recsys_degraded")
    ]
    ready = 'recsys_version_ready{model="dlrm",version="1"} 1.0\n' in text
    assert ready == bool(code == 200 and report.get("models"))
    assert ("error" in body) == (body["status"] not in ("ok", "starting", "restarting"))
    return code, body["status"], *values


MODELS = {"models": {"dlrm": [1]}, "listed": frozenset({"dlrm"})}


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"status": "starting"}, (503, "starting", 0, 0)),
        ({"status": "ok", **MODELS}, (200, "ok", 1, 0)),
        ({"status": "ok", **MODELS, "age_s": 12}, (200, "degraded", 1, 1)),
        ({"status": "ok", **MODELS, "age_s": 65}, (503, "unknown", 0, 0)),
        ({"status": "ok"}, (200, "ok", 1, 0)),
        ({"status": "degraded", "fault": "away", **MODELS}, (200, "degraded", 1, 1)),
        ({"status": "degraded", "fault": "away"}, (503, "degraded", 0, 1)),
        ({"status": "restarting", "age_s": 20}, (503, "restarting", 0, 0)),
    ],
)
def test_health_and_metrics_agree(endpoint, report, expected):
    assert told(endpoint, **report) == expected


def test_a_model_has_the_health_of_its_server(endpoint):
    endpoint.report = HealthReport(status="ok", **MODELS)
    assert endpoint.answer("/healthz/dlrm")[0] == 200
    assert endpoint.answer("/healthz/absent")[0] == 404
    endpoint.report = HealthReport(status="ok", **MODELS, made=time.monotonic() - 65)
    assert endpoint.answer("/healthz/dlrm")[0] == 503
