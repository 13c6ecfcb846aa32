# SPDX-License-Identifier: Apache-2.0
"""The columns of parquet files, written here or by other software."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import SPEC_FILE, CategoricalFeature, FeatureSpec


def column_names(spec: FeatureSpec) -> list[str]:
    """Returns the names of all columns: label, numerical, categorical."""
    return [spec.label, *spec.numerical, *(f.name for f in spec.categorical)]


def arrow_schema(spec: FeatureSpec) -> pa.Schema:
    """Returns int32 label and ids, float32 numerical; cardinalities as metadata."""
    fields = [pa.field(spec.label, pa.int32())]
    fields += [pa.field(n, pa.float32()) for n in spec.numerical]
    fields += [
        pa.field(f.name, pa.int32(), metadata={"cardinality": str(f.cardinality)})
        for f in spec.categorical
    ]
    return pa.schema([f.with_nullable(False) for f in fields])


def check_schema(path: Path, schema: pa.Schema, spec: FeatureSpec) -> None:
    """Refuses a file that lacks a column or has another type.

    Raises:
        DatasetError: names the columns.
    """
    columns = column_names(spec)
    missing = [c for c in columns if schema.names.count(c) != 1]
    if missing:
        raise DatasetError(
            f"{path}: columns {missing} of the feature spec are missing (or there twice); the "
            f"file has {schema.names}; give the spec that belongs to it"
        )
    checks = {f.name: ("integers", pa.types.is_integer) for f in spec.categorical}
    checks |= dict.fromkeys(spec.numerical, ("floating point numbers", pa.types.is_floating))
    checks[spec.label] = ("numbers or booleans", _is_label_type)
    for name, (expected, check) in checks.items():
        kind = schema.field(name).type
        if not check(kind):
            raise DatasetError(
                f"{path}: column {name} must hold {expected}, got {kind}; cast it, or prepare "
                "the dataset again"
            )


def _is_label_type(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def spec_of(root: Path, path: Path, schema: pa.Schema) -> FeatureSpec:
    """Reads the spec from its file, else from our schema.

    Raises:
        DatasetError: neither has a spec, or a cardinality is no number.
    """
    for base in (root, path.parent.parent, path.parent.parent.parent):
        if (base / SPEC_FILE).is_file():
            return FeatureSpec.load(base)
    categorical = [
        CategoricalFeature(field.name, _cardinality(path, field))
        for field in schema
        if field.metadata and b"cardinality" in field.metadata
    ]
    if not categorical:
        raise DatasetError(
            f"{root}: no {SPEC_FILE}, and {path} carries no cardinalities; give the feature spec, "
            "or `num_embeddings_per_feature`"
        )
    return FeatureSpec(
        categorical=tuple(categorical),
        numerical=tuple(f.name for f in schema if pa.types.is_floating(f.type)),
        label=schema.names[0],
        numerical_dtype="float32",
    )


def spec_of_plain(path: Path, schema: pa.Schema, cardinalities: Sequence[int]) -> FeatureSpec:
    """Derives a spec from the schema of other software.

    Args:
        path: file with the schema, for messages.
        schema: its integer columns are categorical, its floating ones numerical, and `label`
            (else the first column) is the label.
        cardinalities: cardinality of each categorical column.

    Raises:
        DatasetError: there are more or fewer categorical columns.
    """
    label = "label" if "label" in schema.names else schema.names[0]
    columns = [field for field in schema if field.name != label]
    categorical = [field.name for field in columns if pa.types.is_integer(field.type)]
    if len(categorical) != len(cardinalities):
        raise DatasetError(
            f"{path}: has {len(categorical)} integer columns besides {label} ({categorical}), but "
            f"{len(cardinalities)} table sizes are given (`num_embeddings_per_feature`); give one "
            "for each"
        )
    return FeatureSpec(
        categorical=tuple(map(CategoricalFeature, categorical, cardinalities)),
        numerical=tuple(f.name for f in columns if pa.types.is_floating(f.type)),
        label=label,
        numerical_dtype="float32",
    )


def _cardinality(path: Path, field: pa.Field) -> int:
    text = field.metadata[b"cardinality"]
    if not text.isdigit() or len(text) > 10:
        raise DatasetError(
            f"{path}: column {field.name}: metadata cardinality {text[:20]!r} is not a number; "
            "give the feature spec"
        )
    return int(text)
