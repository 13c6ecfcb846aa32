# SPDX-License-Identifier: Apache-2.0
"""recsys_recipes/clicks.pyi and ratings.pyi: each setting as an argument, from the flags.

Editors and type checkers read them in place of the modules, whose functions take `**settings`.
"""

import ast
import copy
import re
import subprocess
import sys
import textwrap
import typing

from absl import flags

from preproc.clicks import __main__ as clicks_program
from preproc.clicks.rules import ClicksSemantics
from preproc.ratings import command as ratings_program
from preproc.ratings.job import MOVIELENS
from recsys.auto import AUTO, AutoConfig
from recsys.program import new_flags
from recsys.settings import declared, without_none
from recsys_recipes import fitted, train_auto
from recsys_recipes.commands import COMMANDS
from recsys_recipes.models import MODELS, names_of
from tests.harness import REPOSITORY

PACKAGE = REPOSITORY / "recsys_recipes"
STUBS = {data: PACKAGE / f"{data}.pyi" for data in ("clicks", "ratings")}

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""The functions with their settings, written by `make golden`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import pyarrow as pa

'''

SET_BY_FUNCTIONS = {
    *("help", "input", "output", "mode", "infer", "predictions"),
    *("recommend_input", "recommend_users", "output_format"),
}
"""Settings that users do not pass, besides the functions' own arguments."""

ALIASES = "Aliases"
"""Heading of flags that are other names of settings."""

WRAP = textwrap.TextWrapper(
    92, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
)


def render(data):
    """Returns the stub of the module for clicks or ratings."""
    module = ast.parse((PACKAGE / f"{data}.py").read_text())
    functions = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    stubs = [stub for function in functions for stub in stubs_of(function, data)]
    names = sorted(function.name for function in functions)
    ruff = (sys.executable, "-m", "ruff", "format", "--stdin-filename", STUBS[data], "-")
    return subprocess.run(
        ruff,
        input="\n".join([HEAD, f"__all__ = {names}", *map(ast.unparse, stubs)]),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def stubs_of(function, data):
    """Yields the stub of a function; of `train` one for each model."""
    models = names_of(data)
    if function.args.kwarg is None:
        yield with_settings(function, {})
    elif function.name == "prepare":
        yield with_settings(function, settings_of(function, data))
    elif function.name == "train":
        for model in (*models, AUTO):
            yield with_settings(of_model(function, model), settings_of(function, data, model))
    else:
        yield with_settings(function, joined(settings_of(function, data, name) for name in models))


def of_model(function, model):
    """Returns the overload of `train` for a model, before its settings."""
    overload = copy.deepcopy(function)
    argument, default = overload.args.args[-1], overload.args.defaults[-1]
    assert argument.arg == "model"
    argument.annotation = expression(f"Literal[{model!r}]")
    if default.value != model:
        overload.args.defaults.pop()
    overload.decorator_list = [ast.Name("overload")]
    return overload


def joined(of_models):
    """Returns the settings of a function that finds the model in the checkpoint."""
    found = {}
    for settings in of_models:
        for name, (types, help_text) in settings.items():
            before, first_help = found.get(name, ((), help_text))
            found[name] = (*before, *(each for each in types if each not in before)), first_help
    return found


def settings_of(function, data, model=None):
    """Returns name -> (types, help) of what a function takes, for a model."""
    word = function.name
    values, sections, names = program_of(word, data, model)
    fields = {
        field.name: (field, typing.get_type_hints(section)[field.name], section)
        for section in (*sections, AutoConfig)
        for field in declared(section)
    }
    taken = SET_BY_FUNCTIONS | {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    if word != "train":
        taken |= {"checkpoint"}
    settings = {}
    for title, members in values.flags_by_module_dict().items():
        for flag in members:
            name = names.get(flag.name, flag.name)
            field, hint, section = fields.get(flag.name, (None, str, None))
            used_with = {} if field is None else field.metadata["used_with"]
            if title == ALIASES or name in taken or word not in used_with.get("mode", (word,)):
                continue
            types = types_of(hint)
            if field is not None and (unit := field.metadata["unit"]):
                types = ("str",) if unit == "seconds" else (*types, "str")
            if section is ClicksSemantics and without_none(hint) is not hint:
                types += ("None",)  # of other settings a flag has no such value
            settings[name] = types, help_of(flag, names)
    return settings


def program_of(word, data, model):
    """Returns the flags of a command, their sections, and the command's names of them."""
    if word == "prepare" and data == "ratings":
        return ratings_program.define_flags(MOVIELENS), ratings_program.SECTIONS, {}
    if word == "prepare":
        return clicks_program.define_flags(), clicks_program.SECTIONS, {}
    if model == AUTO:
        return new_flags(train_auto.SECTIONS), train_auto.SECTIONS, {}
    values, names = new_flags(), COMMANDS[word].programs[model].names
    MODELS[model].define_flags(values)
    is_fitted = model in fitted.NAMES
    sections = fitted.config_of(model).sections if is_fitted else MODELS[model].flags.SECTIONS
    return values, sections, names


def types_of(hint):
    """Returns the types that a setting takes: a text may be a path, a list may be a text."""
    kind = without_none(hint)
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return (f"Literal{list(arguments)}",)
    if typing.get_origin(kind) is tuple:
        # The only pairs are those of `spark_conf`, spelled KEY=VALUE.
        is_text = arguments[0] is str or typing.get_origin(arguments[0]) is tuple
        element = "str" if is_text else types_of(arguments[0])[0]
        return f"list[{element}]", f"tuple[{element}, ...]", "str"
    return (kind.__name__,) if kind in (bool, int, float) else ("str", "Path")


def help_of(flag, names):
    """Returns the help of a flag, which names others as settings."""
    text = flag.help
    if isinstance(flag, flags.EnumFlag):
        text = text.partition(">: ")[2]
    elif isinstance(flag, flags.MultiFlag):
        text = text.partition(";\n")[0]
    return re.sub(r"--(\w+)", lambda found: f"`{names.get(found[1], found[1])}`", text)


def with_settings(function, settings):
    """Returns a stub whose `**settings` are arguments, in the docstring too."""
    stub = copy.deepcopy(function)
    docstring = ast.get_docstring(stub)
    if settings:
        stub.args.kwarg = None
        of_settings = re.compile(r"^    \*\*settings:.*(\n     .*)*", re.MULTILINE)
        entries = [WRAP.fill(f"{name}: {text}") for name, (_, text) in settings.items()]
        text = textwrap.indent("\n".join(entries), "    ")
        docstring, count = of_settings.subn(lambda _: text, docstring)
        assert count == 1
    for name, (types, _) in settings.items():
        stub.args.kwonlyargs.append(ast.arg(name, expression(" | ".join(types))))
        stub.args.kw_defaults.append(expression("..."))
    stub.body = [ast.Expr(ast.Constant(f"{textwrap.indent(docstring, '    ').strip()}\n    "))]
    return stub


def expression(text):
    """Returns the syntax tree of an expression."""
    return ast.parse(text, mode="eval").body
