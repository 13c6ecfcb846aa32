# SPDX-License-Identifier: Apache-2.0
"""Builds model, batches and training step for one or several devices.

The rest of the training code does not depend on the number of devices. The type of the lookups is
known only at run time.
"""

from collections.abc import Callable
from typing import Any

import torch

from dlrm.config import DlrmConfig
from dlrm.data.batch import SplitBatches, mixed_seed
from dlrm.data.open_split import SplitPass, open_split
from dlrm.data.opened import OpenedDataset
from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import RankColumns, open_rank_split
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm, place_tables
from dlrm.model.memory import TableRows, trained_memory
from dlrm.model.network import Dlrm, DlrmNetwork, build_tables
from dlrm.nn.bags import BaggedEmbedding
from dlrm.nn.embedding import Embeddings
from dlrm.train.step import DlrmTrainStep
from recsys.data.manifest import CLICKS_KIND
from recsys.train.memory import require_memory
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import Processes


def build_model(
    config: DlrmConfig,
    dataset: OpenedDataset,
    device: torch.device,
    processes: Processes,
    print_line: Callable[[str], None],
) -> DlrmNetwork[Any]:
    """Builds the model of this process, with random weights.

    On several ranks, the model holds this rank's shards of the tables.

    Raises:
        PlacementError: the tables do not fit, or the placement file does not match the run.
        OutOfMemoryError: the model does not fit in memory.
    """
    spec, rank, placement = dataset.spec, processes.rank, None
    names = spec.table_names
    rows = TableRows.of_model(config.model, names, spec.table_sizes)
    if processes.world_size > 1:
        placement = place_tables(config, spec, processes, device, print_line)
        rows = TableRows(*placement.rows_on(rank, names))
    require_memory(trained_memory(config, rows, len(names)), device, processes)
    model: DlrmNetwork[Any]
    with device:
        if placement is None:
            tables: Embeddings[Any] | None = None
            if spec.lists:
                tables = BaggedEmbedding.of(config.model, spec.table_sizes)
            elif config.run.grow:
                tables = build_tables(config.model, spec.table_sizes, draws=False)
            if config.run.grow:
                # The networks' values must not depend on how many rows the tables have by now,
                # which are drawn at the start of a day.
                torch.manual_seed(config.run.seed)
            model = Dlrm(config.model, spec.table_sizes, tables)
        else:
            torch.manual_seed(config.run.seed + rank)
            has_lists = bool(spec.lists)
            model = DistributedDlrm(config.model, placement, rank, has_lists=has_lists)
        # Criteo's tables keep the initialisation of the published recipes.
        if dataset.manifest is not None and dataset.manifest.kind == CLICKS_KIND:
            model.embeddings.start_unknown_at_zero()
        if isinstance(model, DistributedDlrm):
            model.broadcast_replicated()
    return model


def open_batches(
    config: DlrmConfig,
    dataset: OpenedDataset,
    wanted: SplitPass,
    model: DlrmNetwork[Any],
    device: torch.device,
) -> SplitBatches[Any]:
    """Opens the batches of a split; on several ranks, their lookups are exchanged.

    Raises:
        DatasetError: the split is missing or damaged.
    """
    if not isinstance(model, DistributedDlrm):
        return open_split(config, dataset, wanted, device)
    placement, rank = model.sharded.placement, model.sharded.rank
    rows = open_rank_split(config, dataset, RankColumns.of(placement, rank), wanted)
    hash_indices = config.model.hash_indices
    return ExchangedBatches(rows, placement, rank, device, hash_indices=hash_indices)


def build_train_step(
    config: DlrmConfig, model: DlrmNetwork[Any], precision: Precision
) -> DlrmTrainStep[Any]:
    """Builds the training step; it sums dense gradients over the ranks."""
    gradients, rank = None, 0
    if isinstance(model, DistributedDlrm):
        gradients, rank = AllReducedGradients(model), model.sharded.rank
    seed = mixed_seed(config.run.seed, rank)
    return DlrmTrainStep(model, config.optimizer, precision, gradients, seed=seed)
