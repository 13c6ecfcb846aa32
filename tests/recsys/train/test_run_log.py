# SPDX-License-Identifier: Apache-2.0
"""The log of a run that cannot be written: refused before work, or given up, never a hang."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from bert4rec.scripts import main as bert4rec
from dlrm.scripts import main as dlrm
from recsys.train.run_log import RunLog
from tests import harness
from tests.harness import assert_tells, refusal
from tests.recsys.train.shown import Page, scalars
from tests.recsys.train.tiny import TINY_DLRM


@pytest.mark.parametrize(
    ("flag", "value", "fact"),
    [
        ("log_path", "pipe", "pipe"),
        ("log_path", "folder.d", os.strerror(errno.EISDIR)),
        ("log_path", "file/log.json", os.strerror(errno.ENOTDIR)),
        ("log_path", "/dev/full", os.strerror(errno.ENOSPC)),
        ("log_path", "held.json", "held.json"),
        ("log_path", "null", "--report"),
        ("preset", "folder.d", os.strerror(errno.EISDIR)),
    ],
)
def test_what_cannot_be_written_or_read_is_refused_at_the_start(
    tmp_path, capsys, flag, value, fact
):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    held = RunLog(tmp_path / "held.json")
    held.begin({})
    (tmp_path / "folder.d").mkdir()
    (tmp_path / "file").write_text("")
    flags = (f"--{flag}={tmp_path / value}", f"--report={tmp_path / 'run.html'}")
    line = refused(capsys, *flags)
    assert line.startswith(f"error: --{flag} {tmp_path / value}")
    assert_tells(line, fact)
    assert list(tmp_path.glob("*/log.json")) == []
    held.close()
    RunLog(tmp_path / "held.json").begin({})


def test_more_threads_than_can_be_started_are_refused(capsys):
    assert_tells(refused(capsys, "--num_threads=100000"), "--num_threads", 1024, 100000)


def refused(capsys, *arguments):
    """Returns the line of a refused run."""
    assert harness.call(dlrm, *TINY_DLRM, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""  # before the model is built
    (line,) = printed.err.splitlines()
    return line


def test_a_run_says_nothing_of_settings_that_nobody_gave(tmp_path):
    done = harness.forked(
        "-m", "dlrm.scripts.main", *TINY_DLRM, f"--log_path={tmp_path / 'new' / 'log.json'}"
    )
    assert done.stderr == ""
    assert (tmp_path / "new" / "log.json").stat().st_size


def test_a_page_is_drawn_from_what_is_whole_of_a_log_and_a_device_stays_one(tmp_path):
    log, page = tmp_path / os.fsdecode(b"log\xff.json"), tmp_path / "page"
    flags = (*TINY_DLRM, f"--log_path={log}", f"--save_checkpoint_path={tmp_path / 'run'}")
    harness.forked("-m", "dlrm.scripts.main", *flags, "--print_freq=1")
    first, second, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, second[:40] + b"\xff\n", *rest, second[:40]]))
    page.symlink_to("/dev/null")
    more = ("--epochs=2", "--resume", f"--report={page}")
    done = harness.forked("-m", "dlrm.scripts.main", *flags, *more)
    assert_tells(done.stderr, "line 2")
    assert page.is_symlink()


def test_a_disk_that_fills_up_ends_the_log_and_not_the_run(tmp_path, caplog):
    log = RunLog(tmp_path / "log.json")
    log.record((0, 1), {"loss": 0.5})
    (tmp_path / "log.json").unlink()
    (tmp_path / "log.json").symlink_to("/dev/full")
    log.record((0, 2), {"loss": 0.4})
    log.record((0, 3), {"loss": 0.3})
    (told,) = caplog.messages
    assert_tells(told, f"`log_path` {tmp_path / 'log.json'}", os.strerror(errno.ENOSPC))


def test_a_log_of_an_earlier_run_is_kept(tmp_path, caplog):
    log = tmp_path / "log.json"
    for number in range(3):
        with caplog.at_level("INFO"):
            RunLog(log).begin({"run": number})
    assert '"run": 2' in log.read_text()
    assert '"run": 1' in (tmp_path / "log.json.old").read_text()
    assert_tells(caplog.text, log, "log.json.old")
    RunLog(log).record((), {"more": 1})
    assert len(log.read_text().splitlines()) == 2


def steps(path):
    """Returns the steps of a log's losses, in its order."""
    return [r["step"][1] for r in harness.read_log(path) if "step_time" in r["data"]]


