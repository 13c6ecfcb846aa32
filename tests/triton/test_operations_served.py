# SPDX-License-Identifier: Apache-2.0
"""Alert rules, dashboard and probes beside a server with the arguments of the compose file."""

import contextlib
import dataclasses
import gzip
import http.client
import importlib
import itertools
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmark.processes import process_memory
from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint
from tests import harness
from tests.recsys.serve.checkpoints import dlrm_checkpoint
from tests.tools import needs, require
from tests.triton.conftest import deploy
from tests.triton.operations import OPERATIONS, queries
from tests.triton.test_supervisor import serving
from tests.triton.tiny_model import write_version

pytestmark = [pytest.mark.triton_server, needs("compiled Triton backend")]

OF_THE_SCRAPE = {"instance": "server:8003", "job": "recsys-serving"}
"""Labels that Prometheus adds."""
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def get(url):
    with urllib.request.urlopen(url, timeout=harness.PATIENCE_S) as response:
        return response.headers["Content-Type"], response.read().decode()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with a DLRM that was asked, and a model that does not load."""
    folder = tmp_path_factory.mktemp("operations")
    checkpoint, _ = dlrm_checkpoint(folder / "checkpoint")
    deploy(checkpoint, folder / "models", "--max_queue_size=64", "--backend=native")
    write_version(folder / "models", "broken", 1, 1.0, "raise ValueError('weights are gone')")
    service = yaml.safe_load((OPERATIONS / "compose.yaml").read_text())["services"]["server"]
    arguments = [re.sub("^--grpc_port=.*", "--grpc_port=0", word) for word in service["command"]]
    (request,) = DlrmExport(checkpoint).example_requests(8, fixed_shapes=False)
    with serving(folder / "models", *arguments) as served:
        with Endpoint(served.http, "dlrm") as endpoint:
            for _ in range(20):
                endpoint.predict(request)
        harness.wait_for(lambda: served.health()[1]["failures"], "the broken model")
        harness.wait_for(lambda: "recsys_probe_age" in served.metrics(), "the first probe")
        yield served


@pytest.fixture(scope="module")
def live(served):
    """Samples of the server, as Prometheus keeps them."""
    harness.wait_for(lambda: "recsys_probe_age_seconds{" in served.metrics(), "the first probe")
    kind, text = get(served.health_url.replace("/healthz", "/metrics"))
    assert kind.startswith("text/plain; version=0.0.4")
    found = re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE)
    return [(name, dict(LABEL.findall(labels)) | OF_THE_SCRAPE) for name, labels in found]


@pytest.mark.parametrize(("query", "shown"), queries())
def test_a_query_selects_samples_that_have_its_labels(live, query, shown):
    shown = {*re.findall(r"\$labels\.(\w+)", shown)}
    grouped = {n for names in re.findall(r"\bby \(([\w, ]+)\)", query) for n in names.split(", ")}
    matched = {n for names in re.findall(r"\bon \(([\w, ]+)\)", query) for n in names.split(", ")}
    assert shown <= (grouped or shown)
    for metric, matchers in re.findall(r"\b((?:nv|recsys)_\w+)(?:\{([^}]*)\})?", query):
        wanted = re.findall(r'(\w+)=~?"([^"]*)"', matchers)
        of_metric = [labels for name, labels in live if name == metric]
        assert any(
            all(name in labels and re.fullmatch(value, labels[name]) for name, value in wanted)
            for labels in of_metric
        ), metric
        assert shown | grouped | matched <= of_metric[0].keys()


def test_the_supervisor_says_what_triton_does_not(live, served):
    own = [(name, labels) for name, labels in live if name.startswith("recsys_")]
    code, health = served.health()
    assert (code, health["status"]) == (200, "degraded")
    assert own == [
        ("recsys_serving", OF_THE_SCRAPE),
        ("recsys_degraded", OF_THE_SCRAPE),
        ("recsys_server_restarts_total", OF_THE_SCRAPE),
        ("recsys_version_ready", {"model": "dlrm", "version": "1"} | OF_THE_SCRAPE),
        ("recsys_version_failed", {"model": "broken", "version": "1"} | OF_THE_SCRAPE),
        ("recsys_probe_age_seconds", {"model": "dlrm", "version": "1"} | OF_THE_SCRAPE),
        ("recsys_probe_failures_total", {"model": "dlrm", "version": "1"} | OF_THE_SCRAPE),
    ]
    text = served.metrics()
    assert "\nrecsys_serving 1.0\n" in text
    assert "\nrecsys_degraded 1.0\n" in text
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


@dataclasses.dataclass(frozen=True)
class Proxy:
    """A running nginx with `nginx.conf` before a server.

    Attributes:
        folder: of its certificate, its tokens and its log.
        token: what the command in the file made.
    """

    port: int
    folder: Path
    token: str

    @property
    def certificate(self):
        return self.folder / "certificate.pem"

    def status(self, path, *headers, body=None):
        """Sends a request with a list of headers; returns status and request id."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=harness.PATIENCE_S, context=context
        )
        with contextlib.closing(connection):
            connection.putrequest("GET" if body is None else "POST", path)
            for name, value in (*headers, ("Content-Length", str(len(body or b"")))):
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            response.read()
            return response.status, response.headers["X-Request-Id"]

    def bearer(self, token=None):
        return "Authorization", f"Bearer {token or self.token}"

    @contextlib.contextmanager
    def grpc(self):
        """Yields tritonclient's module and a client, which sends no token by itself."""
        library = importlib.import_module("tritonclient.grpc")
        secure = {"ssl": True, "root_certificates": str(self.certificate)}
        with library.InferenceServerClient(f"localhost:{self.port}", **secure) as client:
            yield library, client

    def log_from(self, request, count):
        """Returns a number of lines from that of a request on; nginx writes it after its answer."""

        def written():
            lines = map(json.loads, (self.folder / "serving.json").read_text().splitlines())
            return [*itertools.dropwhile(lambda line: line["id"] != request, lines)]

        harness.wait_for(lambda: len(written()) >= count, f"{count} lines from {request}")
        return written()


