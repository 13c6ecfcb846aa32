# SPDX-License-Identifier: Apache-2.0
"""Recommends items for text lines of histories, in raw ids.

A line holds the item ids of one history, oldest first, with white space between, or as a JSON list,
for ids that hold white space. Each line gets one line of JSON, in the same order:

    {"line": 1, "items": ["50", "181"], "scores": [5.25, 4.75]}
    {"line": 2, "error": "no item of this history is known"}

with "titles" too where the dataset has them; or a table, for people. Users of the dataset stand for
lines if `recommend_users` names them, {"user": "196", ...}.
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.config.run import ALL_USERS
from bert4rec.model.memory import loaded_memory
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import pack_items, scorer_for
from bert4rec.model.weights import OpenedCheckpoint
from bert4rec.train.resolve import model_settings
from cuda_ext import ops
from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
from recsys.errors import UserError
from recsys.files.json_text import parse_json
from recsys.ratings.answers import Catalogue, as_json, as_table, name_of
from recsys.ratings.data.opened import OpenedDataset
from recsys.ratings.scorer import history_item_pairs
from recsys.train.memory import require_memory
from recsys.train.optimizers.precision import Precision
from recsys.train.recipe import adopt
from recsys.train.run import set_up_machine

logger = logging.getLogger(__name__)

_NOTHING_KNOWN = "no item of this history is known"
_UNKNOWN_USER = "no user of the dataset"
_MOST_SHOWN = 5
"""Unknown ids that a message shows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recommender:
    """A trained model with the raw ids and titles of its items.

    Attributes:
        dataset: the dataset that has them.
        model: the network, in evaluation mode.
        catalogue: raw ids and titles of the items.
        numbers: raw id -> item number.
        causal: the model predicts the next item at the last one, without a mask item.
        precision: precision of the forward pass.
        device: device of the model.
        packed: the items, packed for exact lists; None where they are scored plainly.
    """

    dataset: OpenedDataset
    model: Bert4Rec
    catalogue: Catalogue
    numbers: dict[str, int]
    causal: bool
    precision: Precision
    device: torch.device
    packed: ops.PackedRows | None

    @classmethod
    def start(cls, config: Bert4RecConfig) -> "Recommender":
        """Loads the model and the ids of its items.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
        """
        if config.run.load_checkpoint_path is None:
            raise UserError(
                "`mode` recommend needs `load_checkpoint_path`, a trained model",
                settings=("mode", "load_checkpoint_path"),
            )
        loaded = OpenedCheckpoint.open(Path(config.run.load_checkpoint_path))
        machine = set_up_machine(config, logger.info)
        config = adopt(config, model_settings(config, loaded))
        dataset, titles = OpenedDataset.open(config.data), None
        if dataset.root is None:  # a generated dataset has no raw ids but its numbers
            items = [str(i + 1) for i in range(config.data.random_item_count)]
        else:
            items = read_item_map(dataset.root).raw.to_pylist()
            titles = read_titles(dataset.root, len(items))
        ignores = config.run.ignore_fingerprint
        dataset.check_model(loaded.path, loaded.origin, len(items), ignore_fingerprint=ignores)
        needed = loaded_memory(config.model, len(items), config.adapter)
        require_memory(needed, machine.device)
        with machine.device:
            model = Bert4Rec(config.model, len(items), config.adapter)
        loaded.load_into(model)
        model.eval()
        return cls(
            dataset=dataset,
            model=model,
            catalogue=Catalogue(items, titles),
            numbers={raw_id: number for number, raw_id in enumerate(items, 1)},
            causal=config.objective.objective == "causal",
            precision=machine.precision,
            device=machine.device,
            packed=pack_items(model),
        )

    @torch.inference_mode()
    def top(
        self, histories: list[list[int]], count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Finds the best items of each history that are not in it.

        Args:
            histories: B lists of item numbers, oldest first, none empty.
            count: K.

        Returns:
            ([B, K] int64 item numbers, best first, [B, K] float32 scores, -inf where none is left).
        """
        arrays = [np.array(history, np.int64) for history in histories]
        with self.precision.autocast():
            scorer = scorer_for(self.model, arrays, causal=self.causal, packed=self.packed)
        best, scores = scorer.top(count, *history_item_pairs(arrays, self.device))
        return best.cpu().numpy(), scores.cpu().numpy()


def recommend(
    config: Bert4RecConfig,
    lines: Iterable[bytes],
    where: str,
    write: Callable[[str], None],
    *,
    as_tables: bool = False,
) -> None:
    """Recommends items for each line or user, in batches of `test_batch_size`.

    Args:
        config: settings that name the model, the dataset and the number of items to find.
        lines: histories as UTF-8 text; read once, a batch at a time, but not if the settings name
            users.
        where: name of the input for messages.
        write: called with the output of each line, without its end.
        as_tables: a table for each line, instead of JSON.

    Raises:
        UserError: a setting, the dataset or the checkpoint is refused, or no line has a known item,
            or no user is known.
    """
    recommender = Recommender.start(config)
    succeeded = total = 0
    users = config.run.recommend_users
    sources: Iterator[tuple[int | str, list[int] | str]] = (
        _of_users(recommender.dataset, config, users)
        if users
        else _read(lines, where, recommender.numbers)
    )
    while batch := list(itertools.islice(sources, config.data.test_batch_size)):
        known = [(source, history) for source, history in batch if isinstance(history, list)]
        results = dict.fromkeys((source for source, _ in batch), "")
        for source, history in batch:
            if isinstance(history, str):
                name = name_of(source)
                results[source] = (
                    f"{name} {source}: {history}\n"
                    if as_tables
                    else json.dumps({name: source, "error": history})
                )
        if known:
            best, scores = recommender.top([history for _, history in known], config.run.top_k)
            for (source, history), items, values in zip(known, best, scores, strict=True):
                left = np.isfinite(values)  # a short catalogue may have too few unseen items
                answer = (items[left].tolist(), values[left].tolist(), recommender.catalogue)
                results[source] = (
                    as_table(source, history, *answer) if as_tables else as_json(source, *answer)
                )
        for result in results.values():
            write(result)
        succeeded += len(known)
        total += len(batch)
    logger.info("%d of %d histories answered", succeeded, total)
    if total and not succeeded:
        if users:
            raise UserError(
                f"`recommend_users`: not one of {total} is a user of {config.data.dataset_path}; "
                "give ids as the raw ratings have them",
                setting="recommend_users",
            )
        raise UserError(
            f"{where}: not one of {total} lines holds an item of the dataset; a line must be the "
            "item ids of a history as the raw ratings have them, with white space between"
        )


def _of_users(
    dataset: OpenedDataset, config: Bert4RecConfig, chosen: str
) -> Iterator[tuple[str, list[int] | str]]:
    """Yields users of the dataset with their whole histories, or errors."""
    sequences = dataset.sequences(config.data, config.run.seed)
    raw, _ = dataset.raw_ids(sequences)
    index = {user: number for number, user in enumerate(raw.to_pylist())}
    for user in index if chosen == ALL_USERS else dict.fromkeys(chosen.split(",")):
        number = index.get(user)
        yield user, _UNKNOWN_USER if number is None else sequences[number].tolist()


def _read(
    lines: Iterable[bytes], where: str, numbers: dict[str, int]
) -> Iterator[tuple[int, list[int] | str]]:
    """Yields (line number, its known items or an error); logs unknown ids."""
    for number, line in enumerate(lines, 1):
        try:
            words = _words(line, numbers)
        except (UnicodeDecodeError, UserError) as error:
            reason = str(error) if isinstance(error, UserError) else f"not UTF-8 text: {error}"
            logger.warning("%s:%d: %s", where, number, reason)
            yield number, reason
            continue
        unknown = [word for word in words if word not in numbers]
        if unknown:
            shown = ", ".join(repr(word) for word in unknown[:_MOST_SHOWN])
            more = f" and {len(unknown) - _MOST_SHOWN} more" if len(unknown) > _MOST_SHOWN else ""
            logger.warning("%s:%d: left out unknown item ids: %s%s", where, number, shown, more)
        history = [numbers[word] for word in words if word in numbers]
        yield number, history or _NOTHING_KNOWN


def _words(line: bytes, numbers: Container[str]) -> list[str]:
    """Returns the ids of a line, a JSON list or words.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
        UserError: it is JSON, but no list.
    """
    words = [word.decode() for word in line.split()]  # ids may hold white space beyond ASCII
    if not words or words[0][0] not in "[{":
        return words
    try:
        ids = parse_json(line)
        if isinstance(ids, list):
            return [str(word) for word in ids]
        reason = f"a JSON {type(ids).__name__}"
    except ValueError as error:
        reason = str(error)
    if any(word in numbers for word in words):  # ids that begin so
        return words
    raise UserError(f"not a JSON list of item ids: {reason}")
