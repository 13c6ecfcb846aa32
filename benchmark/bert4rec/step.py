# SPDX-License-Identifier: Apache-2.0
"""Times BERT4Rec's training step: plain, compiled, with activation checkpointing.

    python -m benchmark.bert4rec.step --emb_dim 64 --num_layers 2

On a CPU the times are those of the processor, which other programs hardly change; on a GPU those of
the device. Batches differ in every size, as in training.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmark.kernels.stopwatch import seconds_per_call
from benchmark.processes import run_interleaved
from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import training_batches
from bert4rec.data.sources import open_sequences
from bert4rec.model.network import Bert4Rec
from bert4rec.train.step import build_step
from recsys.train.optimizers.precision import Precision, resolve_device

BATCHES = 8
"""Distinct batches, in turns."""

VARIANTS: Mapping[str, Mapping[str, bool]] = {
    "plain": {},
    "compiled": {"torch_compile": True},
    "checkpointed": {"activation_checkpointing": True},
    "compiled, checkpointed": {"torch_compile": True, "activation_checkpointing": True},
}


def make_call(settings: Mapping[str, object], device: torch.device) -> Callable[[], float]:
    """Returns a function that times a step on the next batch."""
    config = Bert4RecConfig.from_dict(settings)
    sequences = open_sequences(config.data, config.run.seed)
    with device:
        model = Bert4Rec(config.model, sequences.num_items)
    step = build_step(config, sequences, model, Precision(device_type=device.type))
    source = training_batches(config, sequences, device)
    batches = itertools.cycle(list(itertools.islice(source.batches(0, 0), BATCHES)))

    def work() -> None:
        step(next(batches), 1e-3)

    def on_cpu() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    timer = on_cpu if device.type == "cpu" else lambda: seconds_per_call(work, device)
    for _ in range(BATCHES):  # compiles, and captures CUDA graphs
        timer()
    return timer


def compare(settings: Mapping[str, object], repeats: int, device: torch.device) -> dict[str, float]:
    """Returns the median seconds of a step of every variant."""
    timers = {name: make_call({**settings, **more}, device) for name, more in VARIANTS.items()}
    seconds = run_interleaved(timers, repeats)
    return {name: statistics.median(of_variant) for name, of_variant in seconds.items()}


def bert4rec_settings(
    *, emb_dim: int, num_layers: int, max_len: int, items: int, batch_size: int
) -> dict[str, object]:
    """Returns the settings of a model on random histories."""
    return {
        "dataset_name": "random", "random_user_count": 8 * batch_size,
        "random_item_count": items, "random_size": 8 * batch_size * max_len * 3 // 4,
        "windows": "random", "dupe_factor": 1, "train_batch_size": batch_size,
        "emb_dim": emb_dim, "nhead": 2, "num_layers": num_layers,
        "max_len": max_len, "head": "tied", "activation": "gelu",
        "dropout": 0.2, "attention_dropout": 0.0,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the median time of a step of every variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--emb_dim", type=int, default=64)
    parser.add_argument("--num_layers", type=int, default=2)
    parser.add_argument("--max_len", type=int, default=50)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=24)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings = bert4rec_settings(
        emb_dim=given.emb_dim,
        num_layers=given.num_layers,
        max_len=given.max_len,
        items=given.items,
        batch_size=given.batch_size,
    )
    medians = compare(settings, given.repeats, resolve_device(given.device))
    for name, seconds in medians.items():
        ratio = seconds / medians["plain"]
        print(f"{name:24} {seconds * 1e3:8.1f} ms  {ratio:.2f} of plain")


if __name__ == "__main__":
    main()
