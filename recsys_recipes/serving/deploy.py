# SPDX-License-Identifier: Apache-2.0
"""Deploys the checkpoint of a model to a Triton repository.

recsys-recipes deploy --checkpoint /checkpoints/dlrm --repository /models

The model and its settings are read from the checkpoint. Serving settings are kept from the model's
previous deployment, unless a flag changes them. Without a checkpoint:

    recsys-recipes deploy --repository /models --rollback
    recsys-recipes deploy --repository /models --version_policy specific:2
    recsys-recipes deploy --repository /models --apply changes.delta

docs/deployment.md describes every flag.
"""

import contextlib
import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from absl import flags

from dlrm.config import DataConfig
from recsys import program
from recsys.data.manifest import Data
from recsys.errors import UserError
from recsys.flags import define_flags as define_settings
from recsys.flags import refuse_unused, values_from_flags
from recsys.ratings.config import RatingsExportOptions
from recsys.serve.config_pbtxt import CONTAINER_BACKENDS, FORMATS, ServingSettings
from recsys.serve.deploy import DeploySettings, deploy
from recsys.serve.manifest import Deployment, DeploymentError
from recsys.serve.reconfigure import (
    change_settings,
    changes,
    hand_edits,
    kept_settings,
    only_model,
    require_changeable,
    roll_back,
)
from recsys.serve.versions.repository import ModelRepository
from recsys.settings import Not, checked, declared, joined, section_from_dict, setting
from recsys.train.config import require_checkpoint
from recsys.train.origin import ignore_fingerprint
from recsys_recipes import __version__
from recsys_recipes.models import ExportOptions, ModelSpec, model_of, names_of
from recsys_recipes.serving.nvidia_options import translate

if TYPE_CHECKING:
    from recsys.serve.served import ServedModel

_SCORED_ROWS = 16384
"""Rows of --dataset that are evaluated at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeployerOptions:
    """Settings of only this program: checkpoint, server and evaluated dataset."""

    checkpoint: Path | None = setting(
        None, "Folder of a checkpoint, or of a run; without it, flags change the serving settings"
    )
    rollback: bool = setting(False, "Serve the previous version, and deploy nothing")
    delta: Path | None = setting(
        None,
        "Also write what changed since the previous version to this file, for --apply on the hosts "
        "that serve",
    )
    apply: Path | None = setting(
        None, "Add the version that a file of --delta describes, and deploy no checkpoint"
    )
    target: Literal["bundled", "container"] = setting(
        "bundled",
        "The server: that of the package nvidia-pytriton, which has only the backends python and "
        "native (bundled), or NVIDIA's container",
    )
    fp16: bool = setting(False, "Multiply in float16; needs --device gpu")
    top_k: int = setting(10, "Items in the answer to each history, for a model of ratings")
    raw_ids: Path | None = setting(
        None, "Dataset folder whose raw item ids a model of ratings takes and returns"
    )
    titles: bool = setting(
        False, "With --raw_ids, another output has the titles of the items, as in the dataset"
    )
    raw: bool = setting(
        False,
        "A model of clicks also takes raw rows, as lines or fields, which the rules and "
        "dictionaries of --dataset transform",
    )
    dataset: str | None = setting(
        None, "Dataset folder whose --split is scored before a model of clicks is deployed"
    )
    dataset_type: Literal["split", "binary", "parquet"] = setting(
        "split", "Type of --dataset", used_with={"dataset": Not(None)}
    )
    split: Literal["validation", "test"] = setting(
        "validation", "Split of --dataset", used_with={"dataset": Not(None)}
    )
    ignore_fingerprint: bool = ignore_fingerprint()

    def export(self, checkpoint: Path) -> ExportOptions:
        """Returns what to deploy, and what its requests and answers hold."""
        return ExportOptions(
            checkpoint=checkpoint,
            dataset=self.dataset,
            dataset_type=self.dataset_type,
            raw=self.raw,
            ratings=RatingsExportOptions(
                top_k=self.top_k,
                raw_ids=self.raw_ids,
                titles=self.titles,
                ignore_fingerprint=self.ignore_fingerprint,
            ),
        )

    @property
    def data(self) -> DataConfig:
        """The dataset and split that are scored."""
        return DataConfig(
            dataset=self.dataset, dataset_type=self.dataset_type, eval_split=self.split
        )


SECTIONS: dict[type, str] = {
    DeployerOptions: "deployer",
    DeploySettings: "deployment",
    ServingSettings: "serving",
}
"""Sections of the flags -> their headings."""


KEPT = {field.name for field in declared(ServingSettings)} | {
    *("out_of_range", "quantize", "target", "fp16", "top_k", "raw_ids", "titles", "raw"),
    "checksums",
}
"""Settings that the next deployment of a model keeps."""

_OMITTED_AT_DEFAULT = {("titles", False), ("raw", False), ("checksums", True)}
"""Omitted from deployments, so that their bytes are the same as before these settings existed."""


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines every flag; two defaults depend on backend and model."""
    defaults = {"format": None, "max_batch_size": None}
    define_settings(flag_values, SECTIONS, defaults=defaults)


