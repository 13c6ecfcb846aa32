# SPDX-License-Identifier: Apache-2.0
"""Deploys a checkpoint: exports it, compares it with the checkpoint, configures and installs it."""

import contextlib
import dataclasses
import datetime
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from recsys.data.manifest import file_checksum
from recsys.errors import UserError
from recsys.serve.client.requests import Arrays
from recsys.serve.config_pbtxt import (
    ConfigError,
    ServingSettings,
    check_config,
    check_same_tensors,
    config_text,
)
from recsys.serve.manifest import Deployment, DeploymentError, OutOfRange, Quantize
from recsys.serve.reconfigure import comment_of
from recsys.serve.server.probe import write_probe
from recsys.serve.versions.policy import served_versions
from recsys.serve.versions.repository import ModelRepository
from recsys.settings import REQUIRED, setting
from recsys.train.origin import FINGERPRINT

if TYPE_CHECKING:  # imports torch, which takes seconds; a typo should be refused sooner
    import torch

    from recsys.serve.checkpoint_export import CheckpointExport
    from recsys.serve.served import ServedModel

logger = logging.getLogger(__name__)

_EXAMPLE_ROWS = 8
MODEL_FILE = "model.py"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeploySettings:
    """Settings of a deployment.

    Attributes:
        precision: type of matrix products.
        release: version of this project.
        kept: flags of the command that the next deployment of the model keeps.
    """

    repository: Path = setting(REQUIRED, "Folder of the model repository; created if missing")
    name: str | None = setting(
        None, "Name of the model on the server; by default the name of its kind, such as dlrm"
    )
    version: int | None = setting(None, "Number of the version; by default the latest plus one")
    serving: ServingSettings = dataclasses.field(default_factory=ServingSettings)
    out_of_range: OutOfRange = setting(
        "error",
        "What to do with ids outside their table: error refuses them, zero takes them as unknown",
    )
    quantize: Quantize = setting("none", "Store the tables of DLRM in 8 bits")
    checksums: bool = setting(
        True,
        "Compare the files of a version with their checksums at each load, which reads them whole",
    )
    precision: str = "float32"
    verify: int = setting(1024, "Rows to compare with the checkpoint")
    tolerance: float | None = setting(None, "Largest difference allowed in that comparison")
    release: str = ""
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other."""
        if self.verify < 1:
            raise ConfigError(f"`verify` must be 1 or more, got {self.verify}", setting="verify")
        if self.precision == "float16" and (
            self.serving.device != "gpu" or self.serving.format != "eager"
        ):
            raise ConfigError(
                "`fp16` needs `device` gpu `backend` python `format` eager: CPUs have no fast "
                "float16, and exported networks keep the types of the checkpoint",
                settings=("fp16", "device", "backend", "format"),
            )


class ParityError(UserError):
    """A version differs from its checkpoint; it was not deployed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parity:
    """Result of comparing a version with its checkpoint.

    Attributes:
        largest: largest difference of an output, relative to the true value if that is above 1.
    """

    rows: int
    largest: float
    tolerance: float

    def __str__(self) -> str:
        return (
            f"largest difference from the checkpoint {self.largest:.2g} over {self.rows} rows "
            f"(tolerance {self.tolerance:g})"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Deployed:
    """Result of a deployment.

    Attributes:
        served: versions that a server answers with, ascending.
    """

    folder: Path
    parity: Parity
    served: list[int]


def deploy(
    export: "CheckpointExport",
    settings: DeploySettings,
    measure: "Callable[[ServedModel], Mapping[str, Any]]" = lambda _: {},
    repository: ModelRepository | None = None,
    before_install: Callable[[Path], None] = lambda _: None,
) -> Deployed:
    """Adds a version to a repository after `measure`, or changes nothing.

    Args:
        export: the trained model.
        measure: returns metrics of the version, as served, before it is installed.
        repository: the repository of the settings, if the caller has locked it.
        before_install: is given the folder of the complete version, which no server sees yet.

    Raises:
        UserError: the settings, the checkpoint or the repository are refused, or the exported
            model differs from the checkpoint.
    """
    serving = settings.serving
    name = settings.name or export.kind
    served_class = export.native_class() if serving.backend == "native" else export.served_class
    fixed_shapes = serving.format != "eager"
    signature = export.signature(fixed_shapes=fixed_shapes)
    config = config_text(name, signature, serving)
    check_config(config, name)
    repository = repository or ModelRepository(settings.repository)
    device = _export_device(serving)
    with repository.staged_version(name, settings.version) as staged:
        existing = repository.config_file(name)
        if existing.is_file():
            check_same_tensors(existing, config)
        versions = [*repository.versions(name), staged.version]
        served_later = served_versions(serving.version_policy, versions)
        deployment = Deployment(
            kind=export.kind,
            checkpoint=export.path.name,
            step=export.step,
            signature=signature,
            format=serving.format,
            out_of_range=settings.out_of_range,
            quantize=settings.quantize,
            precision=settings.precision,
            model=export.model_values(),
            dataset=export.origin.values(),
            card=_card(export, settings),
        )
        _compare_datasets(repository, name, deployment)
        export.write_files(staged.folder)
        logger.info("Writing %s as %s", export.path, serving.format)
        weights = export.weights(settings.quantize)
        staged.require_space(sum(tensor.nbytes for tensor in weights.values()))
        _write_network(export, settings, weights, staged.folder, device)
        if serving.backend == "python":
            shutil.copyfile(export.model_file, staged.folder / MODEL_FILE)
        if settings.checksums:
            files = sorted(staged.folder.iterdir())
            checksums = {file.name: file_checksum(file, xxhash.xxh64) for file in files}
            deployment = dataclasses.replace(deployment, checksums=checksums)
        deployment.save(staged.folder)
        served = served_class.open(staged.folder, device)
        tolerance = settings.tolerance
        if tolerance is None:
            tolerance = _default_tolerance(settings.quantize, settings.precision)
        logger.info("Comparing %d rows with the checkpoint", settings.verify)
        parity = _verify(export, served, settings.verify, tolerance, fixed_shapes=fixed_shapes)
        if metrics := measure(served):
            card = deployment.card | {"metrics": dict(metrics)}
            dataclasses.replace(deployment, card=card).save(staged.folder)
        (first, *_) = export.example_requests(1, fixed_shapes=fixed_shapes)
        _record_answer(staged.folder, served, first, serving, settings.precision)
        others = {}
        if serving.device == "gpu" and serving.format != "torchscript":
            on_cpu = dataclasses.replace(serving, device="cpu")
            others["cpu"] = config_text(name, signature, on_cpu)
        now_served = staged.version in served_later
        before_install(staged.folder)
        folder = staged.install(comment_of(settings.kept) + config, others, served=now_served)
        return Deployed(folder, parity, served_later)


def _card(export: "CheckpointExport", settings: DeploySettings) -> dict[str, Any]:
    """Returns the facts of deployment.json that no server reads."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"deployed": now, "release": settings.release, "training": export.training}


def _record_answer(
    folder: Path, served: "ServedModel", request: Arrays, serving: ServingSettings, precision: str
) -> None:
    """Records the first row of a request and its answer, for probes."""
    row: Arrays = {name: array[:1] for name, array in request.items()}
    (answer,) = served.predict([row])
    here = served.deployment.signature
    there = here.positional() if serving.backend == "pytorch" else here
    pairs = zip((*here.inputs, *here.outputs), (*there.inputs, *there.outputs), strict=True)
    names = {tensor.name: as_served.name for tensor, as_served in pairs}
    row, answer = ({names[n]: values for n, values in side.items()} for side in (row, answer))
    # Other processors add in another order.
    write_probe(folder, row, answer, 0.1 if precision == "float16" else 1e-3)


def _compare_datasets(repository: ModelRepository, name: str, deployment: Deployment) -> None:
    """Warns if the previous version was trained on another dataset."""
    for version in repository.versions(name)[-1:]:
        with contextlib.suppress(DeploymentError):  # the previous version may be damaged
            before = Deployment.load(repository.root / name / str(version)).dataset
            both_known = before.get(FINGERPRINT) and deployment.dataset[FINGERPRINT]
            if both_known and before != deployment.dataset:
                logger.warning(
                    "%s was trained on another dataset than version %d: each version reads the ids "
                    "and numbers of a request as in its own training dataset",
                    deployment.checkpoint,
                    version,
                )


def _export_device(serving: ServingSettings) -> "torch.device":
    import torch

    if serving.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if serving.format == "torchscript":
        raise ConfigError(
            "`device` gpu `format` torchscript: the file is bound to the device that made it, but "
            "this machine has no CUDA device; deploy on a machine with one, or use `format` eager "
            "or onnx",
            settings=("device", "format"),
        )
    logger.warning(
        "this machine has no GPU: the model is checked on the CPU, and a server without a GPU will "
        "not load it (`device` cpu deploys for such a server)"
    )
    return torch.device("cpu")


def _write_network(
    export: "CheckpointExport",
    settings: DeploySettings,
    weights: "dict[str, torch.Tensor]",
    folder: Path,
    device: "torch.device",
) -> None:
    import torch

    from recsys.serve.formats import export_network, write_weights

    serving = settings.serving
    if serving.format == "eager":
        write_weights(folder, weights)
        return
    signature = export.signature(fixed_shapes=True).network
    example = export.example_requests(_EXAMPLE_ROWS, fixed_shapes=True)[0]
    export_network(
        serving.format,
        export.portable_network(weights, settings.out_of_range).to(device),
        tuple(torch.from_numpy(example[tensor.name]).to(device) for tensor in signature.inputs),
        signature,
        folder,
    )


def _default_tolerance(quantize: Quantize, precision: str) -> float:
    """Returns the largest difference that rounding may cause.

    Other kernels and batch sizes add in another order. Weights in 8 bits have an error of half a
    step, 0.4 per cent of the largest value of a row. float16 keeps 11 bits.
    """
    if quantize == "int8":
        return 0.1
    if precision == "float16":
        return 0.02
    return 1e-5


def _verify(
    export: "CheckpointExport",
    served: "ServedModel",
    rows: int,
    tolerance: float,
    *,
    fixed_shapes: bool,
) -> Parity:
    """Compares a loaded version with its checkpoint.

    Raises:
        ParityError: they differ by more than the tolerance, or an output is NaN.
    """
    requests = export.example_requests(rows, fixed_shapes=fixed_shapes)
    for request in requests:
        served.check(request)
    largest = export.largest_difference(requests, served.predict(requests))
    count = sum(len(next(iter(request.values()))) for request in requests)
    parity = Parity(count, largest, tolerance)
    if not largest <= tolerance:  # also refuses NaN
        raise ParityError(
            f"the exported model differs from the checkpoint {export.path}: {parity}. Nothing was "
            "deployed; a larger `tolerance` allows the difference",
            setting="tolerance",
        )
    return parity
