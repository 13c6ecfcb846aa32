# SPDX-License-Identifier: Apache-2.0
"""A deployed DLRM answers as its checkpoint, in every format and kind of model."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dlrm.nn.frozen_embedding import quantize_rows
from dlrm.serve.export import DlrmExport
from dlrm.serve.served import ServedDlrm
from recsys.errors import UserError
from recsys.serve.client.requests import BadRequestError
from recsys.serve.config_pbtxt import ConfigError, ServingSettings
from recsys.serve.deploy import ParityError
from recsys.serve.manifest import Deployment, DeploymentError
from tests.checkpoints import rewrite
from tests.dlrm.deployed import deploy_checkpoint, draw
from tests.dlrm.nvidia_folder import write_nvidia_folder
from tests.harness import refusal
from tests.recsys.serve.checkpoints import (
    NUM_NUMERICAL,
    TABLE_SIZES,
    dlrm_checkpoint,
    logits_of,
    without_checksums,
)

CPU = torch.device("cpu")


def deployed(checkpoint, folder, **settings):
    """Deploys a checkpoint and returns (what was found, the version, opened)."""
    found = deploy_checkpoint(checkpoint, folder, **settings)
    return found, ServedDlrm.open(found.folder, CPU)


def assert_answers(answers, model, requests):
    for answer, request in zip(answers, requests, strict=True):
        expected = logits_of(model, request)
        np.testing.assert_allclose(answer["logit"], expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A checkpoint of the default settings, and its model."""
    return dlrm_checkpoint(tmp_path_factory.mktemp("small") / "checkpoint")


@pytest.fixture(scope="module")
def checkpoint(small):
    return small[0]


@pytest.mark.parametrize(
    ("artifact_format", "settings"),
    [
        ("eager", {}),
        ("eager", {"embedding_type": "multi_table"}),
        ("eager", {"embedding_type": "joint_sparse", "interaction_op": "dot"}),
        ("eager", {"interaction_op": "cat"}),
        ("eager", {"interaction_op": "dcnv2", "dcn_low_rank_dim": 4}),
        ("eager", {"embedding_storage": "bfloat16"}),
        ("eager", {"embedding_dim": 64, "bottom_mlp_sizes": [16, 64]}),
        ("eager", {"batch_norm": True, "bottom_mlp_sizes": [16, 16, 16]}),
        ("eager", {"hash_indices": True, "max_table_size": 100}),
        ("eager", {"num_numerical_features": 0}),
        ("torchscript", {"num_numerical_features": 0}),
        ("onnx", {"num_numerical_features": 0}),
        ("torchscript", {"interaction_op": "dcnv2", "dcn_low_rank_dim": 4}),
        ("torchscript", {"batch_norm": True}),
        ("onnx", {"batch_norm": True}),
        ("eager", {"seeds": 3, "batch_norm": True}),
        ("onnx", {"seeds": 2, "interaction_op": "cat"}),
        ("onnx", {"numerical_embedding": "bins", "interaction_op": "cat"}),
        ("onnx", {"numerical_embedding": "piecewise_linear", "seeds": 2}),
        ("torchscript", {"numerical_embedding": "piecewise_linear", "batch_norm": True}),
        ("eager", {"numerical_embedding": "bins", "numerical_bins": 255}),
        ("eager", {"id_statistics": 4096, "num_numerical_features": 0}),
        ("torchscript", {"id_statistics": 4096, "seeds": 2}),
        ("onnx", {"id_statistics": 4096, "hash_indices": True, "max_table_size": 100}),
        ("onnx", {"id_statistics": 4096, "numerical_embedding": "bins", "interaction_op": "cat"}),
        ("torchscript", {"seeds": 2}),
        ("onnx", {"interaction_op": "cat", "hash_indices": True, "max_table_size": 100}),
    ],
)
def test_every_format_answers_as_the_checkpoint(tmp_path, artifact_format, settings):
    checkpoint, model = dlrm_checkpoint(tmp_path / "checkpoint", **settings)
    serving = ServingSettings(format=artifact_format)
    _, served = deployed(checkpoint, tmp_path / "models", serving=serving)
    for sizes in ((1,), (5,), (1, 2, 33, 300)):
        numbers = settings.get("num_numerical_features", NUM_NUMERICAL)
        requests = [draw(rows, rows, num_numerical=numbers) for rows in sizes]
        for request in requests:
            if "hash_indices" in settings:
                request["categorical"] += 10**9  # none is outside its table
            served.check(request)
        answers = served.predict(requests)
        assert_answers(answers, model, requests)
        for answer in answers:
            probability = torch.from_numpy(answer["logit"]).sigmoid()
            np.testing.assert_allclose(answer["probability"], probability, rtol=1e-6, atol=1e-7)
    assert answers[-1]["logit"].std() > 0.1


