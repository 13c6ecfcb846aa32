# SPDX-License-Identifier: Apache-2.0
"""The models that programs train, search, deploy and ask: one entry each.

Classes and functions of an entry are imported when they are used, since torch takes seconds.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from recsys.data.manifest import Data
from recsys.errors import UserError
from recsys.models.registry import FITTED, Entry
from recsys.ratings.config import RatingsExportOptions
from recsys.settings import joined

if TYPE_CHECKING:
    from absl.flags import FlagValues

    from dlrm.model.clicks import StoredClicks
    from dlrm.serve.served import ServedClicks
    from recsys.ratings.export import RatingsExport
    from recsys.ratings.model import StoredModel
    from recsys.ratings.recommend import Recommending
    from recsys.ratings.served import ServedRatings
    from recsys.serve.checkpoint_export import CheckpointExport


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """What to deploy, and what its requests and answers hold.

    Attributes:
        checkpoint: the checkpoint, or the folder of a run.
        dataset: folder of the training dataset of clicks; None if it is not needed.
        dataset_type: type of this dataset.
        raw: take raw rows of clicks too.
        ratings: what requests and answers of a model of ratings hold.
    """

    checkpoint: Path
    dataset: str | None = None
    dataset_type: str = "split"
    raw: bool = False
    ratings: RatingsExportOptions


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model. Classes and functions are given as `module:name`, since torch takes seconds.

    Attributes:
        name: name after `train`, and in checkpoints, deployments and servers.
        title: name in sentences.
        data: kind of data that it is trained on.
        most_rows: default of the largest batch of a deployment; larger ones raise the latency, not
            the throughput.
        export_class: opens a checkpoint to deploy it.
        raw_export_class: the same for a model of clicks that is deployed to take raw rows.
        open_stored: function that opens a checkpoint for scoring; it returns a `StoredClicks`, or
            a `StoredModel` for ratings.
        served_class: serves a deployment.
        entry: registry entry of a model of ratings that is fitted at once; None for others.
        package: package with `scripts.main`, `scripts.flags` and `recipe` of a model that is
            trained by steps; None for others.
        recipe: class of its recipe.
        blend: name of the model that adds simple models to it.
    """

    name: str
    title: str
    data: Data
    most_rows: int
    export_class: str
    raw_export_class: str = ""
    open_stored: str
    served_class: str
    entry: Entry | None = None
    package: str | None = None
    recipe: str = ""
    blend: str = ""

    def export(self, options: ExportOptions) -> "CheckpointExport":
        """Opens a checkpoint to deploy.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or of another model.
            UserError: the model cannot be deployed with these options.
        """
        if self.data == "ratings":
            return self.export_ratings(options.checkpoint, options.ratings)
        opened: CheckpointExport
        if options.raw:
            opened = resolve_name(self.raw_export_class)(
                options.checkpoint, options.dataset, options.dataset_type
            )
        else:
            opened = resolve_name(self.export_class)(options.checkpoint)
        return opened

    def export_ratings(self, path: Path, options: RatingsExportOptions) -> "RatingsExport":
        """Opens a checkpoint of a model of ratings, to deploy it; see `export`."""
        kind = () if self.entry is None else (self.entry.load(),)
        opened: RatingsExport = resolve_name(self.export_class)(*kind, path, options)
        return opened

    def define_flags(self, values: "FlagValues") -> None:
        """Defines the flags of its program."""
        self._call("define_flags", values)

    def run(self, values: "FlagValues") -> None:
        """Runs its program with parsed flags."""
        self._call("run", values)

    def recommending(self, values: "FlagValues") -> "Recommending":
        """Prepares to recommend with a model of ratings, by parsed flags."""
        prepared: Recommending = self._call("recommending", values)
        return prepared

    def _call(self, function: str, values: "FlagValues") -> Any:
        if self.package is None:
            program = importlib.import_module("recsys_recipes.fitted")
            return getattr(program, function)(values, self.name)
        return getattr(importlib.import_module(f"{self.package}.scripts.main"), function)(values)

    @property
    def flags(self) -> Any:
        """The module that defines its flags and reads its config from them."""
        return importlib.import_module(f"{self.package}.scripts.flags")

    @property
    def recipe_module(self) -> Any:
        """The module that has its recipe and joins its processes."""
        return importlib.import_module(f"{self.package}.recipe")


