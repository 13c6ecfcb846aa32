# SPDX-License-Identifier: Apache-2.0
"""dist_main under torchrun: losses, figures and checkpoints of one process, whatever happens."""

import contextlib
import functools
import hashlib
import os
import random
import re
import signal
import time

import pytest

from dlrm.scripts import main
from recsys.train.checkpoint import read_checkpoint
from tests import harness
from tests.checkpoints import assert_same
from tests.dlrm.ranks import figures, ranks_of, torchrun
from tests.recsys.train.shown import scalars

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

MODEL = (
    "--embedding_dim=8",
    "--bottom_mlp_sizes=16,8",
    "--top_mlp_sizes=32,1",
    "--batch_size=200",
    "--test_batch_size=333",
    "--lr=0.1",
    "--warmup_steps=3",
    "--base_device=cpu",
    "--num_threads=1",
    "--baselines=",
)


PROGRAM = ("-m", "dlrm.scripts.dist_main", *MODEL)


def forking(processes, *options):
    """Returns the arguments of Python for the program on ranks that torchrun forks."""
    return (*torchrun(harness.torchrun(processes, *options), "dlrm.scripts.dist_main"), *MODEL)


def run(processes, *arguments, status=0):
    """Runs the program as torchrun would, without the defaults of dist_main; returns its output."""
    if processes == 1:
        assert harness.call(main, *MODEL, *arguments) == status
        return ""
    return harness.call_on_ranks(processes, main, *MODEL, *arguments, status=status)


def run_on_two_nodes(*arguments):
    """Runs a process under each of two torchruns, as on two machines."""
    launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"]
    launcher += ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{harness.free_port()}"]
    node = [*torchrun(launcher, "dlrm.scripts.dist_main"), *MODEL, *arguments]
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(harness.started_forked(*node)) for _ in range(2)]
        assert [running.wait(harness.PATIENCE_S) for running in nodes] == [0, 0]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset, and a model to begin with."""
    folder = tmp_path_factory.mktemp("dist_main")
    data = ("--dataset_type=synthetic_disk", f"--synthetic_dataset_dir={folder / 'data'}",
            "--synthetic_dataset_table_sizes=10,2000,30000,500,7",
            "--synthetic_dataset_num_entries=6000")  # fmt: skip
    run(1, *data, f"--save_checkpoint_path={folder / 'first'}", "--max_steps=1", "--lr=0",
        f"--log_path={folder / 'first.json'}")  # fmt: skip
    return folder


def from_first(dataset, folder, *more):
    return (
        f"--dataset={dataset / 'data'}",
        f"--load_checkpoint_path={dataset / 'first'}",
        f"--save_checkpoint_path={folder / 'run'}",
        f"--log_path={folder / 'log.json'}",
        "--print_freq=1",
        *more,
    )


@pytest.fixture(scope="module")
def alone(dataset):
    """The run of one process."""
    folder = dataset / "alone"
    folder.mkdir()
    run(1, *from_first(dataset, folder))
    return folder


@pytest.fixture(scope="module")
def two(dataset):
    """The run of two processes, started as NVIDIA's documentation says."""
    folder = dataset / "two"
    folder.mkdir()
    launcher = ("-m", "torch.distributed.launch", "--use_env", "--nproc_per_node", "2",
                f"--master_port={harness.free_port()}")  # fmt: skip
    more = (f"--tensorboard={folder / 'events'}",)
    done = harness.forked(*launcher, *PROGRAM, *from_first(dataset, folder, *more))
    assert "5 tables on 2 ranks" in done.stdout
    return folder


def test_nvidias_launcher_trains_on_two_processes_as_on_one(alone, two):
    losses, found = figures(two / "log.json")
    expected_losses, expected = figures(alone / "log.json")
    assert losses.keys() == expected_losses.keys()
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    for name in ("auc", "log_loss"):
        assert found[name] == pytest.approx(expected[name], abs=1e-5)
    assert_same(two / "run", alone / "run", rtol=1e-5, atol=1e-6)
    (_,) = (two / "events").iterdir()  # one process writes
    assert dict(scalars(two / "events")["train/loss"]) == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("score", [run_on_two_nodes, functools.partial(run, 4)], ids=["nodes", "4"])
