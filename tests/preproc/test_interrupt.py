# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C before the work begins."""

import pytest

from recsys.errors import INTERRUPTED
from tests import harness

AT_IMPORT = """
import os, signal, sys
def interrupt(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize("module", ["absl.flags", "numpy", "recsys.settings"])
@pytest.mark.parametrize(
    "words",
    [
        *(["preproc.clicks"], ["preproc.movielens"], ["preproc.amazon"]),
        *(["preproc.generate_criteo"], ["preproc.generate_ratings"]),
        ["recsys_recipes", "prepare", "clicks"],
    ],
    ids=" ".join,
)
def test_an_interrupt_while_modules_are_imported(tmp_path, words, module):
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT.format(module=module))
    done = harness.python(
        *("-m", *words, "--help"),
        status=INTERRUPTED,
        PYTHONPATH=f"{tmp_path}:{harness.REPOSITORY}",
    )
    assert done.stderr == "interrupted\n"
