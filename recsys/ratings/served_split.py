# SPDX-License-Identifier: Apache-2.0
"""Evaluates a deployed model on a split, and compares it with its checkpoint."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recsys.data.sequences.files import read_sequences
from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.data.split import Split, known_lengths, true_items
from recsys.ratings.model import RatingsModel, StoredModel
from recsys.ratings.ranking.metrics import ranking_metrics
from recsys.ratings.scorer import Histories, history_item_pairs, largest_difference
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import Signature

LIST_LENGTH = 10
"""K of HR@K and NDCG@K."""

Predict = Callable[[Iterable[Arrays]], Iterable[Arrays]]
"""Maps requests to responses, in their order."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedRanking:
    """Metrics of a deployed model on a split.

    Attributes:
        served: `hr@10` and `ndcg@10` of the served lists, among the items that were not sent.
        offline: the same metrics of the checkpoint; None without a checkpoint.
        largest_difference: largest difference between a served score and the checkpoint's, relative
            to the latter if that is above 1; None without a checkpoint.
        num_users: U, the users.
        met_before: users whose true item is in their history, a miss on both sides.
        users_per_s: users per second, including the checkpoint's evaluation.
    """

    served: dict[str, float]
    offline: dict[str, float] | None
    largest_difference: float | None
    num_users: int
    met_before: int
    users_per_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class UserRequest:
    """A request for recommendations to some users.

    Attributes:
        users: [B] int64 users.
        histories: items that are sent for each user, oldest first.
    """

    users: npt.NDArray[np.int64]
    histories: Histories
    arrays: Arrays

    def __len__(self) -> int:
        return len(self.users)


def open_dataset(
    root: Path, stored: StoredModel | None, *, ignore_fingerprint: bool = False
) -> Sequences:
    """Reads the sequences that a model was trained on.

    Without `stored`, nothing is compared.

    Raises:
        DatasetError: the dataset is missing or damaged.
        CheckpointError: the model was trained on another dataset.
        UserError: the dataset has a temporal split.
    """
    sequences = read_sequences(root)
    if stored is None:
        return sequences
    OpenedHistories.of_folder(root, "dataset").check_model(
        stored.path, stored.origin, sequences.num_items, ignore_fingerprint=ignore_fingerprint
    )
    if sequences.timestamps is not None:
        raise UserError(
            f"{root}: is split by time, but a deployed model can only be evaluated on a "
            "leave-one-out split; test the checkpoint instead",
            setting="mode",
        )
    return sequences


def read_requests(
    sequences: Sequences, split: Split, signature: Signature, batch_size: int
) -> Iterator[UserRequest]:
    """Yields requests for unseen items; a model of fixed length gets the last items."""
    history, exclude_seen = signature.inputs
    (length,) = history.shape
    known = known_lengths(sequences, split)
    for start in range(0, sequences.num_users, batch_size):
        users = np.arange(start, min(start + batch_size, sequences.num_users))
        whole = [sequences[user][: known[user]].astype(np.int64) for user in users.tolist()]
        sent = whole if length == -1 else [items[-length:] for items in whole]
        width = max(map(len, sent)) if length == -1 else length
        padded = np.zeros((len(users), width), np.int64)
        for row, items in zip(padded, sent, strict=True):
            row[: len(items)] = items
        excluded = np.ones((len(users), 1), np.bool_)
        yield UserRequest(users, sent, {history.name: padded, exclude_seen.name: excluded})


class _RankCollector:
    """Collects the ranks of all users, response by response.

    Args:
        truth: [U] int32 true item of each user.
    """

    def __init__(self, truth: npt.NDArray[np.int32], model: RatingsModel | None) -> None:
        self._truth, self._model = truth.astype(np.int64), model
        self._miss = np.iinfo(np.int64).max
        self.served = np.full(len(truth), self._miss)
        self.offline = np.full(len(truth), self._miss)
        self.differences: list[float] = []
        self.met_before = 0

    def add(
        self,
        request: UserRequest,
        items: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
    ) -> None:
        """Adds the [B, K] items and scores of a response."""
        truth = self._truth[request.users]
        hit = items == truth[:, None]
        of_truth = np.take_along_axis(scores, hit.argmax(1)[:, None], 1)
        ranks_served = (~(scores < of_truth)).sum(1) - 1  # the tie rule of `Scorer.ranks`
        self.served[request.users] = np.where(hit.any(1), ranks_served, self._miss)
        met = np.array([t in h for t, h in zip(truth, request.histories, strict=True)])
        self.met_before += int(met.sum())
        if self._model is None:
            return
        scorer, device = self._model.scorer(request.histories), self._model.device
        others = [
            np.setdiff1d(history, true)  # each item once, never the true item, as `ranks` requires
            for history, true in zip(request.histories, truth, strict=True)
        ]
        true_item = torch.from_numpy(truth).to(device)
        _, ranks = scorer.ranks(true_item, *history_item_pairs(others, device))
        self.offline[request.users] = np.where(met, self._miss, ranks.cpu().numpy())
        seen = history_item_pairs(request.histories, device)
        self.differences.append(
            largest_difference(scorer, torch.tensor(items), torch.tensor(scores), *seen)
        )


def _metrics(ranks: npt.NDArray[np.int64]) -> dict[str, float]:
    metrics = ranking_metrics(ranks, (LIST_LENGTH,))
    return {name: metrics[name] for name in (f"hr@{LIST_LENGTH}", f"ndcg@{LIST_LENGTH}")}


@torch.inference_mode()
def score_served_split(
    sequences: Sequences,
    split: Split,
    signature: Signature,
    predict: Predict,
    batch_size: int,
    model: RatingsModel | None,
) -> ServedRanking:
    """Ranks every user's target in the lists of a deployed model.

    Raises:
        UserError: the lists of the served model are shorter than 10 items.
    """
    items, scores, *_ = signature.outputs  # may be followed by titles
    (top_k,) = items.shape
    if top_k < LIST_LENGTH:
        raise UserError(
            f"the served model answers with {top_k} items, but HR@{LIST_LENGTH} needs "
            f"{LIST_LENGTH}: deploy it with `top_k` {LIST_LENGTH} or more",
            setting="top_k",
        )
    collector = _RankCollector(true_items(sequences, split), model)
    under_way: collections.deque[UserRequest] = collections.deque()

    def requests() -> Iterator[Arrays]:
        for request in read_requests(sequences, split, signature, batch_size):
            under_way.append(request)
            yield request.arrays

    started = time.perf_counter()
    for response in predict(requests()):
        collector.add(under_way.popleft(), response[items.name], response[scores.name])
    elapsed = time.perf_counter() - started
    return ServedRanking(
        served=_metrics(collector.served),
        offline=None if model is None else _metrics(collector.offline),
        largest_difference=None if model is None else float(np.max(collector.differences)),
        num_users=sequences.num_users,
        met_before=collector.met_before,
        users_per_s=sequences.num_users / elapsed,
    )
