# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints of NVIDIA's DLRM as checkpoints of this project.

    bottom_model.embeddings.{i}.bin  raw little-endian float32, row-major
    embeddings.{i}.meta.pt           {"shape": (rows, dim)}
    bottom_model.mlp.pt, top_model.mlp.pt  {"weights": [...], "biases": [...]} float32
    top_model.out.pt                 state dict of the last layer of the top MLP
    metadata.pt                      {"data": {...}, "config": {...}}

NVIDIA's DLRM has the last layer of the top MLP in a separate module (`out`). It passes the tables
to the interaction in the order of its devices: on one device by decreasing size, on several device
by device, or by number with its `--bottom_features_ordered`. The first weights of the top MLP are
stored for that order, which metadata.pt records. Keys may begin with `module.`. Pickles are read
with `weights_only`, so a file cannot run code. docs/migrating_from_nvidia.md names the sources.
"""

import dataclasses
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlrm.config import ModelConfig
from dlrm.model.groups import MLP_GROUP, WEIGHT, table_group
from recsys.errors import show_names
from recsys.train.checkpoint import Checkpoint, CheckpointError, describe_tensor, stored_settings

_BOTTOM_MLP, _TOP_MLP, _TOP_OUT = "bottom_model.mlp.pt", "top_model.mlp.pt", "top_model.out.pt"
_METADATA = "metadata.pt"
_KINDS = {"weights": ("weight", 2), "biases": ("bias", 1)}
"""{list of an MLP's tensors: (name of the tensor in a layer, number of its dimensions)}."""
_TABLE, _SHAPE = "bottom_model.embeddings.{}.bin", "embeddings.{}.meta.pt"


def is_nvidia_checkpoint(path: Path) -> bool:
    """Returns True if a folder has NVIDIA's layout."""
    return (path / _BOTTOM_MLP).is_file()


def open_nvidia_checkpoint(path: Path) -> "NvidiaCheckpoint":
    """Opens a folder in NVIDIA's layout as a checkpoint that has only weights.

    Raises:
        UserError: metadata.pt is missing or damaged, or a setting has another type.
    """
    metadata = _read_pickle(path / _METADATA)
    data, config = metadata.get("data", {}), metadata.get("config", {})
    if not isinstance(data, dict) or not isinstance(config, dict):
        raise CheckpointError(f"{path / _METADATA}: data and config must be dicts")
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in config.items()}
    if plain.get("embedding_type") == "custom_cuda":  # there it means one of two types
        del plain["embedding_type"]
    settings = stored_settings(path / _METADATA, plain, ModelConfig)
    weights = _read_layers(path / _BOTTOM_MLP)["weights"]
    if "num_numerical_features" not in settings and weights:
        settings["num_numerical_features"] = weights[0].shape[1]  # NVIDIA's dataset has it
    num_tables = max(len(list(path.glob(name.format("*")))) for name in (_TABLE, _SHAPE))
    order = _stored_order(path, data, num_tables)
    if config.get("bottom_features_ordered") and len(data["device_mapping"]["embedding"]) > 1:
        order = sorted(order)
    step = data.get("step")
    return NvidiaCheckpoint(
        path, {"step": step if type(step) is int else 0}, settings, {}, table_order=tuple(order)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NvidiaCheckpoint(Checkpoint):
    """A folder in NVIDIA's layout, its tensors with our names and in our order.

    Attributes:
        table_order: numbers of the tables, in the order in which the stored top MLP takes them.
    """

    table_order: tuple[int, ...] = ()

    def groups(self) -> list[str]:
        """Returns the names of all groups."""
        return [MLP_GROUP, *(table_group(i) for i in range(len(self.table_order)))]

    def file_of(self, group: str, name: str) -> Path:
        """Returns the file that contains a tensor of a group."""
        if group != MLP_GROUP:
            return self.path / _TABLE.format(self.groups().index(group) - 1)
        if name.startswith("bottom_mlp."):
            return self.path / _BOTTOM_MLP
        last = len(_read_layers(self.path / _TOP_MLP)["weights"])
        is_last = name.startswith(f"top_mlp.layers.{last}.")
        return self.path / (_TOP_OUT if is_last else _TOP_MLP)

    def shape_of(self, group: str, name: str) -> tuple[int, ...]:
        """Returns the shape of a table without reading it."""
        file = self.file_of(group, name)
        meta = self.path / _SHAPE.format(self.groups().index(group) - 1)
        shape = _read_pickle(meta).get("shape")
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise CheckpointError(f"{meta}: expected a shape of two numbers, got {shape!r}")
        num_bytes, size = 4 * math.prod(shape), file.stat().st_size if file.is_file() else -1
        if size != num_bytes:
            state = "is missing" if size < 0 else f"has {size} bytes"
            raise CheckpointError(f"{file}: {state}, expected {num_bytes} (float32, {list(shape)})")
        return shape

    def tensors(self, group: str) -> dict[str, Tensor]:
        """Reads the tensors of a group; a table is mapped into memory.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        if group == MLP_GROUP:
            return self._mlps()
        file, shape = self.file_of(group, WEIGHT), self.shape_of(group, WEIGHT)
        if not math.prod(shape):
            return {WEIGHT: torch.empty(shape)}
        table = np.memmap(file, dtype="<f4", mode="c", shape=shape)
        return {WEIGHT: torch.from_numpy(table)}

    def _mlps(self) -> dict[str, Tensor]:
        layers = {
            "bottom_mlp": _read_layers(self.path / _BOTTOM_MLP),
            "top_mlp": _read_layers(self.path / _TOP_MLP),
        }
        out = _read_pickle(self.path / _TOP_OUT, "weight", "bias")
        for kind, (name, dims) in _KINDS.items():
            layers["top_mlp"][kind].append(_tensor(self.path / _TOP_OUT, name, out.get(name), dims))
        top = layers["top_mlp"]["weights"]
        top[0] = top[0][:, self._columns(top[0].shape[1])]
        return {
            f"{mlp}.layers.{i}.{name}": tensor
            for mlp, kinds in layers.items()
            for kind, (name, _) in _KINDS.items()
            for i, tensor in enumerate(kinds[kind])
        }

    def _columns(self, width: int) -> Tensor:
        """Returns the stored column of each input of the top MLP."""
        columns = torch.arange(width)
        if not self.table_order:
            return columns
        dim = self.shape_of(table_group(0), WEIGHT)[1]
        vectors = [0, *(1 + self.table_order.index(i) for i in range(len(self.table_order)))]
        count = len(vectors)
        is_cat = self.config.get("interaction_op") == "cat"
        taken = dim * count if is_cat else dim + count * (count - 1) // 2
        if width < taken:
            raise CheckpointError(
                f"{self.path / _TOP_MLP}: its first layer takes {width} numbers, but the "
                f"interaction of {count - 1} tables of dimension {dim} gives {taken}"
            )
        if is_cat:
            return torch.cat([columns[:taken].view(-1, dim)[vectors].flatten(), columns[taken:]])
        i, j = torch.tril_indices(count, count, -1)
        number = torch.zeros(count, count, dtype=torch.int64)
        number[i, j] = number[j, i] = columns[dim:taken]
        return torch.cat([columns[:dim], number[vectors][:, vectors][i, j], columns[taken:]])


def _stored_order(path: Path, data: dict[str, Any], num_tables: int) -> list[int]:
    """Returns the numbers of the tables, device by device."""
    try:
        devices = [list(tables) for tables in data["device_mapping"]["embedding"]]
    except (KeyError, TypeError):
        devices = []
    order = [table for tables in devices for table in tables if type(table) is int]
    if sorted(order) != list(range(num_tables)):
        raise CheckpointError(
            f"{path / _METADATA}: its device_mapping must list each of {num_tables} tables once"
        )
    return order


def _read_pickle(path: Path, *names: str) -> dict[str, Any]:
    """Reads a dict; if names are given, refuses other entries."""
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
            f"{path}: contains {show_names(others)}, which the model does not have; expected "
            f"only {' and '.join(names)}"
        )
    return entries


def _read_layers(path: Path) -> dict[str, list[Tensor]]:
    """Reads the weights and biases of an MLP."""
    stored = _read_pickle(path, *_KINDS)
    for kind in _KINDS:
        if not isinstance(tensors := stored.get(kind), list):
            raise CheckpointError(f"{path}: {kind}: expected a list of tensors, got {tensors!r}")
    return {
        kind: [_tensor(path, f"{kind}[{i}]", t, dims) for i, t in enumerate(stored[kind])]
        for kind, (_, dims) in _KINDS.items()
    }


def _tensor(path: Path, name: str, stored: object, dims: int) -> Tensor:
    if not isinstance(stored, Tensor) or stored.dim() != dims:
        found = describe_tensor(stored) if isinstance(stored, Tensor) else type(stored).__name__
        raise CheckpointError(
            f"{path}: {name}: expected a tensor of {dims} dimensions, the checkpoint has {found}"
        )
    return stored
