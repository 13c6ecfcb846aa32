# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's layout from several ranks: the files of one process, byte for byte, for any number."""

import pytest
import torch

from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.model import nvidia_checkpoint
from dlrm.model.row_blocks import whole_blocks
from dlrm.model.weights import OpenedCheckpoint
from recsys.train.processes import Processes
from tests.dlrm.ranks import distributed, placement, single
from tests.harness import run_ranks

pytestmark = pytest.mark.multiprocess

CONFIG = {"embedding_dim": 8, "bottom_mlp_sizes": (16, 8), "top_mlp_sizes": (32, 1)}
NAMES = ("mixed", "all by rows", "all on one", "all copies")


def save_on_ranks(rank, world_size, folder):
    """Saves the same model under several placements, each into a folder of the same name."""
    processes = Processes(rank, world_size, rank)
    for name in NAMES:
        model = distributed("joint_fused", placement(name, world_size), rank)
        parent = folder / name.replace(" ", "_")
        if rank == 0:
            parent.mkdir()
        processes.barrier()
        for step in (3, 7):  # the second replaces the first
            nvidia_checkpoint.save(parent / "saved", model, 1, step, CONFIG, processes)


def load_and_save_on_ranks(rank, world_size, source, folder):
    placed = placement("mixed", world_size)
    model = distributed("joint_fused", placed, rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    OpenedCheckpoint.open(source).load_into(model)
    processes = Processes(rank, world_size, rank)
    nvidia_checkpoint.save(folder / "saved", model, 1, 7, CONFIG, processes)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_are_those_of_one_process(tmp_path):
    alone = tmp_path / "alone"
    nvidia_checkpoint.save(alone / "saved", single("joint_fused"), 1, 7, CONFIG)
    expected = contents(alone / "saved")
    assert len(expected) == 6 * 2 + 4
    run_ranks(2, save_on_ranks, 2, tmp_path)
    for name in NAMES:
        folder = tmp_path / name.replace(" ", "_")
        assert [path.name for path in folder.iterdir()] == ["saved"]
        assert contents(folder / "saved") == expected, name
    again = tmp_path / "again"
    again.mkdir()
    source = tmp_path / "all_by_rows" / "saved"
    run_ranks(3, load_and_save_on_ranks, 3, source, again)
    assert contents(again / "saved") == expected


def check_blocks(rank, world_size):
    """Blocks smaller than the table, more ranks than rows, a last block that is cut."""
    for rows in (1, 2, 5, 29, 64):
        for table in (0, 1):
            placed = Placement(world_size, (TablePlacement(rows, "rows"),) * 2)
            whole = torch.arange(rows * 3, dtype=torch.float32).view(rows, 3)
            shard = slice(placed.first_row(table, rank), rows, world_size)
            for block_rows in (1, 4, 7, 100):
                found = dict(whole_blocks(shard, rank, whole[shard], block_rows))
                mine = range(rank * block_rows, rows, world_size * block_rows)
                assert list(found) == list(mine)
                for start, block in found.items():
                    assert torch.equal(block, whole[start : start + block_rows])


def test_blocks_of_a_spread_table():
    run_ranks(3, check_blocks, 3)
