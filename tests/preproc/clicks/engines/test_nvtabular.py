# SPDX-License-Identifier: Apache-2.0
"""The NVTabular engine alone: its process, its limits, interruption; NVTabular is the real one."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from preproc.clicks.engines.nvtabular import dictionary as nvtabular_dictionary
from preproc.clicks.engines.nvtabular import rows as nvtabular_rows
from preproc.clicks.engines.nvtabular import run as nvtabular_criteo
from preproc.files import input_file
from preproc.files.errors import TooManyRejectedRowsError
from preproc.nvtabular import counts as nvtabular_counts
from preproc.nvtabular.process import NvtabularProcess
from recsys.data.manifest import Manifest
from tests import harness
from tests.preproc.clicks.rows import assert_same, good_text, run, stopped, write_days
from tests.preproc.nvtabular import environment
from tests.tools import needs

pytestmark = needs("NVTabular")

RUN_SCRIPT = harness.REPOSITORY / "preproc" / "run_nvtabular.sh"


@pytest.fixture
def one_process(nvtabular_process, monkeypatch) -> Counter[str]:
    """Makes runs use the shared process, and counts their requests."""
    return environment.share(nvtabular_process, nvtabular_criteo, monkeypatch)


def test_a_stopped_run_continues(tmp_path, monkeypatch, one_process):
    monkeypatch.setattr(nvtabular_rows, "CHUNK_BYTES", 15_000)
    monkeypatch.setattr(input_file, "BLOCK_BYTES", 15_000)
    monkeypatch.setattr(nvtabular_counts, "MAX_GROUP_PARTS", 4)
    days = write_days(tmp_path / "days", rows=100)
    expected = run(days, tmp_path / "reference", "reference")
    with stopped(nvtabular_criteo, "_click_columns", after=5):  # in the second group
        run(days, tmp_path / "made", "nvtabular")
    assert not (tmp_path / "made").exists()
    first = dict(one_process)
    monkeypatch.setattr(nvtabular_rows, "read_chunks", None)  # no file is read again
    assert_same(run(days, tmp_path / "made", "nvtabular"), expected)
    assert one_process["count"] == first["count"]
    assert first["encode"] == 2
    assert one_process["encode"] - first["encode"] == first["count"] - 1


def test_too_many_bad_rows_stop_the_run_early(tmp_path, monkeypatch, one_process):
    monkeypatch.setattr(nvtabular_rows, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(input_file, "BLOCK_BYTES", 1000)
    days = write_days(tmp_path / "days", rows=20)
    with (days / "day_0").open("ab") as file:
        file.write(b"bad\n" * 100 + good_text(200, seed=2))
    facts = ("day_0", "line 21", "columns", "bad")
    with harness.refusal(*facts, kind=TooManyRejectedRowsError):
        run(days, tmp_path / "made", "nvtabular", max_bad_fraction=0.01)
    assert not list(tmp_path.glob("made.work/nvtabular_rows/*/000.json"))


def test_an_error_of_nvtabular_is_shown(tmp_path, monkeypatch, one_process):
    """The process lives on, so this may use the shared one."""
    days = write_days(tmp_path / "days", rows=100)
    monkeypatch.setattr(
        nvtabular_dictionary, "category_columns", lambda _: ("C1", "no_such_column")
    )
    with harness.refusal("count", "no_such_column"):
        run(days, tmp_path / "made", "nvtabular")


def test_a_process_that_ends_is_reported(tmp_path):
    with NvtabularProcess(None, "cpu", 4 * 2**30, 1, tmp_path / "log") as process:
        request = {"do": "count", "parts": [], "columns": [], "folder": str(tmp_path / "scratch")}
        with harness.refusal("count", tmp_path / "log", settings=()):
            process.call(request, lambda share: None)
        process._process.kill()
        with harness.refusal("count", "signal 9", settings=("memory_limit", "engine")):
            process.call(request, lambda share: None)


KILLED_PARENT = """
import sys, time
from pathlib import Path
from preproc.nvtabular.process import NvtabularProcess
with NvtabularProcess(None, "cpu", None, 1, Path(sys.argv[1])) as process:
    print(process._process.pid, flush=True)
    time.sleep(600)
"""


def test_the_process_does_not_outlive_its_parent(tmp_path):
    with harness.started("-c", KILLED_PARENT, tmp_path / "log", stderr=None) as parent:
        worker = int(parent.stdout.readline())
        assert "nvtabular/worker.py" in Path(f"/proc/{worker}/cmdline").read_text()
    harness.wait_for(lambda: "nvtabular/worker.py" not in command_line(worker), "its end")


def command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def test_the_memory_limit_is_enforced(tmp_path):
    """A column of 40 million distinct numbers does not fit 1.7 GiB less what the parent takes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = tmp_path / "part.parquet"
    numbers = np.arange(40_000_000)
    pq.write_table(pa.table({"C1": numbers}), part, use_dictionary=False)
    limit = int(1.7 * 2**30)
    with NvtabularProcess(None, "cpu", limit, 1, tmp_path / "log") as process:
        request = {"do": "count", "parts": [str(part)], "columns": ["C1"]}
        with harness.refusal("count", "MemoryError", settings=("memory_limit", "engine")):
            process.call(request | {"folder": str(tmp_path / "scratch")}, lambda share: None)


def test_the_script_and_a_missing_environment(tmp_path):
    write_days(tmp_path / "days", rows=100)
    variables = {"RECIPES_PYTHON": sys.executable, "INPUT_PATH": "days", "OUTPUT_PATH": "made"}

    def script(*arguments: str, path: Path = RUN_SCRIPT, status: int = 2, **more: str) -> str:
        done = harness.run(path, *arguments, folder=tmp_path, status=status, **variables | more)
        return done.stderr

    harness.assert_tells(script("TPU"), "CPU", "GPU")
    for python, *facts in (["nowhere/python"], [sys.executable, "ModuleNotFoundError"]):
        error = script("CPU", NVTABULAR_PYTHON=python)
        harness.assert_tells(error, python, "make nvtabular", *facts)
    assert not (tmp_path / "made").exists()
    prepare = RUN_SCRIPT.with_name("prepare_dataset.sh")
    progress = script("2", "CPU", "NVTabular", "--progress=json", path=prepare, status=0)
    *stages, _ = (json.loads(line) for line in progress.splitlines())
    assert list(dict.fromkeys(s["stage"] for s in stages if "stage" in s))[:3] == [
        "read",
        "count",
        "encode",
    ]
    assert stages[-1]["bytes_done"] == stages[-1]["bytes_total"]
    manifest = Manifest.load(tmp_path / "made")
    assert manifest.engine["version"].startswith("23.08")
    assert manifest.semantics["frequency_limit"] == 2


@pytest.mark.parametrize(
    ("setting", "value", "fact"),
    [
        ("memory_limit", 2**30, "1.0 GiB"),
        pytest.param("nvtabular_device", "gpu", "CUDA", marks=needs("machine without CUDA device")),
    ],
)
def test_what_the_machine_lacks_is_named(tmp_path, setting, value, fact):
    days = write_days(tmp_path / "days", rows=50)
    with harness.refusal(fact, settings=(setting, "engine")):
        run(days, tmp_path / "made", "nvtabular", **{setting: value})
