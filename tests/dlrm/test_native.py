# SPDX-License-Identifier: Apache-2.0
"""The native backend's library without a server: answers, refusals and damaged versions."""

import errno
import json
import os

import numpy as np
import pytest
import torch

from dlrm.serve.native import NativeDlrm, load_library
from dlrm.serve.served import ServedDlrm
from recsys.serve.client.requests import BadRequestError, check_arrays
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.manifest import DeploymentError
from recsys.serve.server import native_backend
from tests import harness
from tests.dlrm.deployed import deploy_checkpoint, draw, with_value
from tests.harness import refusal
from tests.recsys.serve.checkpoints import (
    NUM_NUMERICAL,
    TABLE_SIZES,
    dlrm_checkpoint,
    sign,
    without_checksums,
)
from tests.tools import needs

pytestmark = needs("compiled Triton backend")

CPU = torch.device("cpu")
NATIVE = ServingSettings(backend="native")
KERNELS = ("portable", "avx2", "avx512")


def deployed(folder, *, settings=None, **model):
    """Deploys a small model; returns the version."""
    checkpoint, _ = dlrm_checkpoint(folder / "checkpoint", **model)
    return deploy_checkpoint(
        checkpoint, folder / "models", serving=NATIVE, **(settings or {})
    ).folder


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    return deployed(tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"interaction_op": "dot"},
        {"hash_indices": True, "max_table_size": 50},
        {"embedding_storage": "bfloat16"},
        {"embedding_dim": 20, "bottom_mlp_sizes": [7, 20], "top_mlp_sizes": [70, 33, 1]},
        {"top_mlp_sizes": [1]},
        {"num_numerical_features": 0},
        {"settings": {"quantize": "int8"}},
        {"interaction_op": "cat"},
        {"interaction_op": "cat", "settings": {"quantize": "int8"}},
        {"interaction_op": "cat", "embedding_storage": "bfloat16", "seeds": 2},
        {"interaction_op": "cat", "embedding_dim": 300, "bottom_mlp_sizes": [300]},
        {"batch_norm": True, "bottom_mlp_sizes": [16, 16, 16]},
        {"numerical_embedding": "piecewise_linear"},
        {"numerical_embedding": "bins", "numerical_bins": 5, "interaction_op": "cat"},
        {"numerical_embedding": "piecewise_linear", "seeds": 2, "settings": {"quantize": "int8"}},
        {"id_statistics": 4096},
        {"id_statistics": 4096, "num_numerical_features": 0, "hash_indices": True},
        {"id_statistics": 4096, "numerical_embedding": "bins", "interaction_op": "cat", "seeds": 2},
        {"id_statistics": 4096, "hash_indices": True, "settings": {"quantize": "int8"}},
        {"id_statistics": 4096, "batch_norm": True, "table_sizes": (5, 3000, 2000, 3)},
        {"seeds": 3},
        {"seeds": 3, "settings": {"quantize": "int8"}},
        {"seeds": 2, "batch_norm": True, "hash_indices": True, "max_table_size": 50},
    ],
)
def test_every_number_of_rows_has_the_answers_of_the_python_backend(tmp_path, model):
    folder = deployed(tmp_path, **model)
    native, eager = NativeDlrm(folder), ServedDlrm.open(folder, CPU)
    sizes = model.get("table_sizes", TABLE_SIZES)
    numbers = model.get("num_numerical_features", NUM_NUMERICAL)
    for rows in (1, 2, 8, 9, 17, 63, 64, 65, 200):
        request = draw(rows, rows, sizes, numbers)
        (expected,) = eager.predict([request])
        (found,) = native.predict([request])
        for name in ("logit", "probability"):
            assert found[name].shape == (rows, 1)
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        {"numerical_embedding": "piecewise_linear"},
        {"numerical_embedding": "bins", "interaction_op": "cat", "seeds": 2},
        {"interaction_op": "cat"},
    ],
)
def test_a_model_of_numbers_alone_answers_as_the_python_backend(tmp_path, model):
    folder = deployed(tmp_path, table_sizes=(), **model)
    native, eager = NativeDlrm(folder), ServedDlrm.open(folder, CPU)
    for rows in (1, 9, 65):
        request = {"numerical": draw(rows, rows)["numerical"]}
        (expected,), (found,) = eager.predict([request]), native.predict([request])
        np.testing.assert_allclose(found["logit"], expected["logit"], rtol=1e-5, atol=1e-5)
    with pytest.raises(BadRequestError, match="categorical"):
        native.predict([draw(3)])


