# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints, deployed versions and deltas."""

import shutil
from pathlib import Path

import torch

from bert4rec.model.weights import Bert4RecCheckpoint
from dlrm.model.weights import DlrmCheckpoint
from dlrm.serve.native import NativeDlrm
from dlrm.serve.served import ServedDlrm
from recsys.errors import UserError
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.versions.delta import apply_delta, read_delta, write_delta
from tests.dlrm.deployed import deploy_checkpoint, draw
from tests.fuzz.folders import Folder, repair_manifest, replace
from tests.fuzz.target import Target
from tests.recsys.serve.checkpoints import bert4rec_checkpoint, dlrm_checkpoint, without_checksums

_CPU = torch.device("cpu")


def _read_dlrm(root: Path) -> None:
    stored = DlrmCheckpoint.open(root)
    stored.load()


def _read_bert4rec(root: Path) -> None:
    stored = Bert4RecCheckpoint.open(root)
    stored.load()


def _write_version(root: Path) -> None:
    checkpoint, _ = dlrm_checkpoint(root.with_name(root.name + "_checkpoint"))
    made = deploy_checkpoint(
        checkpoint, root.with_name(root.name + "_models"), serving=ServingSettings(backend="native")
    )
    root.rmdir()
    made.folder.rename(root)


def _repair_version(root: Path) -> None:
    """Takes the checksums of the files away; deployment.json is trusted by its own."""
    try:
        text = (root / "deployment.json").read_text()
        replace(root / "deployment.json", text.encode())  # not a link to the original
        without_checksums(root)
    except (UserError, OSError, ValueError):
        return


def _read_version(root: Path) -> None:
    for kind in (NativeDlrm, ServedDlrm):
        try:
            served = kind.open(root, _CPU)
            served.respond(draw(3))
        except UserError:
            pass


def _write_delta(root: Path) -> None:
    """Writes a version, and the delta of a later one whose tables have more rows."""
    for number, sizes in ((1, (5, 200)), (2, (6, 250))):
        checkpoint, _ = dlrm_checkpoint(root.with_name(f"{root.name}_checkpoint_{number}"), sizes)
        models = root.with_name(f"{root.name}_models_{number}")
        serving = ServingSettings(backend="native")
        deploy_checkpoint(checkpoint, models, serving=serving).folder.rename(root / str(number))
    write_delta(root / "1", root / "2", root / "delta.safetensors")
    shutil.rmtree(root / "2")


def _read_delta(root: Path) -> None:
    read_delta(root / "delta.safetensors")
    made = root / "made"
    made.mkdir()
    apply_delta(root / "delta.safetensors", root / "1", made)


DLRM = Folder(lambda root: dlrm_checkpoint(root), _read_dlrm, repair_manifest, (UserError,))
BERT4REC = Folder(
    lambda root: bert4rec_checkpoint(root), _read_bert4rec, repair_manifest, (UserError,)
)
VERSION = Folder(_write_version, _read_version, _repair_version, (UserError,))
DELTA = Folder(_write_delta, _read_delta, lambda root: None, (UserError, OSError))


def dlrm_checkpoints(folder: Path, data: bytes) -> None:
    """Opens and loads the checkpoint of a DLRM."""
    DLRM.check(folder, data)


def bert4rec_checkpoints(folder: Path, data: bytes) -> None:
    """Opens and loads the checkpoint of a BERT4Rec."""
    BERT4REC.check(folder, data)


def deployed_versions(folder: Path, data: bytes) -> None:
    """Opens a deployed version by the native backend and by the Python one, and asks it."""
    VERSION.check(folder, data)


def deltas(folder: Path, data: bytes) -> None:
    """Applies a damaged delta to a damaged version."""
    DELTA.check(folder, data)


TARGETS = tuple(map(Target, (dlrm_checkpoints, bert4rec_checkpoints, deployed_versions, deltas)))
