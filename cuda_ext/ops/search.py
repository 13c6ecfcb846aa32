# SPDX-License-Identifier: Apache-2.0
"""Exact search: finds the rows whose products with a query are largest.

A scan of an 8-bit copy of the table gives an upper bound for each row; only rows whose bound is
large enough are multiplied in float64. The result equals that of `reference.top_rows`, also for
equal products.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.registration import fake_kernel, is_compiled_for, kernels
from cuda_ext.pages import use_huge_pages

BLOCK_ROWS = 64
"""Rows of a block of codes, as in `csrc/search/top_rows_arguments.h`."""
MOST_COLUMNS = 1024
"""Most columns with which the sums of a scan fit 32 bits."""
_ROWS_AT_ONCE = 1 << 12
"""Rows that are rounded at once, in float64."""
_LARGEST_CODE = 127
_SMALLEST_SCALE = 2.0**-60
"""Scale below which products of float32 might underflow; such rows have small codes."""


@dataclasses.dataclass(frozen=True, slots=True)
class PackedRows:
    """A table and the copy of it that `top_rows` scans.

    Attributes:
        table: [R, D] float32; the given one, if it had that type.
        codes: [blocks, D / 4 rounded up, 64, 4] uint8: 4 columns of each of 64 rows; code c stands
            for (c - 128) times the scale of its row.
        scales: [blocks x 64] float32.
        biases: [blocks x 64] float32, -inf beyond the last row.
        residual: largest distance between a row and the values of its codes, in units of its scale.
        code_norm: largest norm of a row's codes.
    """

    table: Tensor
    codes: Tensor
    scales: Tensor
    biases: Tensor
    residual: float
    code_norm: float

    @property
    def num_bytes(self) -> int:
        """Memory that the copies take, in addition to the table."""
        copies = (self.codes, self.scales, self.biases)
        return sum(tensor.numel() * tensor.element_size() for tensor in copies)


def scans_rows(table: Tensor) -> bool:
    """Returns True if kernels search the rows of a table [R, D]."""
    return (
        table.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and 1 <= table.shape[1] <= MOST_COLUMNS
        and table.device.type == "cpu"
        and is_compiled_for(table, dtype=torch.float32)
    )


def pack_rows(table: Tensor, bias: Tensor) -> PackedRows:
    """Copies a table in 8 bits, with bounds of the errors.

    Args:
        table: [R, D] float32, float16 or bfloat16 on a CPU; must not change afterwards.
        bias: [R] to add to the products of each row.

    Raises:
        ValueError: a number is not finite, or kernels do not search a table of this type, shape and
            device.
    """
    if not scans_rows(table):
        raise ValueError(
            f"cannot search a table [{table.shape[0]}, {table.shape[1]}] of {table.dtype} on "
            f"{table.device}: expected 1 to {MOST_COLUMNS} columns of float32, float16 or bfloat16 "
            "on a CPU with compiled kernels"
        )
    table, bias = table.detach().to(torch.float32), bias.detach().to(torch.float32)
    if table.stride(1) != 1:
        table = table.contiguous()
    num_rows, dim = table.shape
    groups, blocks = -(-dim // 4), -(-num_rows // BLOCK_ROWS)
    codes = torch.empty(blocks, groups, BLOCK_ROWS, 4, dtype=torch.uint8)
    scales = torch.zeros(blocks * BLOCK_ROWS)
    biases = torch.full((blocks * BLOCK_ROWS,), -torch.inf)
    for tensor in (codes, scales, biases):
        use_huge_pages(tensor)
    biases[:num_rows] = bias
    residual = code_norm = 0.0
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        rows = table[start : start + _ROWS_AT_ONCE].double()
        if not bool((rows.sum(1) + bias[start : start + _ROWS_AT_ONCE]).isfinite().all()):
            _refuse(rows, bias, start)
        scale = (rows.abs().amax(1) / _LARGEST_CODE).clamp(min=_SMALLEST_SCALE).float()
        exact = scale.double().unsqueeze(1)
        levels = (rows / exact).round_().clamp_(-_LARGEST_CODE, _LARGEST_CODE)
        lost = (rows - levels * exact).norm(dim=1) / exact.squeeze(1)
        residual = max(residual, float(lost.max()))
        code_norm = max(code_norm, float(levels.norm(dim=1).max()))
        whole = torch.full((-(-len(rows) // BLOCK_ROWS) * BLOCK_ROWS, 4 * groups), 128.0)
        whole[: len(rows), :dim] += levels
        first = start // BLOCK_ROWS
        in_blocks = whole.to(torch.uint8).view(-1, BLOCK_ROWS, groups, 4).transpose(1, 2)
        codes[first : first + len(in_blocks)] = in_blocks
        scales[start : start + len(rows)] = scale
    # The float64 arithmetic above rounds too, by less than this.
    return PackedRows(table, codes, scales, biases, residual * (1 + 1e-9), code_norm * (1 + 1e-9))


def _refuse(rows: Tensor, bias: Tensor, start: int) -> None:
    values = torch.cat([rows, bias[start : start + len(rows)].double().unsqueeze(1)], dim=1)
    wrong = (~values.isfinite()).nonzero()
    row, column = wrong[0].tolist()
    name = f"column {column}" if column < rows.shape[1] else "bias"
    raise ValueError(f"row {start + row}, {name}: {values[row, column]} is not finite")


def top_rows(
    packed: PackedRows,
    queries: Tensor,
    count: int,
    excluded_query: Tensor | None = None,
    excluded_row: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the rows with the largest products; see `reference.top_rows`.

    Queries have a type that float32 can represent, and get no gradient. If `excluded_query` or
    `excluded_row` is None, no row is left out.

    Returns:
        (rows, products, both as in the reference, [B] int64 number of rows multiplied in float64).

    Raises:
        RuntimeError: a query is not finite, or shapes do not match.
    """
    num_rows = packed.table.shape[0]
    if excluded_query is None or excluded_row is None:
        excluded_query = excluded_row = torch.empty(0, dtype=torch.int64)
    if not is_compiled_for(queries, dtype=torch.float32):
        bias = packed.biases[:num_rows]
        rows, scores = reference.top_rows(
            queries, packed.table, bias, count, excluded_query, excluded_row
        )
        return rows, scores, torch.full((len(queries),), num_rows)
    inside = (excluded_row >= 0) & (excluded_row < num_rows)
    excluded_query, excluded_row = excluded_query[inside], excluded_row[inside]
    order = (excluded_query * num_rows + excluded_row).argsort()
    counts = torch.bincount(excluded_query, minlength=len(queries))
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    best: tuple[Tensor, Tensor, Tensor] = kernels.top_rows(
        *(queries.detach().to(torch.float32).contiguous(), packed.table, packed.codes),
        *(packed.scales, packed.biases, packed.residual, packed.code_norm),
        *(excluded_row[order], offsets, count),
    )
    return best


@fake_kernel("top_rows")
def _(queries: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, offsets, count = others
    rows = offsets.new_empty(queries.shape[0], count)
    return rows, queries.new_empty(queries.shape[0], count), offsets.new_empty(queries.shape[0])
