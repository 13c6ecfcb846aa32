# SPDX-License-Identifier: Apache-2.0
"""The processes of a run under torchrun: set-up, threads, collectives.

In a run of one process the same calls do nothing. If torchrun's variables are set by mistake, the
run waits for peers that never come; the log names them.
"""

import contextlib
import dataclasses
import datetime
import importlib
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from recsys.errors import ProcessLostError, UserError
from recsys.interruption import StopRequest
from recsys.resources import available_cores, cores_for
from recsys.train.config import PROCESS_TIMEOUT_S
from recsys.train.launcher import end_with_launcher
from recsys.train.optimizers.rows import RowGradients

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Processes:
    """This process, among the processes of the run.

    Attributes:
        rank: number of this process.
        world_size: number of processes.
        local_rank: number of this process on its machine, which is also the number of its GPU.
        is_restart: whether torchrun restarted the processes after this job had begun to train.
        on_this_machine: number of the run's processes on this machine.
        own_cores: number of cores that no other process of the run uses; 0 if cores are shared.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    is_restart: bool = False
    on_this_machine: int = 1
    own_cores: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints, logs and saves."""
        return self.rank == 0

    def note_training(self) -> None:
        """Makes later starts by this torchrun count as restarts; a refused run does not call it."""
        if (file := _training_file()) is not None:
            with contextlib.suppress(OSError):  # a restart then needs `resume`
                file.touch()

    def barrier(self) -> None:
        """Waits until every process calls it."""
        if self.world_size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Sums a tensor over the processes; the result is bit-equal on all of them."""
        if self.world_size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def sum_integers(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sums an array on the host over the processes."""
        if self.world_size == 1:
            return values
        total: npt.NDArray[np.int64] = self.sum(torch.from_numpy(values)).numpy()
        return total

    def any(self, value: bool) -> bool:
        """Returns whether `value` is True on any process."""
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
        # gloo requires equal shapes, so shorter tensors are padded and cut again.
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        padded_tensors = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(padded_tensors, padded)
        return torch.cat([t[:n] for t, n in zip(padded_tensors, counts, strict=True)])

    def gather_rows(
        self, gradients: Sequence[RowGradients], dims: Sequence[int], device: torch.device
    ) -> list[RowGradients]:
        """Joins the row gradients of all processes, by rank.

        Args:
            gradients: gradients of this process, at most one entry per table.
            dims: columns of each table.
            device: device of the tables. A process without gradients needs it, because all
                processes must use the same kind of collective.
        """
        if self.world_size == 1:
            return list(gradients)
        mine = {entry.table: entry for entry in gradients}
        joined = []
        for table, dim in enumerate(dims):
            entry = mine.get(table)
            if entry is None:
                none = torch.zeros(0, dim, device=device)
                entry = RowGradients(table, torch.zeros(0, dtype=torch.int64, device=device), none)
            rows = self.gather(entry.rows.to(torch.int64))
            joined.append(RowGradients(table, rows, self.gather(entry.gradients.float())))
        return joined


