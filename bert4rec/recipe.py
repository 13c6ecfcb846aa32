# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec's recipe for `recsys.train.run`: data, training, evaluation and report."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.config import Bert4RecConfig, ObjectiveConfig, RunConfig
from bert4rec.data.batches import BatchGroup, TrainBatches
from bert4rec.data.neighbours import neighbour_vectors
from bert4rec.model.memory import trained_memory
from bert4rec.model.network import Bert4Rec
from bert4rec.model.weights import (
    ITEM_OPTIMIZER_GROUP,
    MODEL_GROUP,
    NUM_ITEMS,
    OPTIMIZER_GROUP,
    Bert4RecCheckpoint,
    weights_of,
)
from bert4rec.train.evaluate import rank_split
from bert4rec.train.inference import inferences
from bert4rec.train.resolve import complete, open_loaded
from bert4rec.train.schedule import (
    build_schedule,
    depends_on_length,
    total_steps,
    warmup_steps,
)
from bert4rec.train.step import Bert4RecTrainStep, build_step, item_rule
from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.models.baselines import BASELINES
from recsys.ratings.data.last_day import split_last_day
from recsys.ratings.data.negatives import log_popularity
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.data.split import Split, count_users
from recsys.ratings.ranking.evaluate import SplitRanks
from recsys.ratings.ranking.metrics import flat_metrics, metrics_of, ranking_metrics
from recsys.ratings.ranking.negatives import negatives_of_targets
from recsys.ratings.ranking.popularity import popularity_ranks
from recsys.ratings.ranking.report import check_result_files, report_test, write_files
from recsys.settings import fixed_settings
from recsys.train.checkpoint import MODEL, Checkpoint
from recsys.train.loop import Evaluation, FitResult, LoopConfig, LoopState, Metric
from recsys.train.measure.benchmark import PADDED
from recsys.train.measure.timing import rate_in_words
from recsys.train.memory import keep_few_primitives, require_memory
from recsys.train.optimizers.schedule import Schedule
from recsys.train.origin import FINGERPRINT
from recsys.train.processes import Processes, join_processes
from recsys.train.recipe import Machine, SavedState, Training
from recsys.train.saving.run_folder import CheckpointFolder

_CHOSEN_RANKING, _CHOSEN_METRIC = "full", "ndcg@10"


