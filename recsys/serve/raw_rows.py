# SPDX-License-Identifier: Apache-2.0
"""Serves a model from raw rows, as lines or fields."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from recsys.errors import BadRowError
from recsys.serve.client.requests import Arrays, BadRequestError, check_arrays
from recsys.serve.served import ServedModel
from recsys.serve.signature import (
    CATEGORICAL,
    CATEGORIES,
    INTEGERS,
    LINE,
    MISSING,
    NUMERICAL,
    Signature,
)

FEATURE_FILE = "features.bin"
"""File of a version with the rules and dictionaries of its dataset."""


class LineTransform(Protocol):
    """Transforms lines of a log to features."""

    def transform(
        self, lines: Sequence[bytes]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Returns ([B, M] numerical features, [B, F] ids).

        Raises:
            BadRowError: a line is no valid row.
        """


class ServedRawRows(ServedModel):
    """A deployed model that takes raw rows besides its own inputs.

    Attributes:
        model_class: class of the model; set by the subclass.
        open_transform: opens a feature file; set by the subclass.
    """

    model_class: ClassVar[type[ServedModel]]
    open_transform: ClassVar[Callable[[Path], LineTransform]]

    def __init__(self, model: ServedModel, transform: LineTransform) -> None:
        super().__init__(model.deployment)
        self._model, self._transform = model, transform
        by_name = {tensor.name: tensor for tensor in model.deployment.signature.inputs}
        self._forms = [
            Signature(
                inputs=tuple(
                    dataclasses.replace(by_name[name], optional=name == MISSING) for name in names
                ),
                outputs=(),
            )
            for names in ((LINE,), (INTEGERS, MISSING, CATEGORIES))
        ]

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder."""
        model = cls.model_class.open(folder, device)  # which checks all files of the version
        return cls(model, cls.open_transform(folder / FEATURE_FILE))

    def prepare(self, request: Arrays) -> Arrays:
        """Checks a request and transforms its raw rows, if any."""
        raw = request.keys() - {NUMERICAL, CATEGORICAL}
        if not raw:
            return self._model.prepare(request)
        if request.keys() != raw or (LINE in raw and len(raw) > 1):
            raise BadRequestError(
                f"got {', '.join(sorted(request))}: a request has {LINE!r}, or {INTEGERS!r} and "
                f"{CATEGORIES!r} (and {MISSING!r}), or {NUMERICAL!r} and {CATEGORICAL!r}"
            )
        lines_alone, fields = self._forms
        check_arrays(lines_alone if LINE in raw else fields, request)
        lines = _lines(request[LINE][:, 0]) if LINE in raw else _joined_fields(request)
        try:
            numerical, categorical = self._transform.transform(lines)
        except BadRowError as error:
            raise BadRequestError(f"row {error.row}: {error}") from error
        features: Arrays = {NUMERICAL: numerical, CATEGORICAL: categorical}
        self._model.check_values(features)
        return features

    def check_values(self, request: Arrays) -> None:
        """Refuses ids outside their tables."""
        self._model.check_values(request)

    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Runs the network once for all requests."""
        return self._model.predict(requests)


def served_from_raw_rows(
    model: type[ServedModel], transform: Callable[[Path], LineTransform]
) -> type[ServedRawRows]:
    """Returns the class that serves a model from raw rows."""
    members = {"model_class": model, "open_transform": staticmethod(transform)}
    return type("ServedRaw" + model.__name__.removeprefix("Served"), (ServedRawRows,), members)


def _lines(strings: npt.NDArray[np.object_]) -> list[bytes]:
    return [text if isinstance(text, bytes) else str(text).encode() for text in strings]


def _joined_fields(request: Arrays) -> list[bytes]:
    """Writes fields as lines, so that one grammar reads both."""
    integers = request[INTEGERS]
    missing = request.get(MISSING, np.zeros(integers.shape, bool))
    lines = []
    for row, (numbers, gaps) in enumerate(zip(integers.tolist(), missing.tolist(), strict=True)):
        categories = _lines(request[CATEGORIES][row])
        for i, category in enumerate(categories, 1):
            if b"\t" in category or b"\n" in category:
                raise BadRequestError(f"row {row}: field C{i}: holds a tab or a line feed")
        texts = (b"" if gap else b"%d" % number for number, gap in zip(numbers, gaps, strict=True))
        lines.append(b"\t".join([*texts, *categories]))
    return lines
