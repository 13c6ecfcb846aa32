# SPDX-License-Identifier: Apache-2.0
"""Lines of histories to a model: each gets its list or its error, whatever is beside it."""

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.config import Bert4RecConfig
from bert4rec.train.recommend import open_recommender
from recsys.errors import UserError
from recsys.ratings.config import ListConfig
from recsys.ratings.recommend import Recommender, recommend
from tests.bert4rec.conftest import NUM_ITEMS, make_program, make_sequences, raw_id, write_dataset
from tests.fuzz.documents import edited_json
from tests.fuzz.target import Draws, Target

_NEAR = 1e-3
"""Items with scores as near as this may come in another order: other batches round otherwise."""
_WORDS = (
    "film-0",
    "film-8",
    "7",
    "[",
    "é",
    "film-1,film-2",
    "\x00",
    "null",
    "\u2028",
    "film-3\u3000",
)


@functools.cache
def _recommender() -> Recommender:
    """Trains a small model."""
    with tempfile.TemporaryDirectory(prefix="fuzz_recommender_") as folder:
        ratings, run = f"{folder}/ratings", f"{folder}/run"
        write_dataset(Path(ratings), make_sequences())
        flags = (f"--dataset_path={ratings}", f"--export_root={run}", "--num_epochs=1")
        make_program(Path(folder))(*flags)
        settings = {"mode": "recommend", "base_device": "cpu", "dataset_path": ratings}
        return open_recommender(Bert4RecConfig.from_dict(settings | {"load_checkpoint_path": run}))


def _line(draws: Draws) -> bytes:
    ids = [raw_id(1 + draws.below(NUM_ITEMS)) for _ in range(draws.below(30))]
    for _ in draws.some(3):
        ids.insert(draws.below(len(ids) + 1), draws.pick(_WORDS))
    kind = draws.below(4)
    if kind == 0:
        return edited_json(draws, json.dumps(ids).encode()) if ids else b"[]"
    line = draws.pick((" ", "\t", "  ")).join(ids) if kind < 3 else json.dumps(ids)
    return draws.edited(line.encode())


def _answers(lines: list[bytes], count: int, batch_size: int) -> list[dict[str, Any]]:
    written: list[str] = []
    with contextlib.suppress(UserError):  # no line has a known item
        settings = ListConfig(top_k=count)
        recommend(_recommender(), settings, batch_size, lines, "lines", written.append)
    return [json.loads(each) for each in written]


def recommended_lines(folder: Path, data: bytes) -> None:
    """Recommends for some lines together, and for each of them without the others."""
    del folder
    draws = Draws(data)
    text = b"\n".join(_line(draws) for _ in range(1 + draws.below(6)))
    lines, count = text.splitlines(keepends=True), 1 + draws.below(2 * NUM_ITEMS)
    together = _answers(lines, count, 1 + draws.below(4))
    single = [answer for line in lines for answer in _answers([line], count, 1)]
    assert [answer["line"] for answer in together] == [*range(1, len(lines) + 1)]
    for answer, alone in zip(together, single, strict=True):
        assert answer.get("error") == alone.get("error")
        assert "error" in answer or near_lists(answer, alone), f"{answer} {alone}"


def near_lists(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two lists of items have the same scores, and the same items where scores differ."""
    scores, others = np.array(one["scores"]), np.array(other["scores"])
    if scores.shape != others.shape or not np.allclose(scores, others, rtol=1e-4, atol=1e-4):
        return False
    clear = np.ones(scores.shape, bool)
    gaps = -np.diff(scores) > _NEAR
    # The last item and the first one that is left out may be near too.
    clear[..., -1:] = False
    clear[..., :-1] &= gaps
    clear[..., 1:] &= gaps
    return bool((np.array(one["items"]) == np.array(other["items"]))[clear].all())


TARGETS = (Target(recommended_lines),)
