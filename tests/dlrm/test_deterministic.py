# SPDX-License-Identifier: Apache-2.0
"""`--deterministic`: the same bytes from any number of processes and threads, and any placement."""

import dataclasses
import itertools
import os
import signal

import pytest
import torch

from dlrm.config import DlrmConfig
from dlrm.nn.shards import (
    NUM_SHARDS,
    batch_bounds,
    linear_in_shards,
    product_in_shards,
    shards_of,
    tree_sum,
)
from dlrm.train.resolve import resolve
from recsys.data.feature_spec import ListFeature
from recsys.train.saving.run_folder import CheckpointFolder
from tests.checkpoints import assert_same, latest
from tests.dlrm.conftest import CARDINALITIES, SMALL_MODEL, SPEC
from tests.dlrm.ranks import figures, placement_of
from tests.harness import python, refusal, started, torchrun, wait_for

KINDS = {
    "copies": ("replicate",) * 4,
    "whole": (1, 0, 1, 0),
    "mixed": ("replicate", 0, "rows", "rows"),
}
LIST = ListFeature("seen", 5, pooling="sum", is_weighted=False)


def arguments(dataset, folder, processes, threads=1, placement=None, **settings):
    """Returns the arguments of Python for a training under torchrun, or without it."""
    folder.mkdir(exist_ok=True)
    if placement is not None:
        file = folder / f"placement_{processes}.json"
        placement_of(processes, CARDINALITIES, KINDS[placement]).save(file)
        settings["placement"] = file
    launcher = () if processes == 1 else tuple(torchrun(processes))
    settings = {"optimizer": "adam", "lr": 0.003, "batch_size": 857} | settings
    return (
        *launcher,
        *("-m", "dlrm.scripts.main", "--deterministic", *SMALL_MODEL),
        f"--dataset={dataset}",
        f"--save_checkpoint_path={folder / 'run'}",
        f"--log_path={folder / 'log.json'}",
        f"--num_threads={threads}",
        "--test_batch_size=333",
        *(f"--{name}={value}" for name, value in settings.items()),
    )


def train(dataset, folder, processes, threads=1, placement=None, **settings):
    """Trains; returns the folder."""
    python(*arguments(dataset, folder, processes, threads, placement, **settings))
    return folder


def assert_same_run(first, second):
    """Compares all tensors and the best metric by their bits, and all losses that were printed."""
    assert_same(first / "run", second / "run")
    states = [latest(folder / "run").state for folder in (first, second)]
    assert states[0]["best_metric"] == states[1]["best_metric"]
    assert figures(first / "log.json")[0] == figures(second / "log.json")[0]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_two_processes_train_the_bytes_of_one(dataset, tmp_path):
    steps = {"max_steps": 12, "print_freq": 1}  # two epochs; their last batches are odd
    alone = train(dataset, tmp_path / "1", 1, threads=2, epochs=2, **steps)
    two = train(dataset, tmp_path / "2", 2, placement="mixed", epochs=2, **steps)
    assert_same_run(alone, two)


@pytest.mark.release
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_processes_threads_and_placements(dataset, tmp_path, optimizer):
    settings = {"max_steps": 200, "epochs": 40, "optimizer": optimizer, "test_freq": 50}
    alone = train(dataset, tmp_path / "alone", 1, **settings)
    for processes, threads, placement in itertools.product((1, 2, 4), (1, 2), KINDS):
        if processes == 1 and placement != "copies":
            continue
        placed = None if processes == 1 else placement
        folder = tmp_path / f"{processes}-{threads}-{placement}"
        assert_same_run(alone, train(dataset, folder, processes, threads, placed, **settings))


