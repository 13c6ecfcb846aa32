# SPDX-License-Identifier: Apache-2.0
"""Trains and times RecBole's BERT4Rec (environment of `make recbole`).

    .venv-recbole/bin/python benchmark/peers/recbole_bert4rec.py --data FOLDER --batches 10

FOLDER/NAME.inter is the dataset, NAME being the last component of FOLDER. The result is one line of
JSON. With `--evaluate`, training ends where RecBole's own early stop ends it. With `--checkpoint`,
a second run continues the first. Nothing of this repository is imported, because RecBole's
environment lacks its packages.
"""

import argparse
import json
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class MeasuredBatches:
    """A loader's first batches, with the times when they were requested.

    Args:
        loader: RecBole's loader, which shuffles in every iteration.
        count: number of batches to yield; None yields all.

    Attributes:
        requested_s: time of each request, and of the end.
        sizes: samples of each batch.
    """

    def __init__(self, loader: Any, count: int | None) -> None:
        self._loader = loader
        self._count = count
        self.requested_s: list[float] = []
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._loader) if self._count is None else min(self._count, len(self._loader))

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


def settings(data: Path, batch_size: int, max_len: int, seed: int) -> dict[str, Any]:
    """Returns the settings that differ from RecBole's defaults."""
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


class Curve:
    """Metrics of each epoch, kept in a file with the training state.

    Args:
        trainer: RecBole's trainer; continues from the file if it exists.
        path: file to keep; None keeps none.
    """

    def __init__(self, trainer: Any, path: Path | None) -> None:
        self.points: list[dict[str, float]] = []
        self._trainer = trainer
        self._path = path
        if path is not None and path.is_file():
            self._load(path)

    def add(self, point: dict[str, float]) -> bool:
        """Adds an epoch; returns whether RecBole stops early here."""
        from recbole.utils import early_stopping

        self.points.append(point)
        print(json.dumps(point), file=sys.stderr, flush=True)
        trainer, stop = self._trainer, False
        if "valid_ndcg@10" in point:
            trainer.best_valid_score, trainer.cur_step, stop, _ = early_stopping(
                point["valid_ndcg@10"],
                trainer.best_valid_score,
                trainer.cur_step,
                max_step=trainer.stopping_step,
                bigger=True,
            )
        if self._path is not None:
            self._save(self._path)
        return bool(stop)

    def stopped(self) -> bool:
        """Returns whether training has been stopped early."""
        return bool(self._trainer.cur_step > self._trainer.stopping_step)

    def _save(self, path: Path) -> None:
        import numpy as np
        import torch

        state = {
            "points": self.points,
            "cur_step": self._trainer.cur_step,
            "best_valid_score": self._trainer.best_valid_score,
            "model": self._trainer.model.state_dict(),
            "optimizer": self._trainer.optimizer.state_dict(),
            "python": random.getstate(),
            "numpy": np.random.get_state(),  # noqa: NPY002 -- RecBole shuffles with it
            "torch": torch.get_rng_state(),
        }
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(path)

    def _load(self, path: Path) -> None:
        import numpy as np
        import torch

        state = torch.load(path, weights_only=False)
        self.points = state["points"]
        self._trainer.cur_step = state["cur_step"]
        self._trainer.best_valid_score = state["best_valid_score"]
        self._trainer.model.load_state_dict(state["model"])
        self._trainer.optimizer.load_state_dict(state["optimizer"])
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002
        torch.set_rng_state(state["torch"])


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Trains and evaluates; returns the JSON object to print."""
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
    # Importing a sequential model of RecBole turns anomaly detection on; get_model imports it, so
    # it must come before switching this off.
    init_seed(config["seed"], config["reproducibility"])
    model_class = get_model(config["model"])
    if options.anomaly_mode == "off":
        torch.autograd.set_detect_anomaly(False)
    train, valid, test = data_preparation(config, create_dataset(config))
    init_seed(config["seed"], config["reproducibility"])
    model = model_class(config, train._dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    batches = MeasuredBatches(train, options.batches)
    curve = Curve(trainer, options.checkpoint)
    for epoch in range(len(curve.points), options.epochs):
        if curve.stopped():
            break
        before = curve.points[-1]["training_s"] if curve.points else 0.0
        loss = trainer._train_epoch(batches, epoch) / len(batches.sizes)
        training_s = before + batches.requested_s[-1] - batches.requested_s[0]
        point = {"epoch": epoch + 1, "training_s": training_s, "loss": loss}
        if options.evaluate:
            for name, split in (("valid", valid), ("test", test)):
                metrics = trainer.evaluate(split, load_best_model=False)
                point |= {f"{name}_{key}": value for key, value in metrics.items()}
        if curve.add(point):
            break
    return {
        "samples_per_s": batches.samples_per_s(options.warmup) if batches.sizes else None,
        "train_samples": len(train._dataset),
        "parameters": sum(p.numel() for p in model.parameters()),
        "anomaly_mode": torch.is_anomaly_enabled(),
        "curve": curve.points,
    }


def main() -> None:
    """Parses the command line and prints the result."""
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
    parser.add_argument("--checkpoint", type=Path, help="file to continue from and to keep")
    options = parser.parse_args()
    options.data = options.data.resolve()
    options.checkpoint = options.checkpoint and options.checkpoint.resolve()
    logging.disable(logging.WARNING)
    os.chdir(options.data)  # RecBole writes log folders where it runs
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
