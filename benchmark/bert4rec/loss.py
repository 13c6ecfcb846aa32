# SPDX-License-Identifier: Apache-2.0
"""Measures the full softmax in blocks beside the plain one.

    python -m benchmark.bert4rec.loss

The model is a preset's, 130 million parameters by default. A step is forward, backward and AdamW on
one batch of random histories. Memory is measured in a process of its own for each candidate, time
in one process for all, in turns:

- `blocks`: the program's loss
- `slice`: the same blocks on a slice of the table, whose gradient autograd copies into one of the
  whole table and adds to the gradient of the lookup (tied head)
- `plain`: all logits at once, as `torch.nn.functional.cross_entropy` takes them
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark.kernels.stopwatch import time_interleaved
from benchmark.processes import run_process
from benchmark.record import RESULTS, Record, make_record, write_records
from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import training_batches
from bert4rec.data.masking import MaskingRule, mask_tokens
from bert4rec.model.loss import LossInputs, LossNetwork
from bert4rec.model.network import Bert4Rec
from bert4rec.nn.softmax_loss import softmax_cross_entropy
from bert4rec.scripts.flags import PRESETS
from recsys.data.sequences import Sequences
from recsys.train.optimizers.dense import build_dense_optimizer

BENCHMARK = "bert4rec_loss"
CPU = torch.device("cpu")
CANDIDATES: Mapping[str, Sequence[str]] = {
    "untied": ("blocks", "plain"),
    "tied": ("blocks", "slice", "plain"),
}
STEPS_OF_MEMORY = 2
"""The second step has the optimizer's state."""


class LossOfAllItems(nn.Module):
    """A network and its full softmax over a matrix of item vectors.

    Args:
        model: the network.
        blocked: compute the loss in blocks, else all logits at once.
    """

    def __init__(self, model: Bert4Rec, blocked: bool) -> None:
        super().__init__()
        self.model = model
        self.blocked = blocked

    def forward(self, inputs: LossInputs) -> Tensor:
        """Returns the mean loss over the targets."""
        model = self.model
        hidden = model(inputs.items, inputs.layout, inputs.targets, causal=inputs.causal)
        vectors, bias, labels = model.item_vectors(), model.head.bias, inputs.labels - 1
        if self.blocked:
            return softmax_cross_entropy(hidden, vectors, bias, labels)
        return F.cross_entropy(F.linear(hidden, vectors, bias), labels)


def random_inputs(config: Bert4RecConfig, num_items: int) -> LossInputs:
    """Draws a masked batch of histories as long as the model takes."""
    users, length = config.data.train_batch_size, config.model.max_len + 2
    drawn = np.random.default_rng(0).integers(1, num_items + 1, users * length)
    offsets = np.arange(users + 1) * length
    sequences = Sequences(drawn.astype(np.int32), offsets, num_items)
    batch = next(training_batches(config, sequences, CPU).batches(0, 0)).batches[0]
    masked = mask_tokens(
        *(batch.items, batch.layout, batch.mask_counts),
        *(MaskingRule.of(config.objective), num_items, torch.Generator().manual_seed(0)),
    )
    return LossInputs(
        items=masked.items,
        layout=masked.layout,
        targets=masked.targets,
        labels=masked.labels,
        causal=False,
    )


def training_steps(
    config: Bert4RecConfig, num_items: int, names: Sequence[str]
) -> dict[str, Callable[[], float]]:
    """Builds a model, and a training step of it for each candidate.

    Returns:
        candidate -> function that trains a step and returns its loss.
    """
    torch.manual_seed(0)
    model = Bert4Rec(config.model, num_items)
    parameters = list(model.parameters())
    optimizer = build_dense_optimizer("adam", parameters, config.optimizer.weight_decay)
    inputs, lr = random_inputs(config, num_items), torch.tensor(1e-4)
    networks = {
        "blocks": LossNetwork(model, "full"),
        "slice": LossOfAllItems(model, blocked=True),
        "plain": LossOfAllItems(model, blocked=False),
    }

    def step(network: nn.Module) -> float:
        for parameter in parameters:
            parameter.grad = None
        loss: Tensor = network(inputs)
        torch.autograd.backward(loss)
        optimizer.step(lr, 1.0, None)
        return float(loss.detach())

    return {name: functools.partial(step, networks[name]) for name in names}


def peak_mib(options: argparse.Namespace, head: str, candidate: str) -> float:
    """Measures the peak anonymous memory of a process that trains two steps.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-m", "benchmark.bert4rec.loss", f"--only={head}:{candidate}"]
    for name in ("preset", "items", "batch", "threads"):
        command.append(f"--{name}={getattr(options, name)}")
    used = run_process(command)
    if used.exit_status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{used.output}")
    return used.peak_anon_mib


def measure(options: argparse.Namespace, head: str) -> list[Record]:
    """Measures, prints and records the candidates of a kind of head."""
    config, names = settings(options, head), CANDIDATES[head]
    peaks = {name: peak_mib(options, head, name) for name in names}
    steps = training_steps(config, options.items, names)
    seconds = time_interleaved(steps, options.repeats, warmup=1)
    records = []
    fixed = {name: getattr(options, name) for name in ("preset", "items", "batch", "threads")}
    for name in names:
        ratios = [a / b for a, b in zip(seconds[name], seconds["blocks"], strict=True)]
        print(
            f"{head:6} {name:6} {peaks[name]:7.0f} MiB {statistics.median(seconds[name]):6.2f} s "
            f"a step, {statistics.median(ratios):.2f} times that of blocks",
            flush=True,
        )
        for metric, samples, unit in (
            ("peak memory", [peaks[name]], "MiB"),
            ("step time", seconds[name], "s"),
            ("step time over that of blocks", ratios, "x"),
        ):
            records.append(
                make_record(
                    *(BENCHMARK, f"{head} {name}", metric, samples),
                    unit=unit,
                    direction="lower",
                    config=fixed,
                )
            )
    return records


def settings(options: argparse.Namespace, head: str) -> Bert4RecConfig:
    """Returns the settings of the preset with another head and batch."""
    changed = {"head": head, "train_batch_size": options.batch, "objective": "cloze"}
    return Bert4RecConfig.from_dict(dict(PRESETS.read(options.preset).values) | changed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--preset", default="scaling-130m")
    parser.add_argument("--items", type=int, default=160_000)
    parser.add_argument("--batch", type=int, default=64, help="sequences of a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS / f"{BENCHMARK}.jsonl")
    parser.add_argument("--only", help="HEAD:CANDIDATE, to train two steps of it alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.only:
        head, _, candidate = options.only.partition(":")
        config = settings(options, head)
        step = training_steps(config, options.items, [candidate])[candidate]
        print([step() for _ in range(STEPS_OF_MEMORY)])
        return 0
    for head in CANDIDATES:
        write_records(options.results, measure(options, head))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
