# SPDX-License-Identifier: Apache-2.0
"""Pages of tables that are mapped files: which come in, which go, and that no value changes."""

import os

import pytest
import torch

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import randn
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

PAGE = os.sysconf("SC_PAGE_SIZE")


def mapped(path, values):
    """Writes a table to a file and maps it."""
    path.write_bytes(values.numpy().tobytes())
    return torch.from_file(str(path), True, values.numel()).view(values.shape)


def marks_of(table):
    return torch.zeros(-(-table.nbytes // PAGE), dtype=torch.uint8)


# Rows that divide a page, that cross pages, that are pages, and that are longer.
@pytest.mark.parametrize("dim", [1, 16, 65, 1024, 2500])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_marks_are_those_of_the_reference(tmp_path, dim, dtype):
    tables = [mapped(tmp_path / name, randn(4000, dim)) for name in ("table", "moment")]
    marks, expected = marks_of(tables[0]), marks_of(tables[0])
    generator = torch.Generator().manual_seed(dim)
    for batch in range(4):
        rows = torch.randint(0, 4000, (batch * 7, 3), generator=generator, dtype=dtype)
        count = ops.bring_in_rows(tables, marks, rows)
        assert count == reference.mark_pages(expected, rows, dim * 4, PAGE)
        assert torch.equal(marks, expected)
        if batch:
            ops.drop_old_pages(tables, marks)
            reference.age_pages(expected)
            assert torch.equal(marks, expected)
    for table in tables:
        assert torch.equal(table, randn(4000, dim))


def test_changes_survive_in_the_file(tmp_path):
    values = randn(3000, 32)
    table = mapped(tmp_path / "table", values.clone())
    marks = marks_of(table)
    rows = torch.arange(0, 3000, 7)
    ops.bring_in_rows([table], marks, rows)
    table[rows] += 1
    for _ in range(2):  # recent pages go with the second call
        ops.drop_old_pages([table], marks)
    for piece in ops.pieces(table):  # drops every page
        piece.mul_(2)
    values[rows] += 1
    values *= 2
    assert not marks.any()
    assert torch.equal(table, values)
    assert (tmp_path / "table").read_bytes() == values.numpy().tobytes()


@pytest.mark.parametrize("row", [-1, 20])
def test_rows_outside_the_table_are_refused(tmp_path, row):
    table = mapped(tmp_path / "table", randn(20, 8))
    with pytest.raises(RuntimeError, match=f"row {row} is outside"):
        ops.bring_in_rows([table], marks_of(table), torch.tensor([0, row]))


def test_tables_that_do_not_fit_the_marks_are_refused(tmp_path):
    table = mapped(tmp_path / "table", randn(4000, 8))
    marks, rows = marks_of(table), torch.tensor([1])
    for tables, wrong in (
        ([], marks),
        ([table], marks[1:]),
        ([table], marks.to(torch.int32)),
        ([table, mapped(tmp_path / "other", randn(4000, 9))], marks),
        ([mapped(tmp_path / "one", randn(4001, 8))[1:]], marks),
    ):
        with pytest.raises(RuntimeError):
            ops.bring_in_rows(tables, wrong, rows)
        with pytest.raises(RuntimeError):
            ops.drop_old_pages(tables, wrong)
