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
    from dlrm.model.clicks import StoredClicks
    from dlrm.serve.export import ClicksExport
    from dlrm.serve.served import ServedClicks
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
        open_clicks: opens a checkpoint of a model of clicks, to score with.
        served_clicks: returns the class that serves a model of clicks.
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
    of_clicks: "Callable[[ExportOptions], ClicksExport] | None" = None
    open_clicks: "Callable[[Path], StoredClicks] | None" = None
    served_clicks: "Callable[[], type[ServedClicks]] | None" = None
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


def _export_dlrm(options: ExportOptions) -> "ClicksExport":
    from dlrm.serve.export import DlrmExport
    from recsys_recipes.serving.raw_rows import RawDlrmExport

    if options.raw:
        return RawDlrmExport(options.checkpoint, options.dataset, options.dataset_type)
    return DlrmExport(options.checkpoint)


def _open_dlrm(checkpoint: Path) -> "StoredClicks":
    from dlrm.model.weights import DlrmCheckpoint

    return DlrmCheckpoint.open(checkpoint)


def _served_dlrm() -> "type[ServedClicks]":
    from dlrm.serve.served import ServedDlrm

    return ServedDlrm


def _export_logistic(options: ExportOptions) -> "ClicksExport":
    from recsys_recipes.logistic.serving import LogisticExport
    from recsys_recipes.serving.raw_rows import RawLogisticExport

    if options.raw:
        return RawLogisticExport(options.checkpoint, options.dataset, options.dataset_type)
    return LogisticExport(options.checkpoint)


def _open_logistic(checkpoint: Path) -> "StoredClicks":
    from recsys_recipes.logistic.stored import StoredLogistic

    return StoredLogistic.open(checkpoint)


def _served_logistic() -> "type[ServedClicks]":
    from recsys_recipes.logistic.serving import ServedLogistic

    return ServedLogistic


def _export_blend_clicks(options: ExportOptions) -> "ClicksExport":
    from recsys_recipes.blending.clicks.serving import ClicksBlendExport
    from recsys_recipes.serving.raw_rows import RawClicksBlendExport

    if options.raw:
        return RawClicksBlendExport(options.checkpoint, options.dataset, options.dataset_type)
    return ClicksBlendExport(options.checkpoint)


def _open_blend_clicks(checkpoint: Path) -> "StoredClicks":
    from recsys_recipes.blending.clicks.stored import StoredClicksBlend

    return StoredClicksBlend.open(checkpoint)


def _served_blend_clicks() -> "type[ServedClicks]":
    from recsys_recipes.blending.clicks.serving import ServedClicksBlend

    return ServedClicksBlend


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
        open_clicks=_open_dlrm,
        served_clicks=_served_dlrm,
        package="dlrm",
        recipe="DlrmRecipe",
    ),
    ModelSpec(
        name="logistic",
        title="Logistic regression",
        data="clicks",
        most_rows=4096,
        of_clicks=_export_logistic,
        open_clicks=_open_logistic,
        served_clicks=_served_logistic,
    ),
    ModelSpec(
        name="blend_clicks",
        title="Blend of clicks",
        data="clicks",
        most_rows=4096,
        of_clicks=_export_blend_clicks,
        open_clicks=_open_blend_clicks,
        served_clicks=_served_blend_clicks,
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


def served_clicks(kind: str) -> "type[ServedClicks]":
    """Returns the class that serves a model of clicks.

    Raises:
        DeploymentError: there is no such model.
    """
    from recsys.serve.manifest import DeploymentError

    served = MODELS[kind].served_clicks if kind in MODELS else None
    if served is None:
        raise DeploymentError(f"{kind} is no model of clicks")
    return served()


def stored_clicks(checkpoint: Path) -> "StoredClicks":
    """Opens a checkpoint of a model of clicks.

    Raises:
        CheckpointError: it is missing or damaged.
        UserError: it is of a model of other data.
    """
    model = model_of(checkpoint)
    if model.open_clicks is None:
        raise _of_other_data(checkpoint, model, "clicks")
    return model.open_clicks(checkpoint)


def stored_ratings(checkpoint: Path) -> "StoredModel":
    """Opens a checkpoint of a model of ratings.

    Raises:
        CheckpointError: it is missing or damaged.
        UserError: it is of a model of other data.
    """
    model = model_of(checkpoint)
    if model.open_stored is None:
        raise _of_other_data(checkpoint, model, "ratings")
    return model.open_stored(checkpoint)


def _of_other_data(checkpoint: Path, model: ModelSpec, data: Data) -> UserError:
    return UserError(
        f"`checkpoint` {checkpoint}: is of {model.title}, a model of {model.data}; one of {data} "
        "is needed here",
        setting="checkpoint",
    )