def run(flag_values: flags.FlagValues) -> None:
    """Deploys a checkpoint, rolls back, or changes settings of serving."""
    values, given = values_from_flags(flag_values, SECTIONS)
    repository = ModelRepository(values["repository"])
    if values["rollback"]:
        if given - {"rollback", "repository", "name"}:
            raise UserError(
                "`rollback` takes only `repository` and `name`",
                settings=("rollback", "repository", "name"),
            )
        name = only_model(repository, values["name"])
        was, now = roll_back(repository, name)
        program.print_with_flags(
            f"{name}: version {joined(was)} -> {joined(now)}, until the next deployment or "
            "`version_policy`"
        )
    elif values["apply"] is not None:
        if given - {"apply", "repository", "name"}:
            raise UserError(
                "`apply` takes only `repository` and `name`",
                settings=("apply", "repository", "name"),
            )
        _apply(values["apply"], repository, values["name"])
    elif values["checkpoint"] is not None:
        require_checkpoint(values["checkpoint"], "checkpoint")
        model = model_of(values["checkpoint"])
        with repository.locked():  # kept settings are read and written as one change
            _deploy(flag_values, values, given, repository, model)
    elif given & KEPT:
        require_changeable(given)
        name = only_model(repository, values["name"])
        chosen = {key: values[key] for key in given & KEPT}
        with repository.locked():
            kept = _read_kept(repository, name, chosen)
            if not kept:
                raise UserError(
                    f"`checkpoint` is needed: {repository.config_file(name)} holds no settings",
                    setting="checkpoint",
                )
            served = change_settings(repository, name, kept | chosen, given)
        program.print_line(f"{name}: serves version {joined(served)}")
    else:
        raise UserError("`checkpoint` is needed (--help shows all flags)", setting="checkpoint")


def _apply(delta: Path, repository: ModelRepository, name: str | None) -> None:
    """Adds the version that a delta describes; servers see it once it is complete."""
    from recsys.serve.versions.delta import add_version
    from recsys_recipes.serving.grown_files import GROWN

    folder, served = add_version(delta, repository, only_model(repository, name), GROWN)
    program.print_line(f"Applied {delta} as {folder}")
    if int(folder.name) not in served:
        program.print_with_flags(
            f"It is not served: `version_policy` chooses version {joined(served)}"
        )


