# SPDX-License-Identifier: Apache-2.0
"""Compares a deployed version with its checkpoint."""

import dataclasses

from recsys.errors import UserError
from recsys.serve.checkpoint_export import CheckpointExport
from recsys.serve.deployment import Quantize
from recsys.serve.served import ServedModel


class ParityError(UserError):
    """A version differs from its checkpoint; it was not deployed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parity:
    """The result of a comparison.

    Attributes:
        rows: number of compared rows.
        largest: largest difference of an output, relative to the true value where that is above 1.
        tolerance: largest difference allowed.
    """

    rows: int
    largest: float
    tolerance: float

    def __str__(self) -> str:
        return (
            f"largest difference to the checkpoint {self.largest:.2g} over {self.rows} rows "
            f"(tolerance {self.tolerance:g})"
        )


def default_tolerance(quantize: Quantize, precision: str) -> float:
    """Returns the largest difference that rounding may cause.

    Other kernels and batch sizes add in another order. Weights in 8 bits have an error of half a
    step, 0.4 per cent of the largest value of a row; float16 keeps 11 bits.
    """
    if quantize == "int8":
        return 0.1
    if precision == "float16":
        return 0.02
    return 1e-5


def verify(
    export: CheckpointExport,
    served: ServedModel,
    rows: int,
    tolerance: float,
    *,
    fixed_shapes: bool,
) -> Parity:
    """Runs rows through a version and through its checkpoint.

    Args:
        export: checkpoint of the version.
        served: loaded version.
        rows: least number of rows to compare.
        tolerance: largest difference allowed.
        fixed_shapes: the version's network takes fixed shapes.

    Raises:
        ParityError: they differ by more, or an output is nan.
    """
    requests = export.example_requests(rows, fixed_shapes=fixed_shapes)
    for request in requests:
        served.check(request)
    largest = export.largest_difference(requests, served.predict(requests))
    count = sum(len(next(iter(request.values()))) for request in requests)
    parity = Parity(count, largest, tolerance)
    if not largest <= tolerance:  # NaN is refused too
        raise ParityError(
            f"the exported model is not the checkpoint {export.path}: {parity}. Nothing was "
            "deployed; `tolerance` allows more"
        )
    return parity
