# SPDX-License-Identifier: Apache-2.0
"""The documents: commands parse, links resolve, tables are known, outputs are those printed."""

import itertools
import re
import shlex
from pathlib import Path

import pytest

from benchmark import demo, report
from benchmark.cases import criteo_sample
from benchmark.record import RESULTS
from dlrm.scripts import flags as dlrm
from recsys_recipes.command import own_flags
from recsys_recipes.commands import COMMANDS
from tests.harness import REPOSITORY, forked, run
from tests.repo.document_commands import (
    DOCUMENTS,
    FENCE,
    OF_SHELL,
    check_command,
    check_program,
    commands_of,
)
from tests.repo.flag_reference import defined

README = REPOSITORY / "README.md"
CURRENT = [page for page in DOCUMENTS if page.name not in ("CHANGELOG.md", "log.md")]
"""Documents that describe the repository as it is."""

TRAIN_DLRM = COMMANDS["train"].programs["dlrm"]

INDENTED_CODE = re.compile(r"^    .*$", re.MULTILINE)


def outside_fences(text):
    return INDENTED_CODE.sub("", FENCE.sub("", text))


def all_commands():
    return [
        pytest.param(command, id=f"{document.relative_to(REPOSITORY)}: {command[:80]}")
        for document in DOCUMENTS
        for command in dict.fromkeys(commands_of(document.read_text()))
    ]


@pytest.mark.parametrize("command", all_commands())
def test_a_documented_command_can_be_run(command):
    words = list(itertools.takewhile(lambda word: word not in OF_SHELL, shlex.split(command)))
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["make"]:
        run(*words, "--dry-run")
    elif words[0] == "recsys-recipes" and words[1] != "--help":
        check_command(words[1:])
    elif words[0] == "torchrun" and "-m" in words:
        program = words.index("-m") + 1
        if words[program] == "recsys_recipes":
            check_command(words[program + 1 :])
        else:
            check_program(words[program], words[program + 1 :])
    elif words[1:2] == ["-m"] and Path(words[0]).name == "python":
        check_program(words[2], words[3:])
    elif "/" in words[0]:
        script = REPOSITORY / words[0]
        if not any(part.startswith(".venv") for part in script.parts):  # made by a make target
            assert script.is_file(), f"there is no {words[0]}"


def training_settings(arguments):
    """Returns the settings that decide what a training run arrives at."""
    values = defined(dlrm.define_flags)
    values(["dlrm.scripts.main", *arguments])
    settings = dlrm.config_from_flags(values).to_dict()
    places = ("dataset", "print_freq", "save_checkpoint_path")
    return {name: value for name, value in settings.items() if name not in places}


@pytest.mark.parametrize(
    "measured",
    [
        demo.TRAINING_FLAGS.split(),
        [*criteo_sample.DLRM_FLAGS, "--eval_split=validation"],
    ],
    ids=["demo", "criteo_sample"],
)
def test_the_settings_that_are_measured_are_documented(measured):
    shown = [
        training_settings(own_flags(TRAIN_DLRM, "train dlrm", shlex.split(command)[3:]))
        for document in (README, REPOSITORY / "docs" / "dlrm.md")
        for command in commands_of(document.read_text())
        if command.startswith("recsys-recipes train dlrm")
    ]
    assert training_settings(["--dataset=x", *measured]) in shown


def slug(heading):
    """Returns the anchor that forges give a heading."""
    text = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def headings_of(document):
    return re.findall(r"^#+ (.+)$", outside_fences(document.read_text()), re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(REPOSITORY)))
def test_links_inside_the_repository_resolve(document):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_fences(document.read_text())):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name) if name else document
        if not path.exists() or (anchor and anchor not in {slug(h) for h in headings_of(path)}):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", CURRENT, ids=lambda d: str(d.relative_to(REPOSITORY)))