def _read_kept(repository: ModelRepository, name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Reads the settings of the previous deployment; prints which of them change."""
    file = repository.config_file(name)
    if not file.is_file():
        return {}
    hints = {n: h for section in SECTIONS for n, h in typing.get_type_hints(section).items()}
    kept = {
        key: Path(value) if value and key == "raw_ids" else checked(f"{file}: {key}", hint, value)
        for key, value in kept_settings(file).items()
        if key in KEPT
        for hint in (hints[key],)
    }
    for line in (*changes(kept, chosen), *hand_edits(repository, name, kept)):
        program.print_with_flags(line)
    return kept


def _print_kept(
    kept: dict[str, Any], given: set[str], values: dict[str, Any], most_rows: int
) -> None:
    """Prints which settings are kept from the previous deployment."""
    # Settings that are not given have their default here, except the two that depend on others.
    backend = kept.get("backend", values["backend"])
    defaults = values | {"format": FORMATS[backend][0], "max_batch_size": most_rows}
    lasting = [
        f"--{name} {joined(value) if isinstance(value, tuple) else value}"
        for name, value in kept.items()
        if name not in given and value != defaults[name]
    ]
    if lasting:
        program.print_line(f"Kept from the previous deployment: {', '.join(lasting)}")


def _require_kind(repository: ModelRepository, name: str, kind: str, checkpoint: Path) -> None:
    """Refuses a name that holds another model."""
    for version in repository.versions(name)[-1:]:
        with contextlib.suppress(DeploymentError):  # a damaged one
            held = Deployment.load(repository.root / name / str(version)).kind
            if held != kind:
                raise UserError(
                    f"`name` {name}: {repository.root / name} holds a {held}, but {checkpoint} is "
                    f"a {kind}; choose another `name`",
                    setting="name",
                )


def _deploy(
    flag_values: flags.FlagValues,
    values: dict[str, Any],
    given: set[str],
    repository: ModelRepository,
    model: ModelSpec,
) -> None:
    """Deploys a checkpoint and compares the deployed version with it."""
    # Imported late: torch takes seconds, and a typo is refused before.
    from dlrm.serve.export import ClicksExport
    from dlrm.serve.score import check_dataset_of, has_rows, score_served_split
    from recsys.ratings.export import RatingsExport

    name = values["name"] or model.name
    _require_kind(repository, name, model.name, values["checkpoint"])
    chosen = {key: values[key] for key in given & KEPT}
    kept = _read_kept(repository, name, chosen)
    _print_kept(kept, given, values, model.most_rows)
    values = values | kept | chosen
    refuse_unused(flag_values, values, SECTIONS)
    options = section_from_dict(DeployerOptions, values)
    assert options.checkpoint is not None
    _refuse_settings_of_other_data(model, options.checkpoint, given)
    export = model.export(options.export(options.checkpoint))
    if isinstance(export, ClicksExport) and options.dataset is not None:
        check_dataset_of(export.stored, options.data, ignore_fingerprint=options.ignore_fingerprint)
    settings = _settings(values, options, model.most_rows)

    def measure(served: "ServedModel") -> dict[str, Any]:
        if not isinstance(export, ClicksExport) or options.dataset is None:
            return {}
        if not has_rows(options.data):
            program.print_with_flags(
                f"Not scored: `split` {options.split} of `dataset` {options.dataset} has no rows"
            )
            return {}
        scored = score_served_split(
            options.data,
            served.deployment.signature,
            lambda requests: map(served.respond, requests),
            _SCORED_ROWS,
            export.model,
            check_ids=not export.stored.hash_indices,
        )
        assert scored.offline is not None
        was, now = scored.offline.auc, scored.served.auc
        program.print_line(
            f"AUC on the {options.split} split: {now:.6f}, of the checkpoint {was:.6f}, "
            f"difference {now - was:+.6f}"
        )
        scores = dataclasses.asdict(scored.served) | {"checkpoint_auc": was}
        return {"dataset": options.dataset, "split": options.split} | scores

    earlier = repository.versions(name)[-1:]
    if options.delta is not None and not earlier:
        raise UserError(
            f"`delta` {options.delta}: {name} has no previous version in {repository.root}; deploy "
            "the first version without it",
            setting="delta",
        )

    def write_changes(folder: Path) -> None:
        # Before the version is there: a version is never replaced, so if this ended in between, the
        # same command could not write the delta any more.
        if options.delta is not None:
            from recsys.serve.versions.delta import write_delta
            from recsys_recipes.serving.grown_files import GROWN

            before = repository.root / name / str(earlier[0])
            write_delta(before, folder, options.delta, GROWN)

    deployed = deploy(export, settings, measure, repository, write_changes)
    program.print_line(f"Checked: {deployed.parity}")
    if options.delta is not None:
        sizes = sum(file.stat().st_size for file in deployed.folder.iterdir() if file.is_file())
        share = options.delta.stat().st_size / sizes
        program.print_line(f"Wrote {options.delta}: {share:.1%} of the version's bytes")
    if settings.quantize != "none" and options.dataset is None:
        program.print_line(
            "To see what 8 bits cost in AUC, add --dataset, a folder of prepared rows"
        )
    program.print_line(f"Deployed {export.path} as {deployed.folder}")
    if isinstance(export, RatingsExport) and options.raw_ids is None:
        program.print_line(
            f"It takes and returns the item numbers of the dataset, 1 to {export.num_items}; with "
            "--raw_ids DATASET, the ids of the raw ratings"
        )
    policy = settings.serving.version_policy
    if int(deployed.folder.name) not in deployed.served:
        program.print_line(
            f"It is not served: --version_policy {policy} chooses version {joined(deployed.served)}"
        )


_OF_DATA: Mapping[Data, tuple[str, ...]] = {
    "clicks": ("raw", "dataset", "dataset_type", "split"),
    "ratings": ("raw_ids", "titles", "top_k"),
}
"""Settings that only models of these data have."""
_INSTEAD: Mapping[Data, str] = {
    "clicks": "raw rows with `raw` and `dataset`",
    "ratings": "raw item ids with `raw_ids`",
}
"""What models of these data take instead."""


def _refuse_settings_of_other_data(model: ModelSpec, checkpoint: Path, given: set[str]) -> None:
    for data, names in _OF_DATA.items():
        others = [name for name in names if name in given]
        if others and data != model.data:
            raise UserError(
                f"{', '.join(f'`{name}`' for name in others)}: only for models of {data} "
                f"({', '.join(names_of(data))}). `checkpoint` {checkpoint} is of {model.title}, a "
                f"model of {model.data}, which takes {_INSTEAD[model.data]}",
                settings=(*others, "checkpoint"),
            )


def _settings(values: dict[str, Any], options: DeployerOptions, most_rows: int) -> DeploySettings:
    """Fills in the defaults of format and batch size."""
    backend = values["backend"]
    if options.target == "bundled" and backend in CONTAINER_BACKENDS:
        raise UserError(
            f"--backend {backend}: the bundled server has only the backends python and native; "
            "add --target container, or keep --backend python and choose --format"
        )
    largest = values["max_batch_size"]
    values = values | {
        "format": values["format"] or FORMATS[backend][0],
        "max_batch_size": most_rows if largest is None else largest,
    }
    deployment = {
        "serving": section_from_dict(ServingSettings, values),
        "precision": "float16" if options.fp16 else "float32",
        "release": __version__,
        "kept": {
            key: value
            for key, value in values.items()
            if key in KEPT and (key, value) not in _OMITTED_AT_DEFAULT
        },
    }
    return section_from_dict(DeploySettings, values | deployment)


def start() -> None:
    """Runs the program with the command line of the process."""
    values = program.new_flags()
    define_flags(values)
    try:
        sys.argv[1:] = translate(sys.argv[1:])
    except UserError as error:
        sys.exit(program.fail(str(error), error.settings))
    program.start(run, values)


if __name__ == "__main__":
    start()
