# SPDX-License-Identifier: Apache-2.0
"""Alert rules, dashboard and probes beside a server with the arguments of the compose file."""

import importlib
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
import yaml

from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint
from tests import harness
from tests.recsys.serve.checkpoints import dlrm_checkpoint
from tests.tools import needs
from tests.triton import promql
from tests.triton.conftest import deploy
from tests.triton.promql import OPERATIONS
from tests.triton.test_supervisor import serving
from tests.triton.tiny_model import write_version

pytestmark = [pytest.mark.triton_server, needs("compiled Triton backend")]

OF_THE_SCRAPE = {"instance": "server:8003", "job": "recsys-serving"}
"""Labels that Prometheus adds."""


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.headers["Content-Type"], response.read().decode()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with a DLRM that was asked, and a model that does not load."""
    folder = tmp_path_factory.mktemp("operations")
    checkpoint, _ = dlrm_checkpoint(folder / "checkpoint")
    deploy(checkpoint, folder / "models", "--max_queue_size=64", "--backend=native")
    write_version(folder / "models", "broken", 1, 1.0, "raise ValueError('weights are gone')")
    command = yaml.safe_load((OPERATIONS / "compose.yaml").read_text())["services"]["server"]
    (request,) = DlrmExport(checkpoint).example_requests(8, fixed_shapes=False)
    with serving(folder / "models", "--grpc_port=0", *command["command"]) as served:
        with Endpoint(served.http, "dlrm") as endpoint:
            for _ in range(20):
                endpoint.predict(request)
        harness.wait_for(lambda: served.health()[1]["failures"], "the broken model", 60)
        harness.wait_for(lambda: "recsys_probe_age" in served.metrics(), "the first probe", 60)
        yield served


@pytest.fixture(scope="module")
def live(served):
    """Samples of the server, as Prometheus keeps them."""
    kind, text = get(served.health_url.replace("/healthz", "/metrics"))
    assert kind.startswith("text/plain; version=0.0.4")
    return [(name, labels | OF_THE_SCRAPE) for name, labels in promql.samples(text)]


@pytest.mark.parametrize("name", promql.queries())
def test_every_selector_of_a_query_finds_samples(live, name):
    query = promql.queries()[name]
    labels = set()
    for metric, matchers in promql.selectors(query):
        taken = [sample for sample in live if promql.selects(metric, matchers, sample)]
        assert taken, f"{metric} {matchers}"
        labels.update(*(sample[1] for sample in taken))
        # A label that the metric lacks would match every sample of a pattern such as .*
        named = {matcher.name for matcher in matchers}
        assert named <= {label for _, labels in taken for label in labels}
    assert promql.grouping_labels(query) <= labels


def test_the_labels_of_panels_and_messages_are_those_of_their_queries(live):
    for panel in promql.dashboard()["panels"]:
        for target in panel["targets"]:
            query = promql.queries()[f"{panel['title']} {target['refId']}"]
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            metric, matchers = promql.selectors(query)[0]
            of_sample = next(s[1] for s in live if promql.selects(metric, matchers, s))
            assert shown <= (promql.grouping_labels(query) or set(of_sample))


def test_the_supervisor_says_what_triton_does_not(live, served):
    own = [(name, labels) for name, labels in live if name.startswith("recsys_")]
    code, health = served.health()
    assert (code, health["status"]) == (200, "degraded")
    assert own == [
        ("recsys_serving", OF_THE_SCRAPE),
        ("recsys_server_restarts_total", OF_THE_SCRAPE),
        ("recsys_version_ready", {"model": "dlrm", "version": "1"} | OF_THE_SCRAPE),
        ("recsys_version_failed", {"model": "broken", "version": "1"} | OF_THE_SCRAPE),
        ("recsys_probe_age_seconds", {"model": "dlrm", "version": "1"} | OF_THE_SCRAPE),
    ]
    text = served.metrics()
    assert "\nrecsys_serving 1.0\n" in text
    assert "\nrecsys_server_restarts_total 0.0\n" in text
    assert text.count("# TYPE nv_inference_request_success counter\n") == 1


def test_probes_are_answered(served):
    (_, deployment, *_) = yaml.safe_load_all((OPERATIONS / "kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    scraped = deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]
    kinds = ("startupProbe", "readinessProbe", "livenessProbe")
    paths = [container[kind]["httpGet"]["path"] for kind in kinds]
    assert {container[kind]["httpGet"]["port"] for kind in kinds} == {"health"}
    address = served.health_url.removesuffix("/healthz")
    for path in (*paths, scraped, "/healthz/dlrm"):
        assert get(address + path)[1]
    for path in ("/healthz/absent", "/metricsz"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(address + path)


@needs("nginx")
def test_nginx_asks_for_a_token_and_logs_json(served, tmp_path):
    port, http = harness.free_port(), served.http.removeprefix("http://")
    own = {"127.0.0.1:8000": http, "127.0.0.1:8001": served.grpc, "listen 8443": f"listen {port}"}
    own |= {"/etc/nginx/serving": str(tmp_path), "/var/log/nginx": str(tmp_path)}
    text = (OPERATIONS / "nginx.conf").read_text()
    for standard, instead in own.items():
        assert standard in text
        text = text.replace(standard, instead)
    (tmp_path / "serving.conf").write_text(text)
    (tmp_path / "tokens.conf").write_text('"Bearer 3f6c" "mobile \\"app\\"";\n')
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;"
        f"events {{}} http {{ {folders} include {tmp_path}/serving.conf; }}"
    )
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", key, "-out", certificate)
    harness.run("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", *subject, *files)
    context = ssl.create_default_context(cafile=str(certificate))

    def status(path, token="3f6c"):
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"https://localhost:{port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as response:
                return response.status, response.headers["X-Request-Id"]
        except urllib.error.HTTPError as error:
            return error.code, error.headers["X-Request-Id"]

    command = ["nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf"]
    with subprocess.Popen(command) as nginx:
        try:
            harness.wait_for((tmp_path / "pid").exists, "nginx")
            answers = [status("/v2/models/dlrm"), status("/v2/models/dlrm", "else")]
            answers.append(status("/v2/repository/index"))
            assert [code for code, _ in answers] == [200, 401, 403]
            library = importlib.import_module("tritonclient.grpc")
            secure = {"ssl": True, "root_certificates": str(certificate)}
            with library.InferenceServerClient(f"localhost:{port}", **secure) as client:
                headers = {"authorization": "Bearer 3f6c"}
                assert client.get_model_metadata("dlrm", headers=headers).name == "dlrm"
                with pytest.raises(Exception, match="UNAUTHENTICATED"):
                    client.get_model_metadata("dlrm")
        finally:
            nginx.terminate()
    lines = [json.loads(line) for line in (tmp_path / "serving.json").read_text().splitlines()]
    assert [(line["status"], line["id"]) for line in lines[:3]] == answers
    named = 'mobile "app"'
    assert [line["client"] for line in lines] == [named, "", named, named, ""]


def test_the_health_check_of_the_container_tells_health(served):
    described = yaml.safe_load((OPERATIONS / "compose.yaml").read_text())
    _, python, *words = described["services"]["server"]["healthcheck"]["test"]
    assert python == "python3"
    port = re.search(r":(\d+)/healthz", served.health_url)[1]
    for instead, status in ((port, 0), (str(harness.free_port()), 1)):
        harness.python(*(word.replace("8003", instead) for word in words), status=status)
