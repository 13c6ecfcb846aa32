# SPDX-License-Identifier: Apache-2.0
"""Two gloo processes against one: whole item tables, tables by rows, and TorchRec's.

TorchRec is that of `make torchrec`. On a CPU FBGEMM's rows move by row-wise Adagrad.
"""

import contextlib
import importlib.util
import os
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bert4rec.nn.parallel_softmax import ItemRange, parallel_cross_entropy
from bert4rec.scripts import main
from recsys.train.optimizers.rows import RowGradients
from recsys.train.processes import Processes, join_processes
from tests import harness
from tests.checkpoints import assert_same, tensors
from tests.tools import needs

pytestmark = pytest.mark.multiprocess

RANDOM = (
    "--dataset_name=random", "--random_user_count=60", "--random_item_count=200",
    "--random_size=2000", "--emb_dim=16", "--max_len=12", "--train_batch_size=8",
    "--dupe_factor=1", "--num_epochs=1", "--num_eval_negatives=50",
    "--base_device=cpu", "--windows=recent", "--lr=0.01", "--val_batch_size=16",
    "--test_batch_size=16",
)  # fmt: skip


def settings_of(folder: Path, flags: Sequence[str]) -> list[str]:
    """Returns the flags of a run whose log and checkpoints are in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = f"--log_path={folder / 'log.json'}", f"--export_root={folder / 'run'}"
    return [*RANDOM, *flags, *saved]


def train_all(rank: int, folder: str, runs: list[tuple[int, list[str]]]) -> None:
    """Trains one run after the other, each with a port of its own for its process group."""
    with Path(folder, f"output_{rank}").open("w") as file, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(file))
        stack.enter_context(contextlib.redirect_stderr(file))
        for port, settings in runs:
            os.environ["MASTER_PORT"] = str(port)
            assert harness.call(main, *settings) == 0


def figures(folder: Path, runs: int = 1) -> dict[str, Any]:
    """Returns the figures of the last two records of the log that some runs wrote."""
    records = harness.read_log(folder / "log.json")
    assert records[0]["type"] == "LOG"
    # Only one process logs, however many there are; a resumed run appends.
    assert sum("average_train_throughput" in r["data"] for r in records) == runs
    return {
        name: value
        for record in records
        if record["step"] == []
        for name, value in record["data"].items()
        if not isinstance(value, str)  # the verdict is a sentence
    }


def assert_close_weights(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compares the weights of two runs that differ in the order of sums alone.

    Adam divides a gradient by its own size, so rounding of 1e-7 can move an element with a tiny
    gradient by a share of the rate, 0.01; over 7 steps few elements drift by more than 1e-4. The
    bias of the keys has no gradient but rounding, softmax being blind to it: it may go anywhere.
    """
    for name, tensor in expected.items():
        mine, other = found[name].float(), tensor.float()
        if name.endswith("qkv.bias"):
            dim = len(tensor) // 3
            mine, other = mine.clone(), other.clone()
            mine[dim : 2 * dim] = other[dim : 2 * dim] = 0.0
        difference = (mine - other).abs()
        assert difference.max() < 5e-3, name
        assert difference.mean() < 1e-5, name


