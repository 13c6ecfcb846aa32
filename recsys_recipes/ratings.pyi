# SPDX-License-Identifier: Apache-2.0
"""The functions with their settings, written by `make golden`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import pyarrow as pa

__all__ = ["prepare", "recommend", "test", "train"]

def prepare(
    table: Any,
    output: str | Path | None = None,
    *,
    columns: str | Mapping[str, str] = "auto",
    format: str | Path = ...,
    id_type: Literal["auto", "integer", "string"] = ...,
    min_rating: float = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    kcore: Literal["iterated", "once"] = ...,
    split: str | Path = ...,
    dictionaries: str | Path = ...,
    extend: str | Path = ...,
    max_bad_fraction: float = ...,
    titles: str | Path = ...,
    progress: Literal["auto", "bar", "json", "none"] = ...,
    overwrite: bool = ...,
    engine: str | Path = ...,
    nvtabular_python: str | Path = ...,
    nvtabular_device: Literal["auto", "cpu", "gpu"] = ...,
    master: str | Path = ...,
    spark_conf: list[str] | tuple[str, ...] | str = ...,
    executor_cores: int = ...,
    executor_memory: str | Path = ...,
    spark_start_timeout: float = ...,
) -> Path:
    """Makes a dataset of users' histories; returns its folder.

    Args:
        table: a path or a table.
        output: folder to create; left out with `extend`, which adds a day to a growing dataset.
        columns: roles and column names, such as {"user": "customer", "item": "sku"}, and also
            "rating" and "timestamp" if the table has them; or the same as text,
            "user=customer,item=sku". "auto" recognises columns by their names. Without a timestamp,
            the rows of a user must be in the order of time.
        format: Format: auto, csv, dat, udata, text, or the path of a schema (YAML).
        id_type: Type of user and item ids in a csv file: auto | integer | string; auto takes
            integers if any of the first rows has them, string keeps any text.
        min_rating: Drop ratings below this.
        min_user_count: Drop users with fewer interactions; at least 3. Default: 5, 3 for files
            without times.
        min_item_count: Drop items with fewer interactions. Default: 0.
        kcore: How to apply the two limits, items before users: iterated | once (until nothing
            changes, or one pass, after which some items may be below the limit again).
        split: Items to hold out: leave_one_out (the last ones of each user), or temporal:0.9 (all
            from the moment on that has this fraction of the interactions before it).
        dictionaries: Dataset whose item ids to use, for a model that was trained on it; rows of
            other items are left out.
        extend: Folder of a dataset that grows by a day: `input` becomes its next day, day_0000
            first, with the histories of all days so far. Item ids never move, and new items get the
            ids behind them. The first day sets filters and split. Replaces `output`.
        max_bad_fraction: Fraction of rows that may be malformed; they are written to quarantine.csv
            instead. With 0 the first one stops the run.
        titles: File of readable item titles: u.item, movies.dat or movies.csv of MovieLens; auto
            takes the one next to the ratings if it exists, none reads no titles.
        progress: How to report progress: auto, bar, json, none.
        overwrite: Replace the dataset at `output` once the new one is done.
        engine: Software that does the work: pyarrow, nvtabular, spark.
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

    Raises:
        UserError: a setting or a row is refused; the message names the line and column.

    Examples:
        Customers who buy from six articles, always the next one:

        >>> import pyarrow as pa
        >>> import recsys_recipes as rr
        >>> bought = [(f"c{user}", f"A{(user + k) % 6}") for user in range(30) for k in range(4)]
        >>> customers, articles = zip(*bought)
        >>> orders = pa.table({"customer": customers, "sku": articles})
        >>> columns = {"user": "customer", "item": "sku"}
        >>> dataset = rr.ratings.prepare(orders, "shop", columns=columns)
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["bert4rec"] = "bert4rec",
    *,
    max_len: int = ...,
    emb_dim: int = ...,
    nhead: int = ...,
    num_layers: int = ...,
    ffn_dim: int = ...,
    activation: Literal["gelu", "relu", "swiglu"] = ...,
    norm: Literal["pre", "post"] = ...,
    positions_from: Literal["end", "start"] = ...,
    head: Literal["untied", "tied"] = ...,
    head_transform: bool = ...,
    item_init: Literal["normal", "neighbours"] = ...,
    temperature: float = ...,
    dropout: float = ...,
    attention_dropout: float = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    windows: Literal["recent", "random", "sliding", "prefix"] = ...,
    dupe_factor: int = ...,
    batch_size: int = ...,
    val_batch_size: int = ...,
    test_batch_size: int = ...,
    num_workers: int = ...,
    objective: Literal["cloze", "causal", "hybrid"] = ...,
    mask_prob: float = ...,
    mask_last_prob: float = ...,
    mask_last_of: Literal["sequences", "batches"] = ...,
    mask_replace: float = ...,
    random_replace: float = ...,
    loss: Literal["full", "sampled", "gbce"] = ...,
    num_negatives: int = ...,
    popularity_correction: float = ...,
    lr: float = ...,
    lr_schedule: Literal["step", "cosine", "linear"] = ...,
    decay_step: int = ...,
    gamma: float = ...,
    warmup_steps: float = ...,
    weight_decay: float = ...,
    clip_norm: float = ...,
    accumulation_steps: int = ...,
    amp: bool = ...,
    amp_dtype: Literal["float16", "bfloat16"] = ...,
    adapter: Literal["none", "lora", "ilora"] = ...,
    adapter_rank: int = ...,
    num_eval_negatives: int = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    ranks_file: str | Path = ...,
    lists_file: str | Path = ...,
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
    inference_benchmark_batch_sizes: list[int] | tuple[int, ...] | str = ...,
    parallelism: Literal["ddp", "dmp"] = ...,
    epochs: int = ...,
    gc_after_epoch: bool = ...,
    activation_checkpointing: bool = ...,
    torch_compile: bool = ...,
    cuda_graphs: bool = ...,
    grow: bool = ...,
    progressive: bool = ...,
    use_torch_jit_trace: bool = ...,
    top_k: int = ...,
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
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        max_len: Maximum length of a sequence that the model sees
        emb_dim: Dimension of the item embedding and of every layer
        nhead: Attention heads
        num_layers: Transformer blocks
        ffn_dim: Hidden dimension of the feed-forward networks; by default four times `emb_dim`
        activation: Activation of the feed-forward networks
        norm: Normalise before each sublayer of a block, or after it
        positions_from: Count positions from the end of a sequence (left padding) or from its start
        head: Score items with separate vectors (untied) or with the item embedding (tied)
        head_transform: Apply a linear layer, GELU and normalisation before scoring items
        item_init: Initial item vectors: random (normal), or similar for items that occur near each
            other in histories (neighbours)
        temperature: Score items by the cosine of item and history vectors, divided by this
            temperature; by default, by their dot product
        dropout: Fraction of activations dropped in training
        attention_dropout: Fraction of attention weights dropped in training
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        windows: Windows of each history that an epoch trains on: its end (recent), one at a random
            position (random), overlapping ones (sliding), or the items before each item (prefix)
        dupe_factor: Times that an epoch uses each window, masked anew each time
        batch_size: Sequences of a training batch
        val_batch_size: Sequences of a validation batch
        test_batch_size: Sequences of a test batch
        num_workers: Threads per process that make the next training batches during a step; 0 makes
            each batch between two steps. By default 1 with a GPU, and 0 on a CPU, which the step
            itself needs. The batches do not depend on it
        objective: Predict hidden items from both sides (cloze), the next item from those before it
            (causal), or both in turn (hybrid)
        mask_prob: Fraction of the items that are targets
        mask_last_prob: Fraction of the sequences whose last item is the only target
        mask_last_of: Choose these sequences one by one, or whole batches of them
        mask_replace: Fraction of the targets that the mask item replaces
        random_replace: Fraction of the targets that a random item replaces; the rest stay visible
        loss: Softmax over all items, over sampled ones, or gBCE over sampled ones
        num_negatives: Negative items that a batch shares under `loss` sampled and gbce
        popularity_correction: Under `loss` full, keep this fraction of the items' log popularity
            out of the scores: 0 predicts the next item, 1 what is particular to the user
        lr: Learning rate
        lr_schedule: Learning rate: multiplied by `gamma` every `decay_step` epochs (step), or
            falling to zero along a cosine or a line
        decay_step: Epochs between two decays of the learning rate under `lr_schedule` step
        gamma: Factor of each decay under `lr_schedule` step
        warmup_steps: Steps of linear warmup; a value below 1 is a fraction of the run's steps
        weight_decay: Weight decay (decoupled)
        clip_norm: Maximum norm of a step's gradient
        accumulation_steps: Batches per process whose gradients are added up for one step
        amp: Compute matrix products in half precision
        amp_dtype: Type of the matrix products under `amp`
        adapter: Train only low-rank changes to the linear layers of a loaded model: the same for
            every history (lora), or a mixture of experts that depends on the history (ilora)
        adapter_rank: Rank of each adapter; for `adapter` ilora, the sum over its experts
        num_eval_negatives: Negatives per user in the sampled rankings
        baselines: Baselines of a test, in addition to popularity: markov | item_knn | ease |
            ease_recent | recent. ease is as published, ease_recent scores by the last items only,
            recent is the popularity of the last seven days and needs a temporal split; empty for
            none
        ranks_file: File for the rank of each user's test item, .csv or .parquet; empty writes none
        lists_file: File for each test user's `top_k` recommendations, .csv or .parquet; empty
            writes none
        seed: Random seed
        max_steps: Stop after this many steps
        test_freq: Steps between validations; by default one per epoch
        patience: Stop after this many validations without a better result
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Steps between lines of progress
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        checkpoint: Checkpoint to load, or folder of a run that saved one
        save_freq: Steps between checkpoints, in addition to those at the best evaluation, at the
            end and on SIGTERM, SIGINT or SIGHUP
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        resume: Continue the run in the folder of the checkpoints, if there is one
        benchmark_warmup_steps: Number of first steps to leave out of the throughput
        inference_benchmark_batch_sizes: Batch sizes of `mode` inference_benchmark
        parallelism: Under torchrun: a copy of the model per process, or TorchRec's
            DistributedModelParallel with a sharded item table
        epochs: Epochs to train for
        gc_after_epoch: Collect garbage after each epoch and return unused memory to the system and,
            on a GPU, to other processes
        activation_checkpointing: Store only the inputs of the blocks and recompute the blocks in
            backward: the same result with less memory and more time
        torch_compile: Compile the layers of a training step, once for all batch sizes
        cuda_graphs: Capture the whole training step in a CUDA graph for each size of a batch, and
            replay it
        grow: Train on the days of ratings that grow (recsys-recipes prepare ratings `extend`), one
            after the other, each in a folder of its own inside `output`. `resume` continues with
            the days that are new
        progressive: Test the model of an earlier day on each user's first item of the dataset's
            last day, beside the popularity of the seven days before; items that are new since have
            no vector and rank last. In `mode` test, or with `grow`, before each day's training
        use_torch_jit_trace: Run the inference benchmark with the deployed network, traced by
            torch.jit; `mode` train then also runs it, after the test
        top_k: Length of a list of recommendations, and of the list of a user in a test
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
        preset: YAML file of settings, one of 5m, best, best-short, fast, fast-short,
            large-catalogue, masked, paper, recbole, scaling-130m, scaling-430m, scaling-85m,
            torchrec, or auto, which chooses settings for the dataset; explicit flags override it
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["markov"],
    *,
    last_items: int = ...,
    decay: float = ...,
    window: int = ...,
    first_power: float = ...,
    next_power: float = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    num_eval_negatives: int = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    ranks_file: str | Path = ...,
    lists_file: str | Path = ...,
    ignore_fingerprint: bool = ...,
    log_path: str | Path = ...,
    test_batch_size: int = ...,
    num_threads: int = ...,
    seed: int = ...,
    top_k: int = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        last_items: How many of the newest items of a history count; 0 counts all, each item once
        decay: Weight of an item as a fraction of the weight of the item after it
        window: How many items after each item count; nearer ones weigh more
        first_power: Power to which the first item's total is raised, to divide a weight by it
        next_power: Power to which the following item's total is raised, to divide a weight by it
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        num_eval_negatives: Negatives per user in the sampled rankings
        baselines: Baselines of a test, in addition to popularity: markov | item_knn | ease |
            ease_recent | recent. ease is as published, ease_recent scores by the last items only,
            recent is the popularity of the last seven days and needs a temporal split; empty for
            none
        ranks_file: File for the rank of each user's test item, .csv or .parquet; empty writes none
        lists_file: File for each test user's `top_k` recommendations, .csv or .parquet; empty
            writes none
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        test_batch_size: Histories scored per batch
        num_threads: CPU threads; by default one per core
        seed: Seeds `dataset_name` random
        top_k: Length of a list of recommendations, and of the list of a user in a test

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["item_knn"],
    *,
    last_items: int = ...,
    decay: float = ...,
    neighbours: int = ...,
    shrinkage: float = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    num_eval_negatives: int = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    ranks_file: str | Path = ...,
    lists_file: str | Path = ...,
    ignore_fingerprint: bool = ...,
    log_path: str | Path = ...,
    test_batch_size: int = ...,
    num_threads: int = ...,
    seed: int = ...,
    top_k: int = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        last_items: How many of the newest items of a history count; 0 counts all, each item once
        decay: Weight of an item as a fraction of the weight of the item after it
        neighbours: Nearest neighbours kept for each item
        shrinkage: Added to a cosine's denominator; lowers cosines of few users
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        num_eval_negatives: Negatives per user in the sampled rankings
        baselines: Baselines of a test, in addition to popularity: markov | item_knn | ease |
            ease_recent | recent. ease is as published, ease_recent scores by the last items only,
            recent is the popularity of the last seven days and needs a temporal split; empty for
            none
        ranks_file: File for the rank of each user's test item, .csv or .parquet; empty writes none
        lists_file: File for each test user's `top_k` recommendations, .csv or .parquet; empty
            writes none
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        test_batch_size: Histories scored per batch
        num_threads: CPU threads; by default one per core
        seed: Seeds `dataset_name` random
        top_k: Length of a list of recommendations, and of the list of a user in a test

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["ease"],
    *,
    last_items: int = ...,
    decay: float = ...,
    ridge: float = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    num_eval_negatives: int = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    ranks_file: str | Path = ...,
    lists_file: str | Path = ...,
    ignore_fingerprint: bool = ...,
    log_path: str | Path = ...,
    test_batch_size: int = ...,
    num_threads: int = ...,
    seed: int = ...,
    top_k: int = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        last_items: How many of the newest items of a history count; 0 counts all, each item once
        decay: Weight of an item as a fraction of the weight of the item after it
        ridge: Lambda of the ridge regression, added to the number of users of each item; by default
            the best of 50, 250, 1000 by NDCG@10 of the validation targets
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        num_eval_negatives: Negatives per user in the sampled rankings
        baselines: Baselines of a test, in addition to popularity: markov | item_knn | ease |
            ease_recent | recent. ease is as published, ease_recent scores by the last items only,
            recent is the popularity of the last seven days and needs a temporal split; empty for
            none
        ranks_file: File for the rank of each user's test item, .csv or .parquet; empty writes none
        lists_file: File for each test user's `top_k` recommendations, .csv or .parquet; empty
            writes none
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        test_batch_size: Histories scored per batch
        num_threads: CPU threads; by default one per core
        seed: Seeds `dataset_name` random
        top_k: Length of a list of recommendations, and of the list of a user in a test

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["gru"],
    *,
    emb_dim: int = ...,
    dropout: float = ...,
    last_items: int = ...,
    lr: float = ...,
    batch_size: int = ...,
    epochs: int = ...,
    patience: int = ...,
    init_seed: int = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    num_eval_negatives: int = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    ranks_file: str | Path = ...,
    lists_file: str | Path = ...,
    ignore_fingerprint: bool = ...,
    log_path: str | Path = ...,
    test_batch_size: int = ...,
    num_threads: int = ...,
    seed: int = ...,
    top_k: int = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        emb_dim: Columns of the item embedding and of the hidden state
        dropout: Fraction of the inputs and outputs dropped in training
        last_items: How many of the newest items of a history count; training cuts longer histories
            in pieces
        lr: Learning rate of Adam
        batch_size: Histories, or pieces of them, in a training batch
        epochs: Largest number of training epochs
        patience: Training ends after this many epochs (or 25 batches, if those are more) without a
            better NDCG@10 of the validation targets
        init_seed: Seeds the initial parameters, dropout and order; two runs on a GPU still differ
            slightly
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        num_eval_negatives: Negatives per user in the sampled rankings
        baselines: Baselines of a test, in addition to popularity: markov | item_knn | ease |
            ease_recent | recent. ease is as published, ease_recent scores by the last items only,
            recent is the popularity of the last seven days and needs a temporal split; empty for
            none
        ranks_file: File for the rank of each user's test item, .csv or .parquet; empty writes none
        lists_file: File for each test user's `top_k` recommendations, .csv or .parquet; empty
            writes none
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        test_batch_size: Histories scored per batch
        num_threads: CPU threads; by default one per core
        seed: Seeds `dataset_name` random
        top_k: Length of a list of recommendations, and of the list of a user in a test

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
    """

@overload
def train(
    dataset: str | Path,
    run: str | Path,
    model: Literal["blend"],
    *,
    blend_of: str | Path = ...,
    blend_with: list[str] | tuple[str, ...] | str = ...,
    weights: list[float] | tuple[float, ...] | str = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    num_eval_negatives: int = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    ranks_file: str | Path = ...,
    lists_file: str | Path = ...,
    ignore_fingerprint: bool = ...,
    log_path: str | Path = ...,
    test_batch_size: int = ...,
    num_threads: int = ...,
    seed: int = ...,
    top_k: int = ...,
) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        blend_of: Checkpoint, or folder of a run, of the first model, which must be trained on the
            same dataset
        blend_with: Models to add, one or two of markov | item_knn | ease | ease_recent; by default
            chosen on the validation targets
        weights: Weights of these models; the first model gets the rest, up to 1. By default they
            are chosen in tenths on the validation targets: the most even ones within a standard
            error of the best NDCG@10
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        num_eval_negatives: Negatives per user in the sampled rankings
        baselines: Baselines of a test, in addition to popularity: markov | item_knn | ease |
            ease_recent | recent. ease is as published, ease_recent scores by the last items only,
            recent is the popularity of the last seven days and needs a temporal split; empty for
            none
        ranks_file: File for the rank of each user's test item, .csv or .parquet; empty writes none
        lists_file: File for each test user's `top_k` recommendations, .csv or .parquet; empty
            writes none
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        test_batch_size: Histories scored per batch
        num_threads: CPU threads; by default one per core
        seed: Seeds `dataset_name` random
        top_k: Length of a list of recommendations, and of the list of a user in a test

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
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
        model: a model that `recsys-recipes train` offers for ratings, or `auto`, which compares
            several on the validation items and blends the best.
        base_device: Device of the network: auto, cuda or cpu
        num_threads: CPU threads; by default one per core
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.ratings.train(dataset, "shop-run", "markov", baselines="")
    """

