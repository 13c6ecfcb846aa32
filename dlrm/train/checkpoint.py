# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the training state of a DLRM.

The groups of tensors are those of `dlrm.model.weights`, each table's with its optimizer state, and
one group for the dense optimizer. Random draws need no saved state: each step seeds its own.
"""

from collections.abc import Sequence

from torch import Tensor

from dlrm.model.groups import MLP_OPTIMIZER_GROUP, WEIGHT, table_group
from dlrm.model.network import DlrmNetwork
from dlrm.model.weights import load_model, row_shards, weights_of
from dlrm.nn.embedding import LookupsT
from dlrm.train.step import DlrmTrainStep
from recsys.train.checkpoint import Checkpoint, CheckpointError
from recsys.train.loop import LoopState
from recsys.train.processes import ALONE, Processes
from recsys.train.recipe import SavedState

ROWS = "dataset_rows_fingerprint"
"""Key in a checkpoint's state: the fingerprint of the whole dataset, including its rows."""
DAYS = "days"
"""Key in a checkpoint's state: metrics of each day, tested before it was trained on."""
_OTHER_ROWS = (
    "name the dataset of the run with `dataset`, start a new run with `load_checkpoint_path`, or "
    "add `ignore_fingerprint` to continue anyway"
)


def _training_state(
    model: DlrmNetwork[LookupsT], step: DlrmTrainStep[LookupsT]
) -> dict[str, dict[str, Tensor]]:
    """Returns {group: {name: tensor}} of the optimizers' states."""
    groups = {MLP_OPTIMIZER_GROUP: step.mlp_optimizer.state()}
    if step.embedding_optimizer is not None:
        groups[MLP_OPTIMIZER_GROUP]["embedding_steps"] = step.embedding_optimizer.steps
        state = step.embedding_optimizer.state
        for name in state[0] if state else ():
            tensors = [table_state[name] for table_state in state]
            for i, shard in model.embeddings.shards().items():
                groups.setdefault(table_group(i), {})[name] = shard.view(tensors)
    return groups


def saved_state(
    model: DlrmNetwork[LookupsT], step: DlrmTrainStep[LookupsT], processes: Processes = ALONE
) -> SavedState:
    """Returns the tensors of a resumable checkpoint that this process writes."""
    groups = weights_of(model)
    for group, tensors in _training_state(model, step).items():
        groups.setdefault(group, {}).update(tensors)
    tables_saved_here = {
        table_group(i): shard.is_saved_here for i, shard in model.embeddings.shards().items()
    }
    own = {g: t for g, t in groups.items() if tables_saved_here.get(g, processes.is_first)}
    return SavedState(own, row_shards(model))


def restore_state(
    checkpoint: Checkpoint,
    model: DlrmNetwork[LookupsT],
    step: DlrmTrainStep[LookupsT],
    stored_rows: Sequence[int] | None = None,
) -> None:
    """Restores weights, optimizer states and the number of steps from a checkpoint.

    Args:
        checkpoint: the checkpoint.
        model: the model to change.
        step: its training step.
        stored_rows: see `load_model`; new rows keep the initial state of the optimizer.

    Raises:
        CheckpointError: the checkpoint is damaged or belongs to another model.
    """
    load_model(checkpoint, model, stored_rows)
    shards = row_shards(model)
    kept = {table_group(i): rows for i, rows in enumerate(stored_rows or ())}
    for group, tensors in _training_state(model, step).items():
        if group in kept:
            tensors = {name: state[: kept[group]] for name, state in tensors.items()}
        checkpoint.copy_into(group, tensors, shards.get(group), WEIGHT.__eq__)
    step.steps = checkpoint.count("step")


def check_same_rows(checkpoint: Checkpoint, now: str | None, dataset: str | None) -> None:
    """Refuses to continue a run on other rows than it was trained on.

    Raises:
        CheckpointError: both fingerprints are known, and they differ.
    """
    was = checkpoint.state.get(ROWS)
    if was and now and was != now:
        raise CheckpointError(
            f"{checkpoint.path}: was trained on other rows (dataset fingerprint {was}) than those "
            f"of {dataset} ({now}); {_OTHER_ROWS}",
            path=checkpoint.path,
        )


def check_position(checkpoint: Checkpoint, batches: int, dataset: str | None) -> None:
    """Refuses to continue a run if its epochs would have another number of batches.

    Raises:
        CheckpointError: the saved position does not occur in epochs of `batches` batches.
    """
    state = LoopState.from_dict(checkpoint.state)
    of_day = state.step - state.first_step
    if state.batch > batches or of_day != state.epoch * batches + state.batch:
        raise CheckpointError(
            f"{checkpoint.path}: was saved at step {state.step}, batch {state.batch} of epoch "
            f"{state.epoch}; this does not match epochs of {batches} batches, as {dataset} has; "
            f"{_OTHER_ROWS}",
            path=checkpoint.path,
        )
