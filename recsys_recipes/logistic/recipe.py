# SPDX-License-Identifier: Apache-2.0
"""A run with a model of clicks that is fitted at once: fit, save, test, predict."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dlrm.config import ModelConfig
from dlrm.data.batch import Batch
from dlrm.data.loader import BatchLoader
from dlrm.data.opened import OpenedDataset
from dlrm.model.clicks import ClickModel, StoredClicks
from dlrm.train.baselines.company import Company
from dlrm.train.baselines.fit_rows import FitRows
from dlrm.train.checkpoint import ROWS
from dlrm.train.evaluate import SplitScores, SplitTest, score_split
from dlrm.train.predict import check_predictions_path, predict_split
from recsys.data.row_reader import RowReader
from recsys.errors import UserError
from recsys.train.checkpoint import MODEL
from recsys.train.config import FitKind
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, set_threads
from recsys.train.recipe import PrintLine, adopt
from recsys.train.run_log import begun_log
from recsys.train.saving.run_folder import CheckpointFolder, check_new
from recsys_recipes.logistic.config import ClicksConfig

_FOLDER = "save_checkpoint_path"
_HOST = torch.device("cpu")


class FittedClicks(Protocol):
    """A model that was fitted, with what its checkpoint holds."""

    @property
    def settings(self) -> Any:
        """Settings of the model, with the values that it chose itself filled in."""

    @property
    def network(self) -> ClickModel[Any]:
        """The model."""

    def groups(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Returns its tensors by group and name."""

    def values(self) -> Mapping[str, Any]:
        """Returns plain values that the checkpoint keeps."""

    def add_files(self, folder: Path) -> None:
        """Writes the other files of the checkpoint's folder."""


