# SPDX-License-Identifier: Apache-2.0
"""Training with a part of the log popularity taken out of the scores."""

import pytest
import torch

from bert4rec.data.batches import training_batches
from bert4rec.data.negative_sampler import training_popularity
from bert4rec.train.step import build_step
from recsys.train.optimizers.precision import Precision
from tests.bert4rec.test_large_catalogues import CPU, config, make_model, sequences

CORRECTION = 0.5


def log_popularity() -> torch.Tensor:
    popularity = torch.from_numpy(training_popularity(sequences()))
    return (popularity / popularity.sum()).log().float()


def train(settings, added_to_bias, steps=4):
    model = make_model(settings)
    with torch.no_grad():
        model.head.bias += added_to_bias
    step = build_step(settings, sequences(), model, Precision(device_type="cpu"))
    batches = training_batches(settings, sequences(), CPU).batches(0, 0)
    losses = [float(step(next(batches), 0.01)) for _ in range(steps)]
    return {name: p.detach() for name, p in model.named_parameters()}, losses


@pytest.mark.parametrize("settings", [{"head": "tied"}, {"head": "untied", "temperature": 0.1}])
def test_the_learned_scores_are_those_of_plain_training_less_the_popularity(settings):
    settings = settings | {"objective": "causal", "weight_decay": 0.0}
    offset = CORRECTION * log_popularity()
    corrected, losses = train(config(**settings, popularity_correction=CORRECTION), 0.0)
    plain, plain_losses = train(config(**settings), offset)
    assert losses == pytest.approx(plain_losses, rel=1e-5)
    plain["head.bias"] = plain["head.bias"] - offset
    for name, tensor in plain.items():
        torch.testing.assert_close(corrected[name], tensor, rtol=1e-4, atol=1e-5)
