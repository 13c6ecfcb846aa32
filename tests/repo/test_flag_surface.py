# SPDX-License-Identifier: Apache-2.0
"""The flags that users' scripts depend on: those of the seeds, and docs/flags.md as it stands.

A flag that is added or changed edits docs/flags.md in the same commit; `make golden` writes it.
"""

import ast
import os
import pickle
import re
from pathlib import Path

import pytest
from absl import flags

from bert4rec.scripts import flags as bert4rec
from dlrm.scripts import flags as dlrm
from dlrm.scripts import train_torchrec
from recsys.errors import UserError
from recsys.program import new_flags, run_command
from tests import harness
from tests.harness import REPOSITORY
from tests.repo import flag_reference

SEEDS = {"dlrm": dlrm, "train_torchrec": train_torchrec, "bert4rec": bert4rec}
"""Program of a seed -> its flags here; tests/golden lists those of the seed."""

DEFAULTS_THAT_DIFFER = {
    # CUDA if present, else CPU: the seed's `cuda` fails without a GPU.
    ("dlrm", "base_device"): "auto",
    # The cardinalities of the dataset: with other sizes, ids would be refused or rows wasted.
    ("train_torchrec", "num_embeddings"): "none",
    ("train_torchrec", "num_embeddings_per_feature"): "empty",
    # The seed can only train: its `dmp` and `ddp` are --parallelism here, and still taken.
    ("bert4rec", "mode"): "train",
}


def seed_flags(program):
    """Returns program, name, short name, type and default of each flag of a seed."""
    name = "seed_flags.txt" if program == "dlrm" else f"seed_flags_{program}.txt"
    lines = (REPOSITORY / "tests" / "golden" / name).read_text().splitlines()
    rows = [line.split(" | ") for line in lines if not line.startswith("#")]
    heads = [re.fullmatch(r"(\w+)(?: \[(\w+)\])?", head) for head, _, _ in rows]
    return [
        pytest.param(program, head[1], head[2], kind, default, id=f"{program} {head[1]}")
        for head, (_, kind, default) in zip(heads, rows, strict=True)
    ]


def test_the_document_lists_every_flag_of_every_program():
    text = flag_reference.render()
    if os.environ.get("RECIPES_REWRITE_GOLDEN"):
        flag_reference.DOCUMENT.write_text(text)
    assert text == flag_reference.DOCUMENT.read_text(), "run `make golden` and review the diff"


@pytest.mark.parametrize(
    ("program", "name", "short", "kind", "default"),
    [row for program in SEEDS for row in seed_flags(program)],
)
def test_a_flag_of_the_seed_keeps_its_meaning(program, name, short, kind, default):
    flag = flag_reference.defined(SEEDS[program].define_flags)[name]
    assert flag.short_name == short
    expected = DEFAULTS_THAT_DIFFER.get((program, name), default)
    assert (flag_reference.default_of(flag) or "none") == expected
    if kind.startswith("enum "):
        offered = set(flag.parser.enum_values)
        assert set(kind.removeprefix("enum ").split("|")) <= offered
    elif name != "base_device":  # a free string in the seed, where any but two values fail later
        assert flag_reference.kind_of(flag) == {"string": "text"}.get(kind, kind)


@pytest.mark.parametrize("program", flag_reference.programs(), ids=lambda p: p.command)
def test_help_lists_every_flag_by_section_after_the_ten_most_used(program, capsys):
    if isinstance(program, flag_reference.Program):
        assert run_command(lambda _: 1, program.values, ["program", "--help"], None) == 0
        stdout, stderr = capsys.readouterr()
    else:
        command = program.command.removeprefix("python ").split()
        done = harness.forked(*command, "--help")
        stdout, stderr = done.stdout, done.stderr
    assert stderr == ""
    parts = re.split(r"^(\S[^:\n]*):\n(?=  )", stdout, flags=re.MULTILINE)
    found = {
        title: set(re.findall(r"^  (?:-\w+,|--\[no\]\w+,)?--(?:\[no\])?(\w+)", text, re.MULTILINE))
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    sections = getattr(program, "values", None) or next(
        other.values for other in flag_reference.programs() if other.command.endswith(program.of)
    )
    expected = {
        title: {flag.name for flag in members}
        for title, members in sections.flags_by_module_dict().items()
    }
    if sum(map(len, expected.values())) > 15:
        assert parts[1] not in expected
        assert 8 <= len(found[parts[1]]) <= 10  # the most used
    assert {title: found[title] for title in expected} == expected


DOORS = re.compile(
    r".*/scripts/.*|.*/__main__\.py|preproc/[^/]*\.py|preproc/ratings/command\.py"
    r"|recsys/(program|flags|errors)\.py|recsys_recipes/serving/nvidia_options\.py"
)
"""Modules that read command lines."""


def messages_of(tree):
    """Yields (line, text) of a module's strings, but docstrings and the help of settings."""
    left_out = set()
    for node in ast.walk(tree):  # parents before their children
        is_help = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setting"
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if id(node) in left_out or is_help or is_docstring:
            left_out |= set(map(id, ast.iter_child_nodes(node)))
        elif isinstance(node, ast.JoinedStr):
            left_out |= set(map(id, node.values))
            texts = [getattr(part, "value", "") for part in node.values]
            yield node.lineno, "".join(t if isinstance(t, str) else "{}" for t in texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("package", ["bert4rec", "dlrm", "preproc", "recsys"])
def test_only_the_doors_spell_settings_as_flags(package):
    names = flag_reference.flag_names()
    spelled = []
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        name = path.relative_to(REPOSITORY).as_posix()
        if DOORS.fullmatch(name):
            continue
        for line, text in messages_of(ast.parse(path.read_text())):
            text = re.sub(
                r"recsys-recipes( \w+)+( --\w+( ([A-Z]+|\{\}))?)+", "", text
            )  # of another program
            flags_of_text = re.findall(r"--([a-z]\w*)(?![\w-])", text)
            if names & set(flags_of_text) or re.search(r"--(%s|\{\})(?![-=])", text):
                spelled.append(f"{name}:{line}: {text}")
    assert spelled == [], "name a setting in backquotes; see recsys/errors.py"


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (UserError("`mode` and `make x`", setting="mode"), "--mode and `make x`"),
        (UserError("`unknown` and `mode`"), "`unknown` and --mode"),
        # Keys of a file are no flags, whatever their names.
        (UserError("a.yaml:3: `mode` is", path="a.yaml", line=3), "a.yaml:3: `mode` is"),
        (UserError("a:3: `mode`", setting="mode", path="a", line=3), "a:3: --mode"),
    ],
)
def test_a_program_spells_its_settings_as_flags(error, printed, capsys):
    def run(_):
        raise error

    values = new_flags()
    flags.DEFINE_string("mode", "train", "", flag_values=values)
    assert run_command(run, values, ["program"], None) == 2
    assert capsys.readouterr().err == f"error: {printed}\n"


def test_an_error_carries_what_it_is_about():
    error = UserError("`a` and `b`", settings=("a", "b"), path="x.yaml", line=3, column="c")
    assert (error.settings, error.path, error.line, error.column) == (
        ("a", "b"), Path("x.yaml"), 3, "c",
    )  # fmt: skip
    assert UserError("x", setting="a").settings == ("a",)
    assert pickle.loads(pickle.dumps(error)).settings == error.settings
