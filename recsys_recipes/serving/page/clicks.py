# SPDX-License-Identifier: Apache-2.0
"""The page of a DLRM: a line, its score, each field's effect."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.clicks.applied import dictionaries_of_dataset
from preproc.clicks.schema.row_format import NUM_CATEGORICAL, NUM_NUMERICAL
from preproc.clicks.serving.line_transform import field_name
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.signature import LINE, LOGIT, PROBABILITY
from recsys_recipes.serving.page.view import QuestionError, Values, View

FIELDS = tuple(field_name(number) for number in range(1, NUM_NUMERICAL + NUM_CATEGORICAL + 1))
"""Names of the fields of a line without its label: I1 to I13, C1 to C26."""

_REFUSED = re.compile(r"row \d+: (field ([IC]\d+): .*)", re.DOTALL)


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

    example = ["1"] * NUM_NUMERICAL + [""] * NUM_CATEGORICAL
    if dataset is not None:
        dictionaries = dictionaries_of_dataset(dataset)
        for column in range(NUM_CATEGORICAL):
            most_frequent = dictionaries.load_column(column)[:1]
            example[NUM_NUMERICAL + column] = "".join(f"{number:08x}" for number in most_frequent)

    def score(question: Values) -> Values:
        fields = _fields_of(question)
        with endpoint.again() as own:  # for this thread, and of the version that is served now
            return score_fields(own, fields)

    def model(_: Values) -> Values:
        shown = {"model": endpoint.model, "url": endpoint.url}
        return {**shown, "fields": FIELDS, "example": example}

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
    lines = ["\t".join(fields)]
    lines += ["\t".join([*fields[:n], "", *fields[n + 1 :]]) for n in given]
    size = endpoint.max_batch_size or len(lines)
    replies = []
    try:
        for first in range(0, len(lines), size):
            rows = [line.encode() for line in lines[first : first + size]]
            replies.append(endpoint.predict({LINE: np.array(rows, np.object_)[:, None]}))
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


def _fields_of(question: Values) -> list[str]:
    fields = question.get("fields")
    if not isinstance(fields, list) or len(fields) != len(FIELDS):
        raise QuestionError(f"a line has {len(FIELDS)} fields")
    for name, text in zip(FIELDS, fields, strict=True):
        if not isinstance(text, str):
            raise QuestionError(f"field {name}: is no text", name)
        if {"\t", "\n"} & set(text):
            raise QuestionError(f"field {name}: holds a tab or a line feed", name)
    return fields
