# SPDX-License-Identifier: Apache-2.0
"""Temporal splits in the program: targets, cold users and items, and a future that stays unseen."""

import dataclasses
import re
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from bert4rec.model.weights import Bert4RecCheckpoint
from preproc import movielens
from recsys.data.manifest import Manifest
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map
from recsys.ratings.data.negatives import draw_negatives, training_counts
from recsys.ratings.data.split import known_lengths, targets_of, true_items
from recsys.ratings.data.temporal import split_by_time
from recsys.ratings.served_split import open_dataset
from tests import harness
from tests.bert4rec.conftest import make_program
from tests.checkpoints import assert_same
from tests.documents import with_checksum
from tests.harness import assert_tells, refusal

SPLIT = "temporal:0.8"
TRAIN = ("--objective=causal", "--max_steps=3")


def make_rows() -> list[tuple[int, int, int]]:
    """Returns (user, item, time); users begin and end when they like, items appear over time."""
    generator = np.random.default_rng(5)
    rows = []
    for user in range(80):
        begin, length = generator.integers(0, 900), generator.integers(3, 25)
        times = np.sort(begin + generator.integers(0, 500, length))
        rows += [(user, int(generator.integers(0, 12 + t // 40)), int(t)) for t in times]
    return rows


def prepare(folder: Path, rows) -> Path:
    folder.mkdir(exist_ok=True)
    lines = "".join(f"{u}\t{i}\t4\t{t}\n" for u, i, t in rows)
    (folder / "u.data").write_text(lines)
    made = folder / "dataset"
    argv = ["movielens", f"--input={folder / 'u.data'}", f"--output={made}", f"--split={SPLIT}"]
    assert movielens.main([*argv, "--min_user_count=3"]) == 0
    return made


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("temporal"), make_rows())


@pytest.fixture(scope="module")
def trained(tmp_path_factory, dataset) -> Path:
    return train(dataset, tmp_path_factory.mktemp("run"))


def train(dataset: Path, folder: Path) -> Path:
    """Trains three steps; returns the folder of the run."""
    program = make_program(folder)
    program(f"--dataset_path={dataset}", f"--export_root={folder / 'run'}", *TRAIN)
    return folder / "run"


def histories(dataset: Path):
    """Returns user -> [(time, item number)], and the cut of the manifest."""
    sequences = read_sequences(dataset)
    rows = {}
    for user in range(sequences.num_users):
        own = slice(*sequences.offsets[user : user + 2])
        rows[user] = list(zip(sequences.timestamps[own], sequences.items[own], strict=True))
    return rows, Manifest.load(dataset).statistics["cut"]


def split(dataset: Path, choice="first", validation="time"):
    users = read_user_map(dataset).raw
    return split_by_time(read_sequences(dataset), Fraction("0.8"), choice, validation, users)


@pytest.mark.parametrize("choice", ["first", "last", "all"])
def test_the_targets_are_the_items_from_the_cut_on(dataset, choice):
    rows, cut = histories(dataset)
    sequences = split(dataset, choice)
    chosen = {"first": slice(0, 1), "last": slice(-1, None), "all": slice(None)}[choice]
    expected = []
    for user, own in rows.items():
        before = sum(t < cut for t, _ in own)
        if before:
            expected += [(user, n, own[n][1]) for n in range(before, len(own))[chosen]]
    targets = targets_of(sequences, "test")
    items = true_items(sequences, "test")
    assert list(zip(targets.users, targets.known, items, strict=True)) == expected
    assert len(expected) > 9


@pytest.mark.parametrize("choice", ["first", "last", "all"])
def test_validation_by_time_cuts_once_more(dataset, choice):
    rows, cut = histories(dataset)
    known = sorted(t for own in rows.values() for t, _ in own if t < cut)
    first = known[len(known) * 4 // 5]
    sequences = split(dataset, choice)
    lengths = [sum(t < first for t, _ in own) for own in rows.values()]
    assert known_lengths(sequences, "train").tolist() == lengths
    targets = targets_of(sequences, "validation")
    times = [rows[u][n][0] for u, n in zip(targets.users, targets.known, strict=True)]
    assert all(first <= t < cut for t in times)
    count = sum(lengths[u] > 0 and first <= t < cut for u, own in rows.items() for t, _ in own)
    assert len(targets) == count if choice == "all" else len(set(targets.users)) == len(targets)


def test_validation_by_users_trains_on_none_of_theirs(dataset):
    rows, cut = histories(dataset)
    sequences = split(dataset, validation="users")
    targets, lengths = targets_of(sequences, "validation"), known_lengths(sequences, "train")
    before = np.array([sum(t < cut for t, _ in own) for own in rows.values()])
    assert 2 <= len(targets) <= 20
    assert targets.known.tolist() == (before[targets.users] - 1).tolist()
    assert lengths[targets.users].tolist() == [0] * len(targets)
    others = np.setdiff1d(np.arange(len(rows)), targets.users)
    assert lengths[others].tolist() == before[others].tolist()


def test_who_trains_and_is_tested_is_told(dataset, program, capsys):
    rows, cut = histories(dataset)
    known = sorted(t for own in rows.values() for t, _ in own if t < cut)
    first = known[len(known) * 4 // 5]
    trained, validated, tested = {}, {}, {}
    for user, own in rows.items():
        times = np.array([time for time, _ in own])
        trained[user] = int((times < first).sum())
        validated[user] = int(trained[user] and ((times >= first) & (times < cut)).sum())
        tested[user] = int((times < cut).any() and (times >= cut).sum())
    counts = [n for d in (validated, tested) for n in (sum(d.values()), sum(map(bool, d.values())))]
    none = sum(trained[u] < 2 and not validated[u] and not tested[u] for u in rows)
    assert none > 0
    program(f"--dataset_path={dataset}", *TRAIN, "--temporal_targets=all")
    lines = capsys.readouterr().out.splitlines()
    (told,) = (line for line in lines if f" of {len(rows)} users" in line)
    learners = sum(n > 1 for n in trained.values())
    found = list(map(int, re.findall(r"\d+", told)))
    assert found == [learners, len(rows), 2, *counts, none]


def test_negatives_and_popularity_count_training_items_alone(dataset):
    sequences = split(dataset, "all")
    counts = np.zeros(sequences.num_items, np.int64)
    for user, length in enumerate(known_lengths(sequences, "train")):
        np.add.at(counts, sequences[user][:length] - 1, 1)
    assert training_counts(sequences).tolist() == counts.tolist()
    assert (counts == 0).any()
    drawn = draw_negatives(sequences, 5, by_popularity=True, seed=0)
    assert (counts[drawn - 1] > 0).all()


@pytest.mark.timeout(120)
def test_a_shop_with_fewer_warm_items_than_negatives_trains(program, tmp_path, capsys):
    """100 negatives are asked for; 110 items are older than the cut, 40 newer."""
    generator = np.random.default_rng(3)
    rows = [
        (user, int(item), int(generator.integers(0, 500)))
        for user in range(120)
        for item in generator.choice(110, 14, replace=False)
    ]
    rows += [(user, 110 + item % 40, 600 + item) for item, user in enumerate(range(0, 120, 2))]
    shop = prepare(tmp_path, rows)
    records = program(f"--dataset_path={shop}", *TRAIN, "--num_eval_negatives=100")
    assert "leave out" not in capsys.readouterr().out
    assert 0 < records[-1]["data"]["test_popular_mrr"] <= 1


def test_what_comes_after_the_cut_changes_no_byte_of_the_training(dataset, trained, tmp_path):
    """Through both programs: preprocessing, training, checkpoint."""
    rows, cut = make_rows(), Manifest.load(dataset).statistics["cut"]
    generator = np.random.default_rng(1)
    is_late = np.array([t >= cut for _, _, t in rows])
    late_items = np.array([i for _, i, t in rows if t >= cut])
    # Each item of the catalogue stays in it: the others are drawn from what there is.
    altered = generator.permutation(np.concatenate([np.unique(late_items),
        generator.choice(late_items, len(late_items) - len(np.unique(late_items)))]))  # fmt: skip
    drawn = iter(altered.tolist())
    # The times at the cut stay, since it is one of them; all later ones move.
    moved = [t + int(generator.integers(0, 300)) if t > cut else t for _, _, t in rows]
    changed = [
        (u, next(drawn) if late else i, t)
        for (u, i, _), t, late in zip(rows, moved, is_late, strict=True)
    ]
    assert changed != rows
    made = prepare(tmp_path / "altered", changed)
    assert Manifest.load(made).fingerprint != Manifest.load(dataset).fingerprint
    assert_same(train(made, tmp_path), trained)


@pytest.mark.parametrize("validation", ["time", "users"])
def test_recent_items_are_those_of_the_last_seven_days_to_train_on(dataset, validation):
    sequences = read_sequences(dataset)
    days = dataclasses.replace(sequences, timestamps=sequences.timestamps / 10 * 24 * 3600)
    raw = read_user_map(dataset).raw
    temporal = split_by_time(days, Fraction("0.8"), "all", validation, raw).temporal
    trained = [
        (days.timestamps[at], days.items[at])
        for user, start in enumerate(days.offsets[:-1])
        for at in range(start, start + temporal.train_lengths[user])
    ]
    end = temporal.cut if validation == "users" else min(
        t for t in days.timestamps if t > max(at for at, _ in trained)
    )  # fmt: skip
    recent = [item for time, item in trained if time >= end - 7 * 24 * 3600]
    assert 0 < len(recent) < len(trained) / 4
    assert temporal.recent_counts.tolist() == [
        recent.count(item) for item in range(1, days.num_items + 1)
    ]


def test_all_targets_are_ranked_and_cold_ones_reported(dataset, trained, program, tmp_path, capsys):
    rows, cut = histories(dataset)
    data = program("--mode=test", f"--dataset_path={dataset}", f"--load_checkpoint_path={trained}",
                   "--temporal_targets=all", f"--ranks_file={tmp_path / 'ranks.csv'}"
                   )[-1]["data"]  # fmt: skip
    printed = capsys.readouterr().out
    sequences = split(dataset, "all")
    targets = targets_of(sequences, "test")
    found = pyarrow.csv.read_csv(tmp_path / "ranks.csv").to_pydict()
    raw = read_user_map(dataset).raw.to_pylist()
    assert [str(u) for u in found["user"]] == [raw[u] for u in targets.users]
    assert found["history_length"] == targets.known.tolist()
    items = [int(raw_id) for raw_id in read_item_map(dataset).raw.to_pylist()]
    assert found["item"] == [items[i - 1] for i in true_items(sequences, "test")]
    ranks = np.array(found["rank"])
    assert data["test_full_hr@10"] == pytest.approx((ranks <= 10).mean())
    known = {i for own in rows.values() for t, i in own if t < cut}
    is_cold = np.array([i not in known for i in true_items(sequences, "test")])
    assert 0 < is_cold.sum() == data["test_cold_targets"] < len(ranks)
    assert data["test_cold_hr@10"] == pytest.approx((ranks[is_cold] <= 10).mean())
    assert data["test_warm_hr@10"] == pytest.approx((ranks[~is_cold] <= 10).mean())
    cold_users = sum(own[0][0] >= cut for own in rows.values())
    assert 0 < cold_users == data["test_cold_users"]
    # All is within seven days here.
    assert data["test_recent_ndcg@10"] == data["test_popularity_ndcg@10"]
    assert data["test_cold_items"] == sequences.num_items - len(known)
    users = len({*found["user"]})
    assert_tells(printed, f"{len(ranks)} targets", f"{users} users", cold_users)


@pytest.mark.parametrize("targets", ["last", "first"])
def test_the_checkpoint_says_which_targets_and_validation(dataset, trained, program, targets):
    """By default those of the training; other targets are a question of the test."""
    flags = ("--mode=test", f"--dataset_path={dataset}", f"--load_checkpoint_path={trained}")
    data = program(*flags, f"--temporal_targets={targets}")[-1]["data"]
    again = program(*flags)[-1]["data"]
    same = data["test_full_mrr"] == again["test_full_mrr"]
    assert same == (targets == "first")


def test_another_split_than_that_of_the_training_is_refused(dataset, trained, refused, tmp_path):
    flags = ("--mode=test", f"--load_checkpoint_path={trained}")
    text = refused(*flags, f"--dataset_path={dataset}", "--temporal_validation=users")
    assert_tells(text, "--temporal_validation time", "users")
    other = tmp_path / "other"
    shutil.copytree(dataset, other)
    manifest = (other / "manifest.json").read_text()
    (other / "manifest.json").write_text(with_checksum(manifest.replace(SPLIT, "temporal:0.7")))
    text = refused(*flags, f"--dataset_path={other}")
    assert_tells(text, SPLIT, "temporal:0.7")


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--temporal_targets=all", "--dataset_name=random"), "--temporal_targets"),
        (("DATASET", "--validation_users=9"), "--temporal_validation users"),
    ],
)
def test_settings_that_contradict_the_split_are_refused(dataset, refused, flags, fact):
    flags = [flag.replace("DATASET", f"--dataset_path={dataset}") for flag in flags]
    assert_tells(refused(*flags), fact)


def test_recommending_and_resuming_work_as_ever(
    dataset, trained, program, recommend, refused, tmp_path
):
    item = read_item_map(dataset).raw[0].as_py()
    flags = (f"--dataset_path={dataset}", f"--load_checkpoint_path={trained}", "--top_k=2")
    assert [len(answer["items"]) for answer in recommend(*flags, lines=f"{item}\n")] == [2]
    shutil.copytree(trained, tmp_path / "run")
    flags = (f"--dataset_path={dataset}", f"--export_root={tmp_path / 'run'}", "--resume", *TRAIN)
    program(*flags, "--max_steps=4")
    assert "temporal_targets" in refused(*flags, "--temporal_targets=all")


def test_a_deployed_model_is_not_scored_on_such_a_dataset(dataset, trained):
    with refusal(dataset):
        open_dataset(dataset, Bert4RecCheckpoint.open(trained))


def test_inference_is_measured_on_the_targets(dataset, trained, program):
    flags = ("--inference_benchmark_batch_sizes=50",)
    data = program("--mode=inference_benchmark", f"--dataset_path={dataset}",
                   f"--load_checkpoint_path={trained}", *flags)[-1]["data"]  # fmt: skip
    assert any("throughput" in name for name in data)


def test_verify_names_the_split(dataset):
    report = harness.forked("-m", "dataspec.verify", dataset).stdout
    assert f"split      {SPLIT}, cut at " in report
