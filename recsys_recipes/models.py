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
from recsys.models.baselines import COUNTED
from recsys.settings import joined

if TYPE_CHECKING:
    from recsys.ratings.model import StoredModel
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
        raw_ids: folder of the training dataset of ratings, to take and give raw ids.
        top_k: items of an answer.
        titles: give the titles of items too.
        ignore_fingerprint: compare only sizes with the dataset of the training.
    """

    checkpoint: Path
    dataset: str | None = None
    dataset_type: str = "split"
    raw: bool = False
    raw_ids: Path | None = None
    top_k: int = 10
    titles: bool = False
    ignore_fingerprint: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model.

    Attributes:
        name: word after `train`; in checkpoints, deployments and servers.
        title: in sentences.
        data: what it is trained on.
        most_rows: default of the largest batch of a deployment; larger ones raise the latency, not
            the throughput.
        export: opens a checkpoint to deploy.
        open_stored: opens a checkpoint of a model of ratings, to score with.
        package: package with `scripts.flags` and `recipe`, of a model that is trained by steps.
        recipe: class of its recipe.
    """

    name: str
    title: str
    data: Data
    most_rows: int
    export: "Callable[[ExportOptions], CheckpointExport]"
    open_stored: "Callable[[Path], StoredModel] | None" = None
    package: str | None = None
    recipe: str = ""

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


def _of_ratings(options: ExportOptions) -> Any:
    from recsys.ratings.export import RatingsExportOptions

    return RatingsExportOptions(
        top_k=options.top_k,
        raw_ids=options.raw_ids,
        titles=options.titles,
        ignore_fingerprint=options.ignore_fingerprint,
    )


def _export_bert4rec(options: ExportOptions) -> "CheckpointExport":
    from bert4rec.serve.export import Bert4RecExport

    return Bert4RecExport(options.checkpoint, _of_ratings(options))


def _open_bert4rec(checkpoint: Path) -> "StoredModel":
    from bert4rec.model.weights import OpenedCheckpoint

    return OpenedCheckpoint.open(checkpoint)


def _open_counted(name: str, checkpoint: Path) -> "StoredModel":
    from recsys.ratings.counted.stored import StoredItemToItem

    return StoredItemToItem.open(checkpoint, COUNTED[name])


def _export_counted(name: str, options: ExportOptions) -> "CheckpointExport":
    from recsys.models.serving import CountedExport

    return CountedExport(COUNTED[name], options.checkpoint, _of_ratings(options))


_SPECS = (
    ModelSpec(
        name="dlrm",
        title="DLRM",
        data="clicks",
        most_rows=4096,
        export=_export_dlrm,
        package="dlrm",
        recipe="DlrmRecipe",
    ),
    ModelSpec(
        name="bert4rec",
        title="BERT4Rec",
        data="ratings",
        most_rows=256,
        export=_export_bert4rec,
        open_stored=_open_bert4rec,
        package="bert4rec",
        recipe="Bert4RecRecipe",
    ),
    *(
        ModelSpec(
            name=name,
            title=model.title,
            data="ratings",
            most_rows=256,
            export=functools.partial(_export_counted, name),
            open_stored=functools.partial(_open_counted, name),
        )
        for name, model in COUNTED.items()
    ),
)

MODELS: Mapping[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
"""Name -> model."""


def model_of(checkpoint: Path) -> ModelSpec:
    """Returns the model that a checkpoint is of.

    Args:
        checkpoint: a checkpoint, the folder of a run, or a folder in NVIDIA's layout.

    Raises:
        CheckpointError: there is none, or it is incomplete.
        UserError: its model is none of these.
    """
    from dlrm.model.nvidia_checkpoint import is_nvidia_checkpoint
    from recsys.train.checkpoint import MODEL, read_checkpoint

    if is_nvidia_checkpoint(checkpoint):
        return MODELS["dlrm"]
    opened = read_checkpoint(checkpoint)
    name = str(opened.state.get(MODEL, ""))
    if name not in MODELS:
        of = f"is of the model {name}" if name else "names no model"
        raise UserError(
            f"{opened.path}: {of}; known are {joined(MODELS)}",
            setting="checkpoint",
            path=opened.path,
        )
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
