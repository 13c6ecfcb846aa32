# SPDX-License-Identifier: Apache-2.0
"""A small prepared dataset with an order that can be learnt, and runs of the real program."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from absl import flags

from recsys.data.manifest import Manifest, fingerprint
from recsys.data.sequences import RawIds, Sequences, write_sequences

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
    files = Manifest.describe_files(root)
    Manifest(
        kind="sequences",
        engine={},
        semantics={
            "source": "movielens",
            "min_rating": 0.0,
            "min_user_count": 3,
            "min_item_count": 0,
            "split": "leave_one_out",
        },
        source_files=[],
        rows={},
        positives={},
        rejected={},
        cardinalities=[NUM_ITEMS + 1],
        files=files,
        fingerprint=fingerprint(files),
    ).save(root)


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


class Program:
    """Runs bert4rec.scripts.main in this process, as its command line would."""

    def __init__(self, folder: Path) -> None:
        self.log_path = folder / "log.json"
        self.exit_code = 0

    def __call__(
        self, *arguments: str, model: tuple[str, ...] = SMALL_MODEL, stdin: bytes | None = None
    ) -> list[dict]:
        """Returns the records of the run's log."""
        from bert4rec.scripts import main
        from bert4rec.scripts.flags import define_flags
        from recsys.program import run_guarded

        values = flags.FlagValues()
        define_flags(values)
        argv = ["main", f"--log_path={self.log_path}", "--num_threads=1", *model, *arguments]
        assert values(argv)[1:] == []
        self.exit_code = 0
        with contextlib.ExitStack() as stack:
            if stdin is not None:
                monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
                monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            try:
                run_guarded(main.run, values)
            except SystemExit as stop:
                self.exit_code = stop.code
        if not self.log_path.is_file():
            return []
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line.removeprefix("DLLL ")) for line in lines]


@pytest.fixture
def program(tmp_path) -> Program:
    """The program, with its log in the test's folder."""
    return Program(tmp_path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, dataset) -> Path:
    """The checkpoints of a run that learnt the order."""
    folder = tmp_path_factory.mktemp("trained")
    program = Program(folder)
    program(
        f"--dataset_path={dataset}",
        f"--export_root={folder / 'run'}",
        "--num_epochs=25",
        "--mask_last_prob=0.5",
        "--head=tied",
    )
    assert program.exit_code == 0
    return folder / "run"
