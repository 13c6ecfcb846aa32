# SPDX-License-Identifier: Apache-2.0
"""The models that programs train, search, deploy and ask: one entry each.

What an entry names is imported when it is used, since torch takes seconds.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recsys.errors import UserError
from recsys.models.registry import FITTED
from recsys.ratings.config import RatingsExportOptions
from recsys.settings import joined

if TYPE_CHECKING:
    from recsys.ratings.export import RatingsExport
    from recsys.ratings.model import StoredModel
    from recsys.ratings.served import ServedRatings
    from recsys.serve.checkpoint_export import CheckpointExport

Data = Literal["clicks", "ratings"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """What a deployment takes and gives.

    Attributes:
        checkpoint: the checkpoint, or the folder of a run.
        dataset: folder of the training dataset of clicks.
        dataset_type: its type.
        raw: take raw rows of clicks too.
        ratings: what a model of ratings takes and gives.
    """

    checkpoint: Path
    dataset: str | None = None
    dataset_type: str = "split"
    raw: bool = False
    ratings: RatingsExportOptions


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model.

    Attributes:
        name: word after `train`; in checkpoints, deployments and servers.
        title: in sentences.
        data: what it is trained on.
        most_rows: default of the largest batch of a deployment; larger ones raise the latency, not
            the throughput.
        of_clicks: opens a checkpoint of a model of clicks, to deploy it.
        of_ratings: opens a checkpoint of a model of ratings, to deploy it.
        open_stored: opens a checkpoint of a model of ratings, to score with.
        served: returns the class that serves a model of ratings.
        package: package with `scripts.flags` and `recipe`, of a model that is trained by steps.
        recipe: class of its recipe.
    """

    name: str
    title: str
    data: Data
    most_rows: int
    of_clicks: "Callable[[ExportOptions], CheckpointExport] | None" = None
    of_ratings: "Callable[[Path, RatingsExportOptions], RatingsExport] | None" = None
    open_stored: "Callable[[Path], StoredModel] | None" = None
    served: "Callable[[], type[ServedRatings]] | None" = None
    package: str | None = None
    recipe: str = ""

    def export(self, options: ExportOptions) -> "CheckpointExport":
        """Opens a checkpoint to deploy.

        Raises:
            CheckpointError: it is missing, damaged or of another model.
            UserError: the model cannot be deployed so.
        """
        if self.of_clicks is not None:
            return self.of_clicks(options)
        return self.export_ratings(options.checkpoint, options.ratings)

    def export_ratings(self, path: Path, options: RatingsExportOptions) -> "RatingsExport":
        """Opens a checkpoint of a model of ratings, to deploy it; see `export`."""
        assert self.of_ratings is not None, "a model of ratings"
        return self.of_ratings(path, options)

    @property
    def flags(self) -> Any:
        """The module that defines its flags and reads its config from them."""
        return importlib.import_module(f"{self.package}.scripts.flags")

    @property
    def recipe_module(self) -> Any:
        """The module that has its recipe and joins its processes."""
        return importlib.import_module(f"{self.package}.recipe")


def _export_dlrm(options: ExportOptions) -> "CheckpointExport":
    from dlrm.serve.export import DlrmExport
    from recsys_recipes.serving.raw_rows import RawDlrmExport

    if options.raw:
        return RawDlrmExport(options.checkpoint, options.dataset, options.dataset_type)
    return DlrmExport(options.checkpoint)


def _export_bert4rec(path: Path, options: RatingsExportOptions) -> "RatingsExport":
    from bert4rec.serve.export import Bert4RecExport

    return Bert4RecExport(path, options)


def _open_bert4rec(checkpoint: Path) -> "StoredModel":
    from bert4rec.model.weights import Bert4RecCheckpoint

    return Bert4RecCheckpoint.open(checkpoint)


def _served_bert4rec() -> "type[ServedRatings]":
    from bert4rec.serve.served import ServedBert4Rec

    return ServedBert4Rec


def _export_fitted(name: str, path: Path, options: RatingsExportOptions) -> "RatingsExport":
    from recsys.models.serving import FittedExport

    return FittedExport(FITTED[name].load(), path, options)


def _open_fitted(name: str, checkpoint: Path) -> "StoredModel":
    return FITTED[name].load().open_stored(checkpoint)


def _served_fitted() -> "type[ServedRatings]":
    from recsys.models.serving import ServedFitted

    return ServedFitted


def _export_blend(path: Path, options: RatingsExportOptions) -> "RatingsExport":
    from recsys_recipes.blending.serving import BlendExport

    return BlendExport(path, options)


def _served_blend() -> "type[ServedRatings]":
    from recsys_recipes.blending.serving import ServedBlend

    return ServedBlend


def _open_blend(checkpoint: Path) -> "StoredModel":
    from recsys_recipes.blending.stored import StoredBlend

    return StoredBlend.open(checkpoint)


_SPECS = (
    ModelSpec(
        name="dlrm",
        title="DLRM",
        data="clicks",
        most_rows=4096,
        of_clicks=_export_dlrm,
        package="dlrm",
        recipe="DlrmRecipe",
    ),
    ModelSpec(
        name="bert4rec",
        title="BERT4Rec",
        data="ratings",
        most_rows=256,
        of_ratings=_export_bert4rec,
        open_stored=_open_bert4rec,
        served=_served_bert4rec,
        package="bert4rec",
        recipe="Bert4RecRecipe",
    ),
    *(
        ModelSpec(
            name=name,
            title=model.title,
            data="ratings",
            most_rows=256,
            of_ratings=functools.partial(_export_fitted, name),
            open_stored=functools.partial(_open_fitted, name),
            served=_served_fitted,
        )
        for name, model in FITTED.items()
    ),
    ModelSpec(
        name="blend",
        title="Blend",
        data="ratings",
        most_rows=256,
        of_ratings=_export_blend,
        open_stored=_open_blend,
        served=_served_blend,
    ),
)

MODELS: Mapping[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
"""Name -> model."""


def model_of(checkpoint: Path) -> ModelSpec:
    """Returns the model that a checkpoint is of.

    Args:
        checkpoint: a checkpoint, the folder of a run, or a folder in NVIDIA's layout.

    Raises:
        CheckpointError: there is none, it is incomplete, or its model is none of these.
    """
    from dlrm.model.nvidia_checkpoint import is_nvidia_checkpoint
    from recsys.train.checkpoint import MANIFEST_FILE, MODEL, CheckpointError, read_checkpoint

    if is_nvidia_checkpoint(checkpoint):
        return MODELS["dlrm"]
    opened = read_checkpoint(checkpoint)
    name = str(opened.state.get(MODEL, ""))
    if name not in MODELS:
        file = opened.path / MANIFEST_FILE
        of = f"is of the model {name!r}" if name else "does not say of which model it is"
        raise CheckpointError(f"{file}: {of}; the models are {joined(MODELS)}", path=file)
    return MODELS[name]


def stored_ratings(checkpoint: Path) -> "StoredModel":
    """Opens a checkpoint of a model of ratings.

    Raises:
        CheckpointError: it is missing or damaged.
        UserError: it is of a model of other data.
    """
    model = model_of(checkpoint)
    if model.open_stored is None:
        raise UserError(
            f"`checkpoint` {checkpoint}: is of {model.title}, a model of {model.data}; the server "
            "answers with items",
            setting="checkpoint",
        )
    return model.open_stored(checkpoint)
