# SPDX-License-Identifier: Apache-2.0
"""A recurrent network that reads a history item by item.

torch is imported only where it is needed, so that flags are defined without it.
"""

import copy
import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.ratings.data.split import training_lengths
from recsys.ratings.fitted.model import FittedModel
from recsys.resources import memory_limits
from recsys.settings import require_not_negative, require_positive, setting
from recsys.sizes import format_bytes
from recsys.train.config import OF_TRAINING

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from recsys.ratings.fitted.scores import MatrixScores
    from recsys.ratings.scorer import Histories

logger = logging.getLogger(__name__)

_LEAST_BATCHES = 25
"""Fewest batches between two rankings of the validation targets: few users make short epochs."""
_SILENT_S = 10.0
"""Longest time without a line of progress, in seconds."""

# Learning rate and batch size were chosen on the validation targets of MovieLens-100K, and on those
# of the first epochs on MovieLens-latest-small. On the former, a dropout of 0.5 was no better.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GruSettings:
    """Settings of the network and of its training."""

    emb_dim: int = setting(
        64, "Columns of the item embedding and of the hidden state", used_with=OF_TRAINING
    )
    dropout: float = setting(
        0.25, "Fraction of the inputs and outputs dropped in training", used_with=OF_TRAINING
    )
    last_items: int = setting(
        50,
        "How many of the newest items of a history count; training cuts longer histories in pieces",
        used_with=OF_TRAINING,
    )
    lr: float = setting(2e-3, "Learning rate of Adam", used_with=OF_TRAINING)
    batch_size: int = setting(
        32, "Histories, or pieces of them, in a training batch", used_with=OF_TRAINING
    )
    epochs: int = setting(200, "Largest number of training epochs", used_with=OF_TRAINING)
    patience: int = setting(
        5,
        f"Training ends after this many epochs (or {_LEAST_BATCHES} batches, if those are more) "
        "without a better NDCG@10 of the validation targets",
        used_with=OF_TRAINING,
    )
    init_seed: int = setting(
        0,
        "Seeds the initial parameters, dropout and order; two runs on a GPU still differ slightly",
        used_with=OF_TRAINING,
    )

    def __post_init__(self) -> None:
        """Refuses sizes and rates out of range."""
        require_positive(self, "emb_dim", "last_items", "batch_size", "epochs", "patience")
        require_not_negative(self, "init_seed")
        if not 0 <= self.dropout < 1:
            raise UserError(
                f"`dropout` must be at least 0 and below 1, got {self.dropout:g}", setting="dropout"
            )
        if not self.lr > 0:
            raise UserError(f"`lr` must be above 0, got {self.lr:g}", setting="lr")


