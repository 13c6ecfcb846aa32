# SPDX-License-Identifier: Apache-2.0
"""Blank lines at the end of a file, wherever blocks are cut."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preproc.files import input_file
from preproc.files.input_file import InputFile
from preproc.files.raw import blank_end
from preproc.files.raw.blank_end import LINE_ENDS, WHITESPACE, end_of_rows, row_blocks


@pytest.mark.parametrize("blank", [LINE_ENDS, WHITESPACE])
@given(
    text=st.lists(st.sampled_from([b"a", b" ", b"\r", b"\n", b"\n\n\r\n"])).map(b"".join),
    length=st.integers(1, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_blank_lines_at_the_end_go(blank, tmp_path, text, length):
    rows, run = re.fullmatch(rb"(.*?)([%b]*)" % blank, text, re.DOTALL).groups()
    expected = rows + re.match(rb"[^\n]*\n?", run)[0] if rows else b""
    path = tmp_path / "log"
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_file, "BLOCK_BYTES", length)
        patch.setattr(blank_end, "BLOCK_BYTES", length)
        file = InputFile.open(path)
        assert b"".join(row_blocks(file, blank)) == expected
        assert end_of_rows(file, blank) == len(expected)
