# SPDX-License-Identifier: Apache-2.0
"""The manifest of a dataset: contents, settings and a checksum per file.

It is written last. A folder without one is unfinished, or made by other software.
"""

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import xxhash

from recsys.data import spec_document
from recsys.data.errors import DatasetError
from recsys.files.durable import write_whole_file
from recsys.files.json_text import is_intact, signed

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
FORMAT = "recsys-recipes dataset"
FORMAT_VERSION = 1
CRITEO_KIND, CLICKS_KIND, SEQUENCES_KIND = "criteo", "clicks", "sequences"
"""Kinds of datasets: of Criteo's logs, of logs with a schema, and of ratings."""
LOG_KINDS = (CRITEO_KIND, CLICKS_KIND)
"""Kinds that `recsys-recipes prepare clicks` and `prepare criteo` make."""

Data = Literal["clicks", "ratings"]
"""What a model learns from."""
_NETWORKS: Mapping[Data, str] = {"clicks": "dlrm", "ratings": "bert4rec"}
_MAKERS: Mapping[Data, str] = {
    "clicks": "`recsys-recipes prepare clicks` or `prepare criteo`",
    "ratings": "`recsys-recipes prepare ratings` or `prepare amazon`",
}
"""Data -> model that is trained on them; commands that make a dataset of them."""

QUARANTINE_FILE = "quarantine.csv"
"""File of the raw rows that were left out, in input order."""

TITLES_FILE = "item_titles.parquet"
"""File of the titles of items. The manifest lists it, but the fingerprint leaves it out."""

_OPTIONAL = frozenset({"statistics", "history"})
"""Keys that are left out if they are empty."""
_UNFINISHED = MANIFEST_FILE + ".tmp"
_BLOCK_BYTES = 1 << 18


