# SPDX-License-Identifier: Apache-2.0
"""The measurements of `python -m benchmark.gpu`, one by one."""

import contextlib
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmark.bert4rec.step import bert4rec_settings, compare
from benchmark.kernels.gpu import measure_kernels
from benchmark.kernels.gpu_cases import Sizes
from benchmark.kernels.stopwatch import seconds_per_call
from cuda_ext import self_test
from dlrm.config import DataConfig, DlrmConfig, ModelConfig
from dlrm.data.batch import Batch, NarrowBatch
from dlrm.data.loader import to_device
from dlrm.data.opened import OpenedDataset
from dlrm.data.synthetic import draw_ids
from dlrm.train.devices import OneDevice
from dlrm.train.graphs import GraphedInference, GraphedTrainStep
from dlrm.train.metrics import roc_auc
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.train.optimizers.precision import Precision

PRECISIONS = ("bfloat16", "float16", "tf32", "float32")
DISTRIBUTIONS = ("zipf", "uniform")

_RING = 8
"""Batches on the device, taken in turns, so that no time goes into making them."""

_LEARNING_RATE = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Sizes of the measurements.

    Attributes:
        device: of the measurements.
        table_sizes: rows of each table.
        batch_sizes: samples of a training step.
        inference_batch_sizes: samples of an inference.
        calls: steps of a measurement.
        repeats: measurements.
        kernel_sizes: of the ops, one by one.
        kernels_limit_s: seconds for those.
        auc_rows: samples with planted clicks to train on.
        bert4rec_sizes: columns, layers and longest history.
        results: folder for files of their own.
    """

    device: torch.device
    table_sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...] = (32768, 65536)
    inference_batch_sizes: tuple[int, ...] = (1, 64, 4096, 65536)
    calls: int = 40
    repeats: int = 3
    kernel_sizes: Sizes = dataclasses.field(default_factory=Sizes)
    kernels_limit_s: float = 150.0
    auc_rows: int = 8_000_000
    bert4rec_sizes: tuple[tuple[int, int, int], ...] = ((64, 2, 200), (384, 6, 200))
    results: Path

    @property
    def spec(self) -> FeatureSpec:
        """The features of Criteo's logs, with these tables."""
        return FeatureSpec.criteo(self.table_sizes)


def build(setting: Setting, *, plain: bool = False) -> OneDevice:
    """Builds NVIDIA's model; `plain` takes PyTorch's own layers and sparse gradients."""
    model = ModelConfig()
    if plain:
        model = ModelConfig(embedding_type="multi_table", interaction_op="dot")
    config = DlrmConfig(data=DataConfig(dataset="none"), model=model)
    return OneDevice.build(config, OpenedDataset(config.data, setting.spec), setting.device)


