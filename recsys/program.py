# SPDX-License-Identifier: Apache-2.0
"""The frame of a program: logging, help, errors, exit status; does not import torch."""

import contextlib
import dataclasses
import difflib
import errno
import functools
import io
import itertools
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from absl import flags

from recsys import raise_interrupts
from recsys.errors import (
    INPUT_REFUSED,
    INTERRUPTED,
    MORE_FILES,
    DivergenceError,
    ProcessLostError,
    UserError,
    as_flags,
    is_out_of_memory,
)
from recsys.flags import command_of as flags_command
from recsys.flags import define_flags, help_text
from recsys.interruption import send_when_parent_ends
from recsys.settings import Sections

_SIGNS_OF_A_BROWSER = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def print_line(line: str) -> None:
    """Prints a line at once; prints nothing after its reader has gone."""
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):  # EIO: the terminal is gone
            raise
        _discard_output()


def open_in_browser(url: str) -> bool:
    """Opens a page in the user's browser; returns whether it did.

    Without a desktop or BROWSER it opens none: a text browser would take over the terminal.
    """
    import webbrowser  # few programs need it

    if any(os.environ.get(name) for name in _SIGNS_OF_A_BROWSER):
        with contextlib.suppress(webbrowser.Error):
            return webbrowser.open(url)
    return False


def _discard_output(stream: TextIO | None = None) -> None:
    """Discards further output, because Python flushes once more at exit."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), (stream or sys.stdout).fileno())


_flags: set[str] = set()
"""Flags of the running program."""


def with_flags(message: str) -> str:
    """Spells settings as flags of the running program, if there is one."""
    return as_flags(message, _flags, _names())


def print_with_flags(line: str) -> None:
    """Prints a line at once, with settings spelled as flags."""
    print_line(with_flags(line))


def fail(message: str, settings: Iterable[str] | None = None) -> int:
    """Prints an error and returns the exit status of refused input.

    Args:
        message: what is wrong and what to do.
        settings: names to spell as flags; None takes those of the running program.
    """
    print(
        f"error: {as_flags(message, _flags if settings is None else settings, _names())}",
        file=sys.stderr,
        flush=True,
    )
    return INPUT_REFUSED


def _is_interrupt(error: BaseException) -> bool:
    """Returns whether an error is Ctrl-C; Python 3.11 wraps it while a class is created."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


class _FlagFormatter(logging.Formatter):
    """Spells the settings of log messages as flags."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a log record."""
        return with_flags(super().format(record))


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """A command that runs this program under another name.

    Attributes:
        module: the program's own command, such as `python -m dataspec.verify`.
        name: the words of the command, such as `recsys-recipes verify`.
        opening: start of the help: what the command does, and a usual call.
        most_used: settings whose flags come next.
        names: setting -> flag of the command, if the program's own flag has another name.
        defaults: setting -> default of the command, if the program's own differs.
        typed: all words that the user typed.
        models_with: unknown flag -> models for which the command has that flag.
    """

    module: str
    name: str
    opening: str
    most_used: tuple[str, ...] = ()
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    typed: tuple[str, ...] = ()
    models_with: Callable[[str], Sequence[str]] = lambda _: ()


_callers: list[Caller] = []


def called_by(caller: Caller) -> None:
    """Shows the command as typed in help and messages, with its names of flags and its defaults."""
    _callers.append(caller)


def _names() -> Mapping[str, str]:
    """Returns setting -> flag of the command that runs the program, if the names differ."""
    return _callers[-1].names if _callers else {}


def setting_named(flag: str) -> str:
    """Returns the setting of a flag of the command."""
    return next((setting for setting, name in _names().items() if name == flag), flag)


def _in_command(text: str) -> str:
    """Spells the flags in a program's own text as the command does."""
    for setting, name in _names().items():
        text = re.sub(rf"(?<![\w-])--{setting}(?!\w)", f"--{name}", text)
    return text


def _message(error: Exception) -> str:
    """Returns the message of an error, with the flags of the command."""
    if not isinstance(error, flags.UnrecognizedFlagError):
        return _in_command(str(error))
    name = error.flagname
    models = _callers[-1].models_with(name) if _callers else ()
    known = (_names().get(flag, flag) for flag in _flags)
    return f"Unknown command line flag {name!r}{unknown_flag_hint(name, known, models)}"


