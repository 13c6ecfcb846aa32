# SPDX-License-Identifier: Apache-2.0
"""A DLRM on several gloo processes computes and saves what one process does."""

import json
import shutil
from typing import get_args

import pytest
import torch

from dlrm.config import DataConfig, DlrmConfig, EmbeddingStorage, OptimizerConfig
from dlrm.distributed.embedding import ShardedEmbeddings
from dlrm.distributed.network import DistributedDlrm
from dlrm.model.weights import DlrmCheckpoint
from dlrm.nn.embedding import read_tables
from dlrm.train.checkpoint import restore_state, saved_state
from dlrm.train.step import DlrmTrainStep
from recsys.train.checkpoint import CheckpointError, read_checkpoint
from recsys.train.loop import LoopState
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, Processes
from recsys.train.saving.run_folder import CheckpointFolder
from tests.checkpoints import assert_same
from tests.dlrm import networks
from tests.dlrm.nvidia_folder import write_nvidia_folder
from tests.dlrm.ranks import (
    MODEL,
    SIZES,
    Batches,
    cut_batches,
    distributed,
    distributed_step,
    placement,
    placement_of,
    single,
)
from tests.documents import change_document
from tests.harness import refusal, run_ranks

pytestmark = pytest.mark.multiprocess

BATCH = 37  # not a multiple of the ranks
STEPS = 4
BATCHES = Batches(BATCH, range(STEPS))
RATES = {"sgd": 0.1, "rowwise_adagrad": 0.002, "adam": 0.002, "adam, l2": 0.002}
"""The adaptive rules divide by gradients of which some are rounding errors alone: a whole step."""
FLOAT32 = Precision(device_type="cpu")
BFLOAT16 = Precision(device_type="cpu", dtype=torch.bfloat16)
SCALED = Precision(device_type="cpu", loss_scale=64.0)


def results(tmp_path, world_size, *calls):
    """Returns the results of each rank for each call: function(rank, *arguments)."""
    files = [tmp_path / f"{rank}.pt" for rank in range(world_size)]
    run_ranks(world_size, _store, calls, files)
    return list(zip(*(torch.load(file) for file in files), strict=True))


def _store(rank, calls, files):
    torch.save([function(rank, *arguments) for function, *arguments in calls], files[rank])


def parts_of(model):
    """Returns the rows of each table that lie on a rank: {table: (first, step, rows)}."""
    parts = {}
    shards = model.embeddings.shards()
    for i, rows in read_tables(model.embeddings).items():
        parts[i] = (shards[i].rows.start, shards[i].rows.step, rows.clone())
    return parts


def assert_same_tables(ranks, expected, **tolerance):
    met = [0] * len(SIZES)
    for rank in ranks:
        for i, (start, step, rows) in rank["parts"].items():
            torch.testing.assert_close(rows, expected[i][start::step], **tolerance)
            met[i] += len(rows)
    assert all(count >= size for count, size in zip(met, SIZES, strict=True))


def optimizer(rule):
    if rule == "adam, l2":
        return OptimizerConfig(optimizer="adam", embedding_l2=0.01)
    return OptimizerConfig(optimizer=rule, embedding_weight_decay=0.01)


class Poisoned(Batches):
    """Batches of which the second has a sample that overflows, of the first rank's share."""

    def batches(self, epoch=0, start=0):
        for number, seen in enumerate(super().batches(epoch, start)):
            if number == 1:
                seen.numerical[0] = float("inf")
            yield seen


def train(rank, placed, rule, precision, source):
    model = distributed("joint_fused", placed, rank)
    step = distributed_step(model, optimizer(rule), precision)
    batches = cut_batches(source, placed, rank).batches()
    losses = [float(step(seen, RATES[rule])) for seen in batches]
    dense = [p.detach() for p in model.mlp_parameters()]
    return {"losses": losses, "dense": dense, "parts": parts_of(model)}


def train_alone(rule, precision, source):
    """Returns the losses and the model of one process."""
    model = single("joint_fused")
    step = DlrmTrainStep(model, optimizer(rule), precision)
    return [float(step(seen, RATES[rule])) for seen in source.batches()], model


def start_at_zero(rank, placed):
    model = distributed("joint_fused", placed, rank)
    model.embeddings.start_unknown_at_zero()
    return {"parts": parts_of(model)}


def start_differently(rank, placed):
    torch.manual_seed(100 + rank)
    model = DistributedDlrm(networks.config(embedding_type="joint_fused", **MODEL), placed, rank)

    def copies_of_what_all_have():
        tables = model.sharded.replicated.stored_tables()
        return [p.detach().clone() for p in (*model.mlp_parameters(), *tables)]

    model.broadcast_replicated()
    first = copies_of_what_all_have()
    model.reset_embeddings()
    return first + copies_of_what_all_have()


