# SPDX-License-Identifier: Apache-2.0
"""The three modes of a run, from its settings to its figures."""

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path

import torch

from dataspec.feature_spec import FeatureSpec
from dataspec.parquet import ParquetReader
from dlrm.config import DlrmConfig
from dlrm.data.loader import BatchLoader
from dlrm.data.merlin_loader import MerlinLoader
from dlrm.data.sources import dataset_root, load_feature_spec, open_rows
from dlrm.data.synthetic import SyntheticBatches, write_synthetic_dataset
from dlrm.model import nvidia_checkpoint
from dlrm.model.single import Dlrm
from dlrm.model.weights import load_weights
from dlrm.train.checkpoint import resume_run, save_run
from dlrm.train.evaluate import SplitScores, measure_inference, score_split
from dlrm.train.resolve import resolve, take_model_from_checkpoint
from dlrm.train.step import DlrmTrainStep, GraphedTrainStep
from training.allocator import keep_freed_memory
from training.checkpoint import CheckpointFolder
from training.device import resolve_device
from training.divergence import check_auc
from training.latency import TABLE_HEAD, InferenceFigures
from training.loop import Evaluation, FitResult, Loop, LoopConfig, LoopState
from training.precision import Precision, resolve_precision
from training.run_log import RunLog
from training.schedule import WarmupPolynomialDecay

logger = logging.getLogger(__name__)

