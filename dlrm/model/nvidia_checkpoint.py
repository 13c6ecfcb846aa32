# SPDX-License-Identifier: Apache-2.0
"""Reads and writes checkpoints in the layout of NVIDIA's DLRM.

    bottom_model.embeddings.{i}.bin      raw little-endian float32, row-major
    bottom_model.embeddings.{i}.meta.pt  {"shape": (rows, dim)}
    bottom_model.mlp.pt, top_model.mlp.pt  {"weights": [...], "biases": [...]} float32
    top_model.out.pt                     state dict of the last layer of the top MLP
    metadata.pt                          {"data": {...}, "config": {...}}

NVIDIA's DLRM has the last layer of the top MLP in a module of its own (`out`). Pickles are read
with `weights_only`, so a file cannot run code.
"""

import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dlrm.model.network import DlrmNetwork
from dlrm.model.row_blocks import whole_blocks
from dlrm.nn.embedding import LookupsT, load_table, read_tables
from recsys.train.checkpoint import CheckpointError, replace_folder
from recsys.train.processes import ALONE, Processes

_BOTTOM_MLP, _TOP_MLP, _TOP_OUT = "bottom_model.mlp.pt", "top_model.mlp.pt", "top_model.out.pt"
_METADATA = "metadata.pt"
_OURS = re.compile(
    r"bottom_model\.embeddings\.\d+\.(bin|meta\.pt)|"
    r"(bottom_model\.mlp|top_model\.mlp|top_model\.out|metadata)\.pt"
)


def is_nvidia_checkpoint(path: Path) -> bool:
    """Returns whether a folder has NVIDIA's layout."""
    return (path / _BOTTOM_MLP).is_file()


def save(
    path: Path,
    model: DlrmNetwork[LookupsT],
    epoch: int,
    step: int,
    config: Mapping[str, Any],
    processes: Processes = ALONE,
) -> None:
    """Writes a model's weights; the folder appears when it is complete.

    All processes must call it and reach the folder: each writes its table-wise tables, and some
    blocks of rows of the row-wise ones.

    Args:
        path: folder to write; an earlier checkpoint there is replaced.
        model: network with dot or cat interaction; the layout cannot hold others' parameters.
        epoch: completed epochs.
        step: completed steps.
        config: settings, stored in metadata.pt.
        processes: all ranks of the run.

    Raises:
        CheckpointError: the layout cannot hold the model, or the folder holds other files.
    """
    if any(True for _ in model.interaction.parameters()):
        raise CheckpointError(
            "`checkpoint_format` nvidia has no place for the parameters of `interaction_op` dcnv2"
        )
    check_destination(path)
    sizes, dim = model.embeddings.table_sizes, model.embeddings.embedding_dim
    temporary = path.with_name(path.name + ".tmp")
    processes.barrier()  # all ranks have checked the folder before it changes
    if processes.is_first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for i, size in enumerate(sizes):
            torch.save({"shape": (size, dim)}, temporary / _table(i, "meta.pt"))
            (temporary / _table(i, "bin")).touch()
    processes.barrier()
    for i, first_row, rows in _rows_to_write(model, processes.rank):
        with (temporary / _table(i, "bin")).open("r+b") as file:
            file.seek(first_row * dim * 4)
            file.write(rows.detach().cpu().contiguous().numpy().astype("<f4", copy=False).data)
    if processes.is_first:
        torch.save(_mlp_dict(model.bottom_mlp.linears), temporary / _BOTTOM_MLP)
        torch.save(_mlp_dict(model.top_mlp.linears[:-1]), temporary / _TOP_MLP)
        out = model.top_mlp.linears[-1]
        torch.save({"weight": _host(out.weight), "bias": _host(out.bias)}, temporary / _TOP_OUT)
        # The placement is not stored: any number of devices can load the checkpoint.
        data = {"device_mapping": {"embedding": [list(range(len(sizes)))], "bottom_mlp": 0}}
        data |= {"epoch": epoch, "step": step}  # type: ignore[dict-item]
        torch.save({"data": data, "config": dict(config)}, temporary / _METADATA)
    processes.barrier()
    if processes.is_first:
        replace_folder(path, temporary)
    processes.barrier()


