# SPDX-License-Identifier: Apache-2.0
import itertools
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch

from bert4rec.config import Bert4RecConfig, ObjectiveConfig
from bert4rec.data.batches import TrainBatches, known_windows, pack
from bert4rec.data.masking import draw_counts, mask_tokens, next_item_batch
from bert4rec.data.windows import make_windows
from bert4rec.nn.layout import SequenceLayout
from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.negatives import draw_negatives
from recsys.ratings.data.opened import random_sequences
from recsys.ratings.data.split import (
    known_lengths,
    targets_of,
    training_lengths,
    true_items,
    validate_some_users,
)
from recsys.train.processes import ALONE, Processes
from tests.bert4rec.conftest import write_dataset
from tests.harness import assert_tells, refusal

CPU = torch.device("cpu")


@pytest.fixture
def sequences():
    lengths = np.array([3, 7, 4, 12, 30])
    items = np.concatenate([np.arange(1, n + 1) + 40 * u for u, n in enumerate(lengths)])
    return Sequences(items.astype(np.int32), np.concatenate([[0], lengths.cumsum()]), 200)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_split_holds_out_the_last_two(sequences):
    assert known_lengths(sequences, "train").tolist() == [1, 5, 2, 10, 28]
    assert known_lengths(sequences, "test").tolist() == [2, 6, 3, 11, 29]
    assert true_items(sequences, "validation").tolist() == [2, 46, 83, 131, 189]
    assert true_items(sequences, "test").tolist() == [3, 47, 84, 132, 190]


def test_users_that_do_not_validate_train_on_their_last_item_but_one(sequences):
    users = pa.array([f"user-{user}" for user in range(sequences.num_users)])
    some = validate_some_users(sequences, 2, users)
    (first, second) = some.validation_users
    assert first < second
    held_out = sequences.lengths - training_lengths(some)
    assert (held_out == np.where(np.isin(np.arange(len(held_out)), [first, second]), 2, 1)).all()
    targets = targets_of(some, "validation")
    assert targets.users.tolist() == [first, second]
    assert true_items(some, "validation").tolist() == [sequences[first][-2], sequences[second][-2]]
    assert (true_items(some, "test") == sequences.test_items).all()
    recent = make_batches(some, windows="recent", max_len=100, dupe_factor=1)
    tokens = sum(batch.layout.num_tokens for batch in batches_of(recent))
    assert tokens == training_lengths(some).sum()
    more = validate_some_users(sequences, 3, users)
    assert {first, second} < set(more.validation_users.tolist())
    # The draw is by raw ids, whatever the order of the users.
    turned = Sequences(
        np.concatenate([sequences[user] for user in range(sequences.num_users)[::-1]]),
        np.concatenate([[0], sequences.lengths[::-1].cumsum()]),
        sequences.num_items,
    )
    same = validate_some_users(turned, 2, users[::-1]).validation_users
    assert same.tolist() == [sequences.num_users - 1 - second, sequences.num_users - 1 - first]
    with refusal(sequences.num_users + 1, sequences.num_users, settings=("validation_users",)):
        validate_some_users(sequences, sequences.num_users + 1, users)


