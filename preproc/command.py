# SPDX-License-Identifier: Apache-2.0
"""Flags, exit status and last lines of every preprocessing command."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from absl import flags

from preproc.files.days import next_day
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.quarantine import QUARANTINE_FILE
from preproc.files.remote import STANDARD_INPUT, is_remote, local_copy
from preproc.files.workspace import check_output
from recsys.data.manifest import Manifest
from recsys.program import print_line, run_command


def run(
    prepare: Callable[[flags.FlagValues], Path | None],
    values: flags.FlagValues,
    argv: Sequence[str],
    description: str | None,
    interrupted: str,
    describe: Callable[[flags.FlagValues], None] = lambda _: None,
) -> int:
    """Runs a preprocessing command as `run_command`, and prints the dataset's folder.

    `prepare` makes the dataset from parsed flags and returns its folder, or None without one.
    """

    def prepare_and_report(values: flags.FlagValues) -> None:
        dataset = prepare(values)
        if dataset is None:
            return
        manifest = Manifest.load(dataset)
        left_out = sum(manifest.rejected.values())
        if left_out and values.progress != "json":
            print(f"{left_out} rows left out; see {dataset / QUARANTINE_FILE}", file=sys.stderr)
        repeated = manifest.statistics.get("repeated_rows", 0)
        if repeated and values.progress != "json":
            print(
                f"{repeated} rows repeat an earlier row (same user, item, timestamp) and were "
                "kept, so the item that a user is tested on may also be in the history; if they "
                "are duplicates, remove them from the file",
                file=sys.stderr,
            )
        print_line(str(dataset))

    return run_command(
        prepare_and_report, values, argv, description, interrupted, describe=describe
    )


@contextlib.contextmanager
def local_input(
    values: flags.FlagValues, output: Path, files: Sequence[str] = ()
) -> Iterator[Path]:
    """Copies standard input or a URL next to the output; yields the path of the copy.

    From a folder, `files` are copied, or all parts if `files` is empty. If the run fails, the copy
    of a URL is kept for the next one.
    """
    source = values.input
    if not is_remote(source):
        yield Path(source)
        return
    folder = Path(f"{output}.input")
    check_output(output, folder, None, overwrite=values.overwrite)
    try:
        yield local_copy(source, folder, ProgressReporter(values.progress), files)
    except BaseException:
        if source == STANDARD_INPUT:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # it is empty if nothing was copied
        raise
    shutil.rmtree(folder)


def begin_day(values: flags.FlagValues) -> Path | None:
    """Sets `output` to the next day of `extend`; returns the folder of the last day, if any.

    Raises:
        PreprocError: a flag that cannot be combined with `extend` is given.
    """
    for name in ("output", "dictionaries", "overwrite"):
        if values[name].present and values[name].value:
            raise PreprocError(
                f"`extend` {values.extend} adds a day to this folder; drop `{name}`",
                settings=("extend", name),
            )
    day, last = next_day(Path(values.extend))
    values["output"].value = str(day)
    return last
