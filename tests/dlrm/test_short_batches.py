# SPDX-License-Identifier: Apache-2.0
"""The rows of an epoch that make no whole batch: trained, or left out and named."""

import json

import pytest

from recsys.train.checkpoint import MANIFEST_FILE, read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from tests import harness
from tests.dlrm.conftest import ROWS, SMALL_MODEL


def test_the_last_short_batch_trains(program, dataset, capsys):
    program(f"--dataset={dataset}", "--batch_size=5000", "--print_freq=1")
    out = capsys.readouterr().out
    assert "Training on 2 batches of 5000 rows per epoch, " in out
    assert "[2/2]" in out
    assert "Nothing will be saved without --save_checkpoint_path" in out


def test_drop_last_says_what_it_leaves_out(program, dataset, tmp_path, capsys):
    program(f"--dataset={dataset}", "--batch_size=5000", "--drop_last", "--print_freq=1",
            f"--save_checkpoint_path={tmp_path / 'run'}")  # fmt: skip
    out = capsys.readouterr().out
    assert "1 batches of 5000 rows per epoch (--drop_last leaves out the last 1000, 16.7%" in out
    assert "[1/1]" in out
    assert "Nothing will be saved" not in out


def test_a_run_of_before_drop_last_is_resumed_with_it(program, dataset, tmp_path, capsys):
    run = f"--save_checkpoint_path={tmp_path / 'run'}"
    common = (f"--dataset={dataset}", "--batch_size=5000", run)
    program(*common, "--drop_last")
    manifest = CheckpointFolder(tmp_path / "run").latest() / MANIFEST_FILE
    record = json.loads(manifest.read_text())
    del record["config"]["drop_last"]
    manifest.write_text(json.dumps(record))
    program(*common, "--resume", "--epochs=2")
    assert program.exit_code == 2
    assert "--drop_last (was True, now False)" in capsys.readouterr().err
    program(*common, "--resume", "--epochs=2", "--drop_last")
    assert program.exit_code == 0


def test_a_model_no_better_than_chance_is_named(program, dataset, caplog):
    program(f"--dataset={dataset}", "--lr=1e-9", "--eval_split=validation", "--seed=9")
    assert program.exit_code == 0
    assert f"on {ROWS['validation']} rows is no better than chance" in caplog.text


@pytest.mark.parametrize("batch_size", [4000, 5999])
def test_two_ranks_share_a_short_batch_as_one_process_trains_it(
    program, dataset, tmp_path, batch_size
):
    from dlrm.scripts import main

    start = tmp_path / "start"
    program(f"--dataset={dataset}", "--max_steps=2", f"--save_checkpoint_path={start}")
    common = (
        f"--dataset={dataset}",
        f"--batch_size={batch_size}",
        f"--load_checkpoint_path={start}",
    )
    program(*common, f"--save_checkpoint_path={tmp_path / 'one'}")
    two = f"--save_checkpoint_path={tmp_path / 'two'}"
    harness.call_on_ranks(2, main, *SMALL_MODEL, *common, two)
    one, two = (read_checkpoint(CheckpointFolder(tmp_path / n).latest()) for n in ("one", "two"))
    assert two.state["step"] == one.state["step"] == 2
    for group in ("mlp", "embedding_0"):
        for name, tensor in one.tensors(group).items():
            assert (two.tensors(group)[name] - tensor).abs().max() < 1e-5
