# SPDX-License-Identifier: Apache-2.0
"""A catalogue that grows: known items keep their rows, and lists name new ones the day after."""

import pyarrow as pa
import pytest
import torch

import recsys_recipes as rr
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import Bert4RecCheckpoint, weights_of
from recsys.errors import UserError
from recsys.train.checkpoint import CheckpointError
from tests.harness import refusal

SMALL = {
    **{"max_len": 8, "emb_dim": 16, "nhead": 2, "num_layers": 1, "batch_size": 16},
    **{"lr": 0.01, "num_eval_negatives": 3, "base_device": "cpu", "preset": "fast"},
}


COLUMNS = {"user": "user", "item": "item", "timestamp": "timestamp"}


def table(histories: list[list[str]], first_user: int, time: int) -> pa.Table:
    """Returns the rows of users, each with a history in time order."""
    rows = [
        (f"u{first_user + user}", item, time + place)
        for user, history in enumerate(histories)
        for place, item in enumerate(history)
    ]
    users, items, times = zip(*rows, strict=True)
    return pa.table({"user": users, "item": items, "timestamp": times})


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Two days: on the first, item k + 1 follows item k; on the second, `new` follows `a5`."""
    root = tmp_path_factory.mktemp("grown")
    cycle = [[f"a{(start + k) % 12}" for k in range(5)] for start in range(12)] * 4
    late = [["a4", "a5", "new", "a6", "a7"]] * 40
    filters = {"min_user_count": 3, "columns": COLUMNS}
    first = rr.ratings.prepare(table(cycle, 0, 0), extend=root / "days", **filters)
    second = rr.ratings.prepare(table(late, 100, 50), extend=root / "days", columns=COLUMNS)
    run = rr.ratings.train(first, root / "first", epochs=2, **SMALL)
    return root, first, second, run


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_known_items_keep_their_rows(grown, tmp_path, head):
    """The mask item stays the last row, and new rows keep what they were drawn with."""
    _, first, _, _ = grown
    run = rr.ratings.train(first, tmp_path / "run", max_steps=2, head=head, **SMALL)
    checkpoint = Bert4RecCheckpoint.open(run)
    model = Bert4Rec(checkpoint.config, checkpoint.num_items + 3)
    before = {name: weight.clone() for name, weight in weights_of(model).items()}
    checkpoint.load_base_into(model)
    stored, after = checkpoint.checkpoint.tensors("model"), weights_of(model)
    known, table = checkpoint.num_items, "embedding.items"
    assert torch.equal(after[table][: known + 1], stored[table][: known + 1])
    assert torch.equal(after[table][-1], stored[table][-1])
    assert torch.equal(after[table][known + 1 : -1], before[table][known + 1 : -1])
    for name in after.keys() - {table}:
        if name.startswith("head.") and len(after[name]) == known + 3:
            assert torch.equal(after[name][known:], before[name][known:])
            assert torch.equal(after[name][:known], stored[name])
        else:
            assert torch.equal(after[name], stored[name])


def test_lists_name_a_new_item_the_day_after(grown):
    root, first, second, run = grown
    history = [["a4", "a5"]]
    before = rr.ratings.recommend(history, first, run, top_k=2)["items"].to_pylist()
    assert "new" not in before[0]
    later = rr.ratings.train(second, root / "second", checkpoint=run, epochs=4, lr=0.01)
    after = rr.ratings.recommend(history, second, later, top_k=2)["items"].to_pylist()
    assert "new" in after[0]


def test_only_a_later_day_of_the_same_dataset_may_have_more_items(grown, tmp_path):
    _, first, second, run = grown
    with refusal(kind=CheckpointError):
        other = rr.ratings.prepare(
            table([[f"b{k}" for k in range(9)]] * 5, 0, 0), tmp_path / "other", columns=COLUMNS
        )
        rr.ratings.train(other, tmp_path / "run", checkpoint=run, epochs=1)
    with refusal(kind=UserError):  # a test compares with the days of the model
        rr.ratings.test(second, run)
    assert rr.ratings.test(first, run)