def file_checksum(path: Path, algorithm: Callable[[], Any] = xxhash.xxh3_128) -> str:
    """Returns the checksum of a file in hex, by default XXH3-128."""
    digest = algorithm()
    block = memoryview(bytearray(_BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    checksum: str = digest.hexdigest()
    return checksum


def fingerprint(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a checksum of the names and checksums of all files except titles.

    Equal datasets have equal fingerprints.
    """
    digest = xxhash.xxh3_128()
    for name in sorted(files.keys() - {TITLES_FILE}):
        digest.update(f"{name}\0{files[name]['xxh3_128']}\n".encode())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Contents of manifest.json.

    Attributes:
        kind: `criteo`, `clicks`, `synthetic` or `sequences`.
        engine: name and version of the engine.
        semantics: settings that determine the contents (thresholds, transforms, splits).
        source_files: name, bytes, rows and rejected rows of each input file.
        rows: split -> number of rows.
        positives: split -> number of clicks.
        rejected: reason -> number of rejected rows.
        cardinalities: rows of each embedding table.
        files: path relative to the dataset -> {"bytes", "xxh3_128"}.
        fingerprint: checksum of `files` without the titles of items.
        statistics: counts of a `sequences` dataset; empty, and not written, for other kinds.
        history: name, fingerprint and checksums of the source files of each earlier day of a
            growing dataset, in order; empty, and not written, for the first day and other datasets.
    """

    kind: str
    engine: dict[str, Any]
    semantics: dict[str, Any]
    source_files: list[dict[str, Any]]
    rows: dict[str, int]
    positives: dict[str, int]
    rejected: dict[str, int]
    cardinalities: list[int]
    files: dict[str, dict[str, Any]]
    fingerprint: str
    statistics: dict[str, Any] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def is_unlabelled(self) -> bool:
        """Whether the rows had no label, so that all labels are 0."""
        return self._of_rows.get("unlabelled") is True

    @property
    def _of_rows(self) -> Mapping[str, object]:
        """Settings that describe the rows, not rules taken from another dataset."""
        of_rows = self.semantics.get("applied", self.semantics)
        return of_rows if isinstance(of_rows, dict) else {}

    def split_ranges(self) -> dict[str, tuple[int, int]]:
        """Returns first row and end of each split, counted over all rows."""
        by_days = not any(
            self._of_rows.get(name) for name in ("split_fractions", "split_rows", "split_days")
        )
        test_first = by_days and self.semantics.get("last_day") == "test_validation"
        order = ("train", "test", "validation") if test_first else ("train", "validation", "test")
        ends = itertools.accumulate(self.rows.get(split, 0) for split in order)
        return dict(zip(order, itertools.pairwise([0, *ends]), strict=True))

    @staticmethod
    def describe_files(root: Path) -> dict[str, dict[str, Any]]:
        """Returns size and checksum of every file except the manifest."""
        return {
            path.relative_to(root).as_posix(): {
                "bytes": path.stat().st_size,
                "xxh3_128": file_checksum(path),
            }
            for path in _data_files(root)
        }

    def save(self, root: Path) -> None:
        """Writes manifest.json into `root` by a rename."""
        document = {"format": FORMAT, "format_version": FORMAT_VERSION} | dataclasses.asdict(self)
        for name in _OPTIONAL:
            if not document[name]:
                del document[name]
        write_whole_file(root / MANIFEST_FILE, signed(document))

    @classmethod
    def load(cls, root: Path) -> "Manifest":
        """Reads manifest.json of a dataset folder.

        Raises:
            DatasetError: the manifest is missing, damaged, or of a later format version.
        """
        path = root / MANIFEST_FILE
        if not path.is_file():
            raise DatasetError(
                f"{path} is missing: the dataset is not finished, or was made by other software; "
                "prepare it again to get one"
            )
        document = spec_document.read_json(path)
        found = document.get("format") if isinstance(document, dict) else None
        if str(found).startswith("recsys-recipes ") and found != FORMAT:
            raise DatasetError(
                f"{path}: is the manifest of a {found}, not of a dataset; name a folder that "
                "`recsys-recipes prepare` made",
                path=path,
            )
        if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
            raise DatasetError(
                f"{path}: not a manifest of this project (key format is not "
                f"{FORMAT!r}); remove it if other software made the dataset",
                path=path,
            )
        version = document.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise DatasetError(
                f"{path}: format version {version}, but this code reads {FORMAT_VERSION}; "
                "update the code or prepare the dataset again",
                path=path,
            )
        if "checksum" in document and not is_intact(path.read_text()):
            raise DatasetError(
                f"{path}: its checksum differs from its text, which was changed after the dataset "
                "was prepared; get the file again, or prepare the dataset again",
                path=path,
            )
        document.pop("checksum", None)
        names = {f.name for f in dataclasses.fields(cls)}
        wrong = sorted((names ^ document.keys()) - _OPTIONAL)
        if wrong:
            raise DatasetError(
                f"{path}: missing or unknown keys: {', '.join(map(str, wrong))}; prepare the "
                "dataset again",
                path=path,
            )
        for key, check in _CHECKS.items():
            if key in document and not check(document[key]):
                raise DatasetError(
                    f"{path}: {key} is malformed: {spec_document.show(document[key])}; prepare the "
                    "dataset again",
                    path=path,
                )
        return cls(**document)

    def require_data(self, root: Path, data: Data, setting: str | None = None) -> None:
        """Refuses a dataset of other data.

        Args:
            data: the data that the caller needs.
            setting: setting that names the dataset, for the message.

        Raises:
            DatasetError: names its data, and the command that takes them.
        """
        found: Data = "ratings" if self.kind == SEQUENCES_KIND else "clicks"
        if found == data:
            return
        named = str(root) if setting is None else f"`{setting}` {root}"
        raise DatasetError(
            f"{named}: is a dataset of {found} (kind {self.kind}), for `recsys-recipes train "
            f"{_NETWORKS[found]}`; name one of {data}, which {_MAKERS[data]} makes",
            setting=setting,
            path=root,
        )

    def check_newer(self, root: Path, files: Iterable[Path]) -> None:
        """Compares the checksums of files that are newer than the manifest.

        Files that the manifest does not list, or that are missing, are left to the readers.

        Raises:
            DatasetError: a file differs from the manifest in size or contents.
        """
        written = (root / MANIFEST_FILE).stat().st_mtime_ns
        for path in files:
            entry = self.files.get(Path(os.path.relpath(path, root)).as_posix())
            if entry is None or not path.is_file():
                continue
            is_same = path.stat().st_size == entry["bytes"]
            if is_same and path.stat().st_mtime_ns > written:
                logger.info("%s: newer than %s, comparing its checksum", path, MANIFEST_FILE)
                is_same = file_checksum(path) == entry["xxh3_128"]
            if not is_same:
                raise DatasetError(
                    f"{path}: was changed after {MANIFEST_FILE} was written, and no longer has the "
                    "size and checksum listed there; prepare or copy the dataset again, or remove "
                    f"{MANIFEST_FILE} if the change is intended",
                    path=path,
                )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_count(v) for v in value.values())


def _is_files(value: object) -> bool:
    return isinstance(value, dict) and all(
        spec_document.is_inside(name)
        and isinstance(entry, dict)
        and _is_count(entry.get("bytes"))
        and isinstance(entry.get("xxh3_128"), str)
        for name, entry in value.items()
    )


def _is_history(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(day, dict)
        and isinstance(day.get("name"), str)
        and isinstance(day.get("fingerprint"), str)
        and isinstance(day.get("sources"), list)
        for day in value
    )


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "kind": lambda v: isinstance(v, str),
    "engine": lambda v: isinstance(v, dict),
    "semantics": lambda v: isinstance(v, dict),
    "source_files": lambda v: isinstance(v, list) and all(isinstance(f, dict) for f in v),
    "rows": _is_counts,
    "positives": _is_counts,
    "rejected": _is_counts,
    "cardinalities": lambda v: isinstance(v, list) and all(_is_count(c) for c in v),
    "files": _is_files,
    "fingerprint": lambda v: isinstance(v, str),
    "statistics": lambda v: isinstance(v, dict),
    "history": _is_history,
}


def _data_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and path not in (root / MANIFEST_FILE, root / _UNFINISHED):
            yield path
