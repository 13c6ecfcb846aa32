# SPDX-License-Identifier: Apache-2.0
"""Runs of the real program in one process or in several, and what they leave."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import harness
from tests.checkpoints import assert_same, tensors

RANDOM = (
    "--dataset_name=random", "--random_user_count=60", "--random_item_count=200",
    "--random_size=2000", "--emb_dim=16", "--max_len=12", "--train_batch_size=8",
    "--dupe_factor=1", "--num_epochs=1", "--num_eval_negatives=50",
    "--base_device=cpu", "--windows=recent", "--lr=0.01",
)  # fmt: skip


def run(
    folder: Path, processes: int, flags: Sequence[str], *, launched: bool = False
) -> dict[str, Any]:
    """Trains, and returns the figures of the log's last two records.

    Args:
        folder: of the log and the checkpoints; made if it is not there.
        processes: of the run.
        flags: of the program, besides RANDOM.
        launched: whether torchrun starts the processes.
    """
    from bert4rec.scripts import main

    folder.mkdir(exist_ok=True)
    settings = [*RANDOM, *flags]
    settings += [f"--log_path={folder / 'log.json'}", f"--export_root={folder / 'run'}"]
    if launched:
        harness.forked(*harness.torchrun(processes), "-m", "bert4rec.scripts.main", *settings)
    elif processes > 1:
        harness.call_on_ranks(processes, main, *settings)
    else:
        assert harness.call(main, *settings) == 0
    records = harness.read_log(folder / "log.json")
    assert records[0]["type"] == "LOG"
    # Only one process logs, however many there are; a resumed run appends.
    assert sum("average_train_throughput" in r["data"] for r in records) == 1 + (
        "--resume" in flags
    )
    return {
        name: value
        for record in records
        if record["step"] == []
        for name, value in record["data"].items()
    }


def assert_trains_alike(
    folder: Path, two: Sequence[str], one: Sequence[str], *, launched: bool = False
) -> None:
    """Trains in two processes and in one, and compares metrics and models.

    Same windows, masks, dropout and negatives: only the order of sums differs. A rank moves if two
    scores are as close as that: one of 60 users is 0.017 in a hit rate.
    """
    logged = run(folder / "two", 2, two, launched=launched)
    assert_same_metrics(logged, run(folder / "one", 1, one), 0.02)
    mine, other = (tensors(folder / name / "run") for name in ("two", "one"))
    model = {name: tensor for name, tensor in other.items() if name.startswith("model.")}
    assert model.keys() == {name for name in mine if name.startswith("model.")}
    assert_close_weights(mine, model)


def assert_resumes(folder: Path, flags: Sequence[str], stop: int, end: int) -> dict[str, Any]:
    """Trains in two processes, whole and in parts, to the same bits; returns the tensors."""
    whole, parts = folder / "whole", folder / "parts"
    run(whole, 2, (*flags, f"--max_steps={end}"))
    run(parts, 2, (*flags, f"--max_steps={stop}"))
    run(parts, 2, (*flags, f"--max_steps={end}", "--resume"))
    assert_same(whole / "run", parts / "run")
    return tensors(whole / "run")


def assert_close_weights(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compares the weights of two runs that differ in the order of sums alone.

    Adam divides a gradient by its own size, so rounding of 1e-7 can move an element with a tiny
    gradient by a share of the rate, 0.01; over 7 steps few elements drift by more than 1e-4. The
    bias of the keys has no gradient but rounding, softmax being blind to it: it may go anywhere.
    """
    for name, tensor in expected.items():
        mine, other = found[name].float(), tensor.float()
        if name.endswith("qkv.bias"):
            dim = len(tensor) // 3
            mine, other = mine.clone(), other.clone()
            mine[dim : 2 * dim] = other[dim : 2 * dim] = 0.0
        difference = (mine - other).abs()
        assert difference.max() < 5e-3, name
        assert difference.mean() < 1e-5, name


def assert_same_metrics(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Compares every figure of the test items, and that there are some."""
    names = [name for name in expected if name.startswith("test_")]
    assert "test_full_ndcg@10" in names
    assert "test_popular_hr@10" in names
    for name in names:
        if expected[name] is not None:
            assert abs(found[name] - expected[name]) <= tolerance, name
