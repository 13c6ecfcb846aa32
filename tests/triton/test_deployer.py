# SPDX-License-Identifier: Apache-2.0
"""The deployer's command line: what it prints, what it leaves behind, what it refuses."""

import datetime
import errno
import os
import shutil
import signal

import pytest
import torch

from bert4rec.serve.served import ServedBert4Rec
from dlrm.serve.served import ServedDlrm
from recsys.serve.manifest import Deployment
from recsys.serve.versions.policy import policy_of, served_versions
from recsys_recipes import __version__
from recsys_recipes.serving.nvidia_options import translate
from tests import harness
from tests.mounts import tmpfs
from tests.recsys.data.datasets import write_manifest
from tests.recsys.serve.checkpoints import bert4rec_checkpoint, dlrm_checkpoint
from tests.triton.conftest import script

DEPLOYER = harness.REPOSITORY / "triton" / "deployer.py"
CPU = torch.device("cpu")


@pytest.fixture
def deploy(change):
    """Runs the deployer in this process, as its command line would; returns what it prints."""
    return lambda *arguments, status=0: change(*translate([*arguments]), status=status)


@pytest.fixture
def models(tmp_path):
    """The repository that `deploy` writes."""
    return tmp_path / "models"


@pytest.fixture(scope="module")
def dlrm(tmp_path_factory):
    return str(dlrm_checkpoint(tmp_path_factory.mktemp("dlrm") / "checkpoint")[0])


@pytest.fixture(scope="module")
def bert4rec(tmp_path_factory):
    return str(bert4rec_checkpoint(tmp_path_factory.mktemp("bert4rec") / "checkpoint")[0])


def test_the_script_deploys_from_any_folder(dlrm, tmp_path):
    arguments = ("--checkpoint", dlrm, "--repository", "models")
    done = harness.forked(DEPLOYER, *arguments, folder=tmp_path)
    harness.assert_tells(done.stdout, 1024, dlrm, "models/dlrm/1")
    version = tmp_path / "models" / "dlrm" / "1"
    assert sorted(p.name for p in version.iterdir()) == [
        *("__pycache__", "deployment.json", "model.py", "probe.json", "weights.safetensors")
    ]
    assert Deployment.load(version).step == 7


def test_the_kind_of_model_is_found_out(deploy, dlrm, bert4rec, models):
    for checkpoint in (dlrm, bert4rec, dlrm):
        deploy("--checkpoint", checkpoint)
    assert ServedDlrm.open(models / "dlrm" / "2", CPU)
    assert ServedBert4Rec.open(models / "bert4rec" / "1", CPU)
    assert "max_batch_size: 4096" in (models / "dlrm" / "config.pbtxt").read_text()
    assert "max_batch_size: 256" in (models / "bert4rec" / "config.pbtxt").read_text()


def test_options_of_ours_and_of_nvidias_deployer_reach_the_configuration(deploy, dlrm, models):
    deploy(
        *("--ts-trace", "--triton-model-name", "dlrm-ts", "--triton-max-batch-size", "512"),
        *("--checkpoint", dlrm, "--version", "3", "--max_queue_delay_us", "250", "--deploy_cpu"),
        *("--", "--embedding_dim", "128"),
    )
    config = (models / "dlrm-ts" / "config.pbtxt").read_text()
    for expected in ('platform: "pytorch_libtorch"', "max_batch_size: 512", "microseconds: 250"):
        assert expected in config
    assert (models / "dlrm-ts" / "3" / "model.pt").is_file()


