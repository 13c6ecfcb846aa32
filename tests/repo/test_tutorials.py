# SPDX-License-Identifier: Apache-2.0
"""The tutorials run from top to bottom, and print what they show, but for numbers and titles.

They run in one folder beside the quickstarts, in two orders, as who follows several pages does. The
notebooks run in folders of their own.

`make tutorials` (RECIPES_REWRITE_GOLDEN=1) writes the outputs into the documents; it needs the real
data with MovieLens' titles.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests import harness
from tests.repo.document_commands import FENCE, NOTEBOOKS, OF_SHELL, commands_of
from tests.repo.notebook import texts_of
from tests.tools import require

DOCS = harness.REPOSITORY / "docs"
TUTORIALS = DOCS / "tutorials"
STEP = re.compile(r"^(```bash\n.*?^```\n)(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
"""Commands, and their output below them, if they have any."""
REWRITES = "RECIPES_REWRITE_GOLDEN" in os.environ
FILMS = 1682
PAGES = (
    *("quickstarts/ml_engineer", "quickstarts/researcher"),
    *("tutorials/criteo", "tutorials/movielens"),
)
OF_SERVER = (
    *("tutorials/criteo", "tutorials/deploy_and_monitor", "tutorials/daily"),
    *("quickstarts/ml_engineer", "quickstarts/own_orders"),
)
"""Pages that run in the environment of the Triton server."""
SPARK = "tutorials/spark"


@pytest.fixture
def raw(real_data, tmp_path):
    """The folder of raw data, with MovieLens' titles, or made up ones for the same ids."""
    folder = tmp_path / "raw"
    (folder / "ml-100k").mkdir(parents=True)
    (folder / "criteo_kaggle").symlink_to((real_data / "criteo_kaggle").resolve())
    for file in (real_data / "ml-100k").iterdir():
        (folder / "ml-100k" / file.name).symlink_to(file.resolve())
    titles = folder / "ml-100k" / "u.item"
    if not titles.exists():
        assert not REWRITES, f"{real_data / 'ml-100k'} has no u.item: real titles are needed"
        genres = "|0" * 19
        lines = (f"{film}|Film {film} (1990)|01-Jan-1990||{genres}" for film in range(1, FILMS + 1))
        titles.write_text("\n".join([*lines, ""]))
    return folder


def environment_of(folder, raw):
    """Returns the variables of a reader, whose `recsys-recipes` is of this Python."""
    recipes = folder / "bin" / "recsys-recipes"
    if not recipes.exists():
        recipes.parent.mkdir()
        recipes.write_text(f'#!/bin/sh\nexec {sys.executable} -m recsys_recipes "$@"\n')
        recipes.chmod(0o755)
    return {
        "RECSYS_DATA": str(raw),
        "PATH": f"{recipes.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(harness.REPOSITORY),
        "CUDA_VISIBLE_DEVICES": "",
        "JAVA_TOOL_OPTIONS": harness.SHORT_LIVED_JAVA,
    }


def printed(command, folder, raw):
    """Returns the output of a command, run as a reader of the tutorial would."""
    environment = environment_of(folder, raw)
    words = shlex.split(command.replace("$RECSYS_DATA", str(raw)))
    if words[:2] == ["python", "-m"] and not OF_SHELL & set(words):
        return harness.forked(*words[1:], folder=folder, **environment).stdout
    return harness.run(
        "bash", "-euo", "pipefail", "-c", command, folder=folder, **environment
    ).stdout


def outputs_of(text, folder, raw):
    """Does what a page shows, in its order; returns the output of each step of commands."""
    outputs = []
    for language, body in FENCE.findall(text):
        if language == "bash":
            commands = body.replace("\\\n", " ").splitlines()
            outputs.append("".join(printed(command, folder, raw) for command in commands))
        elif language == "yaml":  # its first line names the file
            (folder / body.split()[1]).write_text(body)
        elif language == "python":
            (folder / "page.py").write_text(body)
            harness.forked(folder / "page.py", folder=folder, **environment_of(folder, raw))
    return outputs


def shape(text):
    """Returns a text without its numbers, titles, verdicts and the width of its columns."""
    text = re.sub(r"^( *\d+) +\S.*\(\d{4}\) +(\S+ +\S+)$", r"\1 title \2", text, flags=re.MULTILINE)
    text = re.sub(r"^(line \d+, oldest first|\d+\|).*", r"\1 titles", text, flags=re.MULTILINE)
    text = re.sub(r'"titles": \[.*?\]', '"titles": []', text)
    text = re.sub(r"^(Model less|Verdict:) .*", "verdict", text, flags=re.MULTILINE)
    return re.sub(r" +", " ", re.sub(r"\d[\d.,:]*", "#", text))


@pytest.fixture
def stops_servers(tmp_path):
    """Ends what a tutorial left in the background."""
    yield
    for file in tmp_path.rglob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.release
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("stops_servers")
@pytest.mark.parametrize(
    "pages",
    [
        PAGES,
        (SPARK, *PAGES[::-1]),
        pytest.param(OF_SERVER, marks=pytest.mark.triton_server),
        pytest.param(OF_SERVER[::-1], marks=pytest.mark.triton_server),
    ],
    ids=["forward", "backward", "server-forward", "server-backward"],
)
def test_pages_print_what_they_show_in_one_folder(pages, raw, tmp_path):
    if SPARK in pages:
        require("Spark")
    (tmp_path / "data").mkdir()
    for page in pages:
        document = DOCS / f"{page}.md"
        text = document.read_text()
        outputs = outputs_of(text, tmp_path, raw)
        if page.startswith("quickstarts/"):
            continue  # they show no outputs
        assert len(outputs) > 4
        check_or_rewrite(document, text, outputs)


def check_or_rewrite(document, text, outputs):
    """Compares the outputs with those of a tutorial, or writes them into it."""
    steps = list(STEP.finditer(text))
    if not REWRITES:
        for step, output in zip(steps, outputs, strict=True):
            assert shape(output) == shape(step[2] or ""), step[1]
        return
    for step, output in reversed(list(zip(steps, outputs, strict=True))):
        shown = f"\n```text\n{output}```\n" if output else ""
        text = text[: step.start()] + step[1] + shown + text[step.end() :]
    document.write_text(text)


def test_every_output_of_a_tutorial_stands_below_its_commands():
    for document in TUTORIALS.glob("*.md"):
        text = document.read_text()
        assert f"tutorials/{document.stem}" in (*PAGES, SPARK, *OF_SERVER)
        assert text.count("\n```text\n") == sum(step[2] is not None for step in STEP.finditer(text))
        assert commands_of(text)


@pytest.mark.parametrize("document", NOTEBOOKS, ids=lambda document: document.stem)
def test_a_notebook_prints_what_it_shows(document, tmp_path):
    """It needs no data, and shows nothing of the machine that it ran on."""
    done = harness.forked(
        "-m", "tests.repo.notebook", document, folder=tmp_path, CUDA_VISIBLE_DEVICES=""
    )
    if REWRITES:
        document.write_text(done.stdout)
    shown, printed_here = map(texts_of, map(json.loads, (document.read_text(), done.stdout)))
    assert sum(map(len, shown)) > 4
    assert not re.search(r"(?<![\w<])/\w+/", str(shown)), "a path of this machine"
    assert [[*map(shape, cell)] for cell in shown] == [[*map(shape, cell)] for cell in printed_here]
