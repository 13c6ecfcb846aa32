# SPDX-License-Identifier: Apache-2.0
"""Writes config.pbtxt from a signature and settings, and checks it."""

import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from recsys.errors import UserError
from recsys.serve.manifest import ArtifactFormat, Backend
from recsys.serve.server import native_backend
from recsys.serve.signature import Signature, TensorSignature
from recsys.serve.versions.policy import DEFAULT_POLICY, check_policy, policy_line
from recsys.settings import require_threads, setting

CONFIG_FILE = "config.pbtxt"
THREADS_PARAMETER = "threads"
WARMUP_PARAMETER = "warmup_rows"
"""Keys of `parameters` that this project's Python backend reads."""

Device = Literal["cpu", "gpu"]

FORMATS: dict[Backend, tuple[ArtifactFormat, ...]] = {
    "python": ("eager", "torchscript", "onnx"),
    "native": ("eager",),
    "pytorch": ("torchscript",),
    "onnx": ("onnx",),
}
"""Formats that each backend runs; the first one is the default."""
_PLATFORMS: dict[ArtifactFormat, str] = {
    "torchscript": "pytorch_libtorch",
    "onnx": "onnxruntime_onnx",
}
_BACKENDS: dict[Backend, str] = {
    "python": "python",
    "native": native_backend.NAME,
    "pytorch": "pytorch",
    "onnx": "onnxruntime",
}
CONTAINER_BACKENDS: tuple[Backend, ...] = ("pytorch", "onnx")
"""Backends that are only in NVIDIA's container, not in the bundled server."""
_THREADS: dict[Backend, str] = {
    "python": THREADS_PARAMETER,
    "native": THREADS_PARAMETER,
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "onnx": "intra_op_thread_count",
}
_LONGEST_WAIT_US = 24 * 60 * 60 * 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ConfigError(UserError):
    """Settings or a config.pbtxt that Triton would refuse."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServingSettings:
    """Settings of a served model."""

    backend: Backend = setting(
        "python",
        "Backend that runs the model: python, which needs this project in the server's environment "
        "and checks each request; native, the fastest, which runs DLRM on a CPU without Python; "
        "pytorch or onnx, which only NVIDIA's container has",
    )
    format: ArtifactFormat = setting(
        "eager",
        "Format of the stored network; by default eager, torchscript or onnx, as the backend needs",
    )
    device: Device = setting("cpu", "Device of the instances")
    max_batch_size: int = setting(
        4096,
        "Largest number of rows of an execution; 0: any number, but without combining requests; by "
        "default 4096, for models of ratings 256",
        default_text="4096, for models of ratings 256",
    )
    dynamic_batching: bool = setting(True, "Let the server combine requests into batches")
    max_queue_delay_us: int = setting(0, "Microseconds that a request may wait for others")
    preferred_batch_sizes: tuple[int, ...] = setting((), "Batch sizes that the server aims for")
    max_queue_size: int = setting(
        0,
        "Requests that may wait; more are refused at once; 0: any number. A server that bounds its "
        "queue makes some requests wait half a second, see docs/deployment.md",
    )
    timeout_us: int = setting(
        0,
        "Microseconds that a request may wait before it is refused; a request may ask for less; 0: "
        "any time. It has the same cost as `max_queue_size`",
    )
    instances: int = setting(1, "Instances of the model that run in parallel; they share tables")
    threads: int | None = setting(None, "CPU threads of an instance; by default the server decides")
    warmup: int = setting(0, "Rows to run before the model counts as ready")
    version_policy: str = setting(
        DEFAULT_POLICY,
        "Versions to serve: latest:N, all, or specific:1,3; specific:2 pins version 2",
    )

    def __post_init__(self) -> None:
        """Refuses settings that Triton would refuse or ignore."""
        check_policy(self.version_policy)
        allowed = FORMATS[self.backend]
        if self.format not in allowed:
            raise ConfigError(
                f"`format` {self.format}: `backend` {self.backend} only runs "
                f"{' and '.join(allowed)}",
                settings=("format", "backend"),
            )
        if self.backend == "native" and self.device != "cpu":
            raise ConfigError(
                "`backend` native only runs on `device` cpu; use `backend` python",
                settings=("backend", "device"),
            )
        waiting = ("max_queue_delay_us", "max_queue_size", "timeout_us")
        for name in ("max_batch_size", *waiting, "warmup"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"`{name}` must be 0 or more, got {getattr(self, name)}", setting=name
                )
        require_threads(self, "instances", "threads")
        sizes = self.preferred_batch_sizes
        if any(not 1 <= size <= self.max_batch_size for size in sizes):
            raise ConfigError(
                f"`preferred_batch_sizes` {','.join(map(str, sizes))} must be between 1 and "
                f"`max_batch_size` {self.max_batch_size}",
                settings=("preferred_batch_sizes", "max_batch_size"),
            )
        if 0 < self.max_batch_size < self.warmup:
            raise ConfigError(
                f"`warmup` {self.warmup} is more than `max_batch_size` {self.max_batch_size}",
                settings=("warmup", "max_batch_size"),
            )
        if not self.batches_dynamically:
            for name in ("preferred_batch_sizes", *waiting):
                if getattr(self, name):
                    raise ConfigError(
                        f"`{name}` needs `dynamic_batching` and `max_batch_size`",
                        settings=(name, "dynamic_batching", "max_batch_size"),
                    )

    @property
    def batches_dynamically(self) -> bool:
        """Whether the server combines requests into batches."""
        return self.dynamic_batching and self.max_batch_size > 0

    @property
    def bounds_queue(self) -> bool:
        """Whether the number or the time of waiting requests is limited."""
        return self.max_queue_size > 0 or self.timeout_us > 0


def check_name(name: str) -> None:
    """Refuses a model name that is not a plain folder name.

    Raises:
        ConfigError: says which characters a name may contain.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"`name` {name!r}: expected letters, digits, '.', '_' and '-', beginning with a letter "
            "or digit",
            setting="name",
        )


