# SPDX-License-Identifier: Apache-2.0
"""The project stays small: lines, flags, make targets and environments have limits.

Whoever raises one says why in the same commit; whoever needs less lowers it.
"""

import re
from collections import Counter

from tests.harness import REPOSITORY, repository_files
from tests.repo import flag_reference

LINES = {
    "benchmark": 6_650,
    "bert4rec": 7_820,
    "cuda_ext": 12_470,
    "dlrm": 11_180,
    "preproc": 18_760,
    "recsys": 16_220,
    "recsys_recipes": 2_950,
    "tests": 39_920,
}
"""Most lines of Python, C++, CUDA and shell of each top folder."""

OTHER_LINES = 1_470
"""Most lines of all others together."""

FLAGS = {
    "python -m dlrm.scripts.main": 75,
    "python -m bert4rec.scripts.main": 92,
    "python -m preproc.clicks": 36,
}
"""Most flags of a large program."""

ALL_FLAGS = 380
MAKE_TARGETS = 40
ENVIRONMENTS = {".venv", ".venv-nvtabular", ".venv-recbole", ".venv-triton"}
LONGEST_FILE = 550


def lines_of_files():
    patterns = [f"*.{ending}" for ending in ("py", "cpp", "h", "cu", "cuh", "sh")]
    return {
        path.relative_to(REPOSITORY): len(path.read_text().splitlines())
        for path in repository_files(*patterns)
    }


def test_lines():
    counted = Counter()
    for path, lines in lines_of_files().items():
        counted[path.parts[0] if path.parts[0] in LINES else "others"] += lines
    limits = LINES | {"others": OTHER_LINES}
    assert {top: n for top, n in counted.items() if n > limits[top]} == {}


def test_no_file_is_too_long():
    assert {str(p): n for p, n in lines_of_files().items() if n > LONGEST_FILE} == {}


def test_flags():
    """Counts those of docs/flags.md, which another test keeps complete."""
    sections = re.split("^## ", flag_reference.DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    counted = {text.splitlines()[0]: text.count("\n- `--") for text in sections}
    assert {name: n for name, n in counted.items() if n > FLAGS.get(name, 35)} == {}
    assert sum(counted.values()) <= ALL_FLAGS


def makefile():
    return (REPOSITORY / "Makefile").read_text()


def test_make_targets():
    targets = re.findall(r"^([a-z0-9-]+):.*?##", makefile(), re.MULTILINE)
    assert len(targets) <= MAKE_TARGETS


def test_environments():
    assert set(re.findall(r"\.venv(?:-\w+)?\b", makefile())) == ENVIRONMENTS
