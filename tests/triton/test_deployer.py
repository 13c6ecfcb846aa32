# SPDX-License-Identifier: Apache-2.0
"""The deployer's command line: what it prints, what it leaves behind, what it refuses."""

import datetime
import os
import shutil
import signal

import pytest
import torch

from bert4rec.serve.served import ServedBert4Rec
from dlrm.serve.served import ServedDlrm
from recsys.serve.manifest import Deployment
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
    assert "largest difference to the checkpoint 0 over 1024 rows" in done.stdout
    assert "Deployed" in done.stdout
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
    (line,) = [line for line in out.splitlines() if line.startswith("AUC on the test split: ")]
    words = line.replace(",", "").split()
    now, was, difference = float(words[5]), float(words[9]), float(words[11])
    assert was > 0.7
    assert abs(difference) < 0.005
    assert now - was == pytest.approx(difference, abs=2e-6)
    deployment = ServedDlrm.open(models / "dlrm" / "1", CPU).deployment
    assert deployment.quantize == "int8"
    card = deployment.card
    assert card["release"] == __version__
    assert datetime.datetime.fromisoformat(card["deployed"]).date() >= datetime.date(2026, 1, 1)
    assert card["training"]["dataset"] == card["metrics"]["dataset"] == str(dataset)
    assert card["training"]["best_metric"] > 0.7
    assert card["metrics"]["split"] == "test"
    assert card["metrics"]["auc"] == pytest.approx(now, abs=1e-6)
    assert card["metrics"]["checkpoint_auc"] == pytest.approx(was, abs=1e-6)
    for bits, says in (("int8", True), ("none", False)):
        assert ("is printed with --dataset" in deploy(*run, "--quantize", bits)) is says


def test_raw_item_ids_come_from_ratings_and_their_lack_is_said(deploy, bert4rec, tmp_path):
    write_manifest(tmp_path, rows={}, positives={}, kind="criteo", cardinalities=[3])
    error = deploy("--checkpoint", bert4rec, "--raw_ids", str(tmp_path), status=2)
    assert f"{tmp_path}: is a dataset of another kind, criteo, not of ratings" in error
    assert (
        "It takes and gives the item numbers of the dataset, 1 to 50; with --raw_ids DATASET those "
        "of the raw ratings"
    ) in deploy("--checkpoint", bert4rec)


def test_a_device_that_is_not_here_is_said_and_when_it_is_kept(deploy, dlrm, caplog, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = deploy("--checkpoint", dlrm, "--device", "gpu")
    assert "no GPU here" in caplog.text + out
    assert "Kept" not in out
    out = deploy("--checkpoint", dlrm)
    assert out.splitlines()[0] == "Kept from the deployment before: --device gpu"
    out = deploy("--checkpoint", dlrm, "--device", "cpu")
    assert out.splitlines()[0] == "--device: gpu -> cpu"
    assert "Kept" not in out


def test_no_deployment_undoes_what_was_changed_after_it_had_read_the_settings(deploy, dlrm, models):
    for _ in range(2):
        deploy("--checkpoint", dlrm, "--max_batch_size=64")
    arguments = (f"--checkpoint={dlrm}", f"--repository={models}")
    with harness.started_forked(DEPLOYER, *arguments) as process:
        harness.wait_for_line(process, lambda line: line.startswith("Kept from"))
        process.send_signal(signal.SIGSTOP)
        for change in ("--rollback", "--version_policy=specific:1", "--instances=2"):
            error = deploy(change, status=2)
            assert (
                error
                == f"error: {models}: another deployment is under way; wait until it has ended\n"
            )
        process.send_signal(signal.SIGCONT)
        assert process.wait(harness.PATIENCE_S) == 0
    assert deploy("--version_policy=specific:1").endswith("serves version 1\n")
    assert "It is not served" in deploy("--checkpoint", dlrm)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--checkpoint is needed"),
        (("--checkpoint", "{tmp}/nowhere"), "no checkpoint here"),
        (("--checkpoint", "{tmp}/nowhere", "--raw_ids", "{tmp}/dataset"), "no checkpoint here"),
        (("--checkpoint", "{dlrm}", "--backend", "onnx"), "add --target container"),
        (("--checkpoint", "{bert4rec}", "--backend", "native"), "--backend native runs DLRM alone"),
        (("--checkpoint", "{dlrm}", "--backend", "native", "--device", "gpu"), "--device cpu"),
        (("--checkpoint", "{dlrm}", "--format", "aoti"), "<eager|torchscript|onnx>"),
        (("--checkpoint", "{dlrm}", "--fp16"), "--fp16 is for --device gpu"),
        (("--checkpoint", "{dlrm}", "--name", "a/b"), "--name 'a/b'"),
        (
            ("--checkpoint", "{dlrm}", "--version", "0"),
            "--version must lie in 1 to 9223372036854775807, got 0",
        ),
        (("--checkpoint", "{dlrm}", "--verify", "0"), "--verify must be 1 or more, got 0"),
        (("--checkpoint", "{dlrm}", "--dataset", "{tmp}/none"), "is not a folder"),
        (("--checkpoint", "{dlrm}", "--preferred_batch_sizes", "a"), "must be integers"),
        (("--checkpoint", "{bert4rec}", "--top_k", "0"), "--top_k 0 must lie in"),
        (("--checkpoint", "{bert4rec}", "--dataset", "{tmp}"), "only DLRM is scored"),
    ],
)
def test_what_cannot_be_deployed_is_refused_and_leaves_nothing(
    deploy, dlrm, bert4rec, tmp_path, models, arguments, message
):
    known = {"tmp": tmp_path, "dlrm": dlrm, "bert4rec": bert4rec}
    assert message in deploy(*(argument.format(**known) for argument in arguments), status=2)
    assert [path.name for path in models.rglob("*")] in ([], [".deploy.lock"])
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_a_kept_format_that_went_is_forgotten(deploy, dlrm, models):
    deploy("--checkpoint", dlrm)
    file = models / "dlrm" / "config.pbtxt"
    file.write_text(file.read_text().replace('"format": "eager"', '"format": "aoti"'))
    deploy("--checkpoint", dlrm)
    assert '"format": "eager"' in file.read_text()


