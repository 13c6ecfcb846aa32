# SPDX-License-Identifier: Apache-2.0
"""What a power failure leaves of checkpoints, datasets and model repositories.

Programs write to a file system in an image that stores nothing by itself for five minutes. A copy
of the image at a moment is what would be found if the power failed then; it changes with each sync.
"""

import contextlib
import os
import posix
import subprocess

import pytest

from preproc import movielens
from preproc.files.workspace import Workspace
from recsys.data.manifest import Manifest, file_checksum
from recsys.files.durable import durable_rename
from recsys.train.checkpoint import read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from tests import harness
from tests.dlrm.conftest import make_program
from tests.mounts import mounted
from tests.recsys.serve.checkpoints import dlrm_checkpoint
from tests.triton.conftest import script

OPTIONS = "loop,commit=300,noauto_da_alloc"
"""A transaction takes five minutes, and a rename does not write the content by itself."""
TRAIN = ("--dataset_type=synthetic_gpu", "--synthetic_dataset_table_sizes=50,60",
         "--synthetic_dataset_num_entries=12800", "--num_numerical_features=3",
         "--test_after=99", "--save_freq=2")  # fmt: skip


class Disk:
    """A file system in an image.

    Attributes:
        folder: its mount point.
        seen: what `look` returned after each sync.
    """

    def __init__(self, folder, image, copies):
        self.folder, self._image, self._copies = folder, image, copies
        self.seen = []

    @contextlib.contextmanager
    def after_power_failure(self):
        """Mounts the file system as it would be found."""
        copy = self._copies / "image"
        subprocess.run(["cp", "--sparse=always", str(self._image), str(copy)], check=True)
        with mounted(self._copies / "disk", "-o", "loop", str(copy)) as folder:
            yield folder

    @contextlib.contextmanager
    def watched(self, patch, look):
        """Looks at what would be found, after each sync."""
        device = self.folder.stat().st_dev

        def fsync(descriptor):
            posix.fsync(descriptor)
            if os.fstat(descriptor).st_dev == device:
                with self.after_power_failure() as folder:
                    self.seen.append(look(folder))

        with patch.context() as context:
            context.setattr(os, "fsync", fsync)
            yield self.seen


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A file system, and programs of this process that sync as they do elsewhere."""
    image, copies = tmp_path / "image", tmp_path / "copies"
    image.write_bytes(b"")
    os.truncate(image, 48 << 20)
    copies.mkdir()
    monkeypatch.setattr(os, "fsync", posix.fsync)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-J", "size=4", str(image)], check=True)
    with mounted(tmp_path / "disk", "-o", OPTIONS, str(image)) as folder:
        yield Disk(folder, image, copies)


def train(disk, tmp_path, *arguments, name="run"):
    program = make_program(tmp_path)
    program(*TRAIN, f"--save_checkpoint_path={disk.folder / name}", *arguments)


def saved_step(folder):
    """Returns the step from which a run in the folder would go on; None if it would begin."""
    if not (folder / "run").is_dir():
        return None
    run = CheckpointFolder(folder / "run")
    with run.held("save_checkpoint_path"):
        latest = run.latest()
    if latest is None:
        return None
    checkpoint = read_checkpoint(latest)
    for group in checkpoint.groups():
        checkpoint.tensors(group)  # compares the checksum
    return checkpoint.state["step"]


def prepare(disk, tmp_path, users, *arguments):
    lines = [f"{u}\t{i % 9}\t4\t{i}\n" for u in range(users) for i in range(u, u + 6)]
    (tmp_path / "u.data").write_text("".join(lines))
    program = ["movielens", f"--input={tmp_path / 'u.data'}", f"--output={disk.folder / 'data'}"]
    assert movielens.main([*program, *arguments]) == 0


def users_of_dataset(folder):
    """Returns the users of the dataset in the folder, whose files are whole; None without one."""
    data = folder / "data"
    workspace = Workspace(data, None)
    if workspace.staging.is_dir():
        workspace.finish_publishing()
    if not (data / "manifest.json").exists():
        return None
    manifest = Manifest.load(data)
    for name, entry in manifest.files.items():
        assert file_checksum(data / name) == entry["xxh3_128"], name
    return manifest.statistics["users"]


def deploy(disk, checkpoint):
    flags = ("--checkpoint", str(checkpoint), "--repository", str(disk.folder / "models"))
    assert harness.call(script("deployer"), *flags, "--verify=8") == 0


def versions(folder):
    """Returns the versions of the model in the folder, each whole."""
    model = folder / "models" / "dlrm"
    if not model.is_dir():
        return []
    assert "max_batch_size" in (model / "config.pbtxt").read_text()
    numbers = sorted(path.name for path in model.iterdir() if path.name.isdecimal())
    sizes = {n: {p.name: p.stat().st_size for p in (model / n).iterdir()} for n in numbers}
    for files in sizes.values():
        assert files == sizes["1"]
        assert min(files.values()) > 0
        assert "weights.safetensors" in files
    return numbers


def test_what_was_saved_before_a_power_failure_is_whole(disk, tmp_path):
    """The log as well, as far as the checkpoint."""
    log = disk.folder / "log.json"
    train(disk, tmp_path, "--max_steps=4", f"--log_path={log}", "--print_freq=1")
    prepare(disk, tmp_path, 8)
    checkpoint, _ = dlrm_checkpoint(tmp_path / "checkpoint")
    deploy(disk, checkpoint)
    with disk.after_power_failure() as folder:
        assert saved_step(folder) == 4
        assert users_of_dataset(folder) == 8
        assert versions(folder) == ["1"]
        steps = [record["step"] for record in harness.read_log(folder / "log.json")]
        assert steps[-2:] == [[0, 4], []]


def test_a_renamed_folder_is_whole_and_replaces_at_once(disk):
    for text in ("old", "new"):
        (disk.folder / "a.tmp").write_text(text)
        durable_rename(disk.folder / "a.tmp", disk.folder / "a")
        with disk.after_power_failure() as folder:
            assert (folder / "a").read_text() == text
            assert not (folder / "a.tmp").exists()


@pytest.mark.release
def test_a_power_failure_around_saves_loses_no_checkpoint(disk, tmp_path, monkeypatch):
    with disk.watched(monkeypatch, saved_step) as seen:
        train(disk, tmp_path, "--max_steps=6")
        train(disk, tmp_path, "--max_steps=8", "--resume")
    assert len(seen) > 30
    assert seen == sorted(seen, key=lambda step: step or 0)
    assert set(seen) == {None, 2, 4, 6, 8}
    assert seen[-1] == 8


@pytest.mark.release
@pytest.mark.parametrize("beside", ["", "notes.txt"])
def test_a_power_failure_around_publishing_leaves_a_dataset(disk, tmp_path, monkeypatch, beside):
    """Folders are exchanged; one with another file in it is filled."""
    with disk.watched(monkeypatch, users_of_dataset) as seen:
        prepare(disk, tmp_path, 8)
        if beside:
            (disk.folder / "data" / beside).write_text("kept")
        prepare(disk, tmp_path, 12, "--overwrite")
    assert len(seen) > 10
    assert seen == sorted(seen, key=lambda users: users or 0)
    assert set(seen) == {None, 8, 12}
    assert seen[-1] == 12


@pytest.mark.release
def test_a_power_failure_around_deploying_leaves_whole_versions(disk, tmp_path, monkeypatch):
    checkpoint, _ = dlrm_checkpoint(tmp_path / "checkpoint")
    with disk.watched(monkeypatch, versions) as seen:
        for _ in range(2):
            deploy(disk, checkpoint)
    assert len(seen) > 10
    assert seen == sorted(seen, key=len)
    assert seen[-1] == ["1", "2"]
