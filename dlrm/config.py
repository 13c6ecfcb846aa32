# SPDX-License-Identifier: Apache-2.0
"""Settings of a DLRM run: names, defaults, help and checks.

`scripts/flags.py` turns each field into a flag of the same name.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cuda_ext.row_rules import RowOptimizer
from recsys.errors import UserError
from recsys.settings import (
    joined,
    require_below,
    require_not_negative,
    require_positive,
    sections_from_dict,
    setting,
    to_dict,
)
from recsys.train.measure import MeasureConfig
from recsys.train.optimizers.dense import DenseRule, dense_rule_beside
from recsys.train.optimizers.precision import AmpDtype
from recsys.train.origin import ignore_fingerprint

DatasetType = Literal[
    "binary", "memmap", "split", "parquet", "npy", "synthetic_gpu", "synthetic_disk"
]
EmbeddingType = Literal["joint", "joint_fused", "joint_sparse", "multi_table"]
EmbeddingStorage = Literal["float32", "bfloat16", "planar"]
LoaderType = Literal["default", "merlin"]
InteractionOp = Literal["cuda_dot", "dot", "cat", "dcnv2"]
Mode = Literal["train", "test", "predict", "inference_benchmark"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes and variants of the network."""

    num_numerical_features: int = setting(
        13, "Number of numerical features in the dataset. Defaults to 13 for Criteo"
    )
    embedding_dim: int = setting(128, "Dimensionality of embedding space for categorical features")
    bottom_mlp_sizes: tuple[int, ...] = setting(
        (512, 256, 128), "Linear layer sizes for the bottom MLP; the last is --embedding_dim"
    )
    top_mlp_sizes: tuple[int, ...] = setting(
        (1024, 1024, 512, 256, 1), "Linear layer sizes for the top MLP; the last is 1"
    )
    interaction_op: InteractionOp = setting(
        "cuda_dot",
        "Type of interaction operation to perform; cuda_dot takes the extension, dot plain PyTorch",
    )
    dcn_num_layers: int = setting(3, "Cross layers of --interaction_op dcnv2")
    dcn_low_rank_dim: int = setting(512, "Rank of each cross layer of --interaction_op dcnv2")
    embedding_type: EmbeddingType = setting(
        "joint_fused",
        "The type of the embedding operation to use: one joint table updated in place by the "
        "fused optimizer, one joint table with sparse gradients (plain PyTorch, or through the "
        "extension), or one table per feature",
    )
    embedding_storage: EmbeddingStorage = setting(
        "float32",
        "How --embedding_type joint_fused keeps its table: float32, bfloat16 written with "
        "stochastic rounding (half the memory), or planar (float32 in two halves, of which the "
        "forward pass reads the bfloat16 one)",
    )
    hash_indices: bool = setting(
        False,
        "If True the model will compute `index := index % table size` to ensure that the indices "
        "match table sizes",
    )
    max_table_size: int | None = setting(
        None,
        "Maximum number of rows per embedding table, by default equal to the number of unique "
        "values for each categorical variable; needs --hash_indices",
    )
    optimized_mlp: bool = setting(
        True,
        "Use an optimized implementation of MLP from apex, where it is installed",
        resumable=True,
    )
    dropout: float = setting(
        0.0, "Fraction of activations dropped after each hidden layer of the top MLP in training"
    )
    batch_norm: bool = setting(False, "Normalise each hidden layer of the MLPs over the batch")

    def __post_init__(self) -> None:
        """Refuses layer and table sizes that do not fit together."""
        require_positive(self, "embedding_dim", "dcn_num_layers", "dcn_low_rank_dim")
        require_below(self, "dcn_num_layers", 1000)
        if self.num_numerical_features < 0:
            raise UserError(
                f"`num_numerical_features` must be 0 or more, got {self.num_numerical_features}"
            )
        for name in ("bottom_mlp_sizes", "top_mlp_sizes"):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < 1:
                raise UserError(f"`{name}` must be positive integers, got {joined(sizes)!r}")
        if self.bottom_mlp_sizes[-1] != self.embedding_dim:
            raise UserError(
                f"`bottom_mlp_sizes` must end with `embedding_dim` ({self.embedding_dim}), "
                f"got {joined(self.bottom_mlp_sizes)}"
            )
        if self.top_mlp_sizes[-1] != 1:
            raise UserError(f"`top_mlp_sizes` must end with 1, got {joined(self.top_mlp_sizes)}")
        if self.max_table_size is not None:
            require_positive(self, "max_table_size")
            if not self.hash_indices:
                raise UserError(
                    "`max_table_size` cuts tables below their number of ids, so it needs "
                    "`hash_indices`"
                )
        if self.embedding_storage != "float32" and self.embedding_type != "joint_fused":
            raise UserError(
                f"`embedding_storage` {self.embedding_storage} needs `embedding_type` joint_fused, "
                f"not {self.embedding_type}"
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must lie in [0, 1), got {self.dropout}")

    def capped(self, table_sizes: Sequence[int]) -> list[int]:
        """Returns the rows of each table under `max_table_size`."""
        return [min(rows, self.max_table_size or rows) for rows in table_sizes]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Dataset, batches and synthetic data."""

    dataset: str | None = setting(
        None,
        "Full path to the dataset folder, as `recsys-recipes prepare criteo` makes it",
        resumable=True,
    )
    dataset_type: DatasetType = setting("split", "The type of the dataset to use")
    loader: LoaderType = setting(
        "default",
        "What reads --dataset_type parquet: the reader of this project, or merlin-dataloader where "
        "it is installed",
        resumable=True,
    )
    feature_spec: str | None = setting(
        None,
        "Path of the feature specification, absolute or inside the dataset folder; by default "
        "feature_spec.yaml or model_size.json of the dataset",
        resumable=True,
    )
    num_embeddings_per_feature: tuple[int, ...] = setting(
        (),
        "Rows of each embedding table, for a dataset folder without feature specification "
        "(TorchRec's), or instead of the cardinalities in it; by default those",
    )
    dataset_subset: float | None = setting(
        None,
        "Use only a subset of the training data. If None (default) will use all of it. Must be "
        "either None, or a float in range (0,1]",
    )
    batch_size: int = setting(32768, "Batch size used for training")
    test_batch_size: int = setting(32768, "Batch size used for testing/validation", resumable=True)
    drop_last: bool = setting(
        False,
        "Leave out the last rows of an epoch of training, if they make no whole batch",
        earlier=True,
    )
    shuffle_batch_order: bool = setting(False, "Read batch in train dataset by random order")
    eval_split: Literal["test", "validation"] = setting(
        "test",
        "Split that evaluations run on. Choose settings on `validation`, report `test`",
    )
    read_ahead: int = setting(
        4,
        "Batches that reader threads prepare ahead of the model; 0 reads on demand",
        resumable=True,
    )
    synthetic_dataset_num_entries: int = setting(
        33554432, "Number of samples per epoch for the synthetic dataset"
    )
    synthetic_dataset_table_sizes: tuple[int, ...] = setting(
        (100000,) * 26,
        "Embedding table sizes to use with the synthetic dataset",
        default_text="26 times 100000",
    )
    synthetic_dataset_use_feature_spec: bool = setting(
        False,
        "Take the table sizes and the number of numerical features of the synthetic dataset from "
        "--dataset and its --feature_spec",
    )
    synthetic_dataset_dir: str = setting(
        "/tmp/dlrm_sythetic_dataset", "Default synthetic disk dataset directory", resumable=True
    )
    synthetic_distribution: Literal["uniform", "zipf"] = setting(
        "uniform",
        "How synthetic ids are drawn; real ids are close to zipf, which is faster to train",
    )

    def __post_init__(self) -> None:
        """Refuses sizes out of range and loaders that cannot read the dataset."""
        require_positive(self, "batch_size", "test_batch_size", "synthetic_dataset_num_entries")
        require_below(self, "synthetic_dataset_num_entries", 10**12)
        if self.dataset_subset is not None and not 0 < self.dataset_subset <= 1:
            raise UserError(f"`dataset_subset` must lie in (0, 1], got {self.dataset_subset}")
        if self.read_ahead < 0:
            raise UserError(f"`read_ahead` must be 0 or more, got {self.read_ahead}")
        for name in ("synthetic_dataset_table_sizes", "num_embeddings_per_feature"):
            sizes = getattr(self, name)
            if any(s < 1 for s in sizes):
                raise UserError(f"`{name}` must be positive, got {joined(sizes)}")
        if self.loader == "merlin" and self.dataset_type != "parquet":
            raise UserError(
                f"`loader` merlin reads `dataset_type` parquet alone, not {self.dataset_type}"
            )
        if self.loader == "merlin" and self.shuffle_batch_order:
            raise UserError(
                "`loader` merlin reads in order, without `shuffle_batch_order`; shuffle the rows "
                "while preparing the dataset, or use `loader` default"
            )
        if self.synthetic_dataset_use_feature_spec and self.dataset is None:
            raise UserError(
                "`synthetic_dataset_use_feature_spec` needs `dataset`, the folder of the real data"
            )
        if not self.is_synthetic and self.dataset is None:
            raise UserError(
                f"`dataset_type` {self.dataset_type} needs `dataset`, the folder of the data "
                "(or use `dataset_type` synthetic_gpu, which needs none)"
            )

    @property
    def is_synthetic(self) -> bool:
        """Whether the data is generated, with random labels (AUC near 0.5)."""
        return self.dataset_type in ("synthetic_gpu", "synthetic_disk")

    @property
    def has_columns(self) -> bool:
        """Whether each column of the dataset is a file (split binary)."""
        return self.dataset_type in ("split", "memmap", "synthetic_disk")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Optimizers, learning rates and their schedule."""

    lr: float = setting(28.0, "Base learning rate")
    embedding_lr: float | None = setting(
        None, "Base learning rate of the embeddings, if it differs from --lr"
    )
    warmup_factor: int = setting(0, "Learning rate warmup factor. Must be a non-negative integer")
    warmup_steps: int = setting(6400, "Number of warmup optimization steps")
    decay_start_step: int | None = setting(
        64000,
        "Optimization step after which to start decaying the learning rate, if None will start "
        "decaying right after the warmup phase is completed",
    )
    decay_steps: int = setting(
        80000, "Polynomial learning rate decay steps. If equal to 0 will not do any decaying"
    )
    decay_power: int = setting(2, "Polynomial learning rate decay power")
    decay_end_lr: float = setting(0.0, "LR after the decay ends")
    optimizer: RowOptimizer = setting(
        "sgd",
        "Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad",
    )
    embedding_optimizer: RowOptimizer | None = setting(
        None, "Optimizer of the embeddings, if it differs from --optimizer"
    )
    mlp_optimizer: DenseRule | None = setting(
        None, "Optimizer of the MLPs, if it differs from --optimizer"
    )
    embedding_weight_decay: float = setting(
        0.0, "Weight decay of the embedding rows that occur in a batch"
    )
    mlp_weight_decay: float = setting(0.0, "Weight decay of the MLPs")
    reset_embeddings: bool = setting(
        False,
        "Draw the embeddings anew before each epoch but the first: the MLPs train for several "
        "epochs, the embeddings for one, so that rare ids are not memorised (MEDA, "
        "arXiv:2305.19531)",
    )
    plateau_factor: float = setting(
        1.0,
        "Factor of the learning rate after each evaluation without a better one, by --best_by; "
        "with --reset_embeddings those at the ends of epochs",
    )

    def __post_init__(self) -> None:
        """Refuses negative learning rates and step counts."""
        require_not_negative(
            self, "lr", "embedding_lr", "warmup_factor", "warmup_steps", "decay_start_step",
            "decay_steps", "decay_power", "decay_end_lr", "embedding_weight_decay",
            "mlp_weight_decay",
        )  # fmt: skip
        if not 0 < self.plateau_factor <= 1:
            raise UserError(f"`plateau_factor` must lie in (0, 1], got {self.plateau_factor}")
        if self.embedding_lr and not self.lr:
            raise UserError(
                f"`embedding_lr` {self.embedding_lr:g} follows the schedule of `lr`, which is 0; "
                "`freeze_mlps` trains the embeddings alone"
            )

    @property
    def embedding_rule(self) -> RowOptimizer:
        """Optimizer of the embeddings: `embedding_optimizer`, else `optimizer`."""
        return self.embedding_optimizer or self.optimizer

    @property
    def mlp_rule(self) -> DenseRule:
        """Optimizer of the MLPs: `mlp_optimizer`, else the one that goes with `optimizer`."""
        if self.mlp_optimizer is not None:
            return self.mlp_optimizer
        return dense_rule_beside(self.optimizer)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig:
    """Mixed precision and its loss scale."""

    amp: bool = setting(False, "If True the script will use Automatic Mixed Precision")
    amp_dtype: AmpDtype = setting(
        "float16", "Type of the matrix products under --amp; bfloat16 needs no loss scale"
    )
    loss_scale: float = setting(1024.0, "Static loss scale for Mixed Precision Training")
    tf32: bool = setting(
        False, "Multiply float32 matrices as TF32 (10 bits of mantissa) on a GPU", resumable=True
    )
    quantize: Literal["none", "int8"] = setting(
        "none",
        "int8: test or measure the model with 8-bit tables and MLPs too (CPU), calibrated on the "
        "first training rows; --mode test prints what it costs",
        resumable=True,
    )

    def __post_init__(self) -> None:
        """Refuses loss scales that are not positive."""
        if not self.loss_scale > 0:
            raise UserError(f"`loss_scale` must be positive, got {self.loss_scale}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Mode, length, evaluation, devices, log and checkpoints of a run."""

    mode: Mode = setting(
        "train",
        "Select task to be performed; test prints AUC, log loss, normalised entropy and "
        "calibration, the predicted clicks over the clicks: above 1 too many are predicted",
        resumable=True,
    )
    seed: int = setting(12345, "Random seed")
    epochs: int = setting(1, "Number of epochs to train for", resumable=True)
    max_steps: int | None = setting(
        None, "Stop training after doing this many optimization steps", resumable=True
    )
    test_freq: int | None = setting(
        None,
        "Number of optimization steps between validations. If None will test after each epoch",
        resumable=True,
    )
    test_after: float = setting(
        0.0, "Don't test the model unless this many epochs has been completed", resumable=True
    )
    best_by: Literal["auc", "log_loss"] = setting(
        "auc",
        "Metric on --eval_split that chooses the best checkpoint, and that --patience and "
        "--plateau_factor watch",
    )
    patience: int | None = setting(
        None,
        "Stop after this many evaluations in a row without a better one, by --best_by; with "
        "--reset_embeddings only those at the ends of epochs count, and each end is evaluated",
        resumable=True,
    )
    auc_threshold: float | None = setting(
        None, "Stop the training after achieving this AUC", resumable=True
    )
    auc_device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Device on which the AUC is computed; auto takes --base_device", resumable=True
    )
    base_device: Literal["auto", "cuda", "cpu"] = setting(
        "auto",
        "Device to run the majority of the model operations; auto takes CUDA if present",
        resumable=True,
    )
    placement: str | None = setting(
        None,
        "JSON file with the placement of the tables on several processes, as python -m "
        "dlrm.model.placement writes it; by default it is planned",
        resumable=True,
    )
    backend: Literal["auto", "nccl", "gloo"] = setting(
        "auto",
        "What several processes exchange tensors with: nccl on CUDA, gloo on the CPU",
        resumable=True,
    )
    process_timeout: float = setting(
        60.0,
        "Seconds without a heartbeat of one of several processes after which the run ends with an "
        "error that names that process; 0 waits for ever",
        resumable=True,
    )
    cuda_graphs: bool = setting(
        False,
        "Capture the whole training step in a CUDA graph and replay it; in "
        "--mode inference_benchmark, the prediction for each batch size",
        resumable=True,
    )
    freeze_mlps: bool = setting(False, "Keep the MLPs as they are while training")
    freeze_embeddings: bool = setting(False, "Keep the embeddings as they are while training")
    print_freq: int = setting(
        200,
        "Number of optimizations steps between printing training status to stdout",
        resumable=True,
    )
    log_path: str = setting(
        "./log.json",
        "Destination for the log file with various results and statistics",
        resumable=True,
    )
    load_checkpoint_path: str | None = setting(
        None,
        "Path from which to load a checkpoint: one step_* folder, the folder of a run (its best "
        "evaluated checkpoint is taken), or a folder in NVIDIA's layout",
        resumable=True,
    )
    gauc_by: str | None = setting(
        None,
        "Categorical feature, such as the user: --mode test gives the AUC within the rows of each "
        "of its ids too (GAUC), but for id 0 where that stands for missing, rare and unseen values",
        resumable=True,
    )
    predictions: str | None = setting(
        None,
        "File that --mode predict writes for --eval_split: row, label, probability, logit, and the "
        "file and line of the raw log; .csv or .parquet",
        resumable=True,
    )
    average_with: tuple[str, ...] = setting(
        (),
        "Further checkpoints, whose probabilities --mode predict averages with those of "
        "--load_checkpoint_path",
        resumable=True,
    )
    save_checkpoint_path: str | None = setting(
        None, "Path to which to save the training checkpoints", resumable=True
    )
    output_dir: str = setting(
        "/tmp",
        "Path where to save the checkpoints when it is given without --save_checkpoint_path; a "
        "relative --save_checkpoint_path is taken inside it",
        resumable=True,
    )
    save_freq: int | None = setting(
        None,
        "Number of optimization steps between checkpoints, besides those at the best evaluation, "
        "at the end and on SIGTERM, SIGINT or SIGHUP",
        resumable=True,
    )
    checkpoint_format: Literal["native", "nvidia"] = setting(
        "native",
        "Layout of the checkpoints; nvidia holds weights only, so such a run cannot be resumed",
    )
    bottom_features_ordered: bool = setting(
        False,
        "Write --checkpoint_format nvidia for NVIDIA's runs on several devices with this flag, "
        "else for its runs on one, where the tables come by size; any order is read",
        resumable=True,
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    resume: bool = setting(
        False,
        "Continue the run saved under --save_checkpoint_path, if there is one",
        resumable=True,
    )
    benchmark_warmup_steps: int = setting(
        0, "Number of initial iterations to exclude from throughput measurements", resumable=True
    )
    inference_benchmark_batch_sizes: tuple[int, ...] = setting(
        (1, 64, 4096),
        "Batch sizes for inference throughput and latency measurements",
        resumable=True,
    )
    inference_benchmark_steps: int = setting(
        200, "Number of steps for measuring inference latency and throughput", resumable=True
    )
    num_threads: int | None = setting(
        None, "CPU threads of a step; by default one per core", resumable=True
    )

    def __post_init__(self) -> None:
        """Refuses counts and thresholds out of range."""
        require_positive(self, "epochs", "print_freq", "inference_benchmark_steps")
        for name in ("max_steps", "test_freq", "save_freq", "num_threads", "patience"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        require_below(self, "seed", 2**63)
        require_not_negative(self, "test_after", "benchmark_warmup_steps", "process_timeout")
        if self.auc_threshold is not None and not 0 < self.auc_threshold <= 1:
            raise UserError(f"`auc_threshold` must lie in (0, 1], got {self.auc_threshold}")
        if self.auc_threshold is not None and self.best_by != "auc":
            raise UserError("`auc_threshold` needs `best_by` auc")
        sizes = self.inference_benchmark_batch_sizes
        if not sizes or min(sizes) < 1:
            raise UserError(
                f"`inference_benchmark_batch_sizes` must be positive, got {joined(sizes)!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DlrmConfig:
    """All settings of a run.

    Attributes:
        model, data, optimizer, precision, run, measure: the sections.
        explicit: names of the settings that the user gave, which defaults never replace.
    """

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    precision: PrecisionConfig = dataclasses.field(default_factory=PrecisionConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    measure: MeasureConfig = dataclasses.field(default_factory=MeasureConfig)
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other."""
        if self.run.resume and self.checkpoint_folder is None:
            raise UserError("`resume` needs `save_checkpoint_path`, the folder of the run")
        if self.run.resume and self.run.load_checkpoint_path is not None:
            raise UserError(
                "`resume` continues from `save_checkpoint_path`; drop `load_checkpoint_path`"
            )
        if self.run.resume and self.run.checkpoint_format == "nvidia":
            raise UserError(
                "`resume` needs `checkpoint_format` native: NVIDIA's layout holds no optimizer, "
                "schedule or loader state"
            )
        if self.run.checkpoint_format == "nvidia" and self.model.interaction_op == "dcnv2":
            raise UserError(
                "`checkpoint_format` nvidia has no place for the parameters of `interaction_op` "
                "dcnv2"
            )
        if self.run.checkpoint_format == "nvidia" and self.model.batch_norm:
            raise UserError("`checkpoint_format` nvidia has no tensors for those of `batch_norm`")
        if self.precision.quantize != "none":
            self._check_quantization()
        if self.run.mode == "predict":
            for name in ("predictions", "load_checkpoint_path"):
                if getattr(self.run, name) is None:
                    raise UserError(f"`mode` predict needs `{name}`")
        if self.run.freeze_mlps and self.model.batch_norm and self.run.mode == "train":
            raise UserError(
                "`batch_norm` follows every batch, so `freeze_mlps` would not keep the MLPs as "
                "they are"
            )
        if self.run.freeze_mlps and self.run.freeze_embeddings and self.run.mode == "train":
            raise UserError("`freeze_mlps` and `freeze_embeddings` leave nothing to train")

    def _check_quantization(self) -> None:
        if self.run.mode == "train":
            raise UserError("`quantize` is for trained models, not for `mode` train")
        if self.precision.amp:
            raise UserError("`quantize` and `amp` exclude each other; drop one")
        if self.model.batch_norm:
            raise UserError("`quantize` does not know the layers of `batch_norm`")
        if self.run.average_with:
            raise UserError("`quantize` and `average_with` exclude each other; drop one")

    @property
    def folder_setting(self) -> str:
        """Name of the setting of the checkpoint folder."""
        return "save_checkpoint_path"

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the run's checkpoints; None if none are saved."""
        if self.run.save_checkpoint_path is not None:
            path = Path(self.run.save_checkpoint_path)
            return Path(self.run.output_dir) / path if "output_dir" in self.explicit else path
        return Path(self.run.output_dir) if "output_dir" in self.explicit else None

    def to_dict(self) -> dict[str, Any]:
        """Returns {flag name: plain value} of every setting."""
        return to_dict(self, SECTIONS)

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], explicit: frozenset[str] = frozenset()
    ) -> "DlrmConfig":
        """Builds a config from {flag name: value}.

        Raises:
            UserError: an unknown name, or a value that is refused.
        """
        return cls(**sections_from_dict(values, SECTIONS), explicit=explicit)


SECTIONS: dict[type, str] = {
    ModelConfig: "model",
    DataConfig: "data",
    OptimizerConfig: "optimizer",
    PrecisionConfig: "precision",
    RunConfig: "run",
    MeasureConfig: "measure",
}
"""Class of each section -> its field in `DlrmConfig`."""
