# SPDX-License-Identifier: Apache-2.0
"""Batches with added tokens: few sizes, and the loss and gradients of the batches without."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import TrainBatches
from bert4rec.data.masking import draw_counts, draw_uniformly, mask_tokens, next_item_batch
from bert4rec.data.rounding import add_tokens, rounded
from bert4rec.model.loss import LossNetwork
from bert4rec.model.network import Bert4Rec, ItemRows
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import TargetTokens
from bert4rec.scripts.flags import PRESETS
from recsys.data.sequences.histories import Sequences
from recsys.train.optimizers.rows import RowwiseOptimizer
from tests.bert4rec.steps import CPU, NUM_ITEMS, config, make_model, sequences


def test_sizes_are_multiples_of_64_with_few_of_them():
    sizes = [rounded(size) for size in range(5000)]
    assert sizes == sorted(sizes)
    assert all(size % 64 == 0 and size > 0 for size in sizes)
    assert all(0 <= new - size <= max(64, size / 8) for size, new in enumerate(sizes))
    assert len({size for size in sizes if 1024 < size <= 4096}) == 2 * 8


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    causal=st.booleans(),
    probability=st.floats(0.01, 0.99),
)
def test_added_tokens_are_in_sequences_of_their_own(lengths, causal, probability):
    lengths = np.sort(np.array(lengths) + causal)
    rule = config(mask_prob=probability).objective
    counts = draw_counts(lengths, rule, np.random.default_rng(0))
    items = torch.arange(1, lengths.sum() + 1)
    before = SequenceLayout.of_lengths(torch.from_numpy(lengths), int(lengths.max()), len(items))
    more, layout, masked = add_tokens(items, before, counts, 60, causal=causal)
    every = layout.lengths() - int(causal)
    assert torch.equal(more, torch.cat([items, torch.zeros(len(more) - len(items)).long()]))
    assert layout.num_tokens == len(more) == layout.lengths().sum()
    assert layout.batch_size > len(lengths)
    assert layout.lengths()[: len(lengths)].tolist() == lengths.tolist()
    assert rounded(int(every.sum())) == every.sum()
    assert every.min() >= 1
    assert every.max() <= layout.max_length - causal <= 60
    if not causal:
        assert masked.total == masked.per_sequence.sum() == rounded(counts.total)
        assert masked.per_sequence.max() <= masked.largest <= layout.max_length
        assert (masked.per_sequence <= layout.lengths()).all()
        assert torch.equal(masked.per_sequence[: len(lengths)], counts.per_sequence)
        assert not masked.last_only[len(lengths) :].any()


def labelled_twice(settings):
    """Returns a labelled batch with added tokens, and the same without them."""
    (batch,) = next(TrainBatches(settings, sequences(), rounds=True).batches(0, 0)).batches
    generator = torch.Generator().manual_seed(1)
    if batch.causal:
        labelled = next_item_batch(batch.items, batch.layout)
        is_added = labelled.items == 0
    else:
        args = (settings.objective, NUM_ITEMS, generator)
        labelled = mask_tokens(batch.items, batch.layout, batch.mask_counts, *args)
        is_added = batch.items == 0
    if settings.objective.loss != "full":
        drawn = draw_uniformly(NUM_ITEMS, settings.objective.num_negatives, generator, CPU)
        labelled = dataclasses.replace(labelled, negatives=drawn)
    tokens, targets, rows = batch.num_tokens, batch.num_targets, batch.num_sequences
    assert len(labelled.items) > tokens

    def without(layout, count):
        lengths = layout.lengths()[:rows]
        return SequenceLayout.of_lengths(lengths, int(lengths.max()), count)

    layout = without(labelled.layout, tokens)
    chosen = layout if batch.causal else without(labelled.targets.layout, targets)
    found = labelled.targets
    plain = dataclasses.replace(
        labelled,
        items=labelled.items[:tokens],
        layout=layout,
        targets=TargetTokens(found.index[:targets], chosen, found.positions[:targets]),
        labels=labelled.labels[:targets],
    )
    return labelled.ignoring(is_added), plain


LOSSES = ["full", "sampled", "gbce"]


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("objective", ["cloze", "causal"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_added_tokens_change_neither_loss_nor_gradients(objective, loss, head, norm):
    settings = config(objective=objective, loss=loss, head=head, norm=norm, mask_prob=0.4)
    results = []
    for batch in labelled_twice(settings):
        model = make_model(settings).double()
        value = LossNetwork(model, loss)(batch)
        value.backward()
        results.append((value.detach(), *(parameter.grad for parameter in model.parameters())))
    for rounded_up, plain in zip(*results, strict=True):
        torch.testing.assert_close(rounded_up, plain, rtol=1e-6, atol=1e-9, check_dtype=False)


@pytest.mark.parametrize("objective", ["cloze", "causal"])
def test_no_further_row_is_updated(objective):
    settings = config(objective=objective, loss="sampled", head="untied", mask_prob=0.4)
    tables = []
    for batch in labelled_twice(settings):
        model = make_model(settings)
        rows = ItemRows(model, ("embedding", "head", "bias"))
        optimizer = RowwiseOptimizer(rows, "adam", 0.1)
        for _ in range(2):
            LossNetwork(model, "sampled")(batch).backward()
            optimizer.step(optimizer.gradients(), torch.tensor(0.01), None, None)
        tables.append(rows.stored_tables())
    for rounded_up, plain, before in zip(
        *tables, ItemRows(make_model(settings), ("embedding", "head", "bias")).stored_tables(),
        strict=True,
    ):  # fmt: skip
        changed = (plain != before).any(1)
        assert 0 < changed.sum() < len(changed)
        assert torch.equal((rounded_up != before).any(1), changed)
        torch.testing.assert_close(rounded_up, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("objective", ["cloze", "causal"])
def test_adapters_with_a_gate_ignore_added_tokens(objective):
    settings = config(
        objective=objective, adapter="ilora", load_checkpoint_path="any", mask_prob=0.4
    )
    results = []
    for batch in labelled_twice(settings):
        torch.manual_seed(0)
        model = Bert4Rec(settings.model, NUM_ITEMS, settings.adapter).double()
        value = LossNetwork(model, "full")(batch)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        results.append((value.detach(), *torch.autograd.grad(value, trained)))
    for rounded_up, plain in zip(*results, strict=True):
        torch.testing.assert_close(rounded_up, plain, rtol=1e-6, atol=1e-9, check_dtype=False)


def histories(mean: float, users: int, most: int) -> Sequences:
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(mean), 0.9, users), 5, most).astype(int)
    offsets = np.concatenate([[0], lengths.cumsum()])
    items = generator.integers(1, NUM_ITEMS + 1, offsets[-1]).astype(np.int32)
    return Sequences(items, offsets, NUM_ITEMS)


@pytest.mark.parametrize("objective", ["cloze", "causal", "hybrid"])
def test_samples_tokens_and_targets_are_counted_without_added_ones(objective):
    settings = config(objective=objective, num_workers=0)
    for plain, rounded_up in zip(
        *(TrainBatches(settings, sequences(), rounds=r).batches(0, 0) for r in (False, True)),
        strict=True,
    ):
        for one, other in zip(plain.batches, rounded_up.batches, strict=True):
            assert len(one) == len(other)
            assert (one.num_tokens, one.num_targets) == (other.num_tokens, other.num_targets)
            assert one.seed == other.seed
            assert torch.equal(one.items, other.items[: len(one.items)])


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS.names())
@pytest.mark.parametrize(("mean", "most"), [(8, 100), (95, 2000)])
def test_few_sizes_occur_in_a_thousand_batches(preset, mean, most):
    settings = Bert4RecConfig.from_dict({**PRESETS.read(preset).values, "num_workers": 0})
    size = settings.data.train_batch_size
    source = TrainBatches(settings, histories(mean, 40 * size, most), rounds=True)
    groups = (group for epoch in itertools.count() for group in source.batches(epoch, 0))
    batches = [group.batches[0] for group in itertools.islice(groups, 1000)]
    tokens = {b.layout.num_tokens - b.causal * b.layout.batch_size for b in batches}
    targets = {b.mask_counts.total for b in batches if not b.causal}
    assert len(tokens) + len(targets) <= 24