def assert_same_metrics(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Compares every figure of the test items, and that there are some."""
    names = [name for name in expected if name.startswith("test_")]
    assert "test_full_ndcg@10" in names
    assert "test_popular_hr@10" in names
    for name in names:
        if expected[name] is not None:
            assert abs(found[name] - expected[name]) <= tolerance, name


TIED, SAMPLED = "--head=tied", ("--loss=sampled", "--num_negatives=64")
DMP = "--mode=dmp"
TWICE = "--accumulation_steps=2"
TWO_AND_ONE = {
    "whole-full": (("--objective=hybrid", "--clip_norm=0.5", TIED), (TWICE,)),
    "whole-sampled": ((*SAMPLED, TIED, "--clip_norm=0.5"), (TWICE,)),
    "shards-tied-full": ((DMP, TIED, "--clip_norm=0.5", "--item_init=neighbours"), (TWICE,)),
    "shards-tied-cosine": (
        *((DMP, TIED, "--temperature=0.1", "--popularity_correction=0.5"), (TWICE,)),
    ),
    "shards-tied-sampled": ((DMP, *SAMPLED, TIED, "--clip_norm=0.5"), (TWICE,)),
    "shards-untied-sampled": (
        *((DMP, *SAMPLED, "--weight_decay=0.1", TWICE), ("--accumulation_steps=4",)),
    ),
    # Without dmp the full softmax of an untied head moves every row of the embedding.
    "shards-untied-full": ((DMP, "--clip_norm=0.5"), (TWICE, DMP)),
    # TorchRec's against our own shards, which take FBGEMM's rule.
    "torchrec-full": ((DMP,), (TWICE, DMP)),
    "torchrec-tied": ((DMP, *SAMPLED, TIED), (TWICE, DMP)),
    "torchrec-untied": ((DMP, *SAMPLED), (TWICE, DMP)),
}
"""Flags of a run of two processes; what the same run of one process has besides."""
RESUMED = ("whole-sampled", "shards-tied-full", "torchrec-tied")
OVERFITTED = ("--num_epochs=2", "--lr=0.05", "--test_freq=1")


def cases(names: Iterable[str] = tuple(TWO_AND_ONE)):
    """Returns cases for a test, those of TorchRec where it is installed."""
    for name in names:
        yield pytest.param(name, marks=needs("TorchRec") if "torchrec" in name else ())


def writing_files(folder: Path) -> list[str]:
    """Returns the flags of a run that learns nothing and writes ranks and lists."""
    names = [f"--{name}_file={folder / name}.csv" for name in ("ranks", "lists")]
    return settings_of(folder, ("--max_steps=1", "--lr=0", *names))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory) -> Path:
    """Runs of all cases in the same two processes: importing TorchRec takes seconds.

    Those that are resumed are trained once more, in parts.
    """
    folder = tmp_path_factory.mktemp("two")
    runs = []
    for case, (flags, _) in TWO_AND_ONE.items():
        if "torchrec" in case and importlib.util.find_spec("torchrec") is None:
            continue
        runs.append(settings_of(folder / case, flags))
        if case in RESUMED:
            parts = folder / f"{case}-parts"
            runs += [settings_of(parts, (*flags, more)) for more in ("--max_steps=2", "--resume")]
            saved = settings_of(folder / f"{case}-saved", (*flags, *OVERFITTED))
            runs += [saved, [*saved, "--export_root=", f"--log_path={folder / f'{case}.json'}"]]
    runs.append(writing_files(folder / "files"))
    try:
        ports = [(harness.free_port(), settings) for settings in runs]
        harness.run_ranks(2, train_all, str(folder), ports, joined=False)
    finally:
        for path in sorted(folder.glob("output_*")):
            print(path.read_text())  # for the report of a test that fails
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases()))
def test_two_processes_train_as_one(of_two, tmp_path, case, monkeypatch):
    """Same windows, masks, dropout and negatives: only the order of sums differs from one process.

    A rank moves if two scores are as close as that: one of 60 users is 0.017 in a hit rate.
    """
    flags, more = TWO_AND_ONE[case]
    one = [*(flag for flag in flags if flag not in (DMP, TWICE)), *more]
    if case.startswith("torchrec"):
        monkeypatch.setattr("bert4rec.train.step.item_rule", lambda *_: "rowwise_adagrad")
    assert harness.call(main, *settings_of(tmp_path, one)) == 0
    assert_same_metrics(figures(of_two / case), figures(tmp_path), 0.02)
    mine, other = tensors(of_two / case / "run"), tensors(tmp_path / "run")
    model = {name: tensor for name, tensor in other.items() if name.startswith("model.")}
    assert model.keys() == {name for name in mine if name.startswith("model.")}
    assert_close_weights(mine, model)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases(RESUMED)))
def test_two_processes_repeat_their_bits_and_resume(of_two, case):
    whole, parts = of_two / case, of_two / f"{case}-parts"
    assert figures(parts, 2).keys() == figures(whole).keys()
    assert_same(whole / "run", parts / "run")
    stored = tensors(whole / "run")
    moment = stored.get("item_optimizer.embedding.first_moment")
    assert moment is None or moment.shape == (202, 16)
    assert any(name.startswith("item_optimizer.") for name in stored)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases(RESUMED)))
def test_two_processes_test_their_best_step_without_a_folder_too(of_two, case):
    saved = harness.read_log(of_two / f"{case}-saved" / "log.json")
    unsaved = harness.read_log(of_two / f"{case}.json")
    found = {r["step"][-1]: r["data"]["full_ndcg@10"]
             for r in unsaved if "full_ndcg@10" in r["data"]}  # fmt: skip
    best = max(found, key=found.get)
    assert best < max(found)
    assert unsaved[-2]["data"]["tested_step"] == best
    assert unsaved[-1]["data"] == saved[-1]["data"]


def test_two_processes_write_each_user_once(of_two, tmp_path):
    assert harness.call(main, *writing_files(tmp_path)) == 0
    for name in ("ranks.csv", "lists.csv"):
        assert (of_two / "files" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert len((tmp_path / "lists.csv").read_text().splitlines()) == 60 * 10 + 1


@pytest.mark.slow
def test_a_process_that_stands_still_is_named_and_ends_the_run(tmp_path):
    """It has the store of the job; DLRM's tests stop another one."""
    flags = (*RANDOM, "--num_epochs=100000", "--print_freq=1", "--process_timeout=10")
    program = ("-m", "bert4rec.scripts.main", *flags, f"--log_path={tmp_path / 'log.json'}")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
    with contextlib.ExitStack() as stack:
        frozen, other = (
            stack.enter_context(harness.started_forked(*program, **address, **variables))
            for variables in ({"RANK": r, "LOCAL_RANK": r, "WORLD_SIZE": "2"} for r in "01")
        )
        harness.wait_for_line(frozen, lambda line: "[3/" in line)
        frozen.send_signal(signal.SIGSTOP)
        text = harness.wait_for_line(other, lambda line: line.startswith("error: "))
        assert other.wait(harness.PATIENCE_S) == 1
    assert re.search(rf"error: rank 0 \(process {frozen.pid} on \S+\)", text)


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


@pytest.mark.parametrize(("world_size", "max_logits"), [(2, 1 << 24), (3, 20)])
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
