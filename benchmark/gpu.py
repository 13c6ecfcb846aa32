# SPDX-License-Identifier: Apache-2.0
"""Measures everything that needs a GPU, in about six minutes.

    FORCE_CUDA=1 python setup.py build_ext --inplace
    python -m benchmark.gpu

Checks that no training step makes the host wait for the device. Measures training, a profile,
inference, the AUC of each precision, plain PyTorch, the kernels and BERT4Rec, with the programs
that users run. The tables have the sizes of Criteo's Terabyte log at frequency limit 15 (17 GB).
Each part writes its records to its own file as soon as it is done, so a second call continues after
the last part. Needs no package index and no data. Exits 1 after failures, 3 if the time ran out
before a part.
"""

import contextlib
import dataclasses
import functools
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from benchmark.case import Case, Group, Key, Values
from benchmark.cases.bert4rec_scaling import Scaling
from benchmark.cases.embedding_kernels import EmbeddingKernels
from benchmark.cases.interaction_kernels import InteractionKernels
from benchmark.cases.sparse_step_kernels import SparseStepKernels
from benchmark.door import start
from benchmark.machine import commit, hardware
from benchmark.programs import DLRM, STEP_FIGURES, Figure, run_module, training_group
from benchmark.record import RESULTS, Record, config_hash, read_records, write_records
from benchmark.report import render_table
from benchmark.run import run_case
from cuda_ext import library
from dlrm.config import DataConfig, DlrmConfig, ModelConfig
from dlrm.data.batch import NarrowBatch
from dlrm.data.loader import to_device
from dlrm.model.network import Dlrm
from dlrm.scripts.plan_placement import CRITEO_LIMIT_15
from dlrm.train.devices import build_train_step
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.errors import FAILED, UserError
from recsys.settings import joined, setting
from recsys.train.optimizers.precision import Precision

