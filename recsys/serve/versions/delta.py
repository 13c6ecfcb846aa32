# SPDX-License-Identifier: Apache-2.0
"""What changed from one version of a model to the next, as one file.

It holds the rows of the embedding tables that differ, all other tensors, and the other files that
differ. Applied to a copy of the earlier version, it gives the later one byte for byte, so a server
needs no other format, and a version made from a delta can itself be extended.
"""

import contextlib
import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import xxhash
from safetensors import SafetensorError, safe_open

from recsys.data.manifest import file_checksum
from recsys.errors import UserError
from recsys.files.durable import whole_file
from recsys.files.json_text import parse_json
from recsys.serve.manifest import DEPLOYMENT_FILE, WEIGHTS_FILE, Deployment
from recsys.serve.reconfigure import kept_settings
from recsys.serve.versions.policy import policy_of, served_versions, with_policy
from recsys.serve.versions.repository import CONFIGS, ModelRepository

FORMAT = "recsys-recipes delta 1"

_ROWS, _VALUES, _TENSOR, _FILE, _GROWN = "rows:", "values:", "tensor:", "file:", "grown:"
"""Prefixes of the tensors of a delta: numbers of changed rows, their values, whole tensors, whole
files, and what a file grew by."""
_TABLE_SIZES = "table_sizes"
_CHUNK_ROWS = 1 << 16

Arrays = dict[str, Any]


