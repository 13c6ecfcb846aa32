# SPDX-License-Identifier: Apache-2.0
"""A checkpoint belongs to the dataset of its training: numbers, ids and rows mean the same."""

import shutil

import pytest

from preproc import generate_criteo
from preproc.criteo.__main__ import main as prepare
from recsys.serve.manifest import Deployment
from recsys.train.checkpoint import read_checkpoint
from recsys.train.origin import FINGERPRINT, SEMANTICS
from recsys.train.saving.run_folder import CheckpointFolder
from tests import harness
from tests.dlrm.conftest import SMALL_MODEL, make_program

HASHED = (*SMALL_MODEL, "--hash_indices", "--max_table_size=3")
"""Tables of three rows each, so that the sizes of all datasets agree."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two datasets of a log, and a run trained on the first."""
    root = tmp_path_factory.mktemp("origin")
    log = f"--output={root / 'log'}"
    cardinalities = ",".join(["40"] * 26)
    rows = ("--rows=3000", "--days=2", f"--cardinalities={cardinalities}")
    assert generate_criteo.main(["generate_criteo", log, *rows]) == 0
    for name, *settings in (
        ("mine", "--preset=dlrm"),
        ("offset", "--preset=dlrm", "--numerical_offset=4"),
        ("limit", "--preset=dlrm", "--frequency_limit=30"),
        ("shuffled", "--preset=nvidia", "--numerical_offset=2", "--numerical_min=-1",
         "--numerical_missing=raw_zero", "--shuffle_seed=1", "--format=parquet"),
    ):  # fmt: skip
        output = ("--progress=none", f"--input={root / 'log'}", f"--output={root / name}")
        assert prepare(["criteo", *output, *settings]) == 0
    shutil.copytree(root / "mine", root / "plain")
    (root / "plain" / "manifest.json").unlink()
    train(make_program(root), root / "mine", root / "run")
    return root


def train(program, dataset, run, *settings):
    program(f"--dataset={dataset}", f"--save_checkpoint_path={run}", "--max_steps=2", *settings,
            model=HASHED)  # fmt: skip
    assert program.exit_code == 0


def refused(program, capsys, *arguments):
    capsys.readouterr()
    program(*arguments, model=HASHED)
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    return error


@pytest.mark.parametrize("mode", ["train", "test", "inference_benchmark"])
def test_a_dataset_prepared_otherwise_is_refused(program, folder, capsys, mode):
    options = (f"--mode={mode}", f"--load_checkpoint_path={folder / 'run'}", "--max_steps=2",
               "--inference_benchmark_batch_sizes=1")  # fmt: skip
    error = refused(program, capsys, *options, f"--dataset={folder / 'offset'}")
    assert "was trained on numerical_offset 2, " in error
    assert f"{folder / 'offset'} has numerical_offset 4; name the dataset" in error
    assert "add --ignore_fingerprint" in error
    program(*options, f"--dataset={folder / 'offset'}", "--ignore_fingerprint", model=HASHED)
    assert program.exit_code == 0


def test_other_dictionaries_are_refused(program, folder, tmp_path, capsys):
    options = ("--mode=test", f"--load_checkpoint_path={folder / 'run'}")
    error = refused(program, capsys, *options, f"--dataset={folder / 'limit'}")
    assert "frequency_limit 15" in error
    # The same settings on another log.
    log = tmp_path / "log"
    arguments = ["--rows=3000", "--days=2", "--seed=9", "--cardinalities=" + ",".join(["40"] * 26)]
    assert generate_criteo.main(["generate_criteo", f"--output={log}", *arguments]) == 0
    other = tmp_path / "other"
    assert prepare(["criteo", "--progress=none", f"--input={log}", f"--output={other}"]) == 0
    assert "dataset fingerprint" in refused(program, capsys, *options, f"--dataset={other}")


def test_another_format_of_the_same_data_is_taken(program, folder, capsys):
    program("--mode=test", f"--load_checkpoint_path={folder / 'run'}", "--dataset_type=parquet",
            f"--dataset={folder / 'shuffled'}", model=HASHED)  # fmt: skip
    assert program.exit_code == 0
    assert "fingerprint" not in capsys.readouterr().err


def test_a_resumed_run_keeps_its_dataset(program, folder, tmp_path, capsys):
    run = tmp_path / "run"
    train(program, folder / "mine", run)
    options = (f"--save_checkpoint_path={run}", f"--dataset={folder / 'offset'}", "--resume")
    assert "numerical_offset 4" in refused(program, capsys, *options, "--max_steps=3")
    program(*options, "--max_steps=3", "--ignore_fingerprint", model=HASHED)
    assert program.exit_code == 0
    assert read_checkpoint(CheckpointFolder(run).latest()).state["step"] == 3


def test_checkpoints_in_nvidias_layout_keep_it_too(program, folder, tmp_path, capsys):
    train(program, folder / "mine", tmp_path / "run", "--checkpoint_format=nvidia")
    options = ("--mode=test", f"--load_checkpoint_path={tmp_path / 'run'}")
    assert "offset 4" in refused(program, capsys, *options, f"--dataset={folder / 'offset'}")


def test_a_folder_without_manifest_is_taken_with_a_warning(program, folder, caplog):
    program("--mode=test", f"--load_checkpoint_path={folder / 'run'}",
            f"--dataset={folder / 'plain'}", model=HASHED)  # fmt: skip
    assert program.exit_code == 0
    assert f"{folder / 'plain'} records no fingerprint of its dataset" in caplog.text


def test_several_processes_compare_too(folder):
    from dlrm.scripts import main

    text = harness.call_on_ranks(
        2,
        main,
        *HASHED,
        "--mode=test",
        f"--load_checkpoint_path={folder / 'run'}",
        f"--dataset={folder / 'offset'}",
        status=2,
    )
    assert "numerical_offset 4" in text


@pytest.mark.slow
def test_a_deployer_scores_the_dataset_of_the_training(folder, tmp_path):
    command = ("triton/deployer.py", "--checkpoint", folder / "run", "--repository", tmp_path)
    arguments = (*command, "--dataset", folder / "offset")
    assert "has numerical_offset 4" in harness.forked(*arguments, status=2).stderr
    assert not list(tmp_path.iterdir())
    assert "AUC on" in harness.forked(*arguments, "--ignore_fingerprint").stdout


@pytest.mark.slow
def test_a_deployment_keeps_the_dataset_of_its_training(program, folder, tmp_path):
    train(program, folder / "offset", tmp_path / "other")
    command = ("triton/deployer.py", "--repository", tmp_path / "models", "--checkpoint")
    assert "another dataset" not in harness.forked(*command, folder / "run").stderr
    state = read_checkpoint(CheckpointFolder(folder / "run").latest()).state
    kept = Deployment.load(tmp_path / "models" / "dlrm" / "1").dataset
    assert kept == {name: state[name] for name in (FINGERPRINT, SEMANTICS)}
    assert kept[FINGERPRINT]
    assert "another dataset" not in harness.forked(*command, folder / "run").stderr
    warned = harness.forked(*command, tmp_path / "other").stderr
    assert "was trained on another dataset than version 2: ids and numbers" in warned
