# SPDX-License-Identifier: Apache-2.0
"""Two processes with DistributedDataParallel over gloo, against one that adds up both batches."""

import contextlib
import os
import re
import signal

import pytest
import torch

from recsys.train.optimizers.rows import RowGradients
from recsys.train.processes import Processes, join_processes
from tests import harness
from tests.bert4rec.torchrun import (
    RANDOM,
    assert_close_weights,
    assert_same_metrics,
    run,
    weights,
)
from tests.harness import run_ranks

pytestmark = pytest.mark.multiprocess

CASES = {
    "full": ("--objective=hybrid", "--clip_norm=0.5", "--head=tied"),
    "sampled": ("--loss=sampled", "--num_negatives=64", "--head=tied", "--clip_norm=0.5"),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Runs of two processes: their folders and what they logged."""
    folders = {case: tmp_path_factory.mktemp(case) for case in CASES}
    return {
        case: (folder, run(folder, 2, CASES[case], launched=case == "full"))
        for case, folder in folders.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(two, tmp_path, case):
    """Same windows, masks, dropout and negatives: only the order of sums differs.

    A rank moves if two scores are as close as that: one of 60 users is 0.017 in a hit rate.
    """
    folder, logged = two[case]
    expected = run(tmp_path, 1, (*CASES[case], "--accumulation_steps=2"))
    assert_same_metrics(logged, expected, 0.02)
    mine, other = weights(folder), weights(tmp_path)
    assert mine.keys() == other.keys()
    model = {name: tensor for name, tensor in other.items() if name.startswith("model/")}
    assert_close_weights(mine, model)


@pytest.mark.slow
def test_two_processes_repeat_their_bits_and_resume(two, tmp_path):
    run(tmp_path, 2, (*CASES["sampled"], "--max_steps=2"))
    run(tmp_path, 2, (*CASES["sampled"], "--resume"))
    expected = weights(two["sampled"][0])
    for name, tensor in weights(tmp_path).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
def test_a_process_that_stands_still_is_named_and_ends_the_run(tmp_path):
    flags = (*RANDOM, "--num_epochs=100000", "--print_freq=1", "--process_timeout=4")
    program = ("-m", "bert4rec.scripts.main", *flags, f"--log_path={tmp_path / 'log.json'}")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in ("0", "1"):
            variables = address | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            ranks.append(stack.enter_context(harness.started_forked(*program, **variables)))
        harness.wait_for_line(ranks[0], lambda line: "[3/" in line)
        ranks[1].send_signal(signal.SIGSTOP)
        text = harness.wait_for_line(ranks[0], lambda line: "gave no sign of life" in line)
        assert ranks[0].wait(60) == 1
    process = rf"error: rank 1 \(process {ranks[1].pid} on .*\)"
    assert re.search(rf"{process} gave no sign of life for 4 s and holds up the others", text)


def exchange(rank: int, folder: str) -> None:
    with join_processes("cpu", None) as here:
        cores = len(os.sched_getaffinity(0))
        mine = torch.arange(3.0 * rank).view(-1, 3) + 10 * rank
        only_first = [] if rank else [RowGradients(1, torch.tensor([4]), torch.ones(1, 2))]
        found = {
            "threads": torch.get_num_threads() == max(cores // 2, 1),
            "is_first": here.is_first == (rank == 0),
            "sum": here.sum(torch.tensor([1.0, rank])),
            "any": (here.any(rank == 1), here.any(False)),
            "gathered": here.gather(mine),
            "rows": [
                (g.table, g.rows, g.gradients)
                for g in here.gather_rows(only_first, [3, 2], torch.device("cpu"))
            ],
        }
        here.barrier()
    torch.save(found, f"{folder}/{rank}.pt")


def test_what_processes_tell_each_other(tmp_path):
    run_ranks(2, exchange, str(tmp_path), joined=False)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert found["threads"]
        assert found["is_first"]
        assert found["sum"].tolist() == [2.0, 1.0]
        assert found["any"] == (True, False)
        assert found["gathered"].tolist() == [[10.0, 11.0, 12.0]]
        empty, one = found["rows"]
        assert (empty[0], empty[1].shape, empty[2].shape) == (0, (0,), (0, 3))
        assert (one[0], one[1].tolist(), one[2].tolist()) == (1, [4], [[1.0, 1.0]])


def test_one_process_has_nobody_to_ask():
    alone = Processes()
    values = torch.tensor([1.0])
    assert alone.sum(values) is values
    assert alone.gather(values) is values
    assert alone.any(True)
    assert not alone.any(False)
