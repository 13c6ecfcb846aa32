# SPDX-License-Identifier: Apache-2.0
"""Damaged and foreign checkpoints and versions are refused with a line, and no traceback."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bert4rec.scripts import main as bert4rec_main
from bert4rec.serve.served import ServedBert4Rec
from dlrm.scripts import main as dlrm_main
from dlrm.serve.native import NativeDlrm
from dlrm.serve.served import ServedDlrm
from preproc.clicks.serving.line_transform import LineTransform
from recsys.data.manifest import file_checksum
from recsys.data.sequences.titles import write_titles
from recsys.serve.manifest import Deployment, DeploymentError
from recsys.serve.raw_rows import served_from_raw_rows
from tests import harness
from tests.bert4rec.conftest import NUM_ITEMS, make_sequences, write_dataset
from tests.checkpoints import rewrite
from tests.dlrm.deployed import raw_checkpoint
from tests.documents import change_document
from tests.harness import assert_tells, refusal
from tests.recsys.data.damage import cut, each, edit, inside, put, remove
from tests.recsys.serve.checkpoints import bert4rec_checkpoint, dlrm_checkpoint
from tests.tools import needs
from tests.triton.conftest import deployer, script


def edit_manifest(change):
    return inside("manifest.json", lambda file: change_document(file, change))


def replace(**values):
    """Returns a damage that replaces keys of the manifest."""
    return edit_manifest(lambda document: document | values)


def replace_all(key, value):
    """Returns a damage that gives every entry of a mapping of the manifest another value."""
    return edit_manifest(lambda document: document | {key: dict.fromkeys(document[key], value)})


def of_weights(damage):
    """Returns a damage of a file of weights."""
    return lambda folder: damage(max(folder.glob("*.safetensors")))


def cut_and_agree(file):
    """Cuts a file of weights, with a manifest that agrees."""
    cut(7)(file)
    entry = {"bytes": file.stat().st_size, "xxh3_128": file_checksum(file)}
    edit_manifest(lambda document: document | {"files": document["files"] | {file.name: entry}})(
        file.parent
    )


def rewritten(change):
    """Returns a damage that changes the tensors of a file, with a manifest that agrees."""

    def damage(folder):
        file = max(folder.glob("*.safetensors"))
        rewrite(file, change)

    return damage


def of_dtype(dtype):
    return lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()}


def more(tensors):
    return tensors | {"extra": torch.zeros(3)}


def a_group_more(folder):
    rewrite(folder / "extra.safetensors", more)


def a_file_more(folder):
    safetensors.torch.save_file(more({}), folder / "extra.safetensors")


def flip_a_bit(file):
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))


def file_for_folder(folder):
    shutil.rmtree(folder)
    folder.write_text("no folder")


def manifest(content):
    return inside("manifest.json", put(content))


A_FOLDER = each(remove, Path.mkdir)
NO_BYTES = {"files": {"model.safetensors": {}, "embedding_0.safetensors": {}}}
WRONG_PART = {"bytes": 1, "xxh3_128": "", "part": {"x": 1}}
DAMAGES = {
    "text": (manifest(b"{"), "manifest.json JSON"),
    "bytes": (manifest(b"\xff\xfe"), "manifest.json JSON"),
    "deep": (manifest(b"[" * 100_000), "manifest.json JSON"),
    "list": (manifest(b"[]"), "manifest.json"),
    "foreign": (manifest(b'{"format": "x"}'), "manifest.json"),
    "later": (replace(format_version=99), "version 99"),
    "a digit": (
        inside(
            "manifest.json", lambda file: file.write_text(file.read_text().replace("7", "8", 1))
        ),
        "manifest.json",
    ),
    "no state": (inside("manifest.json", edit('"state"', '"stat"')), "manifest.json keys"),
    "state": (replace(state=[]), "manifest.json state"),
    "config": (replace(config=[]), "manifest.json config"),
    "files": (replace(files=[]), "manifest.json files"),
    "entry": (replace_all("files", None), "manifest.json files {weights}"),
    "no size": (replace(**NO_BYTES), "manifest.json files"),
    "part": (replace_all("files", WRONG_PART), "manifest.json files"),
    "texts": (replace_all("config", "x"), "'x'"),
    "null": (replace_all("config", None), "None"),
    "group more": (a_group_more, "extra.safetensors 'extra'"),
    "file more": (a_file_more, "extra.safetensors manifest.json"),
    "manifest": (inside("manifest.json", A_FOLDER), "{folder}"),
    "file": (file_for_folder, "{folder}"),
    "gone": (shutil.rmtree, "{folder}"),
    "pointer": (
        each(inside("manifest.json", remove), inside("latest.json", put("[1]"))),
        "{folder}/latest.json",
    ),
}
DAMAGES_OF_WEIGHTS = {
    "steps": (replace_all("state", "x"), "manifest.json 'x'"),
    "fewer than none": (replace_all("state", -(2**63)), f"manifest.json {-(2**63)}"),
    "cut": (of_weights(cut_and_agree), "{weights} header"),
    "short": (of_weights(cut(1)), "{weights}"),
    "bit": (of_weights(flip_a_bit), "{weights} manifest.json"),
    "int32": (rewritten(of_dtype(torch.int32)), "{weights} int32 float32"),
    "float16": (rewritten(of_dtype(torch.float16)), "{weights} float16 float32"),
    "float64": (rewritten(of_dtype(torch.float64)), "{weights} float64 float32"),
    "tensor more": (rewritten(more), "{weights} extra"),
    "no weights": (of_weights(remove), "{weights}"),
    "folder": (of_weights(A_FOLDER), "{weights}"),
}
"""Those that are met after the dataset is compared."""
PROGRAMS = [
    (dlrm_main, dlrm_checkpoint, "--dataset_type=synthetic_gpu"),
    (bert4rec_main, bert4rec_checkpoint, "--dataset_name=random"),
]


def apply(damage, folder):
    """Damages a checkpoint; returns what an error tells about that."""
    change, facts = (DAMAGES | DAMAGES_OF_WEIGHTS)[damage]
    weights = max(folder.glob("*.safetensors")).name
    change(folder)
    return facts.format(weights=weights, folder=folder).split()


@pytest.mark.parametrize("damage", DAMAGES | DAMAGES_OF_WEIGHTS)
@pytest.mark.parametrize("make", [dlrm_checkpoint, bert4rec_checkpoint])
def test_the_deployer(tmp_path, capsys, make, damage):
    folder, _ = make(tmp_path / "checkpoint")
    facts = apply(damage, folder)
    repository = tmp_path / "models"
    arguments = (f"--checkpoint={folder}", f"--repository={repository}", "--verify=4")
    assert harness.call(script("deployer"), *arguments) == 2
    assert_tells(capsys.readouterr().err, *facts)
    assert not list(repository.glob("[!.]*"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("program", "make", "flag"), PROGRAMS, ids=["dlrm", "bert4rec"])
def test_the_training_programs(tmp_path, capsys, program, make, flag, damage):
    folder, _ = make(tmp_path / "checkpoint")
    facts = apply(damage, folder)
    log = tmp_path / "log.json"
    arguments = ("--mode=test", f"--load_checkpoint_path={folder}", f"--log_path={log}", flag)
    assert harness.call(program, *arguments) == 2
    assert_tells(capsys.readouterr().err, *facts)
    assert not log.exists()


@pytest.mark.parametrize(("program", "make", "flag"), PROGRAMS, ids=["dlrm", "bert4rec"])
def test_a_checkpoint_of_the_other_model(tmp_path, capsys, program, make, flag):
    (other,) = {dlrm_checkpoint, bert4rec_checkpoint} - {make}
    folder, _ = other(tmp_path / "checkpoint")
    assert harness.call(program, "--mode=test", f"--load_checkpoint_path={folder}", flag) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(folder) in error


def dlrm(folder, *flags):
    return (f"--checkpoint={dlrm_checkpoint(folder / 'checkpoint')[0]}", *flags)


def named_bert4rec(folder):
    write_dataset(folder, make_sequences())
    write_titles(folder, [f"title {item}" for item in range(NUM_ITEMS)])
    checkpoint, _ = bert4rec_checkpoint(folder / "checkpoint", NUM_ITEMS)
    return (f"--checkpoint={checkpoint}", f"--raw_ids={folder}", "--titles", "--top_k=3")


RAW = served_from_raw_rows(ServedDlrm, LineTransform)
VERSIONS = {
    "eager": (dlrm, ServedDlrm, "deployment.json weights.safetensors model.py"),
    "torchscript": (dlrm, ServedDlrm, "model.pt"),
    "onnx": (dlrm, ServedDlrm, "model.onnx model.onnx.data"),
    "native": (raw_checkpoint, NativeDlrm, "deployment.json weights.safetensors features.bin"),
    "raw": (raw_checkpoint, RAW, "features.bin"),
    "names": (named_bert4rec, ServedBert4Rec, "weights.safetensors raw_ids.json titles.json"),
}
FLAGS = {
    "torchscript": ["--format=torchscript"],
    "onnx": ["--format=onnx"],
    "native": ["--backend=native"],
}


@needs("compiled Triton backend")
@pytest.mark.parametrize("kind", VERSIONS)
def test_a_version_with_a_flipped_bit_is_refused_when_it_is_loaded(tmp_path, kind):
    make, served, files = VERSIONS[kind]
    models, cpu = tmp_path / "models", torch.device("cpu")
    flags = (*make(tmp_path), *FLAGS.get(kind, ()), "--verify=4")
    assert deployer(models, *flags) == 0
    (version,) = models.glob("*/1")
    for name in files.split():
        file = version / name
        whole = file.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 3):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :])
            with refusal(file, kind=DeploymentError):
                served.open(version, cpu)
        file.unlink()
        with refusal(name, kind=DeploymentError):
            served.open(version, cpu)
        file.write_bytes(whole)
    assert served.open(version, cpu)


def test_files_without_checksums_are_not_read_whole_and_the_next_version_keeps_that(tmp_path):
    flags, models = dlrm(tmp_path, "--verify=4"), tmp_path / "models"
    assert deployer(models, *flags, "--nochecksums") == 0
    assert deployer(models, *flags) == 0
    for version in (models / "dlrm" / "1", models / "dlrm" / "2"):
        flip_a_bit(version / "weights.safetensors")
        assert ServedDlrm.open(version, torch.device("cpu"))
        described = version / "deployment.json"
        described.write_text(described.read_text().replace('"step": 7', '"step": 6'))
        with refusal(version / "deployment.json", kind=DeploymentError):
            Deployment.load(version)
