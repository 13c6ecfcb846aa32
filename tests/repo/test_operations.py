# SPDX-License-Identifier: Apache-2.0
"""The files for operations by the schemas of those who read them, and beside one another."""

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
from tests.triton import promql
from tests.triton.promql import OPERATIONS

DOCKERFILE = (REPOSITORY / "triton" / "Dockerfile").read_text().replace("\\\n", " ")


def compose():
    return yaml.safe_load((OPERATIONS / "compose.yaml").read_text())


def documents_of(*files):
    """Returns the manifests of files: kind -> manifest."""
    texts = [file.read_text() for file in files]
    return {d["kind"]: d for text in texts for d in yaml.safe_load_all(text)}


def manifests():
    return documents_of(OPERATIONS / "kubernetes.yaml", OPERATIONS / "deploy-job.yaml")


def spark_manifests():
    return documents_of(REPOSITORY / "preproc" / "spark" / "kubernetes.yaml")


def values(words):
    """Returns the flags of triton/serve.py among words of a command: name -> value."""
    flags = itertools.takewhile(lambda word: word != "--", words)
    return dict(word.removeprefix("--").split("=") for word in flags)


def entry_point():
    """Returns the flags of triton/serve.py in the image: name -> value."""
    words = json.loads(re.search(r"^ENTRYPOINT (\[.*\])", DOCKERFILE, re.MULTILINE)[1])
    assert words[:2] == ["python3", "triton/serve.py"]
    return values(words[2:])


def test_the_compose_file_is_one_by_its_specification():
    command = ("-m", "check_jsonschema", "--builtin-schema=vendor.compose-spec")
    harness.python(*command, OPERATIONS / "compose.yaml")


def test_the_services_listen_on_this_machine_alone_at_ports_of_the_image():
    services = compose()["services"]
    ports = [port for service in services.values() for port in service["ports"]]
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)] == []
    flags = entry_point() | values(services["server"]["command"])
    of_server = {port.rpartition(":")[2] for port in services["server"]["ports"]}
    assert of_server == {flags[name] for name in ("http_port", "grpc_port", "health_port")}
    assert services["server"]["volumes"][0]["target"] == flags["repository"]
    (target,) = yaml.safe_load((OPERATIONS / "prometheus.yaml").read_text())["scrape_configs"]
    assert target["static_configs"][0]["targets"] == [f"server:{flags['health_port']}"]


def test_the_services_mount_files_that_are_there():
    described = compose()
    for service in described["services"].values():
        for volume in service.get("volumes", []):
            if isinstance(volume, str) and volume.startswith("./"):
                assert (OPERATIONS / volume.split(":")[0]).is_file()
        for config in service.get("configs", []):
            assert yaml.safe_load(described["configs"][config["source"]]["content"])
    build = described["services"]["server"]["build"]
    assert (OPERATIONS / build["context"] / build["dockerfile"]).is_file()


def test_the_health_check_is_that_of_the_image():
    checked = compose()["services"]["server"]["healthcheck"]["test"]
    assert checked[0] == "CMD"
    words = re.search(r"HEALTHCHECK --start-period=5m CMD (\[.*\])", DOCKERFILE)[1]
    assert checked[1:] == json.loads(words)
    assert entry_point()["health_port"] in checked[-1]


def test_the_image_listens_for_grpc_where_its_base_is_mended_alone():
    """The slim image is built on other bases, whose server calls that are cancelled end."""
    release = re.search(
        r"^ARG BASE_IMAGE=nvcr\.io/.*:(\d\d)\.(\d\d)-py3$", DOCKERFILE, re.MULTILINE
    )
    assert tuple(map(int, release.groups())) >= (25, 5)
    assert "grpc_port" not in entry_point()
    assert "BASE_IMAGE" not in compose()["services"]["server"]["build"].get("args", {})
    flags = entry_point() | values(compose()["services"]["server"]["command"])
    upstreams = re.findall(r"server 127\.0\.0\.1:(\d+);", (OPERATIONS / "nginx.conf").read_text())
    assert upstreams == [flags["http_port"], flags["grpc_port"]]


def test_server_and_pod_have_the_same_arguments():
    """Those of the compose file start a server in tests/triton/test_operations_served.py."""
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == compose()["services"]["server"]["command"]


@pytest.mark.parametrize(
    "document", [*manifests().values(), *spark_manifests().values()], ids=lambda d: d["kind"]
)
def test_a_manifest_is_one_by_kubernetes_models(document):
    """Read strictly: a wrong type or a lack is refused, and an unknown field would be lost."""
    # `rbac.authorization.k8s.io/v1` is in the module rbac_v1, `v1` in core_v1.
    *group, version = re.split(r"[./].*/|/", document["apiVersion"])
    models = importlib.import_module(f"lightkube.models.{'_'.join(group or ['core'])}_{version}")
    model = getattr(models, document["kind"])
    assert msgspec.convert(document, model).to_dict() == document