CLIENT, SERVE = ("client", "--url=127.0.0.1:9"), ("serve",)
COMMANDS = [
    (("client",), 2, "--url is needed"),
    ((*CLIENT, "--mode", "test"), 2, "--mode test needs --dataset"),
    ((*CLIENT, "--mode=load"), 2, "--mode load needs --dataset, or --request"),
    (
        (*CLIENT, "--mode=perf_input", "--perf_input=x"),
        2,
        "--mode perf_input needs --dataset, or --request",
    ),
    ((*CLIENT, "--perf_input=x"), 2, "--perf_input does nothing with --mode request"),
    ((*CLIENT, "--concurrency=1,4"), 2, "--concurrency: several numbers are for --mode load"),
    ((*CLIENT, "--batch_sizes=0"), 2, "--batch_sizes must be positive integers, got '0'"),
    ((*CLIENT, "--concurrency=2000"), 2, "--concurrency must be positive integers, got '2000'; at"),
    ((*CLIENT, "--timeout_s=0"), 2, "--timeout_s must be above 0, at most 1e+06, got 0.0"),
    ((*CLIENT, "--batch_sizes", "a"), 2, "--batch_sizes must be integers separated by commas"),
    ((*CLIENT, "--batch_size=0"), 2, "--batch_size must be at least 1, got 0"),
    ((*CLIENT, "--canary=2"), 2, "--canary must lie in [0, 1], got 2.0"),
    ((*CLIENT, "--canary=0.1"), 2, "--canary, --canary_version and --request go together"),
    ((*CLIENT, "--protocol=ftp"), 2, "--protocol"),
    ((*CLIENT, "stray"), 2, "unexpected argument 'stray'"),
    (("client", "--url=127.0.0.1"), 2, "--url 127.0.0.1: expected host:port with a port from 1 to"),
    (("client", "--url=http://a:80000"), 2, "with a port from 1 to 65535, as 127.0.0.1:8000"),
    (("client", f"--url=a:{'1' * 4301}"), 2, "with a port from 1 to 65535, as 127.0.0.1:8000"),
    (("client", "--url=https://a:1"), 2, "expected host:port, http://host:port or grpc://host"),
    (SERVE, 2, "--repository is needed"),
    ((*SERVE, "--repository={tmp}", "--grpc_port=80000"), 1, "--grpc_port must lie in 1 to 65535"),
    ((*SERVE, "--repository={tmp}", "--http_port=-1"), 1, "or be 0 for a free one, got -1"),
    ((*SERVE, "--repository", "{tmp}/none"), 1, "--repository: {tmp}/none is not a folder"),
    (
        (*SERVE, "--repository={tmp}"),
        1,
        "--repository: {tmp} holds no model; recsys-recipes deploy",
    ),
    ((*SERVE, "--repository={tmp}", "--threads=40000"), 2, "--threads must be at most 1024"),
    ((*SERVE, "--repository={tmp}", "--models=x"), 1, "--models: {tmp} has no model 'x'"),
    ((*SERVE, "--repository={tmp}", "--models=x", "--poll_secs=1"), 1, "exclude each other"),
]


@pytest.mark.parametrize(("command", "status", "message"), COMMANDS)
def test_the_client_and_the_server_refuse_by_flag(tmp_path, capsys, command, status, message):
    program, *arguments = (word.format(tmp=tmp_path) for word in command)
    assert script(program).main([program, *arguments]) == status
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message.format(tmp=tmp_path) in error


def test_only_a_repository_is_served(deploy, tmp_path, models, capsys):
    run = tmp_path / "run"
    dlrm_checkpoint(run / "step_000000007")
    (run / "latest.json").write_text('{"latest": "step_000000007"}')
    deploy("--checkpoint", str(run))
    for folder, message in (
        (run, f"training run, not of deployed models; deploy it first by recsys-recipes deploy "
         f"--checkpoint {run} --repository FOLDER,"),
        (run / "step_000000007", "is the folder of a checkpoint, not of deployed models"),
        (models / "dlrm", f"of one model; give the one that it lies in, {models}"),
    ):  # fmt: skip
        for waiting in ("0", "1"):
            arguments = ["serve", f"--repository={folder}", f"--poll_secs={waiting}"]
            assert script("serve").main(arguments) == 1
            assert message in capsys.readouterr().err


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
    assert error.startswith(f"error: {full_disk / 'm'}: the disk is full (")
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
    assert error.startswith(f"error: {full_disk / 'm'}: the disk is full (")
    assert "No space left" in error
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