def test_ranks_start_with_zeros_where_asked_for_and_alike_where_all_have_a_copy(tmp_path):
    """After a reset of the embeddings too."""
    placed = placement("mixed", 2)
    zeros, (first, second) = results(
        tmp_path, 2, (start_at_zero, placed), (start_differently, placed)
    )
    for rank in zeros:
        for start, _, rows in rank["parts"].values():
            is_zero = [not row.any() for row in rows]
            assert is_zero == [start == 0 and i == 0 for i in range(len(rows))]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


POISONED = Poisoned(BATCH, range(STEPS))
CASES = {  # other ones, as whole runs: test_distributed_runs.py
    # A step that overflows on one rank is left out on all.
    2: [
        ("mixed", "sgd", SCALED, POISONED),
        ("all on one", "sgd", SCALED, POISONED),
        ("mixed", "sgd", BFLOAT16, BATCHES),
    ],
    4: [  # a table has fewer rows
        *(("mixed", rule, FLOAT32, BATCHES) for rule in RATES),
        ("all by rows", "sgd", FLOAT32, BATCHES),
    ],
}


@pytest.mark.parametrize("world_size", CASES)
def test_ranks_train_as_one_process(tmp_path, world_size):
    cases = CASES[world_size]
    calls = [(train, placement(name, world_size), *how) for name, *how in cases]
    for (_, *how), ranks in zip(cases, results(tmp_path, world_size, *calls), strict=True):
        losses, reference = train_alone(*how)
        limit = 2e-3 if BFLOAT16 in how else 1e-5
        for rank in ranks:
            torch.testing.assert_close(
                rank["losses"], losses, rtol=limit, atol=limit, equal_nan=True
            )
            for mine, first in zip(rank["dense"], ranks[0]["dense"], strict=True):
                assert torch.isfinite(mine).all()
                assert torch.equal(mine, first)
        if BFLOAT16 in how:
            continue
        for mine, theirs in zip(ranks[0]["dense"], reference.mlp_parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-6)
        assert_same_tables(ranks, read_tables(reference.embeddings), rtol=1e-5, atol=1e-6)


def overflow_on_the_last(rank, placed):
    """Returns whether a step moved a rank's parameters; row gradients of rank 1 are infinite."""
    model = distributed("joint_sparse", placed, rank)
    if rank == 1:
        model.sharded.local.weight.register_hook(lambda gradient: gradient * float("inf"))

    def parameters():
        tables = model.sharded.stored_tables()
        return [p.detach().clone() for p in (*model.mlp_parameters(), *tables)]

    before = parameters()
    step = distributed_step(model, optimizer("sgd"), SCALED)
    step(next(cut_batches(BATCHES, placed, rank).batches()), 0.1)
    return not all(map(torch.equal, before, parameters()))


def test_an_overflow_on_one_rank_leaves_out_the_step_of_all(tmp_path):
    (moved,) = results(tmp_path, 2, (overflow_on_the_last, placement("mixed", 2)))
    assert list(moved) == [False, False]


@pytest.mark.parametrize(
    ("embedding_type", "storage"),
    [("joint", "float32"), *(("joint_fused", s) for s in get_args(EmbeddingStorage))],
)
def test_shards_are_drawn_as_their_whole_tables(embedding_type, storage):
    """Rows that are dealt out were drawn from sqrt(W) times the range."""
    sizes = (1000, 3, 400)  # one with fewer rows than ranks
    placed = placement_of(4, sizes, ("rows", "rows", 3))
    drawn: dict[int, list[torch.Tensor]] = {}
    for rank in range(4):
        tables = ShardedEmbeddings(placed, rank, 32, embedding_type, storage)
        for _ in range(2):
            for feature, rows in read_tables(tables).items():
                drawn.setdefault(feature, []).append(rows.clone().flatten())
            tables.reset_parameters()
    for feature, size in enumerate(sizes):
        values = torch.cat(drawn[feature])
        assert len(values) == 2 * size * 32
        bound = (1 / size) ** 0.5 * (1 + 2**-8)  # bfloat16 rounds up
        assert 0.95 * bound < values.abs().max() <= bound
        assert values.mean().abs() < 5 * bound / (3 * len(values)) ** 0.5  # standard deviations


def test_shards_start_with_the_deviation_asked_for():
    sizes = (1000, 3, 400)
    placed = placement_of(4, sizes, ("rows", "replicate", 3))
    for rank in range(4):
        tables = ShardedEmbeddings(placed, rank, 32, "joint_fused", init_std=0.02)
        for rows in read_tables(tables).values():
            assert float(rows.std()) == pytest.approx(0.02, rel=0.3)


