# SPDX-License-Identifier: Apache-2.0
"""Recommends items for histories in text lines, in raw ids.

A line holds the item ids of one history, oldest first, separated by white space; or a JSON list,
for ids that contain white space. Each line gets one line of JSON, in the same order:

    {"line": 1, "items": ["50", "181"], "scores": [5.25, 4.75]}
    {"line": 2, "error": "no item of this history is known"}

JSON lines also have "titles" if the dataset has them. People get a table instead. If
`recommend_users` names users of the dataset, the key is "user": {"user": "196", ...}.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.files.json_text import parse_json
from recsys.ratings.answers import Catalogue, as_json, as_table, name_of
from recsys.ratings.config import ALL_USERS, ListConfig
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.model import RatingsModel
from recsys.ratings.scorer import history_item_pairs
from recsys.train.optimizers.precision import Precision

logger = logging.getLogger(__name__)

_NOTHING_KNOWN = "no item of this history is known"
_UNKNOWN_USER = "no user of the dataset"
_MOST_SHOWN = 5
"""How many unknown ids a message shows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recommender:
    """A trained model, with the raw ids and titles of its items.

    Attributes:
        dataset: the dataset that holds raw ids and titles.
        sequences: returns the histories of the dataset.
        precision: precision of the forward pass.
        catalogue: raw ids and titles of the items.
    """

    dataset: OpenedHistories
    sequences: Callable[[], Sequences]
    model: RatingsModel
    precision: Precision
    catalogue: Catalogue

    @torch.inference_mode()
    def top(
        self, histories: list[list[int]], count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Finds the best items of each history that are not in it.

        Args:
            histories: B lists of item numbers, oldest first, none empty.
            count: K, items per history.

        Returns:
            ([B, K] int64 item numbers, best first, [B, K] float32 scores, -inf where none is left).
        """
        arrays = [np.array(history, np.int64) for history in histories]
        with self.precision.autocast():
            scorer = self.model.scorer(arrays)
        best, scores = scorer.top(count, *history_item_pairs(arrays, self.model.device))
        return best.cpu().numpy(), scores.cpu().numpy()


@dataclasses.dataclass(frozen=True, slots=True)
class Recommending:
    """Inputs of a program that recommends.

    Attributes:
        open: loads the model.
        lists: input, number of items to find and kind of output.
        batch_size: histories scored per batch.
    """

    open: Callable[[], Recommender]
    lists: ListConfig
    batch_size: int


def recommend_named(recommending: Recommending, write: Callable[[str], None]) -> None:
    """Recommends for each line of `recommend_input`, of standard input, or of the dataset's users.

    Args:
        recommending: the program's inputs; its model is loaded after the input file is opened.
        write: called with the output of each line, without the newline.

    Raises:
        UserError: see `recommend`, or the input cannot be read.
    """
    settings = recommending.lists
    name, output = settings.recommend_input, settings.output_format
    as_tables = sys.stdout.isatty() if output == "auto" else output == "table"
    with contextlib.ExitStack() as stack:
        lines = sys.stdin.buffer if name is None else stack.enter_context(_opened(Path(name)))
        if name is None and not settings.recommend_users and sys.stdin.isatty():
            logger.info("reading histories from the terminal, one per line; Ctrl-D ends the input")
        where = "standard input" if name is None else name
        recommender, batch_size = recommending.open(), recommending.batch_size
        recommend(recommender, settings, batch_size, lines, where, write, as_tables=as_tables)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(
            f"`recommend_input` {path}: {error.strerror}", setting="recommend_input"
        ) from error


def recommend(
    recommender: Recommender,
    settings: ListConfig,
    batch_size: int,
    lines: Iterable[bytes],
    where: str,
    write: Callable[[str], None],
    *,
    as_tables: bool = False,
) -> None:
    """Recommends items for each line or user.

    Args:
        recommender: the model and its catalogue.
        settings: the users, if any, and the number of items to find.
        batch_size: histories scored per batch.
        lines: histories as UTF-8 text, read once and a batch at a time; not read if the settings
            name users.
        where: name of the input for messages.
        write: called with the output of each line, without the newline.
        as_tables: write a table for each line instead of JSON.

    Raises:
        UserError: no line has a known item, or no user is known.
    """
    succeeded = total = 0
    users = settings.recommend_users
    sources: Iterator[tuple[int | str, list[int] | str]] = (
        _of_users(recommender, users) if users else _read(lines, where, recommender.catalogue)
    )
    while batch := list(itertools.islice(sources, batch_size)):
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
            best, scores = recommender.top([history for _, history in known], settings.top_k)
            for (source, history), items, values in zip(known, best, scores, strict=True):
                left = np.isfinite(values)  # a small catalogue may have too few unseen items
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
                f"`recommend_users`: none of {total} ids is a user of {recommender.dataset.name}; "
                "give ids as in the raw ratings",
                setting="recommend_users",
            )
        raise UserError(
            f"{where}: none of {total} lines holds an item of the dataset; a line must hold the "
            "item ids of a history as in the raw ratings, separated by white space"
        )


def _of_users(recommender: Recommender, chosen: str) -> Iterator[tuple[str, list[int] | str]]:
    """Yields users of the dataset with their whole histories, or errors."""
    sequences = recommender.sequences()
    raw, _ = recommender.dataset.raw_ids(sequences)
    index = {user: number for number, user in enumerate(raw.to_pylist())}
    for user in index if chosen == ALL_USERS else dict.fromkeys(chosen.split(",")):
        number = index.get(user)
        yield user, _UNKNOWN_USER if number is None else sequences[number].tolist()


def _read(
    lines: Iterable[bytes], where: str, catalogue: Catalogue
) -> Iterator[tuple[int, list[int] | str]]:
    """Yields (line number, known items of the line or an error); logs unknown ids."""
    numbers = {raw_id: number for number, raw_id in enumerate(catalogue.raw_ids, 1)}
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
    """Returns the ids of a line: a JSON list, or words.

    Raises:
        UnicodeDecodeError: the line is not UTF-8.
        UserError: the line is JSON, but not a list of ids.
    """
    words = [word.decode() for word in line.split()]  # ids may contain white space beyond ASCII
    if not words or words[0][0] not in "[{":
        return words
    try:
        ids = parse_json(line)
        if isinstance(ids, list):
            return [str(word) for word in ids]
        reason = f"a JSON {type(ids).__name__}"
    except ValueError as error:
        reason = str(error)
    if any(word in numbers for word in words):  # known ids that look like JSON
        return words
    raise UserError(f"not a JSON list of item ids: {reason}")
