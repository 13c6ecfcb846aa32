# SPDX-License-Identifier: Apache-2.0
"""Rules and dictionaries of an existing dataset, applied to new rows."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preproc.clicks.dictionaries import RARE, Dictionaries
from preproc.clicks.job import ClicksJob
from preproc.clicks.rules import OF_EVICTION, ClicksSemantics, one_split
from preproc.clicks.schema.row_format import Edges
from preproc.clicks.schema.schema import Schema
from preproc.files.errors import PreprocError
from preproc.files.workspace import Workspace
from recsys.data.errors import DatasetError
from recsys.data.growing.categories import DICTIONARY_FOLDER, occurrences_path
from recsys.data.manifest import LOG_KINDS, Manifest, file_checksum, fingerprint

OF_NEW_ROWS = ("split_fractions", "split_rows", "split_days", "shuffle_seed", "unlabelled")
"""Settings of the transform that describe the rows, not the meaning of ids and numbers."""

APPLIED = "applied"
"""Key in a manifest's semantics: `OF_NEW_ROWS` of a dataset made by another dataset's rules."""

_ALL_FOR_TEST = {"split_fractions": None, "split_rows": (0, 0, -1), "split_days": None}


def semantics_of_dataset(dataset: Path, overrides: Mapping[str, Any]) -> ClicksSemantics:
    """Returns the rules of a dataset, to apply to new rows.

    All rows go to `test` unless `overrides` has a split.

    Args:
        dataset: a dataset of kind `criteo` or `clicks` with its dictionaries.
        overrides: settings among `OF_NEW_ROWS`.

    Raises:
        PreprocError: this project did not make the folder, or a setting would change its rules.
    """
    wrong = sorted(set(overrides) - set(OF_NEW_ROWS))
    if wrong:
        names = ", ".join(f"`{name}`" for name in wrong)
        raise PreprocError(
            f"`dictionaries` {dataset} already sets the rules; drop {names}", setting="dictionaries"
        )
    stored = rules_of_dataset(dataset)
    rules = {n: v for n, v in stored.items() if n not in OF_NEW_ROWS}
    of_rows = one_split(overrides)
    if (schema := rules.get("schema")) is not None:
        # The schema's split is for the rows that it was written for, not for the new ones.
        rules["schema"] = dataclasses.replace(
            schema.without_idle_times(), split="rows", values=(0, 0, -1), split_column=""
        )
        if of_rows.get("split_fractions") is not None:  # of the kinds in SHUFFLED
            of_rows = {"shuffle_seed": schema.seed} | of_rows
    return ClicksSemantics(**(rules | _ALL_FOR_TEST | of_rows))


def rules_of_dataset(dataset: Path) -> dict[str, Any]:
    """Returns the settings of `ClicksSemantics` that a dataset was made with.

    Raises:
        PreprocError: this project did not make the folder.
    """
    fields = {field.name for field in dataclasses.fields(ClicksSemantics)}
    stored = {n: v for n, v in _manifest_of(dataset).semantics.items() if n in fields}
    if stored.get("schema") is not None:
        stored["schema"] = Schema.from_dict(stored["schema"])
    return {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()}


def recorded_semantics(job: ClicksJob) -> dict[str, Any]:
    """Returns the settings that the manifest of a job's dataset records."""
    semantics = dataclasses.asdict(job.semantics)
    for name in OF_EVICTION:
        if semantics[name] is None:
            del semantics[name]
    if job.dictionaries is not None:
        applied = {name: semantics[name] for name in OF_NEW_ROWS}
        return _manifest_of(job.dictionaries).semantics | {APPLIED: applied}
    if job.semantics.schema is not None:
        return semantics
    del semantics["schema"]
    return {"preset": job.preset, **semantics}


def with_edges(semantics: dict[str, Any], edges: Edges) -> dict[str, Any]:
    """Returns the settings that a manifest records, with the edges of bins that were found."""
    if not edges:
        return semantics
    schema = semantics["schema"]
    columns = [
        column | ({"bins": edges[column["name"]]} if column["name"] in edges else {})
        for column in schema["columns"]
    ]
    return semantics | {"schema": schema | {"columns": columns}}


def given_dictionaries(job: ClicksJob, workspace: Workspace) -> Dictionaries | None:
    """Copies the dictionaries that a job applies into its work folder.

    Every process of the run sees them there, and they cannot change during the run.

    Returns:
        The copies; None if the job counts categories itself.

    Raises:
        PreprocError: a file is missing or damaged.
    """
    if job.dictionaries is None:
        return None
    of_rows = {name: getattr(job.semantics, name) for name in OF_NEW_ROWS}
    if job.semantics != semantics_of_dataset(job.dictionaries, of_rows):
        raise PreprocError(
            f"`dictionaries` {job.dictionaries}: was prepared by rules other than `semantics`; "
            "pass the result of semantics_of_dataset()",
            setting="dictionaries",
        )
    key = fingerprint(_dictionary_files(job.dictionaries))
    target = Dictionaries(workspace.unit_dir("given", key), job.semantics.key_types, key)
    if missing := target.missing():
        source = dictionaries_of_dataset(job.dictionaries)
        for column in missing:
            target.save(column, source.load_column(column))
    return target


def dictionaries_of_dataset(dataset: Path, *, has_counts: bool = False) -> Dictionaries:
    """Returns the dictionaries of a dataset.

    Args:
        dataset: the dataset.
        has_counts: whether the counts of rare categories are needed too.

    Raises:
        PreprocError: this project did not make the folder, or a file is missing or damaged.
    """
    key_types = semantics_of_dataset(dataset, {}).key_types
    dictionaries = Dictionaries(dataset / DICTIONARY_FOLDER, key_types, has_counts=has_counts)
    files = _dictionary_files(dataset)
    if has_counts and not any(Path(name).name.startswith(RARE) for name in files):
        raise PreprocError(
            f"`extend` {dataset.parent}: {dataset.name} was prepared without counts of rare "
            "categories; prepare the first day with `extend` too",
            setting="extend",
            path=dataset,
        )
    for column in range(len(key_types)):
        paths = dictionaries.paths(column)
        occurrences = occurrences_path(dictionaries.folder, column)
        if has_counts and occurrences.exists():
            paths.append(occurrences)
        for path in paths:
            entry = files.get(path.relative_to(dataset).as_posix())
            if entry is None or not path.is_file() or file_checksum(path) != entry["xxh3_128"]:
                raise PreprocError(
                    f"{path}: is missing, or does not match its checksum in manifest.json; "
                    "get the dataset again",
                    path=path,
                )
    return dictionaries


def _dictionary_files(dataset: Path) -> dict[str, dict[str, Any]]:
    files = _manifest_of(dataset).files
    return {n: e for n, e in files.items() if n.startswith(f"{DICTIONARY_FOLDER}/")}


def _manifest_of(dataset: Path) -> Manifest:
    try:
        manifest = Manifest.load(dataset)
        manifest.require_data(dataset, "clicks", "dictionaries")
    except DatasetError as error:
        raise PreprocError(str(error), settings=error.settings) from error
    if manifest.kind not in LOG_KINDS:
        raise PreprocError(
            f"{dataset}: is a dataset of kind {manifest.kind}, which has no dictionaries; name a "
            "dataset of click logs"
        )
    return manifest