NO_TIME = 3
PRECISIONS = {
    "bfloat16": ("--amp", "--amp_dtype=bfloat16"),
    "float16": ("--amp", "--amp_dtype=float16"),
    "tf32": ("--tf32",),
    "float32": (),
}
GRAPHS = {"eager": (), "graph": ("--cuda_graphs",)}
PLAIN = ("--embedding_type=multi_table", "--interaction_op=dot", "--nooptimized_mlp")
STEP = {
    name: STEP_FIGURES[name]
    for name in (
        *("benchmark_samples_per_s", "benchmark_step_time_p50", "benchmark_peak_memory_bytes"),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Programs(Case):
    """Runs of DLRM's program with the flags of each row.

    Attributes:
        flags: flags of all runs; `{data}` is the folder that `prepare` fills.
        rows: name of the row -> its own flags.
        figures: name in the log -> value to record.
        prepare: modules to run first, with their flags.
        log: file for the log, next to which a profile is kept; None keeps neither.
    """

    repeats: ClassVar[int] = 1

    title: str
    flags: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    figures: Mapping[str, Figure]
    prepare: tuple[tuple[str, ...], ...] = ()
    log: Path | None = None

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"gpu_{self.title}"

    def config(self) -> dict[str, Any]:
        """Returns the flags of all runs."""
        return {"flags": " ".join(self.flags)}

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the rows."""

        def filled(flags: Sequence[str]) -> list[str]:
            return [flag.replace("{data}", str(folder)) for flag in flags]

        for command in self.prepare:
            run_module(*filled(command))
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
        rows = {row: filled((*self.flags, *own)) for row, own in self.rows.items()}
        yield training_group(DLRM, rows, self.figures, self.log)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waits(Case):
    """Training steps while PyTorch refuses to wait for the device."""

    device: str
    table_sizes: tuple[int, ...]
    batch_size: int

    @property
    def name(self) -> str:
        """Name of the part."""
        return "gpu_waits"

    def config(self) -> dict[str, Any]:
        """Returns the device and the samples."""
        return {"device": self.device, "batch_size": self.batch_size}

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields each precision."""
        spec, device = FeatureSpec.criteo(self.table_sizes), torch.device(self.device)
        config = DlrmConfig(data=DataConfig(dataset="none"), model=ModelConfig())
        rows = self.batch_size
        with device:
            model = Dlrm(config.model, spec.table_sizes)
        columns = ClickColumns(
            np.zeros(rows, np.bool_),
            np.zeros((rows, len(spec.numerical)), np.float16),
            tuple(np.zeros(rows, feature.dtype) for feature in spec.categorical),
        )

        def train(name: str, _seed: int) -> Values:
            torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
            dtype = getattr(torch, name) if name.endswith("16") else None
            scale = 1024.0 if name == "float16" else 1.0
            precision = Precision(device_type=device.type, dtype=dtype, loss_scale=scale)
            step = build_train_step(config, model, precision)
            batches = (NarrowBatch.from_columns(columns) for _ in range(20))
            try:
                with _refused_waits(device.type):
                    pinned = (b.pinned() if device.type == "cuda" else b for b in batches)
                    for batch in to_device(pinned, device):
                        step(batch, 0.1)
            except RuntimeError as error:
                print(f"{name}: {str(error).splitlines()[0]}", flush=True)
                return {Key(name, "waits"): 1.0}
            return {Key(name, "waits"): 0.0}

        candidates = {name: functools.partial(train, name) for name in PRECISIONS}
        yield Group(candidates=candidates, once=True)

    def fault(self, records: Sequence[Record]) -> str:
        """Names the precisions that wait."""
        waiting = [record.candidate for record in records if record.value]
        return f"the host waits for the device in {', '.join(waiting)}" if waiting else ""


@contextlib.contextmanager
def _refused_waits(device_type: str) -> Iterator[None]:
    if device_type != "cuda":  # nothing waits on a CPU
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def make_parts(device: str, *, small: bool, results: Path = RESULTS) -> dict[str, Case]:
    """Returns {name: case}, the most important first."""
    tables = tuple((100, 40, 3, 7)[i % 4] for i in range(26)) if small else CRITEO_LIMIT_15
    batch, steps, rows = (64, 2, 6_000) if small else (65_536, 40, 4_000_000)
    graphs = GRAPHS if device == "cuda" else {"eager": ()}
    data = (
        *("--dataset_type=synthetic_gpu", "--synthetic_distribution=zipf"),
        *(f"--synthetic_dataset_table_sizes={joined(tables)}", f"--base_device={device}"),
    )
    training = (
        *("--mode=train", *data, f"--batch_size={batch}", "--optimizer=sgd", "--test_after=1000"),
        f"--synthetic_dataset_num_entries={(steps + 20) * batch}",
        *(f"--max_steps={steps + 12}", f"--benchmark_steps={steps}", "--run_benchmark"),
        "--benchmark_warmup_steps=10",
    )
    sizes = (1, 8) if small else (1, 64, 4096, 65_536)
    inference = (
        *("--mode=inference_benchmark", *data, f"--inference_benchmark_steps={steps}"),
        f"--synthetic_dataset_num_entries={16 * batch}",
        f"--inference_benchmark_batch_sizes={joined(sizes)}",
    )
    latencies = {
        f"p50_inference_latency_batch_{n}": Figure(f"p50 of {n}", "ms", 1e3) for n in sizes
    }
    variants = {
        f"{name} {variant}": (*PRECISIONS[name], *graphs[variant])
        for name in PRECISIONS
        for variant in graphs
    }
    profiled = ("--run_profiler", f"--max_steps={steps + 20}", *PRECISIONS["bfloat16"])
    clicks = (
        ("preproc.generate_criteo", "--output={data}/raw", f"--rows={rows}", "--days=3"),
        ("preproc.clicks", "--input={data}/raw", "--output={data}/clicks"),
    )
    auc = (
        *("--mode=train", "--dataset={data}/clicks", "--preset=small", f"--base_device={device}"),
        "--baselines=",  # they would be fitted on the CPU, while the device waits
    )
    sizes_of_kernels: dict[str, Any] = (
        {"tables": 3, "rows": 40, "dims": (16,), "batch_sizes": (8,), "copy_mib": 1}
        if small
        else {"rows": 1_000_000, "dims": (128,), "batch_sizes": (8192, 65_536), "copy_mib": 1024}
    )
    kernels = sizes_of_kernels | {"device": device, "matmul_size": 16 if small else 8192}
    scaling = (
        Scaling(sizes=("5m",), table_size="", items=200, batch=4, steps=2)
        if small
        # A size of batches is captured in a graph at its fourth occurrence.
        else Scaling(
            sizes=("5m",), table_size="130m", items=160_000, batch=256, warmup=40, steps=60,
            graphs=device == "cuda",
        )
    )  # fmt: skip
    return {
        "waits": Waits(device=device, table_sizes=tables, batch_size=batch),
        "training": Programs(title="training", flags=training, rows=variants, figures=STEP),
        "profile": Programs(
            title="profile", flags=training, rows={"bfloat16": profiled}, figures=STEP,
            log=results / "gpu_profile" / "log.json",
        ),
        "inference": Programs(
            title="inference", flags=inference, rows=variants, figures=latencies
        ),
        "auc": Programs(
            title="auc", flags=auc, rows=PRECISIONS, figures={"best_auc": Figure("AUC")},
            prepare=clicks,
        ),
        "plain_pytorch": Programs(
            title="plain_pytorch", flags=(*training, *PLAIN), rows=PRECISIONS, figures=STEP
        ),
        "interaction": InteractionKernels(compile=False, **kernels),
        "embedding": EmbeddingKernels(**kernels),
        "sparse_step": SparseStepKernels(**kernels),
        "bert4rec": scaling,
    }  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuSettings:
    """Settings of this program."""

    device: Literal["cuda", "cpu"] = setting(
        "cuda", "Device; cpu, with --small, tries out this program"
    )
    small: bool = setting(False, "Use sizes that take seconds on a CPU")
    parts: tuple[str, ...] = setting((), "Parts to measure, separated by commas; default: all")
    limit_s: float = setting(520.0, "Seconds after which no further part starts")
    results: Path = setting(RESULTS, "Folder of gpu_PART.jsonl", default_text="benchmark/results")

    def __post_init__(self) -> None:
        """Refuses a device that is missing or has no compiled kernels."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError(
                "no CUDA device found; --device cpu --small tries out this program without one"
            )
        if self.device not in library.COMPILED_FOR:
            raise UserError(
                f"this needs compiled kernels, but {library.why_not_compiled(self.device)}"
            )


SECTIONS = {GpuSettings: "options"}


def run(settings: GpuSettings, arguments: list[str]) -> int:
    """Measures missing parts; returns the exit status."""
    parts = make_parts(settings.device, small=settings.small, results=settings.results)
    wanted = settings.parts or tuple(parts)
    if unknown := {*wanted, *arguments} - set(parts):
        raise UserError(
            f"`parts`: there is no {', '.join(sorted(unknown))}; choose from {', '.join(parts)}",
            setting="parts",
        )
    here = commit(), hardware()["cpu"], hardware()["gpu"]
    started, status = time.perf_counter(), 0
    for name in wanted:
        case, target = parts[name], settings.results / f"gpu_{name}.jsonl"
        measured = (*here, config_hash(case.config()))
        if any(
            (r.commit, r.hardware["cpu"], r.hardware["gpu"], r.config_hash) == measured
            for r in (read_records(target) if target.is_file() else ())
        ):
            print(f"{name}: measured before")
            continue
        if time.perf_counter() - started > settings.limit_s:
            print(f"{name}: no time left; run this again to continue")
            status = status or NO_TIME
            continue
        print(f"== {name}", flush=True)
        try:
            with tempfile.TemporaryDirectory() as folder:
                # Three runs of `bert4rec` take longer than all other parts.
                repeats = 1 if name == "bert4rec" else case.repeats
                records = run_case(case, Path(folder), range(1, repeats + 1))
        except Exception:  # noqa: BLE001
            # A part that fails must not stop the others.
            traceback.print_exc()
            status = FAILED
            continue
        write_records(target, records)
        print(render_table(records), flush=True)
        if fault := case.fault(records):
            print(fault, file=sys.stderr)
            status = FAILED
    return status


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start(SECTIONS, run, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
