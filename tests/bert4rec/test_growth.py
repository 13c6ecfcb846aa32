# SPDX-License-Identifier: Apache-2.0
"""A catalogue that grows: known items keep their rows, and lists name new ones the day after."""

import contextlib
import io
import shutil

import pyarrow as pa
import pytest
import torch

import recsys_recipes as rr
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import Bert4RecCheckpoint, weights_of
from recsys.data.sequences.files import read_item_map, read_sequences
from recsys.errors import UserError
from recsys.ratings.data.last_day import split_last_day
from recsys.train.checkpoint import CheckpointError
from tests import harness
from tests.checkpoints import assert_same
from tests.harness import assert_tells, refusal

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


@pytest.fixture(scope="module")
def two_days(tmp_path_factory):
    """Days that follow each other: on the second, all users come back, and some to a new item."""
    root = tmp_path_factory.mktemp("two_days")
    first = [[f"a{(user + k) % 12}" for k in range(5)] for user in range(48)]
    second = [[f"a{(user + 5) % 12}", "new"] for user in range(24)] + [["new"]] * 24
    filters = {"min_user_count": 3, "columns": COLUMNS}
    day = rr.ratings.prepare(table(first, 0, 0), extend=root / "days", **filters)
    later = rr.ratings.prepare(table(second, 0, 10**6), extend=root / "days", columns=COLUMNS)
    run = rr.ratings.train(day, root / "run", epochs=40, **SMALL)
    return root, day, later, run


def test_a_day_is_tested_by_the_model_of_the_day_before(two_days):
    """Users of known items are found at once, those of new items never."""
    _, _, later, run = two_days
    tested = rr.ratings.test(later, run, progressive=True, baselines=("recent",))
    assert tested["test_users_with_targets"] == 48
    assert tested["test_cold_items"] == 1
    assert tested["test_full_hr@1"] == tested["test_full_hr@5"] == 0.5  # a new item ranks last
    assert any(name.startswith("test_recent") for name in tested)


def test_popularity_is_that_of_seven_days(tmp_path):
    """The split of the last day, done naively; the first day is longer ago than that."""
    week = 7 * 24 * 3600
    days = [table([[f"a{k}" for k in range(first, first + 4)]] * 9, 0, time)
            for first, time in ((0, 0), (2, week), (5, week + 500))]  # fmt: skip
    for rows in days:
        made = rr.ratings.prepare(
            rows, extend=tmp_path / "days", columns=COLUMNS,
            **({} if (tmp_path / "days").exists() else {"min_user_count": 3}),
        )  # fmt: skip
    sequences = read_sequences(made)
    split = split_last_day(sequences, made).temporal
    number = {raw: place for place, raw in enumerate(read_item_map(made).raw.to_pylist())}
    assert split.before.tolist() == [8] * 9
    assert split.test.known.tolist() == [8] * 9
    recent = {f"a{k}": 9 for k in range(2, 6)}
    assert split.cut == week + 500
    for raw, place in number.items():
        assert split.recent_counts[place] == recent.get(raw, 0)
        assert split.is_cold[place] == (raw in ("a6", "a7", "a8"))


def test_progressive_tests_that_are_refused(two_days, tmp_path):
    _, day, later, run = two_days
    for dataset in (day, rr.ratings.prepare(table([["a1", "a2", "a3"]] * 9, 0, 0),
                                            tmp_path / "other", min_user_count=3,
                                            columns=COLUMNS)):  # fmt: skip
        with refusal(kind=UserError):
            rr.ratings.test(dataset, run, progressive=True)
    overlapping = table([["a1", "a2", "a3"]] * 9, 0, 3)
    (tmp_path / "days").mkdir()
    for each in (day, later):
        shutil.copytree(each, tmp_path / "days" / each.name)
    made = rr.ratings.prepare(overlapping, extend=tmp_path / "days", columns=COLUMNS)
    with refusal(made, 3):
        rr.ratings.test(made, run, progressive=True)


DAYS_RUN = ("--config=fast", "--max_len=8", "--emb_dim=16", "--nhead=2", "--num_layers=1",
            "--train_batch_size=16", "--lr=0.01", "--num_eval_negatives=3", "--num_epochs=2",
            "--base_device=cpu")  # fmt: skip


def train_days(folder, *flags, status: int = 0):
    """Runs the program on days that grow; returns what it printed."""
    from bert4rec.scripts import main

    run = (f"--export_root={folder}", "--grow", "--num_threads=1", *DAYS_RUN, *flags)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        ended = harness.call(main, *run)
    assert ended == status, output.getvalue()
    return output.getvalue()


@pytest.fixture(scope="module")
def three_days(tmp_path_factory):
    """Three days that follow each other; the last two begin with what is new on them."""
    root = tmp_path_factory.mktemp("three_days")
    for day in range(3):
        histories = [[f"a{(user + 5 * day + k) % 30}" for k in range(5)] for user in range(30)]
        rows = table([[*each, f"new{day}"] for each in histories], 0, day * 10**6)
        filters = {} if day else {"min_user_count": 3}
        rr.ratings.prepare(rows, extend=root / "days", columns=COLUMNS, **filters)
    return root / "days"


def words_of_days(printed: str) -> list[list[str]]:
    """Returns the words of each line of the table of days."""
    lines = [line.split() for line in printed.splitlines()]
    return [words for words in lines if len(words) == 6 and words[0][-4:].isdigit()]


def test_day_by_day_is_the_same_as_all_days_at_once(three_days, tmp_path):
    whole = train_days(tmp_path / "whole", f"--dataset_path={three_days}", "--progressive")
    days = tmp_path / "days"
    for number in range(3):
        shutil.copytree(three_days / f"day_{number:04d}", days / f"day_{number:04d}")
        resume = ("--resume",) if number else ()
        run = (f"--dataset_path={days}", "--progressive", *resume)
        printed = train_days(tmp_path / "daily", *run)
    for number in range(3):
        assert_same(*(tmp_path / each / f"day_{number:04d}" for each in ("whole", "daily")))
    tests = [words_of_days(text) for text in (whole, printed)]
    assert tests[0] == tests[1]
    assert [words[:2] for words in tests[0]] == [["day_0001", "30"], ["day_0002", "30"]]
    finished = train_days(tmp_path / "daily", f"--dataset_path={days}", "--resume")
    assert "(1 of 3)" not in finished


def test_a_day_that_was_stopped_is_continued(three_days, tmp_path):
    """Its training, not the test before it, which is done."""
    train_days(tmp_path / "whole", f"--dataset_path={three_days}")
    train_days(tmp_path / "parts", f"--dataset_path={three_days}")
    shutil.rmtree(tmp_path / "parts" / "day_0002")
    train_days(tmp_path / "parts", f"--dataset_path={three_days}", "--resume")
    assert_same(*(tmp_path / each / "day_0002" for each in ("whole", "parts")))


def test_days_that_are_refused(three_days, two_days, tmp_path):
    _, day, _, _ = two_days
    train_days(tmp_path / "run", f"--dataset_path={three_days}", "--num_epochs=1")
    for flags, named in (
        ((f"--dataset_path={day}",), str(day)),
        ((f"--dataset_path={tmp_path}",), str(tmp_path)),
        ((f"--dataset_path={three_days}",), "--resume"),
        ((f"--dataset_path={three_days}", "--config=auto"), "--config"),
    ):
        folder = tmp_path / ("run" if named == "--resume" else "other")
        assert_tells(train_days(folder, *flags, status=2), named)
    assert not (tmp_path / "other").exists()
