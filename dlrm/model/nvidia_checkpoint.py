# SPDX-License-Identifier: Apache-2.0
"""Reads and writes checkpoints in the layout of NVIDIA's DLRM.

    bottom_model.embeddings.{i}.bin  raw little-endian float32, row-major
    embeddings.{i}.meta.pt           {"shape": (rows, dim)}
    bottom_model.mlp.pt, top_model.mlp.pt  {"weights": [...], "biases": [...]} float32
    top_model.out.pt                 state dict of the last layer of the top MLP
    metadata.pt                      {"data": {...}, "config": {...}}

NVIDIA's DLRM has the last layer of the top MLP in a module of its own (`out`), and passes the
tables to the interaction as they lie on its devices: on one by decreasing size, on several device
by device, or by number with its `--bottom_features_ordered`. The first weights of the top MLP are
stored for that order, which metadata.pt tells. Its keys may begin with `module.`. Pickles are read
with `weights_only`, so a file cannot run code. docs/migrating_from_nvidia.md names the sources.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dlrm.config import ModelConfig
from dlrm.model.network import DlrmNetwork
from dlrm.model.row_blocks import whole_blocks
from dlrm.nn.embedding import LookupsT, load_table, read_tables
from dlrm.nn.interaction import CatInteraction
from recsys.errors import show_names
from recsys.files.durable import durable_rename, sync, sync_tree
from recsys.train.checkpoint import (
    LOCK_FILE,
    CheckpointError,
    describe_tensor,
    stored_settings,
)
from recsys.train.divergence import find_nonfinite
from recsys.train.processes import ALONE, Processes
from recsys.train.saving.write import Saving

_BOTTOM_MLP, _TOP_MLP, _TOP_OUT = "bottom_model.mlp.pt", "top_model.mlp.pt", "top_model.out.pt"
_METADATA = "metadata.pt"
_UNFINISHED = ".unfinished"
_CHECKED_ROWS = 1 << 16
"""Rows of a table that are checked at once: those of a shard are copied for it."""


def is_nvidia_checkpoint(path: Path) -> bool:
    """Returns True if a folder has NVIDIA's layout."""
    return (path / _BOTTOM_MLP).is_file()


def save(
    path: Path,
    model: DlrmNetwork[LookupsT],
    epoch: int,
    step: int,
    config: Mapping[str, Any],
    processes: Processes = ALONE,
) -> None:
    """Writes a model's weights; a checkpoint is there when it is complete.

    All processes must call it and reach the folder: each writes its table-wise tables, and some
    blocks of rows of the row-wise ones.

    Args:
        path: folder to write; an earlier checkpoint there is replaced.
        model: network with dot or cat interaction, without batch norm.
        epoch: completed epochs.
        step: completed steps.
        config: settings, stored in metadata.pt.
        processes: all ranks of the run.

    Raises:
        CheckpointError: the layout cannot hold the model, or it cannot be written, as on a full
            disk; nothing is left of it then.
    """
    _require_linears_alone(path, model)
    sizes, dim = model.embeddings.table_sizes, model.embeddings.embedding_dim
    # Inside the folder, which may be a mount point or the current one: neither can be renamed.
    temporary = path / _UNFINISHED
    saving = Saving(path, temporary, processes, 4 * dim * sum(sizes) if processes.is_first else 0)

    def begin() -> None:
        saving.make_folder()
        if processes.is_first:
            for i, size in enumerate(sizes):
                torch.save({"shape": (size, dim)}, temporary / f"embeddings.{i}.meta.pt")
                (temporary / _table(i)).touch()

    def write() -> None:
        for i, first_row, rows in _rows_to_write(model, processes.rank):
            with (temporary / _table(i)).open("r+b") as file:
                file.seek(first_row * dim * 4)
                file.write(rows.detach().cpu().contiguous().numpy().astype("<f4", copy=False).data)
            sync(temporary / _table(i))  # by the process that wrote it
        if processes.is_first:
            order = sorted(range(len(sizes)), key=lambda table: -sizes[table])
            _write_mlps(temporary, model, order)
            # The placement is not stored: any number of devices can load the checkpoint.
            data = {"device_mapping": {"embedding": [order], "bottom_mlp": 0}}
            data |= {"epoch": epoch, "step": step}  # type: ignore[dict-item]
            torch.save({"data": data, "config": dict(config)}, temporary / _METADATA)

    saving.all_write(begin)
    saving.all_write(write)
    saving.all_write(lambda: _replace_files(path, temporary) if processes.is_first else None)


def _require_linears_alone(path: Path, model: DlrmNetwork[LookupsT]) -> None:
    """Refuses a model with dense tensors that the layout cannot hold."""
    layers = ("bottom_mlp.layers.", "top_mlp.layers.")
    others = [name for name in model.mlp_state() if not name.startswith(layers)]
    if others:
        raise CheckpointError(
            f"{path}: NVIDIA's layout holds no tensors {show_names(others)}: take a model without "
            "`batch_norm`, `numerical_embedding` and `id_statistics`, and with another "
            "`interaction_op` than dcnv2"
        )


