# SPDX-License-Identifier: Apache-2.0
"""`deployment.json`: describes a version, in its folder."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from recsys.errors import UserError
from recsys.serve.signature import Signature

DEPLOYMENT_FILE = "deployment.json"
WEIGHTS_FILE = "weights.safetensors"
FORMAT = "recsys-recipes deployment"
FORMAT_VERSION = 1

Backend = Literal["python", "native", "pytorch", "onnx"]
ArtifactFormat = Literal["eager", "torchscript", "onnx"]
OutOfRange = Literal["error", "zero"]
Quantize = Literal["none", "int8"]

ARTIFACT_FILES: dict[ArtifactFormat, str] = {
    "eager": WEIGHTS_FILE,
    "torchscript": "model.pt",
    "onnx": "model.onnx",
}
"""The file that each format is served from."""


class DeploymentError(UserError):
    """A deployed version is missing, damaged or of another kind."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A version of a model.

    Attributes:
        kind: `dlrm` or `bert4rec`.
        checkpoint: name of the checkpoint's folder.
        step: training steps of the checkpoint; None if it was not recorded.
        signature: names, types and shapes of inputs and outputs.
        out_of_range: treatment of ids outside their table: an error, or row 0.
        precision: type of matrix products, `float32` or `float16`.
        model: plain values from which the network is rebuilt.
        dataset: fingerprint and settings of the training dataset.
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

    def save(self, folder: Path) -> None:
        """Writes deployment.json into a folder."""
        values: dict[str, Any] = {"format_name": FORMAT, "format_version": FORMAT_VERSION}
        values |= dataclasses.asdict(self)
        (folder / DEPLOYMENT_FILE).write_text(json.dumps(values, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Deployment":
        """Reads the deployment.json of a version folder.

        Raises:
            DeploymentError: it is missing, damaged or of a later version.
        """
        file = folder / DEPLOYMENT_FILE
        try:
            values = json.loads(file.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise DeploymentError(
                f"{file}: not readable: {error}; deploy the checkpoint again"
            ) from error
        if not isinstance(values, dict) or values.pop("format_name", None) != FORMAT:
            raise DeploymentError(f"{file}: not a deployment of this project")
        version = values.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise DeploymentError(
                f"{file}: format version {version}, this code reads {FORMAT_VERSION}"
            )
        names = {field.name for field in dataclasses.fields(cls)}
        if values.keys() != names:
            raise DeploymentError(f"{file}: keys differ: {sorted(values.keys() ^ names)}")
        if values["format"] not in ARTIFACT_FILES:
            raise DeploymentError(
                f"{file}: its format {values['format']} is not read any more; deploy the "
                f"checkpoint again with `format` {', '.join(ARTIFACT_FILES)}"
            )
        try:
            values["signature"] = Signature.from_dict(values["signature"])
        except (KeyError, TypeError) as error:
            raise DeploymentError(f"{file}: signature is malformed: {error}") from error
        return cls(**values)
