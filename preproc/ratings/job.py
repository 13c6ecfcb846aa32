# SPDX-License-Identifier: Apache-2.0
"""What one ratings run is asked to do, validated, and what the file at hand makes of it."""

import dataclasses
import math
from pathlib import Path
from typing import Literal, get_args

from preproc.criteo.job import NVTABULAR_DEVICES, NvtabularDevice
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressMode
from preproc.ratings.format import (
    AMAZON_CSV,
    AMAZON_ITEM_FIRST_CSV,
    AMAZON_JSON,
    MOVIELENS_CSV,
    MOVIELENS_DAT,
    MOVIELENS_UDATA,
    TEXT,
    RatingsFormat,
)
from preproc.ratings.kcore import KCORES, KCore
from preproc.spark.settings import SparkSettings
from recsys.data.sequences import MIN_LENGTH

RatingsEngine = Literal["pyarrow", "nvtabular", "spark"]
RATINGS_ENGINES: tuple[RatingsEngine, ...] = get_args(RatingsEngine)

BadRows = Literal["refuse", "quarantine"]
BAD_ROWS: tuple[BadRows, ...] = get_args(BadRows)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsSource:
    """A family of ratings files.

    Attributes:
        name: for the manifest.
        formats: those it comes in.
        file_names: looked for in a folder, as they are or with .gz.
        min_user_count: default for logs (text files are filtered already).
        min_item_count: default for logs.
    """

    name: str
    formats: tuple[RatingsFormat, ...]
    file_names: tuple[str, ...]
    min_user_count: int
    min_item_count: int

    @property
    def format_names(self) -> tuple[str, ...]:
        """Values of --format."""
        return ("auto", *dict.fromkeys(f.name for f in self.formats))


MOVIELENS = RatingsSource(
    name="movielens",
    formats=(MOVIELENS_CSV, MOVIELENS_DAT, MOVIELENS_UDATA, TEXT),
    file_names=("ratings.csv", "ratings.dat", "u.data"),
    min_user_count=5,
    min_item_count=0,
)
AMAZON = RatingsSource(
    name="amazon",
    formats=(AMAZON_CSV, AMAZON_ITEM_FIRST_CSV, AMAZON_JSON, TEXT),
    file_names=(),
    min_user_count=5,
    min_item_count=5,
)

_SPARK_SQL = SparkSettings(spark_mode="dataframe")

COLUMN_ORDERS = ("auto", "user,item", "item,user")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsJob:
    """Settings of one run; the fields are the flags of the same name.

    Attributes:
        source: the family of files.
        input: a ratings file, or the folder of one.
        output: the dataset folder to make.
        format: of the file, or `auto`.
        columns: order of user and item in csv files of Amazon, or `auto`.
        min_rating: ratings below are dropped.
        min_user_count: see `kcore`; None takes what suits the file.
        min_item_count: see `kcore`; None takes what suits the file.
        kcore: one pass, or until nothing changes.
        bad_rows: what happens to rows that break the grammar.
        max_bad_fraction: with `quarantine`, share of bad rows above which the run stops.
        progress: how to report it.
        overwrite: replace the dataset at `output`, once the new one is complete.
        engine: who does the work.
        nvtabular_python: interpreter that has NVTabular; None takes .venv-nvtabular.
        nvtabular_device: where NVTabular works; `auto` is a GPU with cuDF where there is one.
        spark: how to reach Spark; its mode is `dataframe`, there is no kernel for ratings.
    """

    source: RatingsSource
    input: Path
    output: Path
    format: str = "auto"
    columns: str = "auto"
    min_rating: float = 0.0
    min_user_count: int | None = None
    min_item_count: int | None = None
    kcore: KCore = "iterated"
    bad_rows: BadRows = "refuse"
    max_bad_fraction: float = 1e-4
    progress: ProgressMode = "none"
    overwrite: bool = False
    engine: RatingsEngine = "pyarrow"
    nvtabular_python: Path | None = None
    nvtabular_device: NvtabularDevice = "auto"
    spark: SparkSettings = _SPARK_SQL

    def __post_init__(self) -> None:
        """Refuses settings that cannot be carried out."""
        for name, choices in {
            "format": self.source.format_names,
            "columns": COLUMN_ORDERS,
            "kcore": KCORES,
            "bad_rows": BAD_ROWS,
            "engine": RATINGS_ENGINES,
            "nvtabular_device": NVTABULAR_DEVICES,
        }.items():
            if getattr(self, name) not in choices:
                raise PreprocError(
                    f"--{name} must be one of {' | '.join(choices)}; got {getattr(self, name)!r}"
                )
        if not math.isfinite(self.min_rating):
            raise PreprocError(f"--min_rating must be a number, got {self.min_rating}")
        if self.min_user_count is not None and self.min_user_count < MIN_LENGTH:
            raise PreprocError(
                f"--min_user_count must be at least {MIN_LENGTH}, got {self.min_user_count}: a "
                "user gives one item each to train, validate and test on"
            )
        if self.min_item_count is not None and self.min_item_count < 0:
            raise PreprocError(f"--min_item_count must not be negative, got {self.min_item_count}")
        if not 0 <= self.max_bad_fraction <= 1:
            raise PreprocError(
                f"--max_bad_fraction must lie in [0, 1], got {self.max_bad_fraction}"
            )

    def resolve(self, found: RatingsFormat) -> "RatingsJob":
        """Returns the job with the minimum counts that suit a format.

        Raises:
            PreprocError: a setting contradicts the format.
        """
        if "rating" not in found.columns and self.min_rating > 0:
            raise PreprocError(
                f"--min_rating {self.min_rating:g}: {self.input} holds no ratings; leave it out"
            )
        is_log = found.has_timestamps
        users = self.source.min_user_count if is_log else MIN_LENGTH
        items = self.source.min_item_count if is_log else 0
        return dataclasses.replace(
            self,
            min_user_count=users if self.min_user_count is None else self.min_user_count,
            min_item_count=items if self.min_item_count is None else self.min_item_count,
        )
