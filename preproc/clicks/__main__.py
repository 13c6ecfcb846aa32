# SPDX-License-Identifier: Apache-2.0
"""Command line: raw Criteo logs to a dataset.

    python -m preproc.clicks --input DIR_OR_FILE --output DIR [--preset dlrm] ...

Exit status: 0 done, 2 the input or a setting does not allow it, 3 too many rejected rows, 130
interrupted (the same command continues the run).
"""

import dataclasses
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from absl import flags

from preproc import command
from preproc.clicks import pipeline as clicks_pipeline
from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.growth.days import all_for_training, refitted, semantics_of_day
from preproc.clicks.job import PRESETS, SECTIONS, ClicksJob, semantics_of, semantics_of_schema
from preproc.clicks.rules import ClicksSemantics, one_split
from preproc.clicks.schema.draft.infer import infer_schema
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.raw.parts import files_text, parts_of
from preproc.spark.settings import SparkSettings
from recsys.files.durable import write_whole_file
from recsys.flags import define_flags as define_settings
from recsys.flags import refuse_unused, title, values_from_flags
from recsys.program import new_flags, print_line
from recsys.settings import declared, section_from_dict, without_none

_FROM_FLAGS = {
    section: heading for section, heading in SECTIONS.items() if section is not ClicksSemantics
}


def define_flags() -> flags.FlagValues:
    """Returns the flags of this command, unparsed.

    Flags of the transform have no default here: a flag that is not given takes the preset's value.
    """
    values = new_flags()
    defaults = {"progress": "auto"}
    define_settings(values, _FROM_FLAGS, defaults=defaults, check_choices=False)
    for field in declared(ClicksSemantics):
        define = flags.DEFINE_boolean if _is_boolean(field) else flags.DEFINE_string
        define(
            *(field.name, None, field.metadata["help"]),
            flag_values=values,
            module_name=title("transform"),
        )
    return values


def _is_boolean(field: dataclasses.Field[Any]) -> bool:
    return isinstance(field.default, bool)


def describe_presets(values: flags.FlagValues) -> None:
    """Reads all presets and adds their values to the help texts."""
    presets = {name: semantics_of(name) for name in PRESETS.names()}
    for field in declared(ClicksSemantics):
        texts = (f"{name} {_spell(getattr(p, field.name))}" for name, p in presets.items())
        values[field.name].help += f" By preset: {', '.join(texts)}."


def _spell(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{v:.4g}" for v in value)
    return str(value).lower()


_NUMBERS: dict[type, tuple[Callable[[str], object], str]] = {
    int: (lambda text: int(text.replace("_", "")), "integers such as 95000,5000,-1"),
    float: (
        lambda text: float(Fraction(text)) if "/" in text else float(text),
        "numbers such as 0.8,0.1,0.1",
    ),
}
"""Parser of each type of number, and the phrase for three of them in messages."""


def _parse_setting(field: dataclasses.Field[Any], text: str) -> object:
    """Returns the value of one setting of the transform."""
    hint = typing.get_type_hints(ClicksSemantics)[field.name]
    kind = without_none(hint)
    choices = typing.get_args(kind)
    if kind is not hint and text.lower() == "none":
        return None
    if typing.get_origin(kind) is typing.Literal:
        if text not in choices:
            raise PreprocError(f"--{field.name} must be one of {', '.join(choices)}; got {text!r}")
        return text
    is_tuple = typing.get_origin(kind) is tuple
    parse, several = _NUMBERS[choices[0] if is_tuple else kind]
    try:
        values = tuple(map(parse, text.split(",") if is_tuple else [text]))
    except (ValueError, ArithmeticError) as error:
        expected = several if is_tuple else "an integer"
        raise PreprocError(f"--{field.name} must be {expected}, got {text!r}") from error
    if is_tuple and len(values) != 3:
        raise PreprocError(
            f"--{field.name} must be three numbers (train,validation,test), got {text!r}"
        )
    return values if is_tuple else values[0]


def _semantics(sources: Mapping[str, Any], overrides: dict[str, Any]) -> ClicksSemantics:
    """Returns the rules from the one source that was given: a schema, a dataset or a preset."""
    if len(sources) > 1:
        (first, given), (other, _), *_ = sources.items()
        raise PreprocError(
            f"`{first}` {given} already sets the rules; drop `{other}`", settings=(first, other)
        )
    if "schema" in sources:
        return semantics_of_schema(sources["schema"], one_split(overrides))
    if "dictionaries" in sources:
        return semantics_of_dataset(sources["dictionaries"], overrides)
    return semantics_of(sources.get("preset"), one_split(overrides))


def job_from_flags(values: flags.FlagValues) -> ClicksJob:
    """Returns the settings of a run from its parsed flags.

    Raises:
        UserError: the value of a flag is not allowed.
    """
    last = command.begin_day(values) if values.extend else None
    given, _ = values_from_flags(values, _FROM_FLAGS)
    texts = {field: values[field.name].value for field in declared(ClicksSemantics)}
    overrides: dict[str, Any] = {
        field.name: text if _is_boolean(field) else _parse_setting(field, text)
        for field, text in texts.items()
        if text is not None
    }
    sources = {
        name: given[name] for name in ("schema", "dictionaries", "preset") if values[name].present
    }
    if given["refit"] and last is None:
        raise PreprocError(
            "`refit` needs `extend` with the days before; leave it out",
            settings=("refit", "extend"),
        )
    if last is not None:
        given["semantics"] = semantics_of_day(last, {**sources, **overrides})
        if given["refit"]:
            given["semantics"] = refitted(given["semantics"], last.parent)
    else:
        if values.extend:
            overrides = all_for_training(overrides)
        given["semantics"] = _semantics(sources, overrides)
    given["spark"] = section_from_dict(SparkSettings, given)
    job = section_from_dict(ClicksJob, given)
    transform = {field.name: getattr(job.semantics, field.name) for field in texts}
    refuse_unused(values, given | transform, SECTIONS)
    return job


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""

    def prepare(values: flags.FlagValues) -> Path | None:
        if values.infer is not None:
            _infer(values)
            return None
        job = job_from_flags(values)
        with command.local_input(values, job.output, job.named_files) as path:
            return clicks_pipeline.prepare(dataclasses.replace(job, input=path))

    interrupted = "interrupted; the same command continues, but a pipe starts from the beginning"
    return command.run(prepare, define_flags(), argv, __doc__, interrupted, describe_presets)


def _infer(values: flags.FlagValues) -> None:
    """Writes the draft of a schema.

    Raises:
        PreprocError: no log is given, the log is refused, or the file exists.
    """
    if values.input is None:
        raise PreprocError(
            "`infer` needs `input`, a file or folder of the log", settings=("infer", "input")
        )
    others = {name for name in values if values[name].present} - {"infer", "input", "progress"}
    if others:
        name = min(others)
        raise PreprocError(
            f"`{name}` has no effect with `infer`, which only drafts a schema; leave it out",
            settings=(name, "infer"),
        )
    target = Path(values.infer)
    if target.exists():
        raise PreprocError(
            f"`infer` {target}: already exists; name another file, or remove it", setting="infer"
        )
    with command.local_input(values, target) as log:
        if log.is_dir():
            ProgressReporter(values.progress).note(files_text(log, parts_of(log)))
        write_whole_file(target, infer_schema(log))
    print_line(str(target))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