def precision_of(name: str, device: torch.device) -> Precision:
    """Sets up a precision by its name; TF32 holds for the process."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
    if name in ("float32", "tf32"):
        return Precision(device_type=device.type)
    scale = 1024.0 if name == "float16" else 1.0
    return Precision(device_type=device.type, dtype=getattr(torch, name), loss_scale=scale)


def make_batches(
    setting: Setting, rows: int, distribution: str, count: int = _RING
) -> list[Batch[Tensor]]:
    """Draws batches on the device."""
    generator = torch.Generator(setting.device).manual_seed(1)
    sizes = torch.tensor(setting.table_sizes, device=setting.device)
    options: dict[str, Any] = {"generator": generator, "device": setting.device}
    return [
        Batch(
            torch.rand(rows, len(setting.spec.numerical), **options).to(torch.float16),
            draw_ids(sizes, rows, distribution, generator).to(torch.int32),
            (torch.rand(rows, **options) < 0.25).float(),
        )
        for _ in range(count)
    ]


def samples_per_second(
    setting: Setting, step: Callable[[Batch[Tensor], float], Tensor], batches: list[Batch[Tensor]]
) -> float:
    """Measures a step on batches in turns; the median."""
    turns = itertools.cycle(batches)

    def work() -> None:
        step(next(turns), _LEARNING_RATE)

    for _ in range(6):  # kernels are loaded, a graph is captured
        work()
    seconds = [
        seconds_per_call(work, setting.device, setting.calls) for _ in range(setting.repeats)
    ]
    return len(batches[0]) / statistics.median(seconds)


def test_kernels(setting: Setting) -> dict[str, Any]:
    """Tests the kernels against float64, in processes of their own."""
    outcomes = self_test.run(str(setting.device))
    print(self_test.markdown(outcomes))
    return {o.family: "right" if o.is_right else o.reason() for o in outcomes}


def find_waits(setting: Setting) -> dict[str, Any]:
    """Trains while PyTorch refuses to wait for the device."""
    if setting.device.type != "cuda":
        return {"skipped": "nothing waits on a CPU"}
    rows, devices = setting.batch_sizes[0], build(setting)
    columns = ClickColumns(
        np.zeros(rows, np.bool_),
        np.zeros((rows, len(setting.spec.numerical)), np.float16),
        tuple(np.zeros(rows, feature.dtype) for feature in setting.spec.categorical),
    )
    waits: dict[str, Any] = {}
    for name in PRECISIONS:
        step = devices.train_step(precision_of(name, setting.device))
        narrow = (NarrowBatch.from_columns(columns).pinned() for _ in range(20))
        try:
            with _refused_waits():
                for batch in to_device(narrow, setting.device):
                    step(batch, _LEARNING_RATE)
        except RuntimeError as error:
            waits[name] = str(error).splitlines()[0]
    return {"waits": waits}


@contextlib.contextmanager
def _refused_waits() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def train(setting: Setting) -> dict[str, Any]:
    """Measures training, eager and replayed."""
    rates: dict[str, Any] = {}
    devices = build(setting)
    variants = ("eager", "graph") if setting.device.type == "cuda" else ("eager",)
    for rows, distribution in itertools.product(setting.batch_sizes, DISTRIBUTIONS):
        batches = make_batches(setting, rows, distribution)
        for name, variant in itertools.product(PRECISIONS, variants):
            step = devices.train_step(precision_of(name, setting.device))
            taken = GraphedTrainStep(step) if variant == "graph" else step
            rate = samples_per_second(setting, taken, batches)
            rates[f"{rows} {distribution} {name} {variant}"] = rate
            print(f"{rows:6d} {distribution:8} {name:9} {variant:6} {rate / 1e6:8.2f} M samples/s")
    return {"samples_per_s": rates}


def train_plain(setting: Setting) -> dict[str, Any]:
    """Measures plain PyTorch beside it, eager and compiled."""
    rates: dict[str, Any] = {}
    rows = setting.batch_sizes[0]
    batches = make_batches(setting, rows, "zipf")
    model = build(setting, plain=True).model
    perceptrons: tuple[nn.Module, nn.Module] = model.bottom_mlp, model.top_mlp
    # Sparse gradients of tables cannot be compiled.
    compiled_ones = _compile(model.bottom_mlp), _compile(model.top_mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    for name, compiled in itertools.product(("bfloat16", "tf32"), (False, True)):
        model.run_instead(*(compiled_ones if compiled else perceptrons))

        precision = precision_of(name, setting.device)

        def step(batch: Batch[Tensor], _: float, used: Precision = precision) -> Tensor:
            with used.autocast():
                logits = model(batch.numerical, batch.ids.long())
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), batch.label)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
            return loss.detach()

        key = f"{rows} zipf {name} {'compiled' if compiled else 'eager'}"
        try:
            rates[key] = samples_per_second(setting, step, batches)
        except Exception as error:  # noqa: BLE001
            # A peer that fails is a result too.
            rates[key] = f"failed: {str(error).splitlines()[0]}"
        print(f"plain PyTorch {key}: {rates[key]}")
    return {"samples_per_s": rates}


def _compile(module: nn.Module) -> nn.Module:
    compiled: nn.Module = torch.compile(module)  # type: ignore[assignment]
    return compiled


def profile_step(setting: Setting) -> dict[str, Any]:
    """Profiles a step: microseconds of each kernel, the longest first."""
    devices = build(setting)
    rows = setting.batch_sizes[-1]
    batches = make_batches(setting, rows, "zipf", count=2)
    activity = ProfilerActivity.CUDA if setting.device.type == "cuda" else ProfilerActivity.CPU
    kernels: dict[str, dict[str, float]] = {}
    steps = 5
    for name in ("bfloat16", "float16"):
        step = devices.train_step(precision_of(name, setting.device))
        for batch in batches:
            step(batch, _LEARNING_RATE)
        with profile(activities=[activity]) as profiler:
            for i in range(steps):
                step(batches[i % 2], _LEARNING_RATE)
            if setting.device.type == "cuda":
                torch.cuda.synchronize()
        times = {
            e.key: (e.self_device_time_total or e.self_cpu_time_total) / steps
            for e in profiler.key_averages()
        }
        ordered = sorted(times.items(), key=lambda item: -item[1])
        kernels[name] = {key: round(us, 2) for key, us in ordered[:60] if us > 0}
    return {"us_a_step": kernels, "rows": rows}


def infer(setting: Setting) -> dict[str, Any]:
    """Measures inference, eager and replayed: milliseconds of a batch."""
    model = build(setting).model.eval()
    milliseconds: dict[str, float] = {}
    variants = ("eager", "graph") if setting.device.type == "cuda" else ("eager",)

    def predict(batch: Batch[Tensor]) -> Tensor:
        logits: Tensor = model(batch.numerical, batch.ids)
        return logits

    for rows in setting.inference_batch_sizes:
        turns = itertools.cycle(make_batches(setting, rows, "zipf"))
        for name, variant in itertools.product(PRECISIONS, variants):
            precision = precision_of(name, setting.device)
            taken = GraphedInference(predict) if variant == "graph" else predict

            def work(
                turns: Any = turns,
                used: Precision = precision,
                taken: Callable[[Batch[Tensor]], Tensor] = taken,
            ) -> None:
                with torch.no_grad(), used.autocast():
                    taken(next(turns))

            for _ in range(3):
                work()
            times = [
                seconds_per_call(work, setting.device, setting.calls)
                for _ in range(setting.repeats)
            ]
            milliseconds[f"{name}, batch {rows}, {variant}"] = 1e3 * statistics.median(times)
    return {"ms": milliseconds}


def compare_auc(setting: Setting) -> dict[str, Any]:
    """Trains on planted clicks in each precision; the AUC of others."""
    rows = min(16384, setting.auc_rows // 4)
    small = dataclasses.replace(
        setting, table_sizes=tuple(min(size, 10_000) for size in setting.table_sizes)
    )
    count = setting.auc_rows // rows
    batches = make_batches(small, rows, "zipf", count=count)
    generator = torch.Generator(setting.device).manual_seed(2)
    weights = torch.randn(
        max(small.table_sizes), len(small.table_sizes), generator=generator, device=setting.device
    )
    columns = torch.arange(len(small.table_sizes), device=setting.device)
    clicks = [
        (weights[batch.ids.long(), columns].mean(1) * 6 + batch.numerical.float().mean(1) - 1)
        for batch in batches
    ]
    planted = [
        dataclasses.replace(
            batch,
            label=torch.bernoulli(torch.sigmoid(logits), generator=generator),
        )
        for batch, logits in zip(batches, clicks, strict=True)
    ]
    held_out = max(count // 10, 1)
    aucs: dict[str, float] = {}
    for name in PRECISIONS:
        torch.manual_seed(3)
        devices, precision = build(small), precision_of(name, setting.device)
        step = devices.train_step(precision)
        for batch in planted[held_out:]:
            step(batch, 1.0)
        with torch.no_grad(), precision.autocast():
            logits = [devices.model(b.numerical, b.ids).float() for b in planted[:held_out]]
        labels = torch.cat([batch.label for batch in planted[:held_out]])
        aucs[name] = roc_auc(torch.cat(logits), labels)
        print(f"AUC in {name}: {aucs[name]:.5f}")
    return {"auc": aucs, "rows": count * rows}


def train_bert4rec(setting: Setting) -> dict[str, Any]:
    """Measures BERT4Rec's step: milliseconds of each variant."""
    milliseconds = {}
    for dim, layers, length in setting.bert4rec_sizes:
        settings = bert4rec_settings(
            emb_dim=dim, num_layers=layers, max_len=length, items=20_000, batch_size=128
        )
        seconds = compare(settings, setting.repeats, setting.device)
        name = f"{dim} columns, {layers} layers, {length} items"
        milliseconds[name] = {variant: 1e3 * s for variant, s in seconds.items()}
    return {"ms": milliseconds}


def measure_ops(setting: Setting) -> dict[str, Any]:
    """Measures every op beside the limits of the device."""
    target = setting.results / "gpu_kernels.json"
    started = time.perf_counter()
    measure_kernels(target, setting.kernel_sizes, setting.device, setting.kernels_limit_s)
    return {"file": target.name, "seconds": time.perf_counter() - started}


PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "self-test": test_kernels,
    "waits": find_waits,
    "training": train,
    "inference": infer,
    "profile": profile_step,
    "AUC": compare_auc,
    "plain PyTorch": train_plain,
    "BERT4Rec": train_bert4rec,
    "ops": measure_ops,
}
"""Name -> what measures it, the most important first."""
