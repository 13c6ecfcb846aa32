# SPDX-License-Identifier: Apache-2.0
"""Placements cover every row once, survive their file, and are planned as their costs say."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from dlrm.config import ModelConfig
from dlrm.distributed.cost import GIB, Hardware, Workload, predict
from dlrm.distributed.placement import KINDS, Placement, PlacementError, TablePlacement
from dlrm.distributed.planner import plan
from dlrm.scripts.plan_placement import CRITEO_CAP_40M, CRITEO_LIMIT_3, CRITEO_LIMIT_15, main
from recsys.data.feature_spec import FeatureSpec
from tests.dlrm.ranks import placement_of
from tests.harness import assert_tells, refusal


def workload(sizes, batch=8192, **more):
    return Workload.of(ModelConfig(), sizes, batch, **more)


def machine(world_size, gib=80.0, **more):
    settings = {
        "ranks_per_node": 8,
        "memory_bytes_per_s": 2e12,
        "node_bytes_per_s": 300e9,
        "network_bytes_per_s": 40e9,
        "flop_per_s": 300e12,
    }
    return Hardware(world_size=world_size, memory_bytes=gib * GIB, **(settings | more))


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_rows_lie_on_one_rank_each_and_fill_its_share_without_gaps(rows, ranks):
    for table in range(ranks + 1):
        tables = (TablePlacement(rows, "rows"),) * (table + 1)
        placement = Placement(ranks, tables)
        ids = np.arange(rows)
        owners = placement.owner(table, ids)
        for rank in range(ranks):
            mine = ids[owners == rank]
            assert placement.local_rows(table, rank) == len(mine)
            assert (mine // ranks).tolist() == list(range(len(mine)))


def test_the_first_rows_of_tables_lie_on_different_ranks():
    placement = placement_of(4, (100,) * 4, ("rows",) * 4)
    first = [int(placement.owner(i, np.array([0]))[0]) for i in range(4)]
    assert sorted(first) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        (TablePlacement(10, "whole", 2), ["rank 2", 0, 1]),
        (TablePlacement(10, "whole"), ["rank None"]),
        (TablePlacement(10, "rows", 1), ["rows", "rank"]),
        (TablePlacement(0, "rows"), ["rows", 1, 0]),
        (TablePlacement(10, "halves"), ["kind", "replicate, whole, rows", "halves"]),
    ],
)
def test_impossible_placements_are_refused(table, facts):
    with refusal("table 1", *facts, kind=PlacementError):
        Placement(2, (TablePlacement(10, "replicate"), table))


SIZES = (7, 90, 1000)


@pytest.fixture
def file(tmp_path):
    """A placement of tables of SIZES on two ranks."""
    placement_of(2, SIZES, ("replicate", 1, "rows")).save(tmp_path / "placement.json")
    return tmp_path / "placement.json"


def test_a_file_gives_the_placement_back(file):
    assert Placement.load(file, SIZES, 2) == placement_of(2, SIZES, ("replicate", 1, "rows"))


@pytest.mark.parametrize(
    ("sizes", "ranks", "facts"),
    [
        (SIZES, 4, [2, 4]),
        ((7, 91, 1000), 2, ["table 1", 90, 91]),
        ((7, 90), 2, [3, 2]),
    ],
)
def test_a_file_of_another_model_is_refused(file, sizes, ranks, facts):
    with refusal(*facts, kind=PlacementError, path=file):
        Placement.load(file, sizes, ranks)


ROWS = {"rows": 7, "kind": "rows"}
KEYS = ["table 0", "rows", "kind", "rank"]


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (None, ["JSON"]),
        ({"tables": {}}, ["tables", "{}"]),
        ({"tables": [7]}, [*KEYS, 7]),
        ({"tables": [{"rows": 7}]}, [*KEYS, {"rows": 7}]),
        ({"tables": [ROWS | {"kindd": "rows"}]}, [*KEYS, "'kindd'"]),
        ({"tables": [ROWS | {"rows": 7.0}]}, ["table 0", "rows", 7.0]),
        ({"tables": [ROWS | {"rows": "7"}]}, ["table 0", "rows", "'7'"]),
        ({"tables": [ROWS | {"kind": ["rows"]}]}, ["table 0", "kind", ["rows"]]),
        ({"tables": [ROWS | {"kind": "whole", "rank": True}]}, ["table 0", "rank", True]),
        ({"world_size": "2"}, ["world_size", "'2'"]),
        ({"world_size": None}, ["world_size", None]),
    ],
)
def test_a_damaged_file_is_refused(file, values, facts):
    text = "{" if values is None else json.dumps(json.loads(file.read_text()) | values)
    file.write_text(text)
    with refusal(file, *facts, kind=PlacementError):
        Placement.load(file, SIZES, 2)


def brute_force(sizes, ranks, load, devices):
    """Returns the shortest predicted step over every placement that fits."""
    best = float("inf")
    for kinds in itertools.product(("replicate", "rows", *range(ranks)), repeat=len(sizes)):
        placement = placement_of(ranks, sizes, kinds)
        cost = predict(placement, load, devices)
        if cost.table_bytes.max() <= devices.table_bytes:
            best = min(best, cost.seconds)
    return best


@pytest.mark.parametrize("sizes", [(10, 5000, 60_000, 200_000), (9, 9, 9), (300_000, 299_000)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_plans_come_close_to_the_best_of_all_placements(sizes, ranks):
    load = workload(sizes, 4096)
    for gib in (1.0, 0.2):
        devices = machine(ranks, gib)
        found = plan(load, devices)
        assert found.cost.table_bytes.max() <= devices.table_bytes
        assert found.cost.seconds <= 1.1 * brute_force(sizes, ranks, load, devices)


@pytest.mark.parametrize(
    ("sizes", "ranks", "gib"),
    [
        (CRITEO_LIMIT_15, 8, 40),
        (CRITEO_LIMIT_15, 1, 141),
        (CRITEO_LIMIT_3, 1, 141),
        (CRITEO_LIMIT_3, 8, 80),
        (CRITEO_CAP_40M, 16, 80),
        (CRITEO_CAP_40M, 8, 80),
        (CRITEO_CAP_40M, 8, 16),
    ],
)
def test_published_models_fit_and_balance(sizes, ranks, gib):
    devices = machine(ranks, gib)
    found = plan(workload(sizes, 65536, wire_bytes=2), devices)
    assert found.cost.table_bytes.max() <= devices.table_bytes
    assert found.cost.imbalance < 0.1
    assert [t.rows for t in found.placement.tables] == list(sizes)
    kinds = [t.kind for t in found.placement.tables]
    if ranks > 1:
        assert kinds[sizes.index(min(sizes))] == "replicate"
        assert kinds[sizes.index(max(sizes))] != "replicate"


def test_a_table_larger_than_a_device_is_spread_and_too_large_ones_are_refused():
    devices = machine(8, 10.0)
    rows = int(12 * GIB / 512)
    found = plan(workload((rows, 1000)), devices)
    assert found.placement.tables[0].kind == "rows"
    with refusal(17, "`max_table_size`", kind=PlacementError):
        plan(workload((rows * 12, 1000)), devices)


def test_costs_count_what_travels():
    sizes = (1_000_000, 2_000_000, 3_000_000)
    load = workload(sizes, 4000, wire_bytes=2)
    cost = predict(placement_of(4, sizes, ("rows", 2, "replicate")), load, machine(4))
    vector = 128 * 2
    by_rows = 1000 * 3 / 4 * vector
    assert cost.vectors_out.tolist() == [by_rows, by_rows, by_rows + 3000 * vector, by_rows]
    assert cost.lookups.tolist() == [2000, 2000, 6000, 2000]
    ids = 4000 * 4 + 1000 * 4  # of the spread table all, of the copy its own
    assert cost.id_bytes.tolist() == [ids, ids, ids + 4000 * 4, ids]
    held = 250_000 + 3_000_000
    assert (cost.table_bytes / 512).tolist() == [held, held, held + 2_000_000, held]


A100 = ("--hbm_gib=80", "--hbm_gb_per_s=1500", "--tflop_per_s=140")
A100 += ("--node_gb_per_s=200", "--network_gb_per_s=25")


@pytest.mark.parametrize(
    ("tables", "world_size", "device", "batch_size"),
    [
        ("criteo_limit_3", 8, "A100-80", 65536),
        ("criteo_cap_40m", 16, "A100-80", 65536),
        ("criteo_limit_3", 1, "H200", 65536),
        ("criteo_limit_3", 8, "H200", 65536),
        ("criteo_limit_3", 64, "H200", 65536),
        ("criteo_limit_3", 8, "H200", 524288),
        ("criteo_limit_3", 64, "H200", 4194304),
    ],
)
def test_the_documented_predictions_are_those_of_the_command(
    capsys, tables, world_size, device, batch_size
):
    arguments = [f"--tables={tables}", f"--world_size={world_size}", f"--batch_size={batch_size}"]
    assert main(["plan", *arguments, *(A100 if device == "A100-80" else ())]) == 0
    first, *rows, last = capsys.readouterr().out.splitlines()
    kinds = re.findall(r"(\d+) (?:replicated|whole|spread)", first)
    gib = [float(row.split("|")[3]) for row in rows[2:]]
    held = f"{min(gib):.1f}" if max(gib) - min(gib) < 0.05 else f"{min(gib):.1f} to {max(gib):.1f}"
    rate = float(re.search(r"([\d,]+) samples/s", last)[1].replace(",", "")) / 1e6
    exchanged = re.search(r"([\d,]+) bytes of", last)[1]
    ids = re.search(r"up to ([\d.]+) bytes", last)[1]
    assert_tells(last, "0.0%")
    row = [
        tables.removeprefix("criteo_"), f"{world_size} x {device}", f"{batch_size:,}",
        ", ".join(kinds), held, ids, exchanged, f"{rate:.1f} M",
    ]  # fmt: skip
    document = Path(__file__).resolve().parents[2] / "docs" / "several_devices.md"
    assert f"| {' | '.join(row)} |" in document.read_text()


def test_the_command_plans_a_dataset_for_machines_that_are_not_there(tmp_path, capsys):
    FeatureSpec.criteo((100, 2_000_000, 30_000_000)).save(tmp_path)
    file = tmp_path / "placement.json"
    arguments = [f"--dataset={tmp_path}", "--world_size=4", f"--placement={file}"]
    assert main(["plan", *arguments]) == 0
    assert_tells(capsys.readouterr().out, 3, 4, 1)
    loaded = Placement.load(file, (100, 2_000_000, 30_000_000), 4)
    assert {t.kind for t in loaded.tables} <= set(KINDS)
    assert main(["plan", "--tables=5,x"]) == 2
    assert_tells(capsys.readouterr().err, "--tables", "5,x")
    assert main(["plan", "--hbm_gib=1", "--world_size=2"]) == 2
    assert_tells(capsys.readouterr().err, 2, 18, "`max_table_size`")
