# SPDX-License-Identifier: Apache-2.0
"""Names, types and shapes of a deployed model's inputs and outputs.

The exporter, `config.pbtxt`, the checks in the server and the client all use them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recsys.errors import UserError

Dtype = Literal["float32", "int64", "bool", "string"]

_TRITON: dict[Dtype, str] = {
    "float32": "FP32",
    "int64": "INT64",
    "bool": "BOOL",
    "string": "BYTES",
}


def dtype_of_wire(name: str) -> Dtype:
    """Returns the dtype of a type in Triton's protocol, such as FP32.

    Raises:
        UserError: the type is not supported.
    """
    for dtype, wire in _TRITON.items():
        if wire == name:
            return dtype
    raise UserError(f"tensors of type {name} are not supported, only {', '.join(_TRITON.values())}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorSignature:
    """Name, type and shape of one tensor.

    Attributes:
        dtype: type of the values; `string` is an array of bytes objects.
        shape: shape of one row, without the batch dimension; -1 is any length.
        optional: whether requests may omit it.
        ragged: whether requests of one execution may differ in length.
        columns: names of a raw row's texts in the log; empty for other tensors.
        delimiter: one character between the fields of a line; empty for other tensors.
        quote: one character around fields that may hold delimiters; empty for none.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quote: str = ""

    @property
    def wire_dtype(self) -> str:
        """Name of the type in Triton's protocol, such as FP32."""
        return _TRITON[self.dtype]

    @property
    def config_dtype(self) -> str:
        """Name of the type in config.pbtxt, such as TYPE_FP32."""
        return "TYPE_STRING" if self.dtype == "string" else f"TYPE_{self.wire_dtype}"

    @property
    def numpy_dtype(self) -> npt.DTypeLike:
        """Type of the NumPy arrays."""
        return np.object_ if self.dtype == "string" else np.dtype(self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """Inputs and outputs of a model, in order."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]

    def input(self, name: str) -> TensorSignature:
        """Returns an input by its name."""
        return next(tensor for tensor in self.inputs if tensor.name == name)

    def positional(self) -> "Signature":
        """Returns the signature with the tensor names of Triton's PyTorch backend."""
        named = dataclasses.replace
        return Signature(
            inputs=tuple(named(t, name=f"INPUT__{i}") for i, t in enumerate(self.inputs)),
            outputs=tuple(named(t, name=f"OUTPUT__{i}") for i, t in enumerate(self.outputs)),
        )

    @property
    def network(self) -> "Signature":
        """The signature of the network itself, without the inputs of raw rows."""
        if LINE not in (tensor.name for tensor in self.inputs):
            return self
        inputs = (tensor for tensor in self.inputs if tensor.name in FEATURES)
        return dataclasses.replace(
            self, inputs=tuple(dataclasses.replace(tensor, optional=False) for tensor in inputs)
        )

    @property
    def recommends(self) -> bool:
        """Whether this is a model of ratings, which returns items."""
        return self.outputs[0].dtype != "float32"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Signature":
        """Builds a signature from the values in deployment.json."""
        inputs, outputs = (
            tuple(
                TensorSignature(
                    **v | {"shape": tuple(v["shape"]), "columns": tuple(v.get("columns", ()))}
                )
                for v in values[role]
            )
            for role in ("inputs", "outputs")
        )
        return cls(inputs=inputs, outputs=outputs)


NUMERICAL, CATEGORICAL, FACTORS = "numerical", "categorical", "factors"
FEATURES = (NUMERICAL, CATEGORICAL, FACTORS)
"""Transformed features, in the order of the network's inputs."""
PROBABILITY, LOGIT = "probability", "logit"


def clicks_signature(
    num_numerical: int, num_categorical: int, num_list_slots: int = 0
) -> Signature:
    """Returns the signature of a model of clicks; it may lack numerical or categorical features.

    Args:
        num_numerical: M.
        num_categorical: ids of a row, those of lists last; each list has as many slots as it may
            have elements.
        num_list_slots: ids of lists among them, each with a factor.
    """
    factors = TensorSignature(name=FACTORS, dtype="float32", shape=(num_list_slots,))
    numerical = TensorSignature(name=NUMERICAL, dtype="float32", shape=(num_numerical,))
    categorical = TensorSignature(name=CATEGORICAL, dtype="int64", shape=(num_categorical,))
    return Signature(
        inputs=(
            *((numerical,) if num_numerical else ()),
            *((categorical,) if num_categorical else ()),
            *((factors,) if num_list_slots else ()),
        ),
        outputs=(
            TensorSignature(name=PROBABILITY, dtype="float32", shape=(1,)),
            TensorSignature(name=LOGIT, dtype="float32", shape=(1,)),
        ),
    )


LINE, FIELDS = "line", "fields"


def with_raw_rows(
    signature: Signature,
    line: tuple[str, ...],
    features: tuple[str, ...],
    delimiter: str,
    quote: str,
) -> Signature:
    """Adds the inputs of raw rows to the signature of a DLRM.

    A request holds either `line`, a line of the log without its label; or `fields`, the texts of
    the features; or the transformed features.

    Args:
        signature: signature with the transformed features.
        line: names of the columns of a line.
        features: names of the columns that are features.
        delimiter: character between the fields of a line.
        quote: character around fields that may hold delimiters; empty for none.
    """
    inputs = (
        TensorSignature(
            name=LINE,
            dtype="string",
            shape=(1,),
            columns=line,
            delimiter=delimiter,
            quote=quote,
        ),
        TensorSignature(name=FIELDS, dtype="string", shape=(len(features),), columns=features),
        *signature.inputs,
    )
    optional = tuple(dataclasses.replace(tensor, optional=True) for tensor in inputs)
    return dataclasses.replace(signature, inputs=optional)


HISTORY, EXCLUDE_SEEN = "history", "exclude_seen"
ITEMS, SCORES, TITLES = "items", "scores", "titles"


def ratings_signature(
    top_k: int, history_length: int = -1, *, raw_ids: bool = False, titles: bool = False
) -> Signature:
    """Returns the signature of a model of ratings.

    Args:
        top_k: K, items of an answer.
        history_length: items of a history, oldest first, padded with 0; -1 is any length.
        raw_ids: whether items have the ids of the raw ratings, instead of numbers from 1.
        titles: whether a further output holds the titles of the items.
    """
    item: Dtype = "string" if raw_ids else "int64"
    ragged = history_length == -1
    return Signature(
        inputs=(
            TensorSignature(name=HISTORY, dtype=item, shape=(history_length,), ragged=ragged),
            TensorSignature(name=EXCLUDE_SEEN, dtype="bool", shape=(1,), optional=ragged),
        ),
        outputs=(
            TensorSignature(name=ITEMS, dtype=item, shape=(top_k,)),
            TensorSignature(name=SCORES, dtype="float32", shape=(top_k,)),
            *([TensorSignature(name=TITLES, dtype="string", shape=(top_k,))] if titles else []),
        ),
    )
