# SPDX-License-Identifier: Apache-2.0
"""The command line that the ratings commands share."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from preproc.criteo.job import NVTABULAR_DEVICES
from preproc.files.errors import PreprocError
from preproc.files.progress import PROGRESS_MODES
from preproc.files.quarantine import QUARANTINE_FILE
from preproc.ratings import pipeline as ratings_pipeline
from preproc.ratings.job import (
    AMAZON,
    BAD_ROWS,
    COLUMN_ORDERS,
    RATINGS_ENGINES,
    RatingsJob,
    RatingsSource,
)
from preproc.ratings.kcore import KCORES
from preproc.spark.flags import define_spark_flags, spark_settings_from_flags
from recsys.data.errors import DatasetError
from recsys.data.manifest import Manifest

_USER_ERROR, _INTERRUPTED = 2, 130


def define_flags(source: RatingsSource) -> flags.FlagValues:
    """Returns the flags of a ratings command, unparsed."""
    values = flags.FlagValues()  # type: ignore[no-untyped-call]

    def define(kind: str, name: str, default: object, text: str) -> None:
        getattr(flags, f"DEFINE_{kind}")(name, default, text, flag_values=values)

    folder = f", or the folder of {' or '.join(source.file_names)}" if source.file_names else ""
    define("bool", "help", False, "Show this text.")
    define("string", "input", None, f"A ratings file, plain or gzip{folder}.")
    define("string", "output", None, "The dataset folder to make.")
    define("string", "format", "auto", f"Of the file: {', '.join(source.format_names)}.")
    if source is AMAZON:
        text = "Order of user and item in a csv file; auto tells them apart by their look: "
        define("string", "columns", "auto", text + " | ".join(COLUMN_ORDERS) + ".")
    define("float", "min_rating", 0.0, "Ratings below are dropped.")
    text = "Users with fewer interactions are dropped; at least 3. Default: "
    define("integer", "min_user_count", None, f"{text}{source.min_user_count}, for text files 3.")
    text = "Items with fewer interactions are dropped. Default: "
    define("integer", "min_item_count", None, f"{text}{source.min_item_count}, for text files 0.")
    define(
        "string",
        "kcore",
        "iterated",
        f"How the two limits are applied, items before users: {' | '.join(KCORES)} (until nothing "
        "changes, or one pass, after which items may be short again).",
    )
    define(
        "string",
        "bad_rows",
        "refuse",
        f"Rows that break the grammar: {' | '.join(BAD_ROWS)} (stop at the first, or leave them "
        f"out and keep them in {QUARANTINE_FILE}).",
    )
    define("float", "max_bad_fraction", 1e-4, "With quarantine, the share of rows that may be bad.")
    define("string", "progress", "auto", f"How to report it: {', '.join(PROGRESS_MODES)}.")
    define("bool", "overwrite", False, "Replace the dataset at --output, once the new one is done.")
    define("string", "engine", "pyarrow", f"Who does the work: {', '.join(RATINGS_ENGINES)}.")
    text = "Interpreter that has NVTabular; by default that of `make nvtabular`."
    define("string", "nvtabular_python", None, text)
    define("string", "nvtabular_device", "auto", f"Where: {', '.join(NVTABULAR_DEVICES)}.")
    define_spark_flags(values, modes=["dataframe"])
    return values


def job_from_flags(source: RatingsSource, values: flags.FlagValues) -> RatingsJob:
    """Returns the settings of a run.

    Raises:
        PreprocError: a flag has no meaning.
    """
    for name in ("input", "output"):
        if not values[name].value:
            raise PreprocError(f"--{name} is needed (--help shows all flags)")
    if values.progress not in PROGRESS_MODES:
        raise PreprocError(
            f"--progress must be one of {', '.join(PROGRESS_MODES)}; got {values.progress!r}"
        )
    names = {f.name for f in dataclasses.fields(RatingsJob)} & set(values)
    given: dict[str, Any] = {name: values[name].value for name in names}
    paths = ("input", "output", "nvtabular_python")
    given |= {name: Path(given[name]) for name in paths if given[name] is not None}
    return RatingsJob(source=source, spark=spark_settings_from_flags(values), **given)


def run(source: RatingsSource, argv: Sequence[str], description: str | None) -> int:
    """Runs the command line of a source; returns the exit status."""
    values = define_flags(source)
    try:
        extra = values(argv)[1:]
        if values.help:
            print(description, values.get_help(), sep="\n")
            return 0
        if extra:
            raise PreprocError(f"unexpected argument {extra[0]!r}; every setting is a --flag")
        dataset = ratings_pipeline.prepare(job_from_flags(source, values))
    except (PreprocError, DatasetError, flags.Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", _USER_ERROR)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return _INTERRUPTED
    left_out = sum(Manifest.load(dataset).rejected.values())
    if left_out and values.progress != "json":
        print(f"{left_out} rows left out, see {dataset / QUARANTINE_FILE}", file=sys.stderr)
    print(dataset)
    return 0
