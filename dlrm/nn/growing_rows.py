# SPDX-License-Identifier: Apache-2.0
"""Rows of tables that grow: initial values that depend on the category, not on when it came.

A row starts with the same values as if the category had been known from the
start. Each value is a function of (seed, feature, category, column): outputs of SplitMix64 with a
state made from the first three. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from dlrm.nn.embedding import Embeddings
from recsys.data.growing.categories import category_numbers, reused_ids

INITIAL_STD = 0.01
"""Standard deviation of new rows by default. It cannot depend on the size of the table, which
grows."""

_CHUNK_ROWS = 1 << 14
_BITS = 24
"""Random bits of a value, the precision of float32."""
_GOLDEN_RATIO = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def initial_rows(
    seed: int, feature: str, categories: npt.NDArray[np.uint64], width: int, std: float
) -> Tensor:
    """Draws rows from a uniform distribution around zero.

    The same arguments give the same bits on every machine: integers are exact, and each value is
    one product.

    Args:
        seed: seed of the run.
        feature: name of the categorical feature.
        categories: [n] number of each category, see `recsys.data.growing.categories`.
        width: D, columns of the table.
        std: standard deviation.

    Returns:
        [n, D] float32.
    """
    name = xxhash.xxh64_intdigest(feature.encode(), seed)
    states = _mixed(torch.from_numpy(categories.astype(np.int64)) ^ _signed(name))
    steps = torch.arange(1, width + 1) * _signed(_GOLDEN_RATIO)
    bound = float(np.float32(std * 3**0.5))
    rows = torch.empty(len(states), width)
    for first in range(0, len(states), _CHUNK_ROWS):
        drawn = _mixed(states[first : first + _CHUNK_ROWS, None] + steps)
        whole = (drawn >> (64 - _BITS)) & ((1 << _BITS) - 1)
        centred = whole.to(torch.float32) - float(1 << (_BITS - 1))
        torch.mul(centred, bound * 2.0 ** (1 - _BITS), out=rows[first : first + _CHUNK_ROWS])
    return rows


def _mixed(z: Tensor) -> Tensor:
    """Returns the output function of SplitMix64; int64 stands for 64 unsigned bits."""
    for shift, factor in _MIX:
        z = (z ^ _shifted(z, shift)) * _signed(factor)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shifts right without copies of the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Returns 64 unsigned bits as a signed integer."""
    return value - 2**64 if value >= 2**63 else value


def new_rows(dataset: Path, feature: int, known: int, ids: int) -> Tensor:
    """Returns the ids of categories that no earlier day had, in ascending order.

    Args:
        dataset: folder of the day.
        feature: number of the feature.
        known: ids of the day before, including id 0; 0 if there was none.
        ids: ids of the day, including id 0.
    """
    behind = torch.arange(max(known, 1), ids)
    return torch.cat([torch.from_numpy(reused_ids(dataset, feature)), behind]) if known else behind


@torch.no_grad()
def serve_new_rows(embeddings: Embeddings[Any], dataset: Path, known: Sequence[int]) -> None:
    """Gives new categories the vector of id 0, as a server does that does not know them.

    Args:
        embeddings: the tables.
        dataset: folder of the day.
        known: rows of each table that come from the day before.
    """
    stored = embeddings.stored_tables()
    for feature, shard in embeddings.shards().items():
        rows, ids = shard.view(stored), embeddings.table_sizes[feature]
        rows[new_rows(dataset, feature, known[feature], ids)] = rows[0].clone()


@torch.no_grad()
def draw_all_rows(embeddings: Embeddings[Any], features: Sequence[str], seed: int) -> None:
    """Draws every table; a row's values do not depend on which process stores it.

    Args:
        embeddings: the tables, in float32.
        features: name of each table.
        seed: seed of the run.
    """
    stored = embeddings.stored_tables()
    for feature, shard in embeddings.shards().items():
        size = embeddings.table_sizes[feature]
        std = (
            embeddings.init_std or (3 * size) ** -0.5
        )  # that of U(-sqrt(1 / size), sqrt(1 / size))
        numbers = np.arange(size, dtype=np.uint64)[shard.rows]
        drawn = initial_rows(seed, features[feature], numbers, embeddings.embedding_dim, std)
        shard.view(stored)[:] = drawn


@torch.no_grad()
def draw_new_rows(
    embeddings: Embeddings[Any],
    states: Sequence[Mapping[str, Tensor]],
    dataset: Path,
    features: Sequence[str],
    known: Sequence[int],
    seed: int,
) -> None:
    """Draws the rows of categories that are new; the row of id 0 starts at zero.

    Args:
        embeddings: the tables, with their `init_std`.
        states: named tensors of the optimizer for each stored table; those of the rows become zero.
        dataset: folder of the day, with the dictionaries of its ids.
        features: name of each table.
        known: rows of each table that come from the day before.
        seed: seed of the run.
    """
    std = embeddings.init_std or INITIAL_STD
    stored = embeddings.stored_tables()
    for feature, shard in embeddings.shards().items():
        ids, rows = embeddings.table_sizes[feature], shard.view(stored)
        if known[feature] == 0:
            rows[0].zero_()
        new = new_rows(dataset, feature, known[feature], ids)
        if len(new) == 0:
            continue
        numbers = category_numbers(dataset, feature, ids)[new.numpy() - 1]
        rows[new] = initial_rows(seed, features[feature], numbers, embeddings.embedding_dim, std)
        for name in states[shard.storage] if states else ():
            shard.view([state[name] for state in states])[new] = 0
