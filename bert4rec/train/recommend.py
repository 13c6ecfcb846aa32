# SPDX-License-Identifier: Apache-2.0
"""A BERT4Rec that recommends, with the catalogue of its dataset."""

import logging
from pathlib import Path

from bert4rec.config import Bert4RecConfig
from bert4rec.model.memory import loaded_memory
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import TrainedBert4Rec
from bert4rec.model.weights import Bert4RecCheckpoint
from bert4rec.train.resolve import model_settings
from recsys.errors import UserError
from recsys.ratings.answers import Catalogue
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.recommend import Recommender
from recsys.train.memory import require_memory
from recsys.train.recipe import adopt
from recsys.train.run import set_up_machine

logger = logging.getLogger(__name__)


def open_recommender(config: Bert4RecConfig) -> Recommender:
    """Loads the model and the ids of its items.

    Raises:
        UserError: a setting, the dataset or the checkpoint is refused.
    """
    if config.run.load_checkpoint_path is None:
        raise UserError(
            "`mode` recommend needs `load_checkpoint_path`, a trained model",
            settings=("mode", "load_checkpoint_path"),
        )
    loaded = Bert4RecCheckpoint.open(Path(config.run.load_checkpoint_path))
    machine = set_up_machine(config, logger.info)
    config = adopt(config, model_settings(config, loaded))
    dataset = OpenedHistories.open(config.data)
    catalogue = Catalogue.of(dataset, config.data)
    num_items, ignores = len(catalogue.raw_ids), config.run.ignore_fingerprint
    dataset.check_model(loaded.path, loaded.origin, num_items, ignore_fingerprint=ignores)
    require_memory(loaded_memory(config.model, num_items, config.adapter), machine.device)
    with machine.device:
        network = Bert4Rec(config.model, num_items, config.adapter)
    loaded.load_into(network)
    model = TrainedBert4Rec.of(network, causal=config.objective.objective == "causal")
    read = lambda: dataset.sequences(config.data, config.run.seed)  # noqa: E731
    return Recommender(dataset, read, model, machine.precision, catalogue)
