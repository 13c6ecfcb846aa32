# SPDX-License-Identifier: Apache-2.0
"""A small prepared dataset with an order that can be learnt, and runs of the real program."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from absl import flags

from benchmark.processes import run_process
from bert4rec.config import Bert4RecConfig
from bert4rec.recipe import Bert4RecRecipe, join_run
from bert4rec.scripts.flags import config_from_flags, define_flags
from recsys.data.sequences.files import write_sequences
from recsys.data.sequences.histories import RawIds, Sequences
from recsys.train.run import Run
from tests import harness
from tests.harness import REPOSITORY, Program
from tests.recsys.data.datasets import write_manifest

NUM_USERS, NUM_ITEMS = 60, 40
SMALL_MODEL = (
    "--max_len=12",
    "--emb_dim=16",
    "--nhead=2",
    "--num_layers=2",
    "--train_batch_size=16",
    "--lr=0.003",
    "--num_eval_negatives=5",
    "--base_device=cpu",
)


def raw_id(item: int) -> str:
    """Returns the raw id of an item: neither its number nor in its order."""
    return f"film-{(item * 7) % (NUM_ITEMS + 1)}"


def make_sequences() -> Sequences:
    """Returns users who mostly go from an item to the one after it."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 20, NUM_USERS)
    offsets = np.concatenate([[0], lengths.cumsum()])
    items = np.empty(offsets[-1], np.int32)
    for user in range(NUM_USERS):
        start = generator.integers(0, NUM_ITEMS)
        items[offsets[user] : offsets[user + 1]] = (
            start + np.arange(lengths[user])
        ) % NUM_ITEMS + 1
    return Sequences(items, offsets, NUM_ITEMS)


def write_dataset(root: Path, sequences: Sequences) -> None:
    """Writes sequences as preproc.movielens leaves them."""
    items = pa.array([raw_id(item) for item in range(1, NUM_ITEMS + 1)])
    counts = np.bincount(sequences.items, minlength=NUM_ITEMS + 1)[1:]
    users = pa.array([f"user-{user}" for user in range(sequences.num_users)])
    write_sequences(root, sequences, RawIds(users, sequences.lengths), RawIds(items, counts))
    semantics = {
        **{"source": "movielens", "min_rating": 0.0, "min_user_count": 3, "min_item_count": 0},
        "split": "leave_one_out",
    }
    cardinalities = [NUM_ITEMS + 1]
    write_manifest(
        root,
        rows={},
        positives={},
        kind="sequences",
        semantics=semantics,
        cardinalities=cardinalities,
    )


def write_other_dataset(root: Path) -> Path:
    """Writes a dataset that differs from `dataset` in the order of two items alone."""
    root.mkdir()
    sequences = make_sequences()
    sequences.items[:2] = sequences.items[1::-1].copy()
    write_dataset(root, sequences)
    return root


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Path:
    """The folder of the prepared dataset."""
    root = tmp_path_factory.mktemp("sequences")
    write_dataset(root, make_sequences())
    return root


def make_program(folder: Path) -> Program:
    """Returns bert4rec.scripts.main with its log in a folder."""
    from bert4rec.scripts import main

    return Program(main, folder, SMALL_MODEL)


def parse(*arguments) -> Bert4RecConfig:
    """Returns the config of a command line."""
    values = flags.FlagValues()
    define_flags(values)
    assert values(["main", *map(str, arguments)])[1:] == []
    return config_from_flags(values)


@pytest.fixture
def program(tmp_path) -> Program:
    """The program, with its log in the test's folder."""
    return make_program(tmp_path)


@pytest.fixture
def refused(program, capsys) -> Callable[..., str]:
    """Runs the program with flags that it must refuse; returns what it says."""

    def run(*flags: object, **options: Any) -> str:
        capsys.readouterr()
        program(*flags, status=2, **options)
        return capsys.readouterr().err

    return run


@pytest.fixture
def recommend(program, capsys) -> Callable[..., list[dict[str, Any]]]:
    """Recommends by a checkpoint; returns the answers."""

    def run(*flags: object, lines: str | bytes = "") -> list[dict[str, Any]]:
        stdin = lines if isinstance(lines, bytes) else lines.encode()
        capsys.readouterr()
        program("--mode=recommend", *flags, model=(), stdin=stdin)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def show(*flags: str) -> str:
    """Runs the program on a terminal of 100 columns; returns what that shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    outputs = Connection(os.dup(theirs), readable=False), Path(os.devnull)
    process = harness._fork(["-m", "bert4rec.scripts.main", *flags], REPOSITORY, {}, outputs)
    os.close(theirs)
    outputs[0].close()
    shown = b""
    with contextlib.suppress(OSError):  # the terminal closes with the process
        while block := os.read(ours, 4096):
            shown += block
    os.close(ours)
    process.join()
    assert process.exitcode == 0, shown
    return shown.decode()


def peak_mib(folder: Path, *flags: str) -> float:
    """Trains in a process of its own, with the log in a folder; returns the most MiB it had."""
    log = folder / "log.json"
    command = [sys.executable, "-m", "bert4rec.scripts.main", "--base_device=cpu", *flags]
    used = run_process(
        [*command, "--num_threads=1", f"--log_path={log}"], env={"PYTHONPATH": str(REPOSITORY)}
    )
    assert used.exit_status == 0, used.output
    assert "average_train_throughput" in log.read_text()
    return used.peak_anon_mib


@pytest.fixture(scope="session")
def trained(tmp_path_factory, dataset) -> Path:
    """The checkpoints of a run that learnt the order."""
    return train(dataset, tmp_path_factory.mktemp("trained"))


def train(dataset: Path, folder: Path) -> Path:
    """Trains until the order is learnt; returns the folder of the run."""
    make_program(folder)(
        f"--dataset_path={dataset}",
        f"--export_root={folder / 'run'}",
        "--num_epochs=25",
        "--mask_last_prob=0.5",
        "--head=tied",
    )
    return folder / "run"


@pytest.fixture
def loaded(dataset, trained) -> tuple[str, str]:
    """The flags of the dataset and of the model that learnt its order."""
    return f"--dataset_path={dataset}", f"--load_checkpoint_path={trained}"


def open_recipe(*flags: object) -> Bert4RecRecipe:
    """Returns the recipe of a test, with the weights of its checkpoint."""
    config = parse("--mode=test", "--num_threads=1", "--log_path=/dev/null", *flags)
    with join_run(config) as processes:
        return Run.start(Bert4RecRecipe.open, config, print, processes).recipe
