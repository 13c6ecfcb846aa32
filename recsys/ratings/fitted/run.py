# SPDX-License-Identifier: Apache-2.0
"""Fits a model, tests it, and recommends with it."""

import dataclasses
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from recsys.data.sequences.histories import Sequences
from recsys.ratings.answers import Catalogue
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.data.resolve import data_settings
from recsys.ratings.data.split import Split, count_users
from recsys.ratings.fitted.config import FittedConfig
from recsys.ratings.fitted.stored import GROUP, NUM_ITEMS
from recsys.ratings.model import RatingsModel, StoredModel
from recsys.ratings.ranking.evaluate import Negatives, SplitRanks, host_machine, rank_on_host
from recsys.ratings.ranking.metrics import flat_metrics, metrics_of
from recsys.ratings.ranking.negatives import negatives_of_targets
from recsys.ratings.ranking.report import Baseline, check_result_files, report_test, write_files
from recsys.ratings.recommend import Recommender
from recsys.train.checkpoint import MODEL
from recsys.train.config import FitKind
from recsys.train.optimizers.precision import Precision
from recsys.train.origin import FINGERPRINT
from recsys.train.processes import ALONE, set_threads
from recsys.train.recipe import PrintLine, adopt
from recsys.train.run_log import begun_log
from recsys.train.saving.run_folder import CheckpointFolder, check_new

_FOLDER = "export_root"


class Fitted(RatingsModel, Protocol):
    """A fitted model and the contents of its checkpoint."""

    @property
    def settings(self) -> Any:
        """Settings of the model, including values that the fit chose."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns its tensors by name."""

    def add_files(self, folder: Path) -> None:
        """Writes any other files of the checkpoint folder."""


class StoredFit(StoredModel, Protocol):
    """A checkpoint of a fitted model."""

    @property
    def settings(self) -> Any:
        """Settings of the model."""


class Kind(FitKind, Protocol):
    """A kind of model that is fitted in one call, not by steps."""

    def begins_with(self, settings: Any) -> StoredModel | None:
        """Returns the model that the fit starts from, trained on the same data; None for none."""

    def fit(self, sequences: Sequences, settings: Any) -> Fitted:
        """Fits the model to the training items."""

    def open_stored(self, path: Path) -> StoredFit:
        """Opens a checkpoint, or the folder of a run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedRecipe:
    """A fitted model, its settings and its data.

    Attributes:
        kind: kind of the model.
        config: settings, completed from the dataset and the checkpoint.
        sequences: histories of the dataset, split.
        stored: checkpoint to load, or None.
    """

    kind: Kind
    config: FittedConfig
    dataset: OpenedHistories
    sequences: Sequences
    stored: StoredFit | None
    print_line: PrintLine

    @classmethod
    def open(cls, kind: Kind, config: FittedConfig, print_line: PrintLine) -> "FittedRecipe":
        """Completes the settings, and opens the histories and the checkpoint.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
        """
        set_threads(config.run.num_threads, ALONE)
        stored, ignores = None, config.run.ignore_fingerprint
        if config.run.load_checkpoint_path is not None:
            stored = kind.open_stored(Path(config.run.load_checkpoint_path))
            config = adopt(config, dataclasses.asdict(stored.settings))
        dataset = OpenedHistories.open(config.data)
        known: StoredModel | None = stored
        if config.run.mode == "train":
            known = kind.begins_with(config.model)
        checkpoint = None if known is None else known.checkpoint
        changes = data_settings(config, dataset, checkpoint, ignore_fingerprint=ignores)
        config = adopt(config, changes)
        sequences = dataset.sequences(config.data, config.run.seed)
        if known is not None:
            dataset.check_model(
                *(known.path, known.origin, sequences.num_items), ignore_fingerprint=ignores
            )
        return cls(
            kind=kind,
            config=config,
            dataset=dataset,
            sequences=sequences,
            stored=stored,
            print_line=print_line,
        )

    def train(self, baselines: Mapping[str, Baseline]) -> None:
        """Fits the model, saves and tests it.

        Raises:
            UserError: a file cannot be written, or memory is too small.
        """
        folder = self.config.checkpoint_folder
        if folder is not None:
            check_new(folder, _FOLDER, can_resume=False)
        check_result_files(self.config.evaluation, self.sequences)
        with begun_log(self.config.log_file, self.config.to_dict()) as log:
            self.print_line(count_users(self.sequences, least_items=1))
            started = time.perf_counter()
            model = self.kind.fit(self.sequences, self.config.model)
            elapsed = time.perf_counter() - started
            self.print_line(f"{self.kind.title}, fitted in {elapsed:,.1f} s: {model}")
            metrics = metrics_of(self.rank(model, "validation").ranks)
            values = flat_metrics(metrics)
            best = metrics["full"]["ndcg@10"]
            self.print_line(f"Validation: full ndcg@10 {best:.6f}")
            log.record((0, 0), values)
            if folder is None:
                self.print_line(f"Nothing will be saved without `{_FOLDER}`")
            else:
                self._save(CheckpointFolder(folder), model, best)
            log.record((), self._test(model, baselines))

    def _save(self, folder: CheckpointFolder, model: Fitted, best: float) -> None:
        state = {
            MODEL: self.kind.name,
            NUM_ITEMS: model.num_items,
            FINGERPRINT: self.dataset.fingerprint,
            "best_metric": best,
        }
        config = dataclasses.replace(self.config, model=model.settings).to_dict()
        with folder.held(_FOLDER):
            tensors = model.tensors()
            groups = {GROUP: tensors} if tensors else {}
            path = folder.save(0, groups, state, config, is_best=True, add=model.add_files)
        self.print_line(f"Saved {path}")

    def test(self, baselines: Mapping[str, Baseline]) -> None:
        """Tests the model of the checkpoint.

        Raises:
            UserError: a file cannot be written, or the checkpoint is damaged.
        """
        check_result_files(self.config.evaluation, self.sequences)
        with begun_log(self.config.log_file, self.config.to_dict()) as log:
            log.record((), self._test(self._loaded(), baselines))

    def _loaded(self) -> RatingsModel:
        assert self.stored is not None
        return self.stored.open_model()

    @functools.cached_property
    def _negatives(self) -> Negatives:
        return negatives_of_targets(self.sequences, self.config, self.print_line)

    def rank(self, model: RatingsModel, split: Split) -> SplitRanks:
        """Ranks the targets of a split."""
        return rank_on_host(
            *(model, self.sequences, split, self._negatives),
            batch_size=self.config.run.test_batch_size,
            list_length=self.config.lists.top_k if split == "test" else 0,
        )

    def _test(self, model: RatingsModel, baselines: Mapping[str, Baseline]) -> dict[str, Any]:
        ranked, files = self.rank(model, "test"), self.config.evaluation
        write_files(files, self.dataset, self.sequences, ranked, self.print_line)
        chosen = {n: baselines[n] for n in files.baselines if n != self.kind.name}
        host = host_machine(self.print_line)
        return report_test(self.sequences, self._negatives, ranked, host, chosen)

    def recommender(self) -> Recommender:
        """Loads the model and the catalogue of its dataset."""
        catalogue = Catalogue.of(self.dataset, self.config.data)
        precision = Precision(device_type="cpu")
        return Recommender(
            self.dataset, lambda: self.sequences, self._loaded(), precision, catalogue
        )
