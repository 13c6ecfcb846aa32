# SPDX-License-Identifier: Apache-2.0
"""Item tables dealt out to two gloo processes, against one process."""

import pytest
import torch
from torch.nn import functional as F

from bert4rec.nn.parallel_softmax import ItemRange, parallel_cross_entropy
from recsys.train.processes import Processes
from tests.bert4rec.torchrun import assert_resumes, assert_trains_alike
from tests.harness import run_ranks

pytestmark = pytest.mark.multiprocess

SAMPLED = ("--loss=sampled", "--num_negatives=64")
CASES = {
    "tied-full": ("--head=tied", "--clip_norm=0.5"),
    "tied-cosine": ("--head=tied", "--temperature=0.1", "--popularity_correction=0.5"),
    "tied-sampled": (*SAMPLED, "--head=tied", "--clip_norm=0.5"),
    "untied-sampled": (*SAMPLED, "--weight_decay=0.1"),
    "untied-full": ("--clip_norm=0.5",),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_shards_train_as_whole_tables(tmp_path, case):
    """Same windows, masks, dropout and negatives; tolerances as in test_distributed."""
    batches = 2 if case == "untied-sampled" else 1
    two = (*CASES[case], f"--accumulation_steps={batches}", "--mode=dmp")
    # Without dmp the full softmax of an untied head moves every row of the embedding.
    mode = "--mode=dmp" if case == "untied-full" else "--mode=train"
    one = (*CASES[case], f"--accumulation_steps={2 * batches}", mode)
    assert_trains_alike(tmp_path, two, one)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    tensors = assert_resumes(tmp_path, (*CASES["tied-full"], "--mode=dmp"), 2, 3)
    assert tensors["item_optimizer/embedding.first_moment"].shape == (202, 16)


ITEMS, DIM = 11, 5


def problem(rank: int) -> list[torch.Tensor]:
    """Returns table, bias and targets; the third process has none."""
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    table, bias = draw(ITEMS + 2, DIM), draw(ITEMS)
    generator.manual_seed(rank)
    count = (4, 3, 0)[rank]
    return [table, bias, draw(count, DIM), torch.randint(0, ITEMS, (count,), generator=generator)]


def score(rank: int, folder: str, world_size: int, max_logits: int) -> None:
    table, bias, hidden, labels = problem(rank)
    here = Processes(rank, world_size)
    size = -(-(ITEMS + 2) // world_size)
    start, stop = rank * size, min((rank + 1) * size, ITEMS + 2)
    first, last = max(start, 1), min(stop, ITEMS + 1)
    items = ItemRange(here, first - 1, slice(first - start, last - start), max_logits)
    own = table[start:stop].clone()
    inputs = [t.requires_grad_() for t in (hidden, own, bias)]
    loss = parallel_cross_entropy(*inputs, labels, items)
    gradients = torch.autograd.grad(loss * (rank + 2), inputs)
    torch.save([loss.detach(), *gradients], f"{folder}/{rank}.pt")


@pytest.mark.parametrize(("world_size", "max_logits"), [(2, 1 << 24), (2, 20), (3, 20)])
def test_parallel_softmax_equals_the_plain_one(tmp_path, world_size, max_logits):
    run_ranks(world_size, score, str(tmp_path), world_size, max_logits)
    table, bias, *_ = (t.requires_grad_() for t in problem(0)[:2])
    stored = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world_size)]
    total = torch.zeros((), dtype=torch.float64)
    for rank, (loss, to_hidden, *_) in enumerate(stored):
        hidden, labels = problem(rank)[2:]
        hidden.requires_grad_()
        logits = F.linear(hidden, table[1:-1], bias)
        plain = F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)
        torch.testing.assert_close(loss, plain.detach())
        (expected,) = torch.autograd.grad(plain * (rank + 2), hidden, retain_graph=True)
        torch.testing.assert_close(to_hidden, expected)
        total = total + plain * (rank + 2)
    to_table, to_bias = torch.autograd.grad(total, (table, bias))
    torch.testing.assert_close(torch.cat([shard[2] for shard in stored]), to_table)
    torch.testing.assert_close(sum(shard[3] for shard in stored), to_bias)