class DeltaError(UserError):
    """A delta cannot be made or applied."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grown:
    """Describes a kind of file that is extended rather than replaced.

    Attributes:
        difference: (earlier file, later file) -> name -> array; None if it is no extension.
        extend: (earlier file, name -> array, file to write) writes the later file.
    """

    difference: Callable[[Path, Path], Arrays | None]
    extend: Callable[[Path, Mapping[str, Any], Path], None]


def write_delta(
    earlier: Path, later: Path, path: Path, grown: Mapping[str, Grown] | None = None
) -> None:
    """Writes what changed between two versions.

    Args:
        earlier: version folder.
        later: version folder of the same model, with the same inputs and outputs.
        path: file to write.
        grown: file name -> how such a file grows.

    Raises:
        DeltaError: the versions are of other models, or take other requests.
    """
    before, after = Deployment.load(earlier), Deployment.load(later)
    for name in ("kind", "signature", "format", "precision"):
        if getattr(before, name) != getattr(after, name):
            raise DeltaError(
                f"{later}: its {name} differs from that of {earlier}; a delta needs versions of "
                "one kind: deploy the whole version",
                path=later,
            )
    arrays: Arrays = {}
    for file in _files(later):
        old = earlier / file.name
        if old.is_file() and file_checksum(old) == file_checksum(file):
            continue
        if file.name == WEIGHTS_FILE and old.is_file():
            arrays |= _changed_tensors(old, file, _sizes(before), _sizes(after))
            continue
        kind = (grown or {}).get(file.name)
        added = kind.difference(old, file) if kind is not None and old.is_file() else None
        if added is None:
            arrays[f"{_FILE}{file.name}"] = np.fromfile(file, np.uint8)
        else:
            arrays |= {f"{_GROWN}{file.name}:{name}": array for name, array in added.items()}
    described = {
        "format": FORMAT,
        "kind": after.kind,
        "earlier": _checksums(earlier),
        "later": _checksums(later),
        "earlier_sizes": _sizes(before),
        "later_sizes": _sizes(after),
    }
    metadata = {"delta": json.dumps(described)}
    with whole_file(path) as written:
        written.write(safetensors.numpy.save(arrays, metadata))


def read_delta(path: Path) -> dict[str, Any]:
    """Returns the description of a delta.

    Raises:
        DeltaError: the file is not a delta, or is damaged.
    """
    try:
        with safe_open(path, "numpy") as file:
            text = (file.metadata() or {}).get("delta", "{}")
        described: dict[str, Any] = parse_json(text)
    except (OSError, ValueError, SafetensorError) as error:
        raise DeltaError(f"{path}: cannot be read as a delta: {error}", path=path) from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise DeltaError(
            f"{path}: is not a delta of this release; `recsys-recipes deploy --delta` makes one",
            path=path,
        )
    if not _is_whole(described):
        raise _damaged(path, "its description is malformed")
    return described


def _is_whole(described: Mapping[str, Any]) -> bool:
    """Returns whether a description has what is read of it, and names only files of a version."""
    files = [described.get(key) for key in ("earlier", "later")]
    sizes = [described.get(f"{key}_sizes") for key in ("earlier", "later")]
    return all(
        isinstance(checksums, dict)
        and DEPLOYMENT_FILE in checksums
        and all(isinstance(checksum, str) for checksum in checksums.values())
        and all(Path(name).name == name != ".." for name in checksums)
        for checksums in files
    ) and all(
        isinstance(rows, list) and all(type(count) is int and count >= 0 for count in rows)
        for rows in sizes
    )


def _damaged(path: Path, reason: str) -> DeltaError:
    return DeltaError(f"{path}: {reason}: the delta is damaged; get it again", path=path)


def find_earlier(delta: Path, versions: Sequence[Path]) -> Path:
    """Returns the version that a delta extends, the latest if there are several.

    Raises:
        DeltaError: none of the versions is the one, or one of them is the later version.
    """
    described = read_delta(delta)
    earlier, later = described["earlier"], described["later"]
    for version in reversed(versions):
        found: dict[str, str] = {}
        with contextlib.suppress(OSError):
            described_by = file_checksum(version / DEPLOYMENT_FILE, xxhash.xxh64)
            if described_by in (earlier[DEPLOYMENT_FILE], later[DEPLOYMENT_FILE]):
                found = _checksums(version)
        if found == later:
            raise DeltaError(f"{delta}: was applied before, as {version}", path=delta)
        if found == earlier:
            return version
    raise DeltaError(
        f"{delta}: extends a version that is not in the repository; deploy that version first, or "
        "a whole one",
        path=delta,
    )


def apply_delta(
    delta: Path, earlier: Path, folder: Path, grown: Mapping[str, Grown] | None = None
) -> None:
    """Writes the later version into an empty folder, and compares its checksums.

    Args:
        delta: file of `write_delta`.
        earlier: version that it extends, see `find_earlier`.
        folder: folder to fill.
        grown: see `write_delta`.

    Raises:
        DeltaError: the delta is damaged, or a file differs from that of the later version.
    """
    described = read_delta(delta)
    later: dict[str, str] = described["later"]
    try:
        _write_files(delta, earlier, folder, described, grown or {})
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise _damaged(delta, f"its tensors do not fit the earlier version ({error})") from error
    except SafetensorError as error:
        raise _damaged(delta, str(error)) from error
    wrong = [name for name, checksum in _checksums(folder).items() if later[name] != checksum]
    if wrong:
        raise _damaged(delta, f"{wrong[0]} does not become that of the later version")


def _write_files(
    delta: Path,
    earlier: Path,
    folder: Path,
    described: Mapping[str, Any],
    grown: Mapping[str, Grown],
) -> None:
    """Writes the files of the later version; errors of damaged tensors are Python's and numpy's."""
    with safe_open(delta, "numpy") as file:
        names = list(file.keys())
        for name in described["later"]:
            added = {
                n.removeprefix(f"{_GROWN}{name}:"): file.get_tensor(n)
                for n in names
                if n.startswith(f"{_GROWN}{name}:")
            }
            if f"{_FILE}{name}" in names:
                file.get_tensor(f"{_FILE}{name}").tofile(folder / name)
            elif added:
                grown[name].extend(earlier / name, added, folder / name)
            elif name == WEIGHTS_FILE and any(n.startswith((_ROWS, _TENSOR)) for n in names):
                sizes = (described["earlier_sizes"], described["later_sizes"])
                _write_weights(file, names, earlier / name, folder / name, *sizes)
            else:
                shutil.copyfile(earlier / name, folder / name)


def add_version(
    delta: Path, repository: ModelRepository, name: str, grown: Mapping[str, Grown] | None = None
) -> tuple[Path, list[int]]:
    """Adds the version that a delta describes to a repository.

    As after a deployment, the version policy of the settings applies, also if the model was rolled
    back.

    Args:
        delta: file of `write_delta`.
        repository: repository with the earlier version.
        name: name of the model.
        grown: see `write_delta`.

    Returns:
        (its folder, the versions served now, ascending).

    Raises:
        UserError: the delta is damaged or extends another version, or the repository cannot be
            written; it is unchanged then.
    """
    with repository.staged_version(name, None) as staged:
        model = repository.root / name
        versions = [model / str(version) for version in repository.versions(name)]
        apply_delta(delta, find_earlier(delta, versions), staged.folder, grown)
        file = repository.config_file(name)
        was = policy_of(file.read_text())
        policy = kept_settings(file).get("version_policy", was)

        def text(config: Path) -> str:
            # Without a change, lines written by hand stay.
            text = config.read_text()
            return text if policy == was else with_policy(text, policy)

        others = {other.stem: text(other) for other in model.glob(f"{CONFIGS}/*.pbtxt")}
        served = served_versions(policy, [*repository.versions(name), staged.version])
        folder = staged.install(text(file), others, served=staged.version in served)
        return folder, served


def _sizes(deployment: Deployment) -> list[int]:
    return list(deployment.model.get(_TABLE_SIZES, []))


def _checksums(folder: Path) -> dict[str, str]:
    return {file.name: file_checksum(file, xxhash.xxh64) for file in _files(folder)}


def _files(folder: Path) -> list[Path]:
    """Returns the files of a version, without Python's cache of model.py."""
    return sorted(file for file in folder.iterdir() if file.is_file())


