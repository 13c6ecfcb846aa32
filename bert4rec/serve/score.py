# SPDX-License-Identifier: Apache-2.0
"""Ranks a split with a deployed BERT4Rec, on a server or not, beside its checkpoint.

Letters: U users, B users of a request, K items of an answer.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bert4rec.data.split import Split, known_lengths, true_items
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import Histories, ask, pairs
from bert4rec.model.weights import StoredModel
from bert4rec.train.metrics import ranking_metrics
from recsys.data.manifest import Manifest
from recsys.data.sequences import Sequences, read_sequences
from recsys.errors import UserError
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import Signature

LIST_LENGTH = 10
"""K of the figures, HR@K and NDCG@K."""

Answer = Callable[[Iterable[Arrays]], Iterable[Arrays]]
"""Answers requests in their order."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedRanking:
    """What the users of a split got.

    Attributes:
        served: `hr@10` and `ndcg@10` of the server's lists, among the items it was not sent.
        offline: of the checkpoint's ranks among the same items; None without one.
        largest_difference: of a score, relative to the checkpoint's where that is above 1.
        num_users: U.
        met_before: users whose true item is in their history, so that nobody may recommend it: a
            miss on both sides.
        users_per_s: over the whole time, the checkpoint's share included.
    """

    served: dict[str, float]
    offline: dict[str, float] | None
    largest_difference: float | None
    num_users: int
    met_before: int
    users_per_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class UserRequest:
    """The request that asks for some users.

    Attributes:
        users: [B].
        histories: what the server is sent of each, oldest first.
        arrays: the request.
    """

    users: npt.NDArray[np.int64]
    histories: Histories
    arrays: Arrays

    def __len__(self) -> int:
        return len(self.users)


def open_dataset(root: Path, stored: StoredModel | None) -> Sequences:
    """Reads the sequences that a model was trained on.

    Args:
        root: of the dataset.
        stored: the model's checkpoint; None reads what is there.

    Raises:
        DatasetError: the dataset is missing or damaged.
        CheckpointError: the model was trained on another one.
    """
    sequences = read_sequences(root)
    if stored is None:
        return sequences
    fingerprint = Manifest.load(root).fingerprint
    stored.check_dataset(sequences.num_items, fingerprint, str(root), "`dataset`")
    return sequences


def read_requests(
    sequences: Sequences, split: Split, signature: Signature, batch_size: int
) -> Iterator[UserRequest]:
    """Yields the requests for the item that a split asks of every user, seen items left out.

    Args:
        sequences: of all users.
        split: `validation` or `test`.
        signature: of the served model; one with a fixed number of places gets the last items.
        batch_size: B.
    """
    history, exclude_seen = signature.inputs
    (places,) = history.shape
    known = known_lengths(sequences, split)
    for start in range(0, sequences.num_users, batch_size):
        users = np.arange(start, min(start + batch_size, sequences.num_users))
        whole = [sequences[user][: known[user]].astype(np.int64) for user in users.tolist()]
        sent = whole if places == -1 else [items[-places:] for items in whole]
        width = max(map(len, sent)) if places == -1 else places
        padded = np.zeros((len(users), width), np.int64)
        for row, items in zip(padded, sent, strict=True):
            row[: len(items)] = items
        excluded = np.ones((len(users), 1), np.bool_)
        yield UserRequest(users, sent, {history.name: padded, exclude_seen.name: excluded})


class _Figures:
    """Collects the ranks of all users, answer by answer.

    Args:
        truth: [U], the true items.
        model: of the checkpoint; None compares with nothing.
        causal: the model predicts from the last item, without a mask behind it.
    """

    def __init__(self, truth: npt.NDArray[np.int32], model: Bert4Rec | None, causal: bool) -> None:
        self._truth, self._model, self._causal = truth.astype(np.int64), model, causal
        self._miss = np.iinfo(np.int64).max
        self.served = np.full(len(truth), self._miss)
        self.offline = np.full(len(truth), self._miss)
        self.differences: list[float] = []
        self.met_before = 0

    def add(
        self,
        asked: UserRequest,
        items: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
    ) -> None:
        """Takes the [B, K] items and scores of an answer."""
        truth = self._truth[asked.users]
        hit = items == truth[:, None]
        self.served[asked.users] = np.where(hit.any(1), hit.argmax(1), self._miss)
        met = np.array([t in h for t, h in zip(truth, asked.histories, strict=True)])
        self.met_before += int(met.sum())
        if self._model is None:
            return
        queries = ask(self._model, asked.histories, causal=self._causal)
        device = queries.vectors.device
        others = [
            np.setdiff1d(history, true)  # each once, the true item never, as ranks asks for
            for history, true in zip(asked.histories, truth, strict=True)
        ]
        _, ranks = queries.ranks(torch.from_numpy(truth).to(device), *pairs(others, device))
        self.offline[asked.users] = np.where(met, self._miss, ranks.cpu().numpy())
        self.differences.append(
            queries.largest_difference(
                torch.tensor(items), torch.tensor(scores), *pairs(asked.histories, device)
            )
        )


def _metrics(ranks: npt.NDArray[np.int64]) -> dict[str, float]:
    found = ranking_metrics(ranks, (LIST_LENGTH,))
    return {name: found[name] for name in (f"hr@{LIST_LENGTH}", f"ndcg@{LIST_LENGTH}")}


@torch.inference_mode()
def score_served_split(
    sequences: Sequences,
    split: Split,
    signature: Signature,
    answer: Answer,
    batch_size: int,
    model: Bert4Rec | None,
    *,
    causal: bool,
) -> ServedRanking:
    """Asks for the next item of every user and finds the place of the true one.

    Args:
        sequences: of all users.
        split: `validation` or `test`.
        signature: of the served model.
        answer: asks the server, or a deployed version.
        batch_size: users of a request.
        model: of the checkpoint, in evaluation mode; None compares with nothing.
        causal: the model predicts from the last item, without a mask behind it.

    Raises:
        UserError: the served model answers with fewer items than the figures need.
    """
    items, scores = signature.outputs
    (top_k,) = items.shape
    if top_k < LIST_LENGTH:
        raise UserError(
            f"the served model answers with {top_k} items, HR@{LIST_LENGTH} needs {LIST_LENGTH}: "
            f"deploy it with `top_k` {LIST_LENGTH} or more"
        )
    figures = _Figures(true_items(sequences, split), model, causal)
    under_way: collections.deque[UserRequest] = collections.deque()

    def requests() -> Iterator[Arrays]:
        for request in read_requests(sequences, split, signature, batch_size):
            under_way.append(request)
            yield request.arrays

    started = time.perf_counter()
    for found in answer(requests()):
        figures.add(under_way.popleft(), found[items.name], found[scores.name])
    elapsed = time.perf_counter() - started
    return ServedRanking(
        served=_metrics(figures.served),
        offline=None if model is None else _metrics(figures.offline),
        largest_difference=None if model is None else float(np.max(figures.differences)),
        num_users=sequences.num_users,
        met_before=figures.met_before,
        users_per_s=sequences.num_users / elapsed,
    )
