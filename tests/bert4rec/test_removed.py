# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that name settings of earlier versions."""

import json
import shutil

import pytest

from bert4rec.config import REMOVED
from tests.bert4rec.conftest import make_program

ANYWHERE = {"metric_ks": [1, 10], "eval_seed": 3, "init_std": 0.5, "extend_schedule": True}
"""Removed settings on which no trained weight of a continued run depends."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """The run of a step."""
    folder = tmp_path_factory.mktemp("earlier")
    program = make_program(folder)
    program(f"--dataset_path={dataset}", f"--export_root={folder / 'run'}", "--max_steps=1")
    assert program.exit_code == 0
    return folder / "run"


@pytest.fixture
def resumed(saved, program, dataset, tmp_path, capsys):
    """Continues or tests the run with other stored settings; returns (exit code, error)."""

    def resume(settings, *flags):
        run = shutil.copytree(saved, tmp_path / "run")
        (manifest,) = run.glob("step_*/manifest.json")
        stored = json.loads(manifest.read_text())
        stored["config"] |= settings
        manifest.write_text(json.dumps(stored))
        place = (f"--export_root={run}", "--resume", "--max_steps=2")
        if flags:
            place = (f"--load_checkpoint_path={run}", *flags)
        capsys.readouterr()
        program(f"--dataset_path={dataset}", *place)
        return program.exit_code, capsys.readouterr().err

    return resume


@pytest.mark.parametrize("flags", [(), ("--mode=test",)])
def test_removed_settings_with_the_value_that_is_left_are_ignored(resumed, flags):
    assert resumed({**REMOVED, **ANYWHERE}, *flags)[0] == 0


@pytest.mark.parametrize(
    ("name", "value"), [("ema_decay", 0.9), ("item_rule", "adagrad"), ("warmup_ratio", 0.1)]
)
def test_a_run_with_another_value_is_not_continued(resumed, name, value):
    code, error = resumed({name: value})
    assert code == 2
    assert f"--{name} (was {value}, now {REMOVED[name]})" in error


@pytest.mark.parametrize(
    ("name", "value"),
    [("residual", "gated"), ("embedding_norm", False), ("adapter_alpha", 8.0)],
)
def test_a_network_with_another_value_is_not_loaded(resumed, name, value):
    code, error = resumed({name: value}, "--mode=test")
    assert code == 2
    assert f"has --{name} {value}, and this version computes {REMOVED[name]} alone" in error
