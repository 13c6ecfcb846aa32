# SPDX-License-Identifier: Apache-2.0
"""Training with a part of the log popularity taken out of the scores."""

import pytest
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.data.negative_sampler import log_popularity
from bert4rec.data.sources import open_sequences
from recsys.train.checkpoint import read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from recsys.train.saving.write import write_checkpoint
from tests.bert4rec.steps import config, make_model, sequences, train

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
    for found, expected in zip(corrected[1].parameters(), shifted.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_is_tested_with_any_correction(program, tmp_path):
    """The scores of a checkpoint change as if it had been trained with the other correction."""
    base = (
        "--dataset_name=random", "--random_user_count=150", "--random_item_count=60",
        "--random_size=4000", "--emb_dim=8", "--max_len=8", "--dupe_factor=1",
        "--num_eval_negatives=20",
    )  # fmt: skip
    run = tmp_path / "run"
    flags = ("--max_steps=30", "--lr=0.02", "--popularity_correction=0.75")
    program(*base, *flags, f"--export_root={run}", model=())

    def tested(*flags):
        given = (*base, "--mode=test", f"--load_checkpoint_path={run}", *flags)
        (*_, last) = program(*given, model=())
        return {name: last["data"][name] for name in ("test_popular_mrr", "test_full_mrr")}

    as_trained = tested()
    assert as_trained == tested("--popularity_correction=0.75")
    without = tested("--popularity_correction=0")
    assert as_trained != without
    # The same, by hand: a checkpoint without correction whose biases are the higher ones.
    saved = read_checkpoint(CheckpointFolder(run).best())
    weights = saved.tensors("model")
    config = Bert4RecConfig.from_dict(saved.config)
    trained_on = open_sequences(config.data, config.run.seed)
    weights["head.bias"] = weights["head.bias"] + 0.75 * log_popularity(trained_on)
    run = tmp_path / "by_hand"
    write_checkpoint(
        run, {"model": weights}, saved.state, saved.config | {"popularity_correction": 0.0}
    )
    assert tested() == without
