# SPDX-License-Identifier: Apache-2.0
"""Settings and tables from Python, as commands take them."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from absl import flags
from pyarrow import ipc

from preproc.files.progress import ProgressReporter
from preproc.files.remote import is_remote, local_copy
from recsys.errors import UserError


def parsed_flags(values: flags.FlagValues, **settings: Any) -> flags.FlagValues:
    """Returns the flags of a command with these values.

    Raises:
        UserError: a flag is unknown, or has no such value.
    """
    arguments = []
    for name, value in settings.items():
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        arguments.append(f"--{name}={str(value).lower() if isinstance(value, bool) else value}")
    try:
        values(["recsys_recipes", *arguments])
    except flags.Error as error:
        raise UserError(str(error)) from error
    return values


@contextlib.contextmanager
def file_of(log: Any, files: Sequence[str] = ()) -> Iterator[Path]:
    """Keeps a table or a copy in a file meanwhile; of a remote folder these files or all parts.

    Raises:
        UserError: it is neither a path nor such a table.
    """
    if isinstance(log, Path) or (isinstance(log, str) and not is_remote(log)):
        yield Path(log)
        return
    if not isinstance(log, str) and not hasattr(log, "__arrow_c_stream__"):
        raise UserError(f"a table is a path or has __arrow_c_stream__, got {type(log).__name__}")
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(log, str):
            name, path = log, local_copy(log, Path(folder), ProgressReporter("none"), files)
        else:
            name, path = "the table", _write_table(log, Path(folder) / "table")
        try:
            yield path
        except UserError as error:
            error.args = (str(error).replace(str(path), name),)
            raise


def _write_table(table: Any, path: Path) -> Path:
    options = ipc.IpcWriteOptions(compression="lz4")
    try:
        with (
            pa.RecordBatchReader.from_stream(table) as reader,
            ipc.new_stream(path, reader.schema, options=options) as stream,
        ):
            for batch in reader:
                stream.write_batch(batch)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"the table has a column that pyarrow cannot take: {error}") from error
    return path