def test_any_number_of_processes_scores_a_checkpoint_alike(dataset, two, tmp_path, score):
    source = (f"--dataset={dataset / 'data'}", f"--load_checkpoint_path={two / 'run'}")
    score("--mode=test", *source, f"--log_path={tmp_path / 'log.json'}")
    found, expected = (figures(folder / "log.json")[1]["auc"] for folder in (tmp_path, two))
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_run_of_several_processes_that_has_ended_stays_as_it_is(dataset, tmp_path):
    written = []
    for _ in range(2):
        saved = (f"--save_checkpoint_path={tmp_path / 'run'}", f"--log_path={tmp_path / 'log'}")
        run(2, f"--dataset={dataset / 'data'}", "--resume", "--auc_threshold=0.01", *saved)
        written.append({f: f.stat().st_mtime_ns for f in (tmp_path / "run").rglob("*")})
    assert read_checkpoint(tmp_path / "run").state["ended"] == "threshold"
    assert written[0] == written[1]


def test_inference_is_measured_on_several_processes(dataset, tmp_path):
    output = run(2, "--mode=inference_benchmark", f"--dataset={dataset / 'data'}",
                 f"--load_checkpoint_path={dataset / 'first'}",
                 "--inference_benchmark_batch_sizes=2,64", "--inference_benchmark_steps=5",
                 f"--log_path={tmp_path / 'log.json'}")  # fmt: skip
    assert len(re.findall(r"^ +(?:2|64) ", output, re.MULTILINE)) == 2
    assert figures(tmp_path / "log.json")[1]["mean_inference_throughput_batch_64"] > 0


MISSING = r"error: rank 1 \(process \d+ on \S+\)"


def disturb(job, sign, which, when, signalled, delay_s=0.0):
    """Runs two ranks, of which one gets a signal; the first goes no further before.

    Returns exit status, output, and seconds from the signal to the message about a rank that is
    missing, or to the end where there is none.

    Args:
        job: arguments of Python.
        sign: the signal.
        which: rank that gets it.
        when: what the line contains after which it comes.
        signalled: a file that is made then.
        delay_s: seconds later.
    """
    pause = {"RECIPES_PAUSE_AT": when, "RECIPES_PAUSE_UNTIL": str(signalled)}
    with harness.started_forked(*job, **pause) as running:
        lines, sent, named = [], 0.0, 0.0
        for line in running.stdout:
            lines.append(line)
            if when in line and not sent:
                time.sleep(delay_s)
                target = ranks_of(running)[which]
                os.kill(target, sign)
                sent = time.monotonic()
                signalled.touch()
            if re.search(MISSING, line) and not named:
                named = time.monotonic()
                # torchrun does so half a minute after its SIGTERM, which a stopped one never sees.
                with contextlib.suppress(ProcessLookupError):  # one that was killed
                    os.kill(target, signal.SIGKILL)
        status = running.wait(harness.PATIENCE_S)
    assert sent, "".join(lines)
    return status, "".join(lines), (named or time.monotonic()) - sent


@pytest.mark.parametrize("seed", [1, pytest.param(7, marks=pytest.mark.release)])
def test_a_rank_killed_at_any_moment_changes_nothing(dataset, two, tmp_path, seed):
    draw = random.Random(seed)
    which, step, delay_s = draw.randrange(2), draw.randint(1, 10), draw.uniform(0, 0.02)
    status, text, _ = disturb(
        (*forking(2, "--max-restarts=1"), *from_first(dataset, tmp_path, "--save_freq=2")),
        signal.SIGKILL, which, f"[{step}/30]", tmp_path / "signalled", delay_s,
    )  # fmt: skip
    assert status == 0, text
    assert "(SIGKILL)" in text or "exitcode: -9" in text
    assert text.count("5 tables on 2 ranks") == 2
    assert_same(tmp_path / "run", two / "run")
    losses, found = figures(tmp_path / "log.json")
    expected_losses, expected = figures(two / "log.json")
    assert losses == expected_losses
    assert found["auc"] == expected["auc"]


