# SPDX-License-Identifier: Apache-2.0
"""The programs of preproc, in a process of their own or called in this one."""

import contextlib
import importlib
import io

from tests import harness


def program(name: str, *flags: object, status: int = 0, **environment: str | None) -> str:
    """Runs a program to its end as its users start it; returns its errors."""
    environment["PYTHONPATH"] = str(harness.REPOSITORY)
    done = harness.python("-m", f"preproc.{name}", *flags, status=status, **environment)
    assert "Traceback" not in done.stderr
    return done.stderr


def called(name: str, *arguments: object, status: int = 0) -> str:
    """Calls a program's main function in this process; returns its errors."""
    module = importlib.import_module(f"preproc.{'clicks.__main__' if name == 'clicks' else name}")
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        ended = module.main(["program", *map(str, arguments)])
    assert ended == status, errors.getvalue()
    assert "Traceback" not in errors.getvalue()
    return errors.getvalue()
