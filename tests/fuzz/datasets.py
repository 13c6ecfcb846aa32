# SPDX-License-Identifier: Apache-2.0
"""Damaged datasets of every format."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from preproc.clicks.applied import dictionaries_of_dataset
from preproc.clicks.job import semantics_of_schema
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.known_texts import KnownTexts
from preproc.files.errors import PreprocError
from preproc.ratings.job import MOVIELENS, RatingsJob
from preproc.ratings.pipeline import prepare as prepare_ratings
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.formats.records import BinaryRecordsReader
from recsys.data.manifest import MANIFEST_FILE, Manifest
from recsys.data.parquet import ParquetReader
from recsys.data.row_reader import RowReader
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map
from recsys.data.sequences.titles import read_titles
from recsys.data.split_binary import SplitBinaryReader
from recsys.data.verify.run import verify
from recsys.errors import UserError
from recsys.files.json_text import is_intact
from tests.fuzz.folders import Folder, repair_manifest
from tests.fuzz.target import Target
from tests.preproc.clicks import schema_log
from tests.preproc.clicks.rows import run
from tests.recsys.data.datasets import write_dataset


def _each(*readers: Callable[[], object]) -> None:
    """Calls functions, also those after one that refuses."""
    for read in readers:
        with contextlib.suppress(DatasetError, PreprocError):
            read()


def _rows(reader: RowReader) -> None:
    try:
        for block in reader.blocks():
            reader.read(block.start, block.stop)
            reader.read_lists(block.start, block.stop)
    finally:
        reader.close()


def _write_clicks(root: Path) -> None:
    write_dataset(root, rows={"train": 24, "test": 6})


def _read_clicks(root: Path) -> None:
    verify(root)
    verify(root, quick=True)
    _each(
        lambda: FeatureSpec.load(root),
        lambda: FeatureSpec.load_model_size(root / "model_size.json"),
        lambda: Manifest.load(root),
        lambda: _rows(SplitBinaryReader(root, "train", FeatureSpec.load(root))),
        lambda: _rows(BinaryRecordsReader(root, "train")),
        lambda: _rows(ParquetReader(root, "train")),
        lambda: list(ParquetReader(root, "test").stream()),
    )


def _write_prepared(root: Path) -> None:
    folder = root.with_name(root.name + "_made")
    folder.mkdir()
    # YAML takes most of the time of a case, so there is one column of each kind.
    kept = ("tags", "rate", "item", "brand", "user", "when")
    columns = [column for column in schema_log.SCHEMA["columns"] if column["name"] in kept]
    schema = schema_log.write_schema(folder, columns=columns)
    log = folder / "log.csv"
    log.write_bytes(schema_log.text_of(schema_log.rows(80, seed=1), ["bought", *kept]))
    run(log, folder / "data", "reference", schema=schema, semantics=semantics_of_schema(schema, {}))
    root.rmdir()
    (folder / "data").rename(root)


def _read_prepared(root: Path) -> None:
    verify(root)
    _each(lambda: _rows(SplitBinaryReader(root, "train", FeatureSpec.load(root))))
    with contextlib.suppress(DatasetError):
        Manifest.load(root)
        if not is_intact((root / MANIFEST_FILE).read_text()):
            return  # rules without a checksum are those of earlier releases, and trusted
    _each(
        lambda: dictionaries_of_dataset(root).load(),
        lambda: KnownTexts(root),
        lambda: write_feature_file(root, root.parent / "features.bin", "float16"),
    )


def _write_sequences(root: Path) -> None:
    folder = root.with_name(root.name + "_made")
    folder.mkdir()
    (folder / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n"
        + "".join(f"{n % 7},{n * n % 11},5,{n // 3}\n" for n in range(90))
    )
    job = RatingsJob(
        source=MOVIELENS, input=folder / "ratings.csv", output=folder / "data", min_item_count=3
    )
    prepare_ratings(job)
    root.rmdir()
    (folder / "data").rename(root)


def _read_sequences(root: Path) -> None:
    verify(root)
    _each(
        lambda: read_sequences(root),
        lambda: read_user_map(root),
        lambda: read_item_map(root),
        lambda: read_titles(root, 11),
    )


_EXPECTED = (UserError,)
CLICKS = Folder(_write_clicks, _read_clicks, repair_manifest, _EXPECTED)
PREPARED = Folder(_write_prepared, _read_prepared, repair_manifest, _EXPECTED)
SEQUENCES = Folder(_write_sequences, _read_sequences, repair_manifest, _EXPECTED)


def click_datasets(folder: Path, data: bytes) -> None:
    """Reads split binary, parquet and records."""
    CLICKS.check(folder, data)


def prepared_datasets(folder: Path, data: bytes) -> None:
    """Reads a dataset of a schema, its lists, dictionaries and statistics."""
    PREPARED.check(folder, data)


def sequence_datasets(folder: Path, data: bytes) -> None:
    """Reads sequences and the maps of users and items."""
    SEQUENCES.check(folder, data)


TARGETS = tuple(map(Target, (click_datasets, prepared_datasets, sequence_datasets)))
