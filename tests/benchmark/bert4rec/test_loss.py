# SPDX-License-Identifier: Apache-2.0
import pytest

from benchmark.bert4rec import loss as bert4rec_loss
from benchmark.record import read_records

SMALL = ("--preset=5m", "--items=300", "--batch=3", "--repeats=1")


def test_a_candidate_is_measured_and_all_compute_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bert4rec_loss, "CANDIDATES", {"tied": ("blocks",)})
    results = tmp_path / "results.jsonl"
    assert bert4rec_loss.main([*SMALL, f"--results={results}"]) == 0
    records = read_records(results)
    assert len(records) == 3
    assert all(record.value > 0 for record in records)
    assert len(capsys.readouterr().out.splitlines()) == 1
    losses = []
    for candidate in ("blocks", "slice", "plain"):
        assert bert4rec_loss.main([*SMALL, f"--only=tied:{candidate}"]) == 0
        losses.append([float(text) for text in capsys.readouterr().out.strip("[]\n").split(",")])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