def expected_windows(kind, known, max_len):
    found = []
    for user, n in enumerate(known):
        if kind == "recent":
            found.append((user, max(n - max_len, 0), min(n, max_len)))
        elif kind == "sliding":
            begin = max(n - max_len, 0)
            starts = [*range(begin, 0, -max(max_len // 10, 1)), 0]
            found += [(user, s, min(n, max_len)) for s in starts]
        else:
            found += [(user, max(0, k - max_len), min(k, max_len)) for k in range(1, n)]
    return found


@pytest.mark.parametrize("max_len", [1, 4, 10, 25, 100])
@pytest.mark.parametrize("kind", ["recent", "sliding", "prefix"])
def test_windows_equal_a_plain_loop(sequences, kind, max_len):
    known = known_lengths(sequences, "train")
    found = make_windows(kind, known, max_len, rng())
    triples = sorted(zip(found.users, found.starts, found.lengths, strict=True))
    assert triples == sorted(expected_windows(kind, known.tolist(), max_len))


def test_random_windows_reach_every_start(sequences):
    known = known_lengths(sequences, "train")
    drawn = [make_windows("random", known, 4, rng(seed)).starts for seed in range(400)]
    assert {int(s[4]) for s in drawn} == set(range(25))
    assert {int(s[0]) for s in drawn} == {0}


@pytest.mark.parametrize(
    ("objective", "windows", "least"),
    [
        *[("cloze", "recent", 1), ("hybrid", "sliding", 1), ("causal", "random", 2)],
        *[("cloze", "prefix", 2), ("causal", "prefix", 3)],
    ],
)
def test_who_trains_is_told(tmp_path, program, refused, capsys, objective, windows, least):
    flags = (f"--objective={objective}", f"--windows={windows}", "--max_steps=1")
    short = max(least + 1, 3)
    for name, lengths in {"some": [short] * 8 + [least + 2] * 2, "short": [short] * 10}.items():
        items = np.arange(sum(lengths), dtype=np.int32) % 40 + 1
        sequences = Sequences(items, np.append(0, np.cumsum(lengths)), 40)
        write_dataset(tmp_path / name, sequences)
    program(f"--dataset_path={tmp_path / 'some'}", *flags)
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "of 10 users" in line)
    assert list(map(int, re.findall(r"\d+", told))) == [
        2 if least > 1 else 10,
        10,
        least,
        10,
        10,
        0,
    ]
    if least > 1:
        error = refused(f"--dataset_path={tmp_path / 'short'}", *flags)
        assert_tells(error, least, f"--objective {objective}", f"--windows {windows}")


@pytest.mark.parametrize("append", [None, 201])
def test_packing_equals_slicing(sequences, append):
    users = np.array([4, 0, 3])
    windows = known_windows(sequences, "test", users, 9)
    items, layout = pack(sequences, windows, CPU, append)
    expected = []
    for user in users:
        part = sequences[user][:-1][-9:].tolist()
        expected.append(part + ([append] if append else []))
    assert [p.tolist() for p in items.split(layout.lengths().tolist())] == expected
    assert layout.max_length == max(map(len, expected))


def make_batches(sequences, processes=ALONE, **changes):
    values = {
        "windows": "random", "max_len": 10, "dupe_factor": 2, "train_batch_size": 3,
        "objective": "hybrid", "seed": 5,
    }  # fmt: skip
    return TrainBatches(Bert4RecConfig.from_dict(values | changes), sequences, CPU, processes)


def batches_of(source, epoch=0, start=0):
    """Returns the single batches of an epoch."""
    return [batch for group in source.batches(epoch, start) for batch in group.batches]


def seen(batches):
    return [
        (
            b.items.tolist(),
            b.layout.offsets.tolist(),
            b.causal,
            b.mask_counts.per_sequence.tolist(),
            b.seed,
        )
        for b in batches
    ]


def test_batches_are_the_same_after_a_resume_and_new_each_epoch(sequences):
    source = make_batches(sequences)
    whole = seen(batches_of(source, 1))
    assert len(whole) == source.num_batches == 4
    assert seen(batches_of(source, 1, 2)) == whole[2:]
    assert seen(batches_of(source, 2)) != whole
    assert {causal for _, _, causal, _, _ in whole} == {True, False}


def test_an_epoch_holds_every_window_once(sequences):
    source = make_batches(sequences, windows="prefix", dupe_factor=1, objective="cloze")
    parts = []
    for batch in batches_of(source):
        lengths = batch.layout.lengths().tolist()
        assert lengths == sorted(lengths)
        parts += [p.tolist() for p in batch.items.split(batch.layout.lengths().tolist())]
    expected = [
        sequences[u][s : s + n].tolist()
        for u, s, n in expected_windows("prefix", known_lengths(sequences, "train").tolist(), 10)
    ]
    assert sorted(parts) == sorted(expected)


def test_batches_mix_sequences_of_all_lengths(sequences):
    source = make_batches(sequences, windows="prefix", dupe_factor=50, train_batch_size=100)
    means = [batch.layout.lengths().double().mean() for batch in batches_of(source)][:-1]
    assert max(means) - min(means) < 2.5  # lengths are 1 to 10; sorted batches would differ by 8


def test_causal_batches_ask_at_the_places_that_recommending_asks_at(sequences):
    """A window has one item more than the network takes: the last one is the answer alone."""
    source = make_batches(sequences, windows="recent", dupe_factor=1, objective="causal")
    asked_places, tokens = set(), 0
    for batch in batches_of(source):
        asked = next_item_batch(batch.items, batch.layout)
        assert asked.layout.lengths().max() <= 10
        for items, first, labels in zip(
            batch.items.split(batch.layout.lengths().tolist()),
            asked.items.split(asked.layout.lengths().tolist()),
            asked.labels.split(asked.layout.lengths().tolist()),
            strict=True,
        ):
            assert items[:-1].tolist() == first.tolist()
            assert items[1:].tolist() == labels.tolist()
            asked_places.add(len(first))
        assert asked.targets.index.tolist() == list(range(asked.layout.num_tokens))
        tokens += asked.layout.num_tokens
    known = known_lengths(sequences, "train")
    assert tokens == sum(min(int(n) - 1, 10) for n in known if n > 1)
    assert max(asked_places) == 10


def test_turns_of_hybrid_batches_keep_to_the_longest_sequence(sequences):
    source = make_batches(sequences, objective="hybrid")
    longest = {True: 0, False: 0}
    for epoch in range(20):
        for batch in batches_of(source, epoch):
            longest[batch.causal] = max(longest[batch.causal], int(batch.layout.lengths().max()))
    assert longest == {True: 11, False: 10}


def test_ranks_share_an_epoch(sequences):
    """Each takes all batches of its steps, of which two are added up here."""
    alone = seen(batches_of(make_batches(sequences)))
    both = [make_batches(sequences, Processes(rank, 2), accumulation_steps=2) for rank in (0, 1)]
    ranks = [list(zip(*[iter(seen(batches_of(source)))] * 2, strict=True)) for source in both]
    assert len(ranks[0]) == len(ranks[1])
    together = [batch for step in zip(*ranks, strict=True) for pair in step for batch in pair]
    assert together[: len(alone)] == alone


def mask(lengths, rule, seed=0, num_items=50):
    lengths = np.asarray(lengths)
    total = int(lengths.sum())
    items = torch.arange(total) % num_items + 1
    layout = SequenceLayout.of_lengths(torch.from_numpy(lengths), int(lengths.max()), total)
    counts = draw_counts(lengths, rule, rng(seed))
    generator = torch.Generator().manual_seed(seed)
    before = items.clone()
    found = mask_tokens(items, layout, counts, rule, num_items, generator)
    assert torch.equal(items, before)
    return items, layout, counts, found


def test_masks_hide_the_drawn_number_of_tokens_of_each_sequence():
    rule = ObjectiveConfig(mask_prob=0.4, mask_last_prob=0.3, mask_replace=1.0, random_replace=0.0)
    items, layout, counts, found = mask([5, 1, 30, 7, 2] * 20, rule)
    hidden = found.items == 51
    per_sequence = torch.bincount(layout.sequence_of_token()[hidden], minlength=100)
    assert per_sequence.tolist() == counts.per_sequence.tolist()
    assert (counts.total, counts.largest) == (per_sequence.sum(), per_sequence.max())
    assert torch.equal(hidden.nonzero()[:, 0], found.targets.index)
    assert torch.equal(items[found.targets.index], found.labels)
    assert torch.equal(layout.position_of_token()[found.targets.index], found.targets.positions)
    ends = layout.offsets[1:] - 1
    assert hidden[ends[counts.last_only]].all()
    assert torch.equal(found.targets.layout.lengths(), per_sequence)


def test_whole_batches_or_single_sequences_are_asked_for_their_last_token():
    lengths = np.full(64, 5)
    shares = {}
    for kind in ("sequences", "batches"):
        rule = ObjectiveConfig(mask_last_prob=0.4, mask_last_of=kind)
        shares[kind] = [
            draw_counts(lengths, rule, rng(seed)).last_only.double().mean().item()
            for seed in range(400)
        ]
    assert set(shares["batches"]) == {0.0, 1.0}
    assert np.mean(shares["batches"]) == pytest.approx(0.4, abs=0.1)
    assert 0 < min(shares["sequences"]) < max(shares["sequences"]) < 1
    assert np.mean(shares["sequences"]) == pytest.approx(0.4, abs=0.02)


def test_every_token_is_masked_with_the_stated_probability():
    rule = ObjectiveConfig(mask_prob=0.3, mask_replace=1.0, random_replace=0.0)
    hits = torch.zeros(8)
    draws = 3000
    for seed in range(draws // 100):
        *_, found = mask([8] * 100, rule, seed)
        hits += (found.items == 51).view(100, 8).sum(0)
    # One target at least: the share is a little above 0.3.
    share = 0.3 + 0.7**8 / 8
    assert ((hits / draws - share).abs() < 5 * (share * (1 - share) / draws) ** 0.5).all()


def test_replacement_shares():
    rule = ObjectiveConfig(mask_prob=0.5, mask_replace=0.6, random_replace=0.3)
    items, *_, found = mask([100] * 100, rule, num_items=1000)
    shown = found.items[found.targets.index]
    masked, kept = (shown == 1001).double().mean(), (shown == found.labels).double().mean()
    assert float(masked) == pytest.approx(0.6, abs=0.04)
    assert float(kept) == pytest.approx(0.1, abs=0.03)
    others = torch.ones(len(items), dtype=torch.bool)
    others[found.targets.index] = False
    assert torch.equal(found.items[others], items[others])


@pytest.mark.parametrize("likely", [0, 1, 40, None])
def test_negatives_are_those_of_exact_successive_sampling(likely):
    """Users know what is drawn nearly always, often, or (None: all weights 1) in a third of cases.

    So their negatives come from the permutation alone, from both ways, or from rejection alone.
    """
    users, weights = 6000, np.array([1, 2, 4, 8, 16])
    rows = [np.array([1, 2, 3], np.int32)] * users
    if likely:
        rows.append(np.repeat(np.arange(4, 9, dtype=np.int32), weights * 25 * likely))
    else:
        rows.append(np.repeat(np.arange(4, 9, dtype=np.int32), weights))
    sequences = Sequences(np.concatenate(rows), np.cumsum([0, *map(len, rows)]), 9)
    # The last one has no weight: it is drawn by popularity where no others are left.
    drawn = draw_negatives(sequences, 3, by_popularity=likely is not None, seed=7)[:users]
    chances = Counter()
    weight = dict(zip(range(4, 10), [*weights, 0] if likely is not None else [1] * 6, strict=True))
    for order in itertools.permutations(weight, 3):
        left, chance = sum(weight.values()), 1.0
        for item in order:
            chance *= weight[item] / left
            left -= weight[item]
        chances[tuple(sorted(order))] += chance
    seen = Counter(map(tuple, np.sort(drawn, 1).tolist()))
    expected = {key: users * chance for key, chance in chances.items() if chance}
    assert seen.keys() <= expected.keys()
    distance = sum((seen[key] - n) ** 2 / n for key, n in expected.items())
    # Below the 99.9% quantile of chi squared with 9 (popular) and 19 degrees of freedom.
    assert distance < (27.9 if likely is not None else 43.8)
    every = draw_negatives(sequences, 6, by_popularity=likely is not None, seed=7)[:users]
    assert (np.sort(every, 1) == np.arange(4, 10)).all()


@pytest.mark.timeout(120)
def test_a_user_who_knows_nearly_all_that_is_likely_gets_negatives():
    """Drawing until something is new would take hours."""
    generator = np.random.default_rng(0)
    account = np.arange(1, 1861, dtype=np.int32)
    rows = [account, *(generator.choice(account, 20, replace=False) for _ in range(400))]
    rows.append(np.arange(1861, 2001, dtype=np.int32))
    sequences = Sequences(np.concatenate(rows), np.cumsum([0, *map(len, rows)]), 2000)
    drawn = draw_negatives(sequences, 100, by_popularity=True, seed=0)
    assert [len(set(own)) for own in drawn.tolist()] == [100] * len(rows)
    assert not any(set(own) & set(known) for own, known in zip(drawn, rows, strict=True))
    assert np.array_equal(drawn, draw_negatives(sequences, 100, by_popularity=True, seed=0))


def test_users_with_too_few_new_items_have_no_negatives():
    items = np.array([1, 2, 3, 1, 1, 1, 2, 2], np.int32)
    small = Sequences(items, np.array([0, 4, 8]), 5)
    drawn = draw_negatives(small, 3, by_popularity=False, seed=0)
    assert drawn[0].tolist() == [0, 0, 0]
    assert sorted(drawn[1]) == [3, 4, 5]


def test_random_sequences_are_seeded_and_filtered():
    found = random_sequences(100, 30, 900, 9, 1)
    assert (found.lengths >= 9).all()
    assert found.items.min() >= 1
    assert found.items.max() <= 30
    assert np.array_equal(found.items, random_sequences(100, 30, 900, 9, 1).items)
    with refusal(10, "`min_user_count` 50"):
        random_sequences(10, 30, 100, 50, 1)
