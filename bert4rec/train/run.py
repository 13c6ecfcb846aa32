# SPDX-License-Identifier: Apache-2.0
"""The modes of a run, from its settings to its figures."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.data.negatives import draw_negatives
from bert4rec.data.sources import dataset_fingerprint, dataset_root, open_sequences
from bert4rec.data.split import Split
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import describe_model, load_weights
from bert4rec.train.build import build_batches, build_schedule, build_step
from bert4rec.train.checkpoint import resume_run, save_run
from bert4rec.train.evaluate import SplitRanks, rank_split
from bert4rec.train.metrics import bootstrap_intervals, ranking_metrics
from bert4rec.train.popularity import popularity_ranks
from bert4rec.train.resolve import (
    take_filters_from_dataset,
    take_model_from_checkpoint,
)
from bert4rec.train.step import Bert4RecTrainStep
from recsys.data.sequences import Sequences
from recsys.train.allocator import keep_few_primitives, keep_freed_memory
from recsys.train.checkpoint import CheckpointFolder
from recsys.train.device import resolve_device
from recsys.train.loop import Evaluation, FitResult, Loop, LoopConfig, LoopState
from recsys.train.precision import Precision, resolve_precision
from recsys.train.processes import ALONE, Processes, join_processes
from recsys.train.run_log import RunLog
from recsys.train.timing import rate_in_words

logger = logging.getLogger(__name__)

Announce = Callable[[str], None]

_CHOSEN_METRIC = "ndcg@10"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A run that is set up: its settings, its data, and the model on its device."""

    config: Bert4RecConfig
    device: torch.device
    precision: Precision
    sequences: Sequences
    negatives: Mapping[str, npt.NDArray[np.int32]]
    model: Bert4Rec
    log: RunLog
    announce: Announce
    processes: Processes = ALONE

    @classmethod
    def start(
        cls,
        config: Bert4RecConfig,
        announce: Announce,
        *,
        draws_negatives: bool = True,
        processes: Processes = ALONE,
    ) -> "Session":
        """Resolves the settings, opens the data and the log, and builds the model.

        Args:
            config: what the user asked for.
            announce: prints a line.
            draws_negatives: for the sampled rankings.
            processes: of the run; the first prints and logs.

        Raises:
            ValueError: a setting, the dataset or the checkpoint is refused.
        """
        config = take_filters_from_dataset(take_model_from_checkpoint(config))
        run = config.run
        if not processes.is_first:
            announce = _say_nothing
        if run.num_threads is not None:
            torch.set_num_threads(run.num_threads)
        keep_freed_memory()
        keep_few_primitives()
        device = resolve_device(run.base_device)
        precision = resolve_precision(device, config.precision.amp, config.precision.amp_dtype, 1.0)
        sequences = open_sequences(config.data, run.seed)
        if run.load_checkpoint_path is not None:
            describe_model(Path(run.load_checkpoint_path)).check_dataset(
                sequences.num_items,
                dataset_fingerprint(config.data),
                str(dataset_root(config.data) or config.data.dataset_name),
                "--dataset_path",
            )
        negatives = _draw_all_negatives(sequences, config, announce) if draws_negatives else {}
        torch.manual_seed(run.seed)
        with device:
            model = Bert4Rec(config.model, sequences.num_items)
        if run.load_checkpoint_path is not None:
            load_weights(Path(run.load_checkpoint_path), model)
        log = RunLog(Path(run.log_path) if processes.is_first else None, append=run.resume)
        log.parameters(config.to_dict())
        announce(
            f"{sequences.num_users} users, {sequences.num_items} items, {len(sequences.items)} "
            f"interactions; {sum(p.numel() for p in model.parameters())} parameters on "
            f"{device.type}"
        )
        return cls(
            config=config,
            device=device,
            precision=precision,
            sequences=sequences,
            negatives=negatives,
            model=model,
            log=log,
            announce=announce,
            processes=processes,
        )

    @property
    def predicts_causally(self) -> bool:
        """Whether the model predicts from the last item, without a mask behind it."""
        return self.config.objective.objective == "causal"

    def rank(self, split: Split) -> SplitRanks:
        """Ranks what a split asks of every user."""
        data = self.config.data
        return rank_split(
            self.model,
            self.sequences,
            split,
            dict(self.negatives),
            batch_size=data.test_batch_size if split == "test" else data.val_batch_size,
            causal=self.predicts_causally,
            precision=self.precision,
            device=self.device,
            processes=self.processes,
        )


def _say_nothing(_line: str) -> None:
    """Announces for a process that is not the first."""


def _draw_all_negatives(
    sequences: Sequences, config: Bert4RecConfig, announce: Announce
) -> dict[str, npt.NDArray[np.int32]]:
    count = config.evaluation.num_eval_negatives
    try:
        return {
            name: draw_negatives(
                sequences, count, by_popularity=name == "popular", seed=config.run.seed
            )
            for name in ("popular", "uniform")
        }
    except ValueError as error:
        if "num_eval_negatives" in config.explicit or config.evaluation.choose_by != "full":
            raise
        announce(f"no sampled rankings: {error}")
        return {}


