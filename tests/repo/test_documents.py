# SPDX-License-Identifier: Apache-2.0
"""The documents: their commands parse, their links resolve, their tables are known."""

import importlib
import importlib.util
import inspect
import itertools
import re
import shlex
from pathlib import Path

import pytest
from absl import flags

from benchmark import demo, report
from benchmark.cases import criteo_sample
from benchmark.record import RESULTS, read_records
from bert4rec.scripts import flags as bert4rec_flags
from dlrm.scripts.flags import config_from_flags, define_flags
from preproc.ratings import command as ratings_command
from preproc.ratings.job import AMAZON, MOVIELENS
from tests.harness import REPOSITORY, run
from tests.repo.document_commands import DOCUMENTS, FENCE, OF_SHELL, commands_of

README = REPOSITORY / "README.md"
DECISIONS = REPOSITORY / "docs" / "decisions"
CURRENT = [page for page in DOCUMENTS if page.name not in ("CHANGELOG.md", "log.md")]
"""Documents that describe the repository as it is."""
MAX_README_LINES = 250

INDENTED_CODE = re.compile(r"^    .*$", re.MULTILINE)
RATINGS_COMMANDS = {"preproc.movielens": MOVIELENS, "preproc.amazon": AMAZON}


def outside_fences(text):
    return INDENTED_CODE.sub("", FENCE.sub("", text))


def all_commands():
    return [
        pytest.param(command, id=f"{document.relative_to(REPOSITORY)}: {command[:80]}")
        for document in DOCUMENTS
        for command in dict.fromkeys(commands_of(document.read_text()))
    ]


def check_module(name, arguments):
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"there is no module {name}"
    if spec.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{name}.__main__"), f"{name} is no program"
    if name == "dlrm.scripts.dist_main":  # the program of `main`, with other defaults
        name = "dlrm.scripts.main"
    if name.startswith("dlrm.scripts."):
        program = importlib.import_module(name)
        values = flags.FlagValues()
        program.define_flags(values)
        if arguments != ["--help"]:  # which absl adds to the flags when a program starts
            assert values([name, *arguments])[1:] == []
            program.config_from_flags(values)
    elif name.startswith("bert4rec.scripts."):
        values = flags.FlagValues()
        bert4rec_flags.define_flags(values)
        assert values([name, *arguments])[1:] == []
        bert4rec_flags.config_from_flags(values)
    elif name in RATINGS_COMMANDS:
        values = ratings_command.define_flags(RATINGS_COMMANDS[name])
        assert values([name, *arguments])[1:] == []
        if not values.help:
            ratings_command.job_from_flags(RATINGS_COMMANDS[name], values)
    elif name.startswith("preproc."):
        program = {
            "preproc.criteo": "preproc.criteo.__main__",
            "preproc.generate_criteo": "preproc.synthetic.clicks",
            "preproc.generate_ratings": "preproc.synthetic.ratings",
        }[name]
        define = importlib.import_module(program).define_flags
        values = define() if not inspect.signature(define).parameters else flags.FlagValues()
        if inspect.signature(define).parameters:
            define(values)
        assert values([name, *arguments])[1:] == []


@pytest.mark.parametrize("command", all_commands())
def test_a_documented_command_can_be_run(command):
    words = list(itertools.takewhile(lambda word: word not in OF_SHELL, shlex.split(command)))
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["make"]:
        run(*words, "--dry-run")
    elif words[0] == "torchrun" and "-m" in words:
        program = words.index("-m") + 1
        check_module(words[program], words[program + 1 :])
    elif words[1:2] == ["-m"] and Path(words[0]).name == "python":
        check_module(words[2], words[3:])
    elif "/" in words[0]:
        script = REPOSITORY / words[0]
        if not any(part.startswith(".venv") for part in script.parts):  # made by a make target
            assert script.is_file(), f"there is no {words[0]}"


def training_settings(arguments):
    """Returns the settings that decide what a training run arrives at."""
    values = flags.FlagValues()
    define_flags(values)
    values(["dlrm.scripts.main", *arguments])
    settings = config_from_flags(values).to_dict()
    places = ("dataset", "print_freq", "save_checkpoint_path")
    return {name: value for name, value in settings.items() if name not in places}


@pytest.mark.parametrize(
    "measured",
    [
        [*demo.MODEL_FLAGS, *demo.TRAINING_FLAGS],
        [*criteo_sample.DLRM_FLAGS, "--eval_split=validation"],
    ],
    ids=["demo", "criteo_sample"],
)
def test_the_settings_that_are_measured_are_documented(measured):
    shown = [
        training_settings(shlex.split(command)[3:])
        for document in (README, REPOSITORY / "docs" / "dlrm.md")
        for command in commands_of(document.read_text())
        if command.startswith("python -m dlrm.scripts.main --mode train")
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


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= MAX_README_LINES


def marked_tables():
    return [
        (document, match["name"], match[0])
        for document in DOCUMENTS
        for match in report.MARKERS.finditer(document.read_text())
    ]


def test_every_marker_has_its_end():
    opened = [
        (document, name)
        for document in DOCUMENTS
        for name in re.findall(r"^<!-- results:([\w-]+) -->$", document.read_text(), re.MULTILINE)
    ]
    assert opened == [(document, name) for document, name, _ in marked_tables()]
    assert {"preprocessing", "criteo_sample", "inference"} <= {name for _, name in opened}


def test_tables_are_those_of_the_results():
    stale = [
        f"{document.name}: {name} (run python -m benchmark.report {document.name})"
        for document, name, text in marked_tables()
        if (RESULTS / f"{name}.jsonl").is_file()
        and report.render_table(read_records(RESULTS / f"{name}.jsonl")) not in text
    ]
    assert stale == []


def test_the_index_lists_every_decision():
    index = (DECISIONS / "README.md").read_text()
    pages = [p.name for p in DECISIONS.glob("*.md") if p.name != "README.md"]
    assert pages
    assert [p for p in pages if f"]({p})" not in index] == []
    assert [p for p in pages if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", p)] == []


def test_the_index_lists_every_document():
    index = (REPOSITORY / "docs" / "README.md").read_text()
    folders = ("*.md", "quickstarts/*.md", "tutorials/*.md")
    docs = REPOSITORY / "docs"
    pages = {str(page.relative_to(docs)) for folder in folders for page in docs.glob(folder)}
    assert [page for page in sorted(pages - {"README.md"}) if f"]({page})" not in index] == []
