# SPDX-License-Identifier: Apache-2.0
"""Measures the speed kept when another process takes a core.

    python -m benchmark.dlrm.busy_core
    .venv-triton/bin/python -m benchmark.dlrm.busy_core --cases serving

Runs training, inference and preprocessing as programs, and a Triton server with its client on this
machine, alone and beside a process that never sleeps; each with our bound on OpenMP's spinning
(recsys/bounded_spin.py) and with libgomp's default.
"""

import argparse
import contextlib
import functools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmark.dlrm.program import run_dlrm
from benchmark.processes import run_interleaved, run_process
from benchmark.record import RESULTS, make_record, write_records
from benchmark.report import format_value
from benchmark.serving.model import NAME as MODEL
from benchmark.serving.model import DeployedDlrm
from preproc.synthetic.clicks import GeneratorConfig, generate
from recsys.bounded_spin import SPIN_COUNT
from recsys.serve.client.connection import Endpoint
from recsys.serve.client.load import measure_load
from recsys.serve.config_pbtxt import ServingSettings

NAME = "busy_core"
SPINS = {"bounded spin": str(SPIN_COUNT), "default spin": "300000"}
STATES = ("alone", "core taken")

WITHOUT_SERVER = (
    "training small",
    "training big",
    "inference small",
    "inference big",
    "preprocessing",
)
"""Cases of .venv; the other one is `serving`."""

_SYNTHETIC = (
    "--dataset_type=synthetic_gpu",
    "--synthetic_distribution=zipf",
    "--synthetic_dataset_num_entries=1048576",
)
_SMALL = (
    "--embedding_dim=16",
    "--bottom_mlp_sizes=64,16",
    "--top_mlp_sizes=128,64,1",
    "--batch_size=1024",
)
_PREPROCESSED_ROWS = 1_000_000
_SERVED_TABLES = (100_000,) * 26


def train(*arguments: str) -> float:
    """Trains on synthetic rows; returns samples per second."""
    record = run_dlrm("--mode=train", "--benchmark_warmup_steps=5", *_SYNTHETIC, *arguments)
    rate: float = record["average_train_throughput"]
    return rate


def infer(*arguments: str) -> float:
    """Returns rows per second of single-row inference, at its median."""
    record = run_dlrm(
        "--mode=inference_benchmark",
        "--inference_benchmark_batch_sizes=1",
        "--inference_benchmark_steps=2000",
        *_SYNTHETIC,
        *arguments,
    )
    return 1 / float(record["p50_inference_latency_batch_1"])


def preprocess(raw: Path, work: Path) -> float:
    """Writes a dataset from raw logs; returns rows per second.

    Raises:
        RuntimeError: the program failed.
    """
    paths = (f"--input={raw}", f"--output={work / 'dataset'}", "--overwrite")
    usage = run_process([sys.executable, "-m", "preproc.criteo", *paths, "--progress=none"])
    if usage.exit_status:
        raise RuntimeError(usage.output)
    return _PREPROCESSED_ROWS / usage.wall_s


def make_cases(work: Path) -> dict[str, Callable[[], float]]:
    """Returns case -> function that measures its speed once."""
    return {
        "training small": lambda: train(*_SMALL, "--max_steps=1000"),
        "training big": lambda: train("--batch_size=2048", "--max_steps=25"),
        "inference small": lambda: infer(*_SMALL),
        "inference big": infer,
        "preprocessing": lambda: preprocess(work / "raw", work),
        "serving": lambda: serve(work),
    }


@functools.cache
def _deploy(work: Path) -> DeployedDlrm:
    return DeployedDlrm.make(work, _SERVED_TABLES)


def serve(work: Path) -> float:
    """Returns requests per second of one client, at its median latency."""
    deployed = _deploy(work)
    requests = deployed.draw_requests(1)
    with deployed.serve(ServingSettings()) as server, Endpoint(server.grpc_url, MODEL) as endpoint:
        return 1 / measure_load(endpoint, requests, 1, seconds=4).latency.p50_s


@contextlib.contextmanager
def one_core_taken() -> Iterator[None]:
    """Keeps a core busy with a process that never sleeps."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            yield
        finally:
            busy.kill()


def measure(case: Callable[[], float], spin: str, state: str) -> float:
    """Measures a case, alone or with a core taken."""
    before = os.environ.get("GOMP_SPINCOUNT")
    os.environ["GOMP_SPINCOUNT"] = SPINS[spin]  # the programs inherit it
    try:
        with one_core_taken() if state == "core taken" else contextlib.nullcontext():
            return case()
    finally:
        os.environ.pop("GOMP_SPINCOUNT")
        if before is not None:
            os.environ["GOMP_SPINCOUNT"] = before


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and records each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=WITHOUT_SERVER, help="names")
    parser.add_argument("--results", type=Path, default=RESULTS / f"{NAME}.jsonl")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="recipes-busy-") as folder:
        work = Path(folder)
        cases = make_cases(work)
        if unknown := set(options.cases) - set(cases):
            parser.error(f"unknown cases: {', '.join(unknown)}; known: {', '.join(cases)}")
        if "preprocessing" in options.cases:
            generate(GeneratorConfig(output=work / "raw", rows=_PREPROCESSED_ROWS, days=2))
        for name in options.cases:
            runs = run_interleaved(
                {
                    f"{spin}, {state}": functools.partial(measure, cases[name], spin, state)
                    for spin in SPINS
                    for state in STATES
                },
                options.repeats,
            )
            values = {key: statistics.median(samples) for key, samples in runs.items()}
            kept = {s: values[f"{s}, core taken"] / values[f"{s}, alone"] for s in SPINS}
            print(
                f"{name:26s} "
                + "  ".join(f"{key}: {format_value(value)}" for key, value in values.items())
                + "  kept: "
                + ", ".join(f"{spin} {ratio:.0%}" for spin, ratio in kept.items()),
                flush=True,
            )
            records = [
                make_record(
                    *(NAME, name, key, samples),
                    unit="rows/s",
                    direction="higher",
                    config={"busy": "a Python process that never sleeps"},
                )
                for key, samples in runs.items()
            ]
            write_records(options.results, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
