# SPDX-License-Identifier: Apache-2.0
"""A run that is set up: its settings, its data, and the model on its device."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic

import torch

from dlrm.config import DlrmConfig
from dlrm.data.open_split import SplitPass
from dlrm.data.sources import load_feature_spec
from dlrm.data.synthetic import write_synthetic_dataset
from dlrm.model.network import DlrmNetwork
from dlrm.model.weights import check_dataset, load_weights
from dlrm.nn.embedding import LookupsT
from dlrm.train.devices import Devices, build_devices
from dlrm.train.evaluate import SplitScores, score_split
from dlrm.train.resolve import resolve, take_model_from_checkpoint
from recsys.data.feature_spec import FeatureSpec
from recsys.train.allocator import keep_freed_memory
from recsys.train.device import resolve_device
from recsys.train.precision import Precision, resolve_precision
from recsys.train.processes import ALONE, Processes
from recsys.train.run_log import RunLog

Announce = Callable[[str], None]


def _say_nothing(_line: str) -> None:
    """Announces for a process that is not the first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Session(Generic[LookupsT]):
    """A run that is set up: its resolved settings and the model on its device."""

    config: DlrmConfig
    device: torch.device
    spec: FeatureSpec
    precision: Precision
    devices: Devices[LookupsT]
    log: RunLog
    announce: Announce
    processes: Processes = ALONE

    @classmethod
    def start(
        cls,
        config: DlrmConfig,
        announce: Announce,
        log_class: type[RunLog] = RunLog,
        processes: Processes = ALONE,
    ) -> "Session[Any]":
        """Resolves the settings, opens the log and builds the model.

        Args:
            config: as the user gave it.
            announce: prints a line.
            log_class: of the log; another one may print what it records.
            processes: of the run; the first prints and logs.

        Raises:
            ValueError: a setting, the dataset or the checkpoint is refused.
        """
        if config.run.num_threads is not None:
            torch.set_num_threads(config.run.num_threads)
        if not processes.is_first:
            announce = _say_nothing
        keep_freed_memory()
        device = resolve_device(config.run.base_device)
        config = take_model_from_checkpoint(config)
        if config.data.dataset_type == "synthetic_disk":
            if processes.is_first:
                _ensure_synthetic_dataset(config, announce)
            processes.barrier()
        spec = load_feature_spec(config.data, config.model.num_numerical_features)
        config = resolve(config, device, spec, processes.world_size)
        precision = resolve_precision(
            device, config.precision.amp, config.precision.amp_dtype, config.precision.loss_scale
        )
        torch.manual_seed(config.run.seed)
        devices = build_devices(config, spec, device, processes, announce)
        if config.run.load_checkpoint_path is not None:
            check_dataset(
                Path(config.run.load_checkpoint_path),
                [feature.name for feature in spec.categorical],
                devices.model.embeddings.table_sizes,
                str(config.data.dataset or config.data.dataset_type),
            )
            load_weights(Path(config.run.load_checkpoint_path), devices.model)
        log = log_class(
            Path(config.run.log_path) if processes.is_first else None,
            append=config.run.resume or processes.restarts > 0,
        )
        log.parameters(config.to_dict())
        return cls(
            config=config,
            device=device,
            spec=spec,
            precision=precision,
            devices=devices,
            log=log,
            announce=announce,
            processes=processes,
        )

    @property
    def model(self) -> DlrmNetwork[LookupsT]:
        """The network of this process."""
        return self.devices.model

    def score(self, split: str | None = None) -> SplitScores:
        """Scores a split; None takes that of --eval_split."""
        data = self.config.data
        wanted = SplitPass(split=split or data.eval_split, batch_size=data.test_batch_size)
        return score_split(
            self.model,
            self.devices.batches(wanted).batches(),
            self.precision,
            self.device,
            torch.device(self.config.run.auc_device),
            self.processes,
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
