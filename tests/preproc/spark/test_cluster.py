# SPDX-License-Identifier: Apache-2.0
"""A real standalone cluster on loopback, and interruptions: each job is a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recsys.data.manifest import Manifest
from tests import harness
from tests.preproc.clicks.rows import run, write_days
from tests.tools import needs

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.timeout(1200),
    needs("Spark", "compiled Criteo kernel"),
]

PATIENCE_S = 600
SMALL_UNITS = "spark.sql.files.maxPartitionBytes=20000"


@contextlib.contextmanager
def job_of(source: Path, output: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A preprocessing job in a process group of its own.

    Its paths are relative, to a working directory that executors do not share.
    """
    source, output = (Path(os.path.relpath(p, harness.REPOSITORY)) for p in (source, output))
    paths = (f"--input={source}", f"--output={output}", f"--work_dir={output}.work")
    with harness.started(
        *("-m", "preproc.clicks", "--engine=spark", *paths, *flags),
        stdout=None, stderr=subprocess.PIPE, start_new_session=True,
    ) as job:  # fmt: skip
        yield job


class Cluster:
    """A master and workers of one core and 1.5 GB each, of which one is there at once."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        import pyspark

        self._program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self._folder = folder
        self._stack = stack
        port = harness.free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._log = folder / "master.log"
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(port))
        self.workers: list[subprocess.Popen] = []
        self.add_worker()

    def add_worker(self) -> None:
        """Starts a worker and waits until the master knows it."""
        number = len(self.workers)
        worker = self._start(
            "worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1500m",
            "--work-dir", str(self._folder / f"worker_{number}"), self.url,
        )  # fmt: skip
        self.workers.append(worker)
        harness.wait_for(
            lambda: self._log.read_text().count("Registering worker") > number,
            "the worker",
            PATIENCE_S,
        )

    def _start(self, name: str, *arguments: str) -> subprocess.Popen:
        log = self._stack.enter_context((self._folder / "master.log").open("a"))
        process = subprocess.Popen(
            [self._program, f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments],
            stdout=log,
            stderr=log,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


@pytest.fixture(scope="module", autouse=True)
def java():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", harness.SHORT_LIVED_JAVA)
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, java):
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack)


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    """Days of more units than others have, so that some are left where a job is stopped."""
    return write_days(tmp_path_factory.mktemp("days") / "in", rows=1500)


LOOPBACK = "--spark_conf=spark.driver.host=127.0.0.1,spark.driver.bindAddress=127.0.0.1"


@pytest.mark.release
def test_cluster_without_the_asked_memory_is_reported(cluster, days, tmp_path):
    limits = ("--executor_memory=3g", "--spark_start_timeout=30")
    with job_of(days, tmp_path / "made", f"--master={cluster.url}", LOOPBACK, *limits) as job:
        _, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 2, errors
    harness.assert_tells(errors, "--spark_start_timeout 30", "3.0 GiB", "1.5 GiB")
    assert not (tmp_path / "made").exists()


def submit(master: str, *arguments: object, status: int) -> subprocess.CompletedProcess[str]:
    """Calls spark-submit as documented: its folder, with Python beside it, first on the PATH."""
    folder = Path(sys.executable).parent
    return harness.run(
        *(folder / "spark-submit", "--master", master, "--executor-memory", "700m"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *(harness.REPOSITORY / "preproc" / "spark_data_utils.py", *arguments),
        status=status, PYSPARK_PYTHON=None, PYTHONPATH=None,
        PATH=os.pathsep.join([str(folder), os.environ["PATH"]]),
    )  # fmt: skip


def test_spark_submit(cluster, days, tmp_path):
    output = tmp_path / "made"
    submit(cluster.url, f"--input={days}", f"--output={output}", status=0)
    made = Manifest.load(output)
    assert made.engine["name"] == "spark"
    assert made.files == run(days, tmp_path / "native").files


@pytest.mark.parametrize("submitted", [True, False])
def test_master_that_is_not_there_is_named(days, tmp_path, submitted):
    """A port without a listener: before Spark asks, which takes a minute and names Java's cause."""
    master = f"spark://127.0.0.1:{harness.free_port()}"
    paths = (f"--input={days}", f"--output={tmp_path / 'made'}")
    if submitted:
        done = submit(master, *paths, status=2)
    else:
        flags = ("--engine=spark", f"--master={master}", *paths)
        done = harness.python("-m", "preproc.clicks", *flags, status=2)
    text = done.stdout + done.stderr  # spark-submit joins what Python writes
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, text
    harness.assert_tells(errors[0], master, "--master")
    assert "Traceback" not in text


@pytest.mark.release
def test_worker_killed_in_the_middle(cluster, days, tmp_path):
    """The whole job on two workers; the one that is left finishes it, with the right bytes."""
    output = tmp_path / "made"
    conf = f"{LOOPBACK},spark.executor.memory=700m,{SMALL_UNITS}"
    work = Path(f"{output}.work")

    def scanned() -> int:
        return len(list(work.glob("scan/*/*.json")))

    cluster.add_worker()
    with job_of(days, output, f"--master={cluster.url}", conf) as job:
        harness.wait_for(lambda: scanned() >= 3, "the first units", PATIENCE_S, job)
        cluster.workers[0].kill()
        assert scanned() < 40, "the job was through before the worker was killed"
        _, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, errors
    made = Manifest.load(output)
    assert made.files == run(days, tmp_path / "native").files
    assert Manifest.describe_files(output) == made.files


@pytest.mark.release
def test_interrupted_job_continues(days, tmp_path):
    """Ctrl-C in or after the scan; the same command takes the finished units as they are."""
    output = tmp_path / "made"
    flags, units = ("--master=local[1]", f"--spark_conf={SMALL_UNITS}"), "scan/*/*.json"
    work = Path(f"{output}.work")
    with job_of(days, output, *flags) as job:
        harness.wait_for(
            lambda: len(list(work.glob(units))) >= 3, "the first units", PATIENCE_S, job
        )
        os.killpg(job.pid, signal.SIGINT)  # a terminal tells all of its programs, Java too
        start = time.monotonic()
        _, errors = job.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - start < 120, "10 s of waiting at most, and Python's own end"
    assert job.returncode == 130, errors
    assert "Traceback" not in errors
    before = {p: p.stat().st_ino for p in work.glob(units)}
    assert 3 <= len(before) < 40, "the scan was through before Ctrl-C"
    with job_of(days, output, *flags) as job:
        _, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, errors
    assert {p: p.stat().st_ino for p in before} == before
    assert not list(work.rglob("attempt-*"))
    assert Manifest.load(output).files == run(days, tmp_path / "native").files


def test_a_session_that_does_not_stop_is_killed_without_a_word(tmp_path):
    """As on a busy machine, after a job that did its work."""
    write_days(tmp_path / "days", 2)
    code = "from preproc.spark import session; from preproc.clicks.__main__ import main; "
    code += "session._STOP_S = 0; import sys; sys.exit(main(sys.argv))"
    flags = ("--engine=spark", "--master=local[2]", "--progress=none")
    paths = (f"--input={tmp_path / 'days'}", f"--output={tmp_path / 'made'}")
    done = harness.python("-c", code, *flags, *paths)
    assert Manifest.load(tmp_path / "made").engine["name"] == "spark"
    assert "Traceback" not in done.stderr
    assert "ERROR" not in done.stderr
