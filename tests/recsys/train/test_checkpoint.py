# SPDX-License-Identifier: Apache-2.0
import json
import signal
import threading

import pytest
import torch

from recsys.train.checkpoint import CheckpointError, read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from recsys.train.saving.write import write_checkpoint
from tests.documents import change_document
from tests.harness import refusal

GROUPS = {"mlp": {"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(3)}}


def test_round_trip(tmp_path):
    write_checkpoint(tmp_path / "c", GROUPS, {"step": 7}, {"lr": 0.5})
    found = read_checkpoint(tmp_path / "c")
    assert found.state == {"step": 7}
    assert found.config == {"lr": 0.5}
    assert found.groups() == ["mlp"]
    for name, tensor in GROUPS["mlp"].items():
        torch.testing.assert_close(found.tensors("mlp")[name], tensor, rtol=0, atol=0)


def test_views_of_one_table_are_stored_apart(tmp_path):
    table = torch.arange(10.0).view(5, 2)
    groups = {"a": {"weight": table[:2]}, "b": {"weight": table[2:]}}
    write_checkpoint(tmp_path / "c", groups, {}, {})
    found = read_checkpoint(tmp_path / "c")
    assert torch.equal(found.tensors("b")["weight"], table[2:])
    assert (tmp_path / "c" / "a.safetensors").stat().st_size < 200


def test_interrupted_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, GROUPS, {"step": 1}, {}, is_best=True)

    class DiskFullError(Exception):
        pass

    def fail(*_args, **_kwargs):
        raise DiskFullError

    monkeypatch.setattr("recsys.train.saving.write.write_safetensors", fail)
    with pytest.raises(DiskFullError):
        folder.save(2, GROUPS, {"step": 2}, {}, is_best=False)
    assert read_checkpoint(tmp_path).state == {"step": 1}


def test_keeps_the_latest_and_the_best(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for step, is_best in ((1, True), (2, False), (3, False)):
        folder.save(step, GROUPS, {"step": step}, {}, is_best=is_best)
    assert sorted(p.name for p in tmp_path.glob("step_*")) == ["step_000000001", "step_000000003"]
    assert folder.latest() == tmp_path / "step_000000003"
    assert folder.best() == tmp_path / "step_000000001"
    assert read_checkpoint(tmp_path).state == {"step": 1}


def test_a_checkpoint_is_kept_while_it_is_read(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, GROUPS, {}, {}, is_best=False)
    opened = read_checkpoint(tmp_path)
    for step in (2, 3):
        folder.save(step, GROUPS, {}, {}, is_best=False)
    assert torch.equal(opened.tensors("mlp")["weight"], GROUPS["mlp"]["weight"])
    del opened
    folder.save(4, GROUPS, {}, {}, is_best=False)
    assert [p.name for p in tmp_path.glob("step_*")] == ["step_000000004"]


def test_readers_beside_a_saving_run_need_no_lock(tmp_path):
    folder, reads = CheckpointFolder(tmp_path), 0

    def save_steps():
        with folder.held("save_checkpoint_path"):
            for step in range(2, 60):
                folder.save(step, GROUPS, {"step": step}, {}, is_best=step % 3 == 0)

    folder.save(1, GROUPS, {"step": 1}, {}, is_best=True)
    saving = threading.Thread(target=save_steps)
    saving.start()
    while saving.is_alive():
        assert set(read_checkpoint(tmp_path).tensors("mlp")) == set(GROUPS["mlp"])
        reads += 1
    assert reads


def test_saving_a_step_again_replaces_it(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, GROUPS, {"step": 1}, {}, is_best=True)
    folder.save(1, GROUPS, {"step": 1, "again": True}, {}, is_best=True)
    assert read_checkpoint(tmp_path).state["again"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest.json", "step_000000001"]


def test_a_group_that_is_not_there_is_named(tmp_path):
    write_checkpoint(tmp_path / "c", GROUPS, {}, {})
    with refusal("'tables'", "mlp", kind=CheckpointError, path=tmp_path / "c"):
        read_checkpoint(tmp_path / "c").tensors("tables")


def test_a_group_that_is_whole_and_in_shards_is_refused(tmp_path):
    write_checkpoint(tmp_path / "c", GROUPS, {}, {})
    manifest = tmp_path / "c" / "manifest.json"
    files = json.loads(manifest.read_text())["files"]
    shard = {"part": {"first": 0, "step": 2, "rows": 3}}
    files["mlp.0_of_2.safetensors"] = files["mlp.safetensors"] | shard
    change_document(manifest, lambda document: document | {"files": files})
    checkpoint = read_checkpoint(tmp_path / "c")
    for read in (checkpoint.tensors, lambda group: checkpoint.shape_of(group, "weight")):
        with refusal("mlp", "mlp.0_of_2.safetensors", kind=CheckpointError, path=manifest):
            read("mlp")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"latest": 3}', '{"best": null}', '{"latest": "../a"}', "1"]
)
def test_a_damaged_pointer_is_named(tmp_path, text):
    CheckpointFolder(tmp_path).save(1, GROUPS, {}, {}, is_best=True)
    (tmp_path / "latest.json").write_text(text)
    with refusal("latest.json", kind=CheckpointError):
        read_checkpoint(tmp_path)


# An interruption between opening a file and its `with` leaves the file to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_while_reading_is_an_interruption(tmp_path):
    groups = {"mlp": {str(i): torch.zeros(1000) for i in range(3000)}}
    write_checkpoint(tmp_path / "c", groups, {}, {})
    checkpoint = read_checkpoint(tmp_path / "c")
    interrupted = 0
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for i in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + i * 0.0005)
                try:
                    checkpoint.tensors("mlp")
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:  # one that comes just before the timer is off, too
                interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 10
