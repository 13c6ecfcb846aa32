# SPDX-License-Identifier: Apache-2.0
"""Ratings, orders or events from Python: from a table to recommendations.

    import recsys_recipes as rr

    columns = {"user": "customer", "item": "sku", "timestamp": "at"}
    dataset = rr.ratings.prepare(frame, "data/shop", columns=columns)
    run = rr.ratings.train(dataset, "data/run")
    hit_rate = rr.ratings.test(dataset, run)["test_full_hr@10"]
    lists = rr.ratings.recommend([["B01", "B77"], ["B02"]], dataset, run, top_k=10)

Each function is a command of `recsys-recipes` and takes its settings (docs/flags.md). A table is a
path, or an object with `__arrow_c_stream__`: a frame of pandas 2.2 or later, Polars or pyarrow.
The examples below form one session; what they print on the way is left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from preproc.ratings import command, pipeline
from preproc.ratings.job import MOVIELENS
from recsys.errors import UserError
from recsys.settings import joined
from recsys.train.run_log import read_run_log
from recsys_recipes.from_python import file_of, log_file, parsed_flags, train_auto, values_of
from recsys_recipes.from_python import run as run_model
from recsys_recipes.models import MODELS, model_of

__all__ = ["prepare", "recommend", "test", "train"]


def prepare(
    table: Any,
    output: str | Path | None = None,
    *,
    columns: str | Mapping[str, str] = "auto",
    **settings: Any,
) -> Path:
    """Makes a dataset of users' histories; returns its folder.

    Args:
        table: a path or a table.
        output: folder to create; left out with `extend`, which adds a day to a growing dataset.
        columns: roles and column names, such as {"user": "customer", "item": "sku"}, and also
            "rating" and "timestamp" if the table has them; or the same as text,
            "user=customer,item=sku". "auto" recognises columns by their names. Without a timestamp,
            the rows of a user must be in the order of time.
        **settings: settings of `recsys-recipes prepare ratings`, such as `min_rating`.

    Raises:
        UserError: a setting or a row is refused; the message names the line and column.

    Examples:
        Customers who buy from six articles, always the next one:

        >>> import pyarrow as pa
        >>> import recsys_recipes as rr
        >>> bought = [(f"c{user}", f"A{(user + k) % 6}") for user in range(30) for k in range(4)]
        >>> customers, articles = zip(*bought)
        >>> orders = pa.table({"customer": customers, "sku": articles})
        >>> columns = {"user": "customer", "item": "sku"}
        >>> dataset = rr.ratings.prepare(orders, "shop", columns=columns)
    """
    if isinstance(columns, Mapping):
        columns = joined(f"{column}={name}" for column, name in columns.items())
    with file_of(table) as path:
        known = command.define_flags(MOVIELENS)
        if output is not None:
            settings["output"] = output
        values = parsed_flags(known, input=path, columns=columns, **settings)
        return pipeline.prepare(command.job_from_flags(MOVIELENS, values))


def train(dataset: str | Path, run: str | Path, model: str = "bert4rec", **settings: Any) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        **settings: settings of `recsys-recipes train` for the model, such as `preset` or
            `max_steps` of `bert4rec`, `neighbours` of `item_knn`, or `blend_of` of `blend`.

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
    """
    if model == "auto":
        return train_auto(dataset, run, **settings)
    files = {"dataset": dataset, "output": run}
    run_model("train", model, "ratings", **{**files, **settings})
    return Path(run)


def test(dataset: str | Path, run: str | Path, **settings: Any) -> dict[str, Any]:
    """Measures a trained model on the held-out items of the test split.

    Args:
        dataset: the dataset of the training.
        run: folder of the checkpoints of any model of ratings.
        **settings: settings of `recsys-recipes test`, such as `baselines`.

    Returns:
        Name -> metric. `test_full_hr@10` and `test_full_ndcg@10` rank all items; the figures of
        the baselines and of the lists follow.

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> rr.ratings.test(dataset, run, baselines="")["test_full_hr@10"]
        1.0
    """
    with log_file(settings) as log:
        files = {"dataset": dataset, "checkpoint": run, "log_path": log}
        run_model("test", model_of(Path(run)).name, "ratings", **{**settings, **files})
        return dict(read_run_log(log)[-1]["data"])


def recommend(
    histories: Iterable[Sequence[object]], dataset: str | Path, run: str | Path, **settings: Any
) -> pa.Table:
    """Recommends the next items of histories.

    Args:
        histories: raw item ids of each history, oldest first.
        dataset: the dataset of the training.
        run: folder of the checkpoints of any model of ratings.
        **settings: settings of `recsys-recipes recommend`, such as `top_k`.

    Returns:
        A row for each history: `items`, a list of raw ids with the best first, and their `scores`.
        Both are null if no item of the history is known.

    Raises:
        UserError: a setting is refused.

    Examples:
        >>> lists = rr.ratings.recommend([["A1", "A2"], ["unknown"]], dataset, run, top_k=1)
        >>> lists["items"].to_pylist()
        [['A3'], None]
    """
    from recsys.ratings.recommend import recommend as recommend_lines

    model = model_of(Path(run)).name
    files = {"dataset": dataset, "checkpoint": run}
    answers: list[dict[str, Any]] = []
    with values_of("recommend", model, "ratings", **{**files, **settings}) as values:
        recommending = MODELS[model].recommending(values)
        recommend_lines(
            recommending.open(),
            recommending.lists,
            recommending.batch_size,
            (json.dumps([*map(_raw_id, _ids(history))]).encode() for history in histories),
            "histories",
            lambda text: answers.extend(map(json.loads, text.splitlines())),
        )
    columns = {name: [answer.get(name) for answer in answers] for name in ("items", "scores")}
    schema = {"items": pa.list_(pa.string()), "scores": pa.list_(pa.float32())}
    return pa.table(columns, pa.schema(schema))


def _ids(history: Sequence[object]) -> Sequence[object]:
    if isinstance(history, str):
        raise UserError(
            f"histories are lists of item ids, got the text {history!r}: write [[{history!r}, ...]]"
        )
    return history


def _raw_id(item: object) -> str:
    """Returns the raw id of an item; floats are whole numbers, as in a table of ratings."""
    if not isinstance(item, (float, np.floating)):
        return str(item)
    number = float(item)
    if not number.is_integer() or abs(number) > 2**53:
        raise UserError(
            f"{item} is not an item id: an id is a text, or a whole number of at most 2^53"
        )
    return str(int(number))
