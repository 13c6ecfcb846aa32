# SPDX-License-Identifier: Apache-2.0
"""The processes of a run under torchrun: set-up, threads, collectives.

In a run of one process the same calls do nothing.
"""

import contextlib
import dataclasses
import datetime
import importlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from recsys.train.heartbeat import Heartbeat, Store
from recsys.train.optimizers.rows import RowGradients

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: number of this process.
        world_size: number of processes.
        local_rank: number on this machine, which is also the number of its GPU.
        restarts: times that torchrun has restarted all processes after a failure.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    restarts: int = 0

    @property
    def is_first(self) -> bool:
        """True for the process that prints, logs and saves."""
        return self.rank == 0

    def barrier(self) -> None:
        """Waits until every process calls it."""
        if self.world_size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Sums a tensor over the processes, bit-equal on all."""
        if self.world_size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def sum_integers(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sums an array on the host over the processes."""
        total: npt.NDArray[np.int64] = self.sum(torch.from_numpy(values)).numpy()
        return total

    def any(self, value: bool) -> bool:
        """Returns True if `value` is True on any process."""
        return bool(self.sum(torch.tensor(int(value))) > 0) if self.world_size > 1 else value

    def gather_values(self, value: T) -> list[T]:
        """Returns the values of all processes, by rank."""
        if self.world_size == 1:
            return [value]
        objects: list[Any] = [None] * self.world_size
        dist.all_gather_object(objects, value)
        return objects

    def gather(self, tensor: Tensor) -> Tensor:
        """Joins the tensors of all processes along the first dimension, by rank.

        Args:
            tensor: [n, ...]; n may differ between processes.
        """
        if self.world_size == 1:
            return tensor
        sizes = [0] * self.world_size
        sizes[self.rank] = tensor.shape[0]
        counts = self.sum(torch.tensor(sizes)).tolist()
        # gloo requires equal shapes: shorter tensors are padded, and cut again.
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        padded_tensors = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(padded_tensors, padded)
        return torch.cat([t[:n] for t, n in zip(padded_tensors, counts, strict=True)])

    def gather_rows(
        self, gradients: Sequence[RowGradients], dims: Sequence[int]
    ) -> list[RowGradients]:
        """Joins the row gradients of all processes, by rank.

        Args:
            gradients: gradients of this process, at most one entry per table.
            dims: columns of each table.
        """
        if self.world_size == 1:
            return list(gradients)
        mine = {entry.table: entry for entry in gradients}
        like = next(iter(mine.values()), None)
        joined = []
        for table, dim in enumerate(dims):
            entry = mine.get(table)
            if entry is None:
                device = torch.device("cpu") if like is None else like.gradients.device
                none = torch.zeros(0, dim, device=device)
                entry = RowGradients(table, torch.zeros(0, dtype=torch.int64, device=device), none)
            rows = self.gather(entry.rows.to(torch.int64))
            joined.append(RowGradients(table, rows, self.gather(entry.gradients.float())))
        return joined


_WAITS_PER_TIMEOUT = 30
"""Long, since processes wait while one writes a file: 30 minutes by default, as in torch."""

ALONE = Processes()
"""A run of one process."""


@contextlib.contextmanager
def join_processes(
    base_device: str,
    num_threads: int | None,
    needs_group: bool = False,
    process_timeout: float = 0.0,
) -> Iterator[Processes]:
    """Joins torchrun's processes; leaves the group at the end.

    Args:
        base_device: `auto`, `cuda` or `cpu`; on CUDA each process takes the GPU of its local rank.
        num_threads: CPU threads of a step; None divides the cores among the processes.
        needs_group: make a group even for a single process.
        process_timeout: seconds without a heartbeat after which a process ends the run;
            collectives wait `_WAITS_PER_TIMEOUT` times as long. 0 waits as long as torch does.

    Raises:
        ProcessLostError: a running process did not join a collective.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    here = Processes(
        int(os.environ.get("RANK", "0")),
        world_size,
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )
    if num_threads is None and world_size > 1:
        on_this_machine = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
        num_threads = max(len(os.sched_getaffinity(0)) // on_this_machine, 1)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if not here.is_first:
        logging.getLogger().setLevel(logging.WARNING)
    if world_size == 1 and not needs_group:
        yield here
        return
    uses_cuda = base_device != "cpu" and torch.cuda.is_available()
    if uses_cuda:
        torch.cuda.set_device(here.local_rank)
    backend = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
    if "MASTER_ADDR" in os.environ:
        store, _, _ = next(rendezvous("env://"))
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
    # torchrun may keep its store when it restarts the processes: under the same names it would
    # hold the addresses of processes that have ended.
    store = dist.PrefixStore(f"start_{here.restarts}", store)  # type: ignore[attr-defined]
    # If torch imports this module once a group exists, the defaults of its functions keep the group
    # and its threads alive; a thread that then frees a tensor while the interpreter ends aborts the
    # process, after a successful run.
    importlib.import_module("torch.distributed.nn.functional")
    limit = datetime.timedelta(seconds=_WAITS_PER_TIMEOUT * process_timeout) or None
    dist.init_process_group(
        backend, store=store, rank=here.rank, world_size=world_size, timeout=limit
    )
    try:
        own = store.clone()  # type: ignore[attr-defined]
        with _heartbeat(own, here, process_timeout):
            yield here
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _heartbeat(store: Store, here: Processes, limit_s: float) -> Iterator[None]:
    """Ends the run if a process of it is frozen, naming it."""
    if not limit_s or here.world_size == 1:
        yield
        return
    heartbeat = Heartbeat(store, here.rank, here.world_size, limit_s)
    heartbeat.start()
    try:
        yield
    except RuntimeError as error:
        heartbeat.name_absent(error)
        raise
    finally:
        heartbeat.stop()
