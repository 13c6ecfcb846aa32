# SPDX-License-Identifier: Apache-2.0
"""The presets: each loads as a whole run, and has the parameters that it states."""

import re

import pytest
import torch
from absl import flags

from bert4rec.model.network import Bert4Rec
from bert4rec.scripts.flags import PRESETS, config_from_flags, define_flags

STATED = re.compile(r"^# Parameters: ([\d,]+) at ([\d,]+) items", re.MULTILINE)


def parse(*arguments):
    values = flags.FlagValues()
    define_flags(values)
    assert values(["main", *arguments])[1:] == []
    return config_from_flags(values)


def number(text):
    return int(text.replace(",", ""))


def num_parameters(config, num_items):
    with torch.device("meta"):
        model = Bert4Rec(config.model, num_items)
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_presets_that_were_promised_are_there():
    sizes = {"5m", "scaling-85m", "scaling-130m", "scaling-430m"}
    assert sizes | {"paper", "torchrec", "recbole", "fast"} <= set(PRESETS.names())


@pytest.mark.parametrize("name", PRESETS.names())
def test_a_preset_loads_and_every_line_of_it_counts(name):
    config = parse(f"--config={name}")
    settings = config.to_dict()
    for key, value in PRESETS.read(name).values.items():
        assert settings[key] == value
        assert type(settings[key]) is type(value)
        assert key in config.explicit


@pytest.mark.parametrize("name", [n for n in PRESETS.names() if n != "fast"])
def test_a_preset_has_the_parameters_that_it_states(name):
    parameters, items = STATED.search((PRESETS.folder / f"{name}.yaml").read_text()).groups()
    found = num_parameters(parse(f"--config={name}"), number(items))
    assert f"{found:,}" == parameters
    size = re.search(r"(\d+)m$", name)
    if size:
        assert found == pytest.approx(int(size[1]) * 1e6, rel=0.03)


def test_torchrec_is_what_the_defaults_are():
    plain, preset = parse().to_dict(), parse("--config=torchrec").to_dict()
    assert plain == preset


def test_a_flag_comes_before_the_preset_and_the_preset_before_the_default():
    config = parse("--config=paper", "--lr=0.5")
    assert config.optimizer.lr == 0.5
    assert config.model.max_len == 200
    assert config.data.val_batch_size == 128


def test_recbole_counts_one_bias_more():
    assert num_parameters(parse("--config=recbole"), 1682) == 217_043 - 1
