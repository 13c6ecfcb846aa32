# SPDX-License-Identifier: Apache-2.0
"""Recommendations with titles, as JSON lines and as tables."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys

import pytest

from recsys.data.manifest import Manifest, fingerprint
from recsys.data.titles import write_titles
from tests import harness
from tests.bert4rec.conftest import NUM_ITEMS, raw_id


def title(item: int) -> str:
    return {3: "", 4: "Bell \x1b[2J\x07 (4)", 5: f"Long {'o' * 80} (5)"}.get(item, f"Été, {item}")


@pytest.fixture(scope="module")
def titled(dataset, tmp_path_factory):
    """The prepared dataset, prepared again with titles: its fingerprint is the same."""
    root = tmp_path_factory.mktemp("titled") / "dataset"
    shutil.copytree(dataset, root)
    write_titles(root, [title(item) for item in range(1, NUM_ITEMS + 1)])
    files = Manifest.describe_files(root)
    assert fingerprint(files) == Manifest.load(dataset).fingerprint
    return root


def test_json_has_titles_if_the_dataset_has(program, titled, dataset, trained, capsys):
    lines = f"{raw_id(38)} {raw_id(39)}\nnobody knows\n".encode()
    answers = []
    for root in (titled, dataset):
        program("--mode=recommend", f"--dataset_path={root}", f"--load_checkpoint_path={trained}",
                f"--top_k={NUM_ITEMS}", model=(), stdin=lines)  # fmt: skip
        assert program.exit_code == 0
        answers.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    (named, unknown), plain = answers
    titles = named.pop("titles")
    assert [named, unknown] == plain
    numbers = {raw_id(item): item for item in range(1, NUM_ITEMS + 1)}
    assert titles == [title(numbers[item]) or None for item in named["items"]]


def test_a_table_shows_history_and_titles(program, titled, dataset, trained, capsys):
    lines = f"{' '.join(raw_id(item) for item in range(3, 11))}\nnobody knows\n".encode()
    outputs = []
    for root in (titled, dataset):
        program("--mode=recommend", f"--dataset_path={root}", f"--load_checkpoint_path={trained}",
                f"--top_k={NUM_ITEMS}", "--output_format=table", model=(), stdin=lines)  # fmt: skip
        outputs.append(capsys.readouterr().out.splitlines())
    with_titles, plain = outputs
    history = ", ".join(title(item) for item in range(6, 11))
    assert with_titles[0] == f"line 1, oldest first: 3 more, {history}"
    assert with_titles[1].split() == ["rank", "title", "id", "score"]
    assert plain[1].split() == ["rank", "id", "score"]
    rows = with_titles[2 : 2 + NUM_ITEMS - 8]
    for rank, (row, without) in enumerate(zip(rows, plain[2:], strict=False), 1):
        number, *words, found_id, score = row.split()
        assert [number, found_id, score] == without.split()
        assert int(number) == rank
        assert float(score) <= 100
        assert raw_id(int(words[-1])) == found_id
    assert len({len(row) for row in with_titles[1:-3]}) == 1  # columns are aligned
    assert with_titles[-3:] == ["", "line 2: no item of this history is known", ""]


def test_a_terminal_gets_tables_that_leave_its_state_alone(titled, trained, tmp_path):
    history = tmp_path / "history"
    history.write_text(f"{raw_id(3)} {raw_id(4)} {raw_id(5)}\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bert4rec.scripts.main", "--mode=recommend"]
    command += [f"--dataset_path={titled}", f"--load_checkpoint_path={trained}"]
    command += [f"--recommend_input={history}", "--top_k=2", "--num_threads=1"]
    command += [f"--log_path={tmp_path / 'log.json'}"]
    with subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.DEVNULL, cwd=harness.REPOSITORY
    ) as process:
        os.close(theirs)
        output = b""
        with contextlib.suppress(OSError):  # the terminal closes with the process
            while block := os.read(ours, 4096):
                output += block
    os.close(ours)
    assert process.returncode == 0
    head, columns, *rows = output.decode().split("\r\n")
    long = f"Long {'o' * 80} (5)"[:57] + "..."
    assert head == f"line 1, oldest first: {raw_id(3)}, Bell ?[2J? (4), {long}"
    assert columns.split() == ["rank", "title", "id", "score"]
    assert len(rows) == 4  # two items, an empty line, and what follows the last line
