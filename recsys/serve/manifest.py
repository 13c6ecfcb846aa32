# SPDX-License-Identifier: Apache-2.0
"""`deployment.json`, the file in a version's folder that describes the version.

Its last line is its own checksum: XXH64 over the bytes before that line, the hash of the other
files too. dlrm/serve/csrc/checksum.cpp checks the same for the native backend.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import xxhash

from recsys.data.manifest import file_checksum
from recsys.errors import UserError
from recsys.files.json_text import is_intact, parse_json, signed
from recsys.serve.signature import Signature

DEPLOYMENT_FILE = "deployment.json"
WEIGHTS_FILE = "weights.safetensors"
FEATURE_FILE = "features.bin"
"""File with the rules and dictionaries of raw rows."""
FORMAT = "recsys-recipes deployment"
FORMAT_VERSION = 2

Backend = Literal["python", "native", "pytorch", "onnx"]
ArtifactFormat = Literal["eager", "torchscript", "onnx"]
OutOfRange = Literal["error", "zero"]
Quantize = Literal["none", "int8"]

ARTIFACT_FILES: dict[ArtifactFormat, str] = {
    "eager": WEIGHTS_FILE,
    "torchscript": "model.pt",
    "onnx": "model.onnx",
}
"""File from which each format is served."""


class DeploymentError(UserError):
    """A deployed version is missing, damaged or of another kind."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A version of a model.

    Attributes:
        kind: name of the model, such as `dlrm`.
        checkpoint: name of the checkpoint's folder.
        step: training steps of the checkpoint; None if not recorded.
        signature: names, types and shapes of inputs and outputs.
        out_of_range: treatment of ids outside their table: an error, or row 0.
        precision: type of matrix products, `float32` or `float16`.
        model: plain values from which the network is rebuilt.
        dataset: fingerprint and settings of the training dataset.
        card: date, release, path of the dataset and metrics, for people.
        checksums: file name -> XXH64 in hex; empty if the files are not checked.
    """

    kind: str
    checkpoint: str
    step: int | None
    signature: Signature
    format: ArtifactFormat
    out_of_range: OutOfRange
    quantize: Quantize
    precision: str
    model: dict[str, Any]
    dataset: dict[str, Any]
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    checksums: dict[str, str] = dataclasses.field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes deployment.json into a folder."""
        values: dict[str, Any] = {"format_name": FORMAT, "format_version": FORMAT_VERSION}
        values |= dataclasses.asdict(self)
        (folder / DEPLOYMENT_FILE).write_text(signed(values))

    @classmethod
    def open(cls, folder: Path, kind: str) -> "Deployment":
        """Reads deployment.json of a version to serve, and checks the files.

        Raises:
            DeploymentError: see `load`; or a file differs from its checksum, or the kind differs.
        """
        deployment = cls.load(folder)
        if deployment.kind != kind:
            raise DeploymentError(f"{folder}: holds a {deployment.kind}, expected {kind}")
        for name, checksum in deployment.checksums.items():
            file = folder / name
            try:
                is_same = file_checksum(file, xxhash.xxh64) == checksum
            except OSError as error:
                raise DeploymentError(
                    f"{file}: {error}; deploy the checkpoint again", path=file
                ) from error
            if not is_same:
                raise _damaged(file)
        return deployment

    @classmethod
    def load(cls, folder: Path) -> "Deployment":
        """Reads the deployment.json of a version folder.

        Raises:
            DeploymentError: the file is missing, damaged or of a later version.
        """
        file = folder / DEPLOYMENT_FILE
        try:
            text = file.read_text()
            values = parse_json(text)
        except (OSError, ValueError) as error:
            raise DeploymentError(
                f"{file}: not readable: {error}; deploy the checkpoint again", path=file
            ) from error
        if not isinstance(values, dict) or values.pop("format_name", None) != FORMAT:
            raise DeploymentError(
                f"{file}: not a deployment of this project; deploy the checkpoint again", path=file
            )
        version = values.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise DeploymentError(
                f"{file}: format version {version}, but this code reads {FORMAT_VERSION}; deploy "
                "the checkpoint again",
                path=file,
            )
        if not is_intact(text):
            raise _damaged(file)
        values.pop("checksum", None)
        names = {field.name for field in dataclasses.fields(cls)}
        if values.keys() != names:
            raise DeploymentError(
                f"{file}: keys differ: {sorted(values.keys() ^ names)}", path=file
            )
        if values["format"] not in ARTIFACT_FILES:
            raise DeploymentError(
                f"{file}: its format {values['format']} is no longer supported; deploy the "
                f"checkpoint again with `format` {', '.join(ARTIFACT_FILES)}",
                setting="format",
                path=file,
            )
        try:
            values["signature"] = Signature.from_dict(values["signature"])
        except (KeyError, TypeError) as error:
            raise DeploymentError(f"{file}: signature is malformed: {error}", path=file) from error
        return cls(**values)


def _damaged(file: Path) -> DeploymentError:
    return DeploymentError(
        f"{file}: its checksum differs from that of the deployment; the file is damaged, deploy "
        "the checkpoint again",
        path=file,
    )
