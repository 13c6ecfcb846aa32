# SPDX-License-Identifier: Apache-2.0
"""The command line of `preproc.movielens` and `preproc.amazon`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from preproc import command
from preproc.files.days import refuse_rules
from preproc.files.input_file import PLAIN_OR_COMPRESSED
from preproc.ratings import pipeline as ratings_pipeline
from preproc.ratings.growth import RULES, rules_of_day
from preproc.ratings.header import NAMED
from preproc.ratings.job import AMAZON, SECTIONS, RatingsJob, RatingsSource
from preproc.spark.settings import SparkSettings
from recsys.flags import define_flags as define_settings
from recsys.flags import refuse_unused, values_from_flags
from recsys.program import new_flags
from recsys.settings import section_from_dict


def define_flags(source: RatingsSource) -> flags.FlagValues:
    """Defines the flags of a ratings command."""
    values = new_flags()
    folder = f", or the folder of {' or '.join(source.file_names)}" if source.file_names else ""
    without_header = (
        "; without a header, auto recognises users and items by their look"
        if len(source.column_orders) > 1
        else ""
    )
    help_texts = {
        "input": f"A ratings file, {PLAIN_OR_COMPRESSED}{folder}, or a folder of its parts. - is "
        "standard input; URLs that fsspec supports, such as s3://, are copied first.",
        "format": f"Format: {', '.join(source.format_names)}, or the path of a schema (YAML).",
        "columns": f"Columns of a csv file: {' | '.join([*source.column_orders, NAMED])}, where "
        f"NAME is a name in the header; other columns are ignored{without_header}.",
        "min_user_count": "Drop users with fewer interactions; at least 3. Default: "
        f"{source.min_user_count}, 3 for files without times.",
        "min_item_count": "Drop items with fewer interactions. Default: "
        f"{source.min_item_count}{', 0 for files without times' if source.min_item_count else ''}.",
    }
    define_settings(
        values,
        SECTIONS,
        defaults={"progress": "auto"},
        help_texts=help_texts,
        omit=("titles", "id_type") if source is AMAZON else (),
        check_choices=False,
    )
    return values


def job_from_flags(source: RatingsSource, values: flags.FlagValues) -> RatingsJob:
    """Reads the settings of a run from parsed flags."""
    last = command.begin_day(values) if values.extend else None
    given, explicit = values_from_flags(values, SECTIONS)
    if last is not None:
        refuse_rules(last, explicit & {*RULES})
        given |= rules_of_day(last)
    spark = section_from_dict(SparkSettings, given)
    job = section_from_dict(RatingsJob, given | {"source": source, "spark": spark})
    refuse_unused(values, given, SECTIONS)
    return job


def run(source: RatingsSource, argv: Sequence[str], description: str | None) -> int:
    """Runs the command line of a source; returns the exit status."""

    def prepare(values: flags.FlagValues) -> Path:
        job = job_from_flags(source, values)
        with command.local_input(values, job.output) as path:
            return ratings_pipeline.prepare(dataclasses.replace(job, input=path))

    interrupted = "interrupted; nothing was written"
    return command.run(prepare, define_flags(source), argv, description, interrupted)
