# SPDX-License-Identifier: Apache-2.0
"""The page of a model of clicks: a line, its score, and the effect of each field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from preproc.clicks.schema.row_format import split_fields
from preproc.clicks.serving.known_texts import KnownTexts
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import (
    CATEGORICAL,
    FACTORS,
    FIELDS,
    LINE,
    LOGIT,
    NUMERICAL,
    PROBABILITY,
)
from recsys_recipes.serving.page import table

_EACH_INPUT = """() => document.addEventListener("input", (event) =>
    event.target.dispatchEvent(new KeyboardEvent("keypress", { bubbles: true })))"""
"""Script that makes Gradio's text fields report a paste or a deletion like a typed key."""


def clicks_page(gr: Any, endpoint: Endpoint, dataset: Path | None, rows: Arrays) -> Any:
    """Returns the page of a model, with the label, categories and a row of a dataset, if any."""
    if LINE not in (tensor.name for tensor in endpoint.signature.inputs):
        raise UserError(
            f"`mode` page edits lines of a click log, but {endpoint.model} takes only transformed "
            "features: deploy it under another `name`, with `raw` and the `dataset` of its "
            "training",
            settings=("mode", "name", "raw", "dataset"),
        )
    log, names = endpoint.signature.input(LINE), endpoint.signature.input(FIELDS).columns
    known = KnownTexts(dataset) if dataset is not None else None
    row = example_row(known, rows) if known is not None and rows else {}
    example, blank = [row.get(name, "") for name in names], [""] * len(names)

    def spelled(text: str) -> str:
        plain = not log.quote or not (log.delimiter in text or log.quote in text)
        return text if plain else log.quote + text.replace(log.quote, log.quote * 2) + log.quote

    def scored(fields: Sequence[str]) -> list[Any]:
        try:
            with endpoint.again() as own:  # for this thread, to the version that is served now
                probability, logit, effects = score_fields(own, fields)
        except UserError as error:
            return refused(str(error))
        rows = []
        for n, effect in sorted(effects.items(), key=lambda pair: -abs(pair[1])):
            mark = known.unknown(names[n], fields[n]) if known else ""
            rows.append([names[n], fields[n], f"{effect:+.4f} {mark}".strip()])
        return [f"{100 * probability:.2f} %", f"{logit:.4f}", rows, gr.Textbox("", visible=False)]

    def refused(why: str) -> list[Any]:
        return ["", "", [], gr.Textbox(why, visible=True)]

    def of_fields(*texts: str) -> list[Any]:
        fields = [text.strip() for text in texts]
        by_name = dict(zip(names, map(spelled, fields), strict=True))
        return [log.delimiter.join(by_name.get(name, "") for name in log.columns), *scored(fields)]

    def of_line(text: str) -> list[Any]:
        row = text.rstrip("\r\n").encode()
        texts = split_fields(row, log.delimiter.encode(), log.quote.encode())
        if texts is None or len(texts) != len(log.columns):
            got = "a quote that does not end" if texts is None else f"{len(texts)} fields"
            why = f"a line has {len(log.columns)} fields, without the label; this one has {got}"
            return [*[gr.skip()] * len(names), *refused(why)]
        by_name = dict(zip(log.columns, (text.decode() for text in texts), strict=True))
        fields = [by_name[name] for name in names]
        return [*fields, *scored(fields)]

    with gr.Blocks(title=endpoint.model) as page:
        page.load(None, js=_EACH_INPUT)
        gr.Markdown(f"# {endpoint.model}: score a line of a click log")
        between = "tabs" if log.delimiter == "\t" else log.delimiter
        fields = f"{len(log.columns)} fields without the label, {between} between them"
        line = gr.Textbox(label=f"Line: {fields}", info="An empty field is missing.")
        with gr.Row():
            take = gr.Button("Fill in a row of the dataset", visible=bool(row))
            clear = gr.Button("Empty all fields")
        label = gr.Label(label=f"Probability of {known.label if known else 'a click'}")
        logit = gr.Textbox(label="Logit")
        message = gr.Textbox(label="Error", visible=False)
        with gr.Row():
            boxes = [gr.Textbox(label=name, min_width=100) for name in names]
        what = "Effects: the logit of this row minus that of the same row without the field"
        effects = table(gr, ["Field", "Value", "Effect"], what)
        shown = [label, logit, effects, message]
        live = {"trigger_mode": "always_last", "show_progress": "hidden"}
        line.input(of_line, line, [*boxes, *shown], **live)
        gr.on([box.input for box in boxes], of_fields, boxes, [line, *shown], **live)
        for button, texts in ((take, example), (clear, blank)):
            button.click(lambda t=texts: [*t, *of_fields(*t)], None, [*boxes, line, *shown])
    return page


def example_row(known: KnownTexts, rows: Arrays) -> dict[str, str]:
    """Returns the texts of the row with the most known categories."""
    best = int((rows[CATEGORICAL] != 0).sum(1).argmax()) if CATEGORICAL in rows else 0
    numbers, ids, factors = (
        rows[name][best].tolist() if name in rows else []
        for name in (NUMERICAL, CATEGORICAL, FACTORS)
    )
    return known.of_row(numbers, ids, factors)


def score_fields(
    endpoint: Endpoint, fields: Sequence[str]
) -> tuple[float, float, dict[int, float]]:
    """Returns probability and logit of a row, and the effect of each field that is not missing.

    The effect is the logit of the row minus that of the same row with this field missing.
    """
    given = [number for number, text in enumerate(fields) if text]
    rows = [list(fields), *([*fields[:n], "", *fields[n + 1 :]] for n in given)]
    texts = np.array([[text.encode() for text in row] for row in rows], np.object_)
    size = endpoint.max_batch_size or len(rows)
    parts = [texts[start : start + size] for start in range(0, len(rows), size)]
    replies = [endpoint.predict({FIELDS: part}) for part in parts]
    logits = np.concatenate([reply[LOGIT][:, 0] for reply in replies]).astype(np.float64).tolist()
    effects = {number: logits[0] - logit for number, logit in zip(given, logits[1:], strict=True)}
    return float(replies[0][PROBABILITY][0, 0]), logits[0], effects
