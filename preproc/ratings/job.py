# SPDX-License-Identifier: Apache-2.0
"""Settings of a ratings run, and the families of ratings files."""

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

from preproc.files.errors import PreprocError
from preproc.files.input_file import PLAIN_OR_COMPRESSED
from preproc.files.progress import PROGRESS_HELP, ProgressMode
from preproc.files.quarantine import QUARANTINE_FILE
from preproc.nvtabular.process import NVTABULAR_DEVICES, NvtabularDevice
from preproc.ratings.engines import ENGINES
from preproc.ratings.format import (
    ITEM,
    USER,
    RatingsColumn,
    RatingsFormat,
    formats_of,
    load_formats,
)
from preproc.ratings.header import NAMED, parse_names
from preproc.spark.settings import SparkSettings
from recsys.data.sequences.histories import MIN_LENGTH
from recsys.data.sequences.split import LEAVE_ONE_OUT, parse_split
from recsys.settings import REQUIRED, require_choices, setting

KCore = Literal["iterated", "once"]
KCORES: tuple[KCore, ...] = get_args(KCore)

IdType = Literal["auto", "integer", "string"]

GIVEN = "given"
"""Key in a manifest's semantics: those of `HOW_TO_READ` that are not auto."""
HOW_TO_READ = ("format", "columns")
"""Settings by which a file is read; auto recognises them. The type of ids changes no dataset."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsSource:
    """A family of ratings files.

    Attributes:
        name: `source` in the manifest.
        schemas: names of the schemas of its files, in preproc/ratings/formats.
        column_orders: values of `columns` that give an order rather than names of a header.
        file_names: names to look for in a folder, with or without .gz.
        min_user_count: default for files with timestamps; text files are already filtered.
        min_item_count: default for files with timestamps.
    """

    name: str
    schemas: tuple[str, ...]
    column_orders: tuple[str, ...]
    file_names: tuple[str, ...]
    min_user_count: int
    min_item_count: int

    @property
    def formats(self) -> tuple[RatingsFormat, ...]:
        """Formats of its files, in the order to try them."""
        return formats_of(self.schemas)

    @property
    def format_names(self) -> tuple[str, ...]:
        """Values of --format."""
        return ("auto", *dict.fromkeys(f.name for f in self.formats))


MOVIELENS = RatingsSource(
    name="movielens",
    schemas=("movielens_csv", "movielens_dat", "movielens_udata", "text"),
    column_orders=("auto",),
    file_names=("ratings.csv", "ratings.dat", "u.data", "ml-1m.txt"),
    min_user_count=5,
    min_item_count=0,
)
AMAZON = RatingsSource(
    name="amazon",
    schemas=(
        "amazon_2014",
        "amazon_2018",
        "amazon_2023",
        "amazon_2023_asin",
        "amazon_json",
        "text",
    ),
    column_orders=("auto", "user,item", "item,user"),
    file_names=(),
    min_user_count=5,
    min_item_count=5,
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsJob:
    """Settings of a run; `source` is the family of ratings files."""

    source: RatingsSource
    input: Path = setting(REQUIRED, f"A ratings file, {PLAIN_OR_COMPRESSED}.")
    output: Path = setting(REQUIRED, "The dataset folder to make.")
    format: str = setting("auto", "Format of the file.")
    columns: str = setting(
        "auto",
        f"Columns of a csv file: auto, or {NAMED} with names from its header; other columns are "
        "ignored.",
    )
    id_type: IdType = setting(
        "auto",
        "Type of user and item ids in a csv file: auto | integer | string; auto takes integers if "
        "any of the first rows has them, string keeps any text.",
    )
    min_rating: float = setting(0.0, "Drop ratings below this.")
    min_user_count: int | None = setting(None, "Drop users with fewer interactions; at least 3.")
    min_item_count: int | None = setting(None, "Drop items with fewer interactions.")
    kcore: KCore = setting(
        "iterated",
        f"How to apply the two limits, items before users: {' | '.join(KCORES)} (until nothing "
        "changes, or one pass, after which some items may be below the limit again).",
    )
    split: str = setting(
        LEAVE_ONE_OUT,
        f"Items to hold out: {LEAVE_ONE_OUT} (the last ones of each user), or temporal:0.9 (all "
        "from the moment on that has this fraction of the interactions before it).",
    )
    dictionaries: Path | None = setting(
        None,
        "Dataset whose item ids to use, for a model that was trained on it; rows of other items "
        "are left out.",
    )
    extend: Path | None = setting(
        None,
        "Folder of a dataset that grows by a day: `input` becomes its next day, day_0000 first, "
        "with the histories of all days so far. Item ids never move, and new items get the ids "
        "behind them. The first day sets filters and split. Replaces `output`.",
    )
    max_bad_fraction: float = setting(
        0.0,
        "Fraction of rows that may be malformed; they are written to "
        f"{QUARANTINE_FILE} instead. With 0 the first one stops the run.",
    )
    titles: str = setting(
        "auto",
        "File of readable item titles: u.item, movies.dat or movies.csv of MovieLens; auto takes "
        "the one next to the ratings if it exists, none reads no titles.",
    )
    progress: ProgressMode = setting("none", PROGRESS_HELP)
    overwrite: bool = setting(False, "Replace the dataset at --output once the new one is done.")
    engine: str = setting("pyarrow", f"Software that does the work: {', '.join(ENGINES)}.")
    nvtabular_python: Path | None = setting(
        None,
        "Python interpreter that has NVTabular; default: the one of `make nvtabular`.",
        used_with={"engine": ("nvtabular",)},
    )
    nvtabular_device: NvtabularDevice = setting(
        "auto", f"Device: {', '.join(NVTABULAR_DEVICES)}.", used_with={"engine": ("nvtabular",)}
    )
    spark: SparkSettings = SparkSettings()

    def __post_init__(self) -> None:
        """Refuses settings that are not valid."""
        require_choices(self, {"engine": ENGINES}, separator=" | ")
        if not self.has_own_schema:
            require_choices(self, {"format": self.source.format_names}, separator=" | ")
        _ = self.column_names  # raises if it is not valid
        try:
            parse_split(self.split)
        except ValueError as error:
            raise PreprocError(str(error)) from error
        if not math.isfinite(self.min_rating):
            raise PreprocError(f"`min_rating` must be a number, got {self.min_rating}")
        if self.min_user_count is not None and self.min_user_count < MIN_LENGTH:
            raise PreprocError(
                f"`min_user_count` must be at least {MIN_LENGTH}, got {self.min_user_count}: each "
                "user needs one item each for training, validation and test"
            )
        if self.min_item_count is not None and self.min_item_count < 0:
            raise PreprocError(f"`min_item_count` must not be negative, got {self.min_item_count}")
        if not 0 <= self.max_bad_fraction <= 1:
            raise PreprocError(
                f"`max_bad_fraction` must lie in [0, 1], got {self.max_bad_fraction}"
            )

    @property
    def column_names(self) -> dict[RatingsColumn, str] | None:
        """The given column names of the header; None if `columns` gives no names."""
        orders = self.source.column_orders
        return None if self.columns in orders else parse_names(self.columns, orders)

    @property
    def has_own_schema(self) -> bool:
        """Whether `format` is the path of a schema."""
        return Path(self.format).suffix in (".yaml", ".yml")

    @property
    def formats(self) -> tuple[RatingsFormat, ...]:
        """The formats that the file may have.

        Raises:
            PreprocError: the schema is missing or wrong.
        """
        if self.has_own_schema:
            return load_formats(Path(self.format))
        return tuple(f for f in self.source.formats if self.format in ("auto", f.name))

    @property
    def quantile(self) -> Fraction | None:
        """Fraction of the interactions before the cut; None without a cut."""
        return parse_split(self.split)

    @property
    def min_counts(self) -> dict[str, int]:
        """Minimum counts of a resolved job, in the order in which a pass applies them."""
        assert self.min_item_count is not None
        assert self.min_user_count is not None
        return {ITEM: self.min_item_count, USER: self.min_user_count}

    def resolve(self, layout: RatingsFormat) -> "RatingsJob":
        """Sets the default minimum counts for a format.

        Raises:
            PreprocError: a setting contradicts the format.
        """
        if "rating" not in layout.columns and self.min_rating > 0:
            raise PreprocError(
                f"`min_rating` {self.min_rating:g}: {self.input} has no ratings; leave it out"
            )
        is_log = layout.has_timestamps
        if self.quantile is not None and not is_log:
            raise PreprocError(
                f"`split` {self.split}: {self.input} has no timestamps; leave it out"
            )
        users = self.source.min_user_count if is_log else MIN_LENGTH
        items = self.source.min_item_count if is_log and self.dictionaries is None else 0
        return dataclasses.replace(
            self,
            min_user_count=users if self.min_user_count is None else self.min_user_count,
            min_item_count=items if self.min_item_count is None else self.min_item_count,
        )


SECTIONS: dict[type, str] = {RatingsJob: "run", SparkSettings: "spark"}
"""Sections of the flags, with their headings."""
