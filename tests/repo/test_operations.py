# SPDX-License-Identifier: Apache-2.0
"""The files for operations by the tools and schemas of their readers, and beside one another."""

import configparser
import importlib
import itertools
import json
import re
import shlex
import sys

import msgspec
import pytest
import yaml

from recsys.program import new_flags
from recsys.serve.server.supervisor import SupervisorSettings
from recsys.settings import declared
from recsys_recipes.serving.serve import SECTIONS
from tests import harness
from tests.harness import REPOSITORY
from tests.tools import needs
from tests.triton.operations import OPERATIONS, queries

DOCKERFILE = (REPOSITORY / "triton" / "Dockerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((OPERATIONS / "compose.yaml").read_text())
SERVING, DEPLOYING, SPARK = (
    {document["kind"]: document for document in yaml.safe_load_all(file.read_text())}
    for file in (
        OPERATIONS / "kubernetes.yaml",
        OPERATIONS / "deploy-job.yaml",
        REPOSITORY / "preproc" / "spark" / "kubernetes.yaml",
    )
)


def values(words):
    """Returns the flags of triton/serve.py among words of a command: name -> value."""
    flags = itertools.takewhile(lambda word: word != "--", words)
    return dict(word.removeprefix("--").split("=") for word in flags)


def flags_of_server():
    words = json.loads(re.search(r"^ENTRYPOINT (\[.*\])", DOCKERFILE, re.MULTILINE)[1])
    return values(words[2:]) | values(COMPOSE["services"]["server"]["command"])


def test_the_compose_file_is_one_by_its_specification():
    command = ("-m", "check_jsonschema", "--builtin-schema=vendor.compose-spec")
    harness.python(*command, OPERATIONS / "compose.yaml")


@pytest.mark.parametrize(
    "document", [*SERVING.values(), *DEPLOYING.values(), *SPARK.values()], ids=lambda d: d["kind"]
)
def test_a_manifest_is_one_by_kubernetes_models(document):
    """Read strictly: a wrong type or a lack is refused, and an unknown field would be lost."""
    # `rbac.authorization.k8s.io/v1` is in the module rbac_v1, `v1` in core_v1.
    *group, version = re.split(r"[./].*/|/", document["apiVersion"])
    models = importlib.import_module(f"lightkube.models.{'_'.join(group or ['core'])}_{version}")
    model = getattr(models, document["kind"])
    assert msgspec.convert(document, model).to_dict() == document


def test_server_image_pod_and_proxy_agree_on_ports_and_arguments():
    server, flags = COMPOSE["services"]["server"], flags_of_server()
    ports = [port for service in COMPOSE["services"].values() for port in service["ports"]]
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)] == []
    expected = {name: flags[f"{name}_port"] for name in ("http", "grpc", "health")}
    assert {port.rpartition(":")[2] for port in server["ports"]} == {*expected.values()}
    assert server["volumes"][0]["target"] == flags["repository"]
    healthy = json.loads(re.search(r"HEALTHCHECK --start-period=5m CMD (\[.*\])", DOCKERFILE)[1])
    assert server["healthcheck"]["test"] == ["CMD", *healthy]
    (job,) = yaml.safe_load((OPERATIONS / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"server:{flags['health_port']}"]
    upstreams = re.findall(r"server 127\.0\.0\.1:(\d+);", (OPERATIONS / "nginx.conf").read_text())
    assert upstreams == [expected["http"], expected["grpc"]]
    (container,) = SERVING["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == server["command"]
    assert {p["name"]: str(p["containerPort"]) for p in container["ports"]} == expected
    # A version may take as long as the supervisor lets it, at the start and at a restart.
    patience = next(f for f in declared(SupervisorSettings) if f.name == "ready_timeout_s").default
    for probe in (container["startupProbe"], container["livenessProbe"]):
        assert probe["periodSeconds"] * probe["failureThreshold"] > patience


@pytest.mark.parametrize("documents", [SERVING, DEPLOYING, SPARK])
def test_labels_ports_and_volumes_of_manifests_fit(documents):
    workload = documents.get("Deployment") or documents["Job"]
    template = workload["spec"]["template"]
    pod, labels = template["spec"], template.get("metadata", {}).get("labels")
    (container,) = pod["containers"]
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    assert sorted(mounted) == sorted(volume["name"] for volume in pod["volumes"])
    claims = [v.get("persistentVolumeClaim", {}).get("claimName") for v in pod["volumes"]]
    claim = documents.get("PersistentVolumeClaim") or SERVING["PersistentVolumeClaim"]
    assert claim["metadata"]["name"] in claims
    if service := documents.get("Service"):
        assert service["spec"]["selector"] == labels
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert all(port["port"] == ports[port["targetPort"]] for port in service["spec"]["ports"])
    for kind in ("Deployment", "PodDisruptionBudget"):
        if found := documents.get(kind):
            assert found["spec"]["selector"]["matchLabels"] == labels


def test_the_job_of_spark_is_one_of_the_program_and_its_names_fit():
    pod = SPARK["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    module = importlib.import_module(f"{container['command'][-1]}.__main__")
    flags = module.define_flags()
    assert flags(["preproc.clicks", *container["args"]])[1:] == []
    conf = dict(module.job_from_flags(flags).spark.spark_conf)
    names = {kind: document["metadata"]["name"] for kind, document in SPARK.items()}
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    of_executor = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{mount['name']}"
    expected = {
        "spark.kubernetes.authenticate.serviceAccountName": names["ServiceAccount"],
        "spark.kubernetes.container.image": container["image"],
        "spark.driver.host": names["Service"],
        "spark.driver.port": ports["driver"],
        "spark.driver.blockManager.port": ports["blocks"],
        f"{of_executor}.options.claimName": names["PersistentVolumeClaim"],
        f"{of_executor}.mount.path": mount["mountPath"],
    }
    assert {name: conf.get(name) for name in expected} == expected
    assert pod["serviceAccountName"] == names["ServiceAccount"]
    (subject,) = SPARK["RoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": names["ServiceAccount"]}
    assert SPARK["RoleBinding"]["roleRef"]["name"] == names["Role"]
    variables = {variable["name"] for variable in container["env"]}
    assert {*re.findall(r"\$\((\w+)\)", str(container["args"]))} == variables


@needs("promtool")
def test_prometheus_takes_rules_and_queries_and_alerts_fire_when_they_should(tmp_path):
    rules = [{"record": f"query{i}", "expr": query} for i, (query, _) in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    harness.run("promtool", "check", "config", "--syntax-only", OPERATIONS / "prometheus.yaml")
    harness.run("promtool", "check", "rules", OPERATIONS / "alerts.yaml", file)
    harness.run("promtool", "test", "rules", "alerts_test.yaml", folder=REPOSITORY / "tests/triton")


UNIT = OPERATIONS / "recsys-serving.service"


@needs("systemd")
def test_the_unit_is_one_by_systemd(tmp_path):
    """Which says what is wrong, of other units too, and exits with 0."""
    text, program = UNIT.read_text(), "/opt/recsys-recipes/bin/recsys-recipes"
    assert program in text
    (tmp_path / UNIT.name).write_text(text.replace(program, sys.executable))
    done = harness.run("systemd-analyze", "verify", tmp_path / UNIT.name)
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []


def test_the_unit_starts_a_server_again_at_the_ports_of_the_image():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    program, word, *flags = shlex.split(service["ExecStart"])
    assert (program.rpartition("/")[2], word) == ("recsys-recipes", "serve")
    assert new_flags(SECTIONS)(["serve", *flags])[1:] == []
    ports = {name: value for name, value in values(flags).items() if name.endswith("_port")}
    assert ports == {name: value for name, value in flags_of_server().items() if name in ports}
    assert service["Restart"] == "always"
    # Of all processes the program alone is told to stop: it ends its server in order.
    assert service["KillMode"] == "mixed"


def test_panels_show_what_the_dashboard_defines():
    board = json.loads((OPERATIONS / "dashboard.json").read_text())
    defined = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"])))
    assert used - {"__rate_interval", "__range"} <= defined
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) >= 1
