# SPDX-License-Identifier: Apache-2.0
"""One optimizer step of BERT4Rec."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import BatchGroup, TrainBatch
from bert4rec.data.masking import MaskingRule, mask_tokens, next_item_batch
from bert4rec.data.negative_sampler import NegativeSampler, log_popularity
from bert4rec.model.compiled import CompiledNetwork
from bert4rec.model.loss import LossInputs, LossNetwork
from bert4rec.model.network import Bert4Rec, ItemRows
from bert4rec.model.row_shards import RowShards
from bert4rec.model.torchrec import ShardedNetwork, shard_network
from cuda_ext.ops import RowOptimizer
from recsys.data.sequences import Sequences
from recsys.errors import UserError
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
        sampler: draws the negatives; None with the full softmax.
        processes: processes that train together.
        score_offset: [I] added to the scores in training; see `LossNetwork`.

    Attributes:
        optimizer: optimizer of the dense parameters.
        row_optimizer: optimizer of the item tables with row gradients; None without such tables.
        item_rows: the item tables with row gradients.
        sharded: the network with item tables sharded by TorchRec; None without.
        shards: the network with item tables dealt out by rows and updated after backward; None
            without.
    """

    def __init__(
        self,
        model: Bert4Rec,
        config: Bert4RecConfig,
        precision: Precision,
        sampler: NegativeSampler | None = None,
        processes: Processes = ALONE,
        score_offset: Tensor | None = None,
    ) -> None:
        objective, optimizer = config.objective, config.optimizer
        self._model = model
        model.activation_checkpointing = config.run.activation_checkpointing
        self._rule = MaskingRule.of(objective)
        self._precision = precision
        self._clip_norm = optimizer.clip_norm
        self._sampler = sampler
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
        if config.updates_after_backward:
            self.shards = RowShards(network, processes)
            self._network = self.shards
            self.row_optimizer = RowwiseOptimizer(
                self.shards,
                item_rule(config, device),
                optimizer.weight_decay,
                precision.loss_scale,
            )
        elif config.updates_rows and objective.loss != "full":
            # FBGEMM updates the other tables, but supports none of one column.
            self.item_rows = ItemRows(model, ("bias",) if is_dmp else ("embedding", "head", "bias"))
            self.row_optimizer = RowwiseOptimizer(
                self.item_rows,
                item_rule(config, device),
                optimizer.weight_decay,
                precision.loss_scale,
            )
        if is_dmp:
            self.sharded = shard_network(
                network, item_rule(config, device), optimizer.weight_decay, device
            )
            self._network = self.sharded
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if self.sharded is None and processes.world_size > 1:
            self._network = DistributedDataParallel(self._network)
        self.optimizer = build_dense_optimizer("adam", self._parameters, optimizer.weight_decay)
        # A CUDA graph returns gradients in memory that its next call overwrites, so gradients that
        # are added up need memory of their own.
        self._keeps_gradients = config.run.torch_compile and optimizer.accumulation_steps > 1
        if self._keeps_gradients:
            for parameter in self._parameters:
                parameter.grad = torch.zeros_like(parameter)
        self._lr = torch.zeros((), device=device)
        self._generator = torch.Generator(device)

    def __call__(self, batch: TrainBatch | BatchGroup, lr: float) -> Tensor:
        """Trains on a batch or on a group of batches.

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
        self._clear_gradients()
        batches = batch.batches if isinstance(batch, BatchGroup) else (batch,)
        counts = [batch.num_targets for batch in batches]
        total = int(self._processes.sum_integers(np.array([sum(counts)]))[0])
        loss = torch.zeros_like(self._lr)
        for i, (each, count) in enumerate(zip(batches, counts, strict=True)):
            is_last = i == len(batches) - 1
            with self._without_exchange() if not is_last else contextlib.nullcontext():
                loss += self._backward(each, count / max(total, 1))
        self._update()
        mean: Tensor = self._processes.sum(loss)
        return mean

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

    def item_state(self) -> dict[str, Tensor]:
        """Returns the row optimizer's state; every process must call it."""
        tensors: dict[str, Tensor] = {}
        if self.sharded is not None:
            tensors |= {name: t for name, t in self.sharded.gather().items() if "." in name}
        tables = self.item_rows or self.shards
        if self.row_optimizer is None or tables is None:
            return tensors
        tensors["steps"] = self.row_optimizer.steps
        for table, state in zip(tables.names, self.row_optimizer.state, strict=True):
            for name, tensor in state.items():
                whole = tensor if self.shards is None else self.shards.gather(table, tensor)
                tensors[f"{table}.{name}"] = whole
        return tensors

    @torch.no_grad()
    def load_item_state(self, state: dict[str, Tensor]) -> None:
        """Scatters changed tensors of `item_state` and changed tables.

        Only shards need it: elsewhere `item_state` returns the tensors themselves. Call it within
        `whole_tables`.
        """
        if self.sharded is not None:
            self.sharded.scatter(state | self.sharded.whole_tables())
        if self.shards is not None and self.row_optimizer is not None:
            self.shards.take_tables()
            for table, tensors in zip(self.shards.names, self.row_optimizer.state, strict=True):
                for name, own in tensors.items():
                    own.copy_(self.shards.own_rows(table, state[f"{table}.{name}"]))

    def _without_exchange(self) -> contextlib.AbstractContextManager[None]:
        if isinstance(self._network, DistributedDataParallel):
            return self._network.no_sync()
        return contextlib.nullcontext()

    def _backward(self, batch: TrainBatch, weight: float) -> Tensor:
        """Adds the weighted gradient of a batch; returns its weighted loss."""
        # Dropout draws from the global generator: reseeded, a resumed run draws the same.
        torch.manual_seed(batch.seed)
        self._generator.manual_seed(batch.seed)
        inputs = self._loss_inputs(batch)
        with self._precision.autocast():
            loss: Tensor = self._network(inputs)
        # Processes average their gradients; the mean of all targets needs their sum.
        factor = weight * self._processes.world_size * self._precision.loss_scale
        torch.autograd.backward(loss * factor)
        return loss.detach() * weight

    def _loss_inputs(self, batch: TrainBatch) -> LossInputs:
        if batch.causal:
            labelled = next_item_batch(batch.items, batch.layout)
        else:
            labelled = mask_tokens(
                batch.items,
                batch.layout,
                batch.mask_counts,
                self._rule,
                self._model.num_items,
                self._generator,
            )
        drawn = None if self._sampler is None else self._sampler.draw(self._generator)
        return LossInputs(
            items=labelled.items,
            layout=labelled.layout,
            targets=labelled.targets,
            labels=labelled.labels,
            causal=batch.causal,
            negatives=None if drawn is None else drawn.items,
            log_expected=None if drawn is None else drawn.log_expected,
        )

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
        # Gradients are the same on all processes by now, so the flag is too, but for shards, which
        # float16 cannot have.
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

    It is Adam where there is one: FBGEMM has none on a CPU.
    """
    by_fbgemm = config.run.parallelism == "dmp" and not config.updates_after_backward
    return "rowwise_adagrad" if by_fbgemm and device.type == "cpu" else "adam"


def build_sampler(
    config: Bert4RecConfig, sequences: Sequences, device: torch.device
) -> NegativeSampler | None:
    """Builds the sampler of negatives; None with the full softmax.

    Raises:
        UserError: gBCE with as many negatives as there are items.
    """
    objective = config.objective
    if objective.loss == "full":
        return None
    if objective.loss == "gbce" and objective.num_negatives >= sequences.num_items:
        raise UserError(
            f"`num_negatives` {objective.num_negatives}: `loss` gbce is for a sample of the "
            f"{sequences.num_items} items; ask for fewer, or use `loss` full"
        )
    return NegativeSampler(sequences.num_items, objective.num_negatives, device)


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
    device = model.head.bias.device
    sampler = build_sampler(config, sequences, device)
    correction, offset = config.objective.popularity_correction, None
    if correction:
        offset = (correction * log_popularity(sequences)).to(device)
    return Bert4RecTrainStep(model, config, precision, sampler, processes, offset)
