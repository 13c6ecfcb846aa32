# SPDX-License-Identifier: Apache-2.0
"""Model, batches and gradients of a run on one device or several.

Nothing else of the training knows on how many devices it runs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.data.batch import Batch, BatchSource
from dlrm.data.open_split import SplitPass, open_split
from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import RankColumns, open_rank_split
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm, build_distributed
from dlrm.model.network import Dlrm, DlrmNetwork
from dlrm.nn.embedding import LookupsT
from dlrm.train.step import DlrmTrainStep, GraphedTrainStep
from recsys.data.feature_spec import FeatureSpec
from recsys.train.loop import TrainStep
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import Processes


class Devices(Protocol[LookupsT]):
    """The model of a run, and what has to fit it."""

    @property
    def model(self) -> DlrmNetwork[LookupsT]:
        """The network of this process."""
        ...

    def batches(self, wanted: SplitPass) -> BatchSource[LookupsT]:
        """Returns the batches of a split as the model takes them."""
        ...

    def train_step(self, precision: Precision) -> DlrmTrainStep[LookupsT]:
        """Returns the step that trains the model."""
        ...

    def replayed(self, step: DlrmTrainStep[LookupsT]) -> TrainStep[Batch[LookupsT]]:
        """Returns the step for the loop, captured in a CUDA graph if set."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class OneDevice:
    """A run of one process: the whole model on its device."""

    config: DlrmConfig
    spec: FeatureSpec
    device: torch.device
    model: Dlrm

    @classmethod
    def build(cls, config: DlrmConfig, spec: FeatureSpec, device: torch.device) -> "OneDevice":
        """Makes the model, freshly drawn."""
        with device:
            return cls(config, spec, device, Dlrm(config.model, spec.table_sizes))

    def batches(self, wanted: SplitPass) -> BatchSource[Tensor]:
        """Returns the batches of a split."""
        return open_split(self.config, self.spec, wanted, self.device)

    def train_step(self, precision: Precision) -> DlrmTrainStep[Tensor]:
        """Returns the step that trains the model."""
        run = self.config.run
        return DlrmTrainStep(
            self.model,
            self.config.optimizer,
            precision,
            freeze_mlps=run.freeze_mlps,
            freeze_embeddings=run.freeze_embeddings,
        )

    def replayed(self, step: DlrmTrainStep[Tensor]) -> TrainStep[Batch[Tensor]]:
        """Returns the step, captured in a CUDA graph with --cuda_graphs."""
        return GraphedTrainStep(step) if self.config.run.cuda_graphs else step


@dataclasses.dataclass(frozen=True, slots=True)
class SeveralDevices:
    """A run of several processes: tables sharded over them, MLPs on each."""

    config: DlrmConfig
    spec: FeatureSpec
    device: torch.device
    model: DistributedDlrm

    @classmethod
    def build(
        cls,
        config: DlrmConfig,
        spec: FeatureSpec,
        device: torch.device,
        processes: Processes,
        announce: Callable[[str], None],
    ) -> "SeveralDevices":
        """Plans the placement of the tables and makes this rank's shards.

        Raises:
            PlacementError: the tables do not fit, or the file does not fit the run.
        """
        with device:
            model = build_distributed(config, spec.table_sizes, processes, device, announce)
        return cls(config, spec, device, model)

    def batches(self, wanted: SplitPass) -> BatchSource[ExchangedLookups]:
        """Returns this rank's samples of a split, and the lookups of all."""
        placement, rank = self.model.placed.placement, self.model.placed.rank
        columns = RankColumns.of(placement, rank)
        return ExchangedBatches(
            open_rank_split(self.config, self.spec, columns, wanted),
            placement,
            rank,
            self.device,
            hash_indices=self.config.model.hash_indices,
        )

    def train_step(self, precision: Precision) -> DlrmTrainStep[ExchangedLookups]:
        """Returns the step that trains the model together with the other ranks."""
        run = self.config.run
        return DlrmTrainStep(
            self.model,
            self.config.optimizer,
            precision,
            AllReducedGradients(self.model, freeze_mlps=run.freeze_mlps),
            freeze_mlps=run.freeze_mlps,
            freeze_embeddings=run.freeze_embeddings,
        )

    def replayed(self, step: DlrmTrainStep[ExchangedLookups]) -> TrainStep[Batch[ExchangedLookups]]:
        """Returns the step as it is: exchanges between ranks are not captured."""
        return step


def build_devices(
    config: DlrmConfig,
    spec: FeatureSpec,
    device: torch.device,
    processes: Processes,
    announce: Callable[[str], None],
) -> Devices[Any]:
    """Makes the model on the devices of a run.

    Which lookups it takes is known at run time alone; callers are generic in them.

    Raises:
        PlacementError: the tables do not fit, or the file does not fit the run.
    """
    if processes.world_size == 1:
        return OneDevice.build(config, spec, device)
    return SeveralDevices.build(config, spec, device, processes, announce)
