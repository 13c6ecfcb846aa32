# SPDX-License-Identifier: Apache-2.0
"""Builds model, batches and training step for one or several devices.

The rest of the training code does not depend on the number of devices. The type of the lookups is
known only at run time.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cuda_ext import library
from dlrm.config import DlrmConfig
from dlrm.data.batch import SplitBatches, mixed_seed
from dlrm.data.open_split import SplitPass, open_split
from dlrm.data.opened import OpenedDataset
from dlrm.data.prefetch import PrefetchedBatches
from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import RankColumns, open_rank_split
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm, place_tables
from dlrm.model.memory import TableRows, trained_memory
from dlrm.model.network import Dlrm, DlrmNetwork, build_tables
from dlrm.nn.bags import BaggedEmbedding
from dlrm.nn.embedding import Embeddings, JointEmbeddings
from dlrm.nn.growing_rows import draw_all_rows
from dlrm.nn.shards import NUM_SHARDS
from dlrm.nn.table_files import TableFiles
from dlrm.train.step import DlrmTrainStep
from recsys.data.manifest import CLICKS_KIND
from recsys.errors import UserError
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
    files = None
    rows = TableRows.of_model(config.model, names, spec.table_sizes)
    if processes.world_size > 1:
        placement = place_tables(config, spec, processes, device, print_line)
        rows = TableRows(*placement.rows_on(rank, names))
    needed = trained_memory(config, rows, len(names))
    require_memory(needed, device, processes)
    if (limit := config.run.table_memory) is not None:
        _check_table_files(device, processes)
        folder = config.checkpoint_folder or Path(tempfile.gettempdir())
        files = TableFiles(folder, limit, sum(needed.tables.values()))
    # The networks' values must not depend on how many rows of the tables this process has by now.
    draws_later = config.run.grow or config.run.deterministic
    model: DlrmNetwork[Any]
    with device:
        if placement is None:
            tables: Embeddings[Any] | None = None
            if spec.lists:
                tables = BaggedEmbedding.of(config.model, spec.table_sizes, files)
            elif draws_later:
                tables = build_tables(config.model, spec.table_sizes, draws=False, files=files)
            if draws_later:
                torch.manual_seed(config.run.seed)
            model = Dlrm(config.model, spec.table_sizes, tables, files)
        else:
            torch.manual_seed(config.run.seed + (0 if config.run.deterministic else rank))
            model = DistributedDlrm(
                config.model,
                placement,
                rank,
                has_lists=bool(spec.lists),
                draws=not config.run.deterministic,
            )
        if config.run.deterministic:
            draw_all_rows(model.embeddings, names, config.run.seed)
            model.add_in_shards(NUM_SHARDS // processes.world_size)
        # Criteo's tables keep the initialisation of the published recipes.
        if dataset.manifest is not None and dataset.manifest.kind == CLICKS_KIND:
            model.embeddings.start_unknown_at_zero()
        if isinstance(model, DistributedDlrm):
            model.broadcast_replicated()
    return model


def _check_table_files(device: torch.device, processes: Processes) -> None:
    """Refuses a run that cannot keep its tables in files.

    Raises:
        UserError: says why.
    """
    if processes.world_size > 1 or device.type != "cpu":
        raise UserError(
            f"`table_memory` is for one process on a CPU, not {processes.world_size} on "
            f"{device.type}; leave it out, or set `base_device` cpu and run without torchrun",
            settings=("table_memory", "base_device"),
        )
    if not sys.platform.startswith("linux"):
        raise UserError("`table_memory` needs Linux; leave it out", setting="table_memory")
    if "cpu" not in library.COMPILED_FOR:
        raise UserError(
            "`table_memory` needs the compiled kernels of cuda_ext: "
            f"{library.why_not_compiled('cpu')}",
            setting="table_memory",
        )


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
        batches = open_split(config, dataset, wanted, device)
        tables = model.embeddings
        if isinstance(tables, JointEmbeddings) and tables.files is not None:
            return PrefetchedBatches(batches, tables)
        return batches
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
