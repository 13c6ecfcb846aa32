# SPDX-License-Identifier: Apache-2.0
"""docs/flags.md: every flag of every program, from the flags themselves."""

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterable, Mapping

from absl import flags

from benchmark import demo, demo_bert4rec
from bert4rec.scripts import dist_main as bert4rec_dist_main
from bert4rec.scripts import flags as bert4rec
from dataspec import verify
from dlrm.scripts import dist_main, plan_placement, train_torchrec
from dlrm.scripts import flags as dlrm
from preproc.clicks import __main__ as clicks
from preproc.ratings import command as ratings
from preproc.ratings.job import AMAZON, MOVIELENS
from preproc.synthetic import clicks as generated_clicks
from preproc.synthetic import ratings as generated_ratings
from recsys.program import new_flags
from recsys.settings import Sections, declared
from recsys_recipes import doctor, fitted, reproduce, tune
from recsys_recipes.serving import ask, deploy, serve
from tests.harness import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "flags.md"

WRAP = textwrap.TextWrapper(
    100, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
)

HEAD = """\
# Flags

Every flag of every program. `make golden` writes this page; a test fails when it is stale.

A flag is given as `--name value` or `--name=value`, a boolean one as `--name` or `--noname`, a list
with commas; `--flagfile` reads flags from a file. `recsys-recipes --help` tells which of its
commands runs which program.

The commands of `recsys-recipes` have one name for what programs name differently; there `train`
takes `--preset auto` unless a preset is named. There `--log_path` is empty by default, so that the
log of a training is in its folder.

| Command | Programs |
| --- | --- |
| `--dataset` | `--dataset` of DLRM, `--dataset_path` of others |
| `--output`, the folder of a run | `--save_checkpoint_path` of DLRM, `--export_root` of others |
| `--checkpoint` | `--load_checkpoint_path` |
| `--preset` | `--preset` of DLRM, `--config` of BERT4Rec |
| `--batch_size`, `--epochs` | those of DLRM, `--train_batch_size` and `--num_epochs` of BERT4Rec |
"""


def defined(define):
    """Returns the flags that a program adds to --help."""
    values = new_flags()
    define(values)
    return values


@dataclasses.dataclass(frozen=True)
class Program:
    """A command, its flags, and the sections that name defaults of the machine."""

    command: str
    values: flags.FlagValues
    sections: Sections = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A command with the flags of another one, defaults of its own, and perhaps more sections."""

    command: str
    of: str
    defaults: Mapping[str, object]
    more: Mapping[str, list[flags.Flag]] = dataclasses.field(default_factory=dict)


def flags_of(module):
    """Returns the flags of a program's module: new, added to given ones, or its settings."""
    define = getattr(module, "define_flags", None)
    if define is None:
        return new_flags(module.SECTIONS)
    return defined(define) if inspect.signature(define).parameters else define()


def of_module(command, module):
    """Returns the program of a module with sections."""
    return Program(command, flags_of(module), module.SECTIONS)