BERT4REC = (
    *("--dataset_name=random", "--random_user_count=60", "--random_item_count=200"),
    *("--random_size=2000", "--emb_dim=16", "--max_len=12", "--train_batch_size=8"),
    *("--dupe_factor=1", "--num_eval_negatives=50", "--base_device=cpu", "--num_threads=1"),
)


@pytest.mark.parametrize(
    ("program", "folder_flag", "model"),
    [
        (dlrm, "save_checkpoint_path", TINY_DLRM),
        (bert4rec, "export_root", BERT4REC),
    ],
)
def test_each_step_stands_once_in_log_page_and_events_of_a_resumed_run(
    tmp_path, program, folder_flag, model
):
    log, page, run = tmp_path / "log.json", tmp_path / "page.html", tmp_path / "run"
    events = tmp_path / "events"
    always = (*model, "--print_freq=1", "--resume", f"--log_path={log}", f"--tensorboard={events}")

    def train(folder, *more):
        # TensorBoard reads files in the order of their names, which tell runs by their second.
        seconds = [path.name.split(".")[3] for path in events.glob("events.*")]
        harness.wait_for(lambda: f"{int(time.time()):010d}" > max(seconds, default=""), "a second")
        assert harness.call(program, *always, f"--{folder_flag}={folder}", *more) == 0
        assert [step for step, _ in scalars(events)["train/loss"]] == steps(log)

    train(run, "--max_steps=2")
    assert steps(log) == [1, 2]
    shutil.copytree(run, tmp_path / "of two steps")
    train(run, "--max_steps=4")
    assert steps(log) == [1, 2, 3, 4]
    # As if killed in step 4, before its checkpoint.
    shutil.rmtree(run)
    (tmp_path / "of two steps").rename(run)
    train(run, "--max_steps=3", f"--report={page}")
    assert steps(log) == [1, 2, 3]
    assert len(Page(page).curve("train/loss")) == 3
    # Another run, which begins in a folder of its own, takes nothing from this log.
    train(tmp_path / "other", "--max_steps=1")
    assert steps(log) == [1]
    assert steps(tmp_path / "log.json.old") == [1, 2, 3]
    # This run has no checkpoint: its steps are done again.
    shutil.rmtree(tmp_path / "other")
    train(tmp_path / "other", "--max_steps=2")
    assert steps(log) == [1, 2]


def resolved(before, after):
    """Returns another way to name a run and its log that have stayed where they were."""
    return before / "run", before / "log.json"


def from_a_sibling(before, after):
    after.mkdir()
    os.chdir(after)
    return Path("../before/run"), Path("../before/log.json")


def by_a_link(before, after):
    after.symlink_to(before)
    return after / "run", after / "log.json"


def other_name_of_the_log(before, after):
    (before / "log.json").rename(after)
    return before / "run", after


def both_moved(before, after):
    before.rename(after)
    return after / "run", after / "log.json"


@pytest.mark.parametrize(
    "move", [resolved, from_a_sibling, by_a_link, other_name_of_the_log, both_moved]
)
@pytest.mark.parametrize(
    ("program", "folder_flag", "model"),
    [(dlrm, "save_checkpoint_path", TINY_DLRM), (bert4rec, "export_root", BERT4REC)],
)
def test_a_resumed_run_finds_its_log_again(
    tmp_path, monkeypatch, program, folder_flag, model, move
):
    always = (*model, "--print_freq=1")
    monkeypatch.chdir(tmp_path)
    start = (f"--{folder_flag}=before/run", "--log_path=before/log.json", "--max_steps=2")
    assert harness.call(program, *always, *start) == 0
    run, log = move(tmp_path / "before", tmp_path / "after")
    goes_on = (f"--{folder_flag}={run}", f"--log_path={log}", "--max_steps=4", "--resume")
    assert harness.call(program, *always, *goes_on) == 0
    assert steps(log) == [1, 2, 3, 4]


def test_a_file_that_is_no_log_is_left_alone(tmp_path):
    file = tmp_path / "log.json"
    file.write_text('{"mine": 1}')
    with refusal(f"`log_path` {file}"):
        RunLog(file)
    assert file.read_text() == '{"mine": 1}'