def test(
    dataset: str | Path,
    run: str | Path,
    *,
    max_len: int = ...,
    emb_dim: int = ...,
    nhead: int = ...,
    num_layers: int = ...,
    ffn_dim: int = ...,
    activation: Literal["gelu", "relu", "swiglu"] = ...,
    norm: Literal["pre", "post"] = ...,
    positions_from: Literal["end", "start"] = ...,
    head: Literal["untied", "tied"] = ...,
    head_transform: bool = ...,
    item_init: Literal["normal", "neighbours"] = ...,
    temperature: float = ...,
    dropout: float = ...,
    attention_dropout: float = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    windows: Literal["recent", "random", "sliding", "prefix"] = ...,
    dupe_factor: int = ...,
    batch_size: int = ...,
    val_batch_size: int = ...,
    test_batch_size: int = ...,
    num_workers: int = ...,
    objective: Literal["cloze", "causal", "hybrid"] = ...,
    mask_prob: float = ...,
    mask_last_prob: float = ...,
    mask_last_of: Literal["sequences", "batches"] = ...,
    mask_replace: float = ...,
    random_replace: float = ...,
    loss: Literal["full", "sampled", "gbce"] = ...,
    num_negatives: int = ...,
    popularity_correction: float = ...,
    lr: float = ...,
    lr_schedule: Literal["step", "cosine", "linear"] = ...,
    decay_step: int = ...,
    gamma: float = ...,
    warmup_steps: float = ...,
    weight_decay: float = ...,
    clip_norm: float = ...,
    accumulation_steps: int = ...,
    amp: bool = ...,
    amp_dtype: Literal["float16", "bfloat16"] = ...,
    adapter: Literal["none", "lora", "ilora"] = ...,
    adapter_rank: int = ...,
    num_eval_negatives: int = ...,
    baselines: list[str] | tuple[str, ...] | str = ...,
    ranks_file: str | Path = ...,
    lists_file: str | Path = ...,
    seed: int = ...,
    base_device: Literal["auto", "cuda", "cpu"] = ...,
    num_threads: int = ...,
    process_timeout: float = ...,
    print_freq: int = ...,
    log_path: str | Path = ...,
    ignore_fingerprint: bool = ...,
    parallelism: Literal["ddp", "dmp"] = ...,
    epochs: int = ...,
    progressive: bool = ...,
    top_k: int = ...,
    benchmark_steps: int = ...,
    report: str | Path = ...,
    preset: str | Path = ...,
    budget: str = ...,
) -> dict[str, Any]:
    """Measures a trained model on the held-out items of the test split.

    Args:
        dataset: the dataset of the training.
        run: folder of the checkpoints of any model of ratings.
        max_len: Maximum length of a sequence that the model sees
        emb_dim: Dimension of the item embedding and of every layer
        nhead: Attention heads
        num_layers: Transformer blocks
        ffn_dim: Hidden dimension of the feed-forward networks; by default four times `emb_dim`
        activation: Activation of the feed-forward networks
        norm: Normalise before each sublayer of a block, or after it
        positions_from: Count positions from the end of a sequence (left padding) or from its start
        head: Score items with separate vectors (untied) or with the item embedding (tied)
        head_transform: Apply a linear layer, GELU and normalisation before scoring items
        item_init: Initial item vectors: random (normal), or similar for items that occur near each
            other in histories (neighbours)
        temperature: Score items by the cosine of item and history vectors, divided by this
            temperature; by default, by their dot product
        dropout: Fraction of activations dropped in training
        attention_dropout: Fraction of attention weights dropped in training
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        windows: Windows of each history that an epoch trains on: its end (recent), one at a random
            position (random), overlapping ones (sliding), or the items before each item (prefix)
        dupe_factor: Times that an epoch uses each window, masked anew each time
        batch_size: Sequences of a training batch
        val_batch_size: Sequences of a validation batch
        test_batch_size: Sequences of a test batch
        num_workers: Threads per process that make the next training batches during a step; 0 makes
            each batch between two steps. By default 1 with a GPU, and 0 on a CPU, which the step
            itself needs. The batches do not depend on it
        objective: Predict hidden items from both sides (cloze), the next item from those before it
            (causal), or both in turn (hybrid)
        mask_prob: Fraction of the items that are targets
        mask_last_prob: Fraction of the sequences whose last item is the only target
        mask_last_of: Choose these sequences one by one, or whole batches of them
        mask_replace: Fraction of the targets that the mask item replaces
        random_replace: Fraction of the targets that a random item replaces; the rest stay visible
        loss: Softmax over all items, over sampled ones, or gBCE over sampled ones
        num_negatives: Negative items that a batch shares under `loss` sampled and gbce
        popularity_correction: Under `loss` full, keep this fraction of the items' log popularity
            out of the scores: 0 predicts the next item, 1 what is particular to the user
        lr: Learning rate
        lr_schedule: Learning rate: multiplied by `gamma` every `decay_step` epochs (step), or
            falling to zero along a cosine or a line
        decay_step: Epochs between two decays of the learning rate under `lr_schedule` step
        gamma: Factor of each decay under `lr_schedule` step
        warmup_steps: Steps of linear warmup; a value below 1 is a fraction of the run's steps
        weight_decay: Weight decay (decoupled)
        clip_norm: Maximum norm of a step's gradient
        accumulation_steps: Batches per process whose gradients are added up for one step
        amp: Compute matrix products in half precision
        amp_dtype: Type of the matrix products under `amp`
        adapter: Train only low-rank changes to the linear layers of a loaded model: the same for
            every history (lora), or a mixture of experts that depends on the history (ilora)
        adapter_rank: Rank of each adapter; for `adapter` ilora, the sum over its experts
        num_eval_negatives: Negatives per user in the sampled rankings
        baselines: Baselines of a test, in addition to popularity: markov | item_knn | ease |
            ease_recent | recent. ease is as published, ease_recent scores by the last items only,
            recent is the popularity of the last seven days and needs a temporal split; empty for
            none
        ranks_file: File for the rank of each user's test item, .csv or .parquet; empty writes none
        lists_file: File for each test user's `top_k` recommendations, .csv or .parquet; empty
            writes none
        seed: Random seed
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Steps between lines of progress
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        parallelism: Under torchrun: a copy of the model per process, or TorchRec's
            DistributedModelParallel with a sharded item table
        epochs: Epochs to train for
        progressive: Test the model of an earlier day on each user's first item of the dataset's
            last day, beside the popularity of the seven days before; items that are new since have
            no vector and rank last. In `mode` test, or with `grow`, before each day's training
        top_k: Length of a list of recommendations, and of the list of a user in a test
        benchmark_steps: Steps of `run_benchmark`
        report: HTML file to write with the curves, times, metrics and settings of the run, such as
            FILE.html; needs matplotlib
        preset: YAML file of settings, one of 5m, best, best-short, fast, fast-short,
            large-catalogue, masked, paper, recbole, scaling-130m, scaling-430m, scaling-85m,
            torchrec, or auto, which chooses settings for the dataset; explicit flags override it
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Returns:
        Name -> metric. `test_full_hr@10` and `test_full_ndcg@10` rank all items; the figures of
        the baselines and of the lists follow.

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> rr.ratings.test(dataset, run, baselines="")["test_full_hr@10"]
        1.0
    """