def config_text(name: str, signature: Signature, settings: ServingSettings) -> str:
    """Returns the config.pbtxt of a model; the model's folder has the same name.

    Raises:
        ConfigError: the name or the settings are refused.
    """
    check_name(name)
    if settings.backend == "pytorch":
        signature = signature.positional()
    batched = settings.max_batch_size > 0
    lines = [f'name: "{name}"', f'backend: "{_BACKENDS[settings.backend]}"']
    if settings.backend in CONTAINER_BACKENDS:
        lines.append(f'platform: "{_PLATFORMS[settings.format]}"')
    lines.append(f"max_batch_size: {settings.max_batch_size}")
    for tensor in signature.inputs:
        lines += _tensor("input", tensor, batched)
    for tensor in signature.outputs:
        lines += _tensor("output", tensor, batched)
    kind = "KIND_GPU" if settings.device == "gpu" else "KIND_CPU"
    lines.append(f"instance_group [ {{ count: {settings.instances} kind: {kind} }} ]")
    if settings.batches_dynamically:
        sizes = "".join(f" preferred_batch_size: {n}" for n in settings.preferred_batch_sizes)
        lines += [
            f"dynamic_batching {{{sizes}",
            f"  max_queue_delay_microseconds: {settings.max_queue_delay_us}",
            *(_queue_policy(settings) if settings.bounds_queue else ()),
            "}",
        ]
    if settings.threads is not None:
        lines.append(_parameter(_THREADS[settings.backend], settings.threads))
    if settings.warmup and settings.backend not in CONTAINER_BACKENDS:
        lines.append(_parameter(WARMUP_PARAMETER, settings.warmup))
    elif settings.warmup:
        lines += _warmup(signature, settings.warmup, batched)
    for tensor in signature.inputs:
        if tensor.columns:
            lines.append(_parameter(tensor.name, json.dumps(tensor.columns)))
        if tensor.delimiter:
            dialect = json.dumps([tensor.delimiter, tensor.quote])
            lines.append(_parameter(f"{tensor.name}_dialect", dialect))
    lines.append(policy_line(settings.version_policy))
    return "\n".join(lines) + "\n"


