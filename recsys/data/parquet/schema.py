# SPDX-License-Identifier: Apache-2.0
"""Columns of parquet files, written by this project or by other software."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import SPEC_FILE, CategoricalFeature, FeatureSpec


class NoSpecError(DatasetError):
    """Files of other software do not say how large the embedding tables are."""


def column_names(spec: FeatureSpec) -> list[str]:
    """Returns the names of all columns: label, numerical, categorical."""
    return [spec.label, *spec.numerical, *(f.name for f in spec.categorical)]


def arrow_schema(spec: FeatureSpec) -> pa.Schema:
    """Returns a schema: int32 label and ids, float32 numbers; cardinalities as metadata."""
    fields = [pa.field(spec.label, pa.int32())]
    fields += [pa.field(n, pa.float32()) for n in spec.numerical]
    fields += [
        pa.field(f.name, pa.int32(), metadata={"cardinality": str(f.cardinality)})
        for f in spec.categorical
    ]
    return pa.schema([f.with_nullable(False) for f in fields])


def check_schema(
    path: Path, schema: pa.Schema, spec: FeatureSpec, *, by_types: bool = False
) -> None:
    """Refuses a file that lacks a column, or has a column of another type.

    Args:
        path: file, for messages.
        spec: columns that the file must have.
        by_types: the spec was derived from the types of the columns, because no file holds one.

    Raises:
        DatasetError: names the columns.
    """
    columns = column_names(spec)
    missing = [c for c in columns if schema.names.count(c) != 1]
    if missing:
        raise DatasetError(
            f"{path}: columns {missing} of the feature spec are missing or duplicate; the "
            f"file has {schema.names}; give the spec that belongs to it",
            path=path,
        )
    checks = {f.name: ("integers", pa.types.is_integer) for f in spec.categorical}
    checks |= dict.fromkeys(spec.numerical, ("floating point numbers", pa.types.is_floating))
    checks[spec.label] = ("numbers or booleans", _is_label_type)
    rule = f"; {label_rule(schema)}" if by_types else ""
    for name, (expected, check) in checks.items():
        kind = schema.field(name).type
        if not check(kind):
            raise DatasetError(
                f"{path}: column {name} must hold {expected}, got {kind}; cast it, or prepare "
                f"the dataset again{rule if name == spec.label else ''}",
                path=path,
                column=name,
            )


def _is_label_type(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def spec_folder(root: Path, path: Path) -> Path | None:
    """Returns the folder that holds the spec of a file, or None."""
    folders = (root, path.parent.parent, path.parent.parent.parent)
    return next((folder for folder in folders if (folder / SPEC_FILE).is_file()), None)


def label_rule(schema: pa.Schema) -> str:
    """Returns a sentence on which column is the label, and how to choose another."""
    return (
        'without a feature spec the label is the column named "label", else the first one: rename '
        f"the column of clicks (the file has {schema.names}), or give the feature spec"
    )


def describe_columns(schema: pa.Schema, spec: FeatureSpec) -> list[str]:
    """Returns lines that say how each column is used."""
    names = [feature.name for feature in spec.categorical]
    taken = set(column_names(spec))
    ignored = [f"{field.name} ({field.type})" for field in schema if field.name not in taken]
    lines = [
        f"Without a feature spec, by the types of the columns: label {spec.label}; "
        f"numerical (floating) {_listed(spec.numerical)}; categorical (integer ids) "
        f"{_listed(names)}"
    ]
    if ignored:
        lines.append(f"Columns that are ignored: {_listed(ignored)}")
    return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def spec_of(root: Path, path: Path, schema: pa.Schema) -> FeatureSpec:
    """Reads the spec from its file, or else from the metadata of our schema.

    Raises:
        NoSpecError: neither holds a spec.
        DatasetError: a cardinality is not a number.
    """
    folder = spec_folder(root, path)
    if folder is not None:
        return FeatureSpec.load(folder)
    categorical = [
        CategoricalFeature(field.name, _cardinality(path, field))
        for field in schema
        if field.metadata and b"cardinality" in field.metadata
    ]
    if not categorical and not plain_columns(schema)[1]:
        return spec_of_plain(path, schema, ())
    if not categorical:
        raise NoSpecError(
            f"{root}: no {SPEC_FILE}, and {path} holds no cardinalities; write {SPEC_FILE} into "
            "the folder (docs/dataset_format.md describes it), or train by "
            "`num_embeddings_per_feature`",
            setting="num_embeddings_per_feature",
        )
    return FeatureSpec(
        categorical=tuple(categorical),
        numerical=tuple(f.name for f in schema if pa.types.is_floating(f.type)),
        label=schema.names[0],
        numerical_dtype="float32",
    )


def spec_of_plain(path: Path, schema: pa.Schema, cardinalities: Sequence[int]) -> FeatureSpec:
    """Derives a spec from the schema of files of other software.

    Args:
        path: file with the schema, for messages.
        schema: integer columns are categorical, floating point ones numerical, and `label` (or
            else the first column) is the label.
        cardinalities: cardinality of each categorical column.

    Raises:
        DatasetError: the number of categorical columns differs.
    """
    label, categorical = plain_columns(schema)
    if len(categorical) != len(cardinalities):
        raise DatasetError(
            f"{path}: has {len(categorical)} integer columns besides {label} ({categorical}), but "
            f"{len(cardinalities)} table sizes are given (`num_embeddings_per_feature`); give one "
            f"for each, and cast columns that are numbers to float; {label_rule(schema)}",
            setting="num_embeddings_per_feature",
            path=path,
        )
    return FeatureSpec(
        categorical=tuple(map(CategoricalFeature, categorical, cardinalities)),
        numerical=tuple(f.name for f in schema if pa.types.is_floating(f.type) and f.name != label),
        label=label,
        numerical_dtype="float32",
    )


def plain_columns(schema: pa.Schema) -> tuple[str, list[str]]:
    """Returns (label, categorical columns) by the types of the columns."""
    label = "label" if "label" in schema.names else schema.names[0]
    return label, [f.name for f in schema if pa.types.is_integer(f.type) and f.name != label]


def _cardinality(path: Path, field: pa.Field) -> int:
    text = field.metadata[b"cardinality"]
    if not text.isdigit() or len(text) > 10:
        raise DatasetError(
            f"{path}: column {field.name}: metadata cardinality {text[:20]!r} is not a number; "
            "give the feature spec",
            path=path,
            column=field.name,
        )
    return int(text)
