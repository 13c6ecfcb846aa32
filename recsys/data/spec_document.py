# SPDX-License-Identifier: Apache-2.0
"""Strict readers of feature_spec.yaml and model_size.json.

Messages show values of a file through `show`. So even a hostile file (deep nesting, multiplying
YAML aliases) prints one short line.
"""

import dataclasses
import re
import reprlib
from pathlib import Path
from typing import Any

from recsys.data.errors import DatasetError
from recsys.files import strict_yaml
from recsys.files.json_text import parse_json

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_NO_NAME = re.compile("[\0\ud800-\udfff]")
"""Characters that no name of a file has."""

ID_DTYPES = ("int8", "int16", "int32")


def show(value: object) -> str:
    """Returns a shortened representation of a value."""
    return _SHORT.repr(value)


@dataclasses.dataclass(frozen=True, slots=True)
class SplitFiles:
    """Column files of one split of split binary, relative to the dataset."""

    label: str
    numerical: str
    categorical: tuple[str, ...]

    def moved(self, old: str, new: str) -> "SplitFiles | None":
        """Returns the files in folder `new` instead of `old`; None if one is elsewhere."""
        names = [self.label, *([self.numerical] if self.numerical else []), *self.categorical]
        if any(Path(n).parts[:1] != (old,) for n in names):
            return None

        def move(name: str) -> str:
            return Path(new, *Path(name).parts[1:]).as_posix() if name else ""

        return SplitFiles(
            move(self.label), move(self.numerical), tuple(map(move, self.categorical))
        )


def read_json(path: Path) -> object:
    """Reads a JSON file.

    Raises:
        DatasetError: the file is not readable, or a key is duplicate.
    """
    try:
        return parse_json(path.read_text(), object_pairs_hook=_unique_keys)
    except (ValueError, OSError) as error:
        raise DatasetError(
            f"{path}: not readable as JSON: {error}; restore the file, or prepare the dataset "
            "again",
            path=path,
        ) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [k for k, _ in pairs]
        twice = next(k for k in keys if keys.count(k) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return unique


def read_spec(path: Path) -> dict[str, Any]:
    """Reads feature_spec.yaml.

    Returns:
        The fields of a `FeatureSpec`, with features as tuples: (name, cardinality), and for lists
        (name, cardinality, pooling, whether there are weights).

    Raises:
        DatasetError: the file is not YAML, lacks a key, or a channel names an unknown feature.
    """
    document = strict_yaml.load(path, DatasetError).values
    try:
        features, channels = _mapping(document, "feature_spec"), _mapping(document, "channel_spec")
        label = _channel_names(channels, "label", features)
        if len(label) != 1:
            raise DatasetError(f"channel_spec.label must name one feature, got {label}")
        numerical = _channel_names(channels, "numerical", features)
        dtype = _numerical_dtype(features, numerical)
        categorical = _channel_names(channels, "categorical", features)
        has_lists = "categorical_list" in channels
        lists = _channel_names(channels, "categorical_list", features) if has_lists else []
        sources = _mapping(document, "source_spec") if "source_spec" in document else {}
        return {
            "label": label[0],
            "numerical": tuple(numerical),
            "numerical_dtype": dtype,
            "categorical": [(name, _cardinality(features, name)) for name in categorical],
            "lists": [_list_feature(features, name) for name in lists],
            "files": {
                str(split): _split_files(str(split), chunks, label[0], numerical, categorical)
                for split, chunks in sources.items()
            },
        }
    except DatasetError as error:
        raise DatasetError(
            f"{path}: {error} (docs/dataset_format.md describes it)", path=path
        ) from error


def _mapping(document: object, key: str) -> dict[str, Any]:
    """Returns the mapping under a key of a document."""
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, dict):
        raise DatasetError(f"key {key!r} must be a mapping, got {show(value)}")
    return value


def _channel_names(channels: dict[str, Any], channel: str, features: dict[str, Any]) -> list[str]:
    """Returns the features of a channel, in order."""
    names = channels.get(channel)
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise DatasetError(f"channel_spec.{channel} must be a list of names, got {show(names)}")
    unknown = [n for n in names if n not in features]
    if unknown:
        raise DatasetError(
            f"channel_spec.{channel} names unknown features: {show(unknown)}; describe "
            "them under feature_spec"
        )
    return names