@dataclasses.dataclass(frozen=True, slots=True)
class Gru(FittedModel[GruSettings]):
    """A gated recurrent unit, trained to predict the next item at each position.

    The loss is the softmax over all items; an item has the same vector as input and as output.
    Source: Hidasi et al., "Session-based recommendations with recurrent neural networks", 2016
    (GRU4Rec). The cross-entropy is that of Hidasi and Karatzoglou, 2018, over all items instead of
    sampled ones.

    Attributes:
        network: float64 on the CPU. In float32, a history's scores would depend on the other
            histories of its batch, and a server's answers would differ from the lists of the test.
    """

    settings: GruSettings
    network: "nn.ModuleDict"

    name = "gru"
    title = "GRU"
    settings_class = GruSettings

    @classmethod
    def fit(cls, sequences: Sequences, settings: GruSettings) -> Self:
        """Trains until the ranking of validation targets stops improving; keeps the best network.

        Raises:
            UserError: no user has two items to train on, or memory is too small.
            DivergenceError: the parameters became NaN or infinite.
        """
        import torch

        from recsys.train.optimizers.dense import build_dense_optimizer
        from recsys.train.optimizers.precision import resolve_device

        pieces = _pieces(sequences, settings.last_items)
        _require_memory(pieces, sequences.num_items, settings)
        torch.manual_seed(settings.init_seed)
        device = resolve_device("auto")
        network = _new_network(settings, sequences.num_items).to(device)
        optimizer = build_dense_optimizer("adam", [*network.parameters()])
        lr = torch.tensor(settings.lr, device=device)
        size = settings.batch_size
        epochs_of_round = -(-_LEAST_BATCHES // -(-len(pieces) // size))
        best, of_best, waited, shown = None, -1.0, 0, time.perf_counter()
        for epoch in range(1, settings.epochs + 1):
            order = torch.randperm(len(pieces)).tolist()
            batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
            for number, chosen in enumerate(batches, 1):
                batch = [pieces[index] for index in chosen]
                loss = _loss(network, batch, settings.dropout, device)
                network.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step(lr, 1.0, None)
                if time.perf_counter() - shown > _SILENT_S:
                    shown = time.perf_counter()
                    logger.info(
                        "epoch %d of at most %d, batch %d of %d: loss %.4f, best NDCG@10 of the "
                        "validation targets %.4f",
                        *(epoch, settings.epochs, number, len(batches), loss.item()),
                        max(of_best, 0),
                    )
            if epoch % epochs_of_round and epoch < settings.epochs:
                continue
            model = cls(settings, copy.deepcopy(network).cpu().double())
            if (found := model.validated(sequences)) > of_best:
                best, of_best, waited = model, found, 0
            elif (waited := waited + 1) == settings.patience:
                break
        assert best is not None  # `validated` refuses a diverged network
        return best

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        return len(self.network.get_parameter("item.bias"))

    def scorer(self, histories: "Histories") -> "MatrixScores":
        """Scores all items after each history."""
        import torch

        from recsys.ratings.fitted.scores import MatrixScores

        with torch.no_grad():
            ends = [items[-self.settings.last_items :] for items in histories]
            last = torch.tensor([len(items) - 1 for items in ends])
            states = _states(self.network, _padded(ends, torch.device("cpu")), 0.0)
            scores = self.network["item"](states[torch.arange(len(ends)), last])
        return MatrixScores(scores.numpy())

    def tensors(self) -> "dict[str, Tensor]":
        """Returns the parameters by name."""
        return dict(self.network.state_dict())

    @classmethod
    def of_tensors(
        cls, tensors: "Mapping[str, Tensor]", settings: GruSettings, num_items: int
    ) -> Self:
        """Builds the model around the result of `tensors`, without a copy."""
        import torch

        with torch.device("meta"):  # allocates nothing: `assign` replaces the parameters
            network = _new_network(settings, num_items)
        for name, parameter in network.state_dict().items():
            if tensors[name].shape != parameter.shape:
                raise ValueError(
                    f"{name} is {list(tensors[name].shape)}, not {list(parameter.shape)}"
                )
        network.load_state_dict(dict(tensors), strict=False, assign=True)
        return cls(settings, network)

    @classmethod
    def history_length(cls, settings: GruSettings) -> int:
        """Returns the largest number of items of a history that count."""
        return settings.last_items


def _new_network(settings: GruSettings, num_items: int) -> "nn.ModuleDict":
    """Returns the recurrent unit, and the vectors and biases of the items, untrained."""
    from torch import nn

    width = settings.emb_dim
    gru = nn.GRU(width, width, batch_first=True)
    return nn.ModuleDict({"item": nn.Linear(width, num_items), "gru": gru})


def _pieces(sequences: Sequences, length: int) -> "list[npt.NDArray[np.int64]]":
    """Cuts the training items of each history into pieces, from its end.

    Args:
        length: T, largest number of inputs of a piece.

    Returns:
        Arrays of 2 to T + 1 items. Each begins with the last item of the piece before, so that
        every item except a history's first is a target once.

    Raises:
        UserError: no history has two training items.
    """
    pieces = [
        sequences[user][max(end - length - 1, 0) : end].astype(np.int64)
        for user, count in enumerate(training_lengths(sequences).tolist())
        for end in range(count, 1, -length)
    ]
    if not pieces:
        raise UserError(
            "no user has two items to train on, so no item follows another; add ratings"
        )
    return pieces


def _require_memory(pieces: "Histories", num_items: int, settings: GruSettings) -> None:
    """Refuses batches whose scores of all items do not fit in free memory."""
    targets = settings.batch_size * (max(map(len, pieces)) - 1)
    needed, limit = 3 * 4 * targets * num_items, memory_limits()[0]  # scores, softmax, gradient
    if needed > limit.available:
        raise UserError(
            f"the scores of {num_items} items at up to {targets} positions of a batch need "
            f"{format_bytes(needed)} of memory, but {format_bytes(max(limit.available, 0))} are "
            f"{limit.name}; lower `batch_size`",
            setting="batch_size",
        )


def _padded(histories: "Histories", device: "torch.device") -> "Tensor":
    """Returns [B, T] int64 items on a device, padded with zeros at the end."""
    import torch

    rows = [torch.from_numpy(items) for items in histories]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)


def _states(network: "nn.ModuleDict", items: "Tensor", dropout: float) -> "Tensor":
    """Returns [B, T, D] states after each of [B, T] items; padding at the end has no effect."""
    from torch.nn import functional as F

    # Padding gets the vector of item 1; nothing reads the states after it.
    vectors = F.embedding((items - 1).clamp(min=0), network.get_parameter("item.weight"))
    states, _ = network["gru"](F.dropout(vectors, dropout))
    found: Tensor = F.dropout(states, dropout)
    return found


def _loss(
    network: "nn.ModuleDict", pieces: "Histories", dropout: float, device: "torch.device"
) -> "Tensor":
    """Returns the mean cross-entropy of the next item over all positions of a batch."""
    from torch.nn import functional as F

    items = _padded(pieces, device)
    known, following = items[:, :-1], items[:, 1:]
    is_target = following > 0
    scores = network["item"](_states(network, known, dropout)[is_target])  # [M, I]
    return F.cross_entropy(scores, following[is_target] - 1)
