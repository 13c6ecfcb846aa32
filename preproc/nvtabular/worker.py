# SPDX-License-Identifier: Apache-2.0
"""Program that runs NVTabular's operators for the NVTabular engines.

    python -P preproc/nvtabular/worker.py MEMORY_BYTES|-1 auto|cpu|gpu

It runs in NVTabular's environment and imports nothing from this repository, whose packages need a
newer NumPy. Requests arrive on standard input, one JSON object per line. Each is answered on
standard output by any number of `{"progress": ...}` lines and one `{"done": ...}` or
`{"error": ...}`. All other output goes to standard error. The worker ends when standard input
closes, so it never outlives its parent.
"""

import json
import os
import queue
import resource
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

_PROGRESS_PERIOD_S = 0.2

Request = dict[str, Any]


class _Answers:
    """Writes answers to the parent on a separate file descriptor."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._next = 0.0

    def send(self, **answer: object) -> None:
        self._stream.write(json.dumps(answer) + "\n")
        self._stream.flush()

    def progress(self, fraction: float) -> None:
        if time.monotonic() >= self._next:
            self.send(progress=fraction)
            self._next = time.monotonic() + _PROGRESS_PERIOD_S


def _requests() -> "queue.Queue[str]":
    """Reads request lines in a thread; ends the process when the input ends."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _choose_device(wanted: str) -> bool:
    """Chooses CPU (True) or GPU (False).

    Raises:
        RuntimeError: a GPU is wanted, but cuDF or the device is missing.
    """
    from merlin.core.compat import HAS_GPU, cudf

    has_gpu = bool(HAS_GPU) and cudf is not None
    if wanted == "gpu" and not has_gpu:
        missing = "no CUDA device" if not HAS_GPU else "no cuDF"
        raise RuntimeError(f"NVTabular found {missing}")
    return wanted == "cpu" or not has_gpu