class ClicksKind(FitKind, Protocol):
    """A kind of model of clicks that is fitted at once, without steps."""

    def begins_with(self, settings: Any) -> StoredClicks | None:
        """Returns the model of the same data that the fit starts from; None without one."""

    def fit(self, rows: FitRows, settings: Any, print_line: PrintLine) -> FittedClicks:
        """Fits the model to the training rows."""

    def open_stored(self, path: Path) -> StoredClicks:
        """Opens a checkpoint, or the folder of a run."""

    def parts(self, model: ClickModel[Any]) -> Mapping[str, ClickModel[Any]]:
        """Returns the models that a model consists of, by name; a test compares with them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClicksRecipe:
    """A fitted model of clicks, its settings and its data.

    Attributes:
        kind: kind of the model.
        config: settings, completed from the checkpoint.
        rows: rows of the dataset.
        stored: the checkpoint to load; None without one.
        print_line: prints a line.
    """

    kind: ClicksKind
    config: ClicksConfig
    rows: FitRows
    stored: StoredClicks | None
    print_line: PrintLine

    @classmethod
    def open(cls, kind: ClicksKind, config: ClicksConfig, print_line: PrintLine) -> "ClicksRecipe":
        """Completes the settings, and opens dataset and checkpoint.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
        """
        set_threads(config.run.num_threads, ALONE)
        stored = None
        if config.run.load_checkpoint_path is not None:
            stored = kind.open_stored(Path(config.run.load_checkpoint_path))
            config = adopt(config, stored.checkpoint.settings(kind.settings_class))
        known = kind.begins_with(config.model) if config.run.mode == "train" else stored
        num_numerical = ModelConfig().num_numerical_features
        if known is not None:
            num_numerical = known.num_numerical
            config = adopt(config, {"num_embeddings_per_feature": known.given_sizes})
        dataset = OpenedDataset.open(config.data, num_numerical)
        if config.run.mode != "predict" and not dataset.has_labels:
            raise UserError(
                f"`dataset` {dataset.root}: its rows have no labels; it works only with "
                "`mode` predict",
                settings=("dataset", "mode"),
            )
        for line in dataset.column_lines:
            print_line(line)
        hashes = config.model.hash_indices if known is None else known.hash_indices
        if known is not None:
            sizes = dataset.spec.table_sizes
            # A model that hashes ids may have fewer rows than there are ids.
            own = known.table_sizes if hashes and len(known.table_sizes) == len(sizes) else sizes
            known.check_dataset(
                dataset.origin(own),
                str(config.data.dataset),
                ignore_fingerprint=config.run.ignore_fingerprint,
            )
        rows = FitRows(config.data, dataset, check_ids=not hashes)
        return cls(kind=kind, config=config, rows=rows, stored=stored, print_line=print_line)

    def train(self) -> None:
        """Fits the model, saves and tests it.

        Raises:
            UserError: a file cannot be written, or the rows are refused.
        """
        folder = self.config.checkpoint_folder
        if folder is not None:
            check_new(folder, _FOLDER, can_resume=False)
        self.rows.reader(self.config.data.eval_split)  # refuses a missing split before the fit
        with begun_log(self.config.log_file, self.config.to_dict()) as log:
            started = time.perf_counter()
            fitted = self.kind.fit(self.rows, self.config.model, self.print_line)
            elapsed = time.perf_counter() - started
            self.print_line(f"{self.kind.title}, fitted in {elapsed:,.1f} s: {fitted}")
            if folder is None:
                self.print_line(f"Nothing will be saved without `{_FOLDER}`")
            else:
                self._save(CheckpointFolder(folder), fitted)
            log.record((), self._test(fitted.network))

    def _save(self, folder: CheckpointFolder, fitted: FittedClicks) -> None:
        dataset = self.rows.dataset
        state = {MODEL: self.kind.name, **dataset.origin(dataset.spec.table_sizes).values()}
        if dataset.manifest is not None:
            state[ROWS] = dataset.manifest.fingerprint
        config = dataclasses.replace(self.config, model=fitted.settings).to_dict()
        with folder.held(_FOLDER):
            path = folder.save(
                0,
                fitted.groups(),
                state | dict(fitted.values()),
                config,
                is_best=True,
                add=fitted.add_files,
            )
        self.print_line(f"Saved {path}")

    def test(self) -> None:
        """Tests the model of the checkpoint.

        Raises:
            UserError: the checkpoint or the dataset is damaged.
        """
        with begun_log(self.config.log_file, self.config.to_dict()) as log:
            log.record((), self._test(self._loaded()))

    def predict(self) -> None:
        """Writes the predictions of the checkpoint's model for `eval_split`.

        Raises:
            UserError: the file cannot be written, or the checkpoint or the dataset is damaged.
        """
        assert self.config.run.predictions is not None
        path = Path(self.config.run.predictions)
        check_predictions_path(path)
        with begun_log(self.config.log_file, self.config.to_dict()) as log:
            values = predict_split(
                path,
                self._loaded(),
                self._batches(),
                self.rows.dataset,
                Precision(device_type="cpu"),
                self.print_line,
            )
            log.record((), values)

    def _loaded(self) -> ClickModel[Any]:
        assert self.stored is not None
        return self.stored.load(has_lists=bool(self.rows.dataset.spec.lists))

    def _batches(self) -> BatchLoader:
        data = self.config.data
        return batches_of(self.rows.reader(data.eval_split), data.test_batch_size)

    def _test(self, model: ClickModel[Any]) -> dict[str, Any]:
        run, size = self.config.run, self.config.data.test_batch_size
        test = SplitTest(self.config.data, self.rows.dataset, run.gauc_by, self.print_line)
        rows = self.rows.reader(self.config.data.eval_split)
        scores = score_rows(model, rows, size, test.groups_of())
        values = test.report(scores, "Finished testing")
        test.report_health(scores.metrics)
        parts = self.kind.parts(model)
        if run.baselines or parts:
            of_parts = {
                name: score_rows(part, rows, size).logits.double().numpy()
                for name, part in parts.items()
            }
            company = Company(self.rows, run.baselines, self.print_line)
            logits, labels = scores.logits.double().numpy(), scores.labels.numpy()
            values |= company.beside(logits, labels, of_parts)
        return values


def batches_of(rows: RowReader, batch_size: int) -> BatchLoader:
    """Opens all rows of a split in batches on the host, in order."""
    return BatchLoader(source=rows, batch_size=batch_size, device=_HOST, drop_last=False)


def score_rows(
    model: ClickModel[Any],
    rows: RowReader,
    batch_size: int,
    groups_of: Callable[[Batch[Any]], Tensor] | None = None,
) -> SplitScores:
    """Evaluates a model on all rows of a split, on the host; see `score_split`."""
    batches, precision = batches_of(rows, batch_size).batches(), Precision(device_type="cpu")
    return score_split(model, batches, precision, _HOST, groups_of=groups_of)
