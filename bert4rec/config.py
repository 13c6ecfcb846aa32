# SPDX-License-Identifier: Apache-2.0
"""Settings of a BERT4Rec run, under the names of the flags.

Defaults are those of TorchRec's example where it has the setting. A YAML file (`--config`, or the
name of one in `configs/`) replaces defaults, a flag replaces both.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cuda_ext.row_rules import StatefulRowOptimizer
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
from recsys.train.optimizers.precision import AmpDtype
from recsys.train.origin import ignore_fingerprint

Activation = Literal["gelu", "relu"]
Norm = Literal["pre", "post"]
PositionsFrom = Literal["end", "start"]
WindowKind = Literal["recent", "random", "sliding", "prefix"]
Objective = Literal["cloze", "causal", "hybrid"]
MaskLastOf = Literal["sequences", "batches"]
Ranking = Literal["full", "popular", "uniform"]
DatasetName = Literal["ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"]
Mode = Literal["train", "test", "inference_benchmark", "recommend", "ddp", "dmp"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Settings of the network."""

    max_len: int = setting(100, "Longest sequence the model sees")
    emb_dim: int = setting(256, "Columns of the item embedding and of every layer")
    nhead: int = setting(2, "Heads of the attention")
    num_layers: int = setting(2, "Transformer blocks")
    ffn_dim: int | None = setting(
        None, "Columns of the feed-forward networks; by default four times --emb_dim"
    )
    activation: Activation = setting("relu", "Activation of the feed-forward networks")
    norm: Norm = setting("pre", "Normalise before each sublayer of a block, or after it")
    embedding_norm: bool = setting(True, "Normalise the sum of item and position embeddings")
    positions_from: PositionsFrom = setting(
        "end", "Count positions from the end of a sequence (left padding) or from its start"
    )
    head: Literal["untied", "tied"] = setting(
        "untied", "Score items with vectors of the head's own, or with the item embedding"
    )
    head_transform: bool = setting(
        False, "A linear layer, GELU and normalisation before items are scored"
    )
    dropout: float = setting(0.1, "Share of activations dropped while training")
    attention_dropout: float = setting(0.1, "Share of attention weights dropped while training")
    init_std: float = setting(0.02, "Standard deviation of the initial weights")

    def __post_init__(self) -> None:
        """Refuses sizes that contradict each other."""
        require_positive(self, "max_len", "emb_dim", "nhead", "num_layers")
        if self.ffn_dim is not None:
            require_positive(self, "ffn_dim")
        if self.emb_dim % self.nhead:
            raise UserError(
                f"`emb_dim` {self.emb_dim} cannot be divided among `nhead` {self.nhead} heads"
            )
        for name in ("dropout", "attention_dropout"):
            _require_share(self, name, below_one=True)
        require_not_negative(self, "init_std")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Settings of the data."""

    dataset_name: DatasetName = setting("ml-1m", "Dataset; random is generated")
    dataset_path: str | None = setting(
        None,
        "Folder that preproc.movielens or preproc.amazon made; by default ./<dataset_name>",
        resumable=True,
    )
    min_user_count: int = setting(5, "Interactions a user must have")
    min_item_count: int = setting(0, "Interactions an item must have")
    min_rating: float = setting(0.0, "Ratings below are left out")
    random_user_count: int = setting(10, "Users of --dataset_name random")
    random_item_count: int = setting(30, "Items of --dataset_name random")
    random_size: int = setting(300, "Interactions of --dataset_name random")
    windows: WindowKind = setting(
        "sliding",
        "Windows of a history an epoch trains on: its end; a random one; overlapping ones; the "
        "items before each item",
    )
    dupe_factor: int = setting(3, "Times an epoch sees each window, with masks of their own")
    train_batch_size: int = setting(128, "Sequences of a training batch")
    val_batch_size: int = setting(128, "Sequences of a validation batch", resumable=True)
    test_batch_size: int = setting(128, "Sequences of a test batch", resumable=True)

    def __post_init__(self) -> None:
        """Refuses counts below their minimum."""
        require_positive(
            *(self, "random_user_count", "random_item_count", "random_size", "dupe_factor"),
            *("train_batch_size", "val_batch_size", "test_batch_size"),
        )
        for name in ("random_user_count", "random_item_count"):
            require_below(self, name, 2**31 - 1)  # the mask item has a number too
        if self.min_user_count < 3:
            raise UserError(
                f"`min_user_count` must be at least 3, got {self.min_user_count}: one interaction "
                "each to train on, to validate and to test"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """Settings of the training objective."""

    objective: Objective = setting(
        "cloze", "Hidden items from both sides, the next item from one side, or both in turn"
    )
    mask_prob: float = setting(0.15, "Fraction of the items that are targets")
    mask_last_prob: float = setting(
        0.0, "Fraction of the sequences whose last item is the only target"
    )
    mask_last_of: MaskLastOf = setting(
        "sequences", "Draw these sequences one by one, or in whole batches"
    )
    mask_replace: float = setting(0.8, "Fraction of the targets that the mask item replaces")
    random_replace: float = setting(
        0.2, "Fraction of the targets that a random item replaces; the rest stay visible"
    )
    loss: Literal["full", "sampled", "gbce"] = setting(
        "full", "Softmax over all items, over sampled ones, or gBCE over sampled ones"
    )
    num_negatives: int = setting(4096, "Negatives of --loss sampled and gbce, shared by a batch")
    negative_sampler: Literal["uniform", "popular"] = setting(
        "uniform", "How negatives are drawn; their probability is corrected for (logQ)"
    )
    gbce_calibration: float = setting(0.75, "Calibration of --loss gbce, its t")

    def __post_init__(self) -> None:
        """Refuses probabilities outside [0, 1]."""
        for name in ("mask_prob", "mask_last_prob", "mask_replace", "random_replace"):
            _require_share(self, name)
        _require_share(self, "gbce_calibration")
        if self.mask_replace + self.random_replace > 1 + 1e-9:
            raise UserError(
                f"`mask_replace` {self.mask_replace} and `random_replace` {self.random_replace} "
                "must not add up to more than 1"
            )
        require_positive(self, "num_negatives")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Settings of the optimizers."""

    lr: float = setting(1e-3, "Learning rate")
    lr_schedule: Literal["step", "cosine", "linear"] = setting(
        "step",
        "Multiply by --gamma every --decay_step epochs, or fall to zero along a cosine or a line",
    )
    decay_step: int = setting(25, "Epochs between falls of the rate under --lr_schedule step")
    gamma: float = setting(1.0, "Factor of each fall under --lr_schedule step")
    warmup_steps: int = setting(0, "Steps in which the rate rises from zero")
    extend_schedule: bool = setting(
        False,
        "Let a resumed run of another length continue on the cosine or line of that length, which "
        "changes its rate at once",
        resumable=True,
    )
    weight_decay: float = setting(0.0, "Weight decay (decoupled)")
    clip_norm: float | None = setting(None, "Largest norm of the gradient of a step")
    item_update: Literal["auto", "dense", "rows"] = setting(
        "auto",
        "Update every row of the item tables in each step, or only those that a batch looked up; "
        "auto takes rows with a sampled loss and under --parallelism dmp",
    )
    item_rule: Literal["auto", StatefulRowOptimizer] = setting(
        "auto",
        "Optimizer of the rows under --item_update rows; auto takes adam, and rowwise_adagrad "
        "under --parallelism dmp on a CPU, where FBGEMM has no Adam",
    )
    accumulation_steps: int = setting(
        1, "Batches whose gradients a process adds up before it moves the parameters"
    )

    def __post_init__(self) -> None:
        """Refuses negative rates."""
        require_positive(self, "decay_step", "accumulation_steps")
        require_not_negative(self, "lr", "gamma", "weight_decay", "warmup_steps")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(f"`clip_norm` must be positive, got {self.clip_norm}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig:
    """Settings of the precision."""

    amp: bool = setting(False, "Compute matrix products in half precision")
    amp_dtype: AmpDtype = setting("bfloat16", "Type of the matrix products under --amp")

    @property
    def loss_scale(self) -> float:
        """Factor of the loss: none, gradients of this model do not underflow."""
        return 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Settings of the evaluation."""

    metric_ks: tuple[int, ...] = setting(
        (1, 5, 10, 20, 50, 100), "Lengths K of the lists that HR@K and NDCG@K judge", resumable=True
    )
    num_eval_negatives: int = setting(
        100, "Negatives per user of the sampled rankings", resumable=True
    )
    choose_by: Ranking = setting(
        "full",
        "Ranking whose NDCG@10 on the validation items decides which checkpoint is best",
    )
    bootstrap_samples: int = setting(
        1000, "Resamplings of the users behind each interval", resumable=True
    )
    ranks_file: str = setting(
        "",
        "File for the rank of each user's test item, .csv or .parquet; empty writes none",
        resumable=True,
    )
    report_slices: bool = setting(
        False,
        "Report the test by length of the history and frequency of the item, cold ones included, "
        "and the share of items in the best --top_k of any user",
        resumable=True,
    )

    def __post_init__(self) -> None:
        """Refuses lists without a length, and ranks in another format."""
        if self.ranks_file and not self.ranks_file.endswith((".csv", ".parquet")):
            raise UserError(f"`ranks_file` must end in .csv or .parquet, got {self.ranks_file}")
        require_positive(self, "num_eval_negatives")
        if not self.metric_ks or min(self.metric_ks) < 1:
            raise UserError(f"`metric_ks` must be positive, got {joined(self.metric_ks)!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Settings of the run: mode, duration, files, processes."""

    mode: Mode = setting("train", "Task; ddp and dmp train with that --parallelism", resumable=True)
    parallelism: Literal["ddp", "dmp"] = setting(
        "ddp",
        "Under torchrun: a copy of the model per process, or TorchRec's DistributedModelParallel "
        "with a sharded item table",
    )
    num_epochs: int = setting(100, "Epochs to train for", resumable=True)
    max_steps: int | None = setting(None, "Stop after this many steps", resumable=True)
    test_freq: int | None = setting(
        None, "Steps between validations; by default one per epoch", resumable=True
    )
    patience: int | None = setting(
        None, "Stop after this many validations without a better one", resumable=True
    )
    seed: int = setting(12345, "Random seed")
    base_device: Literal["auto", "cuda", "cpu"] = setting(
        "auto", "Device of the model; auto takes CUDA if present", resumable=True
    )
    num_threads: int | None = setting(
        None, "CPU threads of a step; by default one per core", resumable=True
    )
    print_freq: int = setting(100, "Steps between lines of progress", resumable=True)
    log_path: str = setting("./log.json", "Destination of the log of metrics", resumable=True)
    export_root: str = setting("", "Folder of the checkpoints; empty saves none", resumable=True)
    save_freq: int | None = setting(
        None, "Steps between checkpoints, besides the best and last", resumable=True
    )
    load_checkpoint_path: str | None = setting(
        None, "Checkpoint, or folder of a run, to load", resumable=True
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    resume: bool = setting(
        False, "Continue the run saved under --export_root, if there is one", resumable=True
    )
    benchmark_warmup_steps: int = setting(
        0, "First steps to leave out of the throughput", resumable=True
    )
    inference_benchmark_batch_sizes: tuple[int, ...] = setting(
        (1, 64, 1024), "Batch sizes of --mode inference_benchmark", resumable=True
    )
    inference_benchmark_steps: int = setting(
        100, "Steps of each inference benchmark", resumable=True
    )
    recommend_input: str | None = setting(
        None,
        "File of histories for --mode recommend, one per line; by default standard input",
        resumable=True,
    )
    top_k: int = setting(10, "Items that --mode recommend gives for each history", resumable=True)

    def __post_init__(self) -> None:
        """Refuses counts and intervals below 1."""
        require_positive(self, "num_epochs", "print_freq", "inference_benchmark_steps", "top_k")
        require_not_negative(self, "seed")
        require_below(self, "seed", 2**63)
        for name in ("max_steps", "test_freq", "save_freq", "num_threads", "patience"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        sizes = self.inference_benchmark_batch_sizes
        if not sizes or min(sizes) < 1:
            raise UserError(
                f"`inference_benchmark_batch_sizes` must be positive, got {joined(sizes)!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bert4RecConfig:
    """A whole run; `explicit` names the settings that the user gave."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    objective: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    precision: PrecisionConfig = dataclasses.field(default_factory=PrecisionConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other."""
        if self.run.resume and not self.run.export_root:
            raise UserError("`resume` needs `export_root`, the folder of the run")
        if self.run.resume and self.run.load_checkpoint_path is not None:
            raise UserError("`resume` continues from `export_root`; drop `load_checkpoint_path`")
        objective = self.objective
        if objective.loss == "gbce" and objective.negative_sampler != "uniform":
            raise UserError(
                "`loss` gbce is calibrated for uniform negatives; use `negative_sampler` uniform, "
                "or `loss` sampled, which corrects for the probability of each"
            )
        if self.updates_rows and objective.loss == "full" and self.model.head == "tied":
            raise UserError(
                "the full softmax of a tied head gives every row of the item table a gradient, "
                "so `item_update` rows and `parallelism` dmp cannot have it: use `loss` sampled, "
                "`loss` gbce or `head` untied"
            )
        if self.run.parallelism == "dmp":
            self._check_dmp()

    def _check_dmp(self) -> None:
        if self.optimizer.item_update == "dense":
            raise UserError("`parallelism` dmp moves rows of the item table: drop `item_update`")
        if self.optimizer.clip_norm is not None:
            raise UserError(
                "`clip_norm` cannot be had under `parallelism` dmp: the item table is updated "
                "during backward, before the norm is known. Use `parallelism` ddp"
            )
        if self.optimizer.accumulation_steps > 1:
            raise UserError(
                "`accumulation_steps` cannot be had under `parallelism` dmp: the item table is "
                "updated in every backward. Use `parallelism` ddp"
            )

    @property
    def updates_rows(self) -> bool:
        """True if steps update only the looked-up rows of item tables."""
        choice = self.optimizer.item_update
        by_itself = self.objective.loss != "full" or self.run.parallelism == "dmp"
        return choice == "rows" or (choice == "auto" and by_itself)

    @property
    def folder_setting(self) -> str:
        """Name of the setting of the checkpoint folder."""
        return "export_root"

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the checkpoints; None if none are saved."""
        return Path(self.run.export_root) if self.run.export_root else None

    def to_dict(self) -> dict[str, Any]:
        """Returns every setting under its flag name, as plain values."""
        return to_dict(self, SECTIONS)

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], explicit: frozenset[str] = frozenset()
    ) -> "Bert4RecConfig":
        """Builds a config from values under their flag names.

        Raises:
            UserError: an unknown name, or a value that is refused.
        """
        return cls(**sections_from_dict(values, SECTIONS), explicit=explicit)


SECTIONS: dict[type, str] = {
    ModelConfig: "model",
    DataConfig: "data",
    ObjectiveConfig: "objective",
    OptimizerConfig: "optimizer",
    PrecisionConfig: "precision",
    EvaluationConfig: "evaluation",
    RunConfig: "run",
}


def _require_share(section: Any, name: str, *, below_one: bool = False) -> None:
    value = getattr(section, name)
    if not 0 <= value <= 1 or (below_one and value == 1):
        end = ")" if below_one else "]"
        raise UserError(f"`{name}` must lie in [0, 1{end}, got {value}")
