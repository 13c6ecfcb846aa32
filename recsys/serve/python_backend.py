# SPDX-License-Identifier: Apache-2.0
"""Base class of each version's `model.py` in Triton's Python backend.

A model.py only names the class that opens the version. Everything else is in this installed
package. So the server's environment needs this project, and a repository holds no code of its own.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from recsys.serve.client.requests import Arrays, BadRequestError
from recsys.serve.config_pbtxt import THREADS_PARAMETER, WARMUP_PARAMETER
from recsys.serve.served import ServedModel


class PythonBackendModel:
    """Base class of `TritonPythonModel`.

    Attributes:
        served_class: class that serves the version; the subclass sets it.
    """

    served_class: ClassVar[type[ServedModel]]

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the version; the server calls this.

        Raises:
            UserError: the version is damaged; the server prints the message.
        """
        # A module that only exists in the server's process.
        self._server: Any = importlib.import_module("triton_python_backend_utils")
        parameters = {
            name: int(value["string_value"])
            for name, value in json.loads(args["model_config"]).get("parameters", {}).items()
            if name in (THREADS_PARAMETER, WARMUP_PARAMETER)
        }
        # By default, the number of threads that the server was started with.
        threads = parameters.get(THREADS_PARAMETER, torch.get_num_threads())
        torch.set_num_threads(threads)
        on_gpu = args["model_instance_kind"] == "GPU"
        device = torch.device(f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu")
        folder = Path(args["model_repository"]) / args["model_version"]
        self._served = self.served_class.open(folder, device)
        signature = self._served.deployment.signature
        self._inputs = [tensor.name for tensor in signature.inputs]
        self._outputs = [tensor.name for tensor in signature.outputs]
        if WARMUP_PARAMETER in parameters:
            self._served.predict([self._served.warmup_request(parameters[WARMUP_PARAMETER])])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Serves the requests of one execution.

        Bad requests get an error, the others a response.
        """
        responses: list[Any] = [None] * len(requests)
        good: list[tuple[int, Arrays]] = []
        for i, request in enumerate(requests):
            try:
                arrays = self._arrays(request)
                good.append((i, self._served.prepare(arrays)))
            except BadRequestError as error:
                responses[i] = self._refusal(str(error))
        outputs = self._served.predict([arrays for _, arrays in good]) if good else []
        for (i, _), output in zip(good, outputs, strict=True):
            responses[i] = self._response(output)
        return responses

    def _response(self, output: Arrays) -> Any:
        """Returns a response, or an error if a number is not finite."""
        for name in self._outputs:
            values = output[name]
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row, *index = np.argwhere(~np.isfinite(values))[0].tolist()
                return self._refusal(
                    f"output {name!r}, row {row}: {values[(row, *index)]} is not a finite number; "
                    "an input of the row is too large for this model, or the model is damaged"
                )
        tensors = [self._server.Tensor(name, output[name]) for name in self._outputs]
        return self._server.InferenceResponse(output_tensors=tensors)

    def _arrays(self, request: Any) -> Arrays:
        arrays = {}
        for name in self._inputs:
            tensor = self._server.get_input_tensor_by_name(request, name)
            if tensor is not None:
                arrays[name] = tensor.as_numpy()
        return arrays

    def _refusal(self, message: str) -> Any:
        error = self._server.TritonError(message, self._server.TritonError.INVALID_ARG)
        return self._server.InferenceResponse(output_tensors=[], error=error)
