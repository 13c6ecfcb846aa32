# SPDX-License-Identifier: Apache-2.0
"""RecBole's BERT4Rec at ml-100k's size (environment of `make recbole`).

    .venv-recbole/bin/python benchmark/peers/recbole_bert4rec.py --data FOLDER --batches 10

FOLDER holds NAME/NAME.inter, NAME being its last part. Prints one line of JSON. It imports nothing
of this repository: that environment has not got what the rest needs.
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
    """The first batches of a loader, with their request times.

    Args:
        loader: RecBole's; shuffles anew whenever it is gone through.
        count: batches to give; None gives all.

    Attributes:
        asked_s: when each was asked for, and when the end was.
        sizes: samples of each.
    """

    def __init__(self, loader: Any, count: int | None) -> None:
        self._loader = loader
        self._count = count
        self.asked_s: list[float] = []
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._loader) if self._count is None else min(self._count, len(self._loader))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        self.asked_s, self.sizes = [time.perf_counter()], []
        for number, batch in enumerate(self._loader):
            if number == self._count:
                break
            self.sizes.append(len(batch))
            yield batch
            self.asked_s.append(time.perf_counter())

    def samples_per_s(self, warmup: int) -> float:
        """Returns the rate after `warmup` batches, with the time that loading took."""
        return sum(self.sizes[warmup:]) / (self.asked_s[-1] - self.asked_s[warmup])


def settings(data: Path, batch_size: int, max_len: int, seed: int) -> dict[str, Any]:
    """Returns what differs from the defaults of RecBole and of its BERT4Rec."""
    return {
        "data_path": str(data.parent),
        "seed": seed,
        "reproducibility": True,
        "use_gpu": False,
        "show_progress": False,
        "save_dataset": False,
        "checkpoint_dir": str(data / "saved"),
        "USER_ID_FIELD": "user_id",
        "ITEM_ID_FIELD": "item_id",
        "TIME_FIELD": "timestamp",
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "MAX_ITEM_LIST_LENGTH": max_len,
        "train_batch_size": batch_size,
        "eval_batch_size": batch_size,
        "train_neg_sample_args": None,
        "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
        "metrics": ["Hit", "NDCG"],
        "topk": [10],
        "valid_metric": "NDCG@10",
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Trains and evaluates; returns the figures."""
    import torch

    torch.set_num_threads(options.threads)
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    config = Config(
        model="BERT4Rec",
        dataset=options.data.name,
        config_dict=settings(options.data, options.batch_size, options.max_len, options.seed),
    )
    # Importing RecBole's sequential models turns this on for the whole process; get_model, which
    # imports the one in use, is called first so that switching it off lasts.
    init_seed(config["seed"], config["reproducibility"])
    model_class = get_model(config["model"])
    if options.anomaly_mode == "off":
        torch.autograd.set_detect_anomaly(False)
    train, valid, test = data_preparation(config, create_dataset(config))
    init_seed(config["seed"], config["reproducibility"])
    model = model_class(config, train._dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    batches = MeasuredBatches(train, options.batches)
    curve = []
    training_s = 0.0
    for epoch in range(options.epochs):
        loss = trainer._train_epoch(batches, epoch) / len(batches.sizes)
        training_s += batches.asked_s[-1] - batches.asked_s[0]
        curve.append({"epoch": epoch + 1, "training_s": training_s, "loss": loss})
        if options.evaluate:
            for name, split in (("valid", valid), ("test", test)):
                metrics = trainer.evaluate(split, load_best_model=False)
                curve[-1] |= {f"{name}_{key}": value for key, value in metrics.items()}
    return {
        "samples_per_s": batches.samples_per_s(options.warmup),
        "train_samples": len(train._dataset),
        "parameters": sum(p.numel() for p in model.parameters()),
        "anomaly_mode": torch.is_anomaly_enabled(),
        "curve": curve,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="RecBole's BERT4Rec, timed")
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.inter")
    parser.add_argument("--batches", type=int, help="batches of an epoch; by default all")
    parser.add_argument("--warmup", type=int, default=2, help="batches left out of the rate")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=2048)
    parser.add_argument("--max_len", type=int, default=50)
    parser.add_argument("--seed", type=int, default=2020)
    parser.add_argument("--anomaly_mode", choices=("as_shipped", "off"), default="as_shipped")
    parser.add_argument("--evaluate", action="store_true", help="rank after each epoch")
    options = parser.parse_args()
    options.data = options.data.resolve()
    logging.disable(logging.WARNING)
    os.chdir(options.data)  # RecBole writes log folders where it runs
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
