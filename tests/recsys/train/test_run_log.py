# SPDX-License-Identifier: Apache-2.0
"""The log of a run that cannot be written: refused before work, or given up, never a hang."""

import os

import pytest

from recsys.train.run_log import RunLog
from tests import harness

TINY = (
    *("-m", "dlrm.scripts.main", "--dataset_type=synthetic_gpu", "--base_device=cpu"),
    *("--synthetic_dataset_table_sizes=10,20", "--synthetic_dataset_num_entries=400"),
    *("--embedding_dim=8", "--bottom_mlp_sizes=8", "--top_mlp_sizes=1", "--batch_size=100"),
    *("--test_batch_size=100", "--warmup_steps=0", "--decay_steps=0", "--lr=0.1"),
)


def refusal(*arguments, folder):
    done = harness.forked(*TINY, *arguments, status=2, PYTHONPATH=str(harness.REPOSITORY))
    assert done.stdout == ""  # before the model is built
    (line,) = done.stderr.splitlines()
    assert list(folder.glob("*/log.json")) == []
    return line


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("pipe", "is a named pipe"),
        ("folder", "cannot be written: Is a directory"),
        ("file/log.json", "cannot be written: Not a directory"),
        ("/dev/full", "cannot be written: No space left on device"),
    ],
)
def test_a_log_that_cannot_be_written_is_refused_at_the_start(tmp_path, name, cause):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    line = refusal(f"--log_path={tmp_path / name}", folder=tmp_path)
    assert line.startswith(f"error: --log_path {tmp_path / name} ")
    assert cause in line


def test_more_threads_than_can_be_started_are_refused(tmp_path):
    line = refusal("--num_threads=100000", f"--log_path={tmp_path / 'log.json'}", folder=tmp_path)
    assert line == "error: --num_threads must be at most 1024, got 100000"


def test_a_folder_as_preset_is_refused(tmp_path):
    (tmp_path / "folder.d").mkdir()
    preset = tmp_path / "folder.d"
    line = refusal(f"--preset={preset}", folder=tmp_path)
    assert line == f"error: --preset {preset}: Is a directory"


def test_a_run_says_nothing_of_settings_that_nobody_gave(tmp_path):
    done = harness.forked(*TINY, f"--log_path={tmp_path / 'new' / 'log.json'}")
    assert done.stderr == ""
    assert (tmp_path / "new" / "log.json").stat().st_size


def test_a_disk_that_fills_up_ends_the_log_and_not_the_run(tmp_path, caplog):
    log = RunLog(tmp_path / "log.json")
    log.record((0, 1), {"loss": 0.5})
    (tmp_path / "log.json").unlink()
    (tmp_path / "log.json").symlink_to("/dev/full")
    log.record((0, 2), {"loss": 0.4})
    log.record((0, 3), {"loss": 0.3})
    assert [record.message for record in caplog.records] == [
        f"`log_path` {tmp_path / 'log.json'}: No space left on device; logging ends"
    ]
