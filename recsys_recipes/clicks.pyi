# SPDX-License-Identifier: Apache-2.0
"""The functions with their settings, written by `make golden`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import pyarrow as pa

__all__ = ["infer", "predict", "prepare", "test", "train"]

def infer(log: Any, schema: str | Path) -> Path:
    """Drafts a schema from a sample of a log; returns its path.

    Read the draft before you use it. If its label could not be determined, it is left open.

    Args:
        log: a path or a table.
        schema: YAML file to write; an existing one is replaced.

    Raises:
        UserError: the log cannot be read.

    Examples:
        A log in which two of five ads are bought:

        >>> import pyarrow as pa
        >>> import recsys_recipes as rr
        >>> rows = [(f"ad{i % 5}", 20 + i % 50, "yes" if i % 5 < 2 else "no") for i in range(1000)]
        >>> ads, ages, outcomes = zip(*rows)
        >>> log = pa.table({"ad": ads, "age": ages, "bought": outcomes})
        >>> schema = rr.clicks.infer(log, "schema.yaml")
        >>> print(schema.read_text().splitlines()[2])
        label: {column: bought, positive: ["yes"], negative: ["no"]}  # 40.0% are yes
    """

def prepare(
    log: Any,
    output: str | Path | None = None,
    *,
    schema: str | Path | Mapping[str, Any] | None = None,
    dictionaries: str | Path = ...,
    extend: str | Path = ...,
    refit: bool = ...,
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
    evict_after: int | None = ...,
    evict_below: int | None = ...,
) -> Path:
    """Makes a dataset from a log; returns its folder.

    Args:
        log: a path or a table.
        output: folder to create; left out with `extend`, which adds a day to a growing dataset.
        schema: YAML file that describes the columns, or its content; None reads Criteo's form.
        dictionaries: Dataset whose rules and dictionaries are applied to the rows instead of
            counting categories; all rows go to the test split unless a split is given.
        extend: Folder of a dataset that grows by a day: `input` becomes its next day, day_0000
            first. Known ids never move, new categories get the ids behind them, and counts
            continue. The first day sets the rules; without a split, all rows are for training.
            Replaces `output`.
        refit: Find the edges of bins by quantiles anew, from the rows of this day; by default, they
            are those of the day before. A bin keeps its id.
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
        evict_after: Give the id of a category that has not occurred for this many days to a new
            one, when a day adds categories; none keeps all ids.
        evict_below: Only if the category has occurred fewer times than this since it got its id;
            none takes any.

    Raises:
        UserError: a setting or the log is refused; the message names the file, line and column.

    Examples:
        >>> dataset = rr.clicks.prepare(log, "clicks", schema=schema)
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
    deterministic: bool = ...,
    cuda_graphs: bool = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    grow: bool = ...,
    progressive: bool = ...,
    table_memory: int | str = ...,
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
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for clicks, or `auto`, which compares
            several on the validation rows and blends the best.
        num_numerical_features: Number of numerical features in the dataset, 13 in Criteo's
        embedding_dim: Columns of the embeddings of categorical features
        bottom_mlp_sizes: Sizes of the layers of the bottom MLP; the last is `embedding_dim`
        top_mlp_sizes: Sizes of the layers of the top MLP; the last is 1
        interaction_op: Interaction of the features: cuda_dot uses the extension, dot plain PyTorch
        dcn_low_rank_dim: Rank of each cross layer of `interaction_op` dcnv2
        embedding_type: Type of the embedding: one joint table updated in place by the fused
            optimizer (joint_fused), one joint table with sparse gradients, in the extension
            (joint_sparse) or plain PyTorch (joint), or one table per feature (multi_table)
        embedding_storage: Number format of the table of `embedding_type` joint_fused: float32, or
            bfloat16 with stochastic rounding (half the memory)
        hash_indices: Compute `index % table size`, so that all indices fit their tables
        max_table_size: Most rows of an embedding table, by default the number of distinct values of
            its feature; needs `hash_indices`
        optimized_mlp: Use apex's optimized implementation of the MLPs, if it is installed
        dropout: Fraction of activations dropped after each hidden layer of the top MLP in training
        embedding_init: Standard deviation of the normal distribution that initialises embeddings.
            By default, each table is initialised uniformly within sqrt(1 / rows) of zero, as NVIDIA
            does: features with few categories then get large values, which costs quality on many
            logs
        numerical_embedding: Adds a vector of each numerical feature to the interaction, in addition
            to the bottom MLP. bins: the vector of the number's quantile bin. piecewise_linear: the
            position of the number among the quantiles, mapped to a vector by a linear layer and a
            ReLU (arXiv:2203.05556). The quantiles are those of the training rows
        numerical_bins: Quantile bins of each numerical feature, for `numerical_embedding`
        id_statistics: Slots of a table that counts, for each id and pair of ids, the training rows
            and the clicks among them; the top MLP gets both counts of all ids and pairs of a row. A
            full table keeps the most frequent ones; 0 turns it off. Only for one process and
            datasets without lists
        seeds: Number of networks, initialised differently and trained together as one model, which
            predicts the mean of their logits; N networks take N times as long
        batch_norm: Normalise each hidden layer of the MLPs over the batch
        dataset_type: Type of the dataset
        loader: Reader for `dataset_type` parquet: default, or merlin (needs merlin-dataloader)
        num_embeddings_per_feature: Rows of each embedding table, instead of the cardinalities in
            the dataset's feature specification or the checkpoint; needed for a folder without that
            file (TorchRec's)
        dataset_subset: Fraction of the training rows to use, in (0, 1]; by default all of them
        batch_size: Batch size for training
        test_batch_size: Batch size for testing and validation
        drop_last: Leave out the last rows of a training epoch if they do not fill a batch
        shuffle_batch_order: Read the training batches in random order
        eval_split: Split to evaluate on: choose settings on `validation`, report results on `test`
        synthetic_dataset_num_entries: Samples per epoch of the synthetic dataset
        synthetic_dataset_table_sizes: Rows of each embedding table for the synthetic dataset
        synthetic_dataset_dir: Folder of the synthetic dataset on disk
        synthetic_distribution: Distribution of synthetic ids; real ids are close to zipf, which
            trains faster
        lr: Base learning rate
        warmup_factor: Warmup factor of the learning rate, a non-negative integer
        warmup_steps: Optimizer steps of the learning rate warmup
        decay_start_step: Optimizer step after which the learning rate decays; with None, right
            after the warmup
        decay_steps: Steps of the polynomial decay of the learning rate; 0 does not decay it
        decay_power: Power of the polynomial decay
        decay_end_lr: Learning rate after the decay
        optimizer: Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad
        embedding_weight_decay: Weight decay of the embedding rows that occur in a batch
        embedding_l2: Adds this times half the squared norm of all embeddings to the loss of each
            batch. Rows that do not occur in the batch shrink too, so that a step takes time in
            proportion to all rows: for small tables (0.1 for ids that occur often)
        reset_embeddings: Initialise the embeddings again before each epoch except the first: the
            MLPs train for several epochs, the embeddings for one, so that rare ids are not
            memorised (MEDA, arXiv:2305.19531)
        plateau_factor: Multiplies the learning rate after each evaluation that is not the best so
            far; with `reset_embeddings`, only evaluations at the ends of epochs count
        amp: Compute matrix products in half precision
        amp_dtype: Type of matrix products under `amp`; bfloat16 does not need a loss scale
        loss_scale: Static loss scale for mixed precision
        tf32: Multiply float32 matrices in TF32 (10 bits of mantissa) on a GPU
        quantize: int8: also test or measure the model with 8-bit tables and MLPs (CPU), calibrated
            on the first training rows; `mode` test prints the loss of quality
        seed: Random seed
        max_steps: Stop after this many steps
        test_freq: Steps between validations; by default one per epoch
        patience: Stop after this many evaluations in a row that are not better than the best one
            (`best_by`); with `reset_embeddings`, only those at the ends of epochs count, and each
            end is evaluated
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Optimizer steps between prints of the training status
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        checkpoint: Checkpoint to load: one step_* folder, the folder of a run (loads its best
            evaluated checkpoint), or a folder in NVIDIA's layout
        save_freq: Steps between checkpoints, in addition to those at the best evaluation, at the
            end and on SIGTERM, SIGINT or SIGHUP
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        resume: Continue the run in the folder of the checkpoints, if there is one
        benchmark_warmup_steps: Number of first steps to leave out of the throughput
        epochs: Number of epochs to train for
        test_after: Do not test the model before this many epochs are completed
        best_by: Metric that compares evaluations, for the best checkpoint, `patience` and
            `plateau_factor`; log_loss stops before the probabilities overfit
        auc_threshold: Stop training when this AUC is reached
        placement: JSON file with the placement of the tables on several processes, written by
            python -m dlrm.scripts.plan_placement; by default, the run plans one
        deterministic: Add up what a batch contributes in an order that does not depend on the
            number of processes: 1, 2 or 4 of them with any number of threads and any placement of
            the tables train the same bytes on processors of the same kind. On CPUs, in float32
        cuda_graphs: Capture the whole training step in a CUDA graph and replay it; in `mode`
            inference_benchmark, the prediction for each batch size
        baselines: Models to compare with in a test and at the end of training, in addition to the
            constant click rate: logistic_regression | lightgbm. They are fitted to the training
            rows in seconds, in runs of one process; lightgbm only if it is installed. Empty turns
            this off, which is the default under `run_benchmark`
        grow: Train on the days of a dataset that grows (recsys-recipes prepare clicks `extend`),
            one after the other; tables grow with it. `resume` continues with the days that are new.
            A new row starts with values that depend on its category, not on the day
        progressive: With `grow`: test the model on each day before it is trained on it, in place of
            `eval_split`; new categories get the vector of unknown ones, as when the model is served
        table_memory: Keep the embedding tables and the state of their optimizer in files on disk,
            with at most about this much of them in memory (such as 4GiB), for tables that do not
            fit. The result is the same. The files are in the folder of the checkpoints or, without
            one, in TMPDIR; on one process, on a CPU, with `embedding_type` joint_fused and float32
        output_dir: If given without `output`, the folder in which to save checkpoints; a relative
            `output` is inside it
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
        preset: Set of settings: bars_x1, bars_x4, criteo_sample, daily, kaggle, mlperf_dcnv2,
            small, terabyte_15, terabyte_3, a YAML file, or auto, which chooses settings by the
            dataset and its validation split; flags that you give override the preset. The default
            is auto if you train on a dataset made with a schema and give no setting of the model
            (except `seeds`) or the optimizer and no checkpoint to load, and daily with `grow`
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.clicks.train(dataset, "click-run", "logistic", baselines="")
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
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for clicks, or `auto`, which compares
            several on the validation rows and blends the best.
        hash_indices: Take ids modulo the rows of their table, for a dataset with larger ids or with
            `num_embeddings_per_feature`
        dataset_type: Type of the dataset
        num_embeddings_per_feature: Rows of each embedding table, instead of the cardinalities in
            the dataset's feature specification or the checkpoint; needed for a folder without that
            file (TorchRec's)
        dataset_subset: Fraction of the training rows to use, in (0, 1]; by default all of them
        test_batch_size: Batch size for testing and validation
        eval_split: Split to evaluate on: choose settings on `validation`, report results on `test`
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        baselines: What a test compares with, in addition to the constant click rate: lightgbm if it
            is installed; empty for nothing else
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        num_threads: CPU threads; by default one per core

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.clicks.train(dataset, "click-run", "logistic", baselines="")
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
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for clicks, or `auto`, which compares
            several on the validation rows and blends the best.
        blend_of: Checkpoint, or folder of a run, of the DLRM, which must be trained on the same
            dataset
        dataset_type: Type of the dataset
        num_embeddings_per_feature: Rows of each embedding table, instead of the cardinalities in
            the dataset's feature specification or the checkpoint; needed for a folder without that
            file (TorchRec's)
        dataset_subset: Fraction of the training rows to use, in (0, 1]; by default all of them
        test_batch_size: Batch size for testing and validation
        eval_split: Split to evaluate on: choose settings on `validation`, report results on `test`
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        baselines: What a test compares with, in addition to the constant click rate: lightgbm if it
            is installed; empty for nothing else
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        num_threads: CPU threads; by default one per core

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.clicks.train(dataset, "click-run", "logistic", baselines="")
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
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for clicks, or `auto`, which compares
            several on the validation rows and blends the best.
        base_device: Device of the network: auto, cuda or cpu
        num_threads: CPU threads; by default one per core
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.clicks.train(dataset, "click-run", "logistic", baselines="")
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
    deterministic: bool = ...,
    gauc_by: str | Path = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    progressive: bool = ...,
    table_memory: int | str = ...,
    benchmark_steps: int = ...,
    report: str | Path = ...,
    preset: str | Path = ...,
    budget: str = ...,
) -> dict[str, Any]:
    """Measures a trained model on the test rows.

    Args:
        dataset: a dataset with labels, and with the schema and ids of the training.
        run: folder of the checkpoints of any model of clicks.
        num_numerical_features: Number of numerical features in the dataset, 13 in Criteo's
        embedding_dim: Columns of the embeddings of categorical features
        bottom_mlp_sizes: Sizes of the layers of the bottom MLP; the last is `embedding_dim`
        top_mlp_sizes: Sizes of the layers of the top MLP; the last is 1
        interaction_op: Interaction of the features: cuda_dot uses the extension, dot plain PyTorch
        dcn_low_rank_dim: Rank of each cross layer of `interaction_op` dcnv2
        embedding_type: Type of the embedding: one joint table updated in place by the fused
            optimizer (joint_fused), one joint table with sparse gradients, in the extension
            (joint_sparse) or plain PyTorch (joint), or one table per feature (multi_table)
        embedding_storage: Number format of the table of `embedding_type` joint_fused: float32, or
            bfloat16 with stochastic rounding (half the memory)
        hash_indices: Compute `index % table size`, so that all indices fit their tables
        max_table_size: Most rows of an embedding table, by default the number of distinct values of
            its feature; needs `hash_indices`
        optimized_mlp: Use apex's optimized implementation of the MLPs, if it is installed
        dropout: Fraction of activations dropped after each hidden layer of the top MLP in training
        embedding_init: Standard deviation of the normal distribution that initialises embeddings.
            By default, each table is initialised uniformly within sqrt(1 / rows) of zero, as NVIDIA
            does: features with few categories then get large values, which costs quality on many
            logs
        numerical_embedding: Adds a vector of each numerical feature to the interaction, in addition
            to the bottom MLP. bins: the vector of the number's quantile bin. piecewise_linear: the
            position of the number among the quantiles, mapped to a vector by a linear layer and a
            ReLU (arXiv:2203.05556). The quantiles are those of the training rows
        numerical_bins: Quantile bins of each numerical feature, for `numerical_embedding`
        id_statistics: Slots of a table that counts, for each id and pair of ids, the training rows
            and the clicks among them; the top MLP gets both counts of all ids and pairs of a row. A
            full table keeps the most frequent ones; 0 turns it off. Only for one process and
            datasets without lists
        seeds: Number of networks, initialised differently and trained together as one model, which
            predicts the mean of their logits; N networks take N times as long
        batch_norm: Normalise each hidden layer of the MLPs over the batch
        dataset_type: Type of the dataset
        loader: Reader for `dataset_type` parquet: default, or merlin (needs merlin-dataloader)
        num_embeddings_per_feature: Rows of each embedding table, instead of the cardinalities in
            the dataset's feature specification or the checkpoint; needed for a folder without that
            file (TorchRec's)
        dataset_subset: Fraction of the training rows to use, in (0, 1]; by default all of them
        batch_size: Batch size for training
        test_batch_size: Batch size for testing and validation
        drop_last: Leave out the last rows of a training epoch if they do not fill a batch
        shuffle_batch_order: Read the training batches in random order
        eval_split: Split to evaluate on: choose settings on `validation`, report results on `test`
        synthetic_dataset_num_entries: Samples per epoch of the synthetic dataset
        synthetic_dataset_table_sizes: Rows of each embedding table for the synthetic dataset
        synthetic_dataset_dir: Folder of the synthetic dataset on disk
        synthetic_distribution: Distribution of synthetic ids; real ids are close to zipf, which
            trains faster
        lr: Base learning rate
        warmup_factor: Warmup factor of the learning rate, a non-negative integer
        warmup_steps: Optimizer steps of the learning rate warmup
        decay_start_step: Optimizer step after which the learning rate decays; with None, right
            after the warmup
        decay_steps: Steps of the polynomial decay of the learning rate; 0 does not decay it
        decay_power: Power of the polynomial decay
        decay_end_lr: Learning rate after the decay
        optimizer: Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad
        embedding_weight_decay: Weight decay of the embedding rows that occur in a batch
        embedding_l2: Adds this times half the squared norm of all embeddings to the loss of each
            batch. Rows that do not occur in the batch shrink too, so that a step takes time in
            proportion to all rows: for small tables (0.1 for ids that occur often)
        reset_embeddings: Initialise the embeddings again before each epoch except the first: the
            MLPs train for several epochs, the embeddings for one, so that rare ids are not
            memorised (MEDA, arXiv:2305.19531)
        plateau_factor: Multiplies the learning rate after each evaluation that is not the best so
            far; with `reset_embeddings`, only evaluations at the ends of epochs count
        amp: Compute matrix products in half precision
        amp_dtype: Type of matrix products under `amp`; bfloat16 does not need a loss scale
        loss_scale: Static loss scale for mixed precision
        tf32: Multiply float32 matrices in TF32 (10 bits of mantissa) on a GPU
        quantize: int8: also test or measure the model with 8-bit tables and MLPs (CPU), calibrated
            on the first training rows; `mode` test prints the loss of quality
        seed: Random seed
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Optimizer steps between prints of the training status
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        epochs: Number of epochs to train for
        best_by: Metric that compares evaluations, for the best checkpoint, `patience` and
            `plateau_factor`; log_loss stops before the probabilities overfit
        placement: JSON file with the placement of the tables on several processes, written by
            python -m dlrm.scripts.plan_placement; by default, the run plans one
        deterministic: Add up what a batch contributes in an order that does not depend on the
            number of processes: 1, 2 or 4 of them with any number of threads and any placement of
            the tables train the same bytes on processors of the same kind. On CPUs, in float32
        gauc_by: Also report the AUC within the groups of this categorical feature (GAUC), such as
            the user, or of a schema's group. Skips id 0 if it means missing, rare or unseen
        baselines: Models to compare with in a test and at the end of training, in addition to the
            constant click rate: logistic_regression | lightgbm. They are fitted to the training
            rows in seconds, in runs of one process; lightgbm only if it is installed. Empty turns
            this off, which is the default under `run_benchmark`
        progressive: With `grow`: test the model on each day before it is trained on it, in place of
            `eval_split`; new categories get the vector of unknown ones, as when the model is served
        table_memory: Keep the embedding tables and the state of their optimizer in files on disk,
            with at most about this much of them in memory (such as 4GiB), for tables that do not
            fit. The result is the same. The files are in the folder of the checkpoints or, without
            one, in TMPDIR; on one process, on a CPU, with `embedding_type` joint_fused and float32
        benchmark_steps: Steps of `run_benchmark`
        report: HTML file to write with the curves, times, metrics and settings of the run, such as
            FILE.html; needs matplotlib
        preset: Set of settings: bars_x1, bars_x4, criteo_sample, daily, kaggle, mlperf_dcnv2,
            small, terabyte_15, terabyte_3, a YAML file, or auto, which chooses settings by the
            dataset and its validation split; flags that you give override the preset. The default
            is auto if you train on a dataset made with a schema and give no setting of the model
            (except `seeds`) or the optimizer and no checkpoint to load, and daily with `grow`
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Returns:
        Name -> metric of the split, such as `auc` and `log_loss`, and those of the baselines.

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> round(rr.clicks.test(dataset, run, baselines="")["auc"], 3)
        1.0
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
    progressive: bool = ...,
    table_memory: int | str = ...,
    benchmark_steps: int = ...,
    preset: str | Path = ...,
    budget: str = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
) -> Any:
    """Returns the click probabilities of new rows, which need no label.

    Args:
        log: a path or a table.
        dataset: the dataset of the training, whose schema and ids the rows get.
        run: folder of the checkpoints of any model of clicks.
        num_numerical_features: Number of numerical features in the dataset, 13 in Criteo's
        embedding_dim: Columns of the embeddings of categorical features
        bottom_mlp_sizes: Sizes of the layers of the bottom MLP; the last is `embedding_dim`
        top_mlp_sizes: Sizes of the layers of the top MLP; the last is 1
        interaction_op: Interaction of the features: cuda_dot uses the extension, dot plain PyTorch
        dcn_low_rank_dim: Rank of each cross layer of `interaction_op` dcnv2
        embedding_type: Type of the embedding: one joint table updated in place by the fused
            optimizer (joint_fused), one joint table with sparse gradients, in the extension
            (joint_sparse) or plain PyTorch (joint), or one table per feature (multi_table)
        embedding_storage: Number format of the table of `embedding_type` joint_fused: float32, or
            bfloat16 with stochastic rounding (half the memory)
        hash_indices: Compute `index % table size`, so that all indices fit their tables
        max_table_size: Most rows of an embedding table, by default the number of distinct values of
            its feature; needs `hash_indices`
        optimized_mlp: Use apex's optimized implementation of the MLPs, if it is installed
        dropout: Fraction of activations dropped after each hidden layer of the top MLP in training
        embedding_init: Standard deviation of the normal distribution that initialises embeddings.
            By default, each table is initialised uniformly within sqrt(1 / rows) of zero, as NVIDIA
            does: features with few categories then get large values, which costs quality on many
            logs
        numerical_embedding: Adds a vector of each numerical feature to the interaction, in addition
            to the bottom MLP. bins: the vector of the number's quantile bin. piecewise_linear: the
            position of the number among the quantiles, mapped to a vector by a linear layer and a
            ReLU (arXiv:2203.05556). The quantiles are those of the training rows
        numerical_bins: Quantile bins of each numerical feature, for `numerical_embedding`
        id_statistics: Slots of a table that counts, for each id and pair of ids, the training rows
            and the clicks among them; the top MLP gets both counts of all ids and pairs of a row. A
            full table keeps the most frequent ones; 0 turns it off. Only for one process and
            datasets without lists
        seeds: Number of networks, initialised differently and trained together as one model, which
            predicts the mean of their logits; N networks take N times as long
        batch_norm: Normalise each hidden layer of the MLPs over the batch
        dataset_type: Type of the dataset
        loader: Reader for `dataset_type` parquet: default, or merlin (needs merlin-dataloader)
        num_embeddings_per_feature: Rows of each embedding table, instead of the cardinalities in
            the dataset's feature specification or the checkpoint; needed for a folder without that
            file (TorchRec's)
        dataset_subset: Fraction of the training rows to use, in (0, 1]; by default all of them
        batch_size: Batch size for training
        test_batch_size: Batch size for testing and validation
        drop_last: Leave out the last rows of a training epoch if they do not fill a batch
        shuffle_batch_order: Read the training batches in random order
        eval_split: Split to evaluate on: choose settings on `validation`, report results on `test`
        synthetic_dataset_num_entries: Samples per epoch of the synthetic dataset
        synthetic_dataset_table_sizes: Rows of each embedding table for the synthetic dataset
        synthetic_dataset_dir: Folder of the synthetic dataset on disk
        synthetic_distribution: Distribution of synthetic ids; real ids are close to zipf, which
            trains faster
        lr: Base learning rate
        warmup_factor: Warmup factor of the learning rate, a non-negative integer
        warmup_steps: Optimizer steps of the learning rate warmup
        decay_start_step: Optimizer step after which the learning rate decays; with None, right
            after the warmup
        decay_steps: Steps of the polynomial decay of the learning rate; 0 does not decay it
        decay_power: Power of the polynomial decay
        decay_end_lr: Learning rate after the decay
        optimizer: Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad
        embedding_weight_decay: Weight decay of the embedding rows that occur in a batch
        embedding_l2: Adds this times half the squared norm of all embeddings to the loss of each
            batch. Rows that do not occur in the batch shrink too, so that a step takes time in
            proportion to all rows: for small tables (0.1 for ids that occur often)
        reset_embeddings: Initialise the embeddings again before each epoch except the first: the
            MLPs train for several epochs, the embeddings for one, so that rare ids are not
            memorised (MEDA, arXiv:2305.19531)
        plateau_factor: Multiplies the learning rate after each evaluation that is not the best so
            far; with `reset_embeddings`, only evaluations at the ends of epochs count
        amp: Compute matrix products in half precision
        amp_dtype: Type of matrix products under `amp`; bfloat16 does not need a loss scale
        loss_scale: Static loss scale for mixed precision
        tf32: Multiply float32 matrices in TF32 (10 bits of mantissa) on a GPU
        quantize: int8: also test or measure the model with 8-bit tables and MLPs (CPU), calibrated
            on the first training rows; `mode` test prints the loss of quality
        seed: Random seed
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Optimizer steps between prints of the training status
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        epochs: Number of epochs to train for
        best_by: Metric that compares evaluations, for the best checkpoint, `patience` and
            `plateau_factor`; log_loss stops before the probabilities overfit
        placement: JSON file with the placement of the tables on several processes, written by
            python -m dlrm.scripts.plan_placement; by default, the run plans one
        progressive: With `grow`: test the model on each day before it is trained on it, in place of
            `eval_split`; new categories get the vector of unknown ones, as when the model is served
        table_memory: Keep the embedding tables and the state of their optimizer in files on disk,
            with at most about this much of them in memory (such as 4GiB), for tables that do not
            fit. The result is the same. The files are in the folder of the checkpoints or, without
            one, in TMPDIR; on one process, on a CPU, with `embedding_type` joint_fused and float32
        benchmark_steps: Steps of `run_benchmark`
        preset: Set of settings: bars_x1, bars_x4, criteo_sample, daily, kaggle, mlperf_dcnv2,
            small, terabyte_15, terabyte_3, a YAML file, or auto, which chooses settings by the
            dataset and its validation split; flags that you give override the preset. The default
            is auto if you train on a dataset made with a schema and give no setting of the model
            (except `seeds`) or the optimizer and no checkpoint to load, and daily with `grow`
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time
        baselines: What a test compares with, in addition to the constant click rate: lightgbm if it
            is installed; empty for nothing else

    Returns:
        For a pandas frame a frame with the same index and the columns `probability` and `logit`,
        NaN if a row is refused. Otherwise a pyarrow table with the rows that are not refused, in
        the order of the log, and their `line`, which is 2 for the first row of a table.

    Raises:
        UserError: a setting or the log is refused.

    Examples:
        >>> new = pa.table({"ad": ["ad0", "ad4"], "age": [30, 31]})
        >>> [p > 0.5 for p in rr.clicks.predict(new, dataset, run)["probability"].to_pylist()]
        [True, False]
    """
