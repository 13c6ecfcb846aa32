# SPDX-License-Identifier: Apache-2.0
"""Command line: raw Criteo logs to a dataset.

    python -m preproc.criteo --input DIR_OR_FILE --output DIR [--preset dlrm] ...

Exit status: 0 done, 2 the input or a setting does not allow it, 3 too many bad rows, 130
interrupted (the same command continues where it was).
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from preproc.criteo import pipeline as criteo_pipeline
from preproc.criteo.job import (
    ENGINES,
    FORMATS,
    LAYOUTS,
    NVTABULAR_DEVICES,
    CriteoJob,
    default_threads,
    parse_memory_size,
)
from preproc.criteo.rules import PRESETS, CriteoSemantics
from preproc.files.errors import PreprocError
from preproc.files.progress import PROGRESS_MODES
from preproc.files.quarantine import QUARANTINE_FILE
from preproc.spark.flags import define_spark_flags, spark_settings_from_flags
from recsys.data.errors import DatasetError
from recsys.data.manifest import Manifest

_USER_ERROR, _INTERRUPTED = 2, 130

_SEMANTICS_HELP = {
    "numerical_offset": "Added to a numerical value before the natural logarithm.",
    "numerical_min": "Smaller raw values are raised to this one first.",
    "numerical_missing": "raw_zero: a missing value is the raw value 0; output_zero: it becomes "
    "0.0 after the logarithm.",
    "frequency_limit": "A category seen fewer times gets id 0; 0 and 1 keep all.",
    "dictionary_days": "all: count categories over the whole data set; train: over the training "
    "split alone.",
    "category_modulus": "Categories are taken modulo this before counting; none keeps them whole.",
    "last_day": "Which half of the last day comes first.",
    "last_day_rounding": "For an odd last day, how many rows its first half holds.",
    "split_fractions": "train,validation,test shares in row order, for example 0.8,0.1,0.1; none "
    "splits by days.",
    "shuffle_seed": "Orders the training split by a hash of this seed and the row number, a "
    "whole number from 0; none keeps them in input order.",
}


def define_flags() -> flags.FlagValues:
    """Returns the flags of this command, unparsed; semantics default to what the preset says."""
    values = flags.FlagValues()  # type: ignore[no-untyped-call]

    def define(kind: str, name: str, default: object, text: str) -> None:
        getattr(flags, f"DEFINE_{kind}")(name, default, text, flag_values=values)

    define("bool", "help", False, "Show this text.")
    define("string", "input", None, "Folder with day_0 ... day_N, or one file; plain or gzip.")
    define("string", "output", None, "The dataset folder to make.")
    define("string", "preset", "dlrm", f"What numbers and ids mean: {', '.join(PRESETS)}.")
    define("string", "engine", "native", f"Who does the work: {', '.join(ENGINES)}.")
    define("string", "format", "split", f"What to write, comma-separated: {', '.join(FORMATS)}.")
    define(
        "string",
        "layout",
        "nvidia",
        f"Of what is written: {', '.join(LAYOUTS)} (float32 and int32 throughout, 160 bytes a row; "
        "parquet with _metadata).",
    )
    define("string", "memory_limit", "4GiB", "Anonymous memory of the process, such as 512MiB.")
    define("integer", "threads", default_threads(), "Worker threads.")
    define(
        "float",
        "max_bad_fraction",
        1e-4,
        "Share of rows that may break the grammar; they are left out and kept in quarantine.csv.",
    )
    define("string", "progress", "auto", f"How to report it: {', '.join(PROGRESS_MODES)}.")
    define(
        "bool",
        "overwrite",
        False,
        "Replace the dataset at --output, once the new one is complete.",
    )
    define(
        "string",
        "work_dir",
        None,
        "Folder for the work state, kept for further runs on the same input; by default "
        "OUTPUT.work, removed after success.",
    )
    define(
        "string",
        "nvtabular_python",
        None,
        "Interpreter that has NVTabular; by default that of `make nvtabular`.",
    )
    define("string", "nvtabular_device", "auto", f"Where: {', '.join(NVTABULAR_DEVICES)}.")
    define_spark_flags(values)
    for field in dataclasses.fields(CriteoSemantics):
        presets = ", ".join(f"{n} {_spell(getattr(p, field.name))}" for n, p in PRESETS.items())
        help_text = f"{_SEMANTICS_HELP[field.name]} By preset: {presets}."
        define("string", field.name, None, help_text)
    return values


def _spell(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{v:.4g}" for v in value)
    return str(value).lower()


def _parse_integer(text: str) -> int:
    return int(text.replace("_", ""))


def _parse_fractions(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _parse_setting(field: dataclasses.Field[Any], text: str) -> object:
    """Returns the value of one setting of the semantics."""
    kind = typing.get_type_hints(CriteoSemantics)[field.name]
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if types.NoneType in kinds and text.lower() == "none":
        return None
    if typing.get_origin(kinds[0]) is typing.Literal:
        choices = typing.get_args(kinds[0])
        if text not in choices:
            raise PreprocError(f"--{field.name} must be one of {', '.join(choices)}; got {text!r}")
        return text
    parse: Callable[[str], object] = _parse_integer if kinds[0] is int else _parse_fractions
    try:
        value = parse(text)
    except ValueError as error:
        kind_name = "an integer" if kinds[0] is int else "numbers such as 0.8,0.1,0.1"
        raise PreprocError(f"--{field.name} must be {kind_name}, got {text!r}") from error
    if isinstance(value, tuple) and len(value) != 3:
        raise PreprocError(
            f"--{field.name} must be three numbers (train,validation,test), got {text!r}"
        )
    return value


def job_from_flags(values: flags.FlagValues) -> CriteoJob:
    """Returns the settings of a run.

    Raises:
        PreprocError: a flag has no meaning.
    """
    for name in ("input", "output"):
        if not values[name].value:
            raise PreprocError(f"--{name} is needed (--help shows all flags)")
    if values.preset not in PRESETS:
        raise PreprocError(f"--preset must be one of {', '.join(PRESETS)}; got {values.preset!r}")
    if values.progress not in PROGRESS_MODES:
        raise PreprocError(
            f"--progress must be one of {', '.join(PROGRESS_MODES)}; got {values.progress!r}"
        )
    given = {field: values[field.name].value for field in dataclasses.fields(CriteoSemantics)}
    overrides: dict[str, Any] = {
        field.name: _parse_setting(field, text) for field, text in given.items() if text is not None
    }
    try:
        semantics = dataclasses.replace(PRESETS[values.preset], **overrides)
    except ValueError as error:
        raise PreprocError(str(error)) from error
    return CriteoJob(
        input=Path(values.input),
        output=Path(values.output),
        semantics=semantics,
        preset=values.preset,
        engine=values.engine,
        format=tuple(values.format.split(",")),
        layout=values.layout,
        memory_limit=parse_memory_size(values.memory_limit),
        threads=values.threads,
        max_bad_fraction=values.max_bad_fraction,
        progress=values.progress,
        overwrite=values.overwrite,
        work_dir=None if values.work_dir is None else Path(values.work_dir),
        nvtabular_python=values.nvtabular_python and Path(values.nvtabular_python),
        nvtabular_device=values.nvtabular_device,
        spark=spark_settings_from_flags(values),
    )


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    values = define_flags()
    try:
        extra = values(argv)[1:]
        if values.help:
            print(__doc__, values.get_help(), sep="\n")
            return 0
        if extra:
            raise PreprocError(f"unexpected argument {extra[0]!r}; every setting is a --flag")
        dataset = criteo_pipeline.prepare(job_from_flags(values))
    except (PreprocError, DatasetError, flags.Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", _USER_ERROR)
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return _INTERRUPTED
    left_out = sum(Manifest.load(dataset).rejected.values())
    if left_out and values.progress != "json":
        print(f"{left_out} rows left out, see {dataset / QUARANTINE_FILE}", file=sys.stderr)
    print(dataset)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
