# SPDX-License-Identifier: Apache-2.0
"""Two gloo processes against one: whole item tables, tables by rows, and TorchRec's.

TorchRec is that of `make torchrec`. On a CPU FBGEMM's rows move by row-wise Adagrad.
"""

import contextlib
import re
import signal

import pytest
import torch
from torch.nn import functional as F

from bert4rec.nn.parallel_softmax import ItemRange, parallel_cross_entropy
from recsys.train.optimizers.rows import RowGradients
from recsys.train.processes import Processes, join_processes
from tests import harness
from tests.bert4rec.torchrun import RANDOM, assert_resumes, assert_trains_alike
from tests.tools import needs

pytestmark = pytest.mark.multiprocess

TIED, SAMPLED = "--head=tied", ("--loss=sampled", "--num_negatives=64")
WHOLE = {
    "full": ("--objective=hybrid", "--clip_norm=0.5", TIED),
    "sampled": (*SAMPLED, TIED, "--clip_norm=0.5"),
}
SHARDS = {
    "tied-full": (TIED, "--clip_norm=0.5", "--item_init=neighbours"),
    "tied-cosine": (TIED, "--temperature=0.1", "--popularity_correction=0.5"),
    "tied-sampled": (*SAMPLED, TIED, "--clip_norm=0.5"),
    "untied-sampled": (*SAMPLED, "--weight_decay=0.1"),
    "untied-full": ("--clip_norm=0.5",),
}
TORCHREC = {"full": (), "tied": (*SAMPLED, TIED), "untied": SAMPLED}


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE)
def test_whole_tables_train_as_in_one_process(tmp_path, case):
    one = (*WHOLE[case], "--accumulation_steps=2")
    assert_trains_alike(tmp_path, WHOLE[case], one, launched=case == "full")


@pytest.mark.slow
@pytest.mark.parametrize("case", SHARDS)
def test_shards_train_as_whole_tables(tmp_path, case):
    batches = 2 if case == "untied-sampled" else 1
    two = (*SHARDS[case], f"--accumulation_steps={batches}", "--mode=dmp")
    # Without dmp the full softmax of an untied head moves every row of the embedding.
    mode = "--mode=dmp" if case == "untied-full" else "--mode=train"
    one = (*SHARDS[case], f"--accumulation_steps={2 * batches}", mode)
    assert_trains_alike(tmp_path, two, one)


@needs("TorchRec")
@pytest.mark.parametrize("case", TORCHREC)
def test_torchrecs_shards_train_as_whole_tables(tmp_path, case, monkeypatch):
    """The other run is one process with our own shards, which take FBGEMM's rule here."""
    rule = lambda *_: "rowwise_adagrad"  # noqa: E731
    monkeypatch.setattr("bert4rec.train.step.item_rule", rule)
    flags = (*TORCHREC[case], "--mode=dmp")
    assert_trains_alike(tmp_path, flags, (*flags, "--accumulation_steps=2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        WHOLE["sampled"],
        (*SHARDS["tied-full"], "--mode=dmp"),
        pytest.param((*TORCHREC["tied"], "--mode=dmp"), marks=needs("TorchRec")),
    ],
    ids=["whole", "shards", "torchrec"],
)
def test_two_processes_repeat_their_bits_and_resume(tmp_path, flags):
    tensors = assert_resumes(tmp_path, flags, 2, 3)
    moment = tensors.get("item_optimizer.embedding.first_moment")
    assert moment is None or moment.shape == (202, 16)
    assert any(name.startswith("item_optimizer.") for name in tensors)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [1, 0], ids=["one", "the one with the store"])
def test_a_process_that_stands_still_is_named_and_ends_the_run(tmp_path, frozen):
    flags = (*RANDOM, "--num_epochs=100000", "--print_freq=1", "--process_timeout=4")
    program = ("-m", "bert4rec.scripts.main", *flags, f"--log_path={tmp_path / 'log.json'}")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in ("0", "1"):
            variables = address | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            ranks.append(stack.enter_context(harness.started_forked(*program, **variables)))
        harness.wait_for_line(ranks[0], lambda line: "[3/" in line)
        ranks[frozen].send_signal(signal.SIGSTOP)
        other = ranks[1 - frozen]
        text = harness.wait_for_line(other, lambda line: line.startswith("error: "))
        assert other.wait(60) == 1
    assert re.search(rf"rank {frozen} \(process {ranks[frozen].pid} on .*\).* for 4 s", text)


def exchange(rank: int, folder: str) -> None:
    with join_processes("cpu", 1) as here:
        only_first = [] if rank else [RowGradients(1, torch.tensor([4]), torch.ones(1, 2))]
        found = {
            "is_first": here.is_first == (rank == 0),
            "sum": here.sum(torch.tensor([1.0, rank])).tolist(),
            "any": (here.any(rank == 1), here.any(False)),
            "gathered": here.gather(torch.arange(3.0 * rank).view(-1, 3) + 10 * rank).tolist(),
            "rows": [
                (g.table, g.rows.tolist(), tuple(g.gradients.shape), float(g.gradients.sum()))
                for g in here.gather_rows(only_first, [3, 2], torch.device("cpu"))
            ],
        }
        here.barrier()
    torch.save(found, f"{folder}/{rank}.pt")


def test_what_processes_tell_each_other(tmp_path):
    harness.run_ranks(2, exchange, str(tmp_path), joined=False)
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt") == {
            "is_first": True,
            "sum": [2.0, 1.0],
            "any": (True, False),
            "gathered": [[10.0, 11.0, 12.0]],
            "rows": [(0, [], (0, 3), 0.0), (1, [4], (1, 2), 2.0)],
        }


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
    harness.run_ranks(world_size, score, str(tmp_path), world_size, max_logits)
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