def test_8_bits_are_scored_on_the_dataset(deploy, dlrm_run, dataset, models):
    run = ("--checkpoint", str(dlrm_run))
    out = deploy(*run, "--quantize", "int8", "--dataset", str(dataset), "--split", "test")
    deployment = ServedDlrm.open(models / "dlrm" / "1", CPU).deployment
    assert deployment.quantize == "int8"
    card = deployment.card
    now, was = card["metrics"]["auc"], card["metrics"]["checkpoint_auc"]
    assert was > 0.7
    assert abs(now - was) < 0.005
    (line,) = [line for line in out.splitlines() if line.startswith("AUC ")]
    harness.assert_tells(line, "test", f"{now:.6f}", f"{was:.6f}", f"{now - was:+.6f}")
    assert card["release"] == __version__
    assert datetime.datetime.fromisoformat(card["deployed"]).date() >= datetime.date(2026, 1, 1)
    assert card["training"]["dataset"] == card["metrics"]["dataset"] == str(dataset)
    assert card["training"]["best_metric"] > 0.7
    assert card["metrics"]["split"] == "test"
    for bits, says in (("int8", True), ("none", False)):
        assert ("--dataset" in deploy(*run, "--quantize", bits)) is says


def test_raw_item_ids_come_from_ratings_and_their_lack_is_said(deploy, bert4rec, tmp_path):
    write_manifest(tmp_path, rows={}, positives={}, kind="criteo", cardinalities=[3])
    error = deploy("--checkpoint", bert4rec, "--raw_ids", str(tmp_path), status=2)
    harness.assert_tells(error, tmp_path, "criteo", "ratings")
    harness.assert_tells(deploy("--checkpoint", bert4rec), "1 to 50", "--raw_ids")


def test_a_device_that_is_not_here_is_said_and_when_it_is_kept(deploy, dlrm, caplog, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = deploy("--checkpoint", dlrm, "--device", "gpu")
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    harness.assert_tells(warning.getMessage(), "`device` cpu")
    assert "--device" not in out
    out = deploy("--checkpoint", dlrm)
    assert out.splitlines()[0].endswith(": --device gpu")
    out = deploy("--checkpoint", dlrm, "--device", "cpu")
    assert out.splitlines()[0] == "--device: gpu -> cpu"
    assert "--device gpu" not in out


def test_a_rollback_serves_as_many_versions_as_before(deploy, dlrm, models):
    for _ in range(4):
        deploy("--checkpoint", dlrm, "--version_policy=latest:2")
    config = models / "dlrm" / "config.pbtxt"
    for served in ([2, 3], [1, 2], [1]):
        deploy("--rollback")
        policy = policy_of(config.read_text())
        assert served_versions(policy, [1, 2, 3, 4]) == served
    before = config.read_text()
    deploy("--rollback", status=2)
    assert config.read_text() == before
    for version in (models / "dlrm").glob("[1-4]"):
        shutil.rmtree(version)
    deploy("--rollback", status=2)
    assert config.read_text() == before


def test_no_deployment_undoes_what_was_changed_after_it_had_read_the_settings(deploy, dlrm, models):
    for _ in range(2):
        deploy("--checkpoint", dlrm, "--max_batch_size=64")
    arguments = (f"--checkpoint={dlrm}", f"--repository={models}")
    with harness.started_forked(DEPLOYER, *arguments) as process:
        harness.wait_for_line(process, lambda line: "--max_batch_size 64" in line)
        process.send_signal(signal.SIGSTOP)
        before = (models / "dlrm" / "config.pbtxt").read_text()
        for change in ("--rollback", "--version_policy=specific:1", "--instances=2"):
            assert deploy(change, status=2).startswith(f"error: {models}: ")
            assert (models / "dlrm" / "config.pbtxt").read_text() == before
        process.send_signal(signal.SIGCONT)
        assert process.wait(harness.PATIENCE_S) == 0
    assert deploy("--version_policy=specific:1").endswith("version 1\n")
    said = deploy("--checkpoint", dlrm).splitlines()[-1]
    harness.assert_tells(said, "--version_policy specific:1", "version 1")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ("", "--checkpoint"),
        ("--checkpoint={tmp}/nowhere", "--checkpoint {tmp}/nowhere"),
        ("--checkpoint={tmp}/nowhere --raw_ids={tmp}/dataset", "--checkpoint {tmp}/nowhere"),
        ("--checkpoint={dlrm} --backend=onnx", "--backend onnx|--target container"),
        ("--checkpoint={bert4rec} --backend=native", "--backend native|DLRM"),
        ("--checkpoint={dlrm} --backend=native --device=gpu", "--backend native|--device cpu"),
        ("--checkpoint={dlrm} --format=aoti", "--format|aoti|eager|torchscript|onnx"),
        ("--checkpoint={dlrm} --fp16", "--fp16|--device gpu"),
        ("--checkpoint={dlrm} --name=a/b", "--name 'a/b'"),
        ("--checkpoint={dlrm} --version=0", "--version|1 and 9223372036854775807|0"),
        ("--checkpoint={dlrm} --verify=0", "--verify|1|0"),
        ("--checkpoint={dlrm} --dataset={tmp}/none", "{tmp}/none"),
        ("--checkpoint={dlrm} --preferred_batch_sizes=a", "--preferred_batch_sizes|a"),
        ("--checkpoint={bert4rec} --top_k=0", "--top_k 0|1 and 50"),
        ("--checkpoint={bert4rec} --dataset={tmp}", "--dataset|dlrm"),
    ],
)
def test_what_cannot_be_deployed_is_refused_and_leaves_nothing(
    deploy, dlrm, bert4rec, tmp_path, models, arguments, facts
):
    known = {"tmp": tmp_path, "dlrm": dlrm, "bert4rec": bert4rec}
    said = deploy(*arguments.format(**known).split(), status=2)
    harness.assert_tells(said, *facts.format(**known).split("|"))
    assert [path.name for path in models.rglob("*")] in ([], [".deploy.lock"])
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


