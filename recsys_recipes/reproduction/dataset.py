# SPDX-License-Identifier: Apache-2.0
"""Makes the dataset of a run again from its raw files."""

import dataclasses
from pathlib import Path
from typing import Any

from preproc.clicks import pipeline as clicks_pipeline
from preproc.clicks.applied import APPLIED, rules_of_dataset
from preproc.clicks.engines import ENGINES as CLICKS_ENGINES
from preproc.clicks.job import ClicksJob, Format, Layout
from preproc.clicks.rules import ClicksSemantics
from preproc.files.days import CHECKSUM
from preproc.ratings import pipeline as ratings_pipeline
from preproc.ratings.engines import ENGINES as RATINGS_ENGINES
from preproc.ratings.job import AMAZON, GIVEN, MOVIELENS, IdType, RatingsJob
from recsys.data import parquet
from recsys.data.formats import npy_days
from recsys.data.manifest import LOG_KINDS, SEQUENCES_KIND, TITLES_FILE, Manifest
from recsys.data.sequences.files import DAY_ROWS
from recsys.data.sequences.split import DICTIONARIES
from recsys.data.split_layout import LABEL_FILE
from recsys.errors import UserError
from recsys_recipes.reproduction.compare import ComparedFiles, Pair, compare_files, differing

_READ = {"source", "format"}
"""Settings by which ratings were read."""
_SOURCES = {source.name: source for source in (MOVIELENS, AMAZON)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparedDatasets:
    """The dataset of a run, and the one that was made again.

    Attributes:
        files: comparison of the files.
        sources: raw file -> what the manifests tell about it, for files that differ.
        settings: settings of the preparation that differ.
        engine: names of the engine's values that differ, such as its version.
    """

    files: ComparedFiles
    sources: dict[str, Pair]
    settings: dict[str, Pair]
    engine: dict[str, Pair]


class RawFiles:
    """Raw files of a dataset, from which it can be made again.

    Args:
        path: file or folder.
        dataset: folder of the original dataset; only its manifest is needed.
        manifest: its manifest.
        schema: file of the format of ratings; None if the dataset has a known format.

    Raises:
        UserError: the dataset cannot be made again from raw files alone.
    """

    def __init__(self, path: Path, dataset: Path, manifest: Manifest, schema: Path | None) -> None:
        self._path, self._dataset, self._manifest = path, dataset, manifest
        self._schema = schema
        self._refuse_others()
        self._of_clicks = manifest.kind in LOG_KINDS
        self._check_schema()
        if not path.exists():
            raise UserError(
                f"`input` {path}: no such file or folder; name the raw files of {dataset}",
                setting="input",
            )

    def _refuse_others(self) -> None:
        manifest, why = self._manifest, ""
        if manifest.kind not in (*LOG_KINDS, SEQUENCES_KIND):
            why = f"is of kind {manifest.kind}, not made from raw files"
        elif manifest.kind == SEQUENCES_KIND and not manifest.semantics.keys() >= _READ:
            why = f"its manifest does not record {', '.join(sorted(_READ))}"
        elif {APPLIED, DICTIONARIES} & manifest.semantics.keys():
            why = "was made by the rules and ids of another dataset"
        elif manifest.history or self._is_first_day():
            why = "is a day of a dataset that grows, which depends on how it was extended"
        if why:
            raise UserError(
                f"`dataset` {self._dataset}: {why}; leave out `input` to train again on the "
                "dataset as it is",
                settings=("dataset", "input"),
                path=self._dataset,
            )

    def _check_schema(self) -> None:
        """Refuses a schema that the manifest holds, and the lack of one that it only names."""
        if self._of_clicks and self._schema is not None:
            raise UserError(
                f"`schema` {self._schema}: the manifest of {self._dataset} holds the schema; leave "
                "it out",
                setting="schema",
            )
        if self._of_clicks or self._schema is not None:
            return
        recorded = self._manifest.semantics
        if recorded["format"] not in _SOURCES[recorded["source"]].format_names:
            raise UserError(
                f"`schema` is needed: {self._dataset} was made with a format of its own, "
                f"{recorded['format']}, which its manifest names but does not hold; name its file",
                setting="schema",
            )

    def _is_first_day(self) -> bool:
        manifest = self._manifest
        if manifest.kind == SEQUENCES_KIND:
            return any(name.startswith(f"{DAY_ROWS}/") for name in manifest.files)
        return any(CHECKSUM in source for source in manifest.source_files)

    def make(self, output: Path) -> Manifest:
        """Makes the dataset again; returns its manifest.

        Raises:
            UserError: the raw files or the machine do not allow it.
        """
        if self._of_clicks:
            clicks_pipeline.prepare(self._clicks_job(output))
        else:
            ratings_pipeline.prepare(self._ratings_job(output))
        return Manifest.load(output)

    def _clicks_job(self, output: Path) -> ClicksJob:
        rules = rules_of_dataset(self._dataset)
        if (schema := rules.get("schema")) is not None:
            rules["schema"] = schema.without_found_edges()
        return ClicksJob(
            input=self._path,
            output=output,
            semantics=ClicksSemantics(**rules),
            preset=self._manifest.semantics.get("preset", "dlrm"),
            engine=self._engine("native", CLICKS_ENGINES),
            format=self._formats(),
            layout=self._layout(),
            progress="auto",
            **self._bad_rows(),
        )

    def _formats(self) -> tuple[Format, ...]:
        folders = {name.partition("/")[0] for name in self._manifest.files}
        formats: list[Format] = ["split"] if self._label_bytes() else []
        formats += ["parquet"] if parquet.FOLDER in folders else []
        formats += ["npy"] if npy_days.FOLDER in folders else []
        return tuple(formats)

    def _layout(self) -> Layout:
        """Returns the layout, which shows in the names and sizes of the files."""
        manifest = self._manifest
        has_metadata = f"{parquet.FOLDER}/train/{parquet.METADATA_FILE}" in manifest.files
        is_wide = self._label_bytes() > sum(manifest.rows.values())
        return "torchrec" if has_metadata or is_wide else "nvidia"

    def _label_bytes(self) -> int:
        """Returns the bytes of the labels in split binary; 0 without that format."""
        files = self._manifest.files
        labels = [f"{split}/{LABEL_FILE}" for split in self._manifest.rows]
        return sum(files[name]["bytes"] for name in labels if name in files)

    def _ratings_job(self, output: Path) -> RatingsJob:
        recorded = self._manifest.semantics
        given = dict(recorded.get(GIVEN, {}))
        if self._schema is not None:
            given["format"] = str(self._schema)
        names = ("min_rating", "min_user_count", "min_item_count", "kcore", "split")
        return RatingsJob(
            source=_SOURCES[recorded["source"]],
            input=self._path,
            output=output,
            engine=self._engine("pyarrow", RATINGS_ENGINES),
            titles=self._titles(),
            id_type=self._id_type(),
            progress="auto",
            **self._bad_rows(),
            **{name: recorded[name] for name in names if name in recorded},
            **given,
        )

    def _id_type(self) -> IdType:
        """Returns the type of ids, which decides only which rows are refused."""
        recorded = self._manifest.semantics["source"], self._manifest.semantics["format"]
        takes_any = recorded == (MOVIELENS.name, "csv") and not self._bad_rows()
        return "string" if takes_any else "auto"

    def _titles(self) -> str:
        """Returns the file of titles next to the raw ratings, by its recorded name."""
        if TITLES_FILE not in self._manifest.files:
            return "none"
        folder = self._path if self._path.is_dir() else self._path.parent
        file = folder / str(self._manifest.source_files[-1]["name"])
        return str(file) if file.is_file() else "auto"

    def _engine(self, default: str, known: Any) -> str:
        name = str(self._manifest.engine.get("name"))
        return name if name in known else default

    def _bad_rows(self) -> dict[str, Any]:
        """Returns the setting that lets rows be refused again, if the original refused some."""
        return {"max_bad_fraction": 1.0} if any(self._manifest.rejected.values()) else {}


def compare_datasets(original: Manifest, reproduced: Manifest) -> ComparedDatasets:
    """Compares two datasets by their manifests."""
    sources, others = (
        {str(source.get("name")): source for source in manifest.source_files}
        for manifest in (original, reproduced)
    )
    added = dict.fromkeys(others.keys() - sources.keys())
    return ComparedDatasets(
        files=compare_files(original.files, reproduced.files),
        sources=differing(sources | added, others),
        settings=differing(original.semantics, reproduced.semantics),
        engine=differing(original.engine, reproduced.engine),
    )
