# SPDX-License-Identifier: Apache-2.0
"""A BERT4Rec that does not fit in memory is refused before it is allocated."""

import dataclasses

import pytest

from bert4rec.config import Bert4RecConfig
from bert4rec.model.memory import loaded_memory, trained_memory
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import Bert4RecCheckpoint
from bert4rec.train.step import Bert4RecTrainStep
from recsys.train.memory import OutOfMemoryError
from recsys.train.optimizers.precision import Precision
from tests.harness import assert_tells, refusal

WIDE = ("--emb_dim=100000000", "--nhead=1")


@pytest.mark.parametrize("mode", ["train", "test", "inference_benchmark"])
def test_what_needs_the_memory_is_named(refused, dataset, mode):
    message = refused(f"--dataset_path={dataset}", *WIDE, f"--mode={mode}")
    assert_tells(message, "29.8 GiB", "--emb_dim")
    assert ("--loss sampled" in message) == (mode == "train")


def test_a_checkpoint_that_does_not_fit_is_not_deployed(trained):
    stored = Bert4RecCheckpoint.open(trained)
    assert stored.load().num_items == stored.num_items
    with refusal("58.2 TiB", kind=OutOfMemoryError):
        dataclasses.replace(stored, num_items=10**12).load()


@pytest.mark.parametrize(
    ("settings", "items"),
    [
        ({"loss": "full"}, 5000),
        ({"loss": "full", "head": "tied"}, 5000),
        ({"loss": "sampled"}, 5000),
        ({"adapter": "lora", "load_checkpoint_path": "base"}, 500),
        ({"adapter": "ilora", "load_checkpoint_path": "base"}, 500),
    ],
    ids=str,
)
def test_the_count_is_what_training_allocates(settings, items):
    small = {"emb_dim": 32, "nhead": 2, "num_layers": 1, "max_len": 8}
    config = Bert4RecConfig.from_dict(small | settings)
    model = Bert4Rec(config.model, items, config.adapter)
    step = Bert4RecTrainStep(model, config, Precision(device_type="cpu"))
    gradients = [p for p in model.parameters() if p.requires_grad]
    states = [*step.optimizer.state().values(), *step.item_state().values()]
    tensors = [*model.parameters(), *gradients, *states]
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    counted = trained_memory(config, items, "adam").total
    # The biases of the items are counted as layers, even where they are updated by rows.
    tolerance = 0.01 if "adapter" in settings else 0.03
    assert counted == pytest.approx(allocated, rel=tolerance)
    assert loaded_memory(config.model, items).total < allocated
    kept = trained_memory(config, items, "adam", keeps_best=True).total
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert kept - counted == pytest.approx(weights, rel=0.01)
