# SPDX-License-Identifier: Apache-2.0
"""Exports a DLRM that takes raw rows."""

from pathlib import Path
from typing import ClassVar

from dlrm.serve.export import DlrmExport
from dlrm.serve.served import ServedDlrm
from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.serving.feature_file import NumberType, write_feature_file
from preproc.clicks.serving.line_transform import LineTransform
from recsys.errors import UserError
from recsys.serve.raw_rows import FEATURE_FILE, served_from_raw_rows
from recsys.serve.served import ServedModel
from recsys.serve.signature import Signature, with_raw_rows
from recsys.settings import joined

_NUMBERS: dict[str, NumberType] = {"split": "float16", "parquet": "float32"}
"""Types of datasets that a model of --raw is trained on -> the type of their numbers."""


class RawDlrmExport(DlrmExport):
    """A trained DLRM that takes raw rows of its dataset.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or of another model.
        UserError: the dataset is not named, or its type has other numbers.
    """

    served_class: ClassVar[type[ServedModel]] = served_from_raw_rows(ServedDlrm, LineTransform)
    model_file: ClassVar[Path] = Path(__file__).with_name("raw_dlrm_model.py")

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
