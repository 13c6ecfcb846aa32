# SPDX-License-Identifier: Apache-2.0
"""No reader runs what a file contains: none unpickles it, whatever its name says."""

import ast
import contextlib
import io
import os
import pickle
import shutil

import numpy as np
import pytest
import torch

from tests.fuzz import datasets, models
from tests.fuzz.folders import replace
from tests.harness import REPOSITORY

FOLDERS = {
    "clicks": datasets.CLICKS,
    "prepared": datasets.PREPARED,
    "sequences": datasets.SEQUENCES,
    "dlrm": models.DLRM,
    "bert4rec": models.BERT4REC,
    "version": models.VERSION,
    "delta": models.DELTA,
}
PACKAGES = ("recsys", "preproc", "dlrm", "bert4rec", "recsys_recipes", "dataspec", "cuda_ext")
UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def as_pickle(payload):
    return pickle.dumps(payload)


def as_torch(payload):
    written = io.BytesIO()
    torch.save({"weight": payload}, written)
    return written.getvalue()


def as_numpy(payload):
    written = io.BytesIO()
    array = np.empty(1, object)
    array[0] = payload
    np.save(written, array, allow_pickle=True)
    return written.getvalue()


@pytest.mark.parametrize("form", [as_pickle, as_torch, as_numpy])
def test_the_payload_does_what_it_is_to_do(tmp_path, form):
    data = io.BytesIO(form(Payload(tmp_path / "made")))
    with contextlib.suppress(Exception):  # the folder is no tensor
        {
            as_pickle: pickle.load,
            as_torch: lambda file: torch.load(file, weights_only=False),
            as_numpy: lambda file: np.load(file, allow_pickle=True),
        }[form](data)
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize("form", [as_pickle, as_torch, as_numpy])
@pytest.mark.parametrize("name", FOLDERS)
def test_no_file_of_a_folder_is_unpickled(tmp_path, name, form):
    folder, marker = FOLDERS[name], tmp_path / "marker"
    content = form(Payload(marker))
    sound = tmp_path / "sound"
    sound.mkdir()
    folder.make(sound)
    names = [path.relative_to(sound) for path in sorted(sound.rglob("*")) if path.is_file()]
    assert len(names) > 1
    for file in names:
        copy = shutil.copytree(sound, tmp_path / "copy")
        replace(copy / file, content)
        folder.repair(copy)
        with contextlib.suppress(*folder.expected):
            folder.read(copy)
        assert not marker.exists(), file
        shutil.rmtree(copy)


def test_only_the_reader_of_nvidias_checkpoints_imports_pickle():
    """It needs the type of an error; tests/dlrm/test_nvidia_checkpoint.py gives it payloads."""
    imports, loads = [], []
    for package in PACKAGES:
        for file in sorted((REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    found = {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found = {(node.module or "").partition(".")[0]}
                else:
                    found = set()
                imports += [str(file.relative_to(REPOSITORY))] * bool(found & UNPICKLING)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                    loads.append({k.arg: ast.unparse(k.value) for k in node.keywords})
    assert imports == ["dlrm/model/nvidia_checkpoint.py"]
    assert [load["weights_only"] for load in loads] == ["True"]