def programs():
    """Returns every program, in the order of the document."""
    criteo_flags = clicks.define_flags()
    clicks.describe_presets(criteo_flags)
    torchrec = defined(train_torchrec.define_flags).flags_by_module_dict()
    others = {
        "-m preproc.generate_criteo": generated_clicks,
        "-m preproc.generate_ratings": generated_ratings,
        "-m dataspec.verify DIR": verify,
        "triton/deployer.py": deploy,
        "triton/serve.py": serve,
        "triton/client.py": ask,
        "-m benchmark.demo": demo,
        "-m benchmark.demo_bert4rec": demo_bert4rec,
        "-m recsys_recipes.doctor": doctor,
        "-m recsys_recipes.tune MODEL": tune,
        "-m recsys_recipes.reproduce RUN": reproduce,
    }
    return [
        of_module("python -m dlrm.scripts.main", dlrm),
        Variant(
            "python -m dlrm.scripts.dist_main",
            "dlrm.scripts.main",
            dlrm.PRESETS.read(dist_main.DEFAULTS).values,
        ),
        Variant(
            "python -m dlrm.scripts.prepare_synthetic_dataset",
            "dlrm.scripts.main",
            {"dataset_type": "synthetic_disk"},
        ),
        Variant(
            "python -m dlrm.scripts.train_torchrec",
            "dlrm.scripts.main",
            train_torchrec.DEFAULTS,
            {"TorchRec": torchrec["Torchrec"]},
        ),
        of_module("python -m dlrm.scripts.plan_placement", plan_placement),
        Program("python -m bert4rec.scripts.main", defined(bert4rec.define_flags)),
        Variant(
            "python -m bert4rec.scripts.dist_main",
            "bert4rec.scripts.main",
            bert4rec.PRESETS.read(bert4rec_dist_main.DEFAULTS).values,
        ),
        *(
            Program(
                f"python -m recsys_recipes.fitted {name}",
                defined(functools.partial(fitted.define_flags, name=name)),
            )
            for name in fitted.NAMES
        ),
        Program("python -m preproc.clicks", criteo_flags, clicks.SECTIONS),
        Program("python -m preproc.movielens", ratings.define_flags(MOVIELENS), ratings.SECTIONS),
        Program("python -m preproc.amazon", ratings.define_flags(AMAZON), ratings.SECTIONS),
        *(of_module(f"python {command}", module) for command, module in others.items()),
    ]


def flag_names():
    """Returns the names of the flags of every program."""
    names = set()
    for program in programs():
        if isinstance(program, Program):
            names |= set(program.values)
        else:
            names |= {flag.name for members in program.more.values() for flag in members}
    return names - {"help", "h"}


def kind_of(flag):
    """Returns the type of a flag in words."""
    if isinstance(flag, flags.EnumFlag):
        return " | ".join(flag.parser.enum_values)
    name = flag.flag_type()
    names = {"bool": "boolean", "int": "integer", "float": "number", "string": "text"}
    return names.get(name, "list" if "list" in name else "text, repeatable")


def default_of(flag):
    """Returns the default of a flag as a command line spells it; None without one."""
    if flag.default is None:
        return None
    return (flag.default_as_str or "").strip("'") or "empty"


def render_program(program):
    """Returns the section of a program with flags of absl."""
    fields = [field for section in program.sections for field in declared(section)]
    defaults = {field.name: field.metadata["default_text"] for field in fields}
    required = {field.name for field in fields if field.default is dataclasses.MISSING}
    sections = program.values.flags_by_module_dict()
    sections.pop("Help", None)
    return f"\n## {program.command}\n{render_sections(sections, defaults, required)}"


def render_sections(sections, default_texts, required=frozenset()):
    """Returns the flags of each section under its heading."""
    lines = []
    for title, members in sections.items():
        lines.append(f"\n### {title}\n\n")
        for flag in sorted(members, key=lambda flag: flag.name):
            short = f", `--{flag.short_name}`" if flag.short_name else ""
            help_text = flag.help
            if isinstance(flag, flags.EnumFlag):
                help_text = help_text.partition(">: ")[2]
            needed = ", required" if flag.name in required else ""
            default = default_texts.get(flag.name)
            default = default_of(flag) if default is None else default
            default = "" if default is None else f", default {default}"
            line = f"- `--{flag.name}` ({kind_of(flag)}{needed}{default}{short})"
            lines.append(WRAP.fill(line + (f": {help_text}" if help_text else "")) + "\n")
    return "".join(lines)


def render_variant(program):
    """Returns the section of a program with the flags of another one."""
    values: Iterable[str] = (
        f"`--{name}=`" if value == () else f"`--{name} {value}`"
        for name, value in program.defaults.items()
    )
    text = f"The flags of `{program.of}`, with other defaults: {', '.join(values)}."
    text = textwrap.fill(text, 100, break_on_hyphens=False)
    return f"\n## {program.command}\n\n{text}\n{render_sections(program.more, {})}"


def render():
    """Returns the document."""
    renderers = {Program: render_program, Variant: render_variant}
    return HEAD + "".join(renderers[type(program)](program) for program in programs())