class SharedStop:
    """A request to stop that all processes learn of at the same step.

    They exchange requests about twice a second, not at every step. All processes count the same
    number of steps until the next exchange, computed from the mean of their rates.

    Args:
        here: request to this process.
    """

    _PERIOD_S = 0.5
    _MOST_STEPS = 64

    def __init__(self, processes: Processes, here: StopRequest) -> None:
        self._processes, self._here = processes, here
        self._interval, self._steps = 1, 0
        self._since = time.perf_counter()

    def after_step(self) -> str | None:
        """Returns the name of the signal if any process was asked to stop, or None."""
        if self._processes.world_size == 1:
            return self._here.signal_name
        self._steps += 1
        return self.now() if self._steps >= self._interval else None

    def now(self) -> str | None:
        """Asks all processes; returns the name of the signal, or None."""
        now = time.perf_counter()
        wanted = self._steps * self._PERIOD_S / max(now - self._since, 1e-6)
        is_requested_here = int(self._here.signal_name is not None)
        votes = torch.tensor([is_requested_here, min(int(wanted), self._MOST_STEPS)])
        requests, sum_of_wanted = self._processes.sum(votes).tolist()
        self._interval = max(
            min(sum_of_wanted // self._processes.world_size, 2 * self._interval), 1
        )
        self._steps, self._since = 0, now
        return (self._here.signal_name or "SIGTERM") if requests else None


def _training_file() -> Path | None:
    """Returns the file that marks a training, which torchrun keeps through restarts."""
    attempt = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parent.parent
    return attempt.with_name("has_trained") if attempt.name.startswith("attempt_") else None


_ROLL_CALL_S = 60.0
"""Seconds in which the other processes must answer once a collective has failed."""

_NOTICE_S = 5.0
_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_NAMES = ("RANK", "WORLD_SIZE", *_LOCAL, *_ADDRESS)

ALONE = Processes()
"""The process of a run that has only one."""


def set_threads(num_threads: int | None, here: Processes) -> None:
    """Sets the CPU threads of a step.

    Args:
        num_threads: number of threads. None takes the process's own cores, or divides those of all
            processes; in a run of one process it takes the smaller of PyTorch's number, which
            ignores CPU quotas, and the cores that it may use.
        here: this process.
    """
    if num_threads is None:
        cores = available_cores()
        if here.world_size == 1:
            num_threads = min(torch.get_num_threads(), cores)
        else:
            num_threads = here.own_cores or cores // here.on_this_machine
    torch.set_num_threads(max(num_threads, 1))


@contextlib.contextmanager
def _with_own_cores(store: Any, num_threads: int | None, here: Processes) -> Iterator[Processes]:
    """Keeps each process of this machine on cores of its own.

    Nothing changes in these cases: the processes were started on different cores (torchrun's
    `--numa-binding`, numactl); their local ranks do not number the processes of a machine; a quota
    leaves less than the affinity mask; or a process would have more threads than cores.

    Args:
        store: store of the run.
        num_threads: CPU threads of a step; None takes one per core.
        here: this process.

    Yields:
        This process, with the number of its own cores.
    """
    is_numbered = here.on_this_machine > 1 and all(os.environ.get(name) for name in _LOCAL)
    if not is_numbered or not hasattr(os, "sched_setaffinity"):
        yield here
        return
    before = os.sched_getaffinity(0)
    first = here.rank - here.local_rank
    store.set(f"cores_{here.rank}", repr(sorted(before)))
    masks = {store.get(f"cores_{first + local}") for local in range(here.on_this_machine)}
    own = before
    if len(masks) == 1:
        if available_cores() == len(before) >= (num_threads or 1) * here.on_this_machine:
            own = cores_for(before, here.local_rank, here.on_this_machine)
            os.sched_setaffinity(0, own)
        else:
            own = set()
    here = dataclasses.replace(here, own_cores=len(own))
    set_threads(num_threads, here)
    try:
        yield here
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def join_processes(
    base_device: str,
    num_threads: int | None,
    needs_group: bool = False,
    process_timeout: float = PROCESS_TIMEOUT_S,
) -> Iterator[Processes]:
    """Joins torchrun's processes; leaves the group at the end.

    Args:
        base_device: `auto`, `cuda` or `cpu`; on CUDA each process takes the GPU of its local rank.
        num_threads: CPU threads of a step; None divides the cores that the processes may use.
        needs_group: create a group even for a single process.
        process_timeout: seconds to wait for the others, at the start and in a collective.

    Raises:
        UserError: torchrun's variables are wrong, or not all processes join.
        ProcessLostError: a process was lost, or did not join a collective.
    """
    end_with_launcher()
    rank, world_size, local_rank, on_this_machine = _read_environment()
    # torchrun's own count of restarts differs between machines, and does not count restarts for a
    # machine that joins.
    file = _training_file()
    is_restart = file is not None and file.exists()
    here = Processes(rank, world_size, local_rank, is_restart, on_this_machine)
    set_threads(num_threads, here)
    if not here.is_first:
        logging.getLogger().setLevel(logging.WARNING)
    if world_size == 1 and not needs_group:
        yield here
        return
    uses_cuda = base_device != "cpu" and torch.cuda.is_available()
    if uses_cuda:
        torch.cuda.set_device(here.local_rank)
    # If torch first imports this module when a group exists, the defaults of its functions keep the
    # group and its threads alive. If such a thread frees a tensor while the interpreter ends, the
    # process aborts after a successful run.
    importlib.import_module("torch.distributed.nn.functional")
    alone = dist.HashStore()  # type: ignore[attr-defined]
    store = _join(rank, world_size, process_timeout) if world_size > 1 else alone
    backends = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
    with (
        contextlib.nullcontext(here) if uses_cuda else _with_own_cores(store, num_threads, here)
    ) as here:
        dist.init_process_group(
            backends,
            store=store,
            rank=here.rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=process_timeout),
        )
        if uses_cuda:
            _let_gloo_time_out_first(process_timeout)
        try:
            # A process that noticed by a timeout must still answer the others.
            with _naming_missing(here, min(2 * process_timeout, _ROLL_CALL_S)):
                yield dataclasses.replace(here, is_restart=here.any(is_restart))
        finally:
            dist.destroy_process_group()


