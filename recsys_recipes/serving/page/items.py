# SPDX-License-Identifier: Apache-2.0
"""The page of a BERT4Rec: a history and what follows it."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint
from recsys.serve.signature import TITLES
from recsys_recipes.serving.page.view import QuestionError, Values, View

_MOST_SHOWN = 20
"""Items that a search lists."""
MOST_ITEMS = 1000
"""Longest history."""


@dataclasses.dataclass(frozen=True, slots=True)
class Catalogue:
    """Items of a dataset, in the order of their numbers.

    Attributes:
        ids: raw ids of the items 1, 2, ...
        words: what a search looks at: title and id, without case and accents.
    """

    ids: Sequence[str]
    titles: Sequence[str]
    words: Sequence[str]
    numbers: dict[str, int]

    @classmethod
    def read(cls, dataset: Path) -> Self:
        """Reads the items of a dataset.

        Raises:
            DatasetError: the dataset is missing or damaged.
        """
        ids: list[str] = read_item_map(dataset).raw.to_pylist()
        titles = read_titles(dataset, len(ids)) or [""] * len(ids)
        words = [_plain(f"{title} {raw}") for title, raw in zip(titles, ids, strict=True)]
        return cls(ids, titles, words, {raw: number for number, raw in enumerate(ids, 1)})

    def search(self, text: str) -> Iterator[int]:
        """Yields the numbers of items with every word of a text."""
        asked = _plain(text)
        exact = self.numbers.get(text.strip())
        if exact is not None:
            yield exact
        matching = [
            number
            for number, words in enumerate(self.words, 1)
            if number != exact and all(word in words for word in asked.split())
        ]
        begins = [self.words[number - 1].startswith(asked) for number in matching]
        yield from itertools.compress(matching, begins)
        yield from itertools.compress(matching, (not is_first for is_first in begins))


def items_view(endpoint: Endpoint, dataset: Path | None) -> View:
    """Returns the page of a BERT4Rec, with a dataset's titles, if any.

    Raises:
        DatasetError: the dataset is missing or damaged.
    """
    catalogue = None if dataset is None else Catalogue.read(dataset)
    by_raw_id = endpoint.signature.inputs[0].dtype == "string"
    (top_k,) = endpoint.signature.outputs[0].shape

    def model(_: Values) -> Values:
        return {
            "model": endpoint.model,
            "url": endpoint.url,
            "top_k": top_k,
            "num_items": None if catalogue is None else len(catalogue.ids),
            "has_titles": catalogue is not None and any(catalogue.titles),
            "by_raw_id": by_raw_id or catalogue is not None,
        }

    def search(question: Values) -> Values:
        text = question.get("text")
        if not isinstance(text, str) or not text.strip():
            return {"items": [], "has_more": False}
        if catalogue is None:
            return {"items": [{"id": text.strip(), "title": ""}], "has_more": False}
        numbers = list(itertools.islice(catalogue.search(text), _MOST_SHOWN + 1))
        items = [
            {"id": catalogue.ids[number - 1], "title": catalogue.titles[number - 1]}
            for number in numbers[:_MOST_SHOWN]
        ]
        return {"items": items, "has_more": len(numbers) > _MOST_SHOWN}

    def recommend(question: Values) -> Values:
        ids, exclude_seen = _history_of(question)
        with endpoint.again() as own:  # for this thread, and of the version that is served now
            return recommend_items(own, catalogue, ids, exclude_seen=exclude_seen)

    answers = {"model": model, "search": search, "recommend": recommend}
    return View(name="items", title=f"{endpoint.model}: what comes next", answers=answers)


def recommend_items(
    endpoint: Endpoint, catalogue: Catalogue | None, ids: Sequence[str], *, exclude_seen: bool
) -> dict[str, Any]:
    """Asks for the best next items of a history, oldest first.

    Returns:
        `items`, each with `id`, `title` and `score`, the best first.

    Raises:
        QuestionError: an item is not one of the catalogue.
        EndpointError: the server refuses the history, or does not answer.
    """
    history, excludes = endpoint.signature.inputs
    by_raw_id = history.dtype == "string"
    sent: list[Any] = (
        [raw.encode() for raw in ids] if by_raw_id else [_number(catalogue, raw) for raw in ids]
    )
    (length,) = history.shape
    if length != -1:  # a network of fixed places: the last items, then nothing
        sent = [*sent, *[b"" if by_raw_id else 0] * (length - len(sent))][-length:]
    reply = endpoint.predict(
        {
            history.name: np.array([sent], history.numpy_dtype),
            excludes.name: np.array([[exclude_seen]]),
        }
    )
    items, scores = (reply[tensor.name][0].tolist() for tensor in endpoint.signature.outputs[:2])
    titles = reply[TITLES][0].tolist() if TITLES in reply else [b""] * len(items)
    return {
        "items": [
            {**_named(catalogue, item, title), "score": score}
            for item, score, title in zip(items, scores, titles, strict=True)
            if item  # places without an item are at the end
        ]
    }


def _number(catalogue: Catalogue | None, raw: str) -> int:
    """Returns the number of an item that the user names."""
    if catalogue is not None:
        number = catalogue.numbers.get(raw)
        if number is None:
            raise QuestionError(f"{raw!r} is no item of the dataset")
        return number
    if not (raw.isascii() and raw.isdigit()) or not 0 < float(raw) < 2**63:
        raise QuestionError(f"{raw!r} is no item number: the model takes whole numbers from 1")
    return int(raw)


def _named(catalogue: Catalogue | None, item: int | bytes, title: bytes) -> dict[str, str]:
    """Returns id and title of an item that the server names."""
    if catalogue is None:
        raw = item.decode() if isinstance(item, bytes) else str(item)
        return {"id": raw, "title": title.decode()}
    number = catalogue.numbers.get(item.decode(), 0) if isinstance(item, bytes) else item
    if not 0 < number <= len(catalogue.ids):
        shown = item.decode() if isinstance(item, bytes) else item
        raise UserError(
            f"the model recommends {shown}, which the {len(catalogue.ids)} items of the dataset "
            "lack: `dataset` is not that of its training"
        )
    return {"id": catalogue.ids[number - 1], "title": catalogue.titles[number - 1]}


def _history_of(question: Values) -> tuple[list[str], bool]:
    ids, exclude_seen = question.get("history"), question.get("exclude_seen", True)
    if not isinstance(ids, list) or not all(isinstance(raw, str) and raw for raw in ids):
        raise QuestionError("a history is a list of ids")
    if not 0 < len(ids) <= MOST_ITEMS:
        raise QuestionError(f"a history has 1 to {MOST_ITEMS} items, got {len(ids)}")
    if not isinstance(exclude_seen, bool):
        raise QuestionError("exclude_seen is true or false")
    return ids, exclude_seen


def _plain(text: str) -> str:
    """Returns a text without case and accents, its words one space apart."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    return " ".join("".join(c for c in letters if not unicodedata.combining(c)).split())