@pytest.fixture(scope="module")
def proxy(served, tmp_path_factory):
    require("nginx")
    folder = tmp_path_factory.mktemp("nginx")
    port, http = harness.free_port(), served.http.removeprefix("http://")
    own = {"127.0.0.1:8000": http, "127.0.0.1:8001": served.grpc}
    own |= {"listen 8443": f"listen {port}"}
    own |= {"/etc/nginx/serving": str(folder), "/var/log/nginx": str(folder)}
    text = (OPERATIONS / "nginx.conf").read_text()
    for standard, instead in own.items():
        assert standard in text
        text = text.replace(standard, instead)
    (folder / "serving.conf").write_text(text)
    (folder / "tokens.conf").write_text('"~^Bearer 3f6cAb$" "mobile \\"app\\"";\n')
    harness.run("bash", "-c", re.search(r"^#   (printf .*)$", text, re.MULTILINE)[1])
    token = re.search(r"Bearer ([0-9a-f]{64})\$", (folder / "tokens.conf").read_text())[1]
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;"
        f"events {{}} http {{ {folders} include {folder}/serving.conf; }}"
    )
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", key, "-out", certificate)
    harness.run("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", *subject, *files)
    command = ["nginx", "-p", folder, "-c", folder / "nginx.conf"]
    harness.run(*command, "-t")
    with subprocess.Popen(command) as nginx:
        try:
            # The test of the configuration leaves an empty file.
            harness.wait_for(lambda: (folder / "pid").read_text(), "nginx", process=nginx)
            yield Proxy(port, folder, token)
        finally:
            nginx.terminate()


