# SPDX-License-Identifier: Apache-2.0
"""Turns settings and tables from Python into what the commands take."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from absl import flags
from pyarrow import ipc

from preproc.files.progress import ProgressReporter
from preproc.files.remote import is_remote, local_copy
from recsys.data.manifest import Data
from recsys.errors import UserError
from recsys.program import new_flags, unknown_flag_hint
from recsys_recipes.commands import COMMANDS, Program
from recsys_recipes.model_flags import models_with
from recsys_recipes.models import MODELS, names_of


def program_of(word: str, model: str, data: Data) -> Program:
    """Returns the program of a command for a model.

    Raises:
        UserError: there is no such model of these data.
    """
    if model in MODELS and MODELS[model].data != data:
        other = MODELS[model].data
        raise UserError(
            f"model {model!r} is a model of {other}, for `rr.{other}`; `rr.{data}` has "
            f"{', '.join(names_of(data))}"
        )
    if model not in names_of(data):
        raise UserError(f"model {model!r} must be {' or '.join(names_of(data))}")
    return COMMANDS[word].programs[model]


def parsed_flags(
    values: flags.FlagValues, program: Program | None = None, **settings: Any
) -> flags.FlagValues:
    """Returns the flags of a command with these values.

    Args:
        values: flags of the program, with the program's own names.
        program: the command's names and defaults; None uses those of the program itself.
        **settings: settings by the names of the command.

    Raises:
        UserError: a flag is unknown, or its value is invalid.
    """
    names = {} if program is None else program.names
    own = {flag: setting for setting, flag in names.items()}
    for setting, default in ({} if program is None else program.defaults).items():
        values.set_default(setting, default)
    arguments = []
    for name, value in settings.items():
        if name in names and name not in own:
            raise UserError(f"there is no setting {name!r}; use {names[name]!r}")
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        given = str(value).lower() if isinstance(value, bool) else value
        arguments.append(f"--{own.get(name, name)}={given}")
    try:
        values(["recsys_recipes", *arguments])
    except flags.UnrecognizedFlagError as error:
        name = error.flagname
        known = (names.get(setting, setting) for setting in values)
        models = [] if program is None else models_with(name, program)
        hint = unknown_flag_hint(name, known, models)
        raise UserError(f"there is no setting {name!r}{hint}") from error
    except flags.Error as error:
        raise UserError(str(error)) from error
    return values


def run(word: str, model: str, data: Data, **settings: Any) -> None:
    """Runs a command with a model.

    Raises:
        UserError: there is no such model of these data, or a setting is refused.
    """
    with values_of(word, model, data, **settings) as values:
        MODELS[model].run(values)


@contextlib.contextmanager
def values_of(word: str, model: str, data: Data, **settings: Any) -> Iterator[flags.FlagValues]:
    """Yields the flags of a command with a model; errors name settings as the command does."""
    program, values = program_of(word, model, data), new_flags()
    with named_as_in(program):
        MODELS[model].define_flags(values)
        yield parsed_flags(values, program, **{"mode": word, **settings})


def train_auto(dataset: str | Path, run: str | Path, **settings: Any) -> Path:
    """Runs `recsys-recipes train auto`; returns the folder of the run.

    Raises:
        UserError: a setting or the dataset is refused, or a training failed.
    """
    from recsys_recipes import train_auto as program

    values = parsed_flags(new_flags(program.SECTIONS), dataset=dataset, output=run, **settings)
    if status := program.run(values):
        raise UserError(f"train auto failed with exit status {status}: see its output above")
    return Path(run)


@contextlib.contextmanager
def named_as_in(program: Program) -> Iterator[None]:
    """Names settings in errors as the command does."""
    try:
        yield
    except UserError as error:
        message = str(error)
        for setting, name in program.names.items():
            message = message.replace(f"`{setting}`", f"`{name}`")
        error.args = (message,)
        error.settings = tuple(program.names.get(name, name) for name in error.settings)
        raise


@contextlib.contextmanager
def schema_file(schema: Any) -> Iterator[Any]:
    """Yields the file of a schema; a dictionary is kept in a YAML file meanwhile."""
    if not isinstance(schema, Mapping):
        yield schema
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schema.yaml"
        path.write_text(yaml.safe_dump(dict(schema), sort_keys=False, allow_unicode=True))
        with called(path, "the schema"):
            yield path


@contextlib.contextmanager
def log_file(settings: Mapping[str, Any]) -> Iterator[Path]:
    """Yields the log file of a run: that of the settings, or a temporary one."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(settings.get("log_path", Path(folder) / "log.json"))


@contextlib.contextmanager
def file_of(log: Any, files: Sequence[str] = ()) -> Iterator[Path]:
    """Yields the file of a log; a table or a remote log is kept in a temporary file meanwhile.

    Args:
        log: a path, a remote address, or a table with `__arrow_c_stream__`.
        files: names of the files to copy from a remote folder; empty copies all parts.

    Raises:
        UserError: the log is none of these, or cannot be copied.
    """
    if isinstance(log, Path) or (isinstance(log, str) and not is_remote(log)):
        yield Path(log)
        return
    if not isinstance(log, str) and not hasattr(log, "__arrow_c_stream__"):
        raise UserError(
            f"a table must be a path or have __arrow_c_stream__, got {type(log).__name__}"
        )
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(log, str):
            name, path = log, local_copy(log, Path(folder), ProgressReporter("none"), files)
        else:
            name, path = "the table", _write_table(log, Path(folder) / "table")
        with called(path, name):
            yield path


@contextlib.contextmanager
def called(path: Path, name: str) -> Iterator[None]:
    """Replaces a temporary path in errors by a name that the user knows."""
    try:
        yield
    except UserError as error:
        error.args = (str(error).replace(str(path), name),)
        if error.path is not None and error.path.is_relative_to(path):
            error.path = None
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
        raise UserError(f"the table has a column that pyarrow cannot convert: {error}") from error
    return path