def recommend(
    histories: Iterable[Sequence[object]],
    dataset: str | Path,
    run: str | Path,
    *,
    max_len: int = ...,
    emb_dim: int = ...,
    nhead: int = ...,
    num_layers: int = ...,
    ffn_dim: int = ...,
    activation: Literal["gelu", "relu", "swiglu"] = ...,
    norm: Literal["pre", "post"] = ...,
    positions_from: Literal["end", "start"] = ...,
    head: Literal["untied", "tied"] = ...,
    head_transform: bool = ...,
    item_init: Literal["normal", "neighbours"] = ...,
    temperature: float = ...,
    dropout: float = ...,
    attention_dropout: float = ...,
    dataset_name: Literal[
        "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
    ] = ...,
    min_user_count: int = ...,
    min_item_count: int = ...,
    min_rating: float = ...,
    validation_users: int = ...,
    temporal_targets: Literal["first", "last", "all"] = ...,
    temporal_validation: Literal["time", "users"] = ...,
    random_user_count: int = ...,
    random_item_count: int = ...,
    random_size: int = ...,
    windows: Literal["recent", "random", "sliding", "prefix"] = ...,
    dupe_factor: int = ...,
    batch_size: int = ...,
    val_batch_size: int = ...,
    test_batch_size: int = ...,
    num_workers: int = ...,
    objective: Literal["cloze", "causal", "hybrid"] = ...,
    mask_prob: float = ...,
    mask_last_prob: float = ...,
    mask_last_of: Literal["sequences", "batches"] = ...,
    mask_replace: float = ...,
    random_replace: float = ...,
    loss: Literal["full", "sampled", "gbce"] = ...,
    num_negatives: int = ...,
    popularity_correction: float = ...,
    lr: float = ...,
    lr_schedule: Literal["step", "cosine", "linear"] = ...,
    decay_step: int = ...,
    gamma: float = ...,
    warmup_steps: float = ...,
    weight_decay: float = ...,
    clip_norm: float = ...,
    accumulation_steps: int = ...,
    amp: bool = ...,
    amp_dtype: Literal["float16", "bfloat16"] = ...,
    adapter: Literal["none", "lora", "ilora"] = ...,
    adapter_rank: int = ...,
    num_eval_negatives: int = ...,
    seed: int = ...,
    base_device: Literal["auto", "cuda", "cpu"] = ...,
    num_threads: int = ...,
    process_timeout: float = ...,
    print_freq: int = ...,
    log_path: str | Path = ...,
    ignore_fingerprint: bool = ...,
    parallelism: Literal["ddp", "dmp"] = ...,
    epochs: int = ...,
    top_k: int = ...,
    benchmark_steps: int = ...,
    preset: str | Path = ...,
    budget: str = ...,
) -> pa.Table:
    """Recommends the next items of histories.

    Args:
        histories: raw item ids of each history, oldest first.
        dataset: the dataset of the training.
        run: folder of the checkpoints of any model of ratings.
        max_len: Maximum length of a sequence that the model sees
        emb_dim: Dimension of the item embedding and of every layer
        nhead: Attention heads
        num_layers: Transformer blocks
        ffn_dim: Hidden dimension of the feed-forward networks; by default four times `emb_dim`
        activation: Activation of the feed-forward networks
        norm: Normalise before each sublayer of a block, or after it
        positions_from: Count positions from the end of a sequence (left padding) or from its start
        head: Score items with separate vectors (untied) or with the item embedding (tied)
        head_transform: Apply a linear layer, GELU and normalisation before scoring items
        item_init: Initial item vectors: random (normal), or similar for items that occur near each
            other in histories (neighbours)
        temperature: Score items by the cosine of item and history vectors, divided by this
            temperature; by default, by their dot product
        dropout: Fraction of activations dropped in training
        attention_dropout: Fraction of attention weights dropped in training
        dataset_name: Dataset; random is a generated one
        min_user_count: Drops users with fewer interactions
        min_item_count: Drops items with fewer interactions
        min_rating: Drops ratings below this value
        validation_users: How many users validate, on their last item but one; they are drawn by
            their ids, and the others train on that item. By default all users validate
        temporal_targets: Which of a user's items from the cut on are targets, in a temporal split
        temporal_validation: Validation of a temporal split: items after an earlier cut, or users
            held out of training
        random_user_count: Users of `dataset_name` random
        random_item_count: Items of `dataset_name` random
        random_size: Interactions of `dataset_name` random
        windows: Windows of each history that an epoch trains on: its end (recent), one at a random
            position (random), overlapping ones (sliding), or the items before each item (prefix)
        dupe_factor: Times that an epoch uses each window, masked anew each time
        batch_size: Sequences of a training batch
        val_batch_size: Sequences of a validation batch
        test_batch_size: Sequences of a test batch
        num_workers: Threads per process that make the next training batches during a step; 0 makes
            each batch between two steps. By default 1 with a GPU, and 0 on a CPU, which the step
            itself needs. The batches do not depend on it
        objective: Predict hidden items from both sides (cloze), the next item from those before it
            (causal), or both in turn (hybrid)
        mask_prob: Fraction of the items that are targets
        mask_last_prob: Fraction of the sequences whose last item is the only target
        mask_last_of: Choose these sequences one by one, or whole batches of them
        mask_replace: Fraction of the targets that the mask item replaces
        random_replace: Fraction of the targets that a random item replaces; the rest stay visible
        loss: Softmax over all items, over sampled ones, or gBCE over sampled ones
        num_negatives: Negative items that a batch shares under `loss` sampled and gbce
        popularity_correction: Under `loss` full, keep this fraction of the items' log popularity
            out of the scores: 0 predicts the next item, 1 what is particular to the user
        lr: Learning rate
        lr_schedule: Learning rate: multiplied by `gamma` every `decay_step` epochs (step), or
            falling to zero along a cosine or a line
        decay_step: Epochs between two decays of the learning rate under `lr_schedule` step
        gamma: Factor of each decay under `lr_schedule` step
        warmup_steps: Steps of linear warmup; a value below 1 is a fraction of the run's steps
        weight_decay: Weight decay (decoupled)
        clip_norm: Maximum norm of a step's gradient
        accumulation_steps: Batches per process whose gradients are added up for one step
        amp: Compute matrix products in half precision
        amp_dtype: Type of the matrix products under `amp`
        adapter: Train only low-rank changes to the linear layers of a loaded model: the same for
            every history (lora), or a mixture of experts that depends on the history (ilora)
        adapter_rank: Rank of each adapter; for `adapter` ilora, the sum over its experts
        num_eval_negatives: Negatives per user in the sampled rankings
        seed: Random seed
        base_device: Device of the model; auto takes CUDA if available
        num_threads: CPU threads of a step; by default one per core
        process_timeout: Seconds that a process waits for the others, at the start and in a
            collective, before the run ends with an error that names the missing ones
        print_freq: Steps between lines of progress
        log_path: Destination of the log of metrics; empty takes log.json in the folder that a
            training saves in, and no file without one
        ignore_fingerprint: Accept a checkpoint that was trained on a dataset prepared differently;
            only sizes are compared
        parallelism: Under torchrun: a copy of the model per process, or TorchRec's
            DistributedModelParallel with a sharded item table
        epochs: Epochs to train for
        top_k: Length of a list of recommendations, and of the list of a user in a test
        benchmark_steps: Steps of `run_benchmark`
        preset: YAML file of settings, one of 5m, best, best-short, fast, fast-short,
            large-catalogue, masked, paper, recbole, scaling-130m, scaling-430m, scaling-85m,
            torchrec, or auto, which chooses settings for the dataset; explicit flags override it
        budget: Approximate time limit for auto to choose, train and validate; for a DLRM up to a
            million training rows. It shortens trials and training. The final test and its baselines
            take additional time

    Returns:
        A row for each history: `items`, a list of raw ids with the best first, and their `scores`.
        Both are null if no item of the history is known.

    Raises:
        UserError: a setting is refused.

    Examples:
        >>> lists = rr.ratings.recommend([["A1", "A2"], ["unknown"]], dataset, run, top_k=1)
        >>> lists["items"].to_pylist()
        [['A3'], None]
    """