def _changed_tensors(
    old: Path, new: Path, old_sizes: Sequence[int], new_sizes: Sequence[int]
) -> Arrays:
    """Returns the changed rows of tensors with a row for each id, and the other tensors."""
    arrays: Arrays = {}
    with safe_open(old, "numpy") as before, safe_open(new, "numpy") as after:
        known = set(before.keys())
        for name in after.keys():  # noqa: SIM118  (not a dictionary)
            tensor, has_rows = after.get_slice(name), name in known
            if has_rows:
                shapes = (before.get_slice(name).get_shape(), tensor.get_shape())
                has_rows = _have_rows(shapes, (old_sizes, new_sizes))
            if not has_rows:
                arrays[f"{_TENSOR}{name}"] = after.get_tensor(name)
                continue
            rows, values = [], []
            for first, of_old, of_new in _parts(before, after, name, old_sizes, new_sizes):
                same = np.zeros(len(of_new), np.bool_)
                same[: len(of_old)] = _equal_rows(of_old, of_new[: len(of_old)])
                rows.append(first + np.flatnonzero(~same))
                values.append(of_new[~same])
            arrays[f"{_ROWS}{name}"] = np.concatenate(rows)
            arrays[f"{_VALUES}{name}"] = np.concatenate(values)
    return arrays


def _have_rows(shapes: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> bool:
    """Returns whether a tensor has a row for each id of all tables."""
    old, new = shapes
    return bool(old) and [old[0], new[0]] == [sum(each) for each in sizes] and old[1:] == new[1:]


def _parts(
    before: Any, after: Any, name: str, old_sizes: Sequence[int], new_sizes: Sequence[int]
) -> Iterator[tuple[int, Any, Any]]:
    """Yields pieces of a joint table: first row in the later one, earlier rows, later rows."""
    old, new = before.get_slice(name), after.get_slice(name)
    old_starts = itertools.accumulate(old_sizes, initial=0)
    new_starts = itertools.accumulate(new_sizes, initial=0)
    tables = zip(old_starts, new_starts, zip(old_sizes, new_sizes, strict=True), strict=False)
    for old_start, new_start, (old_rows, new_rows) in tables:
        for first in range(0, new_rows, _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS, new_rows)
            known = min(last, old_rows) - first
            of_new = new[new_start + first : new_start + last]
            begin = old_start + first
            yield new_start + first, old[begin : begin + known] if known > 0 else of_new[:0], of_new


def _equal_rows(one: Any, other: Any) -> Any:
    """Returns which rows have the same bits."""
    bits = f"u{one.dtype.itemsize}"
    equal = one.view(bits) == other.view(bits)
    return equal.all(axis=tuple(range(1, equal.ndim)))


def _write_weights(
    delta: Any,
    names: Sequence[str],
    old: Path,
    target: Path,
    old_sizes: Sequence[int],
    new_sizes: Sequence[int],
) -> None:
    """Writes the later weights from the earlier ones and the delta."""
    arrays: Arrays = {
        name.removeprefix(_TENSOR): delta.get_tensor(name)
        for name in names
        if name.startswith(_TENSOR)
    }
    with safe_open(old, "numpy") as before:
        for key in names:
            if not key.startswith(_ROWS):
                continue
            name = key.removeprefix(_ROWS)
            rows, values = delta.get_tensor(key), delta.get_tensor(f"{_VALUES}{name}")
            earlier = before.get_tensor(name)
            table = np.empty((sum(new_sizes), *earlier.shape[1:]), earlier.dtype)
            old_start = new_start = 0
            for old_rows, new_rows in zip(old_sizes, new_sizes, strict=True):
                part = earlier[old_start : old_start + old_rows]
                table[new_start : new_start + old_rows] = part
                old_start, new_start = old_start + old_rows, new_start + new_rows
            table[rows] = values
            arrays[name] = table
    safetensors.numpy.save_file(arrays, target)
    target.chmod(target.parent.stat().st_mode & 0o666)
