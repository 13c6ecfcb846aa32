# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of NVIDIA's DLRM, read as ours."""

import struct

import pytest
import torch

from dlrm.model.nvidia_checkpoint import is_nvidia_checkpoint
from dlrm.model.weights import DlrmCheckpoint
from dlrm.nn.embedding import read_tables
from recsys.train.checkpoint import CheckpointError
from tests.dlrm.networks import build
from tests.dlrm.nvidia_folder import their_config, their_logits, write_nvidia_folder
from tests.harness import assert_tells, refusal

SIZES = (3, 2)
DIM = 2
TABLES = ([1.0, -2.0, 0.5, 4.0, 0.25, 8.0], [16.0, -0.125, 3.0, 7.0])
BOTTOM = ([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]], [0.5, 0.25])
HIDDEN_IN = 8  # 2 + 3 dot products = 5, padded to 8
TOP = ([[float(10 * i + j) / 64 for j in range(HIDDEN_IN)] for i in range(4)], [0.0, 1.0, 2.0, 3.0])
OUT = ([[1.0, -1.0, 0.5, 0.25]], [0.125])
MAPPING = {"bottom_mlp": 0, "embedding": [[0, 1]], "vectors_per_gpu": [3]}


def model(embedding_type="joint_fused", sizes=SIZES, **more):
    shape = {"embedding_dim": DIM, "bottom_mlp_sizes": (DIM,), "top_mlp_sizes": (4, 1)}
    return build(1, sizes, num_numerical_features=3, embedding_type=embedding_type, **shape, **more)


def load(folder, found):
    DlrmCheckpoint.open(folder).load_into(found)


@pytest.fixture
def folder(tmp_path):
    for i, (rows, values) in enumerate(zip(SIZES, TABLES, strict=True)):
        raw = b"".join(struct.pack("<f", v) for v in values)
        assert len(raw) == rows * DIM * 4
        (tmp_path / f"bottom_model.embeddings.{i}.bin").write_bytes(raw)
        torch.save({"shape": (rows, DIM)}, tmp_path / f"embeddings.{i}.meta.pt")

    def layer(weights_and_bias):
        weight, bias = weights_and_bias
        return {"weights": [torch.tensor(weight)], "biases": [torch.tensor(bias)]}

    torch.save(layer(BOTTOM), tmp_path / "bottom_model.mlp.pt")
    torch.save(layer(TOP), tmp_path / "top_model.mlp.pt")
    torch.save(
        {"weight": torch.tensor(OUT[0]), "bias": torch.tensor(OUT[1])},
        tmp_path / "top_model.out.pt",
    )
    data = {"device_mapping": MAPPING, "epoch": 0, "step": 5}
    torch.save({"data": data, "config": their_config()}, tmp_path / "metadata.pt")
    return tmp_path


@pytest.mark.parametrize("embedding_type", ["joint_fused", "multi_table"])
def test_every_number_lands_in_its_place(folder, embedding_type):
    assert is_nvidia_checkpoint(folder)
    found = model(embedding_type)
    load(folder, found)
    for table, rows, values in zip(
        read_tables(found.embeddings).values(), SIZES, TABLES, strict=True
    ):
        assert table.tolist() == torch.tensor(values).view(rows, DIM).tolist()
    (bottom,) = found.bottom_mlp.linears
    assert (bottom.weight.tolist(), bottom.bias.tolist()) == BOTTOM
    hidden, out = found.top_mlp.linears
    assert (hidden.weight.tolist(), hidden.bias.tolist()) == TOP
    assert (out.weight.tolist(), out.bias.tolist()) == OUT


def test_the_model_is_described_by_their_metadata(folder):
    described = DlrmCheckpoint.open(folder)
    config = described.config
    assert (described.step, described.table_sizes, config.num_numerical_features) == (5, SIZES, 3)
    assert (config.bottom_mlp_sizes, config.top_mlp_sizes) == ((DIM,), (4, 1))
    assert config.interaction_op == "dot"
    assert torch.equal(described.load().top_mlp.linears[0].weight, torch.tensor(TOP[0]))


def test_names_of_a_data_parallel_module_are_read(folder):
    out = {"module.weight": torch.tensor(OUT[0]), "module.bias": torch.tensor(OUT[1])}
    torch.save(out, folder / "top_model.out.pt")
    loaded = model()
    load(folder, loaded)
    assert loaded.top_mlp.linears[1].weight.tolist() == OUT[0]


ORDERS = [
    (False, [[2, 1, 3, 0]]),  # one device: by size
    (True, [[0, 1, 2, 3]]),
]


@pytest.mark.parametrize("interaction_op", ["dot", "cat"])
@pytest.mark.parametrize(("ordered", "mapping"), ORDERS)
def test_tables_reach_the_top_mlp_in_the_order_of_their_runs(
    tmp_path, interaction_op, ordered, mapping
):
    sizes = (3, 7, 9, 7)
    saved = model(sizes=sizes, interaction_op=interaction_op)
    folder = tmp_path / "c"
    write_nvidia_folder(folder, saved, mapping[0], interaction_op=interaction_op)
    metadata = torch.load(folder / "metadata.pt", weights_only=True)
    numerical = torch.randn(20, 3)
    ids = torch.stack([torch.randint(size, (20,)) for size in sizes], 1)
    ours = saved(numerical, ids).squeeze(-1)
    torch.testing.assert_close(
        their_logits(folder, mapping[0], interaction_op, numerical, ids), ours
    )
    assert torch.equal(DlrmCheckpoint.open(folder).load()(numerical, ids).squeeze(-1), ours)
    # The same files as written on two devices, where the order is by device or by number.
    devices = [[3, 1], [0, 2]] if ordered else [mapping[0][:2], mapping[0][2:]]
    metadata["data"]["device_mapping"]["embedding"] = devices
    metadata["config"]["bottom_features_ordered"] = ordered
    torch.save(metadata, folder / "metadata.pt")
    assert torch.equal(DlrmCheckpoint.open(folder).load()(numerical, ids).squeeze(-1), ours)


