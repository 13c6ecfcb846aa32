# SPDX-License-Identifier: Apache-2.0
"""Times the training of RecBole's BERT4Rec (environment of `make recbole`).

    .venv-recbole/bin/python benchmark/peers/recbole_bert4rec.py --data FOLDER --batches 10

FOLDER/NAME.inter is the dataset, NAME being the last component of FOLDER. The result is one line of
JSON. Nothing of this repository is imported, because RecBole's environment lacks its packages.
"""

import argparse
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class MeasuredBatches:
    """The first batches of a loader, and the times of their requests.

    Attributes:
        requested_s: time of each request, and of the end.
        sizes: samples of each batch.
    """

    def __init__(self, loader: Any, count: int) -> None:
        self._loader = loader
        self._count = count
        self.requested_s: list[float] = []
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return min(self._count, len(self._loader))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        self.requested_s, self.sizes = [time.perf_counter()], []
        for number, batch in enumerate(self._loader):
            if number == self._count:
                break
            self.sizes.append(len(batch))
            yield batch
            self.requested_s.append(time.perf_counter())

    def samples_per_s(self, warmup: int) -> float:
        """Returns the rate after `warmup` batches, loading included."""
        return sum(self.sizes[warmup:]) / (self.requested_s[-1] - self.requested_s[warmup])


def settings(data: Path) -> dict[str, Any]:
    """Returns the settings that differ from RecBole's defaults."""
    return {
        "data_path": str(data.parent),
        "seed": 2020,
        "reproducibility": True,
        "use_gpu": False,
        "show_progress": False,
        "save_dataset": False,
        "checkpoint_dir": str(data / "saved"),
        "USER_ID_FIELD": "user_id",
        "ITEM_ID_FIELD": "item_id",
        "TIME_FIELD": "timestamp",
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "MAX_ITEM_LIST_LENGTH": 50,
        "train_batch_size": 2048,
        "eval_batch_size": 2048,
        "train_neg_sample_args": None,
        "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
        "metrics": ["Hit", "NDCG"],
        "topk": [10],
        "valid_metric": "NDCG@10",
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Trains an epoch; returns the JSON object to print."""
    import torch

    torch.set_num_threads(options.threads)
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    config = Config(model="BERT4Rec", dataset=options.data.name, config_dict=settings(options.data))
    # Importing a sequential model of RecBole turns anomaly detection on; get_model imports it, so
    # it must come before switching this off.
    init_seed(config["seed"], config["reproducibility"])
    model_class = get_model(config["model"])
    if options.anomaly_mode == "off":
        torch.autograd.set_detect_anomaly(False)
    train, _, _ = data_preparation(config, create_dataset(config))
    init_seed(config["seed"], config["reproducibility"])
    model = model_class(config, train._dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    batches = MeasuredBatches(train, options.batches)
    trainer._train_epoch(batches, 0)
    return {
        "samples_per_s": batches.samples_per_s(warmup=2),
        "train_samples": len(train._dataset),
        "parameters": sum(p.numel() for p in model.parameters()),
        "anomaly_mode": torch.is_anomaly_enabled(),
    }


def main() -> None:
    """Parses the command line and prints the result."""
    parser = argparse.ArgumentParser(description="RecBole's BERT4Rec, timed")
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.inter")
    parser.add_argument("--batches", type=int, required=True, help="batches of the epoch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--anomaly_mode", choices=("as_shipped", "off"), default="as_shipped")
    options = parser.parse_args()
    options.data = options.data.resolve()
    logging.disable(logging.WARNING)
    os.chdir(options.data)  # RecBole writes log folders where it runs
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
