# SPDX-License-Identifier: Apache-2.0
"""Latency and throughput of recommending, for each batch size."""

import dataclasses

import numpy as np
from torch import Tensor

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import known_windows, pack
from bert4rec.model.scoring import Queries
from bert4rec.nn.layout import SequenceLayout
from bert4rec.rules import mask_item, room_for_items
from bert4rec.train.evaluate import seen_pairs
from bert4rec.train.run import Announce, Session
from recsys.train.latency import DISTINCT_INPUTS, TABLE_HEAD, InferenceFigures, measure_latency


@dataclasses.dataclass(frozen=True, slots=True)
class _Histories:
    """Histories on the device, and what is not to be recommended again."""

    items: Tensor
    layout: SequenceLayout
    seen_row: Tensor
    seen_item: Tensor


def inference_benchmark(config: Bert4RecConfig, announce: Announce) -> list[InferenceFigures]:
    """Measures how long the best unseen items of some users take, from histories on the device.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
    """
    session = Session.start(config, announce, draws_negatives=False)
    run = session.config.run
    session.model.eval()

    def infer(batch: _Histories) -> None:
        with session.precision.autocast():
            queries = Queries.of_histories(
                session.model, batch.items, batch.layout, causal=session.predicts_causally
            )
        queries.top(run.top_k, batch.seen_row, batch.seen_item)

    announce(f"Best {run.top_k} of {session.sequences.num_items} items")
    announce(TABLE_HEAD)
    found = []
    values: dict[str, float] = {}
    for batch_size in run.inference_benchmark_batch_sizes:
        batches = _batches(session, batch_size)
        steps = run.inference_benchmark_steps
        figures = measure_latency(infer, batches, batch_size, session.device, steps)
        found.append(figures)
        announce(figures.table_row())
        values |= figures.log_values()
    session.log.record((), values)
    return found


def _batches(session: Session, batch_size: int) -> list[_Histories]:
    """Returns batches of users in random order; users come again where they are too few."""
    sequences, device = session.sequences, session.device
    causal = session.predicts_causally
    room = room_for_items(session.model.max_len, causal)
    order = np.random.default_rng(session.config.run.seed).permutation(sequences.num_users)
    count = min(DISTINCT_INPUTS, session.config.run.inference_benchmark_steps)
    found = []
    for users in np.resize(order, (count, batch_size)):
        windows = known_windows(sequences, "test", users, room)
        append = None if causal else mask_item(sequences.num_items)
        packed = pack(sequences, windows, device, append)
        found.append(_Histories(*packed, *seen_pairs(sequences, "test", users, device)))
    return found
