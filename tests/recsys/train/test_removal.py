# SPDX-License-Identifier: Apache-2.0
"""Killed before any removal or rename of a save: the next run leaves what it would alone."""

import itertools
import shutil
import signal

import pytest

from tests import harness
from tests.checkpoints import assert_same
from tests.recsys.train.tiny import TINY_DLRM

BERT4REC = (
    *("--dataset_name=random", "--random_user_count=60", "--random_item_count=200"),
    *("--random_size=2000", "--emb_dim=16", "--max_len=12", "--train_batch_size=8"),
    *("--dupe_factor=1", "--num_eval_negatives=50", "--base_device=cpu"),
    "--lr=0",  # the first evaluation stays the best one
)
PROGRAMS = {
    "dlrm": ("dlrm.scripts.main", "save_checkpoint_path", (*TINY_DLRM, "--test_after=9")),
    "bert4rec": ("bert4rec.scripts.main", "export_root", BERT4REC),
    "bert4rec dmp": ("bert4rec.scripts.main", "export_root", (*BERT4REC, "--mode=dmp")),
}


def names(folder):
    """Returns the names of all that a run's folder holds."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(
    params=["dlrm", *(pytest.param(n, marks=pytest.mark.release) for n in PROGRAMS if n != "dlrm")]
)
def train(request, tmp_path):
    """Trains to a step in a folder, perhaps killed; returns the exit status."""
    module, folder_flag, model = PROGRAMS[request.param]
    always = (*model, "--num_threads=1", "--resume", f"--log_path={tmp_path}/log")

    def run(folder, step, killed_at=None, status=0):
        words = (module, *always, f"--{folder_flag}={folder}", f"--max_steps={step}")
        killed = () if killed_at is None else ("tests.killed_at", killed_at)
        return harness.forked("-m", *killed, *words, status=status).returncode

    return run


@pytest.mark.slow
def test_a_kill_at_any_removal_leaves_nothing_for_the_next_run(train, tmp_path):
    first, whole = tmp_path / "first", tmp_path / "whole"
    train(first, 1)
    train(first, 2)
    shutil.copytree(first, whole)
    train(whole, 3)
    assert "step_000000002" not in names(whole)
    for number in itertools.count(1):
        run = tmp_path / f"killed_{number}"
        shutil.copytree(first, run)
        status = train(run, 3, number, status=None)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        train(run, 3)
        assert names(run) == names(whole), f"killed before event {number}"
        assert_same(run, whole)
    assert number > len(names(first / "step_000000002"))  # each of them was removed


@pytest.mark.slow
def test_what_an_earlier_version_removed_in_part_goes(train, tmp_path):
    run = tmp_path / "run"
    train(run, 1)
    train(run, 3)
    before = names(run)
    shutil.copytree(run / "step_000000003", run / "step_000000002")
    (run / "step_000000002" / "manifest.json").unlink()
    train(run, 3)
    assert names(run) == before
