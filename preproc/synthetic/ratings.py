# SPDX-License-Identifier: Apache-2.0
"""Writes ratings of any size and format, with a learnable order.

    python -m preproc.generate_ratings --output ratings.csv --users 1000 --items 500 \
        --interactions 50000

Items are ranked; popularity falls with the rank by a power law. With the probability --continuation
the next item of a user is the successor of the last one (the next rank), otherwise it is drawn by
popularity. So a model that learns the successors has an HR@1 of about --continuation; one that
learns only popularity has far less. The titles of --titles show the rank, raw ids do not. A user
may rate an item twice. If the format has timestamps, they are distinct for a user, and rows are
shuffled.

The bytes depend only on the flags. Memory is bounded, except for 24 bytes per user and per item.
"""

import dataclasses
import gzip
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from absl import flags

from preproc.files.disk import DiskNeeds
from preproc.files.output import check_files
from preproc.files.workspace import atomic_file
from preproc.ratings.format import RatingsFormat, formats_of
from recsys.errors import UserError
from recsys.flags import define_flags as define_settings
from recsys.flags import values_from_flags
from recsys.program import new_flags, print_line, run_command
from recsys.settings import REQUIRED, require_choices, require_not_negative, setting

FORMATS = {
    "movielens_csv": "movielens_csv",
    "movielens_dat": "movielens_dat",
    "movielens_udata": "movielens_udata",
    "amazon_csv": "amazon_2014",
    "amazon_item_first_csv": "amazon_2018",
    "amazon_json": "amazon_json",
    "text": "text",
}
"""Schema of each format."""
MIN_LENGTH = 5
_BLOCK_ROWS = 2**18
_ROW_BYTES = 24
_FIRST_TIME, _START_SPAN, _MOST_SECONDS = 1_000_000_000, 400_000_000, 600
_RATING_SHARES = (0.05, 0.10, 0.25, 0.35, 0.25)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsConfig:
    """Settings of a generated ratings file."""

    output: Path = setting(REQUIRED, "The file to write; compressed if its name ends in .gz.")
    users: int = setting(REQUIRED, "How many.")
    items: int = setting(REQUIRED, "Size of the catalogue; rare items may not occur.")
    interactions: int = setting(REQUIRED, f"Rows, at least {MIN_LENGTH} for each user.")
    format: str = setting("movielens_csv", f"One of {', '.join(FORMATS)}.")
    seed: int = setting(0, "Seed of everything random.")
    popularity: float = setting(1.0, "Exponent of the power law; at 0 items are equally popular.")
    continuation: float = setting(0.5, "Probability that an item is followed by its successor.")
    titles: Path | None = setting(
        None, "Also write item titles to this file, like MovieLens' movies.csv; they show the rank."
    )
    overwrite: bool = setting(False, "Replace an existing file.")

    def __post_init__(self) -> None:
        """Refuses settings that are not valid."""
        require_choices(self, {"format": FORMATS})
        if self.users < 1 or not 2 <= self.items < 2**31:
            raise UserError(
                "`users` must be at least 1, and `items` in [2, 2**31)", settings=("users", "items")
            )
        if self.interactions < MIN_LENGTH * self.users:
            raise UserError(
                f"`interactions` must be at least {MIN_LENGTH} for each user "
                f"({MIN_LENGTH * self.users}), got {self.interactions}",
                setting="interactions",
            )
        if self.titles is not None and self.titles == self.output:
            raise UserError(
                "`titles` and `output` must be different files", settings=("titles", "output")
            )
        if self.titles is not None and self.format.startswith("amazon"):
            raise UserError(
                f"`titles` needs a MovieLens format; `format` {self.format} has no titles",
                settings=("titles", "format"),
            )
        if not 0 <= self.continuation <= 1 or not 0 <= self.popularity <= 10:
            raise UserError(
                "`continuation` must lie in [0, 1] and `popularity` in [0, 10]",
                settings=("continuation", "popularity"),
            )
        require_not_negative(self, "seed")


@dataclasses.dataclass(frozen=True, slots=True)
class UserBlock:
    """Interactions of some users, grouped by user, in time order.

    Attributes:
        users: [rows] user numbers from 0.
        items: [rows] item numbers from 1.
        ratings: [rows] from 1 to 5.
        timestamps: [rows] seconds since 1970, ascending for each user.
    """

    users: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    ratings: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]


