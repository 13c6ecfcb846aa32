# SPDX-License-Identifier: Apache-2.0
"""Reads a model from a checkpoint, and merges adapters into layers."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from bert4rec.config import AdapterConfig, ModelConfig, ObjectiveConfig
from bert4rec.model.memory import loaded_memory
from bert4rec.model.network import ADAPTERS, Bert4Rec
from bert4rec.model.scoring import TrainedBert4Rec
from recsys.train.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from recsys.train.memory import require_memory, shapes_alone
from recsys.train.origin import Origin

logger = logging.getLogger(__name__)

MODEL_GROUP, OPTIMIZER_GROUP, ITEM_OPTIMIZER_GROUP = "model", "optimizer", "item_optimizer"
TABLE, HEAD_WEIGHT, HEAD_BIAS = "embedding.items", "head.weight", "head.bias"
"""Parameters with a row for each item."""
NUM_ITEMS = "num_items"
"""Key of the number of items in the state of a checkpoint."""


def weights_of(model: Bert4Rec) -> dict[str, Tensor]:
    """Returns every parameter of a model by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@dataclasses.dataclass(frozen=True, slots=True)
class Bert4RecCheckpoint:
    """A checkpoint of a BERT4Rec, whose weights are read only when they are needed.

    Attributes:
        checkpoint: the underlying checkpoint.
        num_items: items of the catalogue.
        config: settings of the network.
        adapter: settings of its adapters.
        causal: the model predicts from the last item, without a mask item.
    """

    checkpoint: Checkpoint
    num_items: int
    config: ModelConfig
    adapter: AdapterConfig
    causal: bool

    @classmethod
    def open(cls, path: Path) -> "Bert4RecCheckpoint":
        """Opens a checkpoint, or the folder of a run.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or of another model.
        """
        return cls.from_checkpoint(read_checkpoint(path))

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "Bert4RecCheckpoint":
        """Reads the settings of a checkpoint's model.

        Raises:
            CheckpointError: the checkpoint is of another model.
        """
        checkpoint.require_model(Bert4Rec.name, "BERT4Rec")
        checkpoint.check_groups((MODEL_GROUP, OPTIMIZER_GROUP, ITEM_OPTIMIZER_GROUP))
        return cls(
            checkpoint,
            checkpoint.count(NUM_ITEMS),
            checkpoint.section(ModelConfig),
            checkpoint.section(AdapterConfig),
            causal=checkpoint.section(ObjectiveConfig).objective == "causal",
        )

    @property
    def path(self) -> Path:
        """Folder of the checkpoint itself, not of the run."""
        return self.checkpoint.path

    @property
    def step(self) -> int:
        """Number of steps that the model was trained for."""
        return self.checkpoint.count("step", 0)

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return Origin.of_checkpoint({"items": self.num_items}, self.checkpoint.state)

    def load_into(self, model: Bert4Rec) -> None:
        """Copies the weights into a model.

        Raises:
            CheckpointError: the weights are damaged, a shape differs, or the model lacks a tensor.
        """
        if self.adapter.adapter != "none" and model.adapters is None:
            raise CheckpointError(
                f"{self.path}: has adapters ({self.adapter.adapter}), but the model has none",
                path=self.path,
            )
        logger.info("Loading %s", self.path)
        self.checkpoint.copy_into(MODEL_GROUP, weights_of(model))

    def load_base_into(self, model: Bert4Rec) -> None:
        """Copies the weights into a model's frozen layers, and merges the checkpoint's adapters.

        The model may have more items: those after the checkpoint's keep their values.

        Raises:
            CheckpointError: the weights are damaged, a shape differs, or the adapters depend on
                the history.
        """
        plain = {n: w for n, w in weights_of(model).items() if not n.startswith(ADAPTERS)}
        if not self.adapter.is_constant:
            raise CheckpointError(
                f"{self.path}: its adapters ({self.adapter.adapter}) depend on the history, so "
                "they cannot be merged into the layers for another training: continue its own run "
                "with `resume`, or load the checkpoint that it started from",
                setting="resume",
                path=self.path,
            )
        logger.info("Loading %s", self.path)
        with _rows_of_items(plain, self.num_items, model.num_items):
            self._copy_plain(plain)

    def _copy_plain(self, plain: dict[str, Tensor]) -> None:
        """Copies the weights without adapters, and merges the checkpoint's."""
        stored = self.checkpoint
        stored.copy_into(MODEL_GROUP, plain, left_out=lambda name: name.startswith(ADAPTERS))
        if self.adapter.adapter != "none":
            logger.info("Merging its adapters (%s) into their layers", self.adapter.adapter)
            for name, weight in merged_weights(stored.tensors(MODEL_GROUP), self.adapter).items():
                plain[name].copy_(weight)

    def load(self) -> Bert4Rec:
        """Returns the model with its weights, in evaluation mode on the CPU.

        Raises:
            CheckpointError: a file is missing or damaged, or a shape differs.
            OutOfMemoryError: the model does not fit in memory.
        """
        require_memory(loaded_memory(self.config, self.num_items, self.adapter))
        model = Bert4Rec(self.config, self.num_items, self.adapter)
        self.load_into(model)
        return model.eval()

    def open_model(self) -> TrainedBert4Rec:
        """Returns the model of `load` for scoring, without packed items."""
        return TrainedBert4Rec(self.load(), self.causal)


@contextlib.contextmanager
def _rows_of_items(plain: dict[str, Tensor], known: int, items: int) -> Iterator[None]:
    """Replaces the tensors of a larger catalogue by their first rows, to copy into them.

    Args:
        plain: parameters by name; entries are replaced.
        known: items of the checkpoint.
        items: items of the model.
    """
    if known >= items:
        yield
        return
    table = plain[TABLE]
    first_new = table[known + 1].clone()  # the checkpoint has the mask item there
    plain[TABLE] = table[: known + 2]
    for name in (HEAD_WEIGHT, HEAD_BIAS):
        if name in plain:
            plain[name] = plain[name][:known]
    yield
    with torch.no_grad():
        table[items + 1] = table[known + 1]
        table[known + 1] = first_new


def merged_weights(weights: Mapping[str, Tensor], adapter: AdapterConfig) -> dict[str, Tensor]:
    """Returns the weights of an equivalent network without adapters.

    Args:
        weights: parameters of a network with constant adapters, or without any, by name.
        adapter: settings of the adapters.
    """
    assert adapter.is_constant, "experts that depend on the history cannot be merged"
    plain = {name: w for name, w in weights.items() if not name.startswith(ADAPTERS)}
    for name, b in weights.items():
        if name.startswith(ADAPTERS) and name.endswith(".b"):
            layer = name.removeprefix(ADAPTERS).removesuffix(".b")
            change = b.double() @ weights[f"{ADAPTERS}{layer}.a"].double()
            weight = plain[f"{layer}.weight"]  # rounded once
            plain[f"{layer}.weight"] = (weight + adapter.scale * change).to(weight.dtype)
    return plain


def merged(model: Bert4Rec, config: ModelConfig, adapter: AdapterConfig) -> Bert4Rec:
    """Returns an equivalent network without adapters.

    It shares all tensors except the changed weights with `model`.

    Args:
        model: a network with constant adapters.
        config: settings of the network.
        adapter: settings of the adapters.
    """
    with shapes_alone():
        plain = Bert4Rec(config, model.num_items)
    plain.load_state_dict(merged_weights(model.state_dict(), adapter), assign=True)
    return plain.train(model.training).requires_grad_(False)
