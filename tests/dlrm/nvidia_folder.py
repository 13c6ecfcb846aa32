# SPDX-License-Identifier: Apache-2.0
"""Folders as NVIDIA's code saves them, and as it runs them.

Followed: dlrm/utils/checkpointing/{model,distributed}.py, dlrm/model/distributed.py and the config
of dlrm/scripts/main.py in PyTorch/Recommendation/DLRM of NVIDIA's DeepLearningExamples at 729963dd.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from dlrm.model.network import Dlrm
from dlrm.nn.embedding import read_tables
from dlrm.nn.interaction import CatInteraction


def their_config(**changes: Any) -> dict[str, Any]:
    """Returns the settings that NVIDIA's script stores."""
    return {
        "mode": "train", "embedding_type": "custom_cuda", "embedding_dim": 2, "?": False,
        "bottom_mlp_sizes": [2], "top_mlp_sizes": [4, 1], "interaction_op": "dot",
        "hash_indices": False, "max_table_size": None, "bottom_features_ordered": False,
        "optimized_mlp": True, "auc_device": "GPU", "dataset_type": "parametric", "verbosity": -1,
    } | changes  # fmt: skip


def write_nvidia_folder(
    folder: Path, model: Dlrm, order: Sequence[int] | None = None, **settings: Any
) -> None:
    """Saves a network whose tables reach the interaction in this order, by default by size."""
    folder.mkdir()
    sizes = model.embeddings.table_sizes
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i]) if order is None else order
    for i, table in read_tables(model.embeddings).items():
        table.detach().numpy().astype("<f4").tofile(folder / f"bottom_model.embeddings.{i}.bin")
        torch.save({"shape": tuple(table.shape)}, folder / f"embeddings.{i}.meta.pt")
    layers = {
        mlp: {
            "weights": [layer.weight.detach() for layer in mlp.linears],
            "biases": [layer.bias.detach() for layer in mlp.linears],
        }
        for mlp in (model.bottom_mlp, model.top_mlp)
    }
    top = layers[model.top_mlp]
    top["weights"][0] = top["weights"][0][:, _our_columns(model, order)]
    out = {"weight": top["weights"].pop(), "bias": top["biases"].pop()}
    torch.save(layers[model.bottom_mlp], folder / "bottom_model.mlp.pt")
    torch.save(top, folder / "top_model.mlp.pt")
    torch.save(out, folder / "top_model.out.pt")
    mapping = {"bottom_mlp": 0, "embedding": [list(order)], "vectors_per_gpu": [len(sizes) + 1]}
    data = {"device_mapping": mapping, "epoch": 1, "step": 7}
    torch.save({"data": data, "config": their_config(**settings)}, folder / "metadata.pt")


def _our_columns(model: Dlrm, order: Sequence[int]) -> list[int]:
    """Returns our column of each of their interaction's columns."""
    dim, vectors = model.embeddings.embedding_dim, [0, *(1 + table for table in order)]
    if isinstance(model.interaction, CatInteraction):
        return [dim * vector + column for vector in vectors for column in range(dim)]
    pairs = [(max(a, b), min(a, b)) for i, a in enumerate(vectors) for b in vectors[:i]]
    columns = [*range(dim), *(dim + a * (a - 1) // 2 + b for a, b in pairs)]
    return [*columns, *range(len(columns), model.interaction.out_features)]


def their_logits(
    folder: Path, order: Sequence[int], interaction_op: str, numerical: Tensor, ids: Tensor
) -> Tensor:
    """Runs the files of a folder as NVIDIA's network does, its tables in the order of a run."""

    def read(name: str) -> Any:
        return torch.load(folder / name, weights_only=True)

    def mlp(name: str, x: Tensor) -> Tensor:
        layers = read(name)
        for weight, bias in zip(layers["weights"], layers["biases"], strict=True):
            x = linear(x, weight, bias).relu()
        return x

    bottom = mlp("bottom_model.mlp.pt", numerical)
    vectors = [bottom]
    for i in order:
        rows, dim = read(f"embeddings.{i}.meta.pt")["shape"]
        raw = (folder / f"bottom_model.embeddings.{i}.bin").read_bytes()
        table = torch.tensor(struct.unpack(f"<{rows * dim}f", raw)).view(rows, dim)
        vectors.append(table[ids[:, i]])
    if interaction_op == "cat":
        x = torch.cat(vectors, 1)
    else:
        pairs = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
        x = torch.cat([bottom, torch.stack(pairs, 1)], 1)
        x = torch.nn.functional.pad(x, (0, -x.shape[1] % 8))
    out = read("top_model.out.pt")
    return linear(mlp("top_model.mlp.pt", x), out["weight"], out["bias"]).squeeze(1)
