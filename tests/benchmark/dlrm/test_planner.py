# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured steps, by the benchmark's own program."""

import pytest

from benchmark.dlrm import planner
from benchmark.record import read_records


@pytest.mark.release
@pytest.mark.multiprocess
def test_every_placement_is_predicted_measured_and_recorded(tmp_path, capfd):
    few = ["--repeats=2", "--steps=3", "--batch_size=256", f"--results={tmp_path}"]
    assert planner.main(few) == 0
    records = read_records(tmp_path / "planner.jsonl")
    values = {(r.candidate, r.metric): r.value for r in records}
    for distribution in ("uniform", "zipf"):
        for name in (
            *("planned", "planned, short of memory", "all whole", "all by rows", "all replicated"),
        ):
            case = f"{name}, {distribution}"
            assert values[case, "step"] > 0
            # Rates of a shared machine wander; an order of magnitude is a broken cost model.
            assert 0.1 < values[case, "predicted over measured"] < 10, case
    assert values["by the programs", "exported model"] > 0
    assert "| planned | " in capfd.readouterr().out


def test_short_memory_changes_the_plan():
    workload = planner.workload_of(
        planner.DlrmConfig(
            model=planner.SIZES["small"],
            data=planner.DataConfig(dataset_type="synthetic_gpu", batch_size=4096),
        ),
        planner.TABLES,
    )
    machine = planner.Machine(
        world_size=2,
        ranks_per_node=2,
        memory_bytes=1e9,
        memory_bytes_per_s=1e10,
        node_bytes_per_s=1e9,
        network_bytes_per_s=1e9,
        flop_per_s=1e11,
    )
    placed = planner.placements(workload, machine)
    held = {
        name: max(
            sum(p.local_rows(i, rank) for i in range(len(planner.TABLES))) for rank in range(2)
        )
        for name, p in placed.items()
    }
    assert held["planned, short of memory"] <= planner.SHORT_OF_MEMORY * sum(planner.TABLES)
    assert held["all replicated"] == sum(planner.TABLES)
