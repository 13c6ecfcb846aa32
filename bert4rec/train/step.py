# SPDX-License-Identifier: Apache-2.0
"""One optimizer step of BERT4Rec."""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import BatchGroup, TrainBatch
from bert4rec.data.masking import draw_uniformly, mask_tokens, next_item_batch
from bert4rec.model.compiled import CompiledNetwork
from bert4rec.model.loss import LossNetwork
from bert4rec.model.network import Bert4Rec, ItemRows
from bert4rec.model.row_shards import RowShards
from bert4rec.model.torchrec import ShardedNetwork, shard_network
from bert4rec.nn.targets import LabelledBatch
from bert4rec.train.graphs import GraphedParts, Part, check_graphable
from cuda_ext.ops import RowOptimizer
from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.ratings.data.negatives import log_popularity
from recsys.train.optimizers.dense import build_dense_optimizer
from recsys.train.optimizers.precision import Precision
from recsys.train.optimizers.rows import RowwiseOptimizer
from recsys.train.processes import ALONE, Processes


class Bert4RecTrainStep:
    """Forward, backward and update on the batches of a step.

    The gradient is that of the mean over the targets of all batches on all processes.

    Args:
        model: the network to train.
        config: settings of the objective and the optimizers.
        precision: precision of the forward pass.
        processes: processes that train together.
        score_offset: [I] added to the scores in training; see `LossNetwork`.

    Attributes:
        optimizer: optimizer of the dense parameters.
        row_optimizer: optimizer of the item tables with row gradients; None without such tables.
        item_rows: the item tables with row gradients.
        sharded: the network with item tables sharded by TorchRec; None if TorchRec shards none.
        shards: the network with item tables sharded by rows and updated after backward; None if
            there are no such tables.
    """

    def __init__(
        self,
        model: Bert4Rec,
        config: Bert4RecConfig,
        precision: Precision,
        processes: Processes = ALONE,
        score_offset: Tensor | None = None,
    ) -> None:
        objective, optimizer = config.objective, config.optimizer
        self._model = model
        model.activation_checkpointing = config.run.activation_checkpointing
        self._objective = objective
        self._precision = precision
        self._clip_norm = optimizer.clip_norm
        self._processes = processes
        self.item_rows: ItemRows | None = None
        self.row_optimizer: RowwiseOptimizer | None = None
        self.sharded: ShardedNetwork | None = None
        self.shards: RowShards | None = None
        device = model.head.bias.device
        network = LossNetwork(
            *(model, objective.loss, precision.loss_scale, score_offset),
        )
        if config.run.torch_compile:
            network.compiled = CompiledNetwork(model)
        self._network: nn.Module = network
        is_dmp = config.run.parallelism == "dmp" and not config.updates_after_backward
        rule, decay = item_rule(config, device), optimizer.weight_decay
        if config.updates_after_backward:
            self._network = self.shards = RowShards(network, processes)
        elif config.updates_rows and objective.loss != "full":
            # FBGEMM updates the other tables, but supports no table with one column.
            self.item_rows = ItemRows(model, ("bias",) if is_dmp else ("embedding", "head", "bias"))
        tables = self.shards or self.item_rows
        if tables is not None:
            self.row_optimizer = RowwiseOptimizer(tables, rule, decay, precision.loss_scale)
        if is_dmp:
            self._network = self.sharded = shard_network(network, rule, decay, device)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if self.sharded is None and processes.world_size > 1:
            self._network = DistributedDataParallel(self._network)
        self.optimizer = build_dense_optimizer("adam", self._parameters, optimizer.weight_decay)
        # The graphs of several batches add up gradients in the same memory.
        self._keeps_gradients = config.run.cuda_graphs and optimizer.accumulation_steps > 1
        if self._keeps_gradients:
            for parameter in self._parameters:
                parameter.grad = torch.zeros_like(parameter)
        # On the device, because a captured graph repeats the numbers of the host.
        self._lr = torch.zeros((), device=device)
        self._share = torch.zeros((), device=device)
        self._generator = torch.Generator(device)
        self._run_part: Part = self._train_on
        if config.run.cuda_graphs:
            self._run_part = GraphedParts(self._train_on, [self._generator])

    def __call__(self, batch: BatchGroup, lr: float) -> Tensor:
        """Trains on a group of batches.

        Args:
            batch: tensors on the model's device.
            lr: learning rate of this step.

        Returns:
            Mean loss over the targets of all processes before the update, a float32 scalar on the
            device.
        """
        self._lr.fill_(lr)
        if self.sharded is not None:
            self.sharded.set_lr(lr)
        self._model.train()
        batches, counts = batch.batches, [each.num_targets for each in batch.batches]
        total = int(self._processes.sum_integers(np.array([sum(counts)]))[0])
        loss: Tensor | None = None
        for i, (each, count) in enumerate(zip(batches, counts, strict=True)):
            self._share.fill_(count / max(total, 1))
            # Dropout draws from the global generator: reseeded, a resumed run draws the same.
            torch.manual_seed(each.seed)
            self._generator.manual_seed(each.seed)
            of_batch = self._run_part(each, i == 0, i == len(batches) - 1)
            loss = of_batch if loss is None else loss + of_batch
        assert loss is not None
        return self._processes.sum(loss)

    def _train_on(self, batch: TrainBatch, is_first: bool, is_last: bool) -> Tensor:
        """Adds the gradient of a batch, and updates the model after the last one of a step."""
        if is_first:
            self._clear_gradients()
        with self._without_exchange() if not is_last else contextlib.nullcontext():
            loss = self._backward(batch)
        if is_last:
            self._update()
        return loss

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None and self._keeps_gradients:
                parameter.grad.zero_()
            else:
                parameter.grad = None

    @contextlib.contextmanager
    def whole_tables(self) -> Iterator[None]:
        """Gathers sharded tables into the model; every process must enter it."""
        sharded = self.sharded or self.shards
        if sharded is None:
            yield
            return
        sharded.fill_tables()
        yield
        sharded.empty_tables()

    def describe(self) -> list[str]:
        """Returns a line per sharded table."""
        if self.sharded is not None:
            return [f"TorchRec's plan: {line}" for line in self.sharded.describe()]
        lines = [] if self.shards is None else self.shards.describe()
        return [f"Item tables by rows: {line}" for line in lines]

    def item_state(self) -> dict[str, Tensor]:
        """Returns the row optimizer's state; every process must call it."""
        tensors: dict[str, Tensor] = {}
        if self.sharded is not None:
            tensors |= {name: t for name, t in self.sharded.gather().items() if "." in name}
        if self.row_optimizer is None:
            return tensors
        tensors["steps"] = self.row_optimizer.steps
        shards = {} if self.shards is None else self.shards.shards
        names = list(shards) if self.item_rows is None else self.item_rows.names
        for table, state in zip(names, self.row_optimizer.state, strict=True):
            for name, tensor in state.items():
                whole = shards[table].gather(tensor) if shards else tensor
                tensors[f"{table}.{name}"] = whole
        return tensors

    @torch.no_grad()
    def load_item_state(self, state: dict[str, Tensor]) -> None:
        """Scatters changed tensors of `item_state` and changed tables.

        Only shards need it: elsewhere `item_state` returns the tensors themselves. Call it within
        `whole_tables`.
        """
        if self.sharded is not None:
            self.sharded.scatter(state)
        if self.shards is not None and self.row_optimizer is not None:
            shards = self.shards.shards.items()
            for (table, shard), tensors in zip(shards, self.row_optimizer.state, strict=True):
                shard.take()
                for name, own in tensors.items():
                    own.copy_(shard.own(state[f"{table}.{name}"]))

    def _without_exchange(self) -> contextlib.AbstractContextManager[None]:
        if isinstance(self._network, DistributedDataParallel):
            return self._network.no_sync()
        return contextlib.nullcontext()

    def _backward(self, batch: TrainBatch) -> Tensor:
        """Adds a batch's gradient by its share of the targets; returns its share of the loss."""
        inputs = self._labelled(batch)
        with self._precision.autocast():
            loss: Tensor = self._network(inputs)
        # Processes average their gradients; the mean of all targets needs their sum.
        factor = self._processes.world_size * self._precision.loss_scale
        torch.autograd.backward(loss * (self._share * factor))
        return loss.detach() * self._share

    def _labelled(self, batch: TrainBatch) -> LabelledBatch:
        num_items, objective = self._model.num_items, self._objective
        if batch.causal:
            labelled = next_item_batch(batch.items, batch.layout)
        else:
            labelled = mask_tokens(
                *(batch.items, batch.layout, batch.mask_counts),
                *(objective, num_items, self._generator),
            )
        if batch.is_rounded:
            shown = labelled.items if batch.causal else batch.items
            labelled = labelled.ignoring(shown == 0)
        if objective.loss == "full":
            return labelled
        negatives = draw_uniformly(
            num_items, objective.num_negatives, self._generator, self._lr.device
        )
        return dataclasses.replace(labelled, negatives=negatives)

    def _update(self) -> None:
        scale = self._precision.loss_scale
        dense = [p.grad for p in self._parameters if p.grad is not None]
        if self.row_optimizer is None:
            overflow = self._precision.find_overflow(dense)
            if self._clip_norm is not None:
                nn.utils.clip_grad_norm_(self._parameters, self._clip_norm * scale, foreach=True)
            self.optimizer.step(self._lr, scale, overflow)
            return
        world_size = self._processes.world_size
        rows = self.row_optimizer.gradients()
        if world_size > 1 and self.item_rows is not None:
            rows = self._processes.gather_rows(rows, self.item_rows.dims, self._lr.device)
        # By now all processes have the same gradients, and so the same flag. Only the gradients of
        # shards differ, which do not support float16.
        of_rows = [g.gradients for g in rows if g.gradients.numel()]
        overflow = self._precision.find_overflow([*dense, *of_rows])
        factor = None
        if self._clip_norm is not None:
            squares = torch.stack(torch._foreach_norm(dense)).square().sum()
            norms = [g.squared_norm() / world_size**2 for g in rows]
            squares_of_rows = torch.stack([torch.zeros_like(squares), *norms]).sum()
            if self.shards is not None:
                squares_of_rows = self._processes.sum(squares_of_rows)
            squares = squares + squares_of_rows
            factor = (self._clip_norm * scale / (squares.sqrt() + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(dense, factor)
        if world_size > 1:
            average = torch.full_like(self._lr, 1 / world_size)
            factor = average if factor is None else factor * average
        self.optimizer.step(self._lr, scale, overflow)
        self.row_optimizer.step(rows, self._lr, overflow, factor)


def item_rule(config: Bert4RecConfig, device: torch.device) -> RowOptimizer:
    """Returns the optimizer of the rows of the item tables.

    It is Adam where that is available: FBGEMM does not have Adam on a CPU.
    """
    by_fbgemm = config.run.parallelism == "dmp" and not config.updates_after_backward
    return "rowwise_adagrad" if by_fbgemm and device.type == "cpu" else "adam"


def build_step(
    config: Bert4RecConfig,
    sequences: Sequences,
    model: Bert4Rec,
    precision: Precision,
    processes: Processes = ALONE,
) -> Bert4RecTrainStep:
    """Builds the training step of a model.

    Raises:
        UserError: the settings do not fit the dataset or this machine.
    """
    objective, device = config.objective, model.head.bias.device
    if config.run.cuda_graphs:
        check_graphable(config, device, processes.world_size)
    if objective.loss == "gbce" and objective.num_negatives >= sequences.num_items:
        raise UserError(
            f"`num_negatives` {objective.num_negatives}: `loss` gbce must sample fewer than the "
            f"{sequences.num_items} items; lower `num_negatives`, or use `loss` full",
            settings=("num_negatives", "loss"),
        )
    correction, offset = objective.popularity_correction, None
    if correction:
        offset = (correction * log_popularity(sequences)).to(device)
    return Bert4RecTrainStep(model, config, precision, processes, offset)
