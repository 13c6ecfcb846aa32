# SPDX-License-Identifier: Apache-2.0
"""Programs as their users start them, in this process or in others."""

import contextlib
import errno
import importlib
import io
import itertools
import json
import math
import multiprocessing
import multiprocessing.context
import os
import re
import resource
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import pytest

from recsys.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[1]

PATIENCE_S = 800
"""Seconds for a program on a busy machine, less than the time limit of a test."""

SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1"
"""Options for a Java that does little: its best compiler would take longer than it saves."""


def run(
    *command: object, status: int | None = 0, folder: Path = REPOSITORY, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end.

    Args:
        command: the words.
        status: exit status that is expected; None leaves it to the caller.
        folder: where it runs.
        environment: variables on top of this process's; None takes one away.
    """
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=_environment(environment),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=PATIENCE_S,
        check=False,
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python with arguments to its end, with the options of `run`."""
    return run(sys.executable, *arguments, **options)


def forked(
    *arguments: object, status: int | None = 0, folder: Path = REPOSITORY, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs a module (`-m name ...`) or script to its end, forked from a process that has torch.

    As `python`, without the seconds of CPU time that importing torch takes. What a program does
    while it imports torch, and what is the same for all such processes (umask, limits, variables of
    OpenMP), needs `python`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        outputs = Path(temporary) / "stdout", Path(temporary) / "stderr"
        words = list(map(str, arguments))
        process = _fork(words, folder, environment, outputs)
        process.join(PATIENCE_S)
        process.kill()
        process.join()
        stdout, stderr = (path.read_text(errors="surrogateescape") for path in outputs)
    code = process.exitcode
    assert code is not None
    assert status in (None, code), stdout + stderr
    return subprocess.CompletedProcess([sys.executable, *words], code, stdout, stderr)


def _fork(*call: object) -> multiprocessing.context.ForkServerProcess:
    """Starts `_run_python` with these arguments."""
    process = _forkserver().Process(target=_run_python, args=call)
    with _importable():
        process.start()
    return process


def _run_python(
    words: list[str],
    folder: Path,
    changes: dict[str, str | None],
    outputs: tuple[Path, Path] | tuple[Connection],
) -> None:
    """Becomes `python *words`, in a forked process; one output is for both streams."""
    for number, output in zip((1, 2), itertools.cycle(outputs), strict=False):
        with (
            output.open("wb")
            if isinstance(output, Path)
            else contextlib.nullcontext(output) as file
        ):
            os.dup2(file.fileno(), number)
    # Anew: the inherited ones may believe that they can seek, in the file that a suite writes to.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    values = _environment(changes)
    os.environ.clear()
    os.environ.update(values)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def repository_files(*patterns: str) -> list[Path]:
    """Returns the repository's files of these names, those about to be added included."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns)
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


@contextlib.contextmanager
def started(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts Python with arguments; kills it at the end of the block.

    Args:
        arguments: of Python.
        options: of subprocess.Popen; by default one pipe holds output and errors.
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        env=_environment({}),
        text=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class ForkedProcess:
    """A running process, with what tests use of subprocess.Popen."""

    stderr: IO[str] | None = None
    """None: one pipe holds output and errors."""

    def __init__(self, process: multiprocessing.context.ForkServerProcess, stdout: IO[str]) -> None:
        assert process.pid is not None
        self._process = process
        self.pid = process.pid
        self.stdout = stdout

    def send_signal(self, number: int) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Returns the exit status as `wait` does, None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """Waits for the end; returns the exit status, or minus the number of a signal."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"still running after {seconds} s"
        return self._process.exitcode


@contextlib.contextmanager
def started_forked(*arguments: object, **environment: str | None) -> Iterator[ForkedProcess]:
    """Starts a module or script as `forked` does; kills it at the end of the block.

    One pipe holds output and errors.
    """
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader:
        stdout = os.fdopen(os.dup(reader.fileno()), errors="surrogateescape")
    with stdout:
        with writer:
            process = _fork(list(map(str, arguments)), REPOSITORY, environment, (writer,))
        try:
            yield ForkedProcess(process, stdout)
        finally:
            process.kill()
            process.join()


def ends_within(seconds: float | None, *arguments: object) -> bool:
    """Runs Python, killed after some seconds; returns whether it ended well before."""
    with started(*arguments, stdout=subprocess.DEVNULL) as process:
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False


def measure_memory(*arguments: object, kind: str = "RssAnon") -> tuple[str, int]:
    """Runs Python; returns its output and the most memory seen, in bytes.

    Args:
        arguments: of Python.
        kind: anonymous memory (`RssAnon`), or with mapped files (`VmRSS`).
    """
    peak = 0
    with started(*arguments, stderr=None) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            for line in status.read_text().splitlines():
                if line.startswith(f"{kind}:"):
                    peak = max(peak, int(line.split()[1]) * 1024)
            time.sleep(0.002)
        assert process.stdout is not None
        output = process.stdout.read()
    assert process.returncode == 0, output
    return output, peak


def _environment(changes: dict[str, str | None]) -> dict[str, str]:
    """Returns the environment of a child: one thread, as tests in this process have."""
    values = os.environ | {"OMP_NUM_THREADS": "1"} | changes
    return {name: value for name, value in values.items() if value is not None}


def torchrun(processes: int, *options: str) -> list[str]:
    """Returns the arguments of Python before those of a program of several processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc_per_node={processes}", *options]


def _forkserver() -> multiprocessing.context.ForkServerContext:
    """Returns processes forked from one that has imported torch, which alone takes seconds.

    Not those of torch.multiprocessing: it imports torch before the guard in tests/__init__.py.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests", "dlrm.recipe", "bert4rec.recipe", "torch._dynamo", "tests.harness"]
    )
    return context


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Lets processes that start in the block import this module by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY))
        yield