_SPECS = (
    ModelSpec(
        name="dlrm",
        title="DLRM",
        data="clicks",
        most_rows=4096,
        export_class="dlrm.serve.export:DlrmExport",
        raw_export_class="recsys_recipes.serving.raw_rows:RawDlrmExport",
        open_stored="dlrm.model.weights:DlrmCheckpoint.open",
        served_class="dlrm.serve.served:ServedDlrm",
        package="dlrm",
        recipe="DlrmRecipe",
        blend="blend_clicks",
    ),
    ModelSpec(
        name="logistic",
        title="Logistic regression",
        data="clicks",
        most_rows=4096,
        export_class="recsys_recipes.logistic.serving:LogisticExport",
        raw_export_class="recsys_recipes.serving.raw_rows:RawLogisticExport",
        open_stored="recsys_recipes.logistic.stored:StoredLogistic.open",
        served_class="recsys_recipes.logistic.serving:ServedLogistic",
    ),
    ModelSpec(
        name="blend_clicks",
        title="Blend of clicks",
        data="clicks",
        most_rows=4096,
        export_class="recsys_recipes.blending.clicks.serving:ClicksBlendExport",
        raw_export_class="recsys_recipes.serving.raw_rows:RawClicksBlendExport",
        open_stored="recsys_recipes.blending.clicks.stored:StoredClicksBlend.open",
        served_class="recsys_recipes.blending.clicks.serving:ServedClicksBlend",
    ),
    ModelSpec(
        name="bert4rec",
        title="BERT4Rec",
        data="ratings",
        most_rows=256,
        export_class="bert4rec.serve.export:Bert4RecExport",
        open_stored="bert4rec.model.weights:Bert4RecCheckpoint.open",
        served_class="bert4rec.serve.served:ServedBert4Rec",
        package="bert4rec",
        recipe="Bert4RecRecipe",
        blend="blend",
    ),
    *(
        ModelSpec(
            name=name,
            title=entry.title,
            data="ratings",
            most_rows=256,
            export_class="recsys.models.serving:FittedExport",
            open_stored=f"{entry.module}:{entry.class_name}.open_stored",
            served_class="recsys.models.serving:ServedFitted",
            entry=entry,
        )
        for name, entry in FITTED.items()
    ),
    ModelSpec(
        name="blend",
        title="Blend",
        data="ratings",
        most_rows=256,
        export_class="recsys_recipes.blending.serving:BlendExport",
        open_stored="recsys_recipes.blending.stored:StoredBlend.open",
        served_class="recsys_recipes.blending.serving:ServedBlend",
    ),
)

MODELS: Mapping[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
"""Name -> model."""


def network_of(data: Data) -> ModelSpec:
    """Returns the model of these data that is trained by steps."""
    return next(spec for spec in _SPECS if spec.data == data and spec.package is not None)


def names_of(data: Data) -> list[str]:
    """Returns the names of the models of these data."""
    return [model.name for model in MODELS.values() if model.data == data]


def model_of(checkpoint: Path) -> ModelSpec:
    """Returns the model of a checkpoint.

    Args:
        checkpoint: a checkpoint, the folder of a run, or a folder in NVIDIA's layout.

    Raises:
        CheckpointError: there is no checkpoint, it is incomplete, or its model is unknown.
    """
    from dlrm.model.nvidia_checkpoint import is_nvidia_checkpoint
    from recsys.train.checkpoint import MANIFEST_FILE, MODEL, CheckpointError, read_checkpoint

    if is_nvidia_checkpoint(checkpoint):
        return MODELS["dlrm"]
    opened = read_checkpoint(checkpoint)
    name = str(opened.state.get(MODEL, ""))
    if name not in MODELS:
        file = opened.path / MANIFEST_FILE
        of = f"names the unknown model {name!r}" if name else "does not name its model"
        raise CheckpointError(f"{file}: {of}; the models are {joined(MODELS)}", path=file)
    return MODELS[name]


def served_clicks(kind: str) -> "type[ServedClicks]":
    """Returns the class that serves a model of clicks.

    Raises:
        DeploymentError: there is no such model.
    """
    served: type[ServedClicks] = _served(kind, "clicks")
    return served


def served_ratings(kind: str) -> "type[ServedRatings]":
    """Returns the class that serves a model of ratings.

    Raises:
        DeploymentError: there is no such model.
    """
    served: type[ServedRatings] = _served(kind, "ratings")
    return served


def _served(kind: str, data: Data) -> Any:
    from recsys.serve.manifest import DeploymentError

    if kind not in MODELS or MODELS[kind].data != data:
        raise DeploymentError(f"{kind} is not a model of {data}")
    return resolve_name(MODELS[kind].served_class)


def stored_clicks(checkpoint: Path) -> "StoredClicks":
    """Opens a checkpoint of a model of clicks.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        UserError: the checkpoint is of a model of other data.
    """
    opened: StoredClicks = _open_stored(checkpoint, "clicks")
    return opened


def stored_ratings(checkpoint: Path) -> "StoredModel":
    """Opens a checkpoint of a model of ratings.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        UserError: the checkpoint is of a model of other data.
    """
    opened: StoredModel = _open_stored(checkpoint, "ratings")
    return opened


def _open_stored(checkpoint: Path, data: Data) -> Any:
    model = model_of(checkpoint)
    if model.data != data:
        raise UserError(
            f"`checkpoint` {checkpoint}: holds {model.title}, a model of {model.data}; give a "
            f"model of {data} ({', '.join(names_of(data))})",
            setting="checkpoint",
        )
    return resolve_name(model.open_stored)(checkpoint)