def test_the_containers_backends_get_their_files_and_no_code(checkpoint, tmp_path):
    serving = ServingSettings(backend="pytorch", format="torchscript")
    found, _ = deployed(checkpoint, tmp_path / "models", serving=serving)
    assert {path.name for path in found.folder.iterdir()} == {
        "deployment.json",
        "model.pt",
        "probe.json",
    }
    assert "INPUT__0" in (found.folder.parent / "config.pbtxt").read_text()


def test_a_model_for_a_gpu_has_a_configuration_for_a_cpu_too(checkpoint, tmp_path):
    found, _ = deployed(checkpoint, tmp_path / "models", serving=ServingSettings(device="gpu"))
    assert "KIND_GPU" in (found.folder.parent / "config.pbtxt").read_text()
    assert "KIND_CPU" in (found.folder.parent / "configs" / "cpu.pbtxt").read_text()


def test_a_file_bound_to_a_gpu_is_not_made_without_one(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    serving = ServingSettings(backend="pytorch", format="torchscript", device="gpu")
    with refusal("gpu", kind=ConfigError):
        deployed(checkpoint, tmp_path / "models", serving=serving)


def test_8_bit_tables_can_be_exported(checkpoint, tmp_path):
    answers = []
    for artifact_format in ("eager", "torchscript"):
        serving = ServingSettings(format=artifact_format)
        folder = tmp_path / artifact_format
        _, served = deployed(checkpoint, folder, serving=serving, quantize="int8")
        answers += served.predict([draw(50)])
    np.testing.assert_allclose(answers[1]["logit"], answers[0]["logit"], rtol=0, atol=1e-5)
    size = (tmp_path / "torchscript" / "dlrm" / "1" / "model.pt").stat().st_size
    assert size < 0.6 * sum(TABLE_SIZES) * 16 * 4


@pytest.mark.parametrize("artifact_format", ["eager", "torchscript"])
@pytest.mark.parametrize("policy", ["error", "zero"])
def test_an_id_outside_its_table_follows_the_policy(small, tmp_path, artifact_format, policy):
    checkpoint, model = small
    serving = ServingSettings(format=artifact_format)
    _, served = deployed(checkpoint, tmp_path / "models", serving=serving, out_of_range=policy)
    for bad_id in (-1, TABLE_SIZES[1], 2**40):
        request = draw(6)
        request["categorical"][3, 1] = bad_id
        unknown = {**request, "categorical": request["categorical"].copy()}
        unknown["categorical"][3, 1] = 0
        expected = logits_of(model, unknown)
        if policy == "error":
            facts = ("'categorical'", "row 3", "feature 1", bad_id, f"[0, {TABLE_SIZES[1]})")
            with refusal(*facts, kind=BadRequestError):
                served.check(request)
            expected[3] = np.nan  # the network itself, where nothing checks before it
        else:
            served.check(request)
        (answer,) = served.predict([request])
        np.testing.assert_allclose(answer["logit"], expected, rtol=0, atol=1e-5)


def test_rows_are_rounded_to_within_half_a_step():
    torch.manual_seed(0)
    table = torch.randn(100, 16) * torch.logspace(-20, 4, 100).unsqueeze(1)
    table[7] = 0
    values, scale = quantize_rows(table)
    assert values.dtype == torch.int8
    assert scale.shape == (100,)
    error = (values.to(torch.float32) * scale.unsqueeze(1) - table).abs()
    assert (error <= 0.5 * scale.unsqueeze(1) * (1 + 1e-5)).all()
    assert (values.abs().amax(1)[table.abs().amax(1) > 0] == 127).all()
    assert not values[7].any()


def test_8_bit_tables_are_a_quarter_as_large_and_close(tmp_path):
    sizes = (20_000, 3)
    checkpoint, model = dlrm_checkpoint(tmp_path / "checkpoint", table_sizes=sizes)
    whole, _ = deployed(checkpoint, tmp_path / "models", name="whole")
    eighth, served = deployed(checkpoint, tmp_path / "models", name="int8", quantize="int8")
    bytes_of = [(f.folder / "weights.safetensors").stat().st_size for f in (whole, eighth)]
    assert bytes_of[1] < 0.33 * bytes_of[0]
    assert 0 < eighth.parity.largest < 0.1
    request = draw(64, table_sizes=sizes) | {"numerical": np.zeros((64, NUM_NUMERICAL), np.float32)}
    (answer,) = served.predict([request])
    difference = np.abs(answer["logit"] - logits_of(model, request))
    assert 0 < difference.max() < 0.1


def test_a_version_maps_its_tables_and_does_not_copy_them(checkpoint, tmp_path):
    found, served = deployed(checkpoint, tmp_path / "models")
    assert (found.folder / "weights.safetensors").stat().st_mode & 0o444 == 0o444
    mapped = Path("/proc/self/maps").read_text()
    assert str((found.folder / "weights.safetensors").resolve()) in mapped
    assert served.predict([draw(2)])


def test_a_checkpoint_in_nvidias_layout_is_deployed(tmp_path):
    checkpoint, model = dlrm_checkpoint(tmp_path / "checkpoint", interaction_op="dot")
    stored = DlrmExport(checkpoint).model_values()["config"]
    write_nvidia_folder(tmp_path / "nvidia", model, **stored)
    found, served = deployed(tmp_path / "nvidia", tmp_path / "models")
    assert Deployment.load(found.folder).step == 7
    assert_answers(served.predict([draw(9)]), model, [draw(9)])


def test_a_version_that_is_not_the_checkpoint_is_refused(checkpoint, tmp_path):
    with pytest.raises(ParityError, match="largest difference"):
        deployed(checkpoint, tmp_path / "models", quantize="int8", tolerance=1e-7)
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".deploy.lock"]


