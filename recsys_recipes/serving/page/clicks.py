# SPDX-License-Identifier: Apache-2.0
"""The page of a DLRM: a line, its score, each field's effect."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from preproc.clicks.dictionaries import Dictionaries
from preproc.clicks.schema.row_format import Column, split_fields
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.signature import FIELDS, LINE, LOGIT, PROBABILITY, TensorSignature
from recsys_recipes.serving.page.view import QuestionError, Values, View

_HIDDEN = {"\t", "\r", "\n"}
"""Characters that a field of the page cannot hold."""
_EXAMPLE_TIME = 1_705_311_000_000
"""2024-01-15 09:30:00 UTC."""
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
    line = endpoint.signature.input(LINE)
    example = {} if dataset is None else _example(dataset)

    def score(question: Values) -> Values:
        fields = _fields_of(question, names)
        with endpoint.again() as own:  # for this thread, and of the version that is served now
            return score_fields(own, fields)

    def split(question: Values) -> Values:
        columns = _columns_of(question, line)
        return {"fields": [columns[name] for name in names]}

    def model(_: Values) -> Values:
        return {
            **{"model": endpoint.model, "url": endpoint.url, "fields": names},
            **{"line": line.columns, "delimiter": line.delimiter, "quote": line.quote},
            "example": [example.get(name, "") for name in names],
        }

    title = f"{endpoint.model}: score a line of a click log"
    return View(
        name="clicks", title=title, answers={"model": model, "split": split, "score": score}
    )


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


def _example(dataset: Path) -> dict[str, str]:
    """Returns the most frequent categories of columns, empty where they are in buckets.

    A number is 1, a time a fixed one.
    """
    row = semantics_of_dataset(dataset, {}).line_format
    dictionaries = dictionaries_of_dataset(dataset)
    texts = {}
    for column, number in zip(row.columns, row.numbers, strict=True):
        if column.role == "numerical":
            texts[column.name] = "1"
        elif column.role == "timestamp" and column.time is not None:
            texts[column.name] = column.time.text(_EXAMPLE_TIME)
        elif column.role == "categorical":
            texts[column.name] = "".join(_most_frequent(dictionaries, number, column, 1))
        elif column.role == "categorical_list" and (rule := column.list) is not None:
            number += row.count("categorical")
            weight = f"{rule.weight_separator}1" if rule.weight_separator else ""
            elements = _most_frequent(dictionaries, number, column, min(3, rule.max_length))
            texts[column.name] = rule.separator.join(f"{text}{weight}" for text in elements)
    return texts


def _most_frequent(
    dictionaries: Dictionaries, number: int, column: Column, most: int
) -> Iterator[str]:
    """Yields categories of a column that the page can show, the most frequent first."""
    for key in itertools.islice(() if column.buckets else dictionaries.load_column(number), most):
        if isinstance(key, int):
            yield f"{key:08x}" if column.type == "hex" else str(key)
        elif not _HIDDEN & set(text := key.decode(errors="replace")):
            yield text


def _columns_of(question: Values, line: TensorSignature) -> dict[str, str]:
    """Returns the texts of a line without its label, by column."""
    text = question.get("line")
    if not isinstance(text, str):
        raise QuestionError("a line is a text")
    delimiter, quote = line.delimiter.encode(), line.quote.encode()
    fields = split_fields(text.encode(), delimiter, quote)
    if fields is None:
        raise QuestionError(f"a column that begins with {line.quote} does not end with one")
    if len(fields) != len(line.columns):
        raise QuestionError(
            f"a line has {len(line.columns)} fields, without the label; this one has {len(fields)}"
        )
    return {name: field.decode() for name, field in zip(line.columns, fields, strict=True)}


def _fields_of(question: Values, names: Sequence[str]) -> list[str]:
    fields = question.get("fields")
    if not isinstance(fields, list) or len(fields) != len(names):
        raise QuestionError(f"a row has {len(names)} fields")
    for name, text in zip(names, fields, strict=True):
        if not isinstance(text, str):
            raise QuestionError(f"column {name}: is no text", name)
        if _HIDDEN & set(text):
            raise QuestionError(f"column {name}: holds a tab or a line end", name)
    return fields