def test_a_rank_that_stands_still_is_named_and_the_restarted_job_ends_the_same(
    dataset, two, tmp_path
):
    arguments = from_first(dataset, tmp_path, "--save_freq=2", "--process_timeout=10")
    job = (*forking(2, "--max-restarts=1"), *arguments)
    status, text, seconds = disturb(job, signal.SIGSTOP, 1, "[7/30]", tmp_path / "signalled")
    assert status == 0, text
    assert re.search(MISSING, text), text
    assert 8 < seconds < 300
    assert "Resumed from" in text
    assert_same(tmp_path / "run", two / "run")


def test_a_killed_rank_without_restarts_ends_the_job_quickly(dataset, tmp_path):
    endless = ("--epochs=10000", "--test_after=10000")
    arguments = from_first(dataset, tmp_path, "--process_timeout=1000", *endless)
    job = (*harness.torchrun(2), *PROGRAM, *arguments)
    status, text, seconds = disturb(job, signal.SIGKILL, 1, "[3/30]", tmp_path / "signalled")
    assert status != 0
    assert seconds < 600
    assert re.search(r"local_rank: 1|rank +: 1", text), text


def test_a_signal_to_every_process_of_a_job_saves(dataset, tmp_path):
    """As SLURM, systemd and Kubernetes send it: a rank gets its own, and torchrun's."""
    arguments = from_first(dataset, tmp_path, "--epochs=10000", "--test_after=10000")
    with harness.started_forked(*harness.torchrun(2), *PROGRAM, *arguments) as job:
        harness.wait_for_line(job, lambda line: "[3/30]" in line)
        for rank in ranks_of(job):
            os.kill(rank, signal.SIGTERM)
        harness.wait_for_line(job, lambda line: line.startswith("SIGTERM: "))
        job.send_signal(signal.SIGTERM)
        harness.assert_tells(job.stdout.read(), "--resume")
    assert read_checkpoint(tmp_path / "run").state["step"] >= 3


def test_a_refusal_that_torchrun_repeats_is_none_the_less_one(dataset, tmp_path):
    arguments = from_first(dataset, tmp_path, "--max_steps=3", f"--log_path={tmp_path / 'log'}")
    run(1, *arguments)
    done = harness.forked(*forking(1, "--max-restarts=1"), *arguments, status=1)
    assert done.stderr.count("error: --save_checkpoint_path") == 2


@pytest.mark.parametrize(
    ("flag", "fact"),
    [
        ("--cuda_graphs", "--cuda_graphs"),
        ("--embedding_type=multi_table", "--embedding_type multi_table"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(dataset, tmp_path, flag, fact):
    harness.assert_tells(run(2, *from_first(dataset, tmp_path, flag), status=2), fact)


def test_torchrun_shows_what_is_refused(dataset, tmp_path):
    arguments = from_first(dataset, tmp_path, "--placement=/nowhere.json")
    done = harness.forked(*forking(2), *arguments, status=1)
    harness.assert_tells(done.stderr + done.stdout, "/nowhere.json")


def test_a_placement_is_for_several_processes(dataset, tmp_path, capsys):
    run(1, *from_first(dataset, tmp_path, "--placement=/nowhere.json"), status=2)
    harness.assert_tells(capsys.readouterr().err, "--placement")


def checksums(run):
    """Returns the SHA-256 of each file of a run's latest tensors."""
    files = read_checkpoint(run).path.glob("*.safetensors")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize(
    "processes", [2, *(pytest.param(count, marks=pytest.mark.release) for count in (1, 4))]
)
def test_a_resumed_run_draws_what_an_uninterrupted_one_does(dataset, tmp_path, processes):
    common = (f"--dataset={dataset / 'data'}", "--dropout=0.3", "--reset_embeddings", "--epochs=2",
              "--test_after=9", f"--log_path={tmp_path / 'log.json'}")  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(processes, *common, f"--save_checkpoint_path={whole}")
    for more in (["--max_steps=20"], []):  # in the first epoch, the end
        run(processes, *common, f"--save_checkpoint_path={parts}", "--resume", *more)
    assert read_checkpoint(whole).state["step"] == 60
    assert len(checksums(whole)) >= 6
    assert checksums(parts) == checksums(whole)
