# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of a Python-based backend that stands in for NVIDIA's PyTorch or ONNX Runtime.

Only the container has those two. With this file as `backends/pytorch/model.py` the bundled server
takes the container's repositories as they are: its core reads and enforces their configuration, and
the file of the version is run by the library that NVIDIA's backend wraps.
"""

import json
from pathlib import Path

import triton_python_backend_utils as server

from recsys.serve.formats import open_artifact
from recsys.serve.manifest import Deployment


def _no_network():
    raise AssertionError("a container runs exported networks")


class TritonPythonModel:
    """Runs model.pt or model.onnx of a version; tensors have the names of its config.pbtxt."""

    def initialize(self, args):
        import torch

        self._torch = torch
        config = json.loads(args["model_config"])
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._outputs = [tensor["name"] for tensor in config["output"]]
        folder = Path(args["model_repository"]) / args["model_version"]
        cpu = torch.device("cpu")
        self._run = open_artifact(folder, Deployment.load(folder), cpu, _no_network)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        torch = self._torch
        tensors = [server.get_input_tensor_by_name(request, name) for name in self._inputs]
        with torch.inference_mode():
            found = self._run([torch.from_numpy(t.as_numpy().copy()) for t in tensors])
        return server.InferenceResponse(
            [
                server.Tensor(name, value.numpy())
                for name, value in zip(self._outputs, found, strict=True)
            ]
        )