def unknown_flag_hint(name: str, known: Iterable[str], models: Sequence[str]) -> str:
    """Returns a hint: models that have an unknown flag, and similar flags; may be empty.

    Args:
        name: name of the unknown flag.
        known: names of the command's flags.
        models: models that have the flag.
    """
    meant = difflib.get_close_matches(name, [*known])
    return "".join(
        (
            f"; models with it: {', '.join(models)}" if models else "",
            f". Did you mean: {', '.join(meant)} ?" if meant else "",
        )
    )


def _take_defaults(flag_values: flags.FlagValues) -> None:
    """Gives flags the defaults of the command that runs the program."""
    for caller in _callers:
        for setting, default in caller.defaults.items():
            flag_values.set_default(setting, default)


def command_words(module: str) -> list[str]:
    """Returns the words that start this program: those of the command, if one runs it.

    Args:
        module: module of the program, as in `python -m`.
    """
    return _callers[-1].name.split() if _callers else ["python", "-m", module]


def command_of(
    module: str, values: Mapping[str, Any], sections: Sections, told: Collection[str]
) -> str:
    """Returns a command that gives settings as flags; see `recsys.flags.command_of`."""
    return flags_command(command_words(module), values, sections, told, _names())


def _print_help(description: str | None, flag_values: flags.FlagValues) -> None:
    """Prints a program's purpose and its most used flags, then the rest."""
    paragraphs = (description or "").strip().split("\n\n")
    opening, rest = paragraphs[:2], paragraphs[2:]
    chosen: tuple[str, ...] = ()
    for caller in _callers:
        opening, rest, chosen = [caller.opening], paragraphs[1:], caller.most_used
        if rest and rest[0].lstrip().startswith((caller.module, caller.name)):
            del rest[0]  # the opening already has a usual call
        rest = [text.replace(caller.module, caller.name) for text in rest]
    for setting, name in _names().items():
        flag = flag_values[setting]
        flag.name = name
        flag_values[name] = flag  # otherwise its section would leave it out
    most_used, sections = help_text(flag_values, chosen)
    texts = ["\n\n".join(opening), most_used, *(f"{t}\n" for t in rest), sections]
    print_line(_in_command("\n".join(texts)))


def show_log() -> None:
    """Shows log messages from `INFO` on, with settings spelled as flags."""
    logging.basicConfig(level=logging.INFO, force=True)
    logging.getLogger().handlers[0].setFormatter(_FlagFormatter("%(levelname)s %(message)s"))


def start(
    run: Callable[[flags.FlagValues], int | None],
    flag_values: flags.FlagValues,
    describe: Callable[[flags.FlagValues], None] = lambda _: None,
) -> None:
    """Runs a program that logs, and exits with its status.

    Args:
        run: runs the program with parsed flags.
        flag_values: flags of the program, from `new_flags`.
        describe: see `run_command`.
    """
    show_log()
    description = sys.modules["__main__"].__doc__
    sys.exit(run_command(run, flag_values, sys.argv, description, describe=describe))


