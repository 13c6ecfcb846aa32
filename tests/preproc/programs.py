# SPDX-License-Identifier: Apache-2.0
"""The programs of preproc as their users start them."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

from tests import harness


def program(
    name: str,
    *flags: object,
    status: int = 0,
    folder: Path = harness.REPOSITORY,
    **environment: str | None,
) -> str:
    """Runs a program to its end in a folder; returns its errors, which are no traceback."""
    environment["PYTHONPATH"] = str(harness.REPOSITORY)
    module = ("-m", f"preproc.{name}")
    done = harness.python(*module, *flags, folder=folder, status=status, **environment)
    assert "Traceback" not in done.stderr
    return done.stderr


def called(main: Callable[[list[str]], int], *arguments: object, status: int = 0) -> str:
    """Calls a program's main function in this process; returns its errors."""
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        ended = main(["program", *map(str, arguments)])
    assert ended == status, errors.getvalue()
    assert "Traceback" not in errors.getvalue()
    return errors.getvalue()