def _let_gloo_time_out_first(process_timeout: float) -> None:
    """Gives NCCL more time than gloo, which raises an error and can name the missing processes.

    NCCL's watchdog would end the process instead.
    """
    nccl: Any = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
    nccl._set_default_timeout(datetime.timedelta(seconds=3 * process_timeout))


@contextlib.contextmanager
def _naming_missing(here: Processes, limit_s: float) -> Iterator[None]:
    """If a collective fails, names the processes that are lost or came late.

    Raises:
        ProcessLostError: names the processes.
    """
    # A group with connections of its own: gloo closes those of a collective that fails.
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=limit_s))
    names = here.gather_values(f"process {os.getpid()} on {socket.gethostname()}")
    try:
        yield
    except RuntimeError as error:
        of_collective = isinstance(error, dist.DistError) or "gloo" in str(error)
        if not of_collective:
            raise
        # Others may be waiting for this process, even though it waited for another one.
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()  # type: ignore[union-attr]
        if not (missing := _missing_ranks(here, group)):
            raise
        them = ", ".join(f"rank {rank} ({names[rank]})" for rank in missing)
        reason = re.sub(r"^\[\S+\] ", "", str(error)).partition(". ")[0]
        raise ProcessLostError(
            f"{them} never joined a collective and does not answer: it has ended, hangs or waits "
            f"for something else, or its machine is lost ({reason}; `process_timeout` "
            "sets how long to wait)"
        ) from error


def _missing_ranks(here: Processes, group: Any) -> list[int]:
    """Returns the ranks that do not exchange messages over a group's connections.

    `monitored_barrier` cannot do this: it names nobody if a connection is closed, and only the
    first rank learns the names.
    """
    others = [rank for rank in range(here.world_size) if rank != here.rank]
    words = {rank: torch.zeros(1) for rank in others}
    calls: dict[int, list[Any]] = {rank: [] for rank in others}
    missing = set()
    for call in (dist.isend, dist.irecv):
        for rank in others:
            try:
                calls[rank].append(call(words[rank], rank, group))
            except RuntimeError:
                missing.add(rank)
    for rank in others:
        try:
            for work in calls[rank]:
                work.wait()
        except RuntimeError:
            missing.add(rank)
    return sorted(missing)


def _read_environment() -> tuple[int, int, int, int]:
    """Returns rank and number of processes, of the run and then on this machine.

    Raises:
        UserError: torchrun's variables are incomplete or contradict each other.
    """
    rank, world_size = _integer("RANK", 0, 0), _integer("WORLD_SIZE", 1, 1)
    local_rank = _integer("LOCAL_RANK", 0, 0)
    on_this_machine = _integer("LOCAL_WORLD_SIZE", world_size, 1)
    if rank >= world_size:
        raise UserError(
            f"RANK {rank} and WORLD_SIZE {world_size} in the environment contradict each other: "
            f"ranks count from 0. {_advice()}"
        )
    missing = [name for name in ("RANK", *_ADDRESS) if not os.environ.get(name)]
    if world_size > 1 and missing:
        raise UserError(
            f"WORLD_SIZE {world_size} in the environment announces several processes, but "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. {_advice()}"
        )
    if world_size > 1:
        _integer("MASTER_PORT", 0, 0, 65535)
    return rank, world_size, local_rank, on_this_machine


