# SPDX-License-Identifier: Apache-2.0
"""The parts of the BERT4Rec demo that run without training."""

import numpy as np
import pyarrow as pa
import pytest

from benchmark import demo, demo_bert4rec
from recsys.data.sequences import RawIds, Sequences, write_sequences


def test_histories_are_written_in_raw_ids(tmp_path):
    sequences = Sequences(np.array([1, 2, 3, 3, 1, 2, 2], np.int32), np.array([0, 3, 7]), 3)
    items = RawIds(pa.array(["x", "y9", "z"]), np.array([2, 3, 2]))
    write_sequences(tmp_path, sequences, RawIds(pa.array(["u", "v"]), np.array([3, 4])), items)
    demo_bert4rec.write_histories(tmp_path, tmp_path / "histories.txt", 2)
    assert (tmp_path / "histories.txt").read_text() == "x y9 z\nz x y9 y9\n"


def test_the_report_puts_the_model_beside_popularity():
    figures = {
        f"test_{name}_{metric}": value
        for name, value in (("full", 0.5), ("popularity", 0.25))
        for metric in ("hr@1", "hr@10", "ndcg@10")
    }
    head, model, popularity = demo_bert4rec.report(figures).splitlines()
    assert head.split()[-3:] == ["HR@1", "HR@10", "NDCG@10"]
    assert model.split() == ["BERT4Rec", "0.5000", "0.5000", "0.5000"]
    assert popularity.split() == ["popularity", "0.2500", "0.2500", "0.2500"]


def test_a_step_that_fails_ends_the_demo(capfd):
    with pytest.raises(SystemExit, match="failed with exit code 2"):
        demo.run_step("Train", "bert4rec.scripts.main", "--mode=recommend", "--num_threads=1")
    assert "$ python -m bert4rec.scripts.main --mode=recommend" in capfd.readouterr().out