def test_the_job_of_spark_is_one_of_the_program_and_its_names_fit():
    found = spark_manifests()
    job = found["Job"]["spec"]["template"]
    (container,) = job["spec"]["containers"]
    module = importlib.import_module(f"{container['command'][-1]}.__main__")
    flags = module.define_flags()
    assert flags(["preproc.clicks", *container["args"]])[1:] == []
    criteo = module.job_from_flags(flags)
    assert criteo.spark.master == "k8s://https://kubernetes.default.svc"
    conf = dict(criteo.spark.spark_conf)

    account = found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert job["spec"]["serviceAccountName"] == account
    assert conf["spark.kubernetes.authenticate.serviceAccountName"] == account

    service = found["Service"]
    assert service["spec"]["selector"] == job["metadata"]["labels"]
    assert conf["spark.driver.host"] == service["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for port in service["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]
    of_driver = (conf["spark.driver.port"], conf["spark.driver.blockManager.port"])
    assert of_driver == (str(ports["driver"]), str(ports["blocks"]))

    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    (volume,) = job["spec"]["volumes"]
    (mount,) = container["volumeMounts"]
    assert volume == {"name": mount["name"], "persistentVolumeClaim": {"claimName": claim}}
    of_executor = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{mount['name']}"
    assert conf[f"{of_executor}.options.claimName"] == claim
    assert conf[f"{of_executor}.mount.path"] == mount["mountPath"]
    for folder in (criteo.input, criteo.output):
        assert folder.is_relative_to(mount["mountPath"])
    assert conf["spark.kubernetes.container.image"] == container["image"]
    names = {variable["name"] for variable in container["env"]}
    assert {w for text in container["args"] for w in re.findall(r"\$\((\w+)\)", text)} == names


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_the_names_within_a_pod_fit(kind):
    pod = manifests()[kind]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    assert sorted(mounted) == sorted(volume["name"] for volume in pod["volumes"])
    models = next(v for v in pod["volumes"] if v["name"] == "models")["persistentVolumeClaim"]
    claim = manifests()["PersistentVolumeClaim"]["metadata"]["name"]
    assert models["claimName"] == claim
    program = container.get("command", ["python3", "triton/serve.py"])[1]
    assert (REPOSITORY / program).is_file()


def test_labels_ports_and_probes_fit():
    found = manifests()
    spec = found["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert 0 < budget["minAvailable"] < spec["replicas"]
    (container,) = spec["template"]["spec"]["containers"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    flags = entry_point() | values(container["args"])
    assert ports == {name: flags[f"{name}_port"] for name in ("http", "grpc", "health")}
    for port in found["Service"]["spec"]["ports"]:
        assert str(port["port"]) == ports[port["targetPort"]]
    scraped = spec["template"]["metadata"]["annotations"]
    assert scraped["prometheus.io/port"] == ports["health"]
    # A version may take as long as the supervisor lets it, at the start and at a restart.
    patience = next(f for f in declared(SupervisorSettings) if f.name == "ready_timeout_s").default
    for probe in (container["startupProbe"], container["livenessProbe"]):
        assert probe["periodSeconds"] * probe["failureThreshold"] > patience
    claim = found["PersistentVolumeClaim"]["spec"]
    assert (claim["accessModes"], spec["replicas"]) == (["ReadWriteMany"], 2)


def test_rules_and_panels_are_whole():
    for rule in promql.rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
        assert set(rule["annotations"]) == {"summary", "description"}
        named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        grouped = promql.grouping_labels(rule["expr"])
        assert named <= (grouped | {"version"} if grouped else {"instance"})
    names = [rule["alert"] for rule in promql.rules()]
    assert len(names) == len(set(names)) >= 10
    tested = (REPOSITORY / "tests/triton/alerts_test.yaml").read_text()
    assert [name for name in names if f"alertname: {name}\n" not in tested] == []


@pytest.mark.parametrize("name", promql.queries())
def test_a_query_is_promql(name):
    query = promql.queries()[name]
    assert "$" not in query
    assert promql.selectors(query)


def test_panels_have_a_place_and_a_unit_of_their_own():
    board = promql.dashboard()
    variables = {variable["name"] for variable in board["templating"]["list"]}
    cells = []
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells += [
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) >= 1
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(panel)))
        assert used - {"__rate_interval", "__range"} <= variables
    assert len(cells) == len(set(cells))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


@needs("promtool")
def test_the_rules_raise_what_they_should():
    harness.run("promtool", "check", "rules", OPERATIONS / "alerts.yaml")
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
    assert ports == {name: value for name, value in entry_point().items() if name in ports}
    assert service["Restart"] == "always"
    # Of all processes the program alone is told to stop: it ends its server in order.
    assert service["KillMode"] == "mixed"


def test_the_commands_of_the_files_name_files_that_are_there():
    for path in (*OPERATIONS.glob("*.yaml"), UNIT):
        for command in re.findall(
            r"^#   ((?:docker|kubectl|promtool|systemd-analyze) .*)$", path.read_text(), re.M
        ):
            named = [word for word in shlex.split(command) if "/" in word]
            assert named
            assert [word for word in named if not (REPOSITORY / word).is_file()] == []