RESPOND = """
import pathlib, sys
import numpy as np
from dlrm.serve.native import NativeDlrm, load_library
folder, kernels, request_file, answer_file = sys.argv[1:]
assert load_library().recsys_instruction_set() == kernels.encode()
versions = [NativeDlrm(pathlib.Path(folder), threads) for threads in (1, 3)]
(one,), (other,) = (version.predict([dict(np.load(request_file))]) for version in versions)
np.testing.assert_allclose(one["logit"], other["logit"], rtol=1e-5, atol=1e-5)
np.save(answer_file, one["logit"])
"""
"""Answers a request on one thread and on three."""


@pytest.mark.parametrize("kernels", KERNELS)
def test_each_instruction_set_and_threads_give_the_same_answers(version, kernels, tmp_path):
    request, answer, script = (tmp_path / name for name in ("in.npz", "logit.npy", "respond.py"))
    np.savez(request, **draw(150))
    script.write_text(RESPOND)
    arguments = (script, version, kernels, request, answer)
    done = harness.forked(*arguments, status=None, RECSYS_CPU_KERNELS=kernels)
    if "RECSYS_CPU_KERNELS" in done.stderr:
        assert kernels != "portable"
        return
    assert done.returncode == 0, done.stderr
    (expected,) = ServedDlrm.open(version, CPU).predict([draw(150)])
    np.testing.assert_allclose(np.load(answer), expected["logit"], rtol=1e-5, atol=1e-5)


def test_the_library_needs_no_torch():
    load = f"import ctypes; ctypes.CDLL({str(native_backend.LIBRARY)!r}).recsys_open"
    maps = harness.python("-I", "-c", f"{load}; print(open('/proc/self/maps').read())").stdout
    assert native_backend.LIBRARY.name in maps
    assert "libtorch" not in maps


