# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's perf_analyzer as the clients of a served model.

A Python client takes as much of a core as the server does, so 16 of them would measure Python.
perf_analyzer is in the wheels of tritonclient up to 2.60; the program of 2.50 runs with glibc 2.36
and takes two of its libraries from NVIDIA's server package (`make perf-analyzer`).
"""

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint
from recsys.serve.client.load import LoadResult
from recsys.serve.client.perf_input import write_perf_input
from recsys.serve.client.requests import Arrays
from recsys.train.measure.timing import LatencySummary

FOLDER = Path(__file__).resolve().parents[2] / ".venv-triton" / "perf_analyzer"
"""Where `make perf-analyzer` puts the program."""
_WINDOWS = 3
"""Windows of a measurement: it ends once three agree, here whatever their difference."""
_ANY_PERCENT = 1e6
_TOO_SHORT = "No valid requests recorded within time interval"
_LONGEST_WINDOW_S = 30.0


def find_perf_analyzer() -> Path | None:
    """Finds the program on the PATH, else in `FOLDER`; None if it is in neither."""
    path = shutil.which("perf_analyzer") or shutil.which("perf_analyzer", path=str(FOLDER))
    return None if path is None else Path(path)


def measure_load(
    endpoint: Endpoint, requests: Sequence[Arrays], concurrency: int, seconds: float
) -> LoadResult:
    """Measures a model over gRPC like `load.measure_load`, with the clients of perf_analyzer.

    The measurement takes longer than `seconds` if no request ends within a third of it.

    Raises:
        BadRequestError: a request does not fit the model.
        UserError: perf_analyzer is missing or failed; the message ends with its last output.
    """
    program = find_perf_analyzer()
    if program is None:
        raise UserError("perf_analyzer is not installed: run `make perf-analyzer`")
    for request in requests:
        endpoint.check(request)
    rows = len(next(iter(requests[0].values())))
    with tempfile.TemporaryDirectory(prefix="recipes-perf-") as folder:
        data, profile = Path(folder) / "rows.json", Path(folder) / "profile.json"
        batched = endpoint.max_batch_size is not None
        write_perf_input(data, requests, rows * len(requests), batched=batched)
        command = [
            *(program, "-m", endpoint.model, "-u", endpoint.url, "-i", "grpc", "-b", rows),
            *("--input-data", data, "--profile-export-file", profile),
            *("--concurrency-range", concurrency, "--max-threads", concurrency),
            *("--max-trials", _WINDOWS, "--stability-percentage", _ANY_PERCENT),
        ]
        libraries = str(program.parent), os.environ.get("LD_LIBRARY_PATH")
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        }
        window_s = seconds / _WINDOWS
        while True:
            before = endpoint.times()
            run = subprocess.run(
                [str(word) for word in (*command, "--measurement-interval", round(window_s * 1e3))],
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            output = run.stdout + run.stderr
            if run.returncode == 0 or _TOO_SHORT not in output or window_s > _LONGEST_WINDOW_S:
                break
            window_s *= 4  # on a busy machine no request may end within a short window
        if run.returncode != 0 or not profile.is_file():
            words = output.strip().splitlines()[-5:]
            raise UserError(
                f"{program} failed with exit status {run.returncode}: " + " ".join(words)
            )
        sent_ns, replied_ns = _read_profile(profile)
        after = endpoint.times()
    durations = [(end - begin) / 1e9 for begin, end in zip(sent_ns, replied_ns, strict=True)]
    return LoadResult(
        batch_size=rows,
        concurrency=concurrency,
        latency=LatencySummary.of(durations),
        requests_per_s=len(durations) / ((max(replied_ns) - min(sent_ns)) / 1e9),
        server=after.since(before),
    )


def _read_profile(path: Path) -> tuple[list[int], list[int]]:
    """Returns the nanoseconds at which requests were sent, and replied to.

    Raises:
        UserError: no request ended within the measurement.
    """
    (experiment,) = json.loads(path.read_text())["experiments"]
    ended = [r for r in experiment["requests"] if r["response_timestamps"]]
    if not ended:
        raise UserError("perf_analyzer: no request was answered within the measurement")
    return [r["timestamp"] for r in ended], [r["response_timestamps"][-1] for r in ended]


def server_libraries() -> dict[str, Path]:
    """Finds the libraries that the program lacks, in the server's package.

    Raises:
        UserError: the package nvidia-pytriton is not installed, or lacks a library.
    """
    package = importlib.util.find_spec("pytriton")
    if package is None or package.origin is None:
        raise UserError("nvidia-pytriton is not installed: run `make triton-env`")
    folder = Path(package.origin).parents[1] / "nvidia_pytriton.libs"
    libraries = {}
    for name, pattern in (
        ("libb64.so.0d", "libb64-*.so.0d"),
        ("libcudart.so.12", "libcudart-*.so.12*"),
    ):
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise UserError(f"{folder} has no {pattern}")
        libraries[name] = paths[0]
    return libraries


def main() -> None:
    """Links the libraries into `FOLDER`, where the program is."""
    for name, path in server_libraries().items():
        link = FOLDER / name
        link.unlink(missing_ok=True)
        link.symlink_to(path)


if __name__ == "__main__":
    main()
