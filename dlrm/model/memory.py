# SPDX-License-Identifier: Apache-2.0
"""Computes how much memory a DLRM needs before it is built."""

import dataclasses
from collections.abc import Mapping, Sequence

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import DlrmConfig, ModelConfig
from dlrm.model.network import Dlrm
from dlrm.nn.id_statistics import BYTES_OF_SLOT, TRAINING_BYTES_OF_SLOT
from recsys.train.memory import ModelMemory, count_bytes
from recsys.train.optimizers.dense import count_state_tensors, dense_rule_beside

_FLOAT = 4
_FEWEST_SLOTS = 2
_TABLES = "tables"
_STATE = "optimizer state of the tables"


@dataclasses.dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of the tables on a process, by the name of the feature.

    Attributes:
        own: rows that only this process updates.
        copies: rows of tables that every process has; their dense gradients are summed.
    """

    own: Mapping[str, int]
    copies: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_model(
        cls, config: ModelConfig, names: Sequence[str], sizes: Sequence[int]
    ) -> "TableRows":
        """Returns the rows of a model's tables on one device."""
        return cls(dict(zip(names, config.capped(sizes), strict=True)))

    @property
    def all(self) -> dict[str, int]:
        """Rows of every table."""
        return {**self.own, **self.copies}


def mlp_bytes(config: ModelConfig, num_tables: int) -> int:
    """Returns the size in bytes of all parameters except the tables."""
    plain = dataclasses.replace(
        config,
        embedding_storage="float32",
        optimized_mlp=False,
        id_statistics=min(config.id_statistics, _FEWEST_SLOTS),
    )
    tables = num_tables * config.row_dim * _FLOAT
    return max(count_bytes(lambda: Dlrm(plain, (1,) * num_tables)) - tables, 0)


def loaded_memory(config: ModelConfig, rows: TableRows, num_tables: int) -> ModelMemory:
    """Returns the memory of a model that is not trained.

    Args:
        config: settings of the model.
        rows: rows of the tables on this process.
        num_tables: number of tables in the model.
    """
    remedies = ["fewer rows (`max_table_size` with `hash_indices`)", "a smaller `embedding_dim`"]
    if config.embedding_storage == "float32":
        remedies.append("`embedding_storage` bfloat16")
    row = config.row_dim * config.weight_bytes
    sizes = {name: count * row for name, count in rows.all.items()}
    parts = {_TABLES: sum(sizes.values()), "MLPs": mlp_bytes(config, num_tables)}
    if config.id_statistics:
        parts["statistics of ids"] = config.id_statistics * BYTES_OF_SLOT
        remedies.append("fewer slots of `id_statistics`")
    if config.embedding_storage != "float32":
        # Tables are initialised and loaded one by one, in float32.
        largest = max(rows.all.values(), default=0)
        parts["float32 copies"] = largest * config.row_dim * _FLOAT
    if parts["MLPs"] > parts["tables"]:
        remedies.insert(0, "smaller `bottom_mlp_sizes` and `top_mlp_sizes`")
    return ModelMemory(parts, sizes, remedies)


def trained_memory(config: DlrmConfig, rows: TableRows, num_tables: int) -> ModelMemory:
    """Returns the memory of a run; if it trains, with gradients and optimizer states.

    Args:
        config: settings of the run.
        rows: rows of the tables on this process.
        num_tables: number of tables in the model.
    """
    needed, limit = _with_tables(config, rows, num_tables), config.run.table_memory
    if limit is None:
        remedies = [*needed.remedies, "`table_memory`, which keeps tables on disk, on a CPU"]
        return dataclasses.replace(needed, remedies=remedies)
    parts, row_state = dict(needed.parts), 0
    if _STATE in parts:
        names = ROW_RULES[config.optimizer.optimizer].row_state
        row_state = sum(rows.all.values()) * len(names) * _FLOAT
    in_files = parts.pop(_TABLES) + parts.pop(_STATE, 0) - row_state
    parts |= {"tables in files": min(in_files, limit), _STATE: row_state}
    remedies = ["less `table_memory`", *needed.remedies]
    return ModelMemory(parts, needed.tables, remedies)


def _with_tables(config: DlrmConfig, rows: TableRows, num_tables: int) -> ModelMemory:
    """Returns the memory of a run with its tables in memory."""
    model = config.model
    loaded = loaded_memory(model, rows, num_tables)
    if config.run.mode != "train":
        return loaded
    parts, sizes, remedies = dict(loaded.parts), dict(loaded.tables), list(loaded.remedies)
    copies = 2 + count_state_tensors(dense_rule_beside(config.optimizer.optimizer))
    parts["MLPs, their gradients and optimizer"] = parts.pop("MLPs") * copies
    state = ROW_RULES[config.optimizer.optimizer].state_bytes_per_row(model.row_dim)
    sizes = {name: size + rows.all[name] * state for name, size in sizes.items()}
    parts[_STATE] = sum(rows.all.values()) * state
    # One more column counts the lookups of each row.
    parts["gradients of copied tables"] = sum(rows.copies.values()) * (model.row_dim + 1) * _FLOAT
    if model.id_statistics:
        parts["statistics of ids"] += model.id_statistics * TRAINING_BYTES_OF_SLOT
    if config.optimizer.embedding_l2:
        # One more column numbers the rows.
        parts["gradients of whole tables"] = sum(rows.all.values()) * (model.row_dim + 1) * _FLOAT
    if state:
        remedies.append("`optimizer` sgd, which has no state")
    if config.checkpoint_folder is not None and model.embedding_storage != "float32":
        # A checkpoint stores float32.
        parts["float32 copies"] = sum(rows.all.values()) * model.row_dim * _FLOAT
    remedies.append("more processes, which share the tables (`python -m dlrm.scripts.dist_main`)")
    return ModelMemory(parts, sizes, remedies)
