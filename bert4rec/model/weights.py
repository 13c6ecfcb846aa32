# SPDX-License-Identifier: Apache-2.0
"""Reads the model, its settings and weights from a checkpoint."""

import dataclasses
import logging
from pathlib import Path

from torch import Tensor

from bert4rec.config import ModelConfig, ObjectiveConfig
from bert4rec.model.memory import loaded_memory
from bert4rec.model.network import Bert4Rec
from recsys.settings import section_from_dict
from recsys.train.checkpoint import CheckpointError, read_checkpoint
from recsys.train.memory import require_memory
from recsys.train.origin import Origin, check_same_dataset

logger = logging.getLogger(__name__)

MODEL_GROUP = "model"
NUM_ITEMS = "num_items"
"""Key of the number of items in the state of a checkpoint."""


def weights_of(model: Bert4Rec) -> dict[str, Tensor]:
    """Returns every parameter of a model by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_weights(path: Path, model: Bert4Rec) -> None:
    """Copies the weights of a checkpoint into a model.

    Raises:
        CheckpointError: it is missing or damaged, or a shape differs.
    """
    checkpoint = read_checkpoint(path)
    logger.info("Loading %s", checkpoint.path)
    checkpoint.copy_into(MODEL_GROUP, weights_of(model))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """The model of a checkpoint, without its weights.

    Attributes:
        path: folder of the checkpoint itself, not of the run.
        step: steps that the model was trained for.
        config: settings of the network.
        causal: the model predicts the next item at the last one, without a mask item.
        num_items: items of the catalogue.
        origin: training dataset.
    """

    path: Path
    step: int
    config: ModelConfig
    causal: bool
    num_items: int
    origin: Origin

    def check_dataset(
        self,
        num_items: int,
        fingerprint: str,
        dataset: str,
        setting: str,
        *,
        ignore_fingerprint: bool = False,
    ) -> None:
        """Refuses another dataset than that of the training; see `check_same_dataset`.

        Args:
            num_items: items of the dataset.
            fingerprint: fingerprint of the dataset.
            dataset: name of the dataset for the message.
            setting: setting that names the dataset, for the message.
            ignore_fingerprint: compare the number of items alone.
        """
        check_same_dataset(
            self.path,
            self.origin,
            Origin({"items": num_items}, fingerprint),
            dataset,
            f"name the dataset of the training with {setting}",
            ignore_fingerprint=ignore_fingerprint,
        )

    def load(self) -> Bert4Rec:
        """Returns the model with its weights, in evaluation mode on the CPU.

        Raises:
            CheckpointError: a file is missing or damaged, or a shape differs.
            OutOfMemoryError: it does not fit in memory.
        """
        require_memory(loaded_memory(self.config, self.num_items))
        model = Bert4Rec(self.config, self.num_items)
        load_weights(self.path, model)
        return model.eval()


def describe_model(path: Path) -> StoredModel:
    """Reads the settings of a checkpoint's model, but no weights.

    Args:
        path: a checkpoint, or the folder of a run.

    Raises:
        CheckpointError: it is missing, damaged or of another model.
    """
    checkpoint = read_checkpoint(path)
    if NUM_ITEMS not in checkpoint.state:
        raise CheckpointError(f"{checkpoint.path}: not a checkpoint of BERT4Rec")
    objective = section_from_dict(ObjectiveConfig, checkpoint.settings(ObjectiveConfig))
    num_items = checkpoint.count(NUM_ITEMS)
    return StoredModel(
        path=checkpoint.path,
        step=checkpoint.count("step", 0),
        config=section_from_dict(ModelConfig, checkpoint.settings(ModelConfig)),
        causal=objective.objective == "causal",
        num_items=num_items,
        origin=Origin.of_checkpoint({"items": num_items}, checkpoint.state),
    )


def is_bert4rec_checkpoint(path: Path) -> bool:
    """Tells checkpoints of BERT4Rec from any other folder."""
    try:
        return NUM_ITEMS in read_checkpoint(path).state
    except CheckpointError:
        return False
