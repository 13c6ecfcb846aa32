# SPDX-License-Identifier: Apache-2.0
"""The presets: each loads as a whole run, and has the parameters that it states."""

import re

import pytest
import torch

from bert4rec.model.network import Bert4Rec
from bert4rec.scripts import main
from bert4rec.scripts.flags import PRESETS
from tests.bert4rec.conftest import parse
from tests.checkpoints import latest
from tests.harness import REPOSITORY, Program

STATED = re.compile(r"^# Parameters: ([\d,]+) at ([\d,]+) items", re.MULTILINE)


def number(text):
    return int(text.replace(",", ""))


def num_parameters(config, num_items, *, of_items=True):
    """Counts parameters, those with a row for each item left out on request."""
    with torch.device("meta"):
        model = Bert4Rec(config.model, num_items)
    return sum(p.numel() for p in model.parameters() if of_items or p.shape[0] < num_items)


def stated(name):
    """Returns the parameters and the catalogue that a preset's file states."""
    text = (PRESETS.folder / f"{name}.yaml").read_text()
    return map(number, STATED.search(text).groups())


@pytest.mark.parametrize("name", PRESETS.names())
def test_every_line_of_a_preset_counts_and_its_parameters_are_those_stated(name):
    config = parse(f"--config={name}")
    preset, settings = PRESETS.read(name).values, config.to_dict()
    assert preset.items() <= settings.items()
    assert [type(settings[key]) for key in preset] == [type(value) for value in preset.values()]
    assert set(preset) <= config.explicit
    parameters, items = stated(name)
    assert num_parameters(config, items) == parameters
    rest = num_parameters(config, items, of_items=False)
    row = f"| `{name}` | {items:,} | {parameters:,} | {rest:,} |"
    assert row in (REPOSITORY / "docs" / "bert4rec.md").read_text().splitlines()
    size = re.search(r"(\d+)m$", name)
    if size:
        assert parameters == pytest.approx(int(size[1]) * 1e6, rel=0.03)


SHRUNKEN = (
    *("--dataset_name=random", "--random_user_count=12", "--random_item_count=120"),
    *("--random_size=100", "--train_batch_size=2", "--max_len=8"),
    *("--num_eval_negatives=5", "--base_device=cpu"),
)
"""A run of few tokens and items, with the layers of a preset."""


def presets():
    """Returns the presets: those that few of the others resemble for every run."""
    for name in PRESETS.names():
        marks = () if name in ("best", "fast", "paper") else pytest.mark.release
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(presets()))
def test_a_preset_trains_20_steps_and_resumes(name, tmp_path):
    program = Program(main, tmp_path, SHRUNKEN)
    run = (f"--config={name}", "--parallelism=ddp", "--num_epochs=99", "--lr_schedule=step")
    run += (f"--export_root={tmp_path / 'run'}", "--test_freq=1000")
    config = parse(f"--config={name}")
    run += () if config.objective.loss == "full" else ("--num_negatives=16",)
    for steps in (12, 20):
        records = program(*run, f"--max_steps={steps}", "--resume")
        assert latest(tmp_path / "run").state["step"] == steps
    assert records[0]["data"]["emb_dim"] == config.model.emb_dim
    assert records[0]["data"]["num_layers"] == config.model.num_layers
    assert 0 <= records[-1]["data"]["test_full_ndcg@10"] <= 1


def test_a_file_says_what_flags_say(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("lr: 1e-3\nclip_norm: null\ninference_benchmark_batch_sizes: [2, 4]\n")
    flags = ("--lr=1e-3", "--inference_benchmark_batch_sizes=2,4")
    assert parse(f"--config={file}").to_dict() == parse(*flags).to_dict()


def test_torchrec_is_what_the_defaults_are():
    plain, preset = parse().to_dict(), parse("--config=torchrec").to_dict()
    assert plain == preset
