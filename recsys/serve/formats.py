# SPDX-License-Identifier: Apache-2.0
"""Writes and runs deployed networks in each format.

The first dimension of every tensor is the batch and may have any size; the others are fixed.
"""

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from recsys.installation import command_for
from recsys.serve.manifest import (
    ARTIFACT_FILES,
    WEIGHTS_FILE,
    ArtifactFormat,
    Deployment,
    DeploymentError,
)
from recsys.serve.signature import Signature

Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Maps the inputs of a network to its outputs, in the order of its signature."""


def write_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes weights as one file that all processes can map."""
    file = folder / WEIGHTS_FILE
    safetensors.torch.save_file(weights, file)
    # safetensors makes the file private, but a server may run as another user. So the umask
    # decides, as it did for the folder.
    file.chmod(folder.stat().st_mode & 0o666)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Maps the weights of a version; pages are read when they are needed.

    Raises:
        DeploymentError: the file is missing or damaged.
    """
    file = folder / WEIGHTS_FILE
    try:
        return safetensors.torch.load_file(file)
    except (safetensors.SafetensorError, OSError) as error:
        raise DeploymentError(f"{file}: {error}; deploy the checkpoint again", path=file) from error


def export_network(
    artifact_format: ArtifactFormat,
    network: nn.Module,
    examples: tuple[Tensor, ...],
    signature: Signature,
    folder: Path,
) -> None:
    """Writes a network in a format other than `eager`; the examples need at least two rows.

    Raises:
        DeploymentError: names a package of the format that is not installed.
    """
    path = folder / ARTIFACT_FILES[artifact_format]
    if artifact_format == "torchscript":
        traced = trace(network, examples)
        with _without_deprecations():
            torch.jit.save(traced, path)
        return
    _optional("onnx", "onnxscript")
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad(), _without_deprecations():
        program = torch.onnx.export(
            network,
            examples,
            dynamo=True,
            dynamic_shapes=tuple({0: batch} for _ in examples),
            input_names=[tensor.name for tensor in signature.inputs],
            output_names=[tensor.name for tensor in signature.outputs],
            verbose=False,
        )
    assert program is not None
    program.save(path, external_data=True)


def trace(network: nn.Module, examples: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    """Traces a network in evaluation mode; the result takes batches of any size."""
    with torch.inference_mode(), _without_deprecations():
        traced: torch.jit.ScriptModule = torch.jit.trace(network, examples, check_trace=False)  # type: ignore[no-untyped-call]
    return traced


def open_artifact(
    folder: Path,
    deployment: Deployment,
    device: torch.device,
    build: Callable[[], nn.Module] | None = None,
) -> Runner:
    """Opens the network of a version; for `eager`, `build` makes it.

    Raises:
        DeploymentError: the file is missing or damaged.
    """
    path = folder / ARTIFACT_FILES[deployment.format]
    if not path.is_file():
        raise DeploymentError(f"{path} is missing; deploy the checkpoint again")
    if deployment.format == "onnx":
        return _onnx_runner(path, deployment.signature.network, device)
    if deployment.format == "torchscript":
        with _without_deprecations():
            network = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
    else:
        assert build is not None
        network = build().to(device)

    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with autocast_of(deployment, device):
            outputs: Sequence[Tensor] = network(*inputs)
        return outputs

    return run


def autocast_of(
    deployment: Deployment, device: torch.device
) -> contextlib.AbstractContextManager[object]:
    """Returns the autocast context for the forward pass of an eager network."""
    if deployment.precision == "float16":
        return torch.autocast(device.type, torch.float16)
    return contextlib.nullcontext()


def _onnx_runner(path: Path, signature: Signature, device: torch.device) -> Runner:
    (runtime,) = _optional("onnxruntime")
    options = runtime.SessionOptions()
    # A single pool of threads, with the size that the server chose for PyTorch.
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
    session = runtime.InferenceSession(str(path), options, providers=[provider])
    inputs = [tensor.name for tensor in signature.inputs]
    outputs = [tensor.name for tensor in signature.outputs]

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        fed = {name: t.cpu().numpy() for name, t in zip(inputs, tensors, strict=True)}
        return [torch.from_numpy(output) for output in session.run(outputs, fed)]

    return run


def _optional(*names: str) -> list[ModuleType]:
    try:
        return [importlib.import_module(name) for name in names]
    except ModuleNotFoundError as error:
        raise DeploymentError(
            f"{error.name} is not installed, but ONNX needs it: {command_for('onnx')}"
        ) from error


@contextlib.contextmanager
def _without_deprecations() -> Iterator[Any]:
    """Hides deprecation warnings of exporters that NVIDIA's backends need."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # lists packages that are not needed
    with warnings.catch_warnings():
        for kind in (
            DeprecationWarning,
            FutureWarning,
            UserWarning,
            torch.jit._trace.TracerWarning,
        ):
            warnings.simplefilter("ignore", kind)
        yield
