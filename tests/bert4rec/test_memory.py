# SPDX-License-Identifier: Apache-2.0
"""A BERT4Rec that does not fit in memory is refused before it is allocated."""

import dataclasses

import pytest

from bert4rec.config import Bert4RecConfig
from bert4rec.model.memory import trained_memory
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import OpenedCheckpoint
from bert4rec.train.step import Bert4RecTrainStep
from recsys.train.memory import OutOfMemoryError
from recsys.train.optimizers.precision import Precision

WIDE = ("--emb_dim=100000000", "--nhead=1")


@pytest.mark.parametrize("mode", ["train", "test", "inference_benchmark"])
def test_what_needs_the_memory_is_named(program, dataset, capsys, mode):
    assert program(f"--dataset_path={dataset}", *WIDE, f"--mode={mode}") == []
    assert program.exit_code == 2
    message = capsys.readouterr().err
    assert "29.8 GiB of item tables" in message
    assert "are available on this machine. Largest tables: item embeddings " in message
    assert "To change: a smaller --emb_dim" in message
    assert ("--loss sampled" in message) == (mode == "train")


def test_a_checkpoint_that_does_not_fit_is_not_deployed(program, dataset, tmp_path):
    program(f"--dataset_path={dataset}", f"--export_root={tmp_path / 'run'}", "--max_steps=1")
    stored = OpenedCheckpoint.open(tmp_path / "run")
    assert stored.load().num_items == stored.num_items
    with pytest.raises(OutOfMemoryError, match=r"116\.4 TiB of item tables"):
        dataclasses.replace(stored, num_items=10**12).load()


@pytest.mark.parametrize(
    "settings", [{"loss": "full"}, {"loss": "full", "head": "tied"}, {"loss": "sampled"}]
)
def test_the_count_is_what_training_allocates(settings):
    items = 5000
    small = {"emb_dim": 32, "nhead": 2, "num_layers": 1, "max_len": 8}
    config = Bert4RecConfig.from_dict(small | settings)
    model = Bert4Rec(config.model, items)
    step = Bert4RecTrainStep(model, config, Precision(device_type="cpu"))
    tensors = [*model.parameters(), *step.optimizer.state().values(), *step.item_state().values()]
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    gradients = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
    counted = trained_memory(config, items, "adam").total
    # The biases of the items are counted as layers, even where they are updated by rows.
    assert counted == pytest.approx(allocated + gradients, rel=0.03)
