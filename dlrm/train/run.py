# SPDX-License-Identifier: Apache-2.0
"""The three modes of a run, from its settings to its figures."""

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable

from dlrm.config import DlrmConfig
from dlrm.data.batch import Batch
from dlrm.data.open_split import SplitPass
from dlrm.model import nvidia_checkpoint
from dlrm.nn.embedding import LookupsT
from dlrm.train.checkpoint import resume_run, save_run
from dlrm.train.evaluate import SplitScores, measure_inference
from dlrm.train.session import Announce, Session
from dlrm.train.step import DlrmTrainStep
from recsys.train.checkpoint import CheckpointFolder
from recsys.train.divergence import check_auc
from recsys.train.latency import TABLE_HEAD, InferenceFigures
from recsys.train.loop import Evaluation, FitResult, Loop, LoopConfig, LoopState
from recsys.train.processes import Processes, join_processes
from recsys.train.schedule import WarmupPolynomialDecay
from recsys.train.timing import rate_in_words

logger = logging.getLogger(__name__)


def train(config: DlrmConfig, announce: Announce) -> FitResult:
    """Trains, evaluating and saving at the cadences of the settings.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
        DivergenceError: the loss is not finite or constant, or the AUC stays at 0.5.
    """
    with processes_of(config) as processes:
        return fit(Session.start(config, announce, processes=processes))


def processes_of(config: DlrmConfig) -> contextlib.AbstractContextManager[Processes]:
    """Sets up the processes of a run as its settings and torchrun say; see `join_processes`."""
    run = config.run
    return join_processes(run.base_device, run.num_threads, process_timeout=run.process_timeout)


def fit(session: Session[LookupsT]) -> FitResult:
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
    step = session.devices.train_step(session.precision)
    folder = CheckpointFolder(config.checkpoint_folder) if config.checkpoint_folder else None
    # Processes that torchrun starts anew go on with what they saved, asked or not.
    resumes = run.resume or session.processes.restarts > 0
    if folder is not None:
        _check_destination(config, folder, resumes)
    state = LoopState()
    if resumes and folder is not None and config.run.checkpoint_format == "native":
        found = resume_run(folder, config, session.model, step)
        if found is not None:
            state = found
            announce(f"Resumed from {folder.latest()} at step {state.step}")
    loader = session.devices.batches(
        SplitPass(split="train", batch_size=config.data.batch_size, train=True, whole=True)
    )
    announce(
        f"Training on {loader.num_batches} batches of {loader.batch_size} rows per epoch, "
        f"{len(session.spec.table_sizes)} tables with {sum(session.spec.table_sizes)} rows, "
        f"on {session.device.type}; evaluating on the {config.data.eval_split} split"
    )
    _warn_of_endless_warmup(config, loader.num_batches)
    result = Loop[Batch[LookupsT]](
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
        step=session.devices.replayed(step),
        source=loader,
        evaluate=lambda epochs_done: _evaluate(session, epochs_done),
        save=None if folder is None else _saver(session, step, folder),
        log=session.log,
        device=session.device,
        announce=announce,
        metric_name="auc",
        state=state,
        processes=session.processes,
    ).fit()
    session.model.embeddings.raise_bad_ids()
    _report_training(session, result)
    return result


def _check_destination(config: DlrmConfig, folder: CheckpointFolder, resumes: bool) -> None:
    """Refuses to replace an earlier run, or anything else that is in the folder."""
    folder.check_writable("--save_checkpoint_path")
    if config.run.checkpoint_format == "nvidia":
        nvidia_checkpoint.check_destination(folder.folder)
    elif not resumes:
        folder.check_unused("--save_checkpoint_path")


def _warn_of_endless_warmup(config: DlrmConfig, num_batches: int) -> None:
    steps = config.run.epochs * num_batches
    steps = steps if config.run.max_steps is None else min(steps, config.run.max_steps)
    warmup = config.optimizer.warmup_steps
    if steps < warmup and not config.data.is_synthetic:
        logger.warning(
            "the run has %d steps and the warm-up takes %d: the rate will not pass %.3g of --lr. "
            "The defaults suit the Terabyte log; docs/dlrm.md, Training, has settings for "
            "smaller data",
            steps,
            warmup,
            steps / warmup,
        )


def _evaluate(session: Session[LookupsT], epochs_done: int) -> Evaluation:
    scores = session.score()
    metrics = scores.metrics
    session.announce(f"test loss: {metrics.log_loss:.8f}")
    session.model.embeddings.raise_bad_ids()
    if epochs_done >= 1 and not session.config.data.is_synthetic:
        positives = round(metrics.base_rate * metrics.num_rows)
        check_auc(metrics.auc, positives, metrics.num_rows - positives)
    return Evaluation(metrics.auc, dataclasses.asdict(metrics), scores.samples_per_s)


def _saver(
    session: Session[LookupsT], step: DlrmTrainStep[LookupsT], folder: CheckpointFolder
) -> Callable[[LoopState, bool], None]:
    def save(state: LoopState, is_best: bool) -> None:
        if session.config.run.checkpoint_format == "native":
            save_run(folder, session.config, session.model, step, state, is_best, session.processes)
            return
        if not is_best and state.best_epoch:
            return  # the layout has room for one checkpoint: the best one
        nvidia_checkpoint.save(
            folder.folder,
            session.model,
            state.epoch,
            state.step,
            session.config.to_dict(),
            session.processes,
        )

    return save


def _report_training(session: Session[LookupsT], result: FitResult) -> None:
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
        f"{rate_in_words(result.train_samples_per_s, 'samples')} in training"
    )


def test(config: DlrmConfig, announce: Announce) -> SplitScores:
    """Scores the evaluation split with a checkpoint.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
    """
    if config.run.load_checkpoint_path is None:
        logger.warning("--mode test without --load_checkpoint_path tests a fresh model")
    with processes_of(config) as processes:
        return _test(Session.start(config, announce, processes=processes))


def _test(session: Session[LookupsT]) -> SplitScores:
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
    session.announce(
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
    with processes_of(config) as processes:
        return _inference_benchmark(Session.start(config, announce, processes=processes))


def _inference_benchmark(session: Session[LookupsT]) -> list[InferenceFigures]:
    found = []
    values: dict[str, float] = {}
    session.announce(TABLE_HEAD)
    for batch_size in session.config.run.inference_benchmark_batch_sizes:
        loader = session.devices.batches(
            SplitPass(split=session.config.data.eval_split, batch_size=batch_size, whole=True)
        )
        figures = measure_inference(
            session.model,
            loader.batches(),
            batch_size,
            session.precision,
            session.device,
            session.config.run.inference_benchmark_steps,
        )
        found.append(figures)
        session.announce(figures.table_row())
        values |= figures.log_values()
    session.log.record((), values)
    return found
