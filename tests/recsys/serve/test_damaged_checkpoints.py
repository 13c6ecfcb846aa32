# SPDX-License-Identifier: Apache-2.0
"""Damaged and foreign checkpoints end every program that reads one with a line, no traceback."""

import json
import shutil

import pytest

from bert4rec.scripts import main as bert4rec_main
from dlrm.scripts import main as dlrm_main
from recsys.data.manifest import file_checksum
from tests import harness
from tests.recsys.serve.checkpoints import bert4rec_checkpoint, dlrm_checkpoint
from tests.triton.conftest import script


def weights(folder):
    return max(folder.glob("*.safetensors"))


def replace(**values):
    """Returns a damage that replaces keys of the manifest."""
    return edit(lambda document: document | values)


def edit(change):
    def damage(folder):
        file = folder / "manifest.json"
        file.write_text(json.dumps(change(json.loads(file.read_text()))))

    return damage


def each(key, value):
    """Returns a damage that gives every entry of a mapping of the manifest another value."""
    return edit(lambda document: document | {key: dict.fromkeys(document[key], value)})


def write(content):
    return lambda folder: (folder / "manifest.json").write_bytes(content)


def cut(folder):
    """Cuts a file of weights, with a manifest that agrees."""
    file = weights(folder)
    file.write_bytes(file.read_bytes()[:-7])
    entry = {"bytes": file.stat().st_size, "xxh3_128": file_checksum(file)}
    edit(lambda document: document | {"files": document["files"] | {file.name: entry}})(folder)


def folder_for_weights(folder):
    weights(folder).unlink()
    weights_name = "mlp" if (folder / "embedding_0.safetensors").exists() else "model"
    (folder / f"{weights_name}.safetensors").mkdir()


def folder_for_manifest(folder):
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()


def file_for_folder(folder):
    shutil.rmtree(folder)
    folder.write_text("no folder")


def pointer(content):
    def damage(folder):
        (folder / "manifest.json").unlink()
        (folder / "latest.json").write_text(content)

    return damage


NO_BYTES = {"files": {"model.safetensors": {}, "embedding_0.safetensors": {}}}
WRONG_PART = {"bytes": 1, "xxh3_128": "", "part": {"x": 1}}
DAMAGES = {
    "text": (write(b"{"), "manifest.json: not readable as JSON"),
    "bytes": (write(b"\xff\xfe"), "manifest.json: not readable as JSON"),
    "deep": (write(b"[" * 100_000), "manifest.json: not readable as JSON"),
    "list": (write(b"[]"), "manifest.json: not a checkpoint of this project"),
    "foreign": (write(b'{"format": "other"}'), "manifest.json: not a checkpoint of this project"),
    "later": (replace(format_version=99), "format version 99"),
    "state": (replace(state=[]), "manifest.json: state is malformed"),
    "config": (replace(config=[]), "manifest.json: config is malformed"),
    "files": (replace(files=[]), "manifest.json: files is malformed"),
    "entry": (each("files", None), ".safetensors is malformed"),
    "no size": (replace(**NO_BYTES), ".safetensors is malformed"),
    "part": (each("files", WRONG_PART), ".safetensors is malformed"),
    "texts": (each("config", "x"), "must be"),
    "null": (each("config", None), "must be"),
    "steps": (each("state", "x"), "must be an integer, got 'x'"),
    "cut": (cut, "Error while deserializing header"),
    "no weights": (lambda folder: weights(folder).unlink(), "missing or cut short"),
    "folder": (folder_for_weights, "missing or cut short"),
    "manifest": (folder_for_manifest, "no checkpoint here"),
    "file": (file_for_folder, "no checkpoint here"),
    "gone": (shutil.rmtree, "no checkpoint here"),
    "pointer": (pointer("[1]"), "latest.json: is malformed"),
    "pointers": (pointer('{"latest": 5}'), "latest.json: is malformed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("make", [dlrm_checkpoint, bert4rec_checkpoint])
def test_the_deployer(tmp_path, capsys, make, damage):
    folder, _ = make(tmp_path / "checkpoint")
    change, message = DAMAGES[damage]
    change(folder)
    repository = tmp_path / "models"
    arguments = (f"--checkpoint={folder}", f"--repository={repository}", "--verify=4")
    assert harness.call(script("deployer"), *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(repository.glob("[!.]*"))


READ_FIRST = [name for name in DAMAGES if name not in ("cut", "no weights", "folder", "steps")]
"""Damages that are met before the dataset is compared."""


@pytest.mark.parametrize("damage", READ_FIRST)
@pytest.mark.parametrize(
    ("program", "make", "flags"),
    [
        (dlrm_main, dlrm_checkpoint, ("--dataset_type=synthetic_gpu",)),
        (bert4rec_main, bert4rec_checkpoint, ("--dataset_name=random",)),
    ],
    ids=["dlrm", "bert4rec"],
)
def test_the_training_programs(tmp_path, capsys, program, make, flags, damage):
    folder, _ = make(tmp_path / "checkpoint")
    change, message = DAMAGES[damage]
    change(folder)
    log = tmp_path / "log.json"
    arguments = ("--mode=test", f"--load_checkpoint_path={folder}", f"--log_path={log}", *flags)
    assert harness.call(program, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not log.exists()


@pytest.mark.parametrize(
    ("program", "make", "flag"),
    [
        (dlrm_main, bert4rec_checkpoint, "--dataset_type=synthetic_gpu"),
        (bert4rec_main, dlrm_checkpoint, "--dataset_name=random"),
    ],
    ids=["dlrm", "bert4rec"],
)
def test_a_checkpoint_of_the_other_model(tmp_path, capsys, program, make, flag):
    folder, _ = make(tmp_path / "checkpoint")
    assert harness.call(program, "--mode=test", f"--load_checkpoint_path={folder}", flag) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(folder) in error


def test_a_file_in_the_way_of_the_checkpoints(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = (f"--save_checkpoint_path={tmp_path / 'file' / 'run'}", "--max_steps=1")
    log = f"--log_path={tmp_path / 'log.json'}"
    assert harness.call(dlrm_main, "--dataset_type=synthetic_gpu", *arguments, log) == 2
    assert "--save_checkpoint_path" in capsys.readouterr().err