def _write_mlps(folder: Path, model: DlrmNetwork[LookupsT], order: Sequence[int]) -> None:
    torch.save(_mlp_dict(model.bottom_mlp.linears), folder / _BOTTOM_MLP)
    top = _mlp_dict(model.top_mlp.linears)
    first = top["weights"][0].clone()
    top["weights"][0][:, _columns(model, order)] = first
    out = {"weight": top["weights"].pop(), "bias": top["biases"].pop()}
    torch.save(top, folder / _TOP_MLP)
    torch.save(out, folder / _TOP_OUT)


def _replace_files(path: Path, new: Path) -> None:
    """Moves complete files into the folder, the bottom MLP's last."""
    names = sorted(file.name for file in new.iterdir() if file.name != _BOTTOM_MLP)
    sync_tree(new)
    (path / _BOTTOM_MLP).unlink(missing_ok=True)
    sync(path)
    for name in names:
        (new / name).replace(path / name)
    sync(path)
    durable_rename(new / _BOTTOM_MLP, path / _BOTTOM_MLP)
    new.rmdir()


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
        CheckpointError: a file is missing or damaged, a shape differs, or the folder or the model
            holds more than the other.
    """
    _require_linears_alone(path, model)
    embeddings = model.embeddings
    if (stored := len(list(path.glob(_table("*"))))) > len(embeddings.table_sizes):
        raise CheckpointError(
            f"{path}: holds {stored} embedding tables, the model has "
            f"{len(embeddings.table_sizes)}; name the dataset of the training"
        )
    shards = embeddings.shards()
    for i, rows in enumerate(embeddings.table_sizes):
        table = _read_table(path, i, (rows, embeddings.embedding_dim))
        if i in shards:
            _require_finite(path / _table(i), "its values", table[shards[i].rows])
            load_table(embeddings, i, table)
    _load_mlp(path / _BOTTOM_MLP, model.bottom_mlp.linears)
    _load_mlp(path / _TOP_MLP, model.top_mlp.linears[:-1])
    out, last = _read_pickle(path / _TOP_OUT, "weight", "bias"), model.top_mlp.linears[-1]
    _copy(path / _TOP_OUT, "weight", out.get("weight"), last.weight)
    _copy(path / _TOP_OUT, "bias", out.get("bias"), last.bias)
    first = model.top_mlp.linears[0].weight
    first.copy_(first[:, _columns(model, _stored_order(path, len(embeddings.table_sizes)))])
    model.train(model.training)  # drops copies of the weights before


def _stored_order(path: Path, num_tables: int) -> list[int]:
    """Reads the order in which the tables reach the stored top MLP."""
    data, config = _read_metadata(path)
    try:
        devices = [list(tables) for tables in data["device_mapping"]["embedding"]]
    except (KeyError, TypeError):
        devices = []
    order = [table for tables in devices for table in tables if type(table) is int]
    if sorted(order) != list(range(num_tables)):
        raise CheckpointError(
            f"{path / _METADATA}: its device_mapping does not hold each of {num_tables} tables once"
        )
    return sorted(order) if len(devices) > 1 and config.get("bottom_features_ordered") else order


def _columns(model: DlrmNetwork[LookupsT], order: Sequence[int]) -> Tensor:
    """Returns the interaction columns of a given order of the tables."""
    dim, columns = model.embeddings.embedding_dim, torch.arange(model.interaction.out_features)
    vectors = [0, *(1 + order.index(table) for table in range(len(order)))]
    if isinstance(model.interaction, CatInteraction):
        return columns.view(-1, dim)[vectors].flatten()
    i, j = torch.tril_indices(len(vectors), len(vectors), -1)
    products = columns[dim : dim + len(i)]
    number = torch.zeros(len(vectors), len(vectors), dtype=torch.int64)
    number[i, j] = number[j, i] = products
    return torch.cat([columns[:dim], number[vectors][:, vectors][i, j], columns[dim + len(i) :]])


def read_settings(path: Path) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Reads (settings of the model, completed steps, all settings) from metadata.pt.

    Raises:
        UserError: metadata.pt is missing, damaged, or a setting is of another type.
    """
    data, config = _read_metadata(path)
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in config.items()}
    if plain.get("embedding_type") == "custom_cuda":  # NVIDIA's name for its choice of two
        del plain["embedding_type"]
    settings = stored_settings(path / _METADATA, plain, ModelConfig)
    weights = _read_mlp(path / _BOTTOM_MLP)["weights"]
    if "num_numerical_features" not in settings and weights:
        settings["num_numerical_features"] = weights[0].shape[1]  # NVIDIA's dataset has it
    step = data.get("step")
    return settings, step if type(step) is int else 0, config


