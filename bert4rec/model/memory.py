# SPDX-License-Identifier: Apache-2.0
"""Computes the memory that a BERT4Rec needs, before it is built."""

from bert4rec.config import AdapterConfig, Bert4RecConfig, ModelConfig
from bert4rec.model.network import NO_ADAPTER, Bert4Rec
from cuda_ext import RowOptimizer
from cuda_ext.row_rules import ROW_RULES
from recsys.train.memory import ModelMemory, count_bytes

_FLOAT = 4
_ADAM_COPIES = 4
"""Weights, their gradients and two moments."""
_ITEMS, _HEAD = "item embeddings", "vectors of the items in the head"


def loaded_memory(
    config: ModelConfig, num_items: int, adapter: AdapterConfig = NO_ADAPTER
) -> ModelMemory:
    """Returns the memory of a model that is not trained."""
    table = num_items * config.emb_dim * _FLOAT
    tables = {_ITEMS: table} | ({} if config.head == "tied" else {_HEAD: table})
    biases = num_items * _FLOAT
    layers = count_bytes(lambda: Bert4Rec(config, 1, adapter)) + biases
    parts = {"item tables": sum(tables.values()), "layers": layers}
    return ModelMemory(parts, tables, ["a smaller `emb_dim`", "fewer items in the dataset"])


def trained_memory(
    config: Bert4RecConfig, num_items: int, rule: RowOptimizer, *, keeps_best: bool = False
) -> ModelMemory:
    """Returns the memory of a run, including the optimizers if it trains.

    Args:
        config: settings of the run.
        num_items: items of the catalogue.
        rule: optimizer of the item rows.
        keeps_best: the best weights are kept in this memory too, for the test.
    """
    model, loaded = config.model, loaded_memory(config.model, num_items, config.adapter)
    if config.run.mode != "train":
        return loaded
    kept = {"the best weights, to be tested": loaded.total} if keeps_best else {}
    remedies = [*loaded.remedies, *(["`export_root`, for the best weights"] if keeps_best else [])]
    if config.adapter.adapter != "none":
        frozen = loaded_memory(model, num_items).total
        trained = (loaded.total - frozen) * (_ADAM_COPIES - 1)
        parts = {**loaded.parts, "gradients and optimizer of the adapters": trained, **kept}
        return ModelMemory(parts, loaded.tables, [*remedies, "a smaller `adapter_rank`"])
    parts, tables = {**loaded.parts, **kept}, dict(loaded.tables)
    parts["layers, their gradients and optimizer"] = parts.pop("layers") * _ADAM_COPIES
    state = num_items * ROW_RULES[rule].state_bytes_per_row(model.emb_dim)
    by_rows: set[str] = set()
    if config.updates_rows:
        by_rows = {_ITEMS} if config.objective.loss == "full" else set(tables)
    dense = _ADAM_COPIES - 1
    extra = {n: state if n in by_rows else size * dense for n, size in tables.items()}
    parts["gradients and optimizer state of the items"] = sum(extra.values())
    if config.run.parallelism == "dmp":
        # TorchRec shards a copy of the whole tables.
        parts["copy of the tables for TorchRec"] = sum(tables[name] for name in by_rows)
    if config.objective.loss == "full":
        remedies.append("`loss` sampled, which does not compute a gradient for every item")
    tables = {name: size + extra[name] for name, size in tables.items()}
    return ModelMemory(parts, tables, remedies)
