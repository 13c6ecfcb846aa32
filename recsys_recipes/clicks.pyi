# SPDX-License-Identifier: Apache-2.0
"""The functions with their settings, written by `make golden`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import pyarrow as pa

__all__ = ["infer", "predict", "prepare", "test", "train"]

def infer(log: Any, schema: str | Path) -> Path:
    """Drafts a schema from a sample of a log.

    Args:
        log: a path or a table.
        schema: the YAML file to write; one that is there is replaced.

    Returns:
        `schema`. Its label may be left open, and each line is to be read.

    Raises:
        UserError: the log cannot be read.
    """

def prepare(
    log: Any,
    output: str | Path,
    *,
    schema: str | Path | Mapping[str, Any] | None = None,
    dictionaries: str | Path = ...,
    preset: str | Path = ...,
    engine: str | Path = ...,
    format: list[Literal["split", "parquet", "npy"]]
    | tuple[Literal["split", "parquet", "npy"], ...]
    | str = ...,
    layout: Literal["nvidia", "torchrec"] = ...,
    memory_limit: int | str = ...,
    threads: int = ...,
    max_bad_fraction: float = ...,
    progress: Literal["auto", "bar", "json", "none"] = ...,
    overwrite: bool = ...,
    work_dir: str | Path = ...,
    nvtabular_python: str | Path = ...,
    nvtabular_device: Literal["auto", "cpu", "gpu"] = ...,
    master: str | Path = ...,
    spark_conf: list[str] | tuple[str, ...] | str = ...,
    executor_cores: int = ...,
    executor_memory: str | Path = ...,
    spark_start_timeout: float = ...,
    numerical_offset: int = ...,
    numerical_min: int = ...,
    numerical_missing: Literal["raw_zero", "output_zero"] = ...,
    bin_numerical: bool = ...,
    frequency_limit: int = ...,
    dictionary_days: Literal["all", "train"] = ...,
    category_modulus: int | None = ...,
    last_day: Literal["test_validation", "validation_test"] = ...,
    last_day_rounding: Literal["floor", "ceil"] = ...,
    split_fractions: list[float] | tuple[float, ...] | str | None = ...,
    split_rows: list[int] | tuple[int, ...] | str | None = ...,
    split_days: list[int] | tuple[int, ...] | str | None = ...,
    unlabelled: bool = ...,
    shuffle_seed: int | None = ...,
) -> Path:
    """Makes a dataset from a log; returns its folder.

    Args:
        log: a path or a table.
        output: the folder to make.
        schema: YAML file of the columns, or its content; None reads Criteo's form.
        dictionaries: Dataset whose rules and dictionaries are applied to the rows instead of
            counting categories; all rows go to the test split unless a split is given.
        preset: Settings of the transform: dlrm, kaggle, mlperf, nvidia, torchrec_nvt.
        engine: Software that does the work: native, reference, spark, nvtabular.
        format: Formats to write, comma-separated: split, parquet, npy (TorchRec's arrays, by day).
        layout: Layout of the dataset: nvidia, torchrec (float32 and int32 throughout, 160 bytes a
            row; parquet with _metadata).
        memory_limit: Anonymous memory of the process, such as 512MiB.
        threads: Worker threads.
        max_bad_fraction: Fraction of rows that may be rejected; they are written to quarantine.csv
            instead.
        progress: How to report progress: auto, bar, json, none.
        overwrite: Replace the dataset at `output` once the new one is complete.
        work_dir: Folder for the work state, kept for later runs on the same input; the default,
            OUTPUT.work, is removed after success.
        nvtabular_python: Python interpreter that has NVTabular; default: the one of `make
            nvtabular`.
        nvtabular_device: Device: auto, cpu, gpu.
        master: Where Spark runs: local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT;
            default: the master of spark-submit or Spark's configuration, else all cores of this
            machine.
        spark_conf: More configuration, spark.KEY=VALUE, several separated by commas; may be
            repeated.
        executor_cores: Cores of a Spark executor.
        executor_memory: Memory of a Spark executor, such as 4g.
        spark_start_timeout: Seconds to wait for the first Spark executor.
        numerical_offset: Added to a numerical value before the natural logarithm.
        numerical_min: Smaller raw values are raised to this one first.
        numerical_missing: raw_zero: a missing value counts as the raw value 0; output_zero: it
            becomes 0.0 after the logarithm.
        bin_numerical: Add the numbers as 13 more categorical features: a number x above 2 falls
            into the bin floor(ln(x)^2), every other number has its own bin.
        frequency_limit: A category seen fewer times gets id 0; 0 and 1 keep all.
        dictionary_days: all: count categories over the whole dataset; train: over the training
            split only.
        category_modulus: Take categories modulo this number before counting; none keeps them as
            they are.
        last_day: Which half of the last day comes first.
        last_day_rounding: For an odd last day, how many rows its first half holds.
        split_fractions: Fractions for train,validation,test in row order, such as 0.8,0.1,0.1; none
            splits by days.
        split_rows: Rows for train,validation,test in row order, such as 95000,5000,-1, where -1
            takes the rest; replaces fractions.
        split_days: Files for train,validation,test in input order, such as 21,1,-1, where -1 takes
            the rest; replaces fractions.
        unlabelled: Rows have no label (39 fields); every label of the dataset is then 0.
        shuffle_seed: Shuffle the training split by a hash of the row number and this seed, a whole
            number from 0; none keeps the input order. A schema that splits by fractions or at
            random shuffles by default.

    Raises:
        UserError: a setting or the log is refused; names the file, line and column.
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["dlrm"] = "dlrm",
    *,
    num_numerical_features: int = ...,
    embedding_dim: int = ...,
    bottom_mlp_sizes: list[int] | tuple[int, ...] | str = ...,
    top_mlp_sizes: list[int] | tuple[int, ...] | str = ...,
    interaction_op: Literal["cuda_dot", "dot", "cat", "dcnv2"] = ...,
    dcn_low_rank_dim: int = ...,
    embedding_type: Literal["joint", "joint_fused", "joint_sparse", "multi_table"] = ...,
    embedding_storage: Literal["float32", "bfloat16"] = ...,
    hash_indices: bool = ...,
    max_table_size: int = ...,
    optimized_mlp: bool = ...,
    dropout: float = ...,
    embedding_init: float = ...,
    numerical_embedding: Literal["none", "bins", "piecewise_linear"] = ...,
    numerical_bins: int = ...,
    id_statistics: int = ...,
    seeds: int = ...,
    batch_norm: bool = ...,
    dataset_type: Literal[
        "binary", "memmap", "split", "parquet", "npy", "synthetic_gpu", "synthetic_disk"
    ] = ...,
    loader: Literal["default", "merlin"] = ...,
    num_embeddings_per_feature: list[int] | tuple[int, ...] | str = ...,
    dataset_subset: float = ...,
    batch_size: int = ...,
    test_batch_size: int = ...,
    drop_last: bool = ...,
    shuffle_batch_order: bool = ...,
    eval_split: Literal["test", "validation"] = ...,
    synthetic_dataset_num_entries: int = ...,
    synthetic_dataset_table_sizes: list[int] | tuple[int, ...] | str = ...,
    synthetic_dataset_dir: str | Path = ...,
    synthetic_distribution: Literal["uniform", "zipf"] = ...,
    lr: float = ...,
    warmup_factor: int = ...,
    warmup_steps: int = ...,
    decay_start_step: int = ...,
    decay_steps: int = ...,
    decay_power: int = ...,
    decay_end_lr: float = ...,
    optimizer: Literal["sgd", "rowwise_adagrad", "adagrad", "adam"] = ...,
    embedding_weight_decay: float = ...,
    embedding_l2: float = ...,
    reset_embeddings: bool = ...,
    plateau_factor: float = ...,
    amp: bool = ...,
    amp_dtype: Literal["float16", "bfloat16"] = ...,
    loss_scale: float = ...,
    tf32: bool = ...,
    quantize: Literal["none", "int8"] = ...,
    seed: int = ...,
    max_steps: int = ...,
    test_freq: int = ...,
    patience: int = ...,
    base_device: Literal["auto", "cuda", "cpu"] = ...,
    num_threads: int = ...,
    process_timeout: float = ...,
    print_freq: int = ...,
    log_path: str | Path = ...,
    checkpoint: str | Path = ...,
    save_freq: int = ...,
    ignore_fingerprint: bool = ...,
    resume: bool = ...,
    benchmark_warmup_steps: int = ...,
    epochs: int = ...,
    test_after: float = ...,
    best_by: Literal["auc", "log_loss"] = ...,
    auc_threshold: float = ...,
    placement: str | Path = ...,
    cuda_graphs: bool = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    output_dir: str | Path = ...,
    run_benchmark: bool = ...,
    benchmark_steps: int = ...,
    run_profiler: bool = ...,
    report: str | Path = ...,
    tensorboard: str | Path = ...,
    preset: str | Path = ...,
    budget: str = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: a dataset that `prepare` made.
        run: folder of the checkpoints.
        model: a word after `recsys-recipes train`, of the models of clicks, or `auto`.
        num_numerical_features: Number of numerical features in the dataset. Defaults to 13 for
            Criteo
        embedding_dim: Dimensionality of embedding space for categorical features
        bottom_mlp_sizes: Linear layer sizes for the bottom MLP; the last is `embedding_dim`
        top_mlp_sizes: Linear layer sizes for the top MLP; the last is 1
        interaction_op: Type of interaction operation to perform; cuda_dot takes the extension, dot
            plain PyTorch
        dcn_low_rank_dim: Rank of each cross layer of `interaction_op` dcnv2
        embedding_type: The type of the embedding operation to use: one joint table updated in place
            by the fused optimizer, one joint table with sparse gradients (plain PyTorch, or through
            the extension), or one table per feature
        embedding_storage: How `embedding_type` joint_fused keeps its table: float32, or bfloat16
            written with stochastic rounding (half the memory)
        hash_indices: If True the model will compute `index := index % table size` to ensure that
            the indices match table sizes
        max_table_size: Maximum number of rows per embedding table, by default equal to the number
            of unique values for each categorical variable; needs `hash_indices`
        optimized_mlp: Use an optimized implementation of MLP from apex, where it is installed
        dropout: Fraction of activations dropped after each hidden layer of the top MLP in training
        embedding_init: Standard deviation of the normal distribution that embeddings start from. By
            default each table starts uniformly within sqrt(1 / rows) of zero, as NVIDIA's do:
            values of features with few categories are then large, which costs quality on many logs
        numerical_embedding: Vectors of numerical features that join those of the categorical ones
            in the interaction, beside the bottom MLP: bins gives a number the vector of its
            quantile bin, piecewise_linear codes where it lies among the quantiles, which a linear
            layer and a ReLU make a vector (arXiv:2203.05556). The quantiles are those of the
            training rows
        numerical_bins: Quantile bins of each numerical feature, for `numerical_embedding`
        id_statistics: Slots of a table of statistics: how many training rows have an id, or a pair
            of ids, and how many of these rows are clicks. The top MLP sees both for each id and
            pair of ids of a row. A full table keeps the most frequent ones; 0 turns it off. For one
            process and datasets without lists
        seeds: Networks that start from different random values and are trained side by side as one
            model, which answers with the mean of their logits; N networks take N times the time
        batch_norm: Normalise each hidden layer of the MLPs over the batch
        dataset_type: The type of the dataset to use
        loader: Reader of `dataset_type` parquet: default, or merlin, which needs merlin-dataloader
        num_embeddings_per_feature: Rows of each embedding table, for a dataset folder without
            feature specification (TorchRec's), or instead of the cardinalities in it; by default
            those, or those of the checkpoint
        dataset_subset: Use only a subset of the training data. If None (default) will use all of
            it. Must be either None, or a float in range (0,1]
        batch_size: Batch size used for training
        test_batch_size: Batch size used for testing/validation
        drop_last: Leave out the last rows of an epoch of training, if they make no whole batch
        shuffle_batch_order: Read batch in train dataset by random order
        eval_split: Split that evaluations run on. Choose settings on `validation`, report `test`
        synthetic_dataset_num_entries: Number of samples per epoch for the synthetic dataset
        synthetic_dataset_table_sizes: Embedding table sizes to use with the synthetic dataset
        synthetic_dataset_dir: Default synthetic disk dataset directory
        synthetic_distribution: How synthetic ids are drawn; real ids are close to zipf, which is
            faster to train
        lr: Base learning rate
        warmup_factor: Learning rate warmup factor. Must be a non-negative integer
        warmup_steps: Number of warmup optimization steps
        decay_start_step: Optimization step after which to start decaying the learning rate, if None
            will start decaying right after the warmup phase is completed
        decay_steps: Polynomial learning rate decay steps. If equal to 0 will not do any decaying
        decay_power: Polynomial learning rate decay power
        decay_end_lr: LR after the decay ends
        optimizer: Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad
        embedding_weight_decay: Weight decay of the embedding rows that occur in a batch
        embedding_l2: Adds this times half the squared norm of all embeddings to the loss of each
            batch. Rows that do not occur shrink too, so that a step takes time by the rows of the
            tables: for those that are small (0.1 for ids that occur often)
        reset_embeddings: Draw the embeddings anew before each epoch but the first: the MLPs train
            for several epochs, the embeddings for one, so that rare ids are not memorised (MEDA,
            arXiv:2305.19531)
        plateau_factor: Factor of the learning rate after each evaluation without a better one; with
            `reset_embeddings` those at the ends of epochs
        amp: Compute matrix products in half precision
        amp_dtype: Type of the matrix products under `amp`; bfloat16 needs no loss scale
        loss_scale: Static loss scale for Mixed Precision Training
        tf32: Multiply float32 matrices as TF32 (10 bits of mantissa) on a GPU
        quantize: int8: test or measure the model with 8-bit tables and MLPs too (CPU), calibrated
            on the first training rows; `mode` test prints what it costs
        seed: Random seed
        max_steps: Stop after this many steps
        test_freq: Steps between validations; by default one per epoch
        patience: Stop after this many evaluations in a row without a better one (`best_by`); with
            `reset_embeddings` only those at the ends of epochs count, and each end is evaluated
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Number of optimizations steps between printing training status to stdout
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        checkpoint: Path from which to load a checkpoint: one step_* folder, the folder of a run
            (its best evaluated checkpoint is taken), or a folder in NVIDIA's layout
        save_freq: Steps between checkpoints, in addition to those at the best evaluation, at the
            end and on SIGTERM, SIGINT or SIGHUP
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        resume: Continue the run in the folder of the checkpoints, if there is one
        benchmark_warmup_steps: Number of first steps to leave out of the throughput
        epochs: Number of epochs to train for
        test_after: Don't test the model unless this many epochs has been completed
        best_by: Metric by which an evaluation is better than the others, for the best checkpoint,
            `patience` and `plateau_factor`; log_loss stops before the probabilities overfit
        auc_threshold: Stop the training after achieving this AUC
        placement: JSON file with the placement of the tables on several processes, as python -m
            dlrm.scripts.plan_placement writes it; by default it is planned
        cuda_graphs: Capture the whole training step in a CUDA graph and replay it; in `mode`
            inference_benchmark, the prediction for each batch size
        baselines: What a test, and the end of a training, compares with, beside the constant click
            rate: logistic_regression | lightgbm. They are fitted to the training rows, in seconds,
            on one process; lightgbm where it is installed. Empty for none, as under `run_benchmark`
            where this is not given
        output_dir: Path where to save the checkpoints when it is given without `output`; a relative
            `output` is taken inside it
        run_benchmark: Measure the first steps after a warm-up of `benchmark_warmup_steps` (10 by
            default): throughput, step time, peak memory. Each measured step waits for the device;
            then training continues
        benchmark_steps: Steps of `run_benchmark`
        run_profiler: Write a Chrome trace and a table of operators for three steps after the
            warm-up and the benchmark, into the folder profile of the checkpoints, or next to the
            log without them
        report: HTML file to write with the curves, times, metrics and settings of the run, such as
            FILE.html; needs matplotlib
        tensorboard: Folder for TensorBoard events: the curves of a training and its evaluations;
            needs tensorboard
        preset: Settings that belong together: bars_x1, bars_x4, criteo_sample, kaggle,
            mlperf_dcnv2, small, terabyte_15, terabyte_3, a YAML file, or auto, which chooses them
            by the dataset and its validation split; flags that are given override it. By default
            auto to train on a dataset that a schema made, unless a setting of the model (but
            `seeds`) or the optimizer, or a checkpoint to load, is given
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Raises:
        UserError: a setting or the dataset is refused.
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["logistic"],
    *,
    hash_indices: bool = ...,
    dataset_type: Literal[
        "binary", "memmap", "split", "parquet", "npy", "synthetic_gpu", "synthetic_disk"
    ] = ...,
    num_embeddings_per_feature: list[int] | tuple[int, ...] | str = ...,
    dataset_subset: float = ...,
    test_batch_size: int = ...,
    eval_split: Literal["test", "validation"] = ...,
    ignore_fingerprint: bool = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    log_path: str | Path = ...,
    num_threads: int = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: a dataset that `prepare` made.
        run: folder of the checkpoints.
        model: a word after `recsys-recipes train`, of the models of clicks, or `auto`.
        hash_indices: Take ids modulo the rows of their table, of a dataset with larger ones, or
            with `num_embeddings_per_feature`
        dataset_type: The type of the dataset to use
        num_embeddings_per_feature: Rows of each embedding table, for a dataset folder without
            feature specification (TorchRec's), or instead of the cardinalities in it; by default
            those, or those of the checkpoint
        dataset_subset: Use only a subset of the training data. If None (default) will use all of
            it. Must be either None, or a float in range (0,1]
        test_batch_size: Batch size used for testing/validation
        eval_split: Split that evaluations run on. Choose settings on `validation`, report `test`
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        baselines: What a test compares with, beside the constant click rate: lightgbm where it is
            installed; empty for none
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        num_threads: CPU threads; by default one per core

    Raises:
        UserError: a setting or the dataset is refused.
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["blend_clicks"],
    *,
    blend_of: str | Path = ...,
    dataset_type: Literal[
        "binary", "memmap", "split", "parquet", "npy", "synthetic_gpu", "synthetic_disk"
    ] = ...,
    num_embeddings_per_feature: list[int] | tuple[int, ...] | str = ...,
    dataset_subset: float = ...,
    test_batch_size: int = ...,
    eval_split: Literal["test", "validation"] = ...,
    ignore_fingerprint: bool = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    log_path: str | Path = ...,
    num_threads: int = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: a dataset that `prepare` made.
        run: folder of the checkpoints.
        model: a word after `recsys-recipes train`, of the models of clicks, or `auto`.
        blend_of: Checkpoint, or folder of a run, of the DLRM, which is trained on the same dataset
        dataset_type: The type of the dataset to use
        num_embeddings_per_feature: Rows of each embedding table, for a dataset folder without
            feature specification (TorchRec's), or instead of the cardinalities in it; by default
            those, or those of the checkpoint
        dataset_subset: Use only a subset of the training data. If None (default) will use all of
            it. Must be either None, or a float in range (0,1]
        test_batch_size: Batch size used for testing/validation
        eval_split: Split that evaluations run on. Choose settings on `validation`, report `test`
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        baselines: What a test compares with, beside the constant click rate: lightgbm where it is
            installed; empty for none
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        num_threads: CPU threads; by default one per core

    Raises:
        UserError: a setting or the dataset is refused.
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["auto"],
    *,
    base_device: str | Path = ...,
    num_threads: int = ...,
    budget: str = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: a dataset that `prepare` made.
        run: folder of the checkpoints.
        model: a word after `recsys-recipes train`, of the models of clicks, or `auto`.
        base_device: Device of the network: auto, cuda or cpu
        num_threads: CPU threads; by default one per core
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Raises:
        UserError: a setting or the dataset is refused.
    """

def test(
    dataset: str | Path,
    run: str | Path,
    *,
    num_numerical_features: int = ...,
    embedding_dim: int = ...,
    bottom_mlp_sizes: list[int] | tuple[int, ...] | str = ...,
    top_mlp_sizes: list[int] | tuple[int, ...] | str = ...,
    interaction_op: Literal["cuda_dot", "dot", "cat", "dcnv2"] = ...,
    dcn_low_rank_dim: int = ...,
    embedding_type: Literal["joint", "joint_fused", "joint_sparse", "multi_table"] = ...,
    embedding_storage: Literal["float32", "bfloat16"] = ...,
    hash_indices: bool = ...,
    max_table_size: int = ...,
    optimized_mlp: bool = ...,
    dropout: float = ...,
    embedding_init: float = ...,
    numerical_embedding: Literal["none", "bins", "piecewise_linear"] = ...,
    numerical_bins: int = ...,
    id_statistics: int = ...,
    seeds: int = ...,
    batch_norm: bool = ...,
    dataset_type: Literal[
        "binary", "memmap", "split", "parquet", "npy", "synthetic_gpu", "synthetic_disk"
    ] = ...,
    loader: Literal["default", "merlin"] = ...,
    num_embeddings_per_feature: list[int] | tuple[int, ...] | str = ...,
    dataset_subset: float = ...,
    batch_size: int = ...,
    test_batch_size: int = ...,
    drop_last: bool = ...,
    shuffle_batch_order: bool = ...,
    eval_split: Literal["test", "validation"] = ...,
    synthetic_dataset_num_entries: int = ...,
    synthetic_dataset_table_sizes: list[int] | tuple[int, ...] | str = ...,
    synthetic_dataset_dir: str | Path = ...,
    synthetic_distribution: Literal["uniform", "zipf"] = ...,
    lr: float = ...,
    warmup_factor: int = ...,
    warmup_steps: int = ...,
    decay_start_step: int = ...,
    decay_steps: int = ...,
    decay_power: int = ...,
    decay_end_lr: float = ...,
    optimizer: Literal["sgd", "rowwise_adagrad", "adagrad", "adam"] = ...,
    embedding_weight_decay: float = ...,
    embedding_l2: float = ...,
    reset_embeddings: bool = ...,
    plateau_factor: float = ...,
    amp: bool = ...,
    amp_dtype: Literal["float16", "bfloat16"] = ...,
    loss_scale: float = ...,
    tf32: bool = ...,
    quantize: Literal["none", "int8"] = ...,
    seed: int = ...,
    base_device: Literal["auto", "cuda", "cpu"] = ...,
    num_threads: int = ...,
    process_timeout: float = ...,
    print_freq: int = ...,
    log_path: str | Path = ...,
    ignore_fingerprint: bool = ...,
    epochs: int = ...,
    best_by: Literal["auc", "log_loss"] = ...,
    placement: str | Path = ...,
    gauc_by: str | Path = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    benchmark_steps: int = ...,
    report: str | Path = ...,
    preset: str | Path = ...,
    budget: str = ...,
) -> dict[str, Any]:
    """Measures a trained model.

    Args:
        dataset: a dataset with labels, of the rules and ids of the training.
        run: folder of the checkpoints, of any model of clicks.
        num_numerical_features: Number of numerical features in the dataset. Defaults to 13 for
            Criteo
        embedding_dim: Dimensionality of embedding space for categorical features
        bottom_mlp_sizes: Linear layer sizes for the bottom MLP; the last is `embedding_dim`
        top_mlp_sizes: Linear layer sizes for the top MLP; the last is 1
        interaction_op: Type of interaction operation to perform; cuda_dot takes the extension, dot
            plain PyTorch
        dcn_low_rank_dim: Rank of each cross layer of `interaction_op` dcnv2
        embedding_type: The type of the embedding operation to use: one joint table updated in place
            by the fused optimizer, one joint table with sparse gradients (plain PyTorch, or through
            the extension), or one table per feature
        embedding_storage: How `embedding_type` joint_fused keeps its table: float32, or bfloat16
            written with stochastic rounding (half the memory)
        hash_indices: If True the model will compute `index := index % table size` to ensure that
            the indices match table sizes
        max_table_size: Maximum number of rows per embedding table, by default equal to the number
            of unique values for each categorical variable; needs `hash_indices`
        optimized_mlp: Use an optimized implementation of MLP from apex, where it is installed
        dropout: Fraction of activations dropped after each hidden layer of the top MLP in training
        embedding_init: Standard deviation of the normal distribution that embeddings start from. By
            default each table starts uniformly within sqrt(1 / rows) of zero, as NVIDIA's do:
            values of features with few categories are then large, which costs quality on many logs
        numerical_embedding: Vectors of numerical features that join those of the categorical ones
            in the interaction, beside the bottom MLP: bins gives a number the vector of its
            quantile bin, piecewise_linear codes where it lies among the quantiles, which a linear
            layer and a ReLU make a vector (arXiv:2203.05556). The quantiles are those of the
            training rows
        numerical_bins: Quantile bins of each numerical feature, for `numerical_embedding`
        id_statistics: Slots of a table of statistics: how many training rows have an id, or a pair
            of ids, and how many of these rows are clicks. The top MLP sees both for each id and
            pair of ids of a row. A full table keeps the most frequent ones; 0 turns it off. For one
            process and datasets without lists
        seeds: Networks that start from different random values and are trained side by side as one
            model, which answers with the mean of their logits; N networks take N times the time
        batch_norm: Normalise each hidden layer of the MLPs over the batch
        dataset_type: The type of the dataset to use
        loader: Reader of `dataset_type` parquet: default, or merlin, which needs merlin-dataloader
        num_embeddings_per_feature: Rows of each embedding table, for a dataset folder without
            feature specification (TorchRec's), or instead of the cardinalities in it; by default
            those, or those of the checkpoint
        dataset_subset: Use only a subset of the training data. If None (default) will use all of
            it. Must be either None, or a float in range (0,1]
        batch_size: Batch size used for training
        test_batch_size: Batch size used for testing/validation
        drop_last: Leave out the last rows of an epoch of training, if they make no whole batch
        shuffle_batch_order: Read batch in train dataset by random order
        eval_split: Split that evaluations run on. Choose settings on `validation`, report `test`
        synthetic_dataset_num_entries: Number of samples per epoch for the synthetic dataset
        synthetic_dataset_table_sizes: Embedding table sizes to use with the synthetic dataset
        synthetic_dataset_dir: Default synthetic disk dataset directory
        synthetic_distribution: How synthetic ids are drawn; real ids are close to zipf, which is
            faster to train
        lr: Base learning rate
        warmup_factor: Learning rate warmup factor. Must be a non-negative integer
        warmup_steps: Number of warmup optimization steps
        decay_start_step: Optimization step after which to start decaying the learning rate, if None
            will start decaying right after the warmup phase is completed
        decay_steps: Polynomial learning rate decay steps. If equal to 0 will not do any decaying
        decay_power: Polynomial learning rate decay power
        decay_end_lr: LR after the decay ends
        optimizer: Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad
        embedding_weight_decay: Weight decay of the embedding rows that occur in a batch
        embedding_l2: Adds this times half the squared norm of all embeddings to the loss of each
            batch. Rows that do not occur shrink too, so that a step takes time by the rows of the
            tables: for those that are small (0.1 for ids that occur often)
        reset_embeddings: Draw the embeddings anew before each epoch but the first: the MLPs train
            for several epochs, the embeddings for one, so that rare ids are not memorised (MEDA,
            arXiv:2305.19531)
        plateau_factor: Factor of the learning rate after each evaluation without a better one; with
            `reset_embeddings` those at the ends of epochs
        amp: Compute matrix products in half precision
        amp_dtype: Type of the matrix products under `amp`; bfloat16 needs no loss scale
        loss_scale: Static loss scale for Mixed Precision Training
        tf32: Multiply float32 matrices as TF32 (10 bits of mantissa) on a GPU
        quantize: int8: test or measure the model with 8-bit tables and MLPs too (CPU), calibrated
            on the first training rows; `mode` test prints what it costs
        seed: Random seed
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Number of optimizations steps between printing training status to stdout
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        epochs: Number of epochs to train for
        best_by: Metric by which an evaluation is better than the others, for the best checkpoint,
            `patience` and `plateau_factor`; log_loss stops before the probabilities overfit
        placement: JSON file with the placement of the tables on several processes, as python -m
            dlrm.scripts.plan_placement writes it; by default it is planned
        gauc_by: Also report the AUC grouped by this categorical feature (GAUC), such as the user,
            or by the group of a schema. Id 0 is skipped if it means missing, rare or unseen
        baselines: What a test, and the end of a training, compares with, beside the constant click
            rate: logistic_regression | lightgbm. They are fitted to the training rows, in seconds,
            on one process; lightgbm where it is installed. Empty for none, as under `run_benchmark`
            where this is not given
        benchmark_steps: Steps of `run_benchmark`
        report: HTML file to write with the curves, times, metrics and settings of the run, such as
            FILE.html; needs matplotlib
        preset: Settings that belong together: bars_x1, bars_x4, criteo_sample, kaggle,
            mlperf_dcnv2, small, terabyte_15, terabyte_3, a YAML file, or auto, which chooses them
            by the dataset and its validation split; flags that are given override it. By default
            auto to train on a dataset that a schema made, unless a setting of the model (but
            `seeds`) or the optimizer, or a checkpoint to load, is given
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Returns:
        Name -> metric of the split, `auc` and `log_loss` among them, and those of the baselines.

    Raises:
        UserError: a setting or the dataset is refused.
    """

def predict(
    log: Any,
    dataset: str | Path,
    run: str | Path,
    *,
    num_numerical_features: int = ...,
    embedding_dim: int = ...,
    bottom_mlp_sizes: list[int] | tuple[int, ...] | str = ...,
    top_mlp_sizes: list[int] | tuple[int, ...] | str = ...,
    interaction_op: Literal["cuda_dot", "dot", "cat", "dcnv2"] = ...,
    dcn_low_rank_dim: int = ...,
    embedding_type: Literal["joint", "joint_fused", "joint_sparse", "multi_table"] = ...,
    embedding_storage: Literal["float32", "bfloat16"] = ...,
    hash_indices: bool = ...,
    max_table_size: int = ...,
    optimized_mlp: bool = ...,
    dropout: float = ...,
    embedding_init: float = ...,
    numerical_embedding: Literal["none", "bins", "piecewise_linear"] = ...,
    numerical_bins: int = ...,
    id_statistics: int = ...,
    seeds: int = ...,
    batch_norm: bool = ...,
    dataset_type: Literal[
        "binary", "memmap", "split", "parquet", "npy", "synthetic_gpu", "synthetic_disk"
    ] = ...,
    loader: Literal["default", "merlin"] = ...,
    num_embeddings_per_feature: list[int] | tuple[int, ...] | str = ...,
    dataset_subset: float = ...,
    batch_size: int = ...,
    test_batch_size: int = ...,
    drop_last: bool = ...,
    shuffle_batch_order: bool = ...,
    eval_split: Literal["test", "validation"] = ...,
    synthetic_dataset_num_entries: int = ...,
    synthetic_dataset_table_sizes: list[int] | tuple[int, ...] | str = ...,
    synthetic_dataset_dir: str | Path = ...,
    synthetic_distribution: Literal["uniform", "zipf"] = ...,
    lr: float = ...,
    warmup_factor: int = ...,
    warmup_steps: int = ...,
    decay_start_step: int = ...,
    decay_steps: int = ...,
    decay_power: int = ...,
    decay_end_lr: float = ...,
    optimizer: Literal["sgd", "rowwise_adagrad", "adagrad", "adam"] = ...,
    embedding_weight_decay: float = ...,
    embedding_l2: float = ...,
    reset_embeddings: bool = ...,
    plateau_factor: float = ...,
    amp: bool = ...,
    amp_dtype: Literal["float16", "bfloat16"] = ...,
    loss_scale: float = ...,
    tf32: bool = ...,
    quantize: Literal["none", "int8"] = ...,
    seed: int = ...,
    base_device: Literal["auto", "cuda", "cpu"] = ...,
    num_threads: int = ...,
    process_timeout: float = ...,
    print_freq: int = ...,
    log_path: str | Path = ...,
    ignore_fingerprint: bool = ...,
    epochs: int = ...,
    best_by: Literal["auc", "log_loss"] = ...,
    placement: str | Path = ...,
    benchmark_steps: int = ...,
    preset: str | Path = ...,
    budget: str = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
) -> Any:
    """Returns the click probabilities of new rows, whose label is not read.

    Args:
        log: a path or a table.
        dataset: the dataset of the training, whose rules and ids the rows are read by.
        run: folder of the checkpoints, of any model of clicks.
        num_numerical_features: Number of numerical features in the dataset. Defaults to 13 for
            Criteo
        embedding_dim: Dimensionality of embedding space for categorical features
        bottom_mlp_sizes: Linear layer sizes for the bottom MLP; the last is `embedding_dim`
        top_mlp_sizes: Linear layer sizes for the top MLP; the last is 1
        interaction_op: Type of interaction operation to perform; cuda_dot takes the extension, dot
            plain PyTorch
        dcn_low_rank_dim: Rank of each cross layer of `interaction_op` dcnv2
        embedding_type: The type of the embedding operation to use: one joint table updated in place
            by the fused optimizer, one joint table with sparse gradients (plain PyTorch, or through
            the extension), or one table per feature
        embedding_storage: How `embedding_type` joint_fused keeps its table: float32, or bfloat16
            written with stochastic rounding (half the memory)
        hash_indices: If True the model will compute `index := index % table size` to ensure that
            the indices match table sizes
        max_table_size: Maximum number of rows per embedding table, by default equal to the number
            of unique values for each categorical variable; needs `hash_indices`
        optimized_mlp: Use an optimized implementation of MLP from apex, where it is installed
        dropout: Fraction of activations dropped after each hidden layer of the top MLP in training
        embedding_init: Standard deviation of the normal distribution that embeddings start from. By
            default each table starts uniformly within sqrt(1 / rows) of zero, as NVIDIA's do:
            values of features with few categories are then large, which costs quality on many logs
        numerical_embedding: Vectors of numerical features that join those of the categorical ones
            in the interaction, beside the bottom MLP: bins gives a number the vector of its
            quantile bin, piecewise_linear codes where it lies among the quantiles, which a linear
            layer and a ReLU make a vector (arXiv:2203.05556). The quantiles are those of the
            training rows
        numerical_bins: Quantile bins of each numerical feature, for `numerical_embedding`
        id_statistics: Slots of a table of statistics: how many training rows have an id, or a pair
            of ids, and how many of these rows are clicks. The top MLP sees both for each id and
            pair of ids of a row. A full table keeps the most frequent ones; 0 turns it off. For one
            process and datasets without lists
        seeds: Networks that start from different random values and are trained side by side as one
            model, which answers with the mean of their logits; N networks take N times the time
        batch_norm: Normalise each hidden layer of the MLPs over the batch
        dataset_type: The type of the dataset to use
        loader: Reader of `dataset_type` parquet: default, or merlin, which needs merlin-dataloader
        num_embeddings_per_feature: Rows of each embedding table, for a dataset folder without
            feature specification (TorchRec's), or instead of the cardinalities in it; by default
            those, or those of the checkpoint
        dataset_subset: Use only a subset of the training data. If None (default) will use all of
            it. Must be either None, or a float in range (0,1]
        batch_size: Batch size used for training
        test_batch_size: Batch size used for testing/validation
        drop_last: Leave out the last rows of an epoch of training, if they make no whole batch
        shuffle_batch_order: Read batch in train dataset by random order
        eval_split: Split that evaluations run on. Choose settings on `validation`, report `test`
        synthetic_dataset_num_entries: Number of samples per epoch for the synthetic dataset
        synthetic_dataset_table_sizes: Embedding table sizes to use with the synthetic dataset
        synthetic_dataset_dir: Default synthetic disk dataset directory
        synthetic_distribution: How synthetic ids are drawn; real ids are close to zipf, which is
            faster to train
        lr: Base learning rate
        warmup_factor: Learning rate warmup factor. Must be a non-negative integer
        warmup_steps: Number of warmup optimization steps
        decay_start_step: Optimization step after which to start decaying the learning rate, if None
            will start decaying right after the warmup phase is completed
        decay_steps: Polynomial learning rate decay steps. If equal to 0 will not do any decaying
        decay_power: Polynomial learning rate decay power
        decay_end_lr: LR after the decay ends
        optimizer: Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad
        embedding_weight_decay: Weight decay of the embedding rows that occur in a batch
        embedding_l2: Adds this times half the squared norm of all embeddings to the loss of each
            batch. Rows that do not occur shrink too, so that a step takes time by the rows of the
            tables: for those that are small (0.1 for ids that occur often)
        reset_embeddings: Draw the embeddings anew before each epoch but the first: the MLPs train
            for several epochs, the embeddings for one, so that rare ids are not memorised (MEDA,
            arXiv:2305.19531)
        plateau_factor: Factor of the learning rate after each evaluation without a better one; with
            `reset_embeddings` those at the ends of epochs
        amp: Compute matrix products in half precision
        amp_dtype: Type of the matrix products under `amp`; bfloat16 needs no loss scale
        loss_scale: Static loss scale for Mixed Precision Training
        tf32: Multiply float32 matrices as TF32 (10 bits of mantissa) on a GPU
        quantize: int8: test or measure the model with 8-bit tables and MLPs too (CPU), calibrated
            on the first training rows; `mode` test prints what it costs
        seed: Random seed
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Number of optimizations steps between printing training status to stdout
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        epochs: Number of epochs to train for
        best_by: Metric by which an evaluation is better than the others, for the best checkpoint,
            `patience` and `plateau_factor`; log_loss stops before the probabilities overfit
        placement: JSON file with the placement of the tables on several processes, as python -m
            dlrm.scripts.plan_placement writes it; by default it is planned
        benchmark_steps: Steps of `run_benchmark`
        preset: Settings that belong together: bars_x1, bars_x4, criteo_sample, kaggle,
            mlperf_dcnv2, small, terabyte_15, terabyte_3, a YAML file, or auto, which chooses them
            by the dataset and its validation split; flags that are given override it. By default
            auto to train on a dataset that a schema made, unless a setting of the model (but
            `seeds`) or the optimizer, or a checkpoint to load, is given
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time
        baselines: What a test compares with, beside the constant click rate: lightgbm where it is
            installed; empty for none

    Returns:
        For a frame of pandas one with the same index and `probability` and `logit`, NaN where a row
        is refused. Otherwise a pyarrow table with a row for each one of the log that is not
        refused, in its order, and also `line`: 2 is the first of a table.

    Raises:
        UserError: a setting or the log is refused.
    """
