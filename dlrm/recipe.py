# SPDX-License-Identifier: Apache-2.0
"""Recipe of a DLRM run: opens data and model, trains, evaluates and reports."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dlrm.config import BestBy, DlrmConfig
from dlrm.data.batch import Batch, SplitBatches
from dlrm.data.check_rows import check_rows
from dlrm.data.loader import NoBatchError
from dlrm.data.open_split import SplitPass
from dlrm.data.opened import OpenedDataset
from dlrm.data.synthetic import ensure_synthetic_dataset
from dlrm.model.network import Dlrm, DlrmNetwork
from dlrm.model.nvidia_checkpoint import is_nvidia_checkpoint
from dlrm.model.weights import DlrmCheckpoint
from dlrm.nn.growing_rows import draw_new_rows, serve_new_rows
from dlrm.train.baselines.company import Company
from dlrm.train.baselines.fit_rows import FitRows
from dlrm.train.checkpoint import (
    DAYS,
    ROWS,
    check_position,
    check_same_rows,
    restore_state,
    saved_state,
)
from dlrm.train.devices import build_model, build_train_step, open_batches
from dlrm.train.evaluate import SplitScores, SplitTest, check_auc, score_split, undefined_auc
from dlrm.train.explain import explain, explanation_lines
from dlrm.train.graphs import GraphedInference, GraphedTrainStep
from dlrm.train.metrics import ClickMetrics
from dlrm.train.predict import check_predictions_path, predict_split
from dlrm.train.quantize import quantize
from dlrm.train.resolve import check_warmup, refuse_batch_of_one, resolve, take_model
from dlrm.train.statistics import find_knots, fit_id_statistics
from dlrm.train.step import DlrmTrainStep, seed_draws
from recsys.errors import UserError
from recsys.settings import fixed_settings
from recsys.train.checkpoint import MODEL, Checkpoint
from recsys.train.loop import Evaluation, FitResult, LoopConfig, LoopState, Metric, TrainStep
from recsys.train.measure.timing import DISTINCT_INPUTS, rate_in_words
from recsys.train.optimizers.schedule import Schedule, WarmupPolynomialDecay
from recsys.train.origin import Origin
from recsys.train.processes import Processes, join_processes
from recsys.train.recipe import Machine, SavedState, Training
from recsys.train.saving.run_folder import CheckpointFolder

logger = logging.getLogger(__name__)

_AUC, _LOG_LOSS = Metric("auc"), Metric("log loss", sign=-1)
_METRICS: Mapping[BestBy, Metric] = {"auc": _AUC, "log_loss": _LOG_LOSS}


def join_run(config: DlrmConfig) -> contextlib.AbstractContextManager[Processes]:
    """Joins the processes of a run, see `join_processes`."""
    run = config.run
    return join_processes(run.base_device, run.num_threads, process_timeout=run.process_timeout)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DlrmRecipe:
    """A DLRM and its dataset, implementing `recsys.train.recipe.Recipe`.

    Attributes:
        config: settings, with every default filled in.
        machine: device, precision and processes of the run.
        model: the model on one device, or this rank's shard of it.
        origin: identity of the dataset, saved in checkpoints.
        loaded: checkpoint of `load_checkpoint_path`; None if it is not set.
    """

    config: DlrmConfig
    machine: Machine
    dataset: OpenedDataset
    model: DlrmNetwork[Any]
    origin: Origin
    loaded: DlrmCheckpoint | None
    fixed = fixed_settings(DlrmConfig.sections)
    summary = ()

    @classmethod
    def open(cls, config: DlrmConfig, machine: Machine) -> "DlrmRecipe":
        """Resolves the settings, opens the dataset and builds the model.

        Raises:
            UserError: a setting, the dataset or the checkpoint is invalid.
        """
        processes, path = machine.processes, config.run.load_checkpoint_path
        loaded = None if path is None else DlrmCheckpoint.open(Path(path))
        config = config if loaded is None else take_model(config, loaded)
        if config.data.dataset_type == "synthetic_disk":
            if processes.is_first:
                ensure_synthetic_dataset(config, machine.print_line)
            processes.barrier()
        dataset = OpenedDataset.open(config.data, config.model.num_numerical_features)
        if config.run.mode in ("train", "test") and not dataset.has_labels:
            raise UserError(
                f"`dataset` {config.data.dataset}: its rows have no labels; it works only with "
                "`mode` predict",
                settings=("dataset", "mode"),
            )
        for line in dataset.column_lines:
            machine.print_line(line)
        config = resolve(config, machine.device, dataset.spec, processes.world_size)
        model = build_model(config, dataset, machine.device, processes, machine.print_line)
        if _learns_knots(config):
            reader = dataset.rows("train", check_ids=not config.model.hash_indices)
            rows = config.data.rows_of_epoch(reader.num_rows)
            model.set_knots(find_knots(reader, rows, config.model.numerical_bins))
        origin = dataset.origin(model.embeddings.table_sizes)
        return cls(
            config=config,
            machine=machine,
            dataset=dataset,
            model=model,
            origin=origin,
            loaded=loaded,
        )

    def check_dataset(self, checkpoint: Checkpoint) -> None:
        """Refuses to continue on another dataset or other rows."""
        if self.follows(checkpoint):
            return
        self._check_dataset(DlrmCheckpoint.of(checkpoint))
        if not self.config.run.ignore_fingerprint:
            check_same_rows(checkpoint, self._rows(), self.config.data.dataset)

    def follows(self, checkpoint: Checkpoint) -> bool:
        """Returns True if the dataset is the day after the one of a checkpoint."""
        if not self.config.run.grow or self.dataset.manifest is None:
            return False
        before = self.dataset.manifest.history[-1:]
        return [day["fingerprint"] for day in before] == [checkpoint.state.get(ROWS)]

    def _rows(self) -> str | None:
        """Returns the fingerprint of all rows; None if the dataset does not record one."""
        return None if self.dataset.manifest is None else self.dataset.manifest.fingerprint

    def _check_dataset(self, checkpoint: DlrmCheckpoint) -> None:
        data, ignore = self.config.data, self.config.run.ignore_fingerprint
        dataset = data.dataset or data.dataset_type
        checkpoint.check_dataset(self.origin, dataset, ignore_fingerprint=ignore)

    def load(self) -> None:
        """Loads the weights of `load_checkpoint_path`, if set; computes the statistics of ids.

        Raises:
            UserError: the checkpoint is invalid, or a training file is damaged.
        """
        if self.loaded is not None:
            self._check_dataset(self.loaded)
            self.loaded.load_into(self.model)
        if self.model.id_statistics is not None and _reads_training_rows(self.config):
            # Also after loading: the training rows may be others, and training needs statistics
            # that leave out the row itself, which checkpoints do not contain.
            reader = self.dataset.rows("train", check_ids=not self.config.model.hash_indices)
            rows = self.config.data.rows_of_epoch(reader.num_rows)
            fit_id_statistics(self.model.id_statistics, reader, rows)

    def training(self) -> Training[Batch[Any]]:
        """Opens the training batches and builds the training step."""
        folder = self.config.checkpoint_folder
        if folder and is_nvidia_checkpoint(folder):
            raise UserError(
                f"`save_checkpoint_path`: {folder} contains a checkpoint in NVIDIA's layout, which "
                "would be mistaken for that of this run; choose another folder",
                setting="save_checkpoint_path",
            )
        train_step = build_train_step(self.config, self.model, self.machine.precision)
        batch_size, source = self.config.data.batch_size, self.train_batches()
        num_rows, metric = self._check_splits(source.num_batches * batch_size)
        if self.config.model.batch_norm and not self.config.data.drop_last:
            refuse_batch_of_one(num_rows, batch_size)
        step = GraphedTrainStep(train_step) if self.config.run.cuda_graphs else train_step
        training = DlrmTraining(self, source, train_step, step, num_rows, metric)
        check_warmup(self.config, training.cadence.steps(source.num_batches), num_rows)
        return training

    def train_batches(self) -> SplitBatches[Any]:
        """Opens the training batches."""
        data = self.config.data
        return self._batches("train", data.batch_size, train=True, drop_last=data.drop_last)

    def _batches(self, split: str, batch_size: int | None = None, **how: bool) -> SplitBatches[Any]:
        """Opens the batches of a split; see `SplitPass`. None means `test_batch_size`."""
        wanted = SplitPass(
            split=split, batch_size=batch_size or self.config.data.test_batch_size, **how
        )
        return open_batches(self.config, self.dataset, wanted, self.model, self.machine.device)

    def _check_splits(self, training_rows: int) -> tuple[int, Metric]:
        """Refuses splits that training or evaluation could not read completely.

        Args:
            training_rows: number of rows in a training epoch.

        Returns:
            (number of rows in the training split, metric that chooses the best checkpoint).
        """
        run, data, print_line = self.config.run, self.config.data, self.machine.print_line
        metric = _METRICS[run.best_by]
        if data.dataset_type == "synthetic_gpu":
            return data.synthetic_dataset_num_entries, metric
        if run.max_steps is not None and not data.shuffle_batch_order:
            training_rows = min(training_rows, run.max_steps * data.batch_size)
        check = functools.partial(
            check_rows,
            self.dataset,
            processes=self.machine.processes,
            print_line=print_line,
            check_ids=not self.config.model.hash_indices,
        )
        train = check("train", training_rows)
        if train.only_class:
            print_line(f"The train split has {train.only_class}: the model learns only that")
        if run.test_after <= run.epochs:
            evaluated = check(data.eval_split, None)
            if evaluated.only_class:
                print_line(undefined_auc(data.eval_split, evaluated.only_class))
                if metric is _AUC:
                    metric = _LOG_LOSS
                    print_line(f"The {metric.name} chooses the best checkpoint instead")
        return train.num_rows, metric

    def score(
        self,
        split: str | None = None,
        groups_of: Callable[[Batch[Any]], Tensor] | None = None,
    ) -> SplitScores:
        """Evaluates the model on a split; see `score_split`.

        Args:
            split: None means `eval_split`.
            groups_of: see `score_split`.
        """
        return score_split(
            self.model,
            self._batches(split or self.config.data.eval_split).batches(),
            self.machine.precision,
            self.machine.device,
            self.machine.processes,
            groups_of,
        )

    def explanation(self) -> Mapping[str, Any]:
        """Computes calibration and importance for the page of a run; see `explain`.

        With several processes, it returns nothing: none of them has all columns of a row.
        """
        if not isinstance(self.model, Dlrm):
            return {}
        batches = self._batches(self.config.data.eval_split).batches()
        return explain(self.model, batches, self.dataset.spec, self.machine.precision)

    def test(self) -> Mapping[str, Any]:
        """Evaluates the model; prints the metrics and returns them.

        With `quantize`, the model is evaluated a second time, in 8 bits; the names of these
        metrics begin with `int8_`.
        """
        scores = self.score(groups_of=self._split_test.groups_of())
        values = self._split_test.report(scores, "Finished testing")
        self.report_health(scores.metrics)
        values |= self.company(scores)
        if self.config.measure.report is not None:
            explanation = self.explanation()
            for line in explanation_lines(explanation):
                self.machine.print_line(line)
            values |= explanation
        if self.config.precision.quantize == "none":
            return values
        self.machine.print_line(self._quantize())
        quantized = self.score()
        in_8_bits = self._split_test.report(quantized, "In 8 bits")
        change = quantized.metrics.auc - scores.metrics.auc
        self.machine.print_line(f"Quantizing to 8 bits changes the AUC by {change:+.6f}")
        return values | {f"int8_{name}": value for name, value in in_8_bits.items()}

    @property
    def _split_test(self) -> SplitTest:
        config = self.config
        return SplitTest(config.data, self.dataset, config.run.gauc_by, self.machine.print_line)

    def report_health(self, metrics: ClickMetrics | None, training_rows: int | None = None) -> None:
        """Prints problems of the model or its data; see `SplitTest.report_health`."""
        if not self.config.data.is_synthetic and self.machine.processes.is_first:
            self._split_test.report_health(metrics, training_rows)

    def has_company(self) -> bool:
        """Returns True if tests compare with `baselines`; prints why several processes do not."""
        config = self.config
        is_timed = config.measure.run_benchmark and "baselines" not in config.explicit
        if config.data.is_synthetic or is_timed or not config.run.baselines:
            return False
        if not isinstance(self.model, Dlrm):
            self.machine.print_line(
                "`baselines` are fitted on one process only: test without torchrun"
            )
            return False
        return True

    def company(self, scores: SplitScores) -> Mapping[str, Any]:
        """Compares a test of `eval_split` with the `baselines`; returns the values to log.

        There is no comparison on generated rows, which are random, or with several processes,
        whose logits are not in the order of the rows.
        """
        if not self.has_company():
            return {}
        run, data = self.config.run, self.config.data
        rows = FitRows(data, self.dataset, check_ids=not self.config.model.hash_indices)
        company = Company(rows, run.baselines, self.machine.print_line)
        return company.beside(scores.logits.double().cpu().numpy(), scores.labels.cpu().numpy())

    def predict(self) -> Mapping[str, float]:
        """Writes the predictions for a split; returns their number and rate.

        Raises:
            UserError: settings are missing or cannot be used together.
        """
        run, machine = self.config.run, self.machine
        assert run.predictions is not None
        path = Path(run.predictions)
        check_predictions_path(path)
        for line in self.prepare_inference():
            machine.print_line(line)
        source = self._batches(self.config.data.eval_split)
        return predict_split(
            path, self.model, source, self.dataset, machine.precision, machine.print_line
        )

    def _quantize(self) -> str:
        """Quantizes the model to 8 bits; returns a message."""
        assert isinstance(self.model, Dlrm)
        tables = quantize(self.model, self._batches("train").batches())
        return (
            f"8 bits: tables take {tables.after / 2**20:,.1f} MiB instead of "
            f"{tables.before / 2**20:,.1f}; activations are calibrated on training rows"
        )

    def prepare_inference(self) -> Sequence[str]:
        """Quantizes the model if `quantize` is set; returns lines to print."""
        return () if self.config.precision.quantize == "none" else (self._quantize(),)

    def inferences(self, batch_size: int) -> Sequence[Callable[[], object]]:
        """Returns functions; each predicts a batch of the evaluation split."""
        self.model.eval()
        split = self.config.data.eval_split
        try:
            source = self._batches(split, batch_size, drop_last=True)
        except NoBatchError as error:
            raise UserError(
                f"`inference_benchmark_batch_sizes` {batch_size}: the {split} split has fewer rows",
                setting="inference_benchmark_batch_sizes",
            ) from error
        batches = itertools.islice(source.batches(), DISTINCT_INPUTS)
        predict = self._probabilities
        if self.config.run.cuda_graphs:
            predict = GraphedInference(predict)
        return [functools.partial(predict, batch) for batch in batches]

    def _probabilities(self, batch: Batch[Any]) -> Tensor:
        return torch.sigmoid(self.model(batch.numerical, batch.ids))


@dataclasses.dataclass(frozen=True, slots=True)
class DlrmTraining:
    """A DLRM in training, implementing `recsys.train.recipe.Training`.

    Attributes:
        recipe: model, data and settings.
        source: training batches.
        train_step: the eager training step, which owns the optimizers.
        step: the step that the loop calls: `train_step`, or its replay from a CUDA graph.
        num_rows: number of rows in the training split.
        metric: chooses the best checkpoint.
        tests: (value of `metric`, all metrics) of each evaluation by this process.
        days: metrics of each day of a growing dataset, tested before the model was trained on it.
        known: rows of each table that come from the day before; empty if there was none.
    """

    recipe: DlrmRecipe
    source: SplitBatches[Any]
    train_step: DlrmTrainStep[Any]
    step: TrainStep[Batch[Any]]
    num_rows: int
    metric: Metric
    tests: list[tuple[float, ClickMetrics]] = dataclasses.field(default_factory=list)
    days: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    known: list[int] = dataclasses.field(default_factory=list)

    @property
    def schedule(self) -> Schedule:
        """Learning rate of each step."""
        optim = self.recipe.config.optimizer
        return WarmupPolynomialDecay(
            base_lr=optim.lr,
            warmup_steps=optim.warmup_steps,
            warmup_factor=optim.warmup_factor,
            decay_start_step=optim.decay_start_step,
            decay_steps=optim.decay_steps,
            decay_power=optim.decay_power,
            decay_end_lr=optim.decay_end_lr,
        )

    @property
    def cadence(self) -> LoopConfig:
        """When to print, evaluate, save and end."""
        run = self.recipe.config.run
        return LoopConfig(
            epochs=run.epochs,
            max_steps=run.max_steps,
            test_freq=run.test_freq,
            test_after=run.test_after,
            metric_threshold=run.auc_threshold,
            patience=run.patience,
            plateau_factor=self.recipe.config.optimizer.plateau_factor,
            # New embeddings score worse than those of the last epoch until they have trained for
            # a whole epoch themselves.
            only_epoch_ends_count=self.recipe.config.optimizer.reset_embeddings,
            print_freq=run.print_freq,
            save_freq=run.save_freq,
            benchmark_warmup_steps=run.benchmark_warmup_steps,
        )

    def summary(self) -> str:
        """Returns a line with batches per epoch, tables and device."""
        recipe, source, sizes = self.recipe, self.source, self.recipe.dataset.spec.table_sizes
        rest = self.num_rows % source.batch_size
        left_out = (
            f" (`drop_last` leaves out the last {rest}, {rest / self.num_rows:.1%} of the split)"
            if rest and recipe.config.data.drop_last
            else ""
        )
        steps = self.cadence.steps(source.num_batches)
        more = "`epochs` or a smaller `batch_size`"
        if steps < self.cadence.epochs * source.num_batches:
            more = "`max_steps`"
        evaluates = self.cadence.test_after <= self.cadence.epochs
        split = recipe.config.data.eval_split
        evaluating = f"evaluating on the {split} split" if evaluates else "without evaluation"
        few = f"; {steps} steps are few: with more {more} the model would learn more"
        return (
            f"Training on {source.num_batches} batches of {source.batch_size} rows per epoch"
            f"{left_out}, {len(sizes)} tables with {sum(sizes)} rows, on "
            f"{recipe.machine.device.type}; {evaluating}"
            f"{few if steps < 100 and not recipe.config.run.grow else ''}"
        )

    def begin_epoch(self, epoch: int) -> None:
        """Draws the rows that a day adds, or all again if `reset_embeddings` is set."""
        if self.recipe.config.run.grow and epoch == 0:
            self._draw_new_rows()
        if self.recipe.config.optimizer.reset_embeddings and epoch > 0:
            machine = self.recipe.machine
            # Steps are not negative, so these draws differ from theirs. A resumed run draws the
            # same as an uninterrupted one.
            seed_draws(machine.device, self.recipe.config.run.seed, machine.processes.rank, -epoch)
            self.recipe.model.reset_embeddings()
            if self.train_step.embedding_optimizer is not None:
                self.train_step.embedding_optimizer.reset()

    def count(self, batch: Batch[Any]) -> Mapping[str, int]:
        """Returns the number of samples in a batch."""
        return {"samples": len(batch)}

    def evaluate(self, epochs_done: int) -> Evaluation:
        """Evaluates the model on the evaluation split."""
        recipe = self.recipe
        scores = recipe.score()
        metrics = scores.metrics
        recipe.machine.print_line(f"{recipe.config.data.eval_split} loss: {metrics.log_loss:.8f}")
        recipe.model.raise_bad_ids()
        if epochs_done >= 1 and not recipe.config.data.is_synthetic:
            check_auc(metrics)
        compared = metrics.auc if self.metric is _AUC else -metrics.log_loss
        self.tests.append((compared, metrics))
        return Evaluation(compared, dataclasses.asdict(metrics), scores.samples_per_s)

    def keep_best(self) -> None:
        """Does nothing: `report` does not test the model."""

    @contextlib.contextmanager
    def saved(self) -> Iterator[SavedState]:
        """Yields weights and optimizer states to save; random draws follow from the step."""
        recipe = self.recipe
        state = saved_state(recipe.model, self.train_step, recipe.machine.processes)
        rows = recipe._rows()
        values = {MODEL: "dlrm"} | recipe.origin.values() | ({} if rows is None else {ROWS: rows})
        values |= {DAYS: self.days} if self.days else {}
        yield dataclasses.replace(state, values=values)

    def restore(self, checkpoint: Checkpoint, state: LoopState) -> LoopState:
        """Restores the state of a checkpoint; on the day after it, tables have grown.

        Raises:
            CheckpointError: its epochs had another number of batches.
        """
        config = self.recipe.config
        if self.recipe.follows(checkpoint):
            self.known.extend(DlrmCheckpoint.of(checkpoint).table_sizes)
            restore_state(checkpoint, self.recipe.model, self.train_step, self.known)
            self.days.extend(checkpoint.state.get(DAYS, ()))
            if config.run.progressive:
                self._test_day(state.step)
            return LoopState(step=state.step, first_step=state.step)
        if not config.run.ignore_fingerprint:
            check_position(checkpoint, self.source.num_batches, config.data.dataset)
        restore_state(checkpoint, self.recipe.model, self.train_step)
        self.days.extend(checkpoint.state.get(DAYS, ()))
        return state

    def _draw_new_rows(self) -> None:
        """Draws the rows of categories that no earlier day had."""
        recipe, tables = self.recipe, self.recipe.model.embeddings
        known = self.known or [0] * len(tables.table_sizes)
        names, seed = recipe.dataset.spec.table_names, recipe.config.run.seed
        optimizer = self.train_step.embedding_optimizer
        states = [] if optimizer is None else optimizer.state
        draw_new_rows(tables, states, recipe.dataset.root, names, known, seed)

    def _test_day(self, step: int) -> None:
        """Tests the model of the day before on all rows of this one.

        Args:
            step: step of that model.
        """
        recipe, day = self.recipe, self.recipe.dataset.root.name
        serve_new_rows(recipe.model.embeddings, recipe.dataset.root, self.known)
        metrics = recipe.score("train").metrics
        self.days.append({"day": day, "tested_step": step, **dataclasses.asdict(metrics)})
        recipe.machine.print_line(
            f"{day} before training on it: AUC {metrics.auc:.6f}, log loss "
            f"{metrics.log_loss:.6f}, calibration {metrics.calibration:.4f}"
        )

    def report(
        self,
        result: FitResult,
        folder: CheckpointFolder | None,
    ) -> Iterator[Mapping[str, Any]]:
        """Prints the outcome and yields the final log records."""
        self.recipe.model.raise_bad_ids()
        state = result.state
        best = f"best {self.metric.name} {self.metric.text(state.best_metric)}"
        quality = f"{best} at epoch {state.best_epoch:.2f}"
        quality = quality if math.isfinite(state.best_metric) else "not evaluated"
        self.recipe.machine.print_line(
            f"Finished after {state.step} steps: {quality}, "
            f"{rate_in_words(result.train_samples_per_s, 'samples')} in training"
        )
        if not result.reason.startswith("SIG"):
            if self.tests:
                rows = self.source.num_batches * self.source.batch_size
                self.recipe.report_health(self._test_of_kept(state.best_metric, folder), rows)
            if values := self._compare_and_explain(state.step, folder):
                yield values
        if self.days and self.days[-1]["day"] == self.recipe.dataset.root.name:
            yield self.days[-1]
        if self.metric is _LOG_LOSS:
            yield {"best_log_loss": -state.best_metric}
        yield {
            "best_auc": state.best_metric if self.metric is _AUC else math.nan,
            "best_epoch": state.best_epoch,
            "average_train_throughput": result.train_samples_per_s,
            "average_test_throughput": result.test_samples_per_s,
        }

    def _test_of_kept(
        self, best_metric: float, folder: CheckpointFolder | None
    ) -> ClickMetrics | None:
        """Returns the metrics of the kept model; None if an earlier process tested it.

        Without a folder, or if no evaluation gave a number, the model of the last step is kept.
        """
        if folder is None or not math.isfinite(best_metric):
            return self.tests[-1][1]
        return next((metrics for value, metrics in self.tests if value == best_metric), None)

    def _compare_and_explain(self, step: int, folder: CheckpointFolder | None) -> Mapping[str, Any]:
        """Compares and explains the model that a test of the folder would load.

        Without a folder, it is the model of the last step. A model that was never evaluated is not
        compared. Several processes do neither.
        """
        recipe, config = self.recipe, self.recipe.config
        model, print_line = recipe.model, recipe.machine.print_line
        is_compared = bool(self.tests) and recipe.has_company()
        is_explained = config.measure.report is not None and isinstance(model, Dlrm)
        is_explained &= bool(self.tests) or not config.run.grow  # a day may have no other split
        if not (is_compared or is_explained):
            return {}
        if folder is not None:
            tested = DlrmCheckpoint.open(folder.folder)
            tested.load_into(model)
            step = tested.step
        values: dict[str, Any] = {}
        if is_compared:
            print_line(f"Comparing the model of step {step} with baselines")
            values |= {**recipe.company(recipe.score()), "compared_step": step}
        if is_explained:
            print_line(f"Explaining the model of step {step}")
            values |= {**recipe.explanation(), "explained_step": step}
        return values


def _learns_knots(config: DlrmConfig) -> bool:
    """Returns True if the knots of numbers come from the training rows, not a checkpoint."""
    return (
        config.model.numerical_embedding != "none"
        and config.run.load_checkpoint_path is None
        and _reads_training_rows(config)
    )


def _reads_training_rows(config: DlrmConfig) -> bool:
    """Returns True if the run trains on the rows of a dataset."""
    return config.run.mode == "train" and config.data.dataset_type != "synthetic_gpu"
