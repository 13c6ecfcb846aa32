# SPDX-License-Identifier: Apache-2.0
"""Exports models of clicks that take raw rows."""

from pathlib import Path
from typing import ClassVar

from dlrm.serve.export import ClicksExport, DlrmExport
from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.serving.feature_file import NumberType, write_feature_file
from recsys.errors import UserError
from recsys.serve.manifest import FEATURE_FILE
from recsys.serve.served import ServedModel
from recsys.serve.signature import Signature, with_raw_rows
from recsys.settings import joined
from recsys_recipes.blending.clicks.serving import ClicksBlendExport
from recsys_recipes.logistic.serving import LogisticExport
from recsys_recipes.serving.raw_clicks import ServedRawClicks

_NUMBERS: dict[str, NumberType] = {"split": "float16", "parquet": "float32"}
"""Type of dataset that a model deployed with --raw may be trained on -> type of its numbers."""


class RawExport(ClicksExport):
    """A trained model that takes raw rows of its dataset; a subclass names the model.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or of another model.
        UserError: the dataset is not given, or its type is not supported.
    """

    served_class: ClassVar[type[ServedModel]] = ServedRawClicks
    model_file: ClassVar[Path] = Path(__file__).with_name("raw_model.py")

    def __init__(self, checkpoint: Path, dataset: str | None, dataset_type: str) -> None:
        super().__init__(checkpoint)
        if dataset is None:
            raise UserError(
                "`raw` needs `dataset`, the dataset of the training", settings=("raw", "dataset")
            )
        if dataset_type not in _NUMBERS:
            raise UserError(
                f"`raw` needs `dataset_type` {joined(_NUMBERS)}", settings=("raw", "dataset_type")
            )
        self._dataset = Path(dataset)
        self._numbers = _NUMBERS[dataset_type]

    def signature(self, *, fixed_shapes: bool) -> Signature:
        """Returns the network's tensors and those of raw rows."""
        signature = super().signature(fixed_shapes=fixed_shapes)
        row = semantics_of_dataset(self._dataset, {}).line_format
        return with_raw_rows(
            signature, row.names, row.features, row.delimiter.decode(), row.quote.decode()
        )

    def write_files(self, folder: Path) -> None:
        """Writes the rules and dictionaries to a version folder."""
        write_feature_file(self._dataset, folder / FEATURE_FILE, self._numbers)


class RawDlrmExport(RawExport, DlrmExport):
    """A trained DLRM that takes raw rows."""


class RawLogisticExport(RawExport, LogisticExport):
    """A logistic regression that takes raw rows."""


class RawClicksBlendExport(RawExport, ClicksBlendExport):
    """A blend of clicks that takes raw rows."""
