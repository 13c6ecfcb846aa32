# SPDX-License-Identifier: Apache-2.0
"""Settings of a preprocessing run, and the presets."""

import dataclasses
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from preproc.clicks.engines import ENGINES
from preproc.clicks.rules import OF_EVICTION, ClicksSemantics
from preproc.clicks.schema.read import load_schema
from preproc.clicks.schema.schema import SHUFFLED, SplitKind
from preproc.files.errors import PreprocError
from preproc.files.progress import PROGRESS_HELP, ProgressMode
from preproc.nvtabular.process import NVTABULAR_DEVICES, NvtabularDevice
from preproc.spark.settings import SparkSettings
from recsys.errors import UserError
from recsys.presets import PresetFolder
from recsys.resources import available_cores
from recsys.settings import REQUIRED, Not, require_choices, require_threads, setting

Format = Literal["split", "parquet", "npy"]
FORMATS: tuple[Format, ...] = get_args(Format)

Layout = Literal["nvidia", "torchrec"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


PRESETS = PresetFolder(Path(__file__).with_name("presets"), {ClicksSemantics: "transform"})
"""Named settings of the transform; those of `dlrm` are the defaults of `ClicksSemantics`."""


def semantics_of(
    preset: str | None, overrides: Mapping[str, Any] = types.MappingProxyType({})
) -> ClicksSemantics:
    """Reads the transform settings of a preset.

    Args:
        preset: name of a preset, or path to a YAML file; None takes the defaults.
        overrides: settings that replace those of the preset.

    Raises:
        UserError: there is no such preset, or its file is not valid.
    """
    values = dict(overrides)
    with PRESETS.fill(preset, values, set(overrides)).located():
        return ClicksSemantics(**values)


def semantics_of_schema(path: Path, overrides: Mapping[str, Any]) -> ClicksSemantics:
    """Returns the transform of a schema.

    Args:
        path: the YAML file.
        overrides: may hold `split_fractions`, `split_rows`, the settings of eviction, and
            `shuffle_seed`, where None keeps the order of the input.

    Raises:
        UserError: the schema is wrong, or an override is not one of these.
    """
    schema = load_schema(path)
    beside = {"split_fractions", "split_rows", "shuffle_seed", *OF_EVICTION}
    overrides = {
        name: value
        for name, value in overrides.items()
        if value is not None or name == "shuffle_seed"
    }
    if wrong := sorted(set(overrides) - beside):
        names = ", ".join(f"`{name}`" for name in wrong)
        raise PreprocError(
            f"`schema` {path} already sets the transform; drop {names}", setting="schema"
        )
    kinds: tuple[SplitKind, ...] = ("fractions", "rows")
    for kind in kinds:
        if (given := overrides.pop(f"split_{kind}", None)) is not None:
            schema = dataclasses.replace(schema, split=kind, values=given, split_column="")
    if schema.split in SHUFFLED:
        overrides.setdefault("shuffle_seed", schema.seed)
    split: dict[str, Any] = {}
    if schema.split in kinds:
        split = {f"split_{schema.split}": schema.values}
    elif schema.split == "files":
        split = {"split_days": tuple(len(cast("Any", names)) for names in schema.values)}
    try:
        return ClicksSemantics(
            schema=schema,
            numerical_offset=schema.offset,
            numerical_min=schema.min,
            dictionary_days=schema.count,
            **split,
            **overrides,
        )
    except UserError as error:
        raise PreprocError(f"`schema` {path}: {error}", setting="schema") from error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClicksJob:
    """Settings of one preprocessing run."""

    input: Path = setting(
        REQUIRED,
        "Folder with day_0 ... day_N (with a schema, any file names), or one file; plain, gzip, "
        "zstd, bzip2 or xz. - reads standard input; URLs that fsspec supports, such as s3://, are "
        "copied first.",
    )
    output: Path = setting(REQUIRED, "The dataset folder to make.")
    semantics: ClicksSemantics = dataclasses.field(default_factory=ClicksSemantics)
    dictionaries: Path | None = setting(
        None,
        "Dataset whose rules and dictionaries are applied to the rows instead of counting "
        "categories; all rows go to the test split unless a split is given.",
    )
    extend: Path | None = setting(
        None,
        "Folder of a dataset that grows by a day: `input` becomes its next day, day_0000 first. "
        "Known ids never move, new categories get the ids behind them, and counts continue. The "
        "first day sets the rules; without a split, all rows are for training. Replaces `output`.",
    )
    refit: bool = setting(
        False,
        "Find the edges of bins by quantiles anew, from the rows of this day; by default, they are "
        "those of the day before. A bin keeps its id.",
        used_with={"extend": Not(None)},
    )
    schema: Path | None = setting(
        None,
        "YAML file that describes the columns of your own click log; replaces `preset` (see "
        "docs/own_clicks.md).",
    )
    infer: Path | None = setting(
        None, "Draft a schema from a sample of `input`, write it to this file, and exit."
    )
    preset: str = setting("dlrm", f"Settings of the transform: {', '.join(PRESETS.names())}.")
    engine: str = setting("native", f"Software that does the work: {', '.join(ENGINES)}.")
    format: tuple[Format, ...] = setting(
        ("split",),
        f"Formats to write, comma-separated: {', '.join(FORMATS)} (TorchRec's arrays, by day).",
    )
    layout: Layout = setting(
        "nvidia",
        f"Layout of the dataset: {', '.join(LAYOUTS)} (float32 and int32 throughout, 160 bytes a "
        "row; parquet with _metadata).",
    )
    memory_limit: int = setting(
        4 * 2**30, "Anonymous memory of the process, such as 512MiB.", unit="bytes"
    )
    threads: int = setting(available_cores(), "Worker threads.", default_text="one per core")
    max_bad_fraction: float = setting(
        1e-4,
        "Fraction of rows that may be rejected; they are written to quarantine.csv instead.",
    )
    progress: ProgressMode = setting("none", PROGRESS_HELP)
    overwrite: bool = setting(
        False, "Replace the dataset at --output once the new one is complete."
    )
    work_dir: Path | None = setting(
        None,
        "Folder for the work state, kept for later runs on the same input; the default, "
        "OUTPUT.work, is removed after success.",
    )
    nvtabular_python: Path | None = setting(
        None,
        "Python interpreter that has NVTabular; default: the one of `make nvtabular`.",
        used_with={"engine": ("nvtabular",)},
    )
    nvtabular_device: NvtabularDevice = setting(
        "auto", f"Device: {', '.join(NVTABULAR_DEVICES)}.", used_with={"engine": ("nvtabular",)}
    )
    spark: SparkSettings = dataclasses.field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        """Refuses values that are not allowed."""
        require_choices(self, {"engine": ENGINES})
        unknown = [f for f in self.format if f not in FORMATS]
        if unknown or not self.format or len(set(self.format)) < len(self.format):
            raise PreprocError(
                f"`format` must be a comma-separated list of {', '.join(FORMATS)}; "
                f"got {','.join(self.format)!r}",
                setting="format",
            )
        if self.semantics.schema is not None:
            has_lists = bool(self.semantics.schema.named("categorical_list"))
            formats = ("split",) if has_lists else ("split", "parquet")
            for name, value, only in (
                ("engine", self.engine, tuple(e for e in ENGINES if e != "nvtabular")),
                ("layout", self.layout, ("nvidia",)),
                *(("format", each, formats) for each in self.format),
            ):
                if value not in only:
                    lists = " of lists" if has_lists and name == "format" else ""
                    raise PreprocError(
                        f"`{name}` {value}: a schema{lists} supports only {', '.join(only)} so far",
                        setting=name,
                    )
        require_threads(self, "threads")
        if not (0 <= self.max_bad_fraction <= 1) or math.isnan(self.max_bad_fraction):
            raise PreprocError(
                f"`max_bad_fraction` must lie in [0, 1], got {self.max_bad_fraction}",
                setting="max_bad_fraction",
            )

    @property
    def named_files(self) -> tuple[str, ...]:
        """Files of the input folder that the schema names; empty if it names none."""
        return () if self.semantics.schema is None else self.semantics.schema.named_files


SECTIONS: dict[type, str] = {ClicksJob: "run", ClicksSemantics: "transform", SparkSettings: "spark"}
"""Sections of settings, each with its heading in `--help`."""