def test_ids_are_taken_modulo_the_table_size_before_their_owner_is_found():
    placed = placement("mixed", 2)

    class Large(Batches):
        def batches(self, epoch=0, start=0):
            for seen in super().batches(epoch, start):
                yield type(seen)(seen.numerical, seen.ids + 3 * torch.tensor(SIZES), seen.label)

    for rank in range(2):
        plain = next(cut_batches(BATCHES, placed, rank).batches()).ids
        source = cut_batches(Large(BATCH, range(1)), placed, rank, hash_indices=True)
        hashed = next(source.batches()).ids
        assert torch.equal(plain.rows, hashed.rows)
        assert plain.send_counts == hashed.send_counts
        assert torch.equal(plain.replicated, hashed.replicated)


def config():
    return DlrmConfig(
        model=networks.config(embedding_type="joint_fused", **MODEL),
        data=DataConfig(dataset_type="synthetic_gpu"),
        optimizer=OptimizerConfig(optimizer="rowwise_adagrad"),
    )


def continue_on_ranks(rank, placed, folder, first, last):
    """Goes on from the checkpoint in the folder, if there is one, and saves another."""
    model = distributed("joint_fused", placed, rank)
    step = distributed_step(model, config().optimizer, FLOAT32)
    batches = cut_batches(Batches(33, range(first, last)), placed, rank)
    go_on(folder, model, step, batches, Processes(rank, placed.world_size, rank))


def continue_alone(folder, first, last):
    model = single("joint_fused")
    step = DlrmTrainStep(model, config().optimizer, FLOAT32)
    go_on(folder, model, step, Batches(33, range(first, last)))


def go_on(folder, model, step, batches, processes=ALONE):
    latest, number = CheckpointFolder(folder).latest(), 0
    if latest is not None:
        checkpoint = read_checkpoint(latest)
        restore_state(checkpoint, model, step)
        number = checkpoint.state["step"]
    for seen in batches.batches():
        step(seen, 0.01)
    number += batches.num_batches
    saved = saved_state(model, step, processes)
    values = LoopState(step=number).to_dict()
    CheckpointFolder(folder).save(number, saved.groups, values, config().to_dict(), False,
                                  shards=saved.shards, processes=processes)  # fmt: skip


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder of a run that two ranks began, with a checkpoint of step 2."""
    folder = tmp_path_factory.mktemp("begun")
    run_ranks(2, continue_on_ranks, placement("mixed", 2), folder, 0, 2)
    return folder


def test_runs_go_on_with_other_numbers_of_ranks(begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "changing")
    names = {p.name for p in (folder / "step_000000002").iterdir()}
    assert {"mlp.safetensors", "embedding_0.safetensors", "embedding_1.safetensors"} <= names
    assert {"embedding_2.0_of_2.safetensors", "embedding_2.1_of_2.safetensors"} <= names
    run_ranks(3, continue_on_ranks, placement("mixed", 3), folder, 2, 4)
    continue_alone(folder, 4, 5)
    run_ranks(2, continue_on_ranks, placement("all by rows", 2), folder, 5, 6)
    alone = tmp_path / "alone"
    continue_alone(alone, 0, 6)
    assert read_checkpoint(folder).state["step"] == 6
    assert_same(folder, alone, rtol=1e-5, atol=1e-6)


def test_a_part_that_is_missing_is_found_out(begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run")
    assert DlrmCheckpoint.open(folder).table_sizes == SIZES
    step = folder / "step_000000002"
    (step / "embedding_5.1_of_2.safetensors").unlink()
    with refusal(kind=CheckpointError, path=step / "embedding_5.1_of_2.safetensors"):
        DlrmCheckpoint.open(folder).load_into(single("joint_fused"))
    manifest = step / "manifest.json"
    files = json.loads(manifest.read_text())["files"]
    del files["embedding_5.1_of_2.safetensors"]
    change_document(manifest, lambda document: document | {"files": files})
    with refusal(1, "embedding_5", 2, kind=CheckpointError, path=step):
        DlrmCheckpoint.open(folder).load_into(single("joint_fused"))


def load_on_ranks(rank, world_size, folder):
    model = distributed("joint_fused", placement("mixed", world_size), rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    DlrmCheckpoint.open(folder).load_into(model)
    alone = single("joint_fused")
    tables, expected = read_tables(model.embeddings), read_tables(alone.embeddings)
    for i, shard in model.embeddings.shards().items():
        assert torch.equal(tables[i], expected[i][shard.rows])
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.mlp_parameters(), alone.mlp_parameters(), strict=True)
    )


def test_nvidias_checkpoint_is_spread_over_ranks(tmp_path):
    folder = tmp_path / "nvidia"
    write_nvidia_folder(folder, single("joint_fused"), **MODEL)
    run_ranks(2, load_on_ranks, 2, folder)