CLIENT, SERVE = "client --url=127.0.0.1:9", "serve --repository={tmp}"
COMMANDS = [
    ("client", 2, "--url"),
    (f"{CLIENT} --mode=test", 2, "--mode test|--dataset"),
    (f"{CLIENT} --mode=load", 2, "--mode load|--dataset|--request"),
    (f"{CLIENT} --mode=perf_input --perf_input=x", 2, "--mode perf_input|--dataset|--request"),
    (f"{CLIENT} --perf_input=x", 2, "--mode request|perf_input|--perf_input"),
    (f"{CLIENT} --concurrency=1,4", 2, "--concurrency|--mode load"),
    (f"{CLIENT} --batch_sizes=0", 2, "--batch_sizes|'0'"),
    (f"{CLIENT} --concurrency=2000", 2, "--concurrency|'2000'|1024"),
    (f"{CLIENT} --timeout_s=0", 2, "--timeout_s|0|1e+06|0.0"),
    (f"{CLIENT} --batch_sizes=a", 2, "--batch_sizes|a"),
    (f"{CLIENT} --batch_size=0", 2, "--batch_size|1|0"),
    (f"{CLIENT} --canary=2", 2, "--canary|[0, 1]|2.0"),
    (f"{CLIENT} --canary=0.1", 2, "--canary|--canary_version|--request"),
    (f"{CLIENT} --protocol=ftp", 2, "--protocol|ftp|http|grpc"),
    (f"{CLIENT} stray", 2, "'stray'"),
    ("client --url=127.0.0.1", 2, "--url 127.0.0.1|host:port|1 to 65535"),
    ("client --url=http://a:80000", 2, "--url http://a:80000|1 to 65535|127.0.0.1:8000"),
    (f"client --url=a:{'1' * 4301}", 2, "--url|1 to 65535|127.0.0.1:8000"),
    (
        "client --url=https://a:1",
        2,
        "--url https://a:1|host:port|http://host:port|grpc://host:port",
    ),
    ("serve", 2, "--repository"),
    (f"{SERVE} --grpc_port=80000", 1, "--grpc_port|1 and 65535|80000"),
    (f"{SERVE} --http_port=-1", 1, "--http_port|1 and 65535|-1"),
    (f"{SERVE}/none", 1, "--repository|{tmp}/none"),
    (SERVE, 1, "--repository|{tmp}|recsys-recipes deploy|--poll_secs"),
    (f"{SERVE} --threads=40000", 2, "--threads|1024|40000"),
    (f"{SERVE} --models=x", 1, "--models|{tmp}|'x'"),
    (f"{SERVE} --models=x --poll_secs=1", 1, "--models|--poll_secs"),
]