def test_answers_that_are_no_numbers_are_refused(tmp_path):
    checkpoint, _ = dlrm_checkpoint(tmp_path / "checkpoint")
    for file in checkpoint.glob("*.safetensors"):
        rewrite(file, lambda tensors: {name: t * 1e30 for name, t in tensors.items()})
    with pytest.raises(ParityError):
        deployed(checkpoint, tmp_path / "models")
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".deploy.lock"]


@pytest.mark.parametrize(
    ("name", "old", "new", "facts"),
    [
        ("deployment.json", b"{", b"", ["deployment.json"]),
        ("weights.safetensors", b"{", b"", ["weights.safetensors"]),
    ],
    ids=["manifest", "weights"],
)
def test_a_version_that_cannot_be_opened_says_so(checkpoint, tmp_path, name, old, new, facts):
    file = without_checksums(deployed(checkpoint, tmp_path / "models")[0].folder) / name
    assert ServedDlrm.open(file.parent, CPU)
    file.write_bytes(file.read_bytes().replace(old, new))
    with refusal(*facts, kind=DeploymentError):
        ServedDlrm.open(file.parent, CPU)


@pytest.mark.parametrize("artifact_format", ["eager", "torchscript", "onnx"])
@pytest.mark.parametrize("settings", [{}, {"interaction_op": "cat", "seeds": 2}])
def test_a_model_of_numbers_alone_answers_as_the_checkpoint(tmp_path, artifact_format, settings):
    settings = {"numerical_embedding": "piecewise_linear"} | settings
    checkpoint, model = dlrm_checkpoint(tmp_path / "checkpoint", table_sizes=(), **settings)
    serving = ServingSettings(format=artifact_format)
    _, served = deployed(checkpoint, tmp_path / "models", serving=serving)
    assert [tensor.name for tensor in served.deployment.signature.inputs] == ["numerical"]
    requests = [{"numerical": draw(rows, rows)["numerical"]} for rows in (1, 2, 33)]
    for request in requests:
        served.check(request)
    expected = [
        model(
            torch.from_numpy(r["numerical"]), torch.empty(len(r["numerical"]), 0, dtype=torch.int64)
        )
        for r in requests
    ]
    for answer, logits in zip(served.predict(requests), expected, strict=True):
        np.testing.assert_allclose(answer["logit"][:, 0], logits.detach(), rtol=0, atol=1e-5)


def test_a_model_without_features_is_refused(tmp_path):
    settings = {"table_sizes": (), "num_numerical_features": 0}
    checkpoint, _ = dlrm_checkpoint(tmp_path / "checkpoint", **settings)
    with pytest.raises(UserError, match="without features"):
        deployed(checkpoint, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_warming_up_is_a_valid_request(checkpoint, tmp_path):
    _, served = deployed(checkpoint, tmp_path / "models")
    request = served.warmup_request(7)
    served.check(request)
    assert served.predict([request])[0]["logit"].shape == (7, 1)


def test_a_format_whose_packages_are_missing_says_what_to_install(
    checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with refusal("recsys-recipes[onnx]", kind=DeploymentError):
        deployed(checkpoint, tmp_path / "models", serving=ServingSettings(format="onnx"))
