# SPDX-License-Identifier: Apache-2.0
"""Exact search in a large catalogue, compared with scoring every item, timed and checked.

Candidates take turns, one query at a time. Then --queries lists are compared with those of all
scores in float64. Popularity determines the lengths and biases of `trained` vectors; `equal`
vectors have one length and no bias, so the search cannot rule out a row by its length.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmark.case import Case, Group, Key, Measure, Values
from benchmark.record import Record
from benchmark.stopwatch import in_turns, seconds_per_call
from bert4rec.model.scoring import ItemScorer
from cuda_ext import ops
from recsys.settings import setting

CASES = ("trained", "equal")
IDENTICAL, MULTIPLIED = "identical to float64", "multiplied"
_QUERIES_AT_ONCE = 64
_ITEMS_AT_ONCE = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TopItems(Case):
    """Searches for the best items, one history at a time."""

    repeats: ClassVar[int] = 51
    lower: ClassVar[frozenset[str]] = frozenset((MULTIPLIED,))

    items: int = setting(2_200_000, "Items of the catalogue")
    dim: int = setting(64, "Columns")
    top_k: int = setting(10, "Items per list")
    queries: int = setting(10_000, "Lists to check against scores in float64")
    threads: int = setting(2, "Threads of PyTorch")

    def config(self) -> dict[str, Any]:
        """Returns the sizes."""
        sizes = {"items": self.items, "columns": self.dim, "K": self.top_k}
        return sizes | {"threads": self.threads, "compared": self.queries}

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields the times and the comparison of each kind of vectors."""
        torch.set_num_threads(self.threads)
        generator = torch.Generator().manual_seed(1)
        queries = torch.randn(self.queries, self.dim, generator=generator)
        for case in CASES:
            items, bias = make_items(case, self.items, self.dim)
            packed = ops.pack_rows(items, bias)
            scorers = {"plain": None, "exact": packed}
            yield Group(
                candidates={
                    name: self._timer(Key(case, name, "ms"), queries, items, bias, used)
                    for name, used in scorers.items()
                },
                warmup=2,
            )
            check = functools.partial(self._check, case, queries, items, bias, packed)
            yield Group(candidates={"check": check}, once=True)

    def _timer(
        self, key: Key, queries: Tensor, items: Tensor, bias: Tensor, packed: ops.PackedRows | None
    ) -> Measure:
        nothing = torch.empty(0, dtype=torch.int64)

        def top(query: Tensor) -> object:
            return ItemScorer(query, items, bias, packed).top(self.top_k, nothing, nothing)

        work = in_turns(top, ((queries[i : i + 1],) for i in range(self.queries)))
        return lambda _seed: {key: 1e3 * seconds_per_call(work)}

    def _check(
        self,
        case: str,
        queries: Tensor,
        items: Tensor,
        bias: Tensor,
        packed: ops.PackedRows,
        _seed: int,
    ) -> Values:
        """Compares lists with those of all scores in float64."""
        identical = scored = 0
        for start in range(0, self.queries, _QUERIES_AT_ONCE):
            some = queries[start : start + _QUERIES_AT_ONCE]
            rows, _, multiplied = ops.top_rows(packed, some, self.top_k)
            expected = exact_items(some, items, bias, self.top_k)
            identical += int((rows == expected).all(1).sum())
            scored += int(multiplied.sum())
        return {
            Key(case, IDENTICAL, "lists"): float(identical),
            Key(case, MULTIPLIED, "%"): 100 * scored / self.queries / self.items,
        }

    def fault(self, records: Sequence[Record]) -> str:
        """Returns how many lists differ."""
        identical = [r.value or 0.0 for r in records if r.metric == IDENTICAL]
        differing = len(identical) * self.queries - sum(identical)
        return f"{differing:.0f} lists differ from those in float64" if differing else ""


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


CASE = TopItems