class _Worker:
    """Carries out requests; each kind is a method."""

    def __init__(self, cpu: bool, answers: _Answers) -> None:
        self._cpu = cpu
        self._answers = answers
        self._encoding: Any = None

    def _dataset(self, parts: list[str]) -> Any:
        """Opens parquet files as a dataset with one partition per file."""
        import nvtabular as nvt

        dataset = nvt.Dataset(parts, engine="parquet", cpu=self._cpu)
        partitions = dataset.to_ddf().npartitions
        if partitions != len(parts):
            raise RuntimeError(f"{len(parts)} parts were cut into {partitions} partitions")
        return dataset

    def _progress(self) -> Any:
        """Returns a context that reports the finished fraction of Dask's tasks."""
        from dask.callbacks import Callback

        state = {"tasks": 1, "done": 0}

        def start(_graph: object, scheduler: dict[str, Any]) -> None:
            state.update(tasks=len(scheduler["waiting"]) + len(scheduler["ready"]), done=0)

        def finished(*_: object) -> None:
            state["done"] += 1
            self._answers.progress(state["done"] / max(state["tasks"], 1))

        return Callback(start_state=start, posttask=finished)

    def count(self, request: Request) -> None:
        """Counts the values of columns into Categorify's unique.COLUMN.parquet files.

        Request: `parts` (parquet files), `columns`, `folder` (replaced; gets `categories/`).
        """
        import nvtabular as nvt

        folder = _new_folder(request["folder"])
        counted = request["columns"] >> nvt.ops.Categorify(out_path=str(folder))
        with self._progress():
            nvt.Workflow(counted).fit(self._dataset(request["parts"]))

    def prepare(self, request: Request) -> None:
        """Fits the workflow of later `encode` requests.

        Request: `parts` (one is enough, for the dtypes), `folder` (replaced; keeps vocabularies),
        `kept` (columns to copy), `vocabularies` (categorical column -> parquet file with that
        column; row i has the value of id 3 + i, other values get id 2), and for Criteo `numerical`
        (columns), `minimum`, `offset` and `fill` (`input`: a missing value counts as 0; `output`:
        it becomes 0 after the logarithm).
        """
        import numpy as np
        import nvtabular as nvt
        import pandas as pd

        folder = _new_folder(request["folder"])
        vocabularies = {
            column: pd.read_parquet(path)[column]
            for column, path in request["vocabularies"].items()
        }
        categorical = list(vocabularies) >> nvt.ops.Categorify(
            vocabs=vocabularies, out_path=str(folder), dtype=np.int32
        )
        features = request["kept"] + categorical
        if request.get("numerical"):
            features += _logarithm(request)
        workflow = nvt.Workflow(features)
        self._encoding = workflow.fit(self._dataset(request["parts"]))

    def encode(self, request: Request) -> None:
        """Encodes each part into a file of its name, rows in order.

        Request: `parts` (parquet files), `folder` (replaced).
        """
        self._write(self._encoding.transform(self._dataset(request["parts"])), request)

    def filter(self, request: Request) -> None:
        """Filters the rows of each part into a file of its name.

        Request: `parts` (parquet files), `folder` (replaced), `kept` (columns to copy), `column`
        (its value decides), `among` (parquet file whose `column` holds the values to keep).
        """
        import nvtabular as nvt
        import pandas as pd

        column = request["column"]
        among = pd.read_parquet(request["among"])[column].to_numpy()
        condition = nvt.ops.Filter(lambda rows: rows[column].isin(among))
        workflow = nvt.Workflow(request["kept"] >> condition)
        dataset = self._dataset(request["parts"])
        self._write(workflow.fit(dataset).transform(dataset), request)

    def _write(self, dataset: Any, request: Request) -> None:
        """Writes each partition to a file with the name of its part."""
        folder = _new_folder(request["folder"])
        # Not preserve_files, which fails if a file is a single partition.
        files = {Path(path).name: [i] for i, path in enumerate(request["parts"])}
        with self._progress():
            dataset.to_parquet(str(folder), output_files=files, suffix="", shuffle=None)


def _logarithm(request: Request) -> Any:
    """Returns the graph of ln(max(x, minimum) + offset)."""
    import numpy as np
    import nvtabular as nvt

    offset = request["offset"]
    clipped = nvt.ops.Clip(min_value=request["minimum"])
    filled = nvt.ops.FillMissing(fill_val=0)
    # NVTabular's LogOp uses float32, which rounds 3 % of the logarithms differently.
    logarithm = nvt.ops.LambdaOp(
        lambda column: np.log(column.astype("float64") + offset).astype("float32"),
        dtype=np.float32,
    )
    if request["fill"] == "input":
        return request["numerical"] >> filled >> clipped >> logarithm
    return request["numerical"] >> clipped >> logarithm >> filled


def _new_folder(name: str) -> Path:
    folder = Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def main() -> None:
    """Answers requests until standard input ends."""
    answers = _Answers()
    memory, device = int(sys.argv[1]), sys.argv[2]
    try:
        import nvtabular

        cpu = _choose_device(device)
    except (ImportError, RuntimeError) as error:
        traceback.print_exc()
        answers.send(error=f"{type(error).__name__}: {error}")
        return
    if cpu and memory >= 0:  # CUDA reserves far more address space than it uses
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    requests, worker = _requests(), _Worker(cpu, answers)
    answers.send(done={"version": nvtabular.__version__, "device": "cpu" if cpu else "gpu"})
    while True:
        request = json.loads(requests.get())
        try:
            getattr(worker, request["do"])(request)
        except Exception as error:  # noqa: BLE001  (the parent reports every error)
            traceback.print_exc()
            out_of_memory = "MemoryError" in traceback.format_exc()
            answers.send(error=f"{type(error).__name__}: {error}", out_of_memory=out_of_memory)
        else:
            answers.send(done={})


if __name__ == "__main__":
    main()
