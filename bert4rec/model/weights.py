# SPDX-License-Identifier: Apache-2.0
"""Reads the model, its settings and weights from a checkpoint."""

import dataclasses
import logging
from pathlib import Path

from torch import Tensor

from bert4rec.config import AdapterConfig, ModelConfig, ObjectiveConfig
from bert4rec.model.memory import loaded_memory
from bert4rec.model.merge import merged_weights
from bert4rec.model.network import ADAPTERS, Bert4Rec
from recsys.settings import section_from_dict
from recsys.train.checkpoint import Checkpoint, CheckpointError, read_checkpoint
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
        CheckpointError: it is missing or damaged, a shape differs, or it has tensors that the
            model lacks.
    """
    checkpoint = read_checkpoint(path)
    adapter = adapter_of(checkpoint).adapter
    if adapter != "none" and model.adapters is None:
        raise CheckpointError(f"{checkpoint.path}: has adapters ({adapter}), the model has none")
    logger.info("Loading %s", checkpoint.path)
    checkpoint.copy_into(MODEL_GROUP, weights_of(model))


def load_base(path: Path, model: Bert4Rec) -> None:
    """Copies the weights of a checkpoint into a model's frozen layers.

    Adapters of the checkpoint are merged into their layers first.

    Raises:
        CheckpointError: it is missing or damaged, a shape differs, or its adapters depend on the
            history.
    """
    checkpoint = read_checkpoint(path)
    adapter = adapter_of(checkpoint)
    plain = {n: w for n, w in weights_of(model).items() if not n.startswith(ADAPTERS)}
    if not adapter.is_constant:
        raise CheckpointError(
            f"{checkpoint.path}: its adapters ({adapter.adapter}) depend on the history, so no "
            "weights of a layer equal them and it cannot be trained further as a base; continue "
            "its own run by `resume`, or load the checkpoint that it started from"
        )
    logger.info("Loading %s", checkpoint.path)
    checkpoint.copy_into(MODEL_GROUP, plain, left_out=lambda name: name.startswith(ADAPTERS))
    if adapter.adapter != "none":
        logger.info("Merging its adapters (%s) into their layers", adapter.adapter)
        for name, weight in merged_weights(checkpoint.tensors(MODEL_GROUP), adapter).items():
            plain[name].copy_(weight)


def adapter_of(checkpoint: Checkpoint) -> AdapterConfig:
    """Reads the settings of a checkpoint's adapters; none in earlier releases."""
    return section_from_dict(AdapterConfig, checkpoint.settings(AdapterConfig))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """The model of a checkpoint, without its weights.

    Attributes:
        path: folder of the checkpoint itself, not of the run.
        step: steps that the model was trained for.
        config: settings of the network.
        adapter: settings of its adapters.
        causal: the model predicts the next item at the last one, without a mask item.
        num_items: items of the catalogue.
        origin: training dataset.
    """

    path: Path
    step: int
    config: ModelConfig
    adapter: AdapterConfig
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
        require_memory(loaded_memory(self.config, self.num_items, self.adapter))
        model = Bert4Rec(self.config, self.num_items, self.adapter)
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
        adapter=adapter_of(checkpoint),
        causal=objective.objective == "causal",
        num_items=num_items,
        origin=Origin.of_checkpoint({"items": num_items}, checkpoint.state),
    )


def is_bert4rec_checkpoint(path: Path) -> bool:
    """Tells checkpoints of BERT4Rec from those of other models.

    Raises:
        CheckpointError: there is none, or it is incomplete.
    """
    return NUM_ITEMS in read_checkpoint(path).state