def _cardinality(features: dict[str, Any], name: str) -> int:
    """Returns a feature's cardinality, after checking its dtype."""
    feature = _mapping(features, name)
    value = feature.get("cardinality")
    if not isinstance(value, int) or isinstance(value, bool):
        raise DatasetError(
            f"feature_spec.{name}.cardinality must be an integer, got {show(value)} "
            "(`auto` is resolved when the dataset is prepared)"
        )
    if feature.get("dtype", "int32") not in ID_DTYPES:
        raise DatasetError(
            f"feature_spec.{name}.dtype must be one of {', '.join(ID_DTYPES)}, got "
            f"{show(feature['dtype'])}"
        )
    return value


def _list_feature(features: dict[str, Any], name: str) -> tuple[str, int, str, bool]:
    """Returns name, cardinality, pooling, and whether there are weights."""
    feature, rows = _mapping(features, name), _cardinality(features, name)
    pooling, is_weighted = feature.get("pooling"), feature.get("weighted")
    if pooling not in ("mean", "sum") or not isinstance(is_weighted, bool):
        raise DatasetError(
            f"feature_spec.{name}: `pooling` must be mean or sum and `weighted` true or false, got "
            f"{show(pooling)}, {show(is_weighted)}"
        )
    return name, rows, pooling, is_weighted


def _numerical_dtype(features: dict[str, Any], names: list[str]) -> str:
    """Returns the common dtype of the numerical features."""
    dtypes = sorted({show(_mapping(features, n).get("dtype", "float16")) for n in names})
    if len(dtypes) > 1:
        raise DatasetError(f"numerical features must share one dtype, got {', '.join(dtypes)}")
    dtype = dtypes[0].strip("'") if dtypes else "float16"
    if dtype not in ("float16", "float32"):
        raise DatasetError(f"numerical dtype must be float16 or float32, got {dtype}")
    return dtype


def declared_dtypes(path: Path) -> dict[str, str]:
    """Reads the dtypes that feature_spec.yaml declares, by feature.

    Raises:
        DatasetError: the file is malformed.
    """
    features = _mapping(strict_yaml.load(path, DatasetError).values, "feature_spec")
    dtypes = {str(n): f.get("dtype") for n, f in features.items() if isinstance(f, dict)}
    return {name: dtype for name, dtype in dtypes.items() if isinstance(dtype, str)}


def _split_files(
    split: str, chunks: object, label: str, numerical: list[str], categorical: list[str]
) -> SplitFiles:
    """Reads the files of a split from source_spec."""
    where = f"source_spec.{split}"
    file_of: dict[tuple[str, ...], str] = {}
    for chunk in chunks if isinstance(chunks, list) else [chunks]:
        features, file = _chunk(where, chunk)
        if features in file_of or file in file_of.values():
            raise DatasetError(f"{where}: {file} or its features occur in two chunks")
        file_of[features] = file
    needed = [(label,), *((n,) for n in categorical), *([tuple(numerical)] if numerical else [])]
    missing = [names for names in needed if names not in file_of]
    if missing:
        raise DatasetError(
            f"{where}: no chunk holds exactly the features {show(list(missing[0]))}; the "
            "label and each categorical feature need a chunk of their own, the numerical ones "
            "share one, in the order of channel_spec"
        )
    return SplitFiles(
        label=file_of[(label,)],
        numerical=file_of.get(tuple(numerical), ""),
        categorical=tuple(file_of[(n,)] for n in categorical),
    )


def _chunk(where: str, chunk: object) -> tuple[tuple[str, ...], str]:
    if not isinstance(chunk, dict) or not {"type", "features", "files"} <= chunk.keys():
        raise DatasetError(f"{where}: each chunk needs type, features and files, got {show(chunk)}")
    if chunk["type"] != "split_binary":
        raise DatasetError(f"{where}: type must be split_binary, got {show(chunk['type'])}")
    files, features = chunk["files"], chunk["features"]
    if not isinstance(files, list) or len(files) != 1 or not isinstance(features, list):
        raise DatasetError(f"{where}: each chunk has a list of features and exactly one file")
    file = files[0]
    if not isinstance(file, str) or not is_inside(file):
        raise DatasetError(f"{where}: {show(file)} must be a path inside the dataset folder")
    return tuple(map(str, features)), file


def is_inside(name: str) -> bool:
    """Returns whether a relative path stays below its folder."""
    path = Path(name)
    is_below = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return is_below and not _NO_NAME.search(name)
