# SPDX-License-Identifier: Apache-2.0
"""The command `recsys-recipes`: finds the program that the words name, and runs it."""

import difflib
import functools
import itertools
import runpy
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from recsys.errors import UserError
from recsys.program import Caller, called_by, fail, print_line
from recsys.train.config import require_checkpoint
from recsys_recipes import __version__
from recsys_recipes.commands import COMMANDS, Command, Program

NAME = "recsys-recipes"
_HELP = ("-h", "--help", "-help", "help")
_MAY_GIVE = {"h", "help", "config", "flagfile", "mode"}
"""Flags that show the help, may contain other flags, or ask for something else."""

_FIRST_TRY = """\
From nothing to a served recommendation (doctor shows what serve and ask need):
  recsys-recipes demo bert4rec
  recsys-recipes deploy --checkpoint demo/bert4rec/checkpoint \\
      --repository repo --raw_ids demo/bert4rec/dataset --titles
  recsys-recipes serve --repository repo --http_port 8000 &
  echo '{"history": [["342", "171", "338"]]}' |
      recsys-recipes ask --url 127.0.0.1:8000 --model bert4rec --request -
"""


def overview() -> str:
    """Returns the help of the whole command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {word:{width}}  {command.summary}" for word, command in COMMANDS.items()]
    return "\n".join([f"Usage: {NAME} COMMAND [--help] ...; {NAME} --version", *lines, ""])


def choices(word: str, command: Command) -> str:
    """Returns the help of a command that has several programs."""
    width = max(map(len, command.programs))
    lines = [f"{command.summary}.", "", f"Usage: {NAME} {word} NAME ..., NAME one of", ""]
    for name, program in command.programs.items():
        default = " (if none is named)" if name == command.default else ""
        lines.append(f"  {name:{width}}  {program.summary}{default}")
    first = next(iter(command.programs))
    return "\n".join([*lines, "", f"Flags of one: {NAME} {word} {first} --help"])


def _wrapped(text: str, first: str, others: str) -> str:
    """Returns a text as indented lines for a terminal."""
    return textwrap.fill(
        text, 79, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )


def run(words: Sequence[str], program: Program, arguments: Sequence[str]) -> None:
    """Runs the program of some words as `python -m` would."""
    spelled = " ".join((NAME, *words))
    own = own_flags(program, spelled, arguments)
    if missing := _missing(program, own):
        flag, what = program.flag(missing[0]), program.needs[missing[0]]
        sys.exit(fail(f"{spelled} needs --{flag}, {what} ({spelled} --help)"))
    usage = _wrapped(f"{spelled} {program.usage}", "Usage: ", " " * 11)
    caller = Caller(
        module=f"python -m {program.module}",
        name=spelled,
        opening=f"{program.summary}.\n\n{usage}",
        most_used=program.most_used,
        names=program.names,
        defaults=program.defaults,
        typed=(NAME, *words, *arguments),
        models_with=functools.partial(_models_with, program),
    )
    called_by(caller)
    sys.argv = [spelled, *program.arguments, *own]
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)


def _models_with(program: Program, flag: str) -> list[str]:
    from recsys_recipes.model_flags import models_with  # loads all models, which few runs need

    return models_with(flag, program)


def own_flags(program: Program, spelled: str, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the program's own names of flags.

    Args:
        program: the program.
        spelled: words of the command, for messages.
        arguments: the user's arguments.
    """
    settings = {flag: setting for setting, flag in program.names.items()}
    own = []
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-"):
            own.append(argument)
        elif name in settings:
            own.append(f"--{settings[name]}{equals}{value}")
        elif name in program.names:
            flag = program.names[name]
            sys.exit(fail(f"{spelled} has no --{name}; use --{flag} ({spelled} --help)"))
        else:
            own.append(argument)
    return own


def _missing(program: Program, arguments: Sequence[str]) -> list[str]:
    """Returns the settings that a program needs and the user did not give."""
    names = {a.lstrip("-").partition("=")[0] for a in arguments if a.startswith("-")}
    if names & _MAY_GIVE:
        return []
    return [setting for setting in program.needs if setting not in names]


def main() -> int:
    """Runs the command line of the process; returns the exit status."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in _HELP:
        print_line(f"{overview()}\n{_FIRST_TRY}".rstrip("\n"))
        return 0
    if arguments[0] == "--version":
        print_line(f"{NAME} {__version__}")
        return 0
    word, *arguments = arguments
    command = COMMANDS.get(word)
    if command is None:
        return _refuse(f"there is no command {word!r}, only", COMMANDS, word)
    names = [] if "" in command.programs else arguments[:1]
    if names and names[0] in command.programs:
        run((word, names[0]), command.programs[names[0]], arguments[1:])
    elif names and (names[0] in _HELP or not names[0].startswith("-")):
        if names[0] not in _HELP:
            return _refuse(f"there is no {names[0]!r} to {word}, only", command.programs, names[0])
        print_line(choices(word, command))
    elif command.finds_model:
        found = _model_of_checkpoint(word, arguments)
        run((word, found), command.programs[found], arguments)
    elif command.default is None:
        return _refuse(f"say what to {word}", command.programs)
    else:
        words = (word, command.default) if command.default else (word,)
        run(words, command.programs[command.default], arguments)
    return 0


def _model_of_checkpoint(word: str, arguments: Sequence[str]) -> str:
    """Returns the model of the checkpoint in the arguments; exits if the command lacks it."""
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if name in ("--checkpoint", "-checkpoint"):
            path = Path(value if equals else following)
            try:
                require_checkpoint(path, "checkpoint")
                from recsys_recipes.models import model_of  # with torch

                model = model_of(path)
                if model.name not in COMMANDS[word].programs:
                    takers = [w for w in _words_with(model.name) if COMMANDS[w].finds_model]
                    raise UserError(
                        f"`checkpoint` {path}: holds {model.title}, a model of {model.data}, for "
                        f"`{NAME} {'` and `'.join(takers)}`; {word} takes "
                        f"{', '.join(COMMANDS[word].programs)}",
                        setting="checkpoint",
                    )
                return model.name
            except UserError as error:
                sys.exit(fail(str(error), error.settings))
    sys.exit(fail(f"{NAME} {word} needs --checkpoint, a trained model ({NAME} {word} --help)"))


def _words_with(name: str) -> list[str]:
    """Returns the commands that have a program of this name."""
    return [word for word, command in COMMANDS.items() if name and name in command.programs]


def _refuse(problem: str, known: Iterable[str], typed: str = "") -> int:
    """Prints what is wrong with the words; returns the exit status."""
    meant = difflib.get_close_matches(typed, [*known], n=1)
    hint = f". Did you mean {meant[0]}?" if meant else ""
    if words := _words_with(typed):
        hint += f". {typed} is for {NAME} {', '.join(words)}"
    return fail(f"{problem}: {', '.join(known)}{hint} ({NAME} --help)")