def train(config: Bert4RecConfig, announce: Announce) -> FitResult:
    """Trains, validating and saving at the cadences of the settings, then tests.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
        DivergenceError: the loss is not finite or constant.
    """
    is_dmp = config.run.parallelism == "dmp"
    with join_processes(config.run.base_device, config.run.num_threads, is_dmp) as processes:
        return _train(Session.start(config, announce, processes=processes))


def _train(session: Session) -> FitResult:
    config, announce, processes = session.config, session.announce, session.processes
    run = config.run
    batches = build_batches(config, session.sequences, session.device, processes)
    step = build_step(config, session.sequences, session.model, session.precision, processes)
    for line in () if step.sharded is None else step.sharded.describe():
        announce(f"TorchRec's plan: {line}")
    folder = CheckpointFolder(config.checkpoint_folder) if config.checkpoint_folder else None
    state = LoopState()
    if folder is not None:
        folder.check_writable("--export_root")
        if not run.resume:
            folder.check_unused("--export_root")
        elif (
            found := resume_run(
                folder, config, dataset_fingerprint(config.data), session.model, step
            )
        ) is not None:
            state = found
            announce(f"Resumed from {folder.latest()} at step {state.step}")
    announce(
        f"Training on {batches.num_batches} batches of "
        f"{batches.batch_size * processes.world_size} per epoch"
    )
    result = Loop(
        config=LoopConfig(
            epochs=run.num_epochs,
            max_steps=run.max_steps,
            test_freq=run.test_freq,
            patience=run.patience,
            print_freq=run.print_freq,
            save_freq=run.save_freq,
            benchmark_warmup_steps=run.benchmark_warmup_steps,
        ),
        schedule=build_schedule(config, batches.num_batches),
        step=step,
        source=batches,
        evaluate=lambda _epochs: _validate(session, step),
        save=None if folder is None else _saver(session, step, folder),
        log=session.log,
        device=session.device,
        announce=announce,
        metric_name=f"{config.evaluation.choose_by} {_CHOSEN_METRIC}",
        state=state,
        processes=processes,
    ).fit()
    announce(f"Finished training: {rate_in_words(result.train_samples_per_s, 'rec', 1)}")
    session.log.record(
        (),
        {
            "average_train_throughput": result.train_samples_per_s,
            "best_metric": result.state.best_metric,
            "best_epoch": result.state.best_epoch,
        },
    )
    if not result.reason.startswith("SIG"):
        best = None if folder is None else folder.best()
        with step.whole_tables():
            if best is not None:
                load_weights(best, session.model)
            _report_test(session)
    return result


def test(config: Bert4RecConfig, announce: Announce) -> dict[str, float]:
    """Ranks the test items with a loaded model.

    Raises:
        ValueError: a setting, the dataset or the checkpoint is refused.
    """
    if config.run.load_checkpoint_path is None:
        logger.warning("--mode test without --load_checkpoint_path tests a fresh model")
    with join_processes(config.run.base_device, config.run.num_threads) as processes:
        return _report_test(Session.start(config, announce, processes=processes))


def _figures(session: Session, ranked: SplitRanks) -> dict[str, float]:
    return {
        f"{name}_{metric}": value
        for name, ranks in ranked.ranks.items()
        for metric, value in ranking_metrics(ranks, session.config.evaluation.metric_ks).items()
    }


def _validate(session: Session, step: Bert4RecTrainStep) -> Evaluation:
    with step.whole_tables():
        ranked = session.rank("validation")
    chosen = ranking_metrics(ranked.ranks[session.config.evaluation.choose_by], (10,))
    return Evaluation(chosen[_CHOSEN_METRIC], _figures(session, ranked), ranked.users_per_s)


def _report_test(session: Session) -> dict[str, float]:
    ranked = session.rank("test")
    ranked.ranks["popularity"] = popularity_ranks(session.sequences, "test")
    evaluation = session.config.evaluation
    figures = _figures(session, ranked)
    session.announce(f"Test on {session.sequences.num_users} users, {ranked.users_per_s:,.0f}/s")
    for name, ranks in ranked.ranks.items():
        intervals = bootstrap_intervals(
            ranks, evaluation.metric_ks, evaluation.bootstrap_samples, session.config.run.seed
        )
        found = ranking_metrics(ranks, evaluation.metric_ks)
        parts = []
        for metric, value in found.items():
            low, high = intervals.get(metric, (float("nan"), float("nan")))
            parts.append(f"{metric} {value:.4f} [{low:.4f}, {high:.4f}]")
            figures |= {f"{name}_{metric}_low": low, f"{name}_{metric}_high": high}
        session.announce(f"{name}: " + ", ".join(parts))
    session.log.record((), {f"test_{name}": value for name, value in figures.items()})
    return figures


def _saver(
    session: Session, step: Bert4RecTrainStep, folder: CheckpointFolder
) -> Callable[[LoopState, bool], None]:
    fingerprint = dataset_fingerprint(session.config.data)

    def save(state: LoopState, is_best: bool) -> None:
        save_run(
            folder,
            session.config,
            session.sequences.num_items,
            fingerprint,
            session.model,
            step,
            state,
            is_best,
            session.processes,
        )

    return save