@pytest.mark.release
@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4), (2, 4)])
def test_a_killed_run_continues_on_another_number_of_processes(dataset, tmp_path, before, after):
    settings = {"max_steps": 200, "epochs": 40, "save_freq": 20, "test_freq": 50}
    whole = train(dataset, tmp_path / "whole", 1, **settings)
    folder = tmp_path / "run"
    words = arguments(
        dataset, folder, before, placement="mixed" if before > 1 else None, **settings
    )
    with started(*words, start_new_session=True) as running:
        wait_for(CheckpointFolder(folder / "run").latest, "a checkpoint", process=running)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert latest(folder / "run").state["step"] < 200
    train(dataset, folder, after, resume=True, **settings)
    assert_same(whole / "run", folder / "run")


@pytest.mark.parametrize(
    ("device", "spec", "world_size", "settings"),
    [
        ("cuda", SPEC, 1, ("deterministic", "base_device")),
        ("cpu", SPEC, 3, ("deterministic",)),
        ("cpu", SPEC, 8, ("deterministic",)),
        ("cpu", dataclasses.replace(SPEC, lists=(LIST,)), 1, ("deterministic",)),
    ],
)
def test_what_would_have_other_bytes_is_refused(device, spec, world_size, settings):
    settings_of_run = {"deterministic": True, "dataset": "data", "baselines": []}
    config = DlrmConfig.from_dict(settings_of_run, frozenset())
    with refusal(settings=settings):
        resolve(config, torch.device(device), spec, world_size)


def test_parts_of_a_part_are_parts_of_the_batch():
    for rows in range(40):
        shards = batch_bounds(rows, NUM_SHARDS)
        assert shards[0] == 0
        assert shards[-1] == rows
        assert max(b - a for a, b in itertools.pairwise(shards)) <= rows // NUM_SHARDS + 1
        for parts in (1, 2, 4):
            each = NUM_SHARDS // parts
            assert batch_bounds(rows, parts) == shards[::each]
            for i, (begin, end) in enumerate(itertools.pairwise(shards[::each])):
                inside = [begin + bound for bound in batch_bounds(end - begin, each)]
                assert inside == shards[i * each : (i + 1) * each + 1]


@pytest.mark.parametrize("parts", [3, 5, 6, 12])
def test_any_number_of_parts_has_nearly_equal_sizes(parts):
    for rows in range(60):
        bounds = batch_bounds(rows, parts)
        sizes = [b - a for a, b in itertools.pairwise(bounds)]
        assert len(sizes) == parts
        assert sum(sizes) == rows
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 3, 7, 32])
def test_a_layer_in_shards_is_a_layer(rows, has_bias, relu):
    generator = torch.Generator().manual_seed(rows)

    def drawn(*shape):
        tensor = torch.randn(shape, dtype=torch.float64, generator=generator)
        return tensor.requires_grad_()

    x, weight, bias = drawn(rows, 5), drawn(6, 5), drawn(6) if has_bias else None
    given = [tensor for tensor in (x, weight, bias) if tensor is not None]
    upstream = torch.randn(rows, 6, dtype=torch.float64, generator=generator)
    expected = torch.nn.functional.linear(x, weight, bias)
    expected = torch.relu(expected) if relu else expected
    found = linear_in_shards(x, weight, bias, NUM_SHARDS, relu=relu)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, given, upstream), torch.autograd.grad(expected, given, upstream)
    )


def test_a_product_has_the_bits_of_one_thread():
    """Also where MKL does not multiply in its strict mode, as in this process."""
    generator = torch.Generator().manual_seed(0)
    delta, x = (torch.randn(256, n, generator=generator) for n in (1, 256))
    found, threads = [], torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        found.append(product_in_shards(delta.t(), x, 1))
        assert torch.get_num_threads() == number
    torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_the_sum_of_processes_is_that_of_one():
    x = torch.randn(37, 300, generator=torch.Generator().manual_seed(0))
    whole = tree_sum([rows.sum(0) for rows in shards_of(x, NUM_SHARDS)])
    for processes in (2, 4):
        branches = [
            tree_sum([rows.sum(0) for rows in shards_of(part, NUM_SHARDS // processes)])
            for part in shards_of(x, processes)
        ]
        assert torch.equal(tree_sum(branches), whole)
