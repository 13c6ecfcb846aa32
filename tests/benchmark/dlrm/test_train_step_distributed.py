# SPDX-License-Identifier: Apache-2.0
"""The step on two processes beside TorchRec's; that one needs the environment of `make peers`."""

import pytest

from benchmark.dlrm import train_step_distributed
from benchmark.dlrm.train_step_distributed import OurSide, Start, check_training, time_sides
from benchmark.dlrm.train_step_models import SIZES, make_batches
from benchmark.record import read_records
from dlrm.distributed.placement import Placement, TablePlacement
from recsys.train.processes import join_processes
from tests.tools import needs

TABLES = [20, 3, 50]


@needs("TorchRec")
@pytest.mark.multiprocess
def test_all_sides_train_alike_and_are_recorded(tmp_path):
    tiny = ("--models", "small", "--tables", "3", "--rows", "5000", "--samples", "1", "--repeats")
    assert train_step_distributed.main([*tiny, "2", "--results", str(tmp_path)]) == 0
    records = read_records(tmp_path / "train_step_distributed.jsonl")
    assert {record.candidate for record in records} == {"small, zipf, B=2,048"}
    found = {record.metric: record for record in records}
    assert found["ours"].config["processes"] == 2
    for name in ("ours", "TorchRec", "TorchRec, pipelined"):
        throughput = found[f"{name}, throughput"].value
        assert throughput == pytest.approx(2048 / (found[name].value / 1e3), rel=0.5)
    assert found["ours over TorchRec"].value > 0


def test_another_start_is_found():
    config = SIZES["small"]
    placement = Placement(1, tuple(TablePlacement(n, "whole", 0) for n in TABLES))
    batches = make_batches(config, TABLES, 64, "zipf")
    with join_processes("cpu", 1, needs_group=True) as processes:
        sides = {
            name: OurSide(config, Start(config, TABLES), placement, 0) for name in ("ours", "other")
        }
        check_training(sides, batches, processes)
        seconds = time_sides(sides, batches, processes, 2)
        assert {name: len(times) for name, times in seconds.items()} == {"ours": 2, "other": 2}
        sides["other"].train(batches[:1])
        with pytest.raises(ArithmeticError, match="losses of the same steps"):
            check_training(sides, batches, processes)


def test_without_torchrec_it_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr(train_step_distributed, "has_torchrec", lambda: False)
    with pytest.raises(SystemExit):
        train_step_distributed.main([])
    assert "make peers" in capsys.readouterr().err
