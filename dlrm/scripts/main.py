# SPDX-License-Identifier: Apache-2.0
"""Trains, tests or measures DLRM on one device.

python -m dlrm.scripts.main --mode train --dataset /data/dlrm/binary_dataset
"""

import logging
import shlex
import sys

from absl import app, flags

import dlrm  # noqa: F401  (its import keeps triton/ from posing as the compiler, before torch)
from dlrm.config import DlrmConfig
from dlrm.scripts.flags import config_from_flags, define_flags
from dlrm.train import run as runs
from training.divergence import DivergenceError
from training.loop import FitResult

USER_ERROR, DIVERGED, INTERRUPTED = 2, 4, 130


def _say(line: str) -> None:
    print(line, flush=True)


def run(argv: list[str]) -> None:
    """Runs with the flags of the command line."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", force=True)
    if len(argv) > 1:
        sys.exit(_fail(f"unknown arguments: {' '.join(argv[1:])} (flags start with --)"))
    run_with_flags(flags.FLAGS)


def run_with_flags(flag_values: flags.FlagValues) -> None:
    """Does what the flags say; exits 2 on refused input, 4 when training diverges."""
    try:
        config = config_from_flags(flag_values)
        if config.run.mode == "test":
            runs.test(config, _say)
        elif config.run.mode == "inference_benchmark":
            runs.inference_benchmark(config, _say)
        else:
            _say_how_to_continue(config, runs.train(config, _say))
    except DivergenceError as error:
        _fail(str(error))
        sys.exit(DIVERGED)
    except (ValueError, OSError) as error:
        sys.exit(_fail(str(error)))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _say_how_to_continue(config: DlrmConfig, result: FitResult) -> None:
    if not result.reason.startswith("SIG"):
        return
    stopped = f"{result.reason}: stopped after step {result.state.step}"
    if config.checkpoint_folder is None:
        print(f"{stopped}; nothing is saved without --save_checkpoint_path", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if config.run.checkpoint_format == "nvidia":
        _say(f"{stopped}; {config.checkpoint_folder} holds weights, such a run cannot be resumed")
        return
    _say(f"{stopped}. Continue with:")
    _say(_resume_command())


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; exits 2 with one line where a flag is wrong."""
    try:
        remaining: list[str] = flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(_fail(str(error)))
    return remaining


def _resume_command() -> str:
    arguments = [a for a in sys.argv[1:] if a not in ("--resume", "--resume=true")]
    return shlex.join([sys.executable, "-m", "dlrm.scripts.main", *arguments, "--resume"])


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)
    return USER_ERROR


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    app.run(run, flags_parser=parse_flags)