@pytest.mark.parametrize(("command", "status", "facts"), COMMANDS)
def test_the_client_and_the_server_refuse_by_flag(tmp_path, capsys, command, status, facts):
    program, *arguments = command.format(tmp=tmp_path).split()
    assert script(program).main([program, *arguments]) == status
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    harness.assert_tells(error, *facts.format(tmp=tmp_path).split("|"))


def test_only_a_repository_is_served(deploy, tmp_path, models, capsys):
    run = tmp_path / "run"
    dlrm_checkpoint(run / "step_000000007")
    (run / "latest.json").write_text('{"latest": "step_000000007"}')
    deploy("--checkpoint", str(run))
    step = run / "step_000000007"
    for folder, advice in (
        (run, f"recsys-recipes deploy --checkpoint {run}"),
        (step, f"recsys-recipes deploy --checkpoint {step}"),
        (models / "dlrm", f"{models}\n"),
    ):
        for waiting in ("0", "1"):
            arguments = ["serve", f"--repository={folder}", f"--poll_secs={waiting}"]
            assert script("serve").main(arguments) == 1
            before, _, after = capsys.readouterr().err.partition(str(folder))
            harness.assert_tells(before, "--repository")
            harness.assert_tells(after, advice)


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 4 MiB."""
    with tmpfs(tmp_path / "disk", "4m") as folder:
        yield folder


def deploy_to(disk, checkpoint, *flags, status=0):
    """Runs the deployer in a process of its own; returns its errors."""
    paths = (f"--repository={disk / 'm'}", f"--checkpoint={checkpoint}")
    done = harness.forked(DEPLOYER, *paths, *flags, status=status)
    return [line for line in done.stderr.splitlines() if not line.startswith("INFO ")]


def test_a_full_disk_is_named_in_one_line_and_leaves_nothing(full_disk, tmp_path):
    """By a look before anything is written: TorchScript's writer would end the process."""
    small, _ = dlrm_checkpoint(tmp_path / "small", table_sizes=(5, 200))
    large, _ = dlrm_checkpoint(tmp_path / "large", table_sizes=(5, 90_000))
    deploy_to(full_disk, small, "--format=torchscript")
    before = sorted(full_disk.rglob("*"))
    (error,) = deploy_to(full_disk, large, "--format=torchscript", status=2)
    harness.assert_tells(error, full_disk / "m", "version 2", "bytes")
    assert sorted(full_disk.rglob("*")) == before


def test_a_disk_that_fills_up_while_it_is_written_leaves_nothing(full_disk, tmp_path):
    small, _ = dlrm_checkpoint(tmp_path / "small", table_sizes=(5, 200))
    deploy_to(full_disk, small)
    version = full_disk / "m" / "dlrm" / "1"
    pages = (version / "weights.safetensors").stat().st_size // 4096 + 2
    free = shutil.disk_usage(full_disk).free
    (full_disk / "filler").write_bytes(bytes(free - pages * 4096))
    before = sorted(full_disk.rglob("*"))
    (error,) = deploy_to(full_disk, small, status=2)
    harness.assert_tells(error, full_disk / "m", os.strerror(errno.ENOSPC))
    assert sorted(full_disk.rglob("*")) == before


def test_files_get_the_rights_of_the_umask(deploy, dlrm, models):
    before = os.umask(0o027)
    try:
        deploy("--checkpoint", dlrm)
    finally:
        os.umask(before)
    version = models / "dlrm" / "1"
    modes = {path.name: path.stat().st_mode & 0o777 for path in version.iterdir() if path.is_file()}
    assert set(modes.values()) == {0o640}, modes
