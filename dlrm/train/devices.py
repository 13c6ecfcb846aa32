# SPDX-License-Identifier: Apache-2.0
"""Builds model, batches and training step for one device or several.

The rest of the training does not know the number of devices.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.data.batch import Batch, BatchSource, mixed_seed
from dlrm.data.open_split import SplitPass, open_split
from dlrm.data.opened import OpenedDataset
from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import RankColumns, open_rank_split
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm, build_distributed
from dlrm.model.memory import TableRows, trained_memory
from dlrm.model.network import Dlrm, DlrmNetwork
from dlrm.nn.embedding import LookupsT
from dlrm.train.explain import explain
from dlrm.train.graphs import GraphedInference, GraphedTrainStep
from dlrm.train.quantize import TableBytes, quantize
from dlrm.train.step import DlrmTrainStep
from recsys.errors import UserError
from recsys.train.loop import TrainStep
from recsys.train.memory import require_memory
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import Processes


class Devices(Protocol[LookupsT]):
    """A model, with its batches and its training step."""

    @property
    def model(self) -> DlrmNetwork[LookupsT]:
        """The model of this process."""
        ...

    def batches(self, wanted: SplitPass) -> BatchSource[LookupsT]:
        """Opens the batches of a split for the model."""
        ...

    def train_step(self, precision: Precision) -> DlrmTrainStep[LookupsT]:
        """Builds the training step of the model."""
        ...

    def reset_embeddings(self) -> None:
        """Draws the embeddings anew, as at the start."""
        ...

    def replayed(self, step: DlrmTrainStep[LookupsT]) -> TrainStep[Batch[LookupsT]]:
        """Returns the step, replayed from a CUDA graph if `cuda_graphs` is set."""
        ...

    def replayed_inference(
        self, predict: Callable[[Batch[LookupsT]], Tensor]
    ) -> Callable[[Batch[LookupsT]], Tensor]:
        """Returns the call, replayed from CUDA graphs if `cuda_graphs` is set."""
        ...

    def id_reader(self, feature: str) -> Callable[[Batch[LookupsT]], Tensor]:
        """Returns a function that reads a feature's ids from a batch.

        Raises:
            UserError: there is no such feature, or no process has all columns.
        """
        ...

    def explanation(self, wanted: SplitPass, precision: Precision) -> Mapping[str, Any]:
        """Computes calibration curve and feature importance; see `explain`."""
        ...

    def quantize(self, calibration: SplitPass) -> TableBytes:
        """Turns the model into one of 8 bits; see `dlrm.train.quantize`.

        Raises:
            UserError: the model is not on one CPU.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class OneDevice:
    """A run of one process with the whole model on one device."""

    config: DlrmConfig
    dataset: OpenedDataset
    device: torch.device
    model: Dlrm

    @classmethod
    def build(cls, config: DlrmConfig, dataset: OpenedDataset, device: torch.device) -> "OneDevice":
        """Builds the model with random weights.

        Raises:
            OutOfMemoryError: it does not fit in memory.
        """
        spec = dataset.spec
        names = [feature.name for feature in spec.categorical]
        rows = TableRows.of_model(config.model, names, spec.table_sizes)
        require_memory(trained_memory(config, rows, len(names)), device)
        with device:
            return cls(config, dataset, device, Dlrm(config.model, spec.table_sizes))

    def batches(self, wanted: SplitPass) -> BatchSource[Tensor]:
        """Opens the batches of a split."""
        return open_split(self.config, self.dataset, wanted, self.device)

    def train_step(self, precision: Precision) -> DlrmTrainStep[Tensor]:
        """Builds the training step."""
        run = self.config.run
        return DlrmTrainStep(
            self.model,
            self.config.optimizer,
            precision,
            seed=mixed_seed(run.seed, 0),
        )

    def reset_embeddings(self) -> None:
        """Draws the embeddings anew, as at the start."""
        self.model.embeddings.reset_parameters()

    def replayed(self, step: DlrmTrainStep[Tensor]) -> TrainStep[Batch[Tensor]]:
        """Returns the step, replayed from a CUDA graph if `cuda_graphs` is set."""
        return GraphedTrainStep(step) if self.config.run.cuda_graphs else step

    def replayed_inference(
        self, predict: Callable[[Batch[Tensor]], Tensor]
    ) -> Callable[[Batch[Tensor]], Tensor]:
        """Returns the call, replayed from CUDA graphs if `cuda_graphs` is set."""
        return GraphedInference(predict) if self.config.run.cuda_graphs else predict

    def id_reader(self, feature: str) -> Callable[[Batch[Tensor]], Tensor]:
        """Returns a function that reads a feature's ids from a batch.

        Raises:
            UserError: there is no such feature.
        """
        names = [categorical.name for categorical in self.dataset.spec.categorical]
        if feature not in names:
            raise UserError(
                f"`gauc_by` {feature}: no categorical feature of the dataset; they are "
                f"{', '.join(names)}"
            )
        column = names.index(feature)
        return lambda batch: batch.ids[:, column]

    def explanation(self, wanted: SplitPass, precision: Precision) -> Mapping[str, Any]:
        """Computes calibration curve and feature importance; see `explain`."""
        return explain(self.model, self.batches(wanted).batches(), self.dataset.spec, precision)

    def quantize(self, calibration: SplitPass) -> TableBytes:
        """Turns the model into one of 8 bits.

        Raises:
            UserError: it is not on a CPU, or PyTorch was built without oneDNN.
        """
        if self.device.type != "cpu":
            raise UserError(f"`quantize` int8 runs on a CPU, not on {self.device.type}")
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            raise UserError("`quantize` int8 needs a PyTorch with oneDNN, which this one is not")
        return quantize(self.model, self.batches(calibration).batches())