@needs("nginx")
def test_nginx_asks_for_a_token_and_logs_json(proxy):
    answers = [
        proxy.status("/v2/models/dlrm", proxy.bearer()),
        proxy.status("/v2/models/dlrm", proxy.bearer("3f6cAb")),
        proxy.status("/v2/repository/index", proxy.bearer("3f6cAb")),
        proxy.status("/v2/models/dlrm"),
        proxy.status("/v2/models/dlrm", proxy.bearer(proxy.token.upper())),
        proxy.status("/v2/models/dlrm", proxy.bearer("3F6cAb")),
        proxy.status("/v2/models/dlrm", proxy.bearer(proxy.token[:-1])),
        proxy.status("/v2/models/dlrm", proxy.bearer(f"{proxy.token}0")),
        proxy.status("/v2/models/dlrm", ("Authorization", proxy.token)),
    ]
    assert [code for code, _ in answers] == [200, 200, 403, *[401] * 6]
    with proxy.grpc() as (_, client):
        headers = {"authorization": proxy.bearer()[1]}
        assert client.get_model_metadata("dlrm", headers=headers).name == "dlrm"
        for refused in (None, {"authorization": proxy.bearer(proxy.token.upper())[1]}):
            with pytest.raises(Exception, match="UNAUTHENTICATED"):
                client.get_model_metadata("dlrm", headers=refused)
    lines = proxy.log_from(answers[0][1], len(answers) + 3)
    assert [(line["status"], line["id"]) for line in lines[: len(answers)]] == answers
    named = 'mobile "app"'
    expected = ["mobile app", named, named, *[""] * 6, "mobile app", "", ""]
    assert [line["client"] for line in lines] == expected


@needs("nginx")
def test_nginx_keeps_compressed_requests_from_the_server(proxy, served):
    """This server never frees what a compressed body becomes that it cannot parse."""
    blanks = b" " * (50 << 20)
    gzipped, path = gzip.compress(blanks), "/v2/models/dlrm/infer"
    pid = served.server_pid
    before = process_memory(pid).anonymous
    for headers, status in (
        ([("Content-Encoding", "gzip")], 415),
        ([("content-encoding", "GZIP")], 415),
        ([("Content-Encoding", "deflate")], 415),
        ([("Content-Encoding", "identity"), ("Content-Encoding", "gzip")], None),
        ([("Content-Encoding", ""), ("Content-Encoding", "gzip")], None),
    ):
        refused, _ = proxy.status(path, proxy.bearer(), *headers, body=gzipped)
        assert refused == status or (status is None and refused >= 400), headers
    assert process_memory(pid).anonymous - before < len(blanks)
    with proxy.grpc() as (library, client):
        number = library.InferInput("numerical", [1 << 20, 13], "FP32")
        number.set_data_from_numpy(np.zeros((1 << 20, 13), np.float32))
        with pytest.raises(Exception, match="415"):
            client.infer(
                "dlrm",
                [number],
                headers={"authorization": proxy.bearer()[1]},
                compression_algorithm="gzip",
            )
    assert process_memory(pid).anonymous - before < len(blanks)
    plain = json.dumps({"inputs": []}).encode()
    identity = ("Content-Encoding", "identity")
    assert proxy.status(path, proxy.bearer(), body=plain)[0] == 400
    assert proxy.status(path, proxy.bearer(), identity, body=plain)[0] == 400


@needs("nginx")
def test_nginx_keeps_forms_from_the_server(proxy, served):
    """This server parses them on its stack; curl calls every body a form."""
    path, pid = "/v2/models/dlrm/infer", served.server_pid
    form = ("Content-Type", "application/x-www-form-urlencoded")
    body = b"a=".ljust(4 << 20, b"b")
    assert proxy.status(path, proxy.bearer(), form, body=body)[0] >= 400
    assert proxy.status("/v2/models/dlrm", proxy.bearer())[0] == 200
    assert served.server_pid == pid


def test_the_health_check_of_the_container_tells_health(served):
    described = yaml.safe_load((OPERATIONS / "compose.yaml").read_text())
    _, python, *words = described["services"]["server"]["healthcheck"]["test"]
    assert python == "python3"
    port = re.search(r":(\d+)/healthz", served.health_url)[1]
    for instead, status in ((port, 0), (str(harness.free_port()), 1)):
        harness.python(*(word.replace("8003", instead) for word in words), status=status)