def _queue_policy(settings: ServingSettings) -> list[str]:
    """Formats the limits of the queue.

    They are written only if a setting asks for them. With any limit, a server hands a batch over
    only when an instance is waiting, and is not notified when one starts to wait. Requests that
    arrived before then wait for the batcher's next look, up to 0.5 s
    (WaitForPayloadSlotAvailable in dynamic_batch_scheduler.cc of triton-inference-server/core;
    issue 8870 of server is another fault of the same count).
    """
    return [
        "  default_queue_policy {",
        "    timeout_action: REJECT",
        # Requests can only shorten it; with 0 the server would ignore their timeouts.
        f"    default_timeout_microseconds: {settings.timeout_us or _LONGEST_WAIT_US}",
        "    allow_timeout_override: true",
        f"    max_queue_size: {settings.max_queue_size}",
        "  }",
    ]


def _tensor(role: str, tensor: TensorSignature, batched: bool) -> list[str]:
    shape = tensor.shape if batched else (-1, *tensor.shape)
    fields = [
        f"  name: {json.dumps(tensor.name)}",
        f"  data_type: {tensor.config_dtype}",
        f"  dims: [ {', '.join(map(str, shape))} ]",
    ]
    if tensor.optional:
        fields.append("  optional: true")
    if tensor.ragged and batched:
        fields.append("  allow_ragged_batch: true")
    return [f"{role} {{", *fields, "}"]


def _parameter(name: str, value: int | str) -> str:
    text = json.dumps(str(value))
    return f'parameters {{ key: "{name}" value {{ string_value: {text} }} }}'


def _warmup(signature: Signature, rows: int, batched: bool) -> list[str]:
    lines = ["model_warmup {", '  name: "zeros"', f"  batch_size: {rows if batched else 0}"]
    for tensor in signature.inputs:
        shape = [1 if n == -1 else n for n in tensor.shape]
        if not batched:
            shape.insert(0, rows)
        dims = ", ".join(map(str, shape))
        fields = f"data_type: {tensor.config_dtype} dims: [ {dims} ] zero_data: true"
        lines.append(f"  inputs {{ key: {json.dumps(tensor.name)} value {{ {fields} }} }}")
    return [*lines, "}"]


def parse_config(text: str, where: str) -> Any:
    """Parses a config.pbtxt into Triton's ModelConfig; None without tritonclient.

    Raises:
        ConfigError: the text is not valid; names line and column.
    """
    try:
        schema = importlib.import_module("tritonclient.grpc.model_config_pb2")
        text_format = importlib.import_module("google.protobuf.text_format")
    except ModuleNotFoundError:
        return None
    try:
        return text_format.Parse(text, schema.ModelConfig())
    except text_format.ParseError as error:
        raise ConfigError(f"{where}: not a model configuration of Triton: {error}") from error


def check_config(text: str, name: str) -> None:
    """Refuses a config.pbtxt that a server would refuse in the folder `name`.

    Raises:
        ConfigError: the text is invalid.
    """
    message = parse_config(text, CONFIG_FILE)
    if message is not None and message.name != name:
        raise ConfigError(
            f"{CONFIG_FILE}: names model {message.name!r}, but its folder is {name!r}"
        )


_SHARED_BY_VERSIONS = re.compile(
    r'^(backend|platform): "[^"]*"$|^(?:input|output) \{\n(?:  [^\n]*\n)+\}$', re.MULTILINE
)


def check_same_tensors(file: Path, new: str) -> None:
    """Refuses a new config.pbtxt whose tensors differ from those of the installed one.

    Raises:
        ConfigError: backend, inputs or outputs differ.
    """
    was = [match[0] for match in _SHARED_BY_VERSIONS.finditer(file.read_text())]
    now = [match[0] for match in _SHARED_BY_VERSIONS.finditer(new)]
    differing = [text for text in now if text not in was] or [t for t in was if t not in now]
    if differing:
        raise ConfigError(
            f"{file}: the new version differs from the others in {' '.join(differing[0].split())}; "
            "all versions of a model share one configuration. Deploy it as another model with "
            "`name`",
            setting="name",
            path=file,
        )