def _read_metadata(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads (position and placement, settings) of the run from metadata.pt.

    Raises:
        CheckpointError: metadata.pt is missing or damaged.
    """
    stored = _read_pickle(path / _METADATA)
    data, config = stored.get("data", {}), stored.get("config", {})
    if not isinstance(data, dict) or not isinstance(config, dict):
        raise CheckpointError(f"{path / _METADATA}: data and config must be dicts")
    return data, dict(config)


def table_sizes(path: Path) -> tuple[int, ...]:
    """Reads the number of rows of each table of a folder.

    Raises:
        CheckpointError: a file is damaged.
    """
    count = len(list(path.glob(_table("*"))))
    return tuple(_stored_shape(path, i)[0] for i in range(count))


def check_unused(path: Path) -> None:
    """Refuses a folder that holds anything, such as an earlier checkpoint.

    Raises:
        CheckpointError: the folder holds files, or is no folder.
    """
    own = (LOCK_FILE, _UNFINISHED)
    others = sorted(p.name for p in path.iterdir() if p.name not in own) if path.is_dir() else []
    if others:
        holds = "a checkpoint already" if is_nvidia_checkpoint(path) else others[0]
        raise CheckpointError(
            f"`save_checkpoint_path`: {path} holds {holds}; NVIDIA's layout takes a folder of its "
            "own: name another one, or remove it"
        )


def _table(index: int | str) -> str:
    return f"bottom_model.embeddings.{index}.bin"


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).clone()


def _mlp_dict(linears: list[nn.Linear]) -> dict[str, list[Tensor]]:
    return {
        "weights": [_host(layer.weight) for layer in linears],
        "biases": [_host(layer.bias) for layer in linears],
    }


def _read_pickle(path: Path, *names: str) -> dict[str, Any]:
    """Reads a dict; refuses others than these names, if any are given."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing from the checkpoint") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(f"{path}: not readable as tensors: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a dict, got {type(value).__name__}")
    entries = {str(key).removeprefix("module."): entry for key, entry in value.items()}
    if names and (others := [name for name in entries if name not in names]):
        raise CheckpointError(
            f"{path}: holds {show_names(others)}, which the model has no place for; expected "
            f"{' and '.join(names)} alone"
        )
    return entries


def _stored_shape(path: Path, index: int) -> tuple[int, ...]:
    meta = path / f"embeddings.{index}.meta.pt"
    if not meta.is_file():
        earlier = path / f"bottom_model.{meta.name}"  # as this project wrote it before
        meta = earlier if earlier.is_file() else meta
    shape = _read_pickle(meta).get("shape")
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise CheckpointError(f"{meta}: expected a shape of two numbers, got {shape!r}")
    return shape


def _read_table(path: Path, index: int, expected: tuple[int, int]) -> Tensor:
    file = path / _table(index)
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


def _read_mlp(path: Path) -> dict[str, list[Tensor]]:
    names = ("weights", "biases")
    stored = _read_pickle(path, *names)
    layers = {name: stored.get(name) for name in names}
    for name, tensors in layers.items():
        if not isinstance(tensors, list):
            raise CheckpointError(f"{path}: {name}: expected a list of tensors, got {tensors!r}")
    return layers  # type: ignore[return-value]


def _load_mlp(path: Path, linears: list[nn.Linear]) -> None:
    weights, biases = _read_mlp(path).values()
    if len(weights) != len(linears) or len(biases) != len(linears):
        raise CheckpointError(
            f"{path}: {len(weights)} weights and {len(biases)} biases, the model has "
            f"{len(linears)} layers here; `bottom_mlp_sizes` or `top_mlp_sizes` differ"
        )
    for i, layer in enumerate(linears):
        _copy(path, f"weights[{i}]", weights[i], layer.weight)
        _copy(path, f"biases[{i}]", biases[i], layer.bias)


def _copy(path: Path, name: str, stored: object, parameter: Tensor) -> None:
    found = describe_tensor(stored) if isinstance(stored, Tensor) else type(stored).__name__
    expected = describe_tensor(parameter)
    if not isinstance(stored, Tensor) or found != expected:
        raise CheckpointError(f"{path}: {name}: the checkpoint has {found}, the model {expected}")
    _require_finite(path, name, stored)
    parameter.copy_(stored)


def _require_finite(path: Path, name: str, values: Tensor) -> None:
    """Refuses NaN and infinity, a block of rows at a time."""
    for rows in torch.split(values, _CHECKED_ROWS):
        if find_nonfinite({name: rows}) is not None:
            raise CheckpointError(
                f"{path}: {name}: holds values that are NaN or infinite; the file is damaged, or "
                "of a run that diverged: use another checkpoint"
            )
