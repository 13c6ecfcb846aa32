# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's checkpoint layout, written here from its description, not by our writer."""

import struct

import pytest
import torch

from dlrm.config import ModelConfig
from dlrm.model import nvidia_checkpoint
from dlrm.model.network import Dlrm
from dlrm.nn.embedding import read_tables
from recsys.train.checkpoint import CheckpointError

SIZES = (3, 2)
DIM = 2
TABLES = ([1.0, -2.0, 0.5, 4.0, 0.25, 8.0], [16.0, -0.125, 3.0, 7.0])
BOTTOM = ([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]], [0.5, 0.25])
HIDDEN_IN = 8  # 2 + 3 dot products = 5, padded to 8
TOP = ([[float(10 * i + j) / 64 for j in range(HIDDEN_IN)] for i in range(4)], [0.0, 1.0, 2.0, 3.0])
OUT = ([[1.0, -1.0, 0.5, 0.25]], [0.125])


def model(embedding_type="joint_fused"):
    return Dlrm(
        ModelConfig(
            embedding_type=embedding_type,
            num_numerical_features=3,
            embedding_dim=DIM,
            bottom_mlp_sizes=(DIM,),
            top_mlp_sizes=(4, 1),
            optimized_mlp=False,
        ),
        SIZES,
    )


@pytest.fixture
def folder(tmp_path):
    for i, (rows, values) in enumerate(zip(SIZES, TABLES, strict=True)):
        raw = b"".join(struct.pack("<f", v) for v in values)
        assert len(raw) == rows * DIM * 4
        (tmp_path / f"bottom_model.embeddings.{i}.bin").write_bytes(raw)
        torch.save({"shape": (rows, DIM)}, tmp_path / f"bottom_model.embeddings.{i}.meta.pt")

    def layer(weights_and_bias):
        weight, bias = weights_and_bias
        return {"weights": [torch.tensor(weight)], "biases": [torch.tensor(bias)]}

    torch.save(layer(BOTTOM), tmp_path / "bottom_model.mlp.pt")
    torch.save(layer(TOP), tmp_path / "top_model.mlp.pt")
    torch.save(
        {"weight": torch.tensor(OUT[0]), "bias": torch.tensor(OUT[1])},
        tmp_path / "top_model.out.pt",
    )
    metadata = {"data": {"epoch": 0, "step": 5}, "config": {"embedding_dim": DIM}}
    torch.save(metadata, tmp_path / "metadata.pt")
    return tmp_path


@pytest.mark.parametrize("embedding_type", ["joint_fused", "multi_table"])
def test_every_number_lands_in_its_place(folder, embedding_type):
    assert nvidia_checkpoint.is_nvidia_checkpoint(folder)
    found = model(embedding_type)
    nvidia_checkpoint.load(folder, found)
    for table, rows, values in zip(
        read_tables(found.embeddings).values(), SIZES, TABLES, strict=True
    ):
        assert table.tolist() == torch.tensor(values).view(rows, DIM).tolist()
    (bottom,) = found.bottom_mlp.linears
    assert (bottom.weight.tolist(), bottom.bias.tolist()) == BOTTOM
    hidden, out = found.top_mlp.linears
    assert (hidden.weight.tolist(), hidden.bias.tolist()) == TOP
    assert (out.weight.tolist(), out.bias.tolist()) == OUT


def test_our_writer_gives_the_same_bytes_and_tensors(folder, tmp_path):
    loaded = model()
    nvidia_checkpoint.load(folder, loaded)
    ours = tmp_path / "ours"
    nvidia_checkpoint.save(ours, loaded, 0, 5, {"embedding_dim": DIM})
    for i in range(2):
        name = f"bottom_model.embeddings.{i}.bin"
        assert (ours / name).read_bytes() == (folder / name).read_bytes()
    for name in ("bottom_model.mlp.pt", "top_model.mlp.pt", "top_model.out.pt"):
        a, b = (torch.load(f / name, weights_only=True) for f in (ours, folder))
        assert str(a) == str(b)
    assert torch.load(ours / "metadata.pt", weights_only=True)["data"]["step"] == 5


def test_saving_again_replaces_the_checkpoint(tmp_path):
    for step in (1, 2):
        nvidia_checkpoint.save(tmp_path / "c", model(), 0, step, {})
    assert torch.load(tmp_path / "c" / "metadata.pt", weights_only=True)["data"]["step"] == 2


DAMAGE = [
    ("bottom_model.embeddings.0.bin", lambda b: b[:-4], "has 20 bytes, expected 24"),
    ("bottom_model.embeddings.1.bin", None, "is missing, expected 16"),
    ("bottom_model.embeddings.1.meta.pt", None, "is missing from the checkpoint"),
    ("bottom_model.mlp.pt", lambda b: b[:50], "not readable as tensors"),
    ("top_model.out.pt", lambda _: b"", "not readable as tensors"),
    ("top_model.mlp.pt", None, "is missing from the checkpoint"),
]


@pytest.mark.parametrize(("name", "change", "message"), DAMAGE)
def test_damage_is_named(folder, name, change, message):
    path = folder / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message) as error:
        nvidia_checkpoint.load(folder, model())
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bottom_model.embeddings.0.meta.pt", {"shape": (4, 2)}, r"table of shape \[4, 2\]"),
        ("bottom_model.mlp.pt", {"weights": [], "biases": []}, "0 weights and 0 biases"),
        (
            "top_model.mlp.pt",
            {"weights": [torch.zeros(4, 480)], "biases": [torch.zeros(4)]},
            r"the checkpoint has \[4, 480\], the model \[4, 8\]",
        ),
        ("top_model.out.pt", {"weight": 3}, "the checkpoint has int"),
        ("top_model.out.pt", [1, 2], "expected a dict, got list"),
    ],
)
def test_other_shapes_are_named(folder, name, content, message):
    torch.save(content, folder / name)
    with pytest.raises(CheckpointError, match=message):
        nvidia_checkpoint.load(folder, model())


def test_a_pickle_that_runs_code_is_refused(folder):
    class Attack:
        def __reduce__(self):
            return (print, ("this ran",))

    torch.save({"weights": Attack()}, folder / "bottom_model.mlp.pt")
    with pytest.raises(CheckpointError, match=r"bottom_model\.mlp\.pt"):
        nvidia_checkpoint.load(folder, model())


def test_cross_layers_have_no_place_in_the_layout(tmp_path):
    config = ModelConfig(
        embedding_dim=4,
        bottom_mlp_sizes=(4,),
        top_mlp_sizes=(1,),
        interaction_op="dcnv2",
        dcn_low_rank_dim=2,
        optimized_mlp=False,
    )
    with pytest.raises(CheckpointError, match="dcnv2"):
        nvidia_checkpoint.save(tmp_path / "c", Dlrm(config, (3,)), 0, 0, {})
    assert not (tmp_path / "c").exists()
