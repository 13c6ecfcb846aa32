# SPDX-License-Identifier: Apache-2.0
"""What a deployed version is worth on a dataset, beside the checkpoint it was made from."""

from pathlib import Path

import numpy as np
import torch

from dlrm.config import DataConfig, DatasetType
from dlrm.data.sources import load_feature_spec, open_rows
from dlrm.model.single import Dlrm
from dlrm.train.metrics import roc_auc
from serving.requests import Arrays
from serving.served import ServedModel
from serving.signature import CATEGORICAL, LOGIT, NUMERICAL

_ROWS = 16384


@torch.inference_mode()
def auc_of_split(
    model: Dlrm, served: ServedModel, dataset: Path, dataset_type: DatasetType, split: str
) -> tuple[float, float]:
    """Scores a split with the model as it was trained, and as it was deployed.

    Args:
        model: as it was trained, in evaluation mode.
        served: a deployed version of it.
        dataset: folder of the dataset.
        dataset_type: of the dataset.
        split: `validation` or `test`.

    Returns:
        (AUC of the model, AUC of the version).

    Raises:
        DatasetError: the dataset is missing, damaged or of other features.
    """
    config = DataConfig(dataset=str(dataset), dataset_type=dataset_type)
    spec = load_feature_spec(config, model.num_numerical_features)
    rows = open_rows(config, split, spec, check_ids=not model.embeddings.hash_indices)
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for start in range(0, rows.num_rows, _ROWS):
        columns = rows.read(start, min(start + _ROWS, rows.num_rows))
        numerical = columns.numerical.astype(np.float32)
        categorical = np.stack(columns.categorical, axis=1).astype(np.int64)
        request: Arrays = {NUMERICAL: numerical, CATEGORICAL: categorical}
        served.check(request)
        (answer,) = served.predict([request])
        trained = model(torch.from_numpy(numerical), torch.from_numpy(categorical))
        found.append(
            (
                trained.to(torch.float32),
                torch.from_numpy(answer[LOGIT][:, 0]),
                torch.from_numpy(columns.label.astype(np.bool_)),
            )
        )
    was, now, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return roc_auc(was, labels), roc_auc(now, labels)
