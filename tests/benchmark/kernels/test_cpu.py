# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from benchmark.kernels import cpu as kernels
from benchmark.kernels.case import id_batches, table_major, upper_triangle_columns
from benchmark.kernels.check import TouchedRows, check_error
from benchmark.kernels.embedding import embedding_cases
from benchmark.kernels.interaction import interaction_cases
from benchmark.kernels.sparse_step import sparse_step_cases
from benchmark.kernels.tables import IdBatch, build_tables
from benchmark.page import results_page
from benchmark.peers.torchrec_interaction import has_torchrec
from benchmark.record import read_records
from cuda_ext import ops, reference
from cuda_ext.error_bounds import Bounded

SIZES = [50, 7, 1]
TINY = [
    *("--tables", "3", "--rows", "50", "--dims", "16", "--batch_sizes", "32", "--repeats", "2"),
    *("--matmul_size", "64", "--copy_mib", "1", "--threads", "1", "--allocator", "default"),
]


def test_every_case_is_measured_and_recorded(tmp_path, capsys):
    arguments = [*TINY, "--results", str(tmp_path), "--no-compile"]
    assert kernels.main(arguments) == 0
    expected = {
        "interaction": ({"forward, D=16, B=32", "forward + backward, D=16, B=32"}, {"PyTorch"}),
        "embedding": (
            {
                f"{r}, {d}, D=16, B=32"
                for r in ("sgd", "rowwise_adagrad")
                for d in ("uniform", "zipf")
            },
            {"nn.EmbeddingBag"},
        ),
        "sparse_step": (
            {"uniform, D=16, B=32", "zipf, D=16, B=32"},
            {"ours, unfused", "nn.EmbeddingBag + PyTorch"},
        ),
    }
    for group, (cases, others) in expected.items():
        records = read_records(tmp_path / f"{group}_kernels.jsonl")
        assert {record.candidate for record in records} == cases
        assert {record.metric for record in records} >= {
            "ours",
            "ours, share of the floor",
            *others,
        }
        assert all(record.value is not None and record.value > 0 for record in records)
        assert any("over" in record.metric for record in records) == has_torchrec()
        times = {r.metric: r.value for r in records if r.unit == "ms"}
        assert all(r.direction == "lower" for r in records if r.metric in times)
    assert "copy" in capsys.readouterr().out
    page = results_page(tmp_path)
    assert page.count("Roofline") == 2 * 2  # title and heading; the lookups alone compute nothing
    assert "ours, forward + backward" in page


@pytest.mark.release
def test_a_compiled_reference_is_a_candidate():
    (forward, both) = interaction_cases(8, 4, 2, compiled=True)
    for case in (forward, both):
        assert "torch.compile" in case.candidates
        assert case.candidates["torch.compile"]() is not None


def wrong_interaction(features, bottom=None, **_):
    found = torch.cat([bottom.unsqueeze(1), features], dim=1)
    return reference.dot_interaction(found) * 1.001


def test_a_wrong_interaction_is_found(monkeypatch):
    monkeypatch.setattr(ops, "dot_interaction", wrong_interaction)
    with pytest.raises(ArithmeticError, match="interaction, ours, output"):
        next(interaction_cases(16, 32, 3, compiled=False))


@pytest.mark.parametrize("cases", [embedding_cases, sparse_step_cases])
def test_a_wrong_update_is_found(monkeypatch, cases):
    right = ops.update_rows

    def wrong(*arguments, **settings):
        *lookups, step = arguments
        right(*lookups, step._replace(lr=step.lr * 1.01), **settings)

    monkeypatch.setattr(ops, "update_rows", wrong)
    with pytest.raises(ArithmeticError, match="ours"):
        next(cases(SIZES, 16, [32]))


def test_a_wrong_fused_interaction_is_found(monkeypatch):
    right = ops.gather_dot_interaction
    monkeypatch.setattr(ops, "gather_dot_interaction", lambda *a, **k: right(*a, **k) * 1.001)
    with pytest.raises(ArithmeticError, match=r"ours, unfused, output|ours, output"):
        next(sparse_step_cases(SIZES, 16, [32]))


def test_an_error_is_judged_by_its_bound():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    bound = Bounded(truth, torch.full((2,), 0.01).double())
    check_error("case", (truth + 0.0099).float(), bound)
    with pytest.raises(ArithmeticError, match=r"case: an error is 2\.1 times"):
        check_error("case", (truth + 0.021).float(), bound)
    with pytest.raises(ArithmeticError):
        check_error("case", torch.tensor([1.0, float("nan")]), bound)


def test_layouts_of_the_peers():
    ids = torch.tensor([[1, 5, 7], [2, 6, 8]])
    values, offsets = table_major(ids)
    assert values.tolist() == [1, 2, 5, 6, 7, 8]
    assert offsets.tolist() == [0, 1, 2, 3, 4, 5, 6]
    lower = [(j, i) for j in range(5) for i in range(j)]
    upper = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    assert upper_triangle_columns(5).tolist() == [lower.index((j, i)) for i, j in upper]


def test_touched_rows_number_the_lookups():
    tables = build_tables(SIZES, 4, "sgd")["ours"]
    batches = [IdBatch.from_ids(ids) for ids in id_batches(SIZES, 9, "uniform", count=2)]
    touched = TouchedRows(batches)
    rows = touched.of(tables)
    assert len(rows) < sum(SIZES)
    for batch in batches:
        found = rows[touched.numbers(batch)]
        for feature, table in enumerate(tables.tables()):
            torch.testing.assert_close(found[:, feature], table[batch.ids[:, feature]])


def test_all_implementations_start_from_the_same_weights():
    implementations = build_tables(SIZES, 4, "sgd")
    assert len(implementations) >= 2
    for tables in implementations.values():
        for ours, other in zip(implementations["ours"].tables(), tables.tables(), strict=True):
            assert torch.equal(ours, other)
