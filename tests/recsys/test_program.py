# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C wherever it comes."""

import pytest

from recsys.flags import REMOVED
from recsys.program import new_flags, run_command


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
    assert run_command(interrupted_class, new_flags(), ["program"], None, "nothing is left") == 130
    assert capsys.readouterr().err == "nothing is left\n"


@pytest.mark.parametrize("flag", REMOVED)
def test_a_flag_that_went_says_what_to_do_instead(flag, capsys):
    assert run_command(failing_class, new_flags(), ["program", f"--{flag}=x"], None) == 2
    assert f"'{flag}'" in (message := capsys.readouterr().err)
    assert message.endswith(f"; {REMOVED[flag]}\n")


def test_another_error_of_a_class_is_shown():
    with pytest.raises(RuntimeError, match="the class is wrong"):
        run_command(failing_class, new_flags(), ["program"], None)