def _integer(name: str, default: int, least: int, most: int | None = None) -> int:
    text = os.environ.get(name, str(default))
    value = int(text) if text.isdecimal() else -1
    if value < least or (most is not None and value > most):
        expected = f"an integer of {least} or more" if most is None else f"{least} to {most}"
        raise UserError(f"{name} in the environment must be {expected}, got {text!r}. {_advice()}")
    return value


def _advice() -> str:
    present = [name for name in _NAMES if name in os.environ]
    return f"Start several processes with torchrun; to run only one: unset {' '.join(present)}"


def _join(rank: int, world_size: int, limit_s: float) -> Any:
    """Waits for all processes; returns their common store.

    After a few seconds it logs what it waits for. A thread does the waiting, because torch's call
    cannot be interrupted.

    Args:
        rank: number of this process.
        world_size: number of processes.
        limit_s: seconds to wait.

    Raises:
        UserError: some processes did not join.
    """
    outcomes: list[Any] = []
    limit = datetime.timedelta(seconds=limit_s)

    def connect() -> None:
        try:
            _wait_for_server(rank, began + limit_s)
            store = _store_of_start(
                next(rendezvous("env://", timeout=limit))[0], rank, world_size, began + limit_s
            )
            store.wait([f"joined_{other}" for other in range(world_size)], limit)
            outcomes.append(store)
        except (RuntimeError, OSError) as error:
            outcomes.append(error)

    began = time.monotonic()
    thread = threading.Thread(target=connect, name="joining", daemon=True)
    thread.start()
    thread.join(_NOTICE_S)
    address = ":".join(os.environ[name] for name in _ADDRESS)
    whom = f"the other {world_size - 1} of {world_size} processes at {address}"
    if thread.is_alive():
        logger.warning(
            "this process is rank %d by its environment and waits for %s, up to %g s. %s",
            *(rank, whom, limit_s, _advice()),
        )
    while thread.is_alive() and time.monotonic() < began + limit_s + _NOTICE_S:
        thread.join(0.2)  # short waits, so that Ctrl-C is noticed in between
    outcome = outcomes[0] if outcomes else TimeoutError("no answer")
    if not isinstance(outcome, Exception):
        return outcome
    waited = f"rank {rank} waited {time.monotonic() - began:.0f} s for {whom}"
    cause = str(outcome).splitlines()[0].rstrip(".")
    raise UserError(f"{waited}: {cause}. {_advice()}")


def _store_of_start(store: Any, rank: int, world_size: int, deadline: float) -> Any:
    """Returns a store for only this start, because torchrun's store outlives it.

    Under the same names, the store would hold addresses of processes that have ended. So the first
    process draws a prefix and sends it to every rank that registers.

    Raises:
        TimeoutError: on the first process; names the ranks that did not register.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"hello_{rank}", own)
        prefix = store.get(f"prefix_{own}").decode()
    else:
        prefix = own
    joined = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    joined.set(f"joined_{rank}", "")
    absent = set(range(1, world_size)) if rank == 0 else set()
    while absent:
        for other in absent:
            if store.check([f"hello_{other}"]):  # may be from a process that has ended
                store.set(f"prefix_{store.get(f'hello_{other}').decode()}", prefix)
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {', '.join(map(str, sorted(absent)))} did not come")
        time.sleep(0.05)
        absent = {other for other in absent if not joined.check([f"joined_{other}"])}
    return joined


def _wait_for_server(rank: int, deadline: float) -> None:
    """Waits until the store answers; torch would print each failed attempt."""
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return  # this process will be the server
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        try:
            socket.create_connection(address, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