FOUR = draw(4)
BAD = {
    "missing": {"numerical": FOUR["numerical"]},
    "unknown": FOUR | {"zebra": FOUR["numerical"], "other": FOUR["numerical"]},
    "float64": FOUR | {"numerical": FOUR["numerical"].astype(np.float64)},
    "int32": FOUR | {"categorical": FOUR["categorical"].astype(np.int32)},
    "strings": FOUR | {"categorical": FOUR["categorical"].astype(str).astype(object)},
    "too few features": FOUR | {"numerical": FOUR["numerical"][:, :2]},
    "no batch dimension": FOUR | {"numerical": FOUR["numerical"][0]},
    "three dimensions": FOUR | {"numerical": FOUR["numerical"][:, :, None]},
    "rows differ": FOUR | {"numerical": FOUR["numerical"][:3]},
    "no row": draw(0),
    "nan": with_value(draw(4), "numerical", 2, 1, np.nan),
    "inf": with_value(draw(4), "numerical", 0, 0, np.inf),
    "-inf": with_value(draw(4), "numerical", 3, 2, -np.inf),
    "past its table": with_value(draw(4), "categorical", 3, 1, TABLE_SIZES[1]),
    "negative": with_value(draw(4), "categorical", 1, 0, -1),
    "smallest": with_value(draw(4), "categorical", 1, 2, -(2**63)),
    "largest": with_value(draw(4), "categorical", 1, 2, 2**63 - 1),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_in_the_words_of_the_python_backend(version, case):
    eager = ServedDlrm.open(version, CPU)
    with pytest.raises(BadRequestError) as expected:
        eager.prepare(BAD[case])
    native = NativeDlrm(version)
    with pytest.raises(BadRequestError) as refused:
        native.respond(BAD[case])
    assert str(refused.value) == str(expected.value)
    check_arrays(native.deployment.signature, FOUR)
    assert native.respond(FOUR)["logit"].shape == (4, 1)


def test_an_answer_that_is_not_finite_is_refused(version):
    request = draw(4)
    request["numerical"][2] = (3e38, -3e38, 3e38)
    with refusal("row 2", kind=BadRequestError):
        NativeDlrm(version).respond(request)


def test_ids_outside_their_table_count_as_the_unknown_one(tmp_path):
    folder = deployed(tmp_path, settings={"out_of_range": "zero"})
    request = draw(80)
    request["categorical"][::3, 1] = TABLE_SIZES[1]
    request["categorical"][1::3, 2] = -5
    known = {**request, "categorical": request["categorical"].copy()}
    known["categorical"][::3, 1] = known["categorical"][1::3, 2] = 0
    native = NativeDlrm(folder)
    found, expected = native.respond(request), native.respond(known)
    assert found["logit"].tobytes() == expected["logit"].tobytes()


def cut(data):
    return data[: len(data) // 2]


def swap(old, new):
    return lambda data: data.replace(old, new)


@pytest.mark.parametrize(
    ("file", "damage", "facts"),
    [
        ("deployment.json", cut, ["JSON"]),
        ("deployment.json", swap(b'"kind": "dlrm"', b'"kind": "bert4rec"'), ["DLRM"]),
        ("deployment.json", swap(b"cuda_dot", b"dcnv2"), ["dot"]),
        ("deployment.json", swap(b'"embedding_dim": 16', b'"embedding_dim": 9999'), [1, 256]),
        ("weights.safetensors", cut, []),
        ("weights.safetensors", lambda data: data[:4], []),
        ("weights.safetensors", lambda _: b"", []),
        ("weights.safetensors", lambda data: b"\xff" * 8 + data[8:], []),
        ("weights.safetensors", swap(b'"shape":[16,3]', b'"shape":[3,16]'), ["[16, 3]"]),
        ("weights.safetensors", swap(b"1.bias", b"1.bits"), ["bottom_mlp.layers.1.bias"]),
        ("weights.safetensors", None, [os.strerror(errno.ENOENT)]),
    ],
)
def test_a_damaged_version_is_refused_by_its_file(version, tmp_path, file, damage, facts):
    for name in ("deployment.json", "weights.safetensors"):
        (tmp_path / name).write_bytes((version / name).read_bytes())
    _open_by_the_library(without_checksums(tmp_path))
    if damage is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    if file == "deployment.json" and damage is not cut:
        sign(tmp_path)
    with refusal(tmp_path / file, *facts, kind=DeploymentError):
        _open_by_the_library(tmp_path)


def _open_by_the_library(folder):
    """Opens a version as the server does: Python has not read its files before."""
    library = load_library()
    if library.recsys_open(str(folder).encode(), 1) is None:
        raise DeploymentError(library.recsys_last_error().decode())


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ({"interaction_op": "dcnv2"}, ["`interaction_op` dcnv2", "`backend` python"]),
        ({"embedding_dim": 300, "bottom_mlp_sizes": [300]}, ["`embedding_dim` 300"]),
    ],
)
def test_models_that_it_does_not_run_are_refused(tmp_path, model, facts):
    with refusal(*facts):
        deployed(tmp_path, **model)
    assert not (tmp_path / "models" / "dlrm").exists()


def test_without_the_library_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(native_backend, "LIBRARY", tmp_path / "absent.so")
    with refusal("`backend` native"):
        deployed(tmp_path)


def test_a_version_needs_no_code(version):
    assert sorted(file.name for file in version.iterdir()) == [
        *("deployment.json", "probe.json", "weights.safetensors")
    ]
    assert json.loads((version / "deployment.json").read_text())["format"] == "eager"
