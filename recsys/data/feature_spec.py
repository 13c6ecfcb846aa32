# SPDX-License-Identifier: Apache-2.0
"""The feature spec: names, dtypes, cardinalities and channels of a click-log dataset.

It is written to two files: `feature_spec.yaml` (the later layout of NVIDIA's DLRM) and
`model_size.json` (the earlier one: name -> highest id). docs/dataset_format.md has the details.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from recsys.data import spec_document
from recsys.data.errors import DatasetError
from recsys.data.growing.days import find_days
from recsys.data.spec_document import SplitFiles
from recsys.files.durable import write_whole_file

NumericalDtype = Literal["float16", "float32"]

SPEC_FILE = "feature_spec.yaml"
MODEL_SIZE_FILE = "model_size.json"

FIRST_CATEGORICAL_COLUMN = 14
"""Raw columns are named _c0 (label), _c1.._c13 (numerical), _c14.. (categorical)."""


def index_dtype(cardinality: int) -> np.dtype[np.signedinteger]:
    """Returns the smallest signed dtype whose maximum exceeds the cardinality.

    Raises:
        DatasetError: the ids do not fit int32.
    """
    for dtype in (np.int8, np.int16, np.int32):
        if cardinality < np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise DatasetError(f"a cardinality of {cardinality} does not fit int32 ids; use hashing")


@dataclasses.dataclass(frozen=True, slots=True)
class CategoricalFeature:
    """A categorical feature with ids in [0, cardinality).

    Id 0 means missing, rare or unknown.
    """

    name: str
    cardinality: int

    @property
    def dtype(self) -> np.dtype[np.signedinteger]:
        """Storage dtype of the ids."""
        return index_dtype(self.cardinality)


@dataclasses.dataclass(frozen=True, slots=True)
class ListFeature(CategoricalFeature):
    """A feature with a list of ids in each row.

    Attributes:
        pooling: `mean` or `sum` of the vectors of a list.
        is_weighted: whether each id has a weight.
    """

    pooling: str
    is_weighted: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSpec:
    """The columns of a dataset, in canonical order.

    Attributes:
        categorical: features in table order.
        lists: list features; their tables follow the categorical ones.
        numerical: names of the numerical features, in the order of numerical.bin.
        label: name of the label.
        numerical_dtype: storage dtype of the numerical features in split binary.
        files: split -> files that the spec names for it; other files have the standard names.
    """

    categorical: tuple[CategoricalFeature, ...]
    numerical: tuple[str, ...]
    label: str = "label"
    numerical_dtype: NumericalDtype = "float16"
    lists: tuple[ListFeature, ...] = ()
    files: Mapping[str, SplitFiles] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Refuses repeated names, empty tables, and tables too large for int32 ids."""
        with_tables = (*self.categorical, *self.lists)
        names = [self.label, *self.numerical, *(f.name for f in with_tables)]
        if len(set(names)) != len(names):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise DatasetError(f"feature names must differ, used more than once: {twice}")
        for feature in with_tables:
            if feature.cardinality < 1:
                raise DatasetError(
                    f"feature {feature.name}: cardinality must be at least 1, "
                    f"got {feature.cardinality}"
                )
            if feature.cardinality >= np.iinfo(np.int32).max:
                raise DatasetError(
                    f"feature {feature.name}: a cardinality of {feature.cardinality} does not fit "
                    "int32 ids; prepare the dataset with a higher `frequency_limit` or a "
                    "`category_modulus`",
                    settings=("frequency_limit", "category_modulus"),
                )

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """Rows of each embedding table."""
        return tuple(f.cardinality for f in (*self.categorical, *self.lists))

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the features with tables, in table order."""
        return tuple(f.name for f in (*self.categorical, *self.lists))

    def with_features(self, features: Sequence[int]) -> "FeatureSpec":
        """Returns a spec with only the categorical features of the given numbers."""
        return dataclasses.replace(self, categorical=tuple(self.categorical[i] for i in features))

    @classmethod
    def criteo(
        cls,
        cardinalities: Sequence[int],
        num_numerical: int = 13,
        numerical_dtype: NumericalDtype = "float16",
        numerical_prefix: str = "num_",
    ) -> "FeatureSpec":
        """Builds a spec with this project's names: label, num_0.., cat_0..."""
        return cls(
            categorical=tuple(
                CategoricalFeature(f"cat_{i}", int(c)) for i, c in enumerate(cardinalities)
            ),
            numerical=tuple(f"{numerical_prefix}{i}" for i in range(num_numerical)),
            numerical_dtype=numerical_dtype,
        )

    def save(self, root: Path, *, wide: bool = False) -> None:
        """Writes feature_spec.yaml and model_size.json into `root`, each by a rename.

        Args:
            wide: declare the dtypes of wide split binary, not of narrow.
        """
        write_whole_file(root / SPEC_FILE, yaml.safe_dump(self._to_dict(wide), sort_keys=True))
        sizes = {
            f"_c{FIRST_CATEGORICAL_COLUMN + i}": f.cardinality - 1
            for i, f in enumerate((*self.categorical, *self.lists))
        }
        write_whole_file(root / MODEL_SIZE_FILE, json.dumps(sizes, indent=1) + "\n")

    def _to_dict(self, wide: bool) -> dict[str, Any]:
        features: dict[str, dict[str, Any]] = {self.label: {"dtype": "float32" if wide else "bool"}}
        numerical = "float32" if wide else self.numerical_dtype
        features |= {name: {"dtype": numerical} for name in self.numerical}
        features |= {
            f.name: {"dtype": "int32" if wide else f.dtype.name, "cardinality": f.cardinality}
            for f in self.categorical
        }
        features |= {
            f.name: {"dtype": f.dtype.name, "cardinality": f.cardinality}
            | {"pooling": f.pooling, "weighted": f.is_weighted}
            for f in self.lists
        }
        lists = {"categorical_list": [f.name for f in self.lists]} if self.lists else {}

        def chunk(split: str, names: list[str], file: str) -> dict[str, Any]:
            return {"type": "split_binary", "features": names, "files": [f"{split}/{file}"]}

        # NVIDIA's reader refuses mappings other than train and test; readers find validation/ by
        # its name.
        sources = {
            split: [
                *([chunk(split, list(self.numerical), "numerical.bin")] if self.numerical else []),
                chunk(split, [self.label], "label.bin"),
                *(chunk(split, [f.name], f"cat_{i}.bin") for i, f in enumerate(self.categorical)),
            ]
            for split in ("train", "test")
        }
        return {
            "feature_spec": features,
            "source_spec": sources,
            "channel_spec": {
                "categorical": [f.name for f in self.categorical],
                "numerical": list(self.numerical),
                "label": [self.label],
                **lists,
            },
            "metadata": {},
        }

    @classmethod
    def load(cls, root: Path, num_numerical: int = 13) -> "FeatureSpec":
        """Reads the spec of a dataset folder: feature_spec.yaml, else model_size.json.

        Args:
            num_numerical: number of numerical features, which model_size.json does not hold.

        Raises:
            DatasetError: neither file exists, or the one found is malformed.
        """
        if (root / SPEC_FILE).is_file():
            return cls.load_yaml(root / SPEC_FILE)
        if (root / MODEL_SIZE_FILE).is_file():
            return cls.load_model_size(root / MODEL_SIZE_FILE, num_numerical)
        if days := find_days(root):
            raise DatasetError(
                f"{root}: is a dataset that grows by a day; name one of its days, such as "
                f"{days[max(days)]}, or train on all of them with `grow`",
                setting="grow",
                path=root,
            )
        raise DatasetError(
            f"{root}: neither {SPEC_FILE} nor {MODEL_SIZE_FILE} exists; is this the folder of a "
            "prepared dataset? (recsys-recipes prepare clicks makes one from raw logs; for a "
            f"dataset of TorchRec, which has no spec, write {MODEL_SIZE_FILE}: "
            '{"_c14": highest id, ...}, or train by `num_embeddings_per_feature`)',
            setting="num_embeddings_per_feature",
        )

    @classmethod
    def load_model_size(cls, path: Path, num_numerical: int = 13) -> "FeatureSpec":
        """Reads the earlier spec: {"_c14": highest id, ...}, in table order.

        Raises:
            DatasetError: the file does not hold such a mapping.
        """
        sizes = spec_document.read_json(path)
        if not isinstance(sizes, dict) or not all(
            isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in sizes.values()
        ):
            raise DatasetError(
                f'{path}: expected {{"_c14": highest id, ...}} with integers >= 0, got '
                f"{spec_document.show(sizes)}",
                path=path,
            )
        try:
            return cls.criteo([v + 1 for v in sizes.values()], num_numerical)
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}", path=path) from error

    @classmethod
    def load_yaml(cls, path: Path) -> "FeatureSpec":
        """Reads feature_spec.yaml.

        Raises:
            DatasetError: the file is not YAML, lacks a key, or a channel names an unknown feature.
        """
        fields = spec_document.read_spec(path)
        fields["categorical"] = tuple(CategoricalFeature(*item) for item in fields["categorical"])
        fields["lists"] = tuple(ListFeature(*item) for item in fields["lists"])
        try:
            return cls(**fields)
        except DatasetError as error:
            raise DatasetError(
                f"{path}: {error} (docs/dataset_format.md describes it)", path=path
            ) from error
