# SPDX-License-Identifier: Apache-2.0
"""A rank among several on the fake device: its part of a DLRM run, alone in one process.

PyTorch's `fake` backend takes the collectives and moves nothing, as fake tensors have nothing to
move. Here they get what they have under NCCL: a stream of their own for those that the caller waits
for later, and rules on types and order.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: TID251 -- nowhere else
from torch.utils import _pytree

from dlrm.config import DataConfig, DlrmConfig, ModelConfig, OptimizerConfig, RunConfig
from dlrm.data.batch import Batch
from dlrm.data.open_split import SplitPass
from dlrm.distributed.exchange import ExchangedLookups
from recsys.data.click_columns import ClickColumns
from recsys.data.split_binary import SplitBinaryWriter
from recsys.train.processes import Processes
from tests.fake_cuda.device import MEMORY_BYTES, Event, Stream
from tests.fake_cuda.dlrm_steps import SPEC, Run, record
from tests.fake_cuda.recorder import Recorder
from tests.nccl_rules import COLLECTIVES, checked_collectives

WORLD_SIZE = 8


class Work:
    """An asynchronous collective: whoever reads its result waits for it first.

    NCCL's keeps its tensors, so that nothing else gets their memory meanwhile.
    """

    def __init__(self, work: dist.Work, done: Event, tensors: object) -> None:
        self._work, self._done, self._tensors = work, done, tensors

    @property
    def is_awaited(self) -> bool:
        """Whether anybody has waited."""
        return self._tensors is None

    def wait(self) -> None:
        """Makes the current stream wait, not the host."""
        Stream.current.wait_event(self._done)
        self._work.wait()
        self._tensors = None


@dataclasses.dataclass(slots=True)
class Rank:
    """What this rank asked of the others.

    Attributes:
        processes: its number among them.
        collectives: name, sizes if they are the same on all ranks, types.
        exchanges: vectors that an exchange receives from each rank and sends to each.
    """

    processes: Processes
    collectives: list[tuple[object, ...]]
    exchanges: list[tuple[list[int], list[int]]]


@contextlib.contextmanager
def rank_of(number: int, world_size: int = WORLD_SIZE) -> Iterator[Rank]:
    """Makes this process a rank of several, until the context ends.

    Raises:
        AssertionError: a collective breaks a rule of NCCL, or nobody has waited for it.
    """
    exchanges: list[tuple[list[int], list[int]]] = []
    works: list[Work] = []
    queue = Stream()

    def call(name: str, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
        if name == "all_to_all_single":
            _, _, receives, sends = args
            exchanges.append((receives, sends))
        if not kwargs.get("async_op"):
            return collective(*args, **kwargs)
        queue.wait_stream(Stream.current)
        with Stream.use(queue):
            work = collective(*args, **kwargs)
        works.append(Work(work, queue.record_event(), _pytree.tree_leaves((args, kwargs))))
        return works[-1]

    dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=world_size)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "all_gather_object", _same_from_all)
            # All say that they are on this one device, so it has the memory of all of theirs.
            memory = world_size * MEMORY_BYTES
            patch.setattr(torch.cuda, "mem_get_info", lambda *_: (memory, memory))
            for name in COLLECTIVES:
                patch.setattr(dist, name, functools.partial(call, name, getattr(dist, name)))
            processes = Processes(number, world_size, number, on_this_machine=world_size)
            with checked_collectives() as called:
                yield Rank(processes, called, exchanges)
                assert all(work.is_awaited for work in works), "nobody waits for a collective"
    finally:
        dist.destroy_process_group()


def _same_from_all(objects: list[object], value: object) -> None:
    """Answers as if all ranks had sent the same: they are the same machine here."""
    objects[:] = [value] * len(objects)


def write_split(folder: Path, rows: int) -> Path:
    """Writes a training split with the tables of SPEC; returns the dataset."""
    numbers = np.arange(rows)
    columns = ClickColumns(
        numbers % 3 == 0,
        np.zeros((rows, len(SPEC.numerical)), np.float16),
        tuple((numbers * 7919 % f.cardinality).astype(f.dtype) for f in SPEC.categorical),
    )
    with SplitBinaryWriter(folder / "train", SPEC, rows) as writer:
        writer.write(0, columns)
    return folder


def build_rank(
    rank: Rank,
    dataset: Path,
    batch_size: int,
    *,
    optimizer: str = "sgd",
    run: Mapping[str, Any] | None = None,
    **model: object,
) -> Run:
    """Builds a rank's part of NVIDIA's model.

    Args:
        rank: this rank.
        dataset: result of `write_split`.
        batch_size: B.
        optimizer: of MLPs and tables.
        run: settings of the run; without `placement` the program plans it.
        model: settings of the model.
    """
    config = DlrmConfig(
        data=DataConfig(dataset=str(dataset), batch_size=batch_size),
        model=ModelConfig(**model),
        optimizer=OptimizerConfig(optimizer=optimizer),
        run=RunConfig(**(run or {})),
    )
    return Run.build(config, rank.processes)


def batches_of(run: Run) -> Iterator[Batch[ExchangedLookups]]:
    """Opens the rank's batches of the training split."""
    batch_size = run.config.data.batch_size
    return run.batches(SplitPass(split="train", batch_size=batch_size, train=True)).batches()


def record_rank(run: Run, precision: str) -> Recorder:
    """Records a split's only batch on its way from the files through a step of a rank."""

    def load() -> Batch[ExchangedLookups]:
        (batch,) = batches_of(run)
        return batch

    return record(run, precision, load)