def _rows_to_write(model: DlrmNetwork[LookupsT], rank: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yields (table, first row, [rows, D]) that this rank is to write."""
    shards = model.embeddings.shards()
    for i, table in read_tables(model.embeddings).items():
        if shards[i].rows.step > 1:
            for first_row, rows in whole_blocks(shards[i].rows, rank, table):
                yield i, first_row, rows
        elif shards[i].is_saved_here:
            yield i, 0, table


@torch.no_grad()
def load(path: Path, model: DlrmNetwork[LookupsT]) -> None:
    """Loads the weights of a folder into a model.

    Raises:
        CheckpointError: a file is missing or damaged, or a shape differs.
    """
    embeddings = model.embeddings
    for i, rows in enumerate(embeddings.table_sizes):
        load_table(embeddings, i, _read_table(path, i, (rows, embeddings.embedding_dim)))
    _load_mlp(path / _BOTTOM_MLP, model.bottom_mlp.linears)
    _load_mlp(path / _TOP_MLP, model.top_mlp.linears[:-1])
    out = _read_pickle(path / _TOP_OUT)
    _copy(path / _TOP_OUT, "weight", out.get("weight"), model.top_mlp.linears[-1].weight)
    _copy(path / _TOP_OUT, "bias", out.get("bias"), model.top_mlp.linears[-1].bias)


def read_metadata(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads (epoch and step, settings) of the run from metadata.pt.

    Raises:
        CheckpointError: metadata.pt is missing or damaged.
    """
    stored = _read_pickle(path / _METADATA)
    return dict(stored.get("data", {})), dict(stored.get("config", {}))


def table_sizes(path: Path) -> tuple[int, ...]:
    """Reads the number of rows of each table of a folder.

    Raises:
        CheckpointError: a file is damaged.
    """
    count = len(list(path.glob(_table("*", "meta.pt"))))
    return tuple(_stored_shape(path, i)[0] for i in range(count))


def check_destination(path: Path) -> None:
    """Refuses to replace anything but a checkpoint of this layout.

    Raises:
        CheckpointError: the folder holds other files, or is no folder.
    """
    if not path.exists():
        return
    others = (
        [p.name for p in path.iterdir() if not _OURS.fullmatch(p.name)] if path.is_dir() else []
    )
    if others or not path.is_dir():
        raise CheckpointError(
            f"{path}: holds {others[0] if others else 'a file'}, which is no part of a checkpoint "
            "in NVIDIA's layout; name a folder of its own with `save_checkpoint_path`"
        )


def _table(index: int | str, suffix: str) -> str:
    return f"bottom_model.embeddings.{index}.{suffix}"


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).clone()


def _mlp_dict(linears: list[nn.Linear]) -> dict[str, list[Tensor]]:
    return {
        "weights": [_host(layer.weight) for layer in linears],
        "biases": [_host(layer.bias) for layer in linears],
    }


def _read_pickle(path: Path) -> dict[str, Any]:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing from the checkpoint") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(f"{path}: not readable as tensors: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a dict, got {type(value).__name__}")
    return value


def _stored_shape(path: Path, index: int) -> tuple[int, ...]:
    meta = path / _table(index, "meta.pt")
    shape = tuple(_read_pickle(meta).get("shape", ()))
    if len(shape) != 2:
        raise CheckpointError(f"{meta}: expected a shape of two numbers, got {list(shape)}")
    return shape


def _read_table(path: Path, index: int, expected: tuple[int, int]) -> Tensor:
    file = path / _table(index, "bin")
    shape = _stored_shape(path, index)
    if shape != expected:
        raise CheckpointError(
            f"{file}: the checkpoint has a table of shape {list(shape)}, the model "
            f"{list(expected)}; the dataset or `embedding_dim` differ"
        )
    num_bytes = 4 * expected[0] * expected[1]
    size = file.stat().st_size if file.is_file() else -1
    if size != num_bytes:
        state = "is missing" if size < 0 else f"has {size} bytes"
        raise CheckpointError(f"{file}: {state}, expected {num_bytes} (float32, {list(shape)})")
    if not num_bytes:
        return torch.empty(shape)
    return torch.from_numpy(np.memmap(file, dtype="<f4", mode="c", shape=shape))


def _load_mlp(path: Path, linears: list[nn.Linear]) -> None:
    stored = _read_pickle(path)
    weights, biases = stored.get("weights", []), stored.get("biases", [])
    if len(weights) != len(linears) or len(biases) != len(linears):
        raise CheckpointError(
            f"{path}: {len(weights)} weights and {len(biases)} biases, the model has "
            f"{len(linears)} layers here; `bottom_mlp_sizes` or `top_mlp_sizes` differ"
        )
    for i, layer in enumerate(linears):
        _copy(path, f"weights[{i}]", weights[i], layer.weight)
        _copy(path, f"biases[{i}]", biases[i], layer.bias)


def _copy(path: Path, name: str, stored: object, parameter: Tensor) -> None:
    if not isinstance(stored, Tensor) or stored.shape != parameter.shape:
        shape = list(stored.shape) if isinstance(stored, Tensor) else type(stored).__name__
        raise CheckpointError(
            f"{path}: {name}: the checkpoint has {shape}, the model {list(parameter.shape)}"
        )
    parameter.copy_(stored)
