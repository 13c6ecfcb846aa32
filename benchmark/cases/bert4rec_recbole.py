# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec's training speed beside RecBole's on MovieLens-100K, on one and two threads.

Samples, sizes and batch are the same. Each run is a process of its own. Ours trains a whole epoch,
because batches of short sequences are cheaper. RecBole pads every batch to the same size, so a few
batches are enough. `make recbole` makes the environment of RecBole.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmark.case import Case, Group, Key, Values
from benchmark.commands import HERE, recsys_data
from benchmark.programs import (
    BERT4REC,
    FailedProgramError,
    prepare_movielens,
    run_command,
    run_training,
)
from recsys.data.sequences.files import read_sequences
from recsys.errors import UserError
from recsys.settings import setting

RECBOLE_PYTHON = HERE / ".venv-recbole" / "bin" / "python"
STEPS_PER_EPOCH = 48
SETTING = {"samples": 97_171, "batch": 2048, "max_len": 50, "emb_dim": 64, "blocks": 2}
# The same setting as recsys.train.memory makes in our programs.
KEEP_FREED_MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"
}
OURS = "ours, preset recbole"
FASTEST = "RecBole 1.2.1, anomaly mode off, freed memory kept"  # equal to the others in quality
RECBOLE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "RecBole 1.2.1 as shipped": ("as_shipped", {}),
    "RecBole 1.2.1, anomaly mode off": ("off", {}),
    FASTEST: ("off", KEEP_FREED_MEMORY),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecBole(Case):
    """Training samples per second."""

    repeats: ClassVar[int] = 3

    threads: tuple[int, ...] = setting((1, 2), "Threads of a training")
    our_steps: int = setting(STEPS_PER_EPOCH, "Our steps")
    recbole_batches: int = setting(12, "RecBole's batches")

    def config(self) -> dict[str, Any]:
        """Returns the sizes."""
        return dict(SETTING)

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the candidates on each number of threads."""
        if not RECBOLE_PYTHON.is_file():
            raise UserError("there is no environment with RecBole: `make recbole` makes it")
        ratings = recsys_data() / "ml-100k" / "u.data.gz"
        dataset = prepare_movielens(ratings, folder / "dataset")
        inter = write_interactions(dataset, folder / "interactions")
        for threads in self.threads:
            candidates = {OURS: functools.partial(self._our_speed, dataset, threads)}
            for name in RECBOLE:
                speed = functools.partial(self._recbole_speed, inter, threads, name)
                candidates[name] = speed
            yield Group(candidates=candidates)

    def _our_speed(self, dataset: Path, threads: int, _seed: int) -> Values:
        trained = run_training(
            BERT4REC,
            *("--config=recbole", "--dataset_name=ml-100k", f"--dataset_path={dataset}"),
            *(f"--num_threads={threads}", f"--print_freq={STEPS_PER_EPOCH}", "--base_device=cpu"),
            *(f"--max_steps={self.our_steps}", "--seed=2020"),
        )
        return {_speed_key(OURS, threads): trained["average_train_throughput"]}

    def _recbole_speed(self, inter: Path, threads: int, name: str, _seed: int) -> Values:
        """Runs RecBole in a process; refuses one that trained on other samples."""
        mode, environment = RECBOLE[name]
        command = [
            *(str(RECBOLE_PYTHON), "-W", "ignore"),
            str(HERE / "benchmark" / "peers" / "recbole_bert4rec.py"),
            *(f"--data={inter}", f"--threads={threads}", f"--anomaly_mode={mode}"),
            f"--batches={self.recbole_batches}",
        ]
        variables = {"PATH": "/usr/bin:/bin", "HOME": str(inter), "OMP_NUM_THREADS": str(threads)}
        printed = run_command(command, {**variables, **environment})
        metrics: dict[str, Any] = json.loads(printed.splitlines()[-1])
        if metrics["train_samples"] != SETTING["samples"]:
            raise FailedProgramError(f"RecBole trains on {metrics['train_samples']} other samples")
        return {_speed_key(name, threads): float(metrics["samples_per_s"])}


def _speed_key(row: str, threads: int) -> Key:
    return Key(row, f"train samples/s, {threads} thread{'s' if threads > 1 else ''}", "samples/s")


def write_interactions(dataset: Path, folder: Path) -> Path:
    """Writes a dataset for RecBole; returns its folder.

    Positions in the history serve as timestamps, so there are no ties.
    """
    sequences = read_sequences(dataset)
    users = np.repeat(np.arange(1, sequences.num_users + 1), sequences.lengths)
    positions = np.arange(len(users)) - np.repeat(sequences.offsets[:-1], sequences.lengths)
    target = folder / "ml-100k"
    target.mkdir(parents=True, exist_ok=True)
    table = np.stack([users, sequences.items.astype(np.int64), positions], axis=1)
    np.savetxt(
        target / "ml-100k.inter",
        table,
        fmt="%d",
        delimiter="\t",
        header="user_id:token\titem_id:token\ttimestamp:float",
        comments="",
    )
    return target


CASE = RecBole
