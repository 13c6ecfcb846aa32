# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of small models with random weights, written as a training run writes them."""

import dataclasses

import numpy as np
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import MODEL_GROUP, NUM_ITEMS
from bert4rec.model.weights import weights_of as bert4rec_weights
from dlrm.config import DlrmConfig
from dlrm.model.network import Dlrm
from dlrm.model.weights import weights_of as dlrm_weights
from dlrm.nn.embedding import load_table, read_tables
from recsys.serve.manifest import Deployment
from recsys.train.checkpoint import MODEL
from recsys.train.saving.write import write_checkpoint
from tests.documents import change_document

TABLE_SIZES = (5, 200, 3000, 17)
NUM_NUMERICAL = 3
DLRM_SETTINGS = {
    "dataset_type": "synthetic_gpu",
    "num_numerical_features": NUM_NUMERICAL,
    "embedding_dim": 16,
    "bottom_mlp_sizes": [16, 16],
    "top_mlp_sizes": [16, 1],
    "optimized_mlp": False,
}
NUM_ITEMS_IN_CATALOGUE = 50
BERT4REC_SETTINGS = {"max_len": 12, "emb_dim": 16, "nhead": 2, "num_layers": 2}


def dlrm_checkpoint(path, table_sizes=TABLE_SIZES, **settings):
    """Writes a DLRM to a folder and returns (the folder, the model)."""
    config = DlrmConfig.from_dict(DLRM_SETTINGS | settings)
    torch.manual_seed(1)
    model = Dlrm(config.model, table_sizes).eval()
    # Larger than a fresh model's: the answers are to depend on the tables.
    for i, table in read_tables(model.embeddings).items():
        load_table(model.embeddings, i, torch.randn_like(table))
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm1d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    if model.id_statistics is not None:
        ids = [torch.randint(0, size, (1 << 16,)) for size in table_sizes]
        model.id_statistics.fit(torch.stack(ids, 1), torch.rand(1 << 16) < 0.3)
    write_checkpoint(path, dlrm_weights(model), {"step": 7, MODEL: "dlrm"}, config.to_dict())
    return path, model


@torch.inference_mode()
def logits_of(model, request):
    """Returns the [B, 1] logits of a DLRM for the features of a request."""
    categorical = torch.from_numpy(request["categorical"])
    numbers = request.get("numerical", np.empty((len(categorical), 0), np.float32))
    return model(torch.from_numpy(numbers), categorical).float().numpy()[:, None]


def bert4rec_checkpoint(
    path, num_items=NUM_ITEMS_IN_CATALOGUE, state=None, init_std=0.3, **settings
):
    """Writes a BERT4Rec to a folder and returns (the folder, the model)."""
    config = Bert4RecConfig.from_dict(BERT4REC_SETTINGS | settings)
    torch.manual_seed(1)
    model = Bert4Rec(config.model, num_items).eval()
    model.reset_parameters(init_std)
    state = {"step": 7, MODEL: "bert4rec", NUM_ITEMS: num_items} | (state or {})
    write_checkpoint(path, {MODEL_GROUP: bert4rec_weights(model)}, state, config.to_dict())
    return path, model


def without_checksums(version):
    """Takes the checksums of its files from a version, for damages behind them; returns it."""
    dataclasses.replace(Deployment.load(version), checksums={}).save(version)
    return version


def sign(version):
    """Gives a version the checksum of its changed deployment.json."""
    change_document(version / "deployment.json", lambda document: document)
