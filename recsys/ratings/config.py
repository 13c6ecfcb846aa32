# SPDX-License-Identifier: Apache-2.0
"""Settings of a dataset of histories, and of lists of recommendations."""

import dataclasses
from pathlib import Path
from typing import Literal

from recsys.data.sequences.split import LEAVE_ONE_OUT, parse_split
from recsys.errors import UserError
from recsys.settings import Not, require_below, require_positive, setting

TemporalTargets = Literal["first", "last", "all"]
TemporalValidation = Literal["time", "users"]
DatasetName = Literal[
    "ml-latest-small", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "amazon", "random"
]

ALL_USERS = "all"
"""Value of `recommend_users` that names every user of the dataset."""

_PREPARED = {"dataset_name": Not("random")}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HistoriesConfig:
    """The dataset, its filters and its split."""

    dataset_name: DatasetName = setting("ml-1m", "Dataset; random is a generated one")
    dataset_path: str | None = setting(
        None,
        "Folder that `recsys-recipes prepare` made; by default ./<dataset_name>",
        resumable=True,
        used_with=_PREPARED,
    )
    min_user_count: int = setting(5, "Drops users with fewer interactions")
    min_item_count: int = setting(0, "Drops items with fewer interactions", used_with=_PREPARED)
    min_rating: float = setting(0.0, "Drops ratings below this value", used_with=_PREPARED)
    split: str = setting(
        LEAVE_ONE_OUT,
        "How items are held out, as in the prepared dataset: leave_one_out, or temporal:0.9",
    )
    validation_users: int | None = setting(
        None,
        "How many users validate, on their last item but one; they are drawn by their ids, and the "
        "others train on that item. By default all users validate",
    )
    temporal_targets: TemporalTargets = setting(
        "first", "Which of a user's items from the cut on are targets, in a temporal split"
    )
    temporal_validation: TemporalValidation = setting(
        "time",
        "Validation of a temporal split: items after an earlier cut, or users held out of training",
    )
    random_user_count: int = setting(
        10, "Users of --dataset_name random", used_with={"dataset_name": ("random",)}
    )
    random_item_count: int = setting(
        30, "Items of --dataset_name random", used_with={"dataset_name": ("random",)}
    )
    random_size: int = setting(
        300, "Interactions of --dataset_name random", used_with={"dataset_name": ("random",)}
    )

    def __post_init__(self) -> None:
        """Refuses counts below their minimum."""
        require_positive(self, "random_user_count", "random_item_count", "random_size")
        if self.validation_users is not None:
            require_positive(self, "validation_users")
        for name in ("random_user_count", "random_item_count"):
            require_below(self, name, 2**31 - 1)  # the mask token needs a number too
        try:
            quantile = parse_split(self.split)
        except ValueError as error:
            raise UserError(str(error)) from error
        if quantile is not None and self.validation_users is not None:
            raise UserError(
                f"`validation_users` {self.validation_users} needs the `split` {LEAVE_ONE_OUT}, "
                f"but the dataset has {self.split}: leave it out, or use `temporal_validation` "
                "users",
                settings=("validation_users", "split", "temporal_validation"),
            )
        if quantile is not None and self.dataset_name == "random":
            raise UserError(
                f"`split` {self.split}: `dataset_name` random has no timestamps, so it cannot be "
                "split by time",
                settings=("split", "dataset_name"),
            )
        if self.min_user_count < 3:
            raise UserError(
                f"`min_user_count` must be at least 3, got {self.min_user_count}: a user needs one "
                "interaction each for training, validation and test",
                setting="min_user_count",
            )

    @property
    def folder(self) -> Path | None:
        """Folder of the dataset; None if it is generated."""
        is_generated = self.dataset_name == "random"
        return None if is_generated else Path(self.dataset_path or self.dataset_name)

    def require_folder(self) -> None:
        """Refuses a folder without a prepared dataset.

        Raises:
            UserError: says how to make one.
        """
        from recsys.data.manifest import MANIFEST_FILE  # imports xxhash, which `--help` skips

        if self.folder is None or (self.folder / MANIFEST_FILE).is_file():
            return
        default = "" if self.dataset_path else f", the default for `dataset_name` {self.folder}"
        program = "amazon" if self.dataset_name == "amazon" else "ratings"
        raise UserError(
            f"`dataset_path` {self.folder}{default}: no prepared dataset (no {MANIFEST_FILE}). "
            f"Make one from the raw ratings with `recsys-recipes prepare {program}`, then name its "
            "output folder",
            setting="dataset_path",
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ListConfig:
    """Settings of lists of recommendations."""

    recommend_input: str | None = setting(
        None,
        "File of histories to recommend for: raw item ids, oldest first, one history per line; by "
        "default standard input",
        resumable=True,
        used_with={"mode": ("recommend",)},
    )
    recommend_users: str = setting(
        "",
        "Users of the dataset to recommend for, instead of --recommend_input: raw ids separated by "
        "commas, or all",
        resumable=True,
        used_with={"mode": ("recommend",)},
    )
    top_k: int = setting(
        10,
        "Length of a list of recommendations, and of the list of a user in a test",
        resumable=True,
    )
    output_format: Literal["auto", "table", "json"] = setting(
        "auto",
        "Output of recommendations: tables, JSON lines, or auto (tables only on a terminal)",
        resumable=True,
        used_with={"mode": ("recommend",)},
    )

    def __post_init__(self) -> None:
        """Refuses empty lists, and two sources of histories at once."""
        if self.recommend_users and self.recommend_input is not None:
            raise UserError(
                "`recommend_users` and `recommend_input` exclude each other: give one of them",
                settings=("recommend_users", "recommend_input"),
            )
        require_positive(self, "top_k")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsExportOptions:
    """Options of a deployed model of ratings.

    Attributes:
        top_k: K, the items of an answer.
        raw_ids: folder of the training dataset, to serve raw ids; None serves item numbers.
        titles: whether answers hold the titles of the items; the dataset must have them.
        ignore_fingerprint: compare only the number of items with the dataset's.
    """

    top_k: int
    raw_ids: Path | None = None
    titles: bool = False
    ignore_fingerprint: bool = False