def join_run(config: Bert4RecConfig) -> contextlib.AbstractContextManager[Processes]:
    """Joins the processes of a run; see `join_processes`."""
    run = config.run
    shards_tables = run.mode == "train" and run.parallelism == "dmp"
    return join_processes(
        run.base_device,
        run.num_threads,
        needs_group=shards_tables,
        process_timeout=run.process_timeout,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bert4RecRecipe:
    """A BERT4Rec and its sequences; see `Recipe`.

    Attributes:
        config: settings, completed from checkpoint and dataset.
        machine: device, precision and processes of the run.
        dataset: the dataset of the run.
        sequences: its histories, split.
        negatives: name of a ranking -> [U, S] negatives of each user.
        model: the network.
        loaded: checkpoint that the model's settings come from; None without one.
    """

    config: Bert4RecConfig
    machine: Machine
    dataset: OpenedHistories
    sequences: Sequences
    negatives: Mapping[str, npt.NDArray[np.int32]]
    model: Bert4Rec
    loaded: Bert4RecCheckpoint | None
    fixed = fixed_settings(Bert4RecConfig.sections)

    @classmethod
    def open(cls, config: Bert4RecConfig, machine: Machine) -> "Bert4RecRecipe":
        """Completes the settings, opens the sequences and builds the model.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
        """
        keep_few_primitives()
        loaded = open_loaded(config)
        dataset = OpenedHistories.open(config.data)
        config = complete(config, loaded, dataset)
        sequences = dataset.sequences(config.data, config.run.seed)
        if config.run.progressive:
            sequences = _of_last_day(sequences, dataset, loaded)
        check_result_files(config.evaluation, sequences)
        is_host = machine.processes.is_first and machine.device.type == "cpu"
        needed = trained_memory(
            *(config, sequences.num_items, item_rule(config, machine.device)),
            keeps_best=is_host and config.checkpoint_folder is None,
        )
        require_memory(needed, machine.device, machine.processes)
        ranks = config.run.mode != "inference_benchmark"
        negatives = negatives_of_targets(sequences, config, machine.print_line) if ranks else {}
        with machine.device:
            model = Bert4Rec(config.model, sequences.num_items, config.adapter)
        return cls(
            config=config,
            machine=machine,
            dataset=dataset,
            sequences=sequences,
            negatives=negatives,
            model=model,
            loaded=loaded,
        )

    @property
    def summary(self) -> Sequence[str]:
        """A line on the opened data and the model."""
        sequences, parameters = self.sequences, list(self.model.parameters())
        count = sum(p.numel() for p in parameters)
        lines = [
            f"{sequences.num_users} users, {sequences.num_items} items, {len(sequences.items)} "
            f"interactions; {count} parameters on {self.machine.device.type}"
        ]
        if self.model.adapters is not None and self.config.run.mode == "train":
            trained = sum(p.numel() for p in parameters if p.requires_grad)
            lines.append(f"trainable: {trained:,} of {count:,} parameters ({trained / count:.2%})")
        return lines

    @property
    def causal(self) -> bool:
        """True if the model predicts from the last item, without a mask item."""
        return self.config.objective.objective == "causal"

    def check_dataset(self, checkpoint: Checkpoint) -> None:
        """Refuses a checkpoint that was trained on another dataset."""
        self._check_dataset(Bert4RecCheckpoint.from_checkpoint(checkpoint), new_users=False)

    def _check_dataset(self, checkpoint: Bert4RecCheckpoint, *, new_users: bool) -> None:
        self.dataset.check_model(
            checkpoint.path,
            checkpoint.origin,
            self.sequences.num_items,
            new_users=new_users,
            ignore_fingerprint=self.config.run.ignore_fingerprint,
        )

    def load(self) -> None:
        """Copies the weights of `load_checkpoint_path`, if it is set, into the model.

        A training run on a later day of the checkpoint's dataset starts with the weights of that
        day, and draws the vectors of items that are new since. It keeps its own adapters. A
        progressive test does the same, and hides these items.

        In the other modes, `popularity_correction` may differ from that of the training: the scores
        change as if the model had been trained with it.
        """
        if self.loaded is None or self.config.run.load_checkpoint_path is None:
            return
        is_training = self.config.run.mode == "train"
        may_follow = is_training or self.config.run.progressive
        if not (may_follow and self.dataset.follows(self.loaded.origin)):
            self._check_dataset(self.loaded, new_users=True)
        if may_follow:
            self.loaded.load_base_into(self.model)
        else:
            self.loaded.load_into(self.model)
        if is_training:
            return
        trained_with = self.loaded.checkpoint.settings(ObjectiveConfig)
        change = self.config.objective.popularity_correction
        change -= trained_with.get("popularity_correction", 0.0)
        if change:
            bias = self.model.head.bias.data
            bias -= change * log_popularity(self.sequences).to(bias.device)
        if self.config.run.progressive:
            self.model.hide_items(self.loaded.num_items)

    def training(self) -> Training[BatchGroup]:
        """Prepares the model for training."""
        config, machine = self.config, self.machine
        folder = config.checkpoint_folder
        # An existing run is resumed with its own vectors, or refused.
        has_run = machine.processes.any(
            folder is not None and bool(CheckpointFolder(folder).latest())
        )
        if config.model.item_init == "neighbours" and self.loaded is None and not has_run:
            vectors = torch.zeros(self.sequences.num_items, config.model.emb_dim)
            if machine.processes.is_first:  # the signs of columns may differ between processes
                vectors = neighbour_vectors(self.sequences, config.model.emb_dim)
            self.model.set_items(machine.processes.sum(vectors.to(machine.device)))
        source = TrainBatches(config, self.sequences, machine.device, machine.processes)
        step = build_step(config, self.sequences, self.model, machine.precision, machine.processes)
        for line in step.describe():
            machine.print_line(line)
        return Bert4RecTraining(self, source, step)

    def rank(self, split: Split) -> SplitRanks:
        """Ranks the targets of a split; see `rank_split`."""
        data = self.config.data
        return rank_split(
            self.model,
            self.sequences,
            split,
            dict(self.negatives),
            self.machine,
            batch_size=data.test_batch_size if split == "test" else data.val_batch_size,
            causal=self.causal,
            list_length=self.config.lists.top_k if split == "test" else 0,
        )

    def test(self) -> dict[str, Any]:
        """Ranks the test targets, writes the files, and reports metrics next to the baselines'."""
        ranked = self.rank("test")
        if self.machine.processes.is_first:
            # Before the report, because its baselines may run out of memory or time.
            files, print_line = self.config.evaluation, self.machine.print_line
            write_files(files, self.dataset, self.sequences, ranked, print_line)
        baselines = {name: BASELINES[name] for name in self.config.evaluation.baselines}
        return report_test(self.sequences, self.negatives, ranked, self.machine, baselines)

    def prepare_inference(self) -> Sequence[str]:
        """Describes the measured inference in a line."""
        run = self.config.run
        how = ", traced by torch.jit" if run.use_torch_jit_trace else ""
        return [f"Best {self.config.lists.top_k} of {self.sequences.num_items} items{how}"]

    def inferences(self, batch_size: int) -> Sequence[Callable[[], object]]:
        """Returns calls that recommend for batches of users in random order."""
        return inferences(self.model, self.sequences, self.config, self.machine, batch_size)


def _of_last_day(
    sequences: Sequences, dataset: OpenedHistories, loaded: Bert4RecCheckpoint | None
) -> Sequences:
    """Returns the split by the dataset's last day.

    Raises:
        UserError: the model is not one of an earlier day of the dataset, or see `split_last_day`.
    """
    if loaded is None or dataset.root is None or not dataset.follows(loaded.origin):
        named = "no checkpoint" if loaded is None else str(loaded.path)
        raise UserError(
            f"`progressive` tests the model of an earlier day on {dataset.name}, which {named} is "
            "not; name it with `load_checkpoint_path`",
            settings=("progressive", "load_checkpoint_path"),
        )
    return split_last_day(sequences, dataset.root)


@dataclasses.dataclass(frozen=True, slots=True)
class Bert4RecTraining:
    """A BERT4Rec in training; see `Training`.

    Attributes:
        recipe: the model and its data.
        source: training batches.
        step: one optimizer step.
        best: on the first process, the weights that `keep_best` kept, on the host.
    """

    recipe: Bert4RecRecipe
    source: TrainBatches
    step: Bert4RecTrainStep
    best: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """Learning rate of every step."""
        return build_schedule(self.recipe.config, self.source.num_batches)

    @property
    def cadence(self) -> LoopConfig:
        """Steps at which to print, evaluate, save and end."""
        run = self.recipe.config.run
        return LoopConfig(
            epochs=run.num_epochs,
            max_steps=run.max_steps,
            test_freq=run.test_freq,
            patience=run.patience,
            print_freq=run.print_freq,
            save_freq=run.save_freq,
            benchmark_warmup_steps=run.benchmark_warmup_steps,
            gc_after_epoch=run.gc_after_epoch,
        )

    @property
    def metric(self) -> Metric:
        """Ranking and metric that choose the best checkpoint."""
        return Metric(f"{_CHOSEN_RANKING} {_CHOSEN_METRIC}")

    def summary(self) -> str:
        """Returns users, batches and objective of an epoch, in words."""
        batch_size = self.source.batch_size * self.recipe.machine.processes.world_size
        recipe = self.recipe
        popular = popularity_ranks(recipe.sequences, "validation", recipe.negatives)
        baseline = ranking_metrics(popular[_CHOSEN_RANKING], (10,))[_CHOSEN_METRIC]
        warmup = warmup_steps(recipe.config, self.source.num_batches)
        steps = total_steps(recipe.config.run, self.source.num_batches)
        risen = (
            f"\n`warmup_steps` {warmup}: the learning rate rises in all of the {steps} "
            "steps, so little is learned; train longer, or lower `warmup_steps`"
        )
        return (
            f"{count_users(recipe.sequences, self.source.least_items)}\n"
            f"Training on {self.source.num_batches} batches of {batch_size} per epoch, "
            f"`objective` {recipe.config.objective.objective}; {self.metric.name} of popularity: "
            f"{baseline:.6f}{risen if warmup >= steps else ''}"
        )

    def begin_epoch(self, epoch: int) -> None:
        """Does nothing: all epochs train the same model."""

    def count(self, batch: BatchGroup) -> Mapping[str, int]:
        """Counts samples, targets, and tokens that the model reads."""
        return {
            "samples": len(batch),
            "tokens": sum(each.num_tokens for each in batch.batches),
            "targets": sum(each.num_targets for each in batch.batches),
            PADDED: len(batch) * self.recipe.config.model.max_len,
        }

    def evaluate(self, epochs_done: int) -> Evaluation:  # noqa: ARG002  (any model can be ranked)
        """Ranks the validation items."""
        with self.step.whole_tables():
            ranked = self.recipe.rank("validation")
        metrics = metrics_of(ranked.ranks)
        chosen = metrics[_CHOSEN_RANKING][_CHOSEN_METRIC]
        return Evaluation(chosen, flat_metrics(metrics), ranked.users_per_s)

    def keep_best(self) -> None:
        """Copies the weights to the host on the first process, replacing earlier ones."""
        with self.step.whole_tables():
            if self.recipe.machine.processes.is_first:
                for name, weight in weights_of(self.recipe.model).items():
                    self.best[name] = weight.to("cpu", copy=True)

    def _load_kept(self) -> None:
        """Copies the weights of `keep_best` into the model of every process."""
        processes = self.recipe.machine.processes
        for name, weight in weights_of(self.recipe.model).items():
            kept = self.best[name] if processes.is_first else torch.zeros_like(weight)
            weight.copy_(processes.sum(kept.to(weight.device)))

    @contextlib.contextmanager
    def saved(self) -> Iterator[SavedState]:
        """Collects weights and optimizer states to save.

        Random draws need no state: each batch is seeded by its number.
        """
        recipe = self.recipe
        values = {
            MODEL: Bert4Rec.name,
            NUM_ITEMS: recipe.sequences.num_items,
            FINGERPRINT: recipe.dataset.fingerprint,
        }
        with self.step.whole_tables():
            groups = self._groups()
            yield SavedState(groups if recipe.machine.processes.is_first else {}, values=values)

    def _groups(self) -> dict[str, dict[str, Tensor]]:
        groups = {MODEL_GROUP: weights_of(self.recipe.model)}
        groups[OPTIMIZER_GROUP] = self.step.optimizer.state()
        item_state = self.step.item_state()
        return groups | ({ITEM_OPTIMIZER_GROUP: item_state} if item_state else {})

    def restore(self, checkpoint: Checkpoint, state: LoopState) -> LoopState:
        """Restores weights and optimizer states from a checkpoint; returns `state`.

        Raises:
            UserError: the learning rate would jump, because the length of the run has changed.
        """
        self._check_same_length(checkpoint)
        with self.step.whole_tables():
            groups = self._groups()
            for group, tensors in groups.items():
                checkpoint.copy_into(group, tensors)
            self.step.load_item_state(groups.get(ITEM_OPTIMIZER_GROUP, {}))
        return state

    def _check_same_length(self, checkpoint: Checkpoint) -> None:
        config = self.recipe.config
        if not depends_on_length(config):
            return
        now = total_steps(config.run, self.source.num_batches)
        earlier = checkpoint.section(RunConfig)
        then = total_steps(earlier, self.source.num_batches)
        if now != then:
            raise UserError(
                f"{checkpoint.path}: its `lr_schedule` {config.optimizer.lr_schedule} was made for "
                f"{then} steps, but this run has {now}, so the learning rate would jump: repeat "
                "`num_epochs` and `max_steps`, or begin another run with `load_checkpoint_path`",
                settings=("lr_schedule", "num_epochs", "max_steps", "load_checkpoint_path"),
                path=checkpoint.path,
            )

    def report(
        self, result: FitResult, folder: CheckpointFolder | None
    ) -> Iterator[Mapping[str, Any]]:
        """Reports the training and tests the best model, saved or not.

        Without a finite validation metric, it tests the model of the last step. It does not test a
        run that a signal ended.
        """
        state, print_line = result.state, self.recipe.machine.print_line
        print_line(f"Finished training: {rate_in_words(result.train_samples_per_s, 'rec', 1)}")
        figures = {
            "average_train_throughput": result.train_samples_per_s,
            "best_metric": state.best_metric,
            "best_epoch": state.best_epoch,
        }
        if result.reason.startswith("SIG"):
            yield figures
            return
        best = None if folder is None else folder.best()
        is_best = math.isfinite(state.best_metric) and (folder is None or best is not None)
        step = round(state.best_epoch * self.source.num_batches) if is_best else state.step
        yield figures | {"tested_step": step}
        chosen = f"the best by validation ({result.metric.name})" if is_best else "the last"
        print_line(f"Testing the model of step {step}, {chosen}")
        with self.step.whole_tables():
            if best is not None:
                Bert4RecCheckpoint.open(best).load_into(self.recipe.model)
            elif is_best:
                self._load_kept()
            yield self.recipe.test()
