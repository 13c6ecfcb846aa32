# SPDX-License-Identifier: Apache-2.0
"""A deployed BERT4Rec that serves requests."""

import torch
from torch import Tensor

from bert4rec.config import AdapterConfig, ModelConfig
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import TrainedBert4Rec
from recsys.ratings.served import ServedRatings
from recsys.serve.manifest import Deployment
from recsys.settings import section_from_dict
from recsys.train.memory import shapes_alone


class ServedBert4Rec(ServedRatings):
    """A loaded version of a BERT4Rec."""

    kind = Bert4Rec.name

    @classmethod
    def build(
        cls, deployment: Deployment, weights: dict[str, Tensor], device: torch.device
    ) -> TrainedBert4Rec:
        """Builds the network around deployed weights, without a copy."""
        config = section_from_dict(ModelConfig, deployment.model["config"])
        adapter = section_from_dict(AdapterConfig, deployment.model.get("adapter", {}))
        with shapes_alone():
            network = Bert4Rec(config, deployment.model["num_items"], adapter)
        network.load_state_dict(weights, assign=True)
        network = network.requires_grad_(False).to(device)
        return TrainedBert4Rec.of(network, causal=deployment.model["causal"])
