# SPDX-License-Identifier: Apache-2.0
"""Compares the checkpoints and tests of a run with those of its reproduction."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.data.manifest import fingerprint
from recsys.errors import UserError
from recsys.program import print_line
from recsys.train.checkpoint import Checkpoint, named_checkpoint, read_checkpoint
from recsys.train.saving.environment import ENVIRONMENT
from recsys_recipes import clicks, ratings
from recsys_recipes.reproduction.certificate import ComparedCheckpoint, ComparedFigures
from recsys_recipes.reproduction.compare import (
    compare_files,
    compare_tensors,
    differing,
    pair,
)
from recsys_recipes.reproduction.original import NOT_REPEATED, OriginalRun

_OF_TEST = frozenset(
    {"dataset_type", "eval_split", "loader", "num_eval_negatives", "test_batch_size"}
)
"""Settings of the training with which both runs are tested."""
_TIMES = frozenset({"avg_inference_latency", "average_test_throughput"})
"""Figures of a test that are never equal."""


def opened_again(run: Path) -> Checkpoint:
    """Opens the latest checkpoint of a run that was trained again.

    Raises:
        CheckpointError: there is none.
    """
    return read_checkpoint(named_checkpoint(run, "latest") or run)


def compare_runs(original: OriginalRun, run: Path, reproduced: Checkpoint) -> dict[str, Any]:
    """Compares settings, checkpoints and environments; returns these parts of a certificate.

    Args:
        original: the run.
        run: folder of the run that was trained again.
        reproduced: its latest checkpoint.
    """
    settings = differing(original.trained.config, reproduced.config, NOT_REPEATED)
    environment = pair(dict(original.environment), reproduced.state.get(ENVIRONMENT, {}))
    checkpoints = [
        _compare_checkpoint(role, checkpoint, run / checkpoint.path.name)
        for role, checkpoint in original.checkpoints.items()
    ]
    return {"settings": settings, "environment": environment, "checkpoints": checkpoints}


def _compare_checkpoint(role: str, original: Checkpoint, folder: Path) -> ComparedCheckpoint:
    name = original.path.name
    if not folder.is_dir():
        return ComparedCheckpoint(
            name=name, role=role, fingerprint=fingerprint(original.files), found=False
        )
    reproduced = read_checkpoint(folder)
    files = compare_files(original.files, reproduced.files)
    return ComparedCheckpoint(
        name=name,
        role=role,
        fingerprint=fingerprint(original.files),
        found=True,
        files=files,
        tensors={
            file: compare_tensors(original.path / file, folder / file) for file in files.different
        },
        state=differing(original.state, reproduced.state, {ENVIRONMENT}),
    )


def compare_tests(original: OriginalRun, dataset: Path, run: Path) -> ComparedFigures:
    """Tests both runs on a dataset.

    Args:
        original: the run.
        dataset: dataset of the test.
        run: folder of the run that was trained again.
    """
    same_step = run / original.trained.path.name
    is_one = "checkpoint" in original.checkpoints
    figures = _test(original, dataset, same_step if is_one and same_step.is_dir() else run)
    try:
        # A rebuilt dataset may differ; what matters here is whether the model fits it.
        expected = _test(original, dataset, original.path, ignore_fingerprint=True)
    except UserError as error:
        values = {name: pair(None, value) for name, value in figures.items()}
        return ComparedFigures(values=values, why_not=str(error))
    return ComparedFigures(
        values={name: pair(value, figures.get(name)) for name, value in expected.items()}
    )


def _test(original: OriginalRun, dataset: Path, run: Path, **given: Any) -> Mapping[str, Any]:
    print_line(f"Testing {run} on {dataset}")
    settings = {n: value for n, value in original.settings().items() if n in _OF_TEST}
    settings |= {"baselines": "", **original.machine_settings, **given}
    data = clicks if original.model.data == "clicks" else ratings
    figures = data.test(dataset, run, **settings)
    return {name: value for name, value in figures.items() if name not in _TIMES}
