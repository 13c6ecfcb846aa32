# SPDX-License-Identifier: Apache-2.0
"""Own ratings from Python: from a table to recommendations.

    import recsys_recipes as rr

    columns = {"user": "customer", "item": "sku", "timestamp": "at"}
    dataset = rr.ratings.prepare(frame, "data/shop", columns=columns)
    run = rr.ratings.train(dataset, "data/run")
    hit_rate = rr.ratings.test(dataset, run)["test_full_hr@10"]
    lists = rr.ratings.recommend([["B01", "B77"], ["B02"]], dataset, run, top_k=10)

Each function is a command of `recsys-recipes`, and its further settings are those of that command
(docs/flags.md). A table is a path, or has `__arrow_c_stream__`: of pandas from 2.2, polars or
pyarrow.
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
    output: str | Path,
    *,
    columns: str | Mapping[str, str] = "auto",
    **settings: Any,
) -> Path:
    """Makes a dataset of users' histories; returns its folder.

    Args:
        table: a path or a table.
        output: the folder to make.
        columns: names of the columns of a table or a csv file, as {"user": "customer", "item":
            "sku"}, with "rating" and "timestamp" where there are such columns, or as the text
            "user=customer,item=sku"; "auto" tells them by their names.
        **settings: of `recsys-recipes prepare movielens`, such as `min_rating`.

    Raises:
        UserError: a setting or a row is refused; names the line and column.
    """
    if isinstance(columns, Mapping):
        columns = joined(f"{column}={name}" for column, name in columns.items())
    with file_of(table) as path:
        known = command.define_flags(MOVIELENS)
        values = parsed_flags(known, input=path, output=output, columns=columns, **settings)
        return pipeline.prepare(command.job_from_flags(MOVIELENS, values))


def train(dataset: str | Path, run: str | Path, model: str = "bert4rec", **settings: Any) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: a dataset that `prepare` made.
        run: folder of the checkpoints.
        model: a word after `recsys-recipes train`, of the models of ratings, or `auto`.
        **settings: of that command, such as `preset` or `max_steps`, `neighbours` of `item_knn`, or
            `blend_of` of `blend`.

    Raises:
        UserError: a setting or the dataset is refused.
    """
    if model == "auto":
        return train_auto(dataset, run, **settings)
    files = {"dataset": dataset, "output": run}
    run_model("train", model, "ratings", **{**files, **settings})
    return Path(run)


def test(dataset: str | Path, run: str | Path, **settings: Any) -> dict[str, Any]:
    """Measures a trained model by the last items of its users.

    Args:
        dataset: the dataset of the training.
        run: folder of the checkpoints, of any model of ratings.
        **settings: of `recsys-recipes test`, such as `baselines`.

    Returns:
        Name -> metric: `test_full_hr@10` and `test_full_ndcg@10` are those among all items; those
        of the baselines and of lists follow.

    Raises:
        UserError: a setting or the dataset is refused.
    """
    with log_file(settings) as log:
        files = {"dataset": dataset, "checkpoint": run, "log_path": log}
        run_model("test", model_of(Path(run)).name, "ratings", **{**settings, **files})
        return dict(read_run_log(log)[-1]["data"])


def recommend(
    histories: Iterable[Sequence[object]], dataset: str | Path, run: str | Path, **settings: Any
) -> pa.Table:
    """Returns the items that come next.

    Args:
        histories: raw item ids of each, oldest first.
        dataset: the dataset of the training.
        run: folder of the checkpoints, of any model of ratings.
        **settings: of `recsys-recipes recommend`, such as `top_k`.

    Returns:
        A row for each history with `items`, a list of raw ids, best first, and their `scores`; both
        null where no item of the history is known.

    Raises:
        UserError: a setting is refused.
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
        raise UserError(f"{item} is no item: ids are whole numbers that a float holds, or texts")
    return str(int(number))
