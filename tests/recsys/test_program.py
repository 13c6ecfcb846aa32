# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C wherever it comes, and a reader that goes."""

import os
import subprocess

import pytest

from recsys import is_own_program
from recsys.program import new_flags, run_command
from recsys_recipes.commands import COMMANDS
from tests import harness

PROGRAMS = sorted({p.module for command in COMMANDS.values() for p in command.programs.values()})
WORDS = [["-m", module] for module in PROGRAMS]
WORDS += [["-m", "recsys_recipes"], ["-m", "recsys_recipes", "test"], ["triton/serve.py"]]


def interrupted_class(_values):
    """Is interrupted while a class is made, as an import can be: Python 3.11 wraps that."""

    class Interrupting:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    class Settings:
        field = Interrupting()

    return Settings


def failing_class(_values):
    raise RuntimeError("the class is wrong") from ValueError()


def test_ctrl_c_while_a_class_is_made_is_ctrl_c(capsys):
    assert run_command(interrupted_class, new_flags(), ["program"], None, "ended") == 130
    assert capsys.readouterr().err == "ended\n"


def test_another_error_of_a_class_is_shown():
    with pytest.raises(RuntimeError, match="the class is wrong"):
        run_command(failing_class, new_flags(), ["program"], None)


INTERRUPTING = """
import os, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == "absl":
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_ctrl_c_while_a_program_is_imported_is_told_in_a_line(tmp_path, words):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    path = f"{tmp_path}{os.pathsep}{harness.REPOSITORY}"
    done = harness.python(*words, "--help", status=130, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("", "interrupted\n")


@pytest.mark.parametrize(
    ("words", "is_own"),
    [
        ("python -m dlrm.scripts.main --mode train", True),
        ("python -u -X importtime -m preproc.clicks", True),
        ("python3 /usr/local/bin/recsys-recipes doctor", True),
        ("python triton/serve.py", True),
        ("python mine.py -m dlrm.scripts.main", False),
        ("python -m pytest tests/dlrm", False),
        ("python -c pass -m dlrm.scripts.main", False),
        ("python", False),
    ],
)
def test_the_library_leaves_ctrl_c_to_the_programs_of_others(words, is_own):
    assert is_own_program(words.split()) == is_own


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_the_help_ends_with_its_reader(words):
    reader, writer = os.pipe()
    os.close(reader)
    with harness.started(*words, "--help", stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert process.stderr.read() == ""
        assert process.wait(harness.PATIENCE_S) == 0
