# SPDX-License-Identifier: Apache-2.0
"""The training step: blocks computed again, float16 with a loss scale, corrected popularity."""

import pytest
import torch

from recsys.ratings.data.negatives import log_popularity
from recsys.train.optimizers.precision import Precision
from tests.bert4rec.conftest import open_recipe, peak_mib
from tests.bert4rec.steps import FLOAT32, config, make_model, sequences, train
from tests.checkpoints import latest

SCHEMES = [
    {"objective": "cloze", "mask_prob": 0.4},
    {"objective": "causal", "norm": "post", "activation": "gelu"},
    {"objective": "hybrid", "loss": "sampled", "head": "tied", "accumulation_steps": 2},
]


def train_all(precision, **settings):
    """Returns losses, parameters and moments after three epochs with dropout."""
    given = config(dropout=0.3, attention_dropout=0.2, num_layers=3, clip_norm=0.5, **settings)
    step, model, losses = train(given, precision, epochs=3)
    return [losses, *model.parameters(), *step.optimizer.state().values()]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_losses_and_updates_are_the_same_bits(scheme, dtype):
    precision = Precision(device_type="cpu", dtype=dtype)
    kept = train_all(precision, **scheme)
    again = train_all(precision, **scheme, activation_checkpointing=True)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


@pytest.mark.release
def test_a_deep_model_needs_less_memory(tmp_path):
    deep = (
        *("--dataset_name=random", "--random_user_count=128", "--random_item_count=500"),
        *("--random_size=19200", "--windows=recent", "--dupe_factor=1", "--train_batch_size=128"),
        *("--num_layers=24", "--emb_dim=32", "--max_len=100", "--max_steps=1"),
    )
    kept, again = peak_mib(tmp_path, *deep), peak_mib(tmp_path, *deep, "--activation_checkpointing")
    assert kept - again > 100, f"{again:.0f} MiB instead of {kept:.0f}"


LOSSES = [
    {"loss": "full"},
    {"loss": "sampled", "head": "tied"},
    {"loss": "sampled", "clip_norm": 0.01},
    {"loss": "gbce"},
]


def half(loss_scale):
    return Precision(device_type="cpu", dtype=torch.float16, loss_scale=loss_scale)


def accumulated(settings):
    return config(train_batch_size=10, accumulation_steps=2, **settings)


def first_moments(precision, settings):
    """Returns a tenth of the gradients that the first step applied."""
    step, *_ = train(accumulated(settings), precision)
    moments = [m for name, m in step.optimizer.state().items() if name.endswith("exp_avg")]
    return torch.cat([moment.flatten() for moment in moments])


def flushed(gradients, exact):
    return float(((gradients == 0) & (exact != 0)).double().mean())


@pytest.mark.parametrize("settings", LOSSES)
def test_the_loss_scale_keeps_small_gradients(settings):
    exact = first_moments(FLOAT32, settings)
    scaled, unscaled = (first_moments(half(scale), settings) for scale in (1024.0, 1.0))
    assert float((scaled - exact).norm() / exact.norm()) < 1e-3
    assert flushed(unscaled, exact) > 0.002 > flushed(scaled, exact)


@pytest.mark.parametrize("settings", LOSSES)
def test_an_overflow_changes_nothing(settings):
    step, model, _ = train(accumulated(settings), half(1e30), epochs=2)
    untouched = make_model(config(**settings))
    for (name, after), before in zip(model.named_parameters(), untouched.parameters(), strict=True):
        assert torch.equal(after, before), name
    states = {**step.optimizer.state(), **step.item_state()}
    assert [name for name, tensor in states.items() if tensor.any()] == []
    _, moved, _ = train(accumulated(settings), half(1024.0))
    assert not torch.equal(moved.blocks[0].qkv.weight, untouched.blocks[0].qkv.weight)


@pytest.mark.parametrize("settings", LOSSES)
@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_the_update_does_not_depend_on_the_scale(settings, clip_norm):
    settings = accumulated(settings | {"clip_norm": clip_norm})
    _, model, _ = train(settings, epochs=3)
    _, scaled, _ = train(settings, Precision(device_type="cpu", loss_scale=256.0), epochs=3)
    for (name, a), b in zip(model.named_parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=name)


CORRECTION = 0.5


@pytest.mark.parametrize("settings", [{"head": "tied"}, {"head": "untied", "temperature": 0.1}])
def test_the_learned_scores_are_those_of_plain_training_less_the_popularity(settings):
    settings = settings | {"objective": "causal", "weight_decay": 0.0}
    offset = CORRECTION * log_popularity(sequences())
    corrected = train(config(**settings, popularity_correction=CORRECTION))
    shifted = make_model(config(**settings))
    shifted.head.bias.data += offset
    plain = train(config(**settings), model=shifted)
    torch.testing.assert_close(corrected[2], plain[2], rtol=1e-5, atol=0)
    shifted.head.bias.data -= offset
    expected = dict(shifted.named_parameters())
    for name, found in corrected[1].named_parameters():
        pair = [found.detach(), expected[name].detach()]
        if name.endswith("qkv.bias"):
            # No attention depends on the bias of keys: its gradient is rounding, which Adam scales
            # to steps of any size.
            pair = [torch.cat([bias.chunk(3)[0], bias.chunk(3)[2]]) for bias in pair]
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5, msg=name)


def test_a_checkpoint_is_tested_with_any_correction(program, dataset, tmp_path):
    """The scores of a checkpoint change as if it had been trained with the other correction."""
    flags = (f"--dataset_path={dataset}", "--popularity_correction=0.75", "--max_steps=3")
    program(*flags, f"--export_root={tmp_path}")
    test = (f"--dataset_path={dataset}", f"--load_checkpoint_path={tmp_path}")
    trained = latest(tmp_path).tensors("model")["head.bias"]
    assert torch.equal(open_recipe(*test).model.head.bias, trained)
    assert torch.equal(open_recipe(*test, "--popularity_correction=0.75").model.head.bias, trained)
    without = open_recipe(*test, "--popularity_correction=0")
    expected = trained + 0.75 * log_popularity(without.sequences)
    torch.testing.assert_close(without.model.head.bias, expected)
    assert (expected - trained).std() > 0.1