ORDER = "metadata.pt: device_mapping"


def metadata(mapping):
    return {"data": {"device_mapping": mapping}, "config": their_config()}


def one_layer(columns, value=0.0):
    return {"weights": [torch.full((4, columns), value)], "biases": [torch.zeros(4)]}


def out_of(dtype, value=0.0):
    return {"weight": torch.full((1, 4), value, dtype=dtype), "bias": torch.zeros(1)}


NAN = struct.pack("<f", float("nan"))


class Attack:
    """Runs code where a pickle is read as such."""

    def __reduce__(self):
        return (print, ("this ran",))


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("metadata.pt", metadata(None), ORDER),
        ("metadata.pt", metadata({"embedding": 3}), ORDER),
        ("metadata.pt", metadata({"embedding": [[0], [0]]}), ORDER),
        ("metadata.pt", metadata("x"), ORDER),
        ("bottom_model.embeddings.0.bin", lambda b: b[:-4], "20 24"),
        ("bottom_model.embeddings.1.bin", None, "16"),
        ("embeddings.1.meta.pt", None, "embeddings.1.meta.pt"),
        ("bottom_model.mlp.pt", lambda b: b[:50], ""),
        ("top_model.out.pt", lambda _: b"", ""),
        ("top_model.mlp.pt", None, ""),
        ("embeddings.0.meta.pt", {"shape": (4, 2)}, "24 32"),
        ("embeddings.0.meta.pt", {"shape": (2, 3)}, "[2, 3] [3, 2]"),
        ("embeddings.0.meta.pt", {"shape": 4}, "embeddings.0.meta.pt 4"),
        ("bottom_model.mlp.pt", {"weights": 3, "biases": []}, "weights: 3"),
        ("bottom_model.mlp.pt", {"weights": [], "biases": []}, "'bottom_mlp.layers.0.weight'"),
        ("bottom_model.mlp.pt", {"weights": Attack()}, "print"),
        ("top_model.mlp.pt", one_layer(480), "[4, 480] [4, 8]"),
        ("top_model.out.pt", out_of(torch.float16), "top_mlp.layers.1.weight float16 float32"),
        ("top_model.out.pt", out_of(torch.float32, torch.nan), "top_mlp.layers.1.weight NaN"),
        ("top_model.mlp.pt", one_layer(8, torch.inf), "top_mlp.layers.0.weight NaN"),
        ("top_model.mlp.pt", one_layer(3), "3 2"),
        ("bottom_model.embeddings.1.bin", lambda b: b[:-4] + NAN, "NaN"),
        ("top_model.out.pt", {"weight": 3}, "weight: int"),
        ("top_model.out.pt", [1, 2], "dict list"),
        ("top_model.out.pt", {"weight": 3, "scale": 2, "bias": 1}, "scale"),
        ("bottom_model.mlp.pt", {"weights": [], "norms": []}, "norms"),
    ],
)
def test_damage_is_named(folder, name, content, facts):
    path = folder / name
    if content is None:
        path.unlink()
    elif callable(content):
        path.write_bytes(content(path.read_bytes()))
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError) as error:
        load(folder, model())
    assert name.removesuffix(".meta.pt") in str(error.value)
    assert_tells(str(error.value), *facts.split())


@pytest.mark.parametrize(
    ("metadata", "facts"),
    [
        ({"data": 3, "config": {}}, ["data", "config", "dicts"]),
        ({"data": {}, "config": their_config(embedding_dim="x")}, ["embedding_dim", "'x'"]),
    ],
)
def test_wrong_types_in_the_metadata_are_named(folder, metadata, facts):
    torch.save(metadata, folder / "metadata.pt")
    with refusal("metadata.pt", *facts):
        DlrmCheckpoint.open(folder)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"interaction_op": "dcnv2", "dcn_low_rank_dim": 2}, "interaction.down.0.weight"),
        ({"batch_norm": True}, "top_mlp.norms.0.weight"),
    ],
)
def test_what_has_no_place_in_the_layout_is_not_left_out(folder, more, name):
    with refusal(name, kind=CheckpointError):
        load(folder, model(**more))


def test_a_table_more_than_the_models_is_refused(folder):
    (folder / "bottom_model.embeddings.2.bin").write_bytes(bytes(24))
    torch.save({"shape": (3, DIM)}, folder / "embeddings.2.meta.pt")
    with refusal(*ORDER.split(), kind=CheckpointError):
        load(folder, model())
    write_nvidia_folder(folder / "three", model(sizes=(3, 2, 3)))
    with refusal(3, 2, kind=CheckpointError):
        load(folder / "three", model())
