# SPDX-License-Identifier: Apache-2.0
"""Times and checks exact lists of a large catalogue beside plain scoring.

    python -m benchmark.bert4rec.top_items --items 2200000 --queries 10000

Candidates take turns, a query at a time. Then --queries lists are compared with those of all scores
in float64. `trained` vectors have lengths and biases by popularity, `equal` ones have the same
length and no bias, where no row is out of reach by its length.
"""

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmark.kernels.stopwatch import time_interleaved
from benchmark.record import RESULTS, Direction, Record, make_record, write_records
from benchmark.report import render_table
from bert4rec.model.scoring import ItemScorer
from cuda_ext import ops

BENCHMARK = "bert4rec_top_items"
CASES = ("trained", "equal")
METRICS: Mapping[str, tuple[str, Direction]] = {
    "plain": ("ms", "lower"),
    "exact": ("ms", "lower"),
    "identical to float64": ("lists", "higher"),
    "multiplied": ("%", "lower"),
}
_QUERIES_AT_ONCE = 64
_ITEMS_AT_ONCE = 1 << 16


def make_items(case: str, num_items: int, dim: int) -> tuple[Tensor, Tensor]:
    """Draws [I, D] vectors and [I] biases."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(num_items, dim, generator=generator))
    if case == "equal":
        return vectors, torch.zeros(num_items)
    popularity = torch.randn(num_items, generator=generator)
    return vectors * torch.exp(0.3 * popularity).unsqueeze(1), 0.1 * popularity


def exact_items(queries: Tensor, items: Tensor, bias: Tensor, count: int) -> Tensor:
    """Returns the [B, K] best rows by scores in float64."""
    scores, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(items), _ITEMS_AT_ONCE):
        block = slice(start, start + _ITEMS_AT_ONCE)
        product = torch.addmm(bias[block].double(), queries.double(), items[block].double().t())
        best, index = product.topk(min(count, product.shape[1]), dim=1)
        scores = torch.cat([scores.double(), best], dim=1)
        rows = torch.cat([rows, index + start], dim=1)
    order = scores.topk(count, dim=1).indices
    return rows.gather(1, order)


def measure(case: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Times and checks a case; returns the values of each metric."""
    items, bias = make_items(case, options.items, options.dim)
    packed = ops.pack_rows(items, bias)
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(options.queries, options.dim, generator=generator)
    nothing = torch.empty(0, dtype=torch.int64)

    def candidate(packed: ops.PackedRows | None) -> Callable[[], object]:
        turns = itertools.cycle(range(options.queries))

        def top() -> object:
            query = next(turns)
            scorer = ItemScorer(queries[query : query + 1], items, bias, packed)
            return scorer.top(options.top_k, nothing, nothing)

        return top

    seconds = time_interleaved(
        {"plain": candidate(None), "exact": candidate(packed)}, options.repeats
    )
    identical = scored = 0
    for start in range(0, options.queries, _QUERIES_AT_ONCE):
        some = queries[start : start + _QUERIES_AT_ONCE]
        rows, _, multiplied = ops.top_rows(packed, some, options.top_k)
        expected = exact_items(some, items, bias, options.top_k)
        identical += int((rows == expected).all(1).sum())
        scored += int(multiplied.sum())
    return {
        "plain": [1e3 * s for s in seconds["plain"]],
        "exact": [1e3 * s for s in seconds["exact"]],
        "identical to float64": [float(identical)],
        "multiplied": [100 * scored / options.queries / options.items],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, checks, prints and records; 1 where a list differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=2_200_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--top_k", type=int, default=10)
    parser.add_argument("--queries", type=int, default=10_000, help="lists that are compared")
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS / f"{BENCHMARK}.jsonl")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    settings = {"items": options.items, "columns": options.dim, "K": options.top_k}
    config = settings | {"threads": options.threads, "compared": options.queries}
    records: list[Record] = []
    differing = 0.0
    for case in CASES:
        values = measure(case, options)
        differing += options.queries - values["identical to float64"][0]
        for metric, samples in values.items():
            unit, direction = METRICS[metric]
            records.append(
                make_record(
                    BENCHMARK, case, metric, samples, unit=unit, direction=direction, config=config
                )
            )
    print(render_table(records), flush=True)
    write_records(options.results, records)
    return int(differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
