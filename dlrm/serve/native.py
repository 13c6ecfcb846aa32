# SPDX-License-Identifier: Apache-2.0
"""Serves a deployed DLRM with the library of the native backend, without a server.

Triton loads the same library, so the same code checks and answers requests.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from cuda_ext.ops.interaction import fits_kernels
from dlrm.config import ModelConfig
from recsys.errors import UserError
from recsys.installation import command_for
from recsys.serve.client.requests import Arrays, BadRequestError
from recsys.serve.manifest import Deployment, DeploymentError
from recsys.serve.served import ServedModel
from recsys.serve.server import native_backend

_BAD_REQUEST = 1
_INTERACTIONS = ("dot", "cuda_dot", "cat")


class _Tensor(ctypes.Structure):
    """A tensor of a request, with the layout of c_interface.cpp."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


def check_native(config: ModelConfig, num_categorical: int) -> None:
    """Refuses models that the native backend does not run.

    Raises:
        UserError: the backend is not built, or does not support a setting of the model.
    """
    if not native_backend.is_built():
        raise UserError(
            f"`backend` native: its library is not built; {command_for('kernels')} adds it, or use "
            "`backend` python",
            setting="backend",
        )
    reason = None
    if config.interaction_op not in _INTERACTIONS:
        reason = f"`interaction_op` {config.interaction_op}"
    elif config.interaction_op != "cat" and not fits_kernels(
        config.num_vectors(num_categorical), config.embedding_dim
    ):
        reason = (
            f"{num_categorical} categorical features and `embedding_dim` {config.embedding_dim}"
        )
    if reason is not None:
        raise UserError(
            f"`backend` native does not support a model with {reason}; use `backend` python",
            setting="backend",
        )


@functools.cache
def load_library() -> ctypes.CDLL:
    """Loads the library; the functions of Triton that it uses stay null.

    Raises:
        OSError: the library is not built.
    """
    library = ctypes.CDLL(str(native_backend.LIBRARY))
    library.recsys_last_error.restype = ctypes.c_char_p
    library.recsys_instruction_set.restype = ctypes.c_char_p
    library.recsys_open.argtypes = (ctypes.c_char_p, ctypes.c_int)
    library.recsys_open.restype = ctypes.c_void_p
    library.recsys_close.argtypes = (ctypes.c_void_p,)
    library.recsys_close.restype = None
    library.recsys_respond.argtypes = (
        *(ctypes.c_void_p, ctypes.POINTER(_Tensor), ctypes.c_int64, ctypes.c_int64),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)),
    )
    return library


class NativeDlrm(ServedModel):
    """A deployed version of a DLRM, run by the native backend's library.

    Args:
        folder: version folder.
        threads: number of threads that share a batch.

    Raises:
        DeploymentError: the version is missing or damaged, or belongs to another model.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self._handle: int | None = None
        super().__init__(Deployment.load(folder))
        self._library = load_library()
        self._handle = self._library.recsys_open(str(folder).encode(), threads)
        if self._handle is None:
            raise DeploymentError(self._last_error())

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:  # noqa: ARG003  (CPU only)
        """Loads a version folder."""
        return cls(folder)

    def _last_error(self) -> str:
        message: bytes = self._library.recsys_last_error()
        return message.decode(errors="replace")

    def check(self, request: Arrays) -> None:
        """Does nothing: the library checks each request."""

    def check_values(self, request: Arrays) -> None:
        """Does nothing: the library checks each request."""

    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Answers requests one by one.

        Raises:
            BadRequestError: a value is wrong; the message names it and what was expected.
        """
        return [self._answer(request) for request in requests]

    def _answer(self, request: Arrays) -> Arrays:
        capacity = max((len(array) for array in request.values() if array.ndim), default=0)
        outputs = {
            tensor.name: np.empty((capacity, 1), np.float32)
            for tensor in self.deployment.signature.outputs
        }
        kept = [_to_wire(array) for array in request.values()]
        tensors = (_Tensor * len(request))(
            *(
                _Tensor(
                    name.encode(),
                    str(array.dtype).encode(),
                    (ctypes.c_int64 * array.ndim)(*array.shape),
                    array.ndim,
                    wire.ctypes.data,
                    wire.nbytes,
                )
                for (name, array), wire in zip(request.items(), kept, strict=True)
            )
        )
        rows = ctypes.c_int64()
        status = self._library.recsys_respond(
            *(self._handle, tensors, len(request), capacity),
            *(output.ctypes.data for output in outputs.values()),
            rows,
        )
        if status == _BAD_REQUEST:
            raise BadRequestError(self._last_error())
        if status != 0:
            raise DeploymentError(self._last_error())
        return {name: output[: rows.value] for name, output in outputs.items()}

    def close(self) -> None:
        """Unmaps the version."""
        if self._handle is not None:
            self._library.recsys_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        """Unmaps a version that was not closed."""
        self.close()


def _to_wire(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Returns the bytes of an array in the format of Triton's protocol."""
    if array.dtype != np.object_:
        return np.ascontiguousarray(array)
    texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.flat]
    joined = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return np.frombuffer(joined, np.uint8)
