# SPDX-License-Identifier: Apache-2.0
"""The page of a DLRM: a line, its score, each field's effect."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.signature import FIELDS, LINE, LOGIT, PROBABILITY
from recsys_recipes.serving.page.view import QuestionError, Values, View

_REFUSED = re.compile(r"row \d+: (column (.+?): '.*' is refused .*)", re.DOTALL)


def clicks_view(endpoint: Endpoint, dataset: Path | None) -> View:
    """Returns the page of a DLRM.

    Its example has the categories of the dataset, if there is one.

    Raises:
        UserError: it was deployed without raw rows, or the dataset is missing or damaged.
    """
    if LINE not in (tensor.name for tensor in endpoint.signature.inputs):
        raise UserError(
            f"`mode` page edits lines of a click log, and {endpoint.model} takes transformed "
            "features alone: deploy it under another `name`, with `raw` and the `dataset` of its "
            "training"
        )

    names = endpoint.signature.input(FIELDS).columns
    example = [""] * len(names) if dataset is None else _example(dataset)

    def score(question: Values) -> Values:
        fields = _fields_of(question, names)
        with endpoint.again() as own:  # for this thread, and of the version that is served now
            return score_fields(own, fields)

    def model(_: Values) -> Values:
        shown = {"model": endpoint.model, "url": endpoint.url}
        line = endpoint.signature.input(LINE).columns
        return {**shown, "line": line, "fields": names, "example": example}

    title = f"{endpoint.model}: score a line of a click log"
    return View(name="clicks", title=title, answers={"model": model, "score": score})


def score_fields(endpoint: Endpoint, fields: Sequence[str]) -> dict[str, Any]:
    """Scores a line and measures the effect of each of its fields.

    The effect of a field is the logit of the line minus that of the same line with this field
    missing. The lines go through the model together. Effects need not add up to the logit: what
    several fields say together is in the effect of each. A missing field is empty.

    Returns:
        `probability`, `logit`, and `effects`, one for each field, None for a missing one.

    Raises:
        QuestionError: the server refuses a field.
        EndpointError: the server does not answer.
    """
    given = [number for number, text in enumerate(fields) if text]
    rows = [list(fields), *([*fields[:n], "", *fields[n + 1 :]] for n in given)]
    size = endpoint.max_batch_size or len(rows)
    replies = []
    try:
        for first in range(0, len(rows), size):
            texts = [[text.encode() for text in row] for row in rows[first : first + size]]
            replies.append(endpoint.predict({FIELDS: np.array(texts, np.object_)}))
    except EndpointError as error:
        refused = _REFUSED.search(str(error))
        if refused is None:
            raise
        raise QuestionError(refused[1], refused[2]) from error
    logits, probabilities = (
        np.concatenate([reply[name][:, 0] for reply in replies]) for name in (LOGIT, PROBABILITY)
    )
    changes: npt.NDArray[np.float64] = np.float64(logits[0]) - logits[1:].astype(np.float64)
    effects = dict(zip(given, changes.tolist(), strict=True))
    return {
        "probability": float(probabilities[0]),
        "logit": float(logits[0]),
        "effects": [effects.get(number) for number in range(len(fields))],
    }


def _example(dataset: Path) -> list[str]:
    """Returns the most frequent categories, empty where they are in buckets."""
    row = semantics_of_dataset(dataset, {}).line_format
    dictionaries = dictionaries_of_dataset(dataset)
    texts = []
    for column, number in zip(row.columns, row.numbers, strict=True):
        if column.role == "numerical":
            texts.append("1")
        elif column.role == "categorical":
            first = next(iter(() if column.buckets else dictionaries.load_column(number)), b"")
            if isinstance(first, bytes):
                texts.append(first.decode())
            else:
                texts.append(f"{first:08x}" if column.type == "hex" else str(first))
    return texts


def _fields_of(question: Values, names: Sequence[str]) -> list[str]:
    fields = question.get("fields")
    if not isinstance(fields, list) or len(fields) != len(names):
        raise QuestionError(f"a row has {len(names)} fields")
    for name, text in zip(names, fields, strict=True):
        if not isinstance(text, str):
            raise QuestionError(f"column {name}: is no text", name)
        if {"\t", "\r", "\n"} & set(text):
            raise QuestionError(f"column {name}: holds a tab or a line end", name)
    return fields
