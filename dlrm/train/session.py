# SPDX-License-Identifier: Apache-2.0
"""A run that is set up: its settings, its data, and the model on its device."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from dlrm.config import DlrmConfig
from dlrm.data.loader import BatchLoader
from dlrm.data.merlin import MerlinLoader
from dlrm.data.sources import SplitRows, dataset_root, load_feature_spec, open_rows
from dlrm.data.synthetic import SyntheticBatches, write_synthetic_dataset
from dlrm.distributed.batches import PlacedBatches
from dlrm.distributed.network import DistributedDlrm
from dlrm.distributed.place_tables import build_distributed
from dlrm.distributed.placement import Placement
from dlrm.distributed.shards import CutBatches, Share, ShareLoader, ShareSource
from dlrm.model.network import Dlrm
from dlrm.model.weights import check_dataset, load_weights
from dlrm.train.evaluate import SplitScores, score_split
from dlrm.train.resolve import resolve, take_model_from_checkpoint
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader
from recsys.train.allocator import keep_freed_memory
from recsys.train.device import resolve_device
from recsys.train.precision import Precision, resolve_precision
from recsys.train.processes import ALONE, Processes
from recsys.train.run_log import RunLog

Announce = Callable[[str], None]
Batches = BatchLoader | MerlinLoader | SyntheticBatches | PlacedBatches


def _say_nothing(_line: str) -> None:
    """Announces for a process that is not the first."""


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
    processes: Processes = ALONE

    @classmethod
    def start(
        cls,
        config: DlrmConfig,
        announce: Announce,
        log_class: type[RunLog] = RunLog,
        processes: Processes = ALONE,
    ) -> "Session":
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
        with device:
            if processes.world_size == 1:
                model = Dlrm(config.model, spec.table_sizes)
            else:
                model = build_distributed(config, spec.table_sizes, processes, device, announce)
        if config.run.load_checkpoint_path is not None:
            check_dataset(
                Path(config.run.load_checkpoint_path),
                [feature.name for feature in spec.categorical],
                model.embeddings.table_sizes,
                str(config.data.dataset or config.data.dataset_type),
            )
            load_weights(Path(config.run.load_checkpoint_path), model)
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
            model=model,
            log=log,
            announce=announce,
            processes=processes,
        )

    def batches(self, split: str, batch_size: int, *, train: bool, whole: bool) -> Batches:
        """Returns the batches of a split.

        Args:
            split: `train`, `validation` or `test`.
            batch_size: rows of a batch.
            train: apply the flags that concern training alone (subset, order of batches).
            whole: leave out the last, shorter batch.
        """
        if not isinstance(self.model, DistributedDlrm):
            return self._batches_of_all(split, batch_size, train=train, whole=whole)
        return PlacedBatches(
            self.shares(self.model.placed.placement, split, batch_size, train=train, whole=whole),
            self.model.placed.placement,
            self.processes.rank,
            self.device,
            hash_indices=self.config.model.hash_indices,
        )

    def shares(
        self, placement: Placement, split: str, batch_size: int, *, train: bool, whole: bool
    ) -> ShareSource:
        """Returns what this rank needs of the batches of all ranks; see `batches`."""
        share = Share.of(placement, self.processes.rank)
        host, features = dataclasses.replace(self, device=torch.device("cpu")), None
        if self.config.data.dataset_type == "parquet":
            features = share.features
            host = dataclasses.replace(host, spec=self.spec.with_features(features))
        loader = host._batches_of_all(split, batch_size, train=train, whole=whole)
        if isinstance(loader, BatchLoader) and isinstance(loader.source, SplitRows):
            return ShareLoader(loader.source, loader, share)
        return CutBatches(loader, share, features)

    def _batches_of_all(
        self, split: str, batch_size: int, *, train: bool, whole: bool
    ) -> BatchLoader | MerlinLoader | SyntheticBatches:
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
