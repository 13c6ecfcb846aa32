# SPDX-License-Identifier: Apache-2.0
"""Lists of a staged dataset.

Where a list begins depends on all rows before it. So each unit writes the lists of its rows to
separate files; once all units are done, the files are joined in row order.
"""

import contextlib
import itertools
import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.clicks.rules import Split
from preproc.files.errors import PreprocError
from preproc.files.input_file import open_fd
from preproc.files.workspace import atomic_file, attempt_folder
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import OFFSET, WEIGHT, ListFiles
from recsys.data.positioned_io import map_array

_DTYPES = {"ids": np.dtype("<i4"), "lengths": np.dtype("<u4"), "weights": WEIGHT}
"""Ids of all lists, the lengths of the lists, and weights if the lists have some."""

_CHUNK_ROWS, _CHUNK_ELEMENTS = 1 << 16, 1 << 20

ListFds = tuple[int, int, int]


def _path(folder: Path, unit: str, split: Split, number: int, kind: str) -> Path:
    return folder / f"{unit}_{split}_{number}.{kind}"


@contextlib.contextmanager
def unit_files(
    folder: Path, unit: str, splits: Iterable[Split], spec: FeatureSpec
) -> Iterator[dict[Split, list[ListFds]]]:
    """Opens files for a unit's lists, and syncs them at the end.

    Yields:
        For each split, the file descriptors of each feature: ids, lengths, and weights or -1.
    """
    if not spec.lists:
        yield {}
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # each thread opens three files per list and split
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with attempt_folder(folder) as private:
        paths, all_fds = list[Path](), list[int]()
        with contextlib.ExitStack() as closing:
            opened: dict[Split, list[ListFds]] = {}
            for split in splits:
                opened[split] = []
                for number, feature in enumerate(spec.lists):
                    fds = []
                    for kind in _DTYPES:
                        if kind == "weights" and not feature.is_weighted:
                            fds.append(-1)
                            continue
                        paths.append(_path(private, unit, split, number, kind))
                        opening = open_fd(paths[-1], os.O_WRONLY | os.O_CREAT)
                        fds.append(closing.enter_context(opening))
                        all_fds.append(fds[-1])
                    opened[split].append((fds[0], fds[1], fds[2]))
            yield opened
            for fd in all_fds:
                os.fsync(fd)
        for path in paths:
            path.replace(folder / path.name)


def join_lists(
    folder: Path,
    units: Sequence[str],
    rows: Mapping[Split, int],
    spec: FeatureSpec,
    columns: Path,
) -> None:
    """Writes the lists of all splits from the units' files.

    Args:
        folder: holds the units' files.
        units: names of the units in row order.
        rows: rows of each split.
        columns: holds the folders of the splits.

    Raises:
        PreprocError: files of a unit are missing.
    """
    for split, (number, feature) in itertools.product(rows, enumerate(spec.lists)):

        def arrays(kind: str, split: Split = split, number: int = number) -> Iterator[Any]:
            for unit in units:
                path = _path(folder, unit, split, number, kind)
                if path.exists() and path.stat().st_size:
                    values = map_array(path, _DTYPES[kind])
                    for start in range(0, len(values), _CHUNK_ELEMENTS):
                        yield values[start : start + _CHUNK_ELEMENTS]

        files = ListFiles.of(columns / split, len(spec.categorical) + number)
        _write(files.ids, (ids.astype(feature.dtype.newbyteorder("<")) for ids in arrays("ids")))
        _write(files.offsets, _offsets(arrays("lengths")))
        if files.offsets.stat().st_size != (rows[split] + 1) * OFFSET.itemsize:
            raise PreprocError(
                f"{folder}: lists of some rows are missing; remove the work folder and start again"
            )
        if feature.is_weighted:
            _write(files.weights, arrays("weights"))


def _offsets(lengths: Iterator[npt.NDArray[Any]]) -> Iterator[npt.NDArray[np.int64]]:
    end = 0
    yield np.zeros(1, OFFSET)
    for of_unit in lengths:
        ends = end + np.cumsum(of_unit, dtype=OFFSET)
        end = int(ends[-1])
        yield ends


def _write(path: Path, arrays: Iterator[npt.NDArray[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        for values in arrays:
            file.write(np.ascontiguousarray(values).data)


def take_lists(source: Path, target: Path, spec: FeatureSpec, rows: npt.NDArray[np.uint64]) -> None:
    """Writes the lists of a split in another order.

    Args:
        source: folder of the split.
        target: folder of its copy.
        rows: [N] for each row of the copy, its row in the source.
    """
    for number, feature in enumerate(spec.lists):
        table = len(spec.categorical) + number
        files, copies = ListFiles.of(source, table), ListFiles.of(target, table)
        offsets = map_array(files.offsets, OFFSET)
        _write(copies.offsets, _offsets(end - begin for begin, end in _ranges(offsets, rows)))
        kinds: list[tuple[Path, Path, np.dtype[Any]]] = [
            (files.ids, copies.ids, feature.dtype.newbyteorder("<"))
        ]
        if feature.is_weighted:
            kinds.append((files.weights, copies.weights, WEIGHT))
        for path, copy, dtype in kinds:
            values = map_array(path, dtype) if path.stat().st_size else np.empty(0, dtype)
            _write(copy, _taken(values, offsets, rows))


def _ranges(
    offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.uint64]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yields the begins and ends of the rows' lists, some rows at a time."""
    for start in range(0, len(rows), _CHUNK_ROWS):
        chosen = rows[start : start + _CHUNK_ROWS]
        yield offsets[chosen], offsets[chosen + np.uint64(1)]


def _taken(
    values: npt.NDArray[Any], offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.uint64]
) -> Iterator[npt.NDArray[Any]]:
    for begin, end in _ranges(offsets, rows):
        ends = np.cumsum(end - begin)
        cuts = np.searchsorted(ends, np.arange(_CHUNK_ELEMENTS, ends[-1], _CHUNK_ELEMENTS))
        for chosen in np.split(np.arange(len(begin)), cuts):
            first, lengths = begin[chosen], (end - begin)[chosen]
            before = np.cumsum(lengths) - lengths
            yield values[np.repeat(first - before, lengths) + np.arange(lengths.sum())]