@dataclasses.dataclass(frozen=True, slots=True)
class SeveralDevices:
    """A run of several processes: tables sharded, MLPs data-parallel."""

    config: DlrmConfig
    dataset: OpenedDataset
    device: torch.device
    model: DistributedDlrm

    @classmethod
    def build(
        cls,
        config: DlrmConfig,
        dataset: OpenedDataset,
        device: torch.device,
        processes: Processes,
        print_line: Callable[[str], None],
    ) -> "SeveralDevices":
        """Plans the placement of the tables and builds this rank's shards.

        Raises:
            PlacementError: the tables do not fit, or the file does not fit the run.
            OutOfMemoryError: the model does not fit in memory.
        """
        with device:
            model = build_distributed(config, dataset.spec, processes, device, print_line)
        return cls(config, dataset, device, model)

    def batches(self, wanted: SplitPass) -> BatchSource[ExchangedLookups]:
        """Opens this rank's batches of a split, with the exchanged lookups."""
        placement, rank = self.model.sharded.placement, self.model.sharded.rank
        columns = RankColumns.of(placement, rank)
        return ExchangedBatches(
            open_rank_split(self.config, self.dataset, columns, wanted),
            placement,
            rank,
            self.device,
            hash_indices=self.config.model.hash_indices,
        )

    def train_step(self, precision: Precision) -> DlrmTrainStep[ExchangedLookups]:
        """Builds the training step, which sums dense gradients over ranks."""
        run = self.config.run
        return DlrmTrainStep(
            self.model,
            self.config.optimizer,
            precision,
            AllReducedGradients(self.model),
            seed=mixed_seed(run.seed, self.model.sharded.rank),
        )

    def reset_embeddings(self) -> None:
        """Draws the embeddings anew; copies on several ranks stay equal."""
        self.model.embeddings.reset_parameters()
        self.model.broadcast_replicated()

    def replayed(self, step: DlrmTrainStep[ExchangedLookups]) -> TrainStep[Batch[ExchangedLookups]]:
        """Returns the step unchanged: CUDA graphs are for one device."""
        return step

    def replayed_inference(
        self, predict: Callable[[Batch[ExchangedLookups]], Tensor]
    ) -> Callable[[Batch[ExchangedLookups]], Tensor]:
        """Returns the call unchanged: CUDA graphs are for one device."""
        return predict

    def id_reader(self, feature: str) -> Callable[[Batch[ExchangedLookups]], Tensor]:
        """Refuses: no process has all columns of a row.

        Raises:
            UserError: always.
        """
        raise UserError(f"`gauc_by` {feature} runs on one process; start one without torchrun")

    def explanation(self, wanted: SplitPass, precision: Precision) -> Mapping[str, Any]:  # noqa: ARG002
        """Returns nothing: no process has all columns of a row."""
        return {}

    def quantize(self, calibration: SplitPass) -> TableBytes:  # noqa: ARG002
        """Refuses: 8-bit tables are not sharded.

        Raises:
            UserError: always.
        """
        raise UserError("`quantize` int8 runs in one process; start one without torchrun")


def build_devices(
    config: DlrmConfig,
    dataset: OpenedDataset,
    device: torch.device,
    processes: Processes,
    print_line: Callable[[str], None],
) -> Devices[Any]:
    """Builds the model on the device or devices of a run.

    The type of its lookups is only known at run time; callers are generic in it.

    Raises:
        PlacementError: the tables do not fit, or the file does not fit the run.
        OutOfMemoryError: the model does not fit in memory.
    """
    if processes.world_size == 1:
        return OneDevice.build(config, dataset, device)
    return SeveralDevices.build(config, dataset, device, processes, print_line)