def run_command(
    run: Callable[[flags.FlagValues], int | None],
    flag_values: flags.FlagValues,
    argv: Sequence[str],
    description: str | None,
    interrupted: str = "interrupted",
    *,
    describe: Callable[[flags.FlagValues], None] = lambda _: None,
    arguments: list[str] | None = None,
) -> int:
    """Parses flags and runs a command; returns the exit status.

    The status is 2 for refused input, 4 if training diverges, and 130 if interrupted.

    Args:
        run: runs the program with parsed flags; may return an exit status.
        flag_values: flags of the program, including --help.
        argv: the program and its arguments.
        description: text above the flags in --help.
        interrupted: message after Ctrl-C.
        describe: completes the help of the flags before --help shows it.
        arguments: list to fill with arguments that are not flags; None refuses them.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # file names may not be UTF-8
    try:
        raise_interrupts()
        _flags.clear()
        _flags.update(flag_values)
        _take_defaults(flag_values)
        extra = flag_values(argv)[1:]
        if flag_values.help:
            describe(flag_values)
            _print_help(description, flag_values)
            return 0
        if arguments is not None:
            arguments += extra
        elif extra:
            raise UserError(_unexpected(argv, extra[0]))
        return run(flag_values) or 0
    except BrokenPipeError:  # the reader has gone, as in `| head -1`
        _discard_output()
        return 128 + signal.SIGPIPE
    except (UserError, DivergenceError, ProcessLostError, flags.Error, OSError) as error:
        advice = {errno.EMFILE: MORE_FILES}.get(getattr(error, "errno", 0) or 0, "")
        named = set(getattr(error, "settings", ()))
        if getattr(error, "line", None) is None:  # otherwise in a file, whose keys are not flags
            named |= _flags
        fail(f"{_message(error)}{advice and '; '}{advice}", named)
        return getattr(error, "exit_code", INPUT_REFUSED)
    except (KeyboardInterrupt, ImportError, MemoryError, RuntimeError) as error:
        if _is_interrupt(error):
            print(interrupted, file=sys.stderr)
            return INTERRUPTED
        if not (lack := _lack(error)):
            raise
        return fail(lack)
    finally:
        try:
            sys.stderr.flush()
        except BrokenPipeError:  # as in `2>&1 | true`; Python would end with status 120
            _discard_output(sys.stderr)


def _lack(error: BaseException) -> str:
    """Returns a message about the memory or the descriptors that an error is for lack of."""
    reason = str(error).partition("\n")[0] or type(error).__name__
    if os.strerror(errno.EMFILE) in reason:  # PyTorch could not map a file
        return f"{reason}; {MORE_FILES}"
    return f"out of memory: use smaller batches ({reason})" if is_out_of_memory(error) else ""


def _unexpected(argv: Sequence[str], word: str) -> str:
    """Returns the message about an argument that is no flag; it may belong to the value before."""
    message = f"unexpected argument {word!r}; every setting is a --flag"
    typed = _callers[-1].typed if _callers and word in _callers[-1].typed else tuple(argv)
    at = typed.index(word)
    flag, equals, value = typed[at - 1].partition("=")
    if not equals:
        flag, value = "" if at == 1 else typed[at - 2], typed[at - 1]
    if not flag.startswith("--") or "=" in flag or value.startswith("-"):
        return message
    rest = itertools.takewhile(lambda each: not each.startswith("-"), typed[at:])
    quoted = shlex.quote(" ".join([value, *rest]))
    return f"{message}, and a value with a space is quoted: {flag} {quoted}"


def new_flags(sections: Mapping[type, str] = {}) -> flags.FlagValues:
    """Returns `--help` and the flags of a command's sections, unparsed."""
    values = flags.FlagValues()  # type: ignore[no-untyped-call]
    values.set_gnu_getopt()
    common: dict[str, Any] = {"flag_values": values, "module_name": "Help", "short_name": "h"}
    flags.DEFINE_bool("help", False, "Show this text.", **common)
    define_flags(values, sections)
    return values


def run_recipe(*words: str, processes: int = 1) -> int:
    """Prints a command of `recsys-recipes` and runs it in a process that ends with this one.

    Args:
        words: words after `recsys-recipes`.
        processes: number of processes; torchrun starts several.

    Returns:
        The exit status; after a signal, the one that a shell reports.
    """
    import subprocess  # few programs need it

    shown, started = ["recsys-recipes"], ["-m", "recsys_recipes"]
    if processes > 1:
        options = ["--standalone", f"--nproc_per_node={processes}", *started]
        shown, started = ["torchrun", *options], ["-m", "torch.distributed.run", *options]
    print_line(f"$ {shlex.join([*shown, *words])}")
    done = subprocess.run(
        [sys.executable, *started, *words],
        check=False,
        preexec_fn=functools.partial(send_when_parent_ends, signal.SIGTERM),
    )
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def print_how_to_continue(
    reason: str,
    step: int,
    checkpoint_folder: Path | None,
    module: str,
    *,
    folder: str = "save_checkpoint_path",
) -> None:
    """Prints the command that continues a run after a signal.

    Args:
        reason: why the training ended.
        step: number of steps done.
        checkpoint_folder: folder of the checkpoints; if None, the program exits with 130.
        module: module of the program, as in `python -m`.
        folder: setting that names this folder.
    """
    if not reason.startswith("SIG"):
        return
    stopped = f"{reason}: stopped after step {step}"
    if checkpoint_folder is None:
        unsaved = with_flags(f"{stopped}; nothing is saved without `{folder}`")
        print(unsaved, file=sys.stderr)
        sys.exit(INTERRUPTED)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        print_line(
            f"{stopped}. To continue, repeat the command that started the processes with --resume"
        )
        return
    print_line(f"{stopped}. Continue with:")
    typed = _callers[-1].typed if _callers else [sys.executable, "-m", module, *sys.argv[1:]]
    words = [word for word in typed if word not in ("--resume", "--resume=true")]
    print_line(shlex.join([*words, "--resume"]))
