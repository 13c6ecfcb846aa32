# SPDX-License-Identifier: Apache-2.0
"""A DLRM on several gloo processes computes what one process does on the batch of all of them."""

import os

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from dlrm.config import ModelConfig
from dlrm.model.distributed import DistributedDlrm
from dlrm.model.single import Dlrm
from dlrm.nn.exchange import plan_lookups, share_bounds, wanted_columns
from dlrm.nn.table_placement import Placement, TablePlacement
from tests.bert4rec.torchrun import ROOT
from training.distributed import join_processes

pytestmark = pytest.mark.multiprocess

SIZES = (3, 40, 1000, 7, 500, 64)
BATCH = 37  # not a multiple of the ranks
PLACEMENTS = {
    "mixed": ("replicate", 0, "rows", "replicate", 1, "rows"),
    "all copies": ("replicate",) * 6,
    "all whole": (0, 1, 0, 1, 0, 1),
    "all on one": (1,) * 6,
    "all by rows": ("rows",) * 6,
}
MODEL = {
    "num_numerical_features": 4,
    "embedding_dim": 8,
    "bottom_mlp_sizes": (16, 8),
    "top_mlp_sizes": (32, 1),
    "optimized_mlp": False,
}


def placement(name, world_size):
    tables = []
    for rows, kind in zip(SIZES, PLACEMENTS[name], strict=True):
        is_kind = isinstance(kind, str)
        tables.append(TablePlacement(rows, kind if is_kind else "whole", None if is_kind else kind))
    return Placement(world_size, tuple(tables))


def data():
    generator = np.random.default_rng(5)
    ids = np.stack([generator.integers(0, n, BATCH) for n in SIZES], axis=1)
    numerical = torch.from_numpy(generator.standard_normal((BATCH, 4), dtype=np.float32))
    label = torch.from_numpy(generator.integers(0, 2, BATCH).astype(np.float32))
    return ids, numerical, label


def single(embedding_type):
    torch.manual_seed(1)
    return Dlrm(ModelConfig(**MODEL, embedding_type=embedding_type), SIZES)


def dense_gradients(gradients, tables):
    """Returns the gradient of each stored table, whole."""
    found = [torch.zeros(t.values.shape) for t in tables]
    for part in gradients:
        found[part.table].index_add_(0, part.rows.to(torch.int64), part.gradients.float())
    return found


def loss_of(logits, label):
    return nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="sum") / BATCH


def one_rank(rank, port, world_size, name, embedding_type, folder):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    with join_processes("cpu", 1):
        reference = single(embedding_type)
        placed = placement(name, world_size)
        torch.manual_seed(100 + rank)
        model = DistributedDlrm(ModelConfig(**MODEL, embedding_type=embedding_type), placed, rank)
        model.agree()
        agreed = [p.detach().clone() for p in model.mlp_parameters()]
        agreed += [t.values.clone() for t in model.placed.replicated.stored_tables()]
        for mine, theirs in zip(model.mlp_parameters(), reference.mlp_parameters(), strict=True):
            mine.data.copy_(theirs.data)
        for i, table in enumerate(reference.embeddings.tables()):
            model.embeddings.load_table(i, table)
        ids, numerical, label = data()
        bounds = share_bounds(BATCH, world_size)
        mine = slice(bounds[rank], bounds[rank + 1])
        columns = {i: ids[:, i] for i in wanted_columns(placed, rank)}
        copies = ids[mine][:, placed.of_kind("replicate")]
        lookups = plan_lookups(placed, rank, columns, copies, BATCH)
        logits = model(numerical[mine], lookups)
        loss_of(logits, label[mine]).backward()
        stored = model.embeddings.stored_tables()
        gradients = dense_gradients(model.embeddings.take_row_gradients(), stored)
        parts = {}
        local = torch.split(gradients[0], [
            placed.local_rows(i, rank) for i in model.placed.local_features
        ])  # fmt: skip
        for i, gradient in zip(model.placed.local_features, local, strict=True):
            where, _ = model.placed.local_part(i)
            parts[i] = (where, gradient)
        copied = placed.of_kind("replicate")
        if copied:
            split = torch.split(gradients[1], [SIZES[i] for i in copied])
            parts |= {i: (slice(None), g) for i, g in zip(copied, split, strict=True)}
        torch.save(
            {
                "agreed": agreed,
                "logits": logits.detach(),
                "dense": [p.grad for p in model.mlp_parameters()],
                "parts": {i: (w.start, w.step, g) for i, (w, g) in parts.items()},
            },
            f"{folder}/{rank}.pt",
        )


@pytest.mark.parametrize(
    ("name", "embedding_type", "world_size"),
    [
        *((name, "joint_fused", 2) for name in PLACEMENTS),
        ("mixed", "joint_fused", 4),
        ("mixed", "joint", 3),
        ("mixed", "joint_sparse", 3),
    ],
)
def test_ranks_compute_what_one_process_does(
    tmp_path, monkeypatch, name, embedding_type, world_size
):
    run_ranks(tmp_path, monkeypatch, world_size, name, embedding_type)
    check(tmp_path, world_size, embedding_type)


def run_ranks(tmp_path, monkeypatch, world_size, name, embedding_type):
    monkeypatch.syspath_prepend(str(ROOT))  # started processes import this module by its name
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    arguments = (port, world_size, name, embedding_type, str(tmp_path))
    mp.spawn(one_rank, arguments, nprocs=world_size)


def check(folder, world_size, embedding_type):
    reference = single(embedding_type)
    ids, numerical, label = data()
    logits = reference(numerical, torch.from_numpy(ids))
    loss_of(logits, label).backward()
    stored = reference.embeddings.stored_tables()
    whole = dense_gradients(reference.embeddings.take_row_gradients(), stored)
    expected = reference.embeddings.per_feature(whole)
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]
    found = torch.cat([r["logits"] for r in ranks])
    torch.testing.assert_close(found, logits.detach(), rtol=1e-6, atol=1e-6)
    for i, parameter in enumerate(reference.mlp_parameters()):
        total = sum(r["dense"][i] for r in ranks)
        torch.testing.assert_close(total, parameter.grad, rtol=1e-5, atol=1e-7)
    met = [0] * len(SIZES)
    for rank in ranks:
        for first, second in zip(rank["agreed"], ranks[0]["agreed"], strict=True):
            assert torch.equal(first, second)
        for i, (start, step, gradient) in rank["parts"].items():
            want = expected[i][start::step]
            torch.testing.assert_close(gradient, want, rtol=1e-5, atol=1e-7)
            met[i] += len(gradient)
    assert all(count >= size for count, size in zip(met, SIZES, strict=True))