Announce = Callable[[str], None]
Batches = BatchLoader | MerlinLoader | SyntheticBatches


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A run that is set up: its resolved settings and the model on its device."""

    config: DlrmConfig
    device: torch.device
    spec: FeatureSpec
    precision: Precision
    model: Dlrm
    log: RunLog
    announce: Announce

    @classmethod
    def start(
        cls, config: DlrmConfig, announce: Announce, log_class: type[RunLog] = RunLog
    ) -> "Session":
        """Resolves the settings, opens the log and builds the model.

        Args:
            config: as the user gave it.
            announce: prints a line.
            log_class: of the log; another one may print what it records.

        Raises:
            ValueError: a setting, the dataset or the checkpoint is refused.
        """
        if config.run.num_threads is not None:
            torch.set_num_threads(config.run.num_threads)
        keep_freed_memory()
        device = resolve_device(config.run.base_device)
        config = take_model_from_checkpoint(config)
        if config.data.dataset_type == "synthetic_disk":
            _ensure_synthetic_dataset(config, announce)
        spec = load_feature_spec(config.data, config.model.num_numerical_features)
        config = resolve(config, device, spec)
        precision = resolve_precision(
            device, config.precision.amp, config.precision.amp_dtype, config.precision.loss_scale
        )
        torch.manual_seed(config.run.seed)
        with device:
            model = Dlrm(config.model, spec.table_sizes)
        if config.run.load_checkpoint_path is not None:
            load_weights(Path(config.run.load_checkpoint_path), model)
        log = log_class(Path(config.run.log_path), append=config.run.resume)
        log.parameters(config.to_dict())
        return cls(
            config=config,
            device=device,
            spec=spec,
            precision=precision,
            model=model,
            log=log,
            announce=announce,
        )

    def batches(self, split: str, batch_size: int, *, train: bool, whole: bool) -> Batches:
        """Returns the batches of a split.

        Args:
            split: `train`, `validation` or `test`.
            batch_size: rows of a batch.
            train: apply the flags that concern training alone (subset, order of batches).
            whole: leave out the last, shorter batch.
        """
        data = self.config.data
        if data.dataset_type == "synthetic_gpu":
            rows = data.synthetic_dataset_num_entries
            return SyntheticBatches(
                spec=self.spec,
                num_rows=rows if train else max(rows // 16, batch_size),
                batch_size=batch_size,
                device=self.device,
                distribution=data.synthetic_distribution,
                drop_last=whole,
                seed=self.config.run.seed + int(not train),
            )
        check_ids = not self.config.model.hash_indices
        subset = data.dataset_subset if train else None
        if data.loader == "merlin":
            return MerlinLoader(
                reader=ParquetReader(dataset_root(data), split, self.spec),
                batch_size=batch_size,
                device=self.device,
                drop_last=whole,
                subset=subset,
                read_ahead=data.read_ahead,
                check_ids=check_ids,
            )
        return BatchLoader(
            source=open_rows(data, split, self.spec, check_ids=check_ids),
            batch_size=batch_size,
            device=self.device,
            drop_last=whole,
            shuffle=train and data.shuffle_batch_order,
            seed=self.config.run.seed,
            subset=subset,
            read_ahead=data.read_ahead,
        )

    def score(self, split: str | None = None) -> SplitScores:
        """Scores a split; None takes that of --eval_split."""
        loader = self.batches(
            split or self.config.data.eval_split,
            self.config.data.test_batch_size,
            train=False,
            whole=False,
        )
        return score_split(
            self.model,
            loader.batches(),
            self.precision,
            self.device,
            torch.device(self.config.run.auc_device),
        )


def _ensure_synthetic_dataset(config: DlrmConfig, announce: Announce) -> None:
    root = Path(config.data.synthetic_dataset_dir)
    if root.exists():
        announce(f"Using the synthetic dataset in {root}; remove it to make another one")
        return
    announce(f"Writing {config.data.synthetic_dataset_num_entries} synthetic rows to {root}")
    write_synthetic_dataset(
        root,
        FeatureSpec.criteo(
            config.data.synthetic_dataset_table_sizes, config.model.num_numerical_features
        ),
        config.data.synthetic_dataset_num_entries,
        config.data.synthetic_distribution,
        config.run.seed,
    )


def train(config: DlrmConfig, announce: Announce) -> FitResult:
    """Trains, evaluating and saving at the cadences of the settings.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
        DivergenceError: the loss is not finite or constant, or the AUC stays at 0.5.
    """
    return fit(Session.start(config, announce))


def fit(session: Session) -> FitResult:
    """Trains a session that is set up; see `train`."""
    announce = session.announce
    config, optim, run = session.config, session.config.optimizer, session.config.run
    schedule = WarmupPolynomialDecay(
        base_lr=optim.lr,
        warmup_steps=optim.warmup_steps,
        warmup_factor=optim.warmup_factor,
        decay_start_step=optim.decay_start_step,
        decay_steps=optim.decay_steps,
        decay_power=optim.decay_power,
        decay_end_lr=optim.decay_end_lr,
    )
    step = DlrmTrainStep(
        session.model,
        optim,
        session.precision,
        freeze_mlps=run.freeze_mlps,
        freeze_embeddings=run.freeze_embeddings,
    )
    folder = CheckpointFolder(config.checkpoint_folder) if config.checkpoint_folder else None
    if folder is not None:
        _check_destination(config, folder)
    state = LoopState()
    if run.resume and folder is not None:
        found = resume_run(folder, config, session.model, step)
        if found is not None:
            state = found
            announce(f"Resumed from {folder.latest()} at step {state.step}")
    loader = session.batches("train", config.data.batch_size, train=True, whole=True)
    announce(
        f"Training on {loader.num_batches} batches of {loader.batch_size} rows per epoch, "
        f"{len(session.spec.table_sizes)} tables with {sum(session.spec.table_sizes)} rows, "
        f"on {session.device.type}; evaluating on the {config.data.eval_split} split"
    )
    _warn_of_endless_warmup(config, loader.num_batches)
    result = Loop(
        config=LoopConfig(
            epochs=run.epochs,
            max_steps=run.max_steps,
            test_freq=run.test_freq,
            test_after=run.test_after,
            metric_threshold=run.auc_threshold,
            print_freq=run.print_freq,
            save_freq=run.save_freq,
            benchmark_warmup_steps=run.benchmark_warmup_steps,
        ),
        schedule=schedule,
        step=GraphedTrainStep(step) if run.cuda_graphs else step,
        source=loader,
        evaluate=lambda epochs_done: _evaluate(session, epochs_done),
        save=None if folder is None else _saver(session, step, folder),
        log=session.log,
        device=session.device,
        announce=announce,
        state=state,
    ).fit()
    session.model.embeddings.raise_bad_ids()
    _report_training(session, result)
    return result


def _check_destination(config: DlrmConfig, folder: CheckpointFolder) -> None:
    """Refuses to replace an earlier run, or anything else that is in the folder."""
    folder.check_writable("--save_checkpoint_path")
    if config.run.checkpoint_format == "nvidia":
        nvidia_checkpoint.check_destination(folder.folder)
    elif not config.run.resume:
        folder.check_unused("--save_checkpoint_path")


def _warn_of_endless_warmup(config: DlrmConfig, num_batches: int) -> None:
    steps = config.run.epochs * num_batches
    steps = steps if config.run.max_steps is None else min(steps, config.run.max_steps)
    warmup = config.optimizer.warmup_steps
    if steps < warmup and not config.data.is_synthetic:
        logger.warning(
            "the run has %d steps and the warm-up takes %d: the rate will not pass %.3g of --lr. "
            "The defaults suit the Terabyte log; README, Training process, has settings for "
            "smaller data",
            steps,
            warmup,
            steps / warmup,
        )


def _evaluate(session: Session, epochs_done: int) -> Evaluation:
    scores = session.score()
    metrics = scores.metrics
    session.announce(f"test loss: {metrics.log_loss:.8f}")
    session.model.embeddings.raise_bad_ids()
    if epochs_done >= 1 and not session.config.data.is_synthetic:
        positives = round(metrics.base_rate * metrics.num_rows)
        check_auc(metrics.auc, positives, metrics.num_rows - positives)
    return Evaluation(metrics.auc, dataclasses.asdict(metrics), scores.samples_per_s)


def _saver(
    session: Session, step: DlrmTrainStep, folder: CheckpointFolder
) -> Callable[[LoopState, bool], None]:
    def save(state: LoopState, is_best: bool) -> None:
        if session.config.run.checkpoint_format == "native":
            save_run(folder, session.config, session.model, step, state, is_best)
            return
        if not is_best and state.best_epoch:
            return  # the layout has room for one checkpoint: the best one
        folder.folder.parent.mkdir(parents=True, exist_ok=True)
        nvidia_checkpoint.save(
            folder.folder, session.model, state.epoch, state.step, session.config.to_dict()
        )

    return save


def _report_training(session: Session, result: FitResult) -> None:
    state = result.state
    figures = {
        "best_auc": state.best_metric,
        "best_epoch": state.best_epoch,
        "average_train_throughput": result.train_samples_per_s,
        "average_test_throughput": result.test_samples_per_s,
    }
    session.log.record((), figures)
    evaluated = math.isfinite(state.best_metric)
    quality = f"best auc {state.best_metric:.6f} at epoch {state.best_epoch:.2f}"
    session.announce(
        f"Finished after {state.step} steps: {quality if evaluated else 'not evaluated'}, "
        f"{result.train_samples_per_s:,.0f} samples/s in training"
    )


def test(config: DlrmConfig, announce: Announce) -> SplitScores:
    """Scores the evaluation split with a checkpoint.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
    """
    session = Session.start(config, announce)
    if config.run.load_checkpoint_path is None:
        logger.warning("--mode test without --load_checkpoint_path tests a fresh model")
    scores = session.score()
    metrics = scores.metrics
    session.log.record(
        (),
        dataclasses.asdict(metrics)
        | {
            "avg_inference_latency": scores.mean_latency_s,
            "average_test_throughput": scores.samples_per_s,
        },
    )
    announce(
        f"Finished testing on the {session.config.data.eval_split} split, {metrics.num_rows} rows: "
        f"auc {metrics.auc:.6f}, log loss {metrics.log_loss:.6f}, normalised entropy "
        f"{metrics.normalised_entropy:.4f}, calibration {metrics.calibration:.4f}, "
        f"{scores.samples_per_s:,.0f} samples/s"
    )
    return scores


def inference_benchmark(config: DlrmConfig, announce: Announce) -> list[InferenceFigures]:
    """Measures latency and throughput of inference for each batch size.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
    """
    session = Session.start(config, announce)
    found = []
    values: dict[str, float] = {}
    announce(TABLE_HEAD)
    for batch_size in session.config.run.inference_benchmark_batch_sizes:
        loader = session.batches(
            session.config.data.eval_split, batch_size, train=False, whole=True
        )
        figures = measure_inference(
            session.model,
            loader.batches(),
            session.precision,
            session.device,
            session.config.run.inference_benchmark_steps,
        )
        found.append(figures)
        announce(figures.table_row())
        values |= figures.log_values()
    session.log.record((), values)
    return found
