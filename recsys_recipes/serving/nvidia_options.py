# SPDX-License-Identifier: Apache-2.0
"""Translates options of NVIDIA's DLRM deployer into ours.

Options that repeat the architecture of the model (after `--`) are ignored: the checkpoint has them.
"""

from collections.abc import Iterator, Sequence

from recsys.errors import UserError

_SWITCHES: dict[str, list[str]] = {
    "ts-script": ["--backend=pytorch", "--format=torchscript", "--target=container"],
    "ts-trace": ["--backend=pytorch", "--format=torchscript", "--target=container"],
    "onnx": ["--backend=onnx", "--format=onnx", "--target=container"],
    "deploy_cpu": ["--device=cpu"],
    "triton-no-cuda": ["--device=cpu"],
}


def _microseconds(milliseconds: str) -> str:
    try:
        return str(round(1000 * float(milliseconds)))
    except ValueError as error:
        raise UserError(
            f"--triton-dyn-batching-delay must be milliseconds, got {milliseconds!r}"
        ) from error


_VALUES = {
    "triton-model-name": "name",
    "triton-model-version": "version",
    "triton-max-batch-size": "max_batch_size",
    "triton-dyn-batching-delay": "max_queue_delay_us",
    "triton-engine-count": "instances",
    "save-dir": "repository",
}
_GONE = {
    "dump_perf_data": "`recsys-recipes ask` measures with the rows of a dataset",
    "triton-optimization": "models are not optimised further after export",
    "export-precision": "use --fp16",
}


def translate(arguments: Sequence[str]) -> list[str]:
    """Replaces NVIDIA's options in a command line with ours.

    Raises:
        UserError: an option has no counterpart, or its value is missing or invalid.
    """
    translated: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.removeprefix("--").partition("=")
        if argument == "--":
            break
        if not argument.startswith("--"):
            translated.append(argument)
        elif name in _SWITCHES:
            translated += _SWITCHES[name]
        elif name in _VALUES:
            given = value if equals else _next(name, remaining)
            ours = _VALUES[name]
            converted = _microseconds(given) if ours == "max_queue_delay_us" else given
            translated.append(f"--{ours}={converted}")
        elif name in _GONE:
            raise UserError(f"--{name} of NVIDIA's deployer has no counterpart: {_GONE[name]}")
        else:
            translated.append(f"--{name.replace('-', '_')}{equals}{value}")
    return translated


def _next(name: str, remaining: Iterator[str]) -> str:
    value = next(remaining, None)
    if value is None:
        raise UserError(f"--{name} needs a value")
    return value