def run_ranks(
    world_size: int, function: Any, *arguments: object, joined: bool = True, status: int = 0
) -> None:
    """Calls function(rank, *arguments) on each rank of a process group of its own.

    Collectives must keep NCCL's rules too, see `tests.nccl_rules`.

    Args:
        world_size: ranks.
        function: what each does.
        *arguments: of it.
        joined: whether the group is made before, or left to the function.
        status: exit status that is expected of each.
    """
    context = _forkserver()
    job = (free_port(), world_size, joined, function, arguments)
    ranks = [context.Process(target=_one_rank, args=(rank, *job)) for rank in range(world_size)]
    with _importable():
        for process in ranks:
            process.start()
    for process in ranks:
        process.join(PATIENCE_S)
    for process in ranks:
        process.kill()
    assert [process.exitcode for process in ranks] == [status] * world_size


def _one_rank(
    rank: int, port: int, world_size: int, joined: bool, function: Any, arguments: Any
) -> None:
    from recsys.train.processes import join_processes
    from tests.nccl_rules import nccl_rules

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    os.environ["LOCAL_RANK"] = str(rank)
    with join_processes("cpu", 1) if joined else contextlib.nullcontext(), nccl_rules():
        function(rank, *arguments)


def call_on_ranks(world_size: int, program: Any, *arguments: object, status: int = 0) -> str:
    """Runs a program of flags as torchrun would, without torchrun; returns the ranks' output."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(rank) for rank in range(world_size)]
        try:
            call = (_call_on_rank, program.__name__, outputs, arguments)
            run_ranks(world_size, *call, joined=False, status=status)
        finally:
            text = "".join(path.read_text() for path in outputs if path.exists())
            print(text)  # for the report of a test that fails
        return text


def _call_on_rank(rank: int, name: str, outputs: list[Path], arguments: Any) -> None:
    program = importlib.import_module(name)
    with (
        outputs[rank].open("w") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        status = call(program, *arguments)
    sys.exit(status)


_PORTS = itertools.cycle(range(5_000 + os.getpid() % 40 * 100, 10_000))
"""Not of those that the system gives to connections, nor that a server draws where it gets none:
these could take one before it is used."""


def no_locks(_descriptor: int, _kind: int) -> None:
    """Answers as flock does on a file system without locks."""
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def free_port() -> int:
    """Returns a port of this machine that nobody uses, and that no other test will take.

    A name of this process's that the system frees at its end keeps it for the program to come.
    """
    for port in _PORTS:
        mark = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            mark.bind(f"\0port {port} of a test")
            mark.detach()
            return port
        mark.close()
    raise AssertionError("the ports never end")


@contextlib.contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """Lets this process open some files more than it has open, as `ulimit -n` would."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in opened)
    bound = next(itertools.islice(free, most, None))  # of the numbers, not of their count
    resource.setrlimit(resource.RLIMIT_NOFILE, (bound, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def wait_for(
    condition: Callable[[], object],
    what: str,
    seconds: float = PATIENCE_S,
    process: ForkedProcess | subprocess.Popen[str] | None = None,
) -> None:
    """Polls a condition until it holds; fails after a time, or where a process has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        if process is not None and process.poll() is not None:
            output = process.stderr or process.stdout
            raise AssertionError(f"ended before {what}: {output.read() if output else ''}")
        time.sleep(0.02)


def wait_for_line(process: subprocess.Popen[str], holds: Callable[[str], object]) -> str:
    """Reads a program's output up to a line that holds something; returns what was read."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if holds(line):
            return text
    raise AssertionError(f"the program ended before such a line came:\n{text}")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a run's log; none where there is no log."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line.removeprefix("DLLL ")) for line in lines]


def last_figures(log: Path) -> dict[str, Any]:
    """Returns the last record of a run's log, such as the figures of its test."""
    figures: dict[str, Any] = read_log(log)[-1]["data"]
    return figures


def call(program: Any, *arguments: object, stdin: bytes | None = None) -> int:
    """Runs a program of flags in this process; returns its exit status.

    Args:
        program: has define_flags(values) and run(values).
        arguments: of its command line.
        stdin: its input.
    """
    from recsys.program import new_flags, run_command

    values = new_flags()
    program.define_flags(values)
    with pytest.MonkeyPatch.context() as patch:
        if stdin is not None:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            return run_command(program.run, values, ["program", *map(str, arguments)], None)
        except SystemExit as stop:
            return int(stop.code or 0)


class Program:
    """A model's main program in this process, with a log and settings that make it small."""

    def __init__(self, program: Any, folder: Path, model: tuple[str, ...]) -> None:
        self.program = program
        self.log_path = folder / "log.json"
        self.model = model
        self.exit_code = 0

    def __call__(
        self,
        *arguments: object,
        status: int | None = 0,
        model: tuple[str, ...] | None = None,
        stdin: bytes | None = None,
    ) -> list[dict[str, Any]]:
        """Returns the records of the log; None leaves the exit status to the caller."""
        always = (f"--log_path={self.log_path}", "--num_threads=1")
        settings = self.model if model is None else model
        self.exit_code = call(self.program, *always, *settings, *arguments, stdin=stdin)
        assert status in (None, self.exit_code)
        return read_log(self.log_path)


def assert_tells(message: str, *facts: object) -> None:
    """Asserts that a message holds facts: flags, files, lines, rows, values, whole words each.

    The sentences around them are free to change.
    """
    for fact in facts:
        assert tells(message, fact), f"no {fact} in: {message}"


def tells(message: str, *facts: object) -> bool:
    """Returns whether a message holds facts, each as whole words."""
    # The ends of a fact may be punctuation, beside which words end anyway.
    wholes = (rf"(?<![\w.-]){re.escape(str(fact))}(?![\w-])" for fact in facts)
    return all(re.search(whole, message) for whole in wholes)


@contextlib.contextmanager
def refusal(*facts: object, kind: type[Exception] = UserError, **at: Any) -> Iterator[None]:
    """Expects an error in the block.

    Args:
        facts: see `assert_tells`.
        kind: type of the error.
        at: its attributes, such as `settings`, `path`, `line` and `column` of a `UserError`.
    """
    with pytest.raises(kind) as caught:
        yield
    try:
        assert_tells(str(caught.value), *facts)
        assert {name: getattr(caught.value, name) for name in at} == at
    finally:
        del caught  # its traceback holds this frame, and files of others would stay open


def put_nan(run: Path, group: str) -> None:
    """Rewrites the checkpoints of a run with a NaN in a group, as a diverged run would leave it."""
    from recsys.train.checkpoint import read_checkpoint
    from recsys.train.saving.write import write_checkpoint

    for folder in run.glob("step_*"):
        stored = read_checkpoint(folder)
        groups = {name: stored.tensors(name) for name in stored.groups()}
        next(t for t in groups[group].values() if t.is_floating_point()).flatten()[-1] = math.nan
        write_checkpoint(folder, groups, stored.state, stored.config)
