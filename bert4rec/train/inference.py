# SPDX-License-Identifier: Apache-2.0
"""Prepares inferences for users of the dataset, for the benchmark."""

import contextlib
import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import known_windows, pack
from bert4rec.model.network import Bert4Rec
from bert4rec.model.next_item import NextItemNetwork
from bert4rec.model.scoring import ItemScorer, pack_items
from bert4rec.nn.layout import SequenceLayout
from bert4rec.train.evaluate import pack_known
from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.split import targets_of
from recsys.ratings.ranking.evaluate import seen_pairs
from recsys.serve.formats import trace
from recsys.train.measure.timing import DISTINCT_INPUTS
from recsys.train.optimizers.precision import Precision
from recsys.train.recipe import Machine

Inference = Callable[[], tuple[Tensor, Tensor]]
"""Returns ([B, K] items, best first, [B, K] scores) of its batch."""


def inferences(
    model: Bert4Rec,
    sequences: Sequences,
    config: Bert4RecConfig,
    machine: Machine,
    batch_size: int,
) -> Sequence[Inference]:
    """Returns calls that recommend for batches of users in random order.

    Users are repeated if the dataset has too few.

    Args:
        model: the network, which is put into evaluation mode.
        sequences: histories of all users.
        config: settings of the run; `use_torch_jit_trace` takes the deployed network.
        machine: device and precision.
        batch_size: B.
    """
    run = config.run
    model.eval()
    order = np.random.default_rng(run.seed).permutation(len(targets_of(sequences, "test")))
    count = min(DISTINCT_INPUTS, run.inference_benchmark_steps)
    batches = np.resize(order, (count, batch_size))
    causal = config.objective.objective == "causal"
    if run.use_torch_jit_trace:
        network = NextItemNetwork(model, config.lists.top_k, causal).eval()
        return _traced(network, sequences, batches, machine)
    packed_items = pack_items(model)

    def best(
        items: Tensor, layout: SequenceLayout, seen_row: Tensor, seen_item: Tensor
    ) -> tuple[Tensor, Tensor]:
        with machine.precision.autocast():
            scorer = ItemScorer.of_histories(
                model, items, layout, causal=causal, packed=packed_items
            )
        return scorer.top(config.lists.top_k, seen_row, seen_item)

    calls = []
    for rows in batches:
        known = pack_known(model, sequences, "test", rows, causal, machine.device)
        seen = seen_pairs(sequences, "test", rows, machine.device)
        calls.append(functools.partial(best, *known, *seen))
    return calls


def _traced(
    network: NextItemNetwork,
    sequences: Sequences,
    batches: npt.NDArray[np.int64],
    machine: Machine,
) -> Sequence[Inference]:
    """Returns calls of the traced network on padded histories."""
    histories = []
    for rows in batches:
        windows = known_windows(sequences, "test", rows, network.history_length)
        items, layout = pack(sequences, windows, machine.device)
        padded = items.new_zeros(len(rows), network.history_length)
        padded[layout.sequence_of_token(), layout.position_of_token()] = items
        histories.append(padded)
    exclude_seen = torch.ones(batches.shape[1], 1, dtype=torch.bool, device=machine.device)
    with _uncached_autocast(machine.precision):
        traced = trace(network, (histories[0], exclude_seen))
    return [functools.partial(traced, history, exclude_seen) for history in histories]


def _uncached_autocast(precision: Precision) -> contextlib.AbstractContextManager[object]:
    """Returns the autocast of a trace, which records every cast."""
    if precision.dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(precision.device_type, precision.dtype, cache_enabled=False)
