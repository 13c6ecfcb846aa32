# SPDX-License-Identifier: Apache-2.0
"""How a program of ours starts and ends: logging, refused arguments, exit statuses."""

import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from absl import app, flags

from recsys.train.divergence import DivergenceError
from recsys.train.loop import FitResult

USER_ERROR, DIVERGED, INTERRUPTED = 2, 4, 130


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def fail(message: str) -> int:
    """Prints an error and returns the exit status of refused input."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    return USER_ERROR


def start(run: Callable[[flags.FlagValues], None]) -> None:
    """Parses the command line and runs.

    Exits 2 on refused input, 4 when training diverges, 130 when interrupted.

    Args:
        run: does what the flags say.
    """

    def main(argv: list[str]) -> None:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", force=True)
        if len(argv) > 1:
            sys.exit(fail(f"unknown arguments: {' '.join(argv[1:])} (flags start with --)"))
        run_guarded(run, flags.FLAGS)

    app.run(main, flags_parser=_parse_flags)


def run_guarded(run: Callable[[flags.FlagValues], None], flag_values: flags.FlagValues) -> None:
    """Runs, turning refusals, divergence and Ctrl-C into a message and an exit status."""
    try:
        run(flag_values)
    except DivergenceError as error:
        fail(str(error))
        sys.exit(DIVERGED)
    except (ValueError, OSError) as error:
        sys.exit(fail(str(error)))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        remaining: list[str] = flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(fail(str(error)))
    return remaining


def say_how_to_continue(
    result: FitResult,
    checkpoint_folder: Path | None,
    module: str,
    *,
    folder_flag: str = "--save_checkpoint_path",
    resumable: bool = True,
) -> None:
    """Tells, after a signal stopped a run, what was saved and how to go on.

    Args:
        result: of the training.
        checkpoint_folder: where the run saves; None exits 130.
        module: of the program, as python -m names it.
        folder_flag: flag that names the folder.
        resumable: whether the checkpoints hold more than weights.
    """
    if not result.reason.startswith("SIG"):
        return
    stopped = f"{result.reason}: stopped after step {result.state.step}"
    if checkpoint_folder is None:
        print(f"{stopped}; nothing is saved without {folder_flag}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if not resumable:
        say(f"{stopped}; {checkpoint_folder} holds weights, such a run cannot be resumed")
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        say(f"{stopped}. To continue, repeat the command that started the processes with --resume")
        return
    say(f"{stopped}. Continue with:")
    arguments = [a for a in sys.argv[1:] if a not in ("--resume", "--resume=true")]
    say(shlex.join([sys.executable, "-m", module, *arguments, "--resume"]))