def test_the_files_that_a_document_names_exist(document):
    named = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`", outside_fences(document.read_text())))
    folders = {name: name.split("/")[0] for name in named}
    # What `make` writes to build/ need not be there.
    ours = {n for n, top in folders.items() if top != "build" and (REPOSITORY / top).exists()}
    assert sorted(name for name in ours if not (REPOSITORY / name).exists()) == []


WRITING = {
    *("output", "save_checkpoint_path", "export_root", "report", "predictions", "perf_input"),
    *("folder", "log_path", "work-dir", "extend"),
}
"""Flags that name what a program writes; --repository is what `deploy` writes."""


def written_by(command):
    """Returns the relative paths that a documented command writes."""
    words = shlex.split(command, posix=False)
    flags = WRITING | ({"repository"} if re.search(r"\bdeploy", command) else set())
    paths = {
        value
        for word, following in itertools.pairwise([*words, ""])
        for flag, _, value in [word.removeprefix("--").partition("=")]
        if flag in flags or word == ">"
        for value in [value or following]
    }
    return {path for path in paths if not path.startswith(("/", "$", "&"))}


def test_no_two_pages_write_one_folder():
    """Whoever follows two pages would find the first one's data under the second one's words."""
    pages = [*DOCUMENTS, REPOSITORY / "triton" / "README.md"]
    commands = {page: commands_of(page.read_text()) for page in pages}
    written = {
        page: {path for command in commands[page] for path in written_by(command)} for page in pages
    }
    assert sum(map(len, written.values())) > 40
    assert [
        f"{one.relative_to(REPOSITORY)} and {other.relative_to(REPOSITORY)} write {path}"
        for one, other in itertools.combinations(pages, 2)
        for path in written[one]
        for theirs in written[other]
        if f"{path}/".startswith(f"{theirs}/") or f"{theirs}/".startswith(f"{path}/")
    ] == []


def test_a_page_reads_datasets_that_it_or_the_readme_writes():
    prepared = [c for c in commands_of(README.read_text()) if ".generate_" not in c]
    of_readme = {path for command in prepared for path in written_by(command)}
    flag = r"--(?:dataset|dataset_path|dictionaries|load_checkpoint_path|checkpoint)[ =](data/\S+)"
    for page in DOCUMENTS:
        commands = commands_of(page.read_text())
        own = {path for command in commands for path in written_by(command)}
        named = {path for command in commands for path in re.findall(flag, command)}
        written = own | of_readme
        assert [
            path
            for path in named
            if not any(f"{path}/".startswith(f"{folder}/") for folder in written)
        ] == [], page


def test_tables_are_those_of_the_results():
    texts = {document.name: document.read_text() for document in DOCUMENTS}
    marked = {m["name"] for text in texts.values() for m in report.MARKERS.finditer(text)}
    assert {"preprocessing", "criteo_sample", "inference"} <= marked
    stale = [n for n, text in texts.items() if report.render_document(text, RESULTS) != text]
    assert stale == [], "run python -m benchmark.report"


@pytest.mark.parametrize(
    ("folder", "patterns", "name"),
    [
        ("docs", ("*.md", "quickstarts/*.md", "tutorials/*.*"), r"[a-z0-9_/]+\.(md|ipynb)"),
        ("docs/decisions", ("*.md",), r"\d{4}-[a-z0-9-]+\.md"),
    ],
)
def test_an_index_lists_every_document(folder, patterns, name):
    root = REPOSITORY / folder
    index = (root / "README.md").read_text()
    files = {str(p.relative_to(root)) for pattern in patterns for p in root.glob(pattern)}
    pages = sorted(files - {"README.md"})
    assert pages
    assert [page for page in pages if f"]({page})" not in index] == []
    assert [page for page in pages if not re.fullmatch(name, page)] == []


def example(document):
    """Returns the first shell commands of a document that an output follows, and that output."""
    text = (REPOSITORY / "docs" / document).read_text()
    return next(
        (commands_of(commands[0]), output[2])
        for commands, output in itertools.pairwise(FENCE.finditer(text))
        if output[1] == "text" and text[commands.end() : output.start()].isspace()
    )


def without_numbers(text):
    return re.sub(r"\d[\d.,:]*", "#", text)


def test_the_plan_is_that_of_the_command():
    (command,), output = example("several_devices.md")
    assert forked(*command.split()[1:]).stdout == output


@pytest.mark.release
def test_the_training_is_that_of_the_commands(real_data, tmp_path):
    commands, output = example("dlrm.md")
    places = {"/data/kaggle": real_data / "criteo_kaggle", "/data/dlrm": tmp_path}
    for command in commands:
        for documented, here in places.items():
            command = command.replace(documented, str(here))
        environment = {"PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
        done = forked(*command.split()[1:], folder=tmp_path, **environment)
    assert without_numbers(done.stdout) == without_numbers(output)
