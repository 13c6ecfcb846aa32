# SPDX-License-Identifier: Apache-2.0
"""Extends a dataset by a day: its rules, and what is known from the days before."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from preproc.clicks.applied import dictionaries_of_dataset, rules_of_dataset
from preproc.clicks.dictionaries import Dictionaries
from preproc.clicks.growth.rare_counts import MOST_COUNTED
from preproc.clicks.job import ClicksJob
from preproc.clicks.rules import SPLIT_SETTINGS, SPLITS, ClicksSemantics, Split
from preproc.files.days import history_of, refuse_known, refuse_rules
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.progress import ProgressReporter
from recsys.data.manifest import Manifest, file_checksum


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """What a day adds to.

    Attributes:
        known: ids and counts of the day before; None for the first day.
        history: for the manifest, the earlier days.
        checksums: checksum of each source file of the new day.
        filled: splits that had rows on the day before.
    """

    known: Dictionaries | None
    history: list[dict[str, Any]]
    checksums: tuple[str, ...]
    filled: tuple[Split, ...]

    @property
    def number(self) -> int:
        """Number of the new day, from 0."""
        return len(self.history)

    @property
    def key(self) -> list[str]:
        """Key for the stages that depend on the days before."""
        return [day["fingerprint"] for day in self.history]

    def missing_split(self, rows: Mapping[Split, int]) -> PreprocError | None:
        """Returns an error if a split has no row, though it had rows on the day before."""
        empty = [split for split in self.filled if not rows[split]]
        if not empty:
            return None
        return PreprocError(
            f"`input`: the day has no row for the split {', '.join(empty)}; give the whole day",
            setting="input",
        )


def all_for_training(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a first day: without a split of its own, all rows are for training.

    A model is tested on the day after the one that it was trained on.
    """
    if any(overrides.get(name) is not None for name in SPLIT_SETTINGS):
        return dict(overrides)
    return {**overrides, "split_rows": (-1, 0, 0)}


def semantics_of_day(last: Path, given: Mapping[str, object]) -> ClicksSemantics:
    """Returns the rules of the days so far, for one more.

    Args:
        last: the last day.
        given: settings that the user gave, which must not include a rule.

    Raises:
        PreprocError: a setting would change the rules.
    """
    refuse_rules(last, given)
    return ClicksSemantics(**rules_of_dataset(last))


def refitted(semantics: ClicksSemantics, root: Path) -> ClicksSemantics:
    """Returns the rules of a day whose edges of bins are found anew.

    Raises:
        PreprocError: no column has bins by quantiles.
    """
    schema = None if semantics.schema is None else semantics.schema.without_found_edges()
    if schema is None or not schema.lacking_edges:
        raise PreprocError(
            f"`refit`: no column of `extend` {root} has bins by quantiles; leave it out",
            settings=("refit", "extend"),
        )
    return dataclasses.replace(semantics, schema=schema)


def growth_of(
    job: ClicksJob, inputs: Sequence[InputFile], reporter: ProgressReporter
) -> Growth | None:
    """Returns what the job's day adds to; None if the job does not extend a dataset.

    Raises:
        UserError: the days so far are damaged or lack counts, or contain a file of the input.
    """
    if job.extend is None:
        return None
    semantics = job.semantics
    for column in range(semantics.num_categorical):
        if semantics.limits(column)[0] > MOST_COUNTED:
            raise PreprocError(
                f"`extend`: the frequency limit must not exceed {MOST_COUNTED:,}, which is as far "
                "as the counts of rare categories go",
                settings=("extend", "frequency_limit"),
            )
    history = history_of(job.extend)
    checksums = _checksums(inputs, reporter)
    if not history:
        return Growth(known=None, history=[], checksums=checksums, filled=())
    paths = (file.path for file in inputs)
    refuse_known(job.extend, dict(zip(paths, checksums, strict=True)), history)
    last = job.extend / history[-1]["name"]
    rows = Manifest.load(last).rows
    filled: list[Split] = [split for split in SPLITS if rows.get(split)]
    return Growth(
        known=dictionaries_of_dataset(last, has_counts=True),
        history=history,
        checksums=checksums,
        filled=tuple(filled),
    )


def _checksums(inputs: Sequence[InputFile], reporter: ProgressReporter) -> tuple[str, ...]:
    done = 0
    checksums = []
    with reporter.stage("checksum", sum(f.size for f in inputs), lambda: (done, 0)):
        for file in inputs:
            checksums.append(file_checksum(file.path))
            done += file.size
    return tuple(checksums)
