# SPDX-License-Identifier: Apache-2.0
"""What every test shares: a strict rule for skips, one thread, the folder of real data."""

import os
import signal
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

import _triton_shadow  # noqa: F401  (before a test module imports torch, see there)
import recsys.bounded_spin  # noqa: F401  (see there)
from tests import tools

REPOSITORY = Path(__file__).resolve().parents[1]

# A shell's background job ignores Ctrl-C, nohup's a hang-up, and both hand that down to programs
# that tests send these signals to.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

hypothesis.settings.register_profile(
    "repository", derandomize=True, deadline=None, max_examples=60, database=None
)
hypothesis.settings.load_profile("repository")

os.environ.pop("PYTHONUNBUFFERED", None)  # of some machines: programs must do without

_unexpected_skips: list[str] = []


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Threads of several tests and helpers would fight for two cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Files of tests need not outlive a crash of the machine; programs that they start do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses a closed file too
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real logs: RECSYS_DATA, else shared/data beside the repository."""
    folder = Path(os.environ.get("RECSYS_DATA", REPOSITORY.parent / "shared" / "data"))
    tools.require("real data", folder.is_dir())
    return folder


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files with slow tests first, so that no process is left alone with one at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs a tool which is not here."""
    for mark in item.iter_markers("needs"):
        for tool in mark.args:
            tools.require(tool)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remembers skips for anything but the lack of a tool: they fail the run, so none can hide."""
    if report.skipped and not hasattr(report, "wasxfail"):
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if words.removeprefix("Skipped: ") not in map(tools.reason, tools.TOOLS):
            _unexpected_skips.append(f"{report.nodeid}: {words}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run where a test was skipped unexpectedly."""
    if _unexpected_skips and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter) -> None:
    """Lists the unexpected skips."""
    for line in _unexpected_skips:
        terminalreporter.write_line(f"unexpected skip: {line}", red=True)
