# SPDX-License-Identifier: Apache-2.0
"""What a BERT4Rec checkpoint holds, and how it is put back."""

from bert4rec.config import SECTIONS, Bert4RecConfig
from bert4rec.data.sources import dataset_root
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import (
    FINGERPRINT,
    MODEL_GROUP,
    NUM_ITEMS,
    describe_model,
    weights_of,
)
from bert4rec.train.step import Bert4RecTrainStep
from recsys.settings import resumable_settings
from recsys.train.checkpoint import CheckpointFolder, read_checkpoint
from recsys.train.loop import LoopState
from recsys.train.processes import ALONE, Processes

_OPTIMIZER, _ITEM_OPTIMIZER = "optimizer", "item_optimizer"


def save_run(
    folder: CheckpointFolder,
    config: Bert4RecConfig,
    num_items: int,
    fingerprint: str | None,
    model: Bert4Rec,
    step: Bert4RecTrainStep,
    state: LoopState,
    is_best: bool,
    processes: Processes = ALONE,
) -> None:
    """Saves everything that a resumed run needs; what it draws follows from the batch numbers.

    Every process must call it; the first one writes.
    """
    values = state.to_dict() | {NUM_ITEMS: num_items, FINGERPRINT: fingerprint}
    with step.whole_tables():
        groups = {MODEL_GROUP: weights_of(model), _OPTIMIZER: step.optimizer.state()}
        item_state = step.item_state()
        if item_state:
            groups[_ITEM_OPTIMIZER] = item_state
        if processes.is_first:
            folder.save(state.step, groups, values, config.to_dict(), is_best)
    processes.barrier()


def resume_run(
    folder: CheckpointFolder,
    config: Bert4RecConfig,
    fingerprint: str | None,
    model: Bert4Rec,
    step: Bert4RecTrainStep,
) -> LoopState | None:
    """Puts a run back where its latest checkpoint left it.

    Returns:
        Where it stands; None where nothing was saved yet.

    Raises:
        CheckpointError: the checkpoint is damaged, or was made with other settings or data.
    """
    latest = folder.latest()
    if latest is None:
        return None
    checkpoint = read_checkpoint(latest)
    checkpoint.check_same_settings(config.to_dict(), resumable_settings(SECTIONS))
    describe_model(latest).check_dataset(
        model.num_items,
        fingerprint,
        str(dataset_root(config.data) or config.data.dataset_name),
        "--dataset_path",
    )
    with step.whole_tables():
        checkpoint.copy_into(MODEL_GROUP, weights_of(model))
        checkpoint.copy_into(_OPTIMIZER, step.optimizer.state())
        item_state = step.item_state()
        if item_state:
            checkpoint.copy_into(_ITEM_OPTIMIZER, item_state)
        step.load_item_state(item_state)
    return LoopState.from_dict(checkpoint.state)