def _catalogue(
    config: RatingsConfig,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the lengths of histories [users], and raw ids by rank [items]."""
    rng = np.random.default_rng([config.seed, 0])
    weights = rng.lognormal(sigma=1.0, size=config.users)
    lengths = MIN_LENGTH + rng.multinomial(
        config.interactions - MIN_LENGTH * config.users, weights / weights.sum()
    )
    return lengths, rng.permutation(config.items) + 1


def blocks(config: RatingsConfig) -> Iterator[UserBlock]:
    """Yields all interactions, in blocks of some users."""
    lengths, raw_of_rank = _catalogue(config)
    popularity = np.arange(1, config.items + 1, dtype=np.float64) ** -config.popularity
    cumulative = np.cumsum(popularity)
    ends = np.cumsum(lengths)
    first, number = 0, 1
    while first < config.users:
        done = ends[first - 1] if first else 0
        last = max(int(np.searchsorted(ends, done + _BLOCK_ROWS, side="right")), first + 1)
        rng = np.random.default_rng([config.seed, number])
        yield _block(
            config, rng, np.arange(first, last), lengths[first:last], cumulative, raw_of_rank
        )
        first, number = last, number + 1


def _block(
    config: RatingsConfig,
    rng: np.random.Generator,
    users: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    cumulative: npt.NDArray[np.float64],
    raw_of_rank: npt.NDArray[np.int64],
) -> UserBlock:
    rows = np.arange(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    is_draw = rng.random(len(rows)) >= config.continuation
    is_draw[starts] = True
    drawn = np.searchsorted(cumulative, rng.random(len(rows)) * cumulative[-1], side="right")
    last_draw = np.maximum.accumulate(np.where(is_draw, rows, 0))
    ranks = (np.minimum(drawn[last_draw], config.items - 1) + rows - last_draw) % config.items
    seconds = np.cumsum(rng.integers(1, _MOST_SECONDS, len(rows)))
    begin = _FIRST_TIME + rng.integers(0, _START_SPAN, len(users))
    return UserBlock(
        users=np.repeat(users, lengths),
        items=raw_of_rank[ranks],
        ratings=rng.choice(5, len(rows), p=_RATING_SHARES) + 1,
        timestamps=seconds + np.repeat(begin - seconds[starts], lengths),
    )


def layout_of(name: str) -> RatingsFormat:
    """Returns the layout of a format."""
    return formats_of((FORMATS[name],))[0]


def _is_json(name: str) -> bool:
    return name.endswith("json")


def format_block(block: UserBlock, name: str, order: npt.NDArray[np.int64]) -> bytes:
    """Formats a block as text, its rows in the given order."""
    layout, is_amazon = layout_of(name), name.startswith("amazon")

    def text(values: npt.NDArray[np.int64]) -> pa.Array:
        return pc.cast(pa.array(values[order]), pa.string())

    users, items, ratings = text(block.users + 1), text(block.items), text(block.ratings)
    if is_amazon:
        users = pc.binary_join_element_wise("A", pc.utf8_lpad(users, 13, "0"), "")
        items = pc.binary_join_element_wise("B", pc.utf8_lpad(items, 9, "0"), "")
    if is_amazon or name == "movielens_csv":
        ratings = pc.binary_join_element_wise(ratings, ".0", "")
    columns = {
        "user": users,
        "item": items,
        "rating": ratings,
        "timestamp": text(block.timestamps),
    }
    if _is_json(name):
        texts: list[Any] = []
        for key, column in layout.used.items():
            quote = '"' if column in ("user", "item") else ""
            texts += [f'{", " if texts else "{"}"{key}": {quote}', columns[column], quote]
        lines = pc.binary_join_element_wise(*texts, "}\n", "")
    else:
        fields = [columns[c] for c in layout.columns]
        lines = pc.binary_join_element_wise(*fields, layout.delimiter)
        lines = pc.binary_join_element_wise(lines, "\n", "")
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "")
    return cast(bytes, joined[0].as_buffer().to_pybytes())


def generate(config: RatingsConfig) -> None:
    """Writes the files; they get their names once they are complete.

    Raises:
        PreprocError: a file exists and `overwrite` is not set, or the disk is full.
    """
    files = [config.output, *([] if config.titles is None else [config.titles])]
    check_files(files, {*files}, overwrite=config.overwrite)
    config.output.parent.mkdir(parents=True, exist_ok=True)
    needs = DiskNeeds(
        {config.output.parent: config.interactions * _ROW_BYTES},
        config.interactions,
        "or choose `output` on another disk",
    )
    with needs.explained("nothing was written"), atomic_file(config.output) as raw:
        if config.output.suffix == ".gz":
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                _write(config, packed)
        else:
            _write(config, raw)
        if config.titles is not None:
            _write_titles(config, config.titles)


def _write_titles(config: RatingsConfig, file: Path) -> None:
    """Writes a title for each item, in the order of rank."""
    _, raw_of_rank = _catalogue(config)
    rows = (f"{raw},Rank {rank},generated\n" for rank, raw in enumerate(raw_of_rank.tolist(), 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file, "w") as text:
        text.write("movieId,title,genres\n")
        text.writelines(rows)


def _write(config: RatingsConfig, file: IO[bytes] | io.BufferedIOBase) -> None:
    layout = layout_of(config.format)
    if layout.needs_header and not _is_json(config.format):
        file.write(layout.header + b"\n")
    for number, block in enumerate(blocks(config)):
        order = np.arange(len(block.users))
        if layout.has_timestamps:
            order = np.random.default_rng([config.seed, number, 1]).permutation(order)
        file.write(format_block(block, config.format, order))


SECTIONS: dict[type, str] = {RatingsConfig: "ratings"}
"""Sections of the flags, and their headings."""


def define_flags() -> flags.FlagValues:
    """Defines the flags of this command."""
    values = new_flags()
    define_settings(values, SECTIONS)
    return values


def run(values: flags.FlagValues) -> None:
    """Writes a file of ratings and prints its name.

    Raises:
        UserError: a flag is missing or invalid.
    """
    given, _ = values_from_flags(values, SECTIONS)
    generate(RatingsConfig(**given))
    print_line(values.output)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run_command(run, define_flags(), argv, __doc__, "interrupted; nothing was written")
