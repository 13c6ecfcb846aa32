# SPDX-License-Identifier: Apache-2.0
"""The page of a model of ratings: a history and what follows it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint, request_from_json
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import TITLES
from recsys_recipes.serving.page import table


def items_page(gr: Any, endpoint: Endpoint, dataset: Path | None, rows: Arrays) -> Any:
    """Returns the page of a model, with the titles and a user of a dataset, if any."""
    form, names = endpoint.signature.inputs[0], dict[str, str]()
    if dataset is not None:
        ids: list[str] = read_item_map(dataset).raw.to_pylist()
        titles = read_titles(dataset, len(ids)) or [""] * len(ids)
        for number, (raw, title) in enumerate(zip(ids, titles, strict=True), 1):
            item = raw if form.dtype == "string" else str(number)
            names[item] = f"{title} ({raw})" if title else raw
    example = [_text(item) for item in rows[form.name][0].tolist() if item] if rows else []

    def recommend(history: list[str], exclude_seen: bool) -> tuple[Any, Any]:
        try:
            with endpoint.again() as own:  # for this thread, to the version that is served now
                best = recommend_items(own, history, exclude_seen) if history else []
            if names and (other := next((item for item, *_ in best if item not in names), None)):
                raise UserError(
                    f"the model recommends {other}, which is not among the {len(names)} items of "
                    "the dataset: it was not trained on this `dataset`",
                    setting="dataset",
                )
        except UserError as error:
            return [], gr.Textbox(str(error), visible=True)
        found = [[names.get(i) or title or i, i, f"{score:.4f}"] for i, title, score in best]
        return found, gr.Textbox("", visible=False)

    with gr.Blocks(title=endpoint.model) as page:
        gr.Markdown(f"# {endpoint.model}: what comes next")
        history = gr.Dropdown(
            [(name, item) for item, name in names.items()],
            value=[],
            multiselect=True,
            allow_custom_value=not names,
            label="History, oldest first",
            info="Type a part of a title or id" if names else "Type an id, then Enter",
        )
        exclude = gr.Checkbox(value=True, label="Leave out what is in the history")
        take = gr.Button("Fill in a user of the dataset", visible=bool(example))
        message = gr.Textbox(label="Error", visible=False)
        best = table(gr, ["Item", "Sent as", "Score"], "What comes next, the best first")
        gr.on([history.change, exclude.input], recommend, [history, exclude], [best, message])
        take.click(lambda: example, None, history)
    return page


def recommend_items(
    endpoint: Endpoint, items: Sequence[str], exclude_seen: bool
) -> list[tuple[str, str, float]]:
    """Returns the items that come next after a history with titles and scores, best first."""
    history, excludes = endpoint.signature.inputs
    nothing, (length,) = "" if history.dtype == "string" else 0, history.shape
    sent: list[str | int] = [int(i) if nothing == 0 and i.isdecimal() else i for i in items]
    if length != -1:  # a network with fixed positions: the last items, then padding
        sent = [*sent, *[nothing] * (length - len(sent))][-length:]
    request = {history.name: [sent], excludes.name: [[exclude_seen]]}
    reply = endpoint.predict(request_from_json(endpoint.signature, json.dumps(request)))
    found, scores = (reply[tensor.name][0].tolist() for tensor in endpoint.signature.outputs[:2])
    titles = reply[TITLES][0].tolist() if TITLES in reply else [b""] * len(found)
    triples = zip(found, titles, scores, strict=True)
    return [(_text(item), _text(title), score) for item, title, score in triples if item]


def _text(value: int | bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
