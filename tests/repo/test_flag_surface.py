# SPDX-License-Identifier: Apache-2.0
"""The flags that users' scripts depend on: those of the seeds, and docs/flags.md as it stands.

A flag that is added or changed edits docs/flags.md in the same commit; `make golden` writes it.
"""

import ast
import os
import re
from pathlib import Path

import pytest
from absl import flags

from bert4rec.scripts import flags as bert4rec
from dlrm.scripts import flags as dlrm
from dlrm.scripts import train_torchrec
from recsys.errors import UserError
from recsys.program import fail
from tests import harness
from tests.repo import flag_reference

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"

PROGRAMS = {
    "dlrm": (dlrm, "seed_flags.txt", 43),
    "train_torchrec": (train_torchrec, "seed_flags_train_torchrec.txt", 15),
    "bert4rec": (bert4rec, "seed_flags_bert4rec.txt", 24),
}
"""Program -> its flags, the list of the seed's, and how many those are."""

DEFAULTS_THAT_DIFFER = {
    # CUDA if present, else CPU: the seed's `cuda` fails without a GPU.
    ("dlrm", "base_device"): "auto",
    # The cardinalities of the dataset: with other sizes, ids would be refused or rows wasted.
    ("train_torchrec", "num_embeddings"): "none",
    ("train_torchrec", "num_embeddings_per_feature"): "empty",
    # The seed can only train: its `dmp` and `ddp` are --parallelism here, and still taken.
    ("bert4rec", "mode"): "train",
}


def flags_of(model):
    values = flags.FlagValues()
    PROGRAMS[model][0].define_flags(values)
    return {
        name: values[name]
        for name in values
        if name == values[name].name  # short names are keys of their own
    }


def default_of(flag):
    if flag.default is None:
        return "none"
    return (flag.default_as_str or "").strip("'") or "empty"


def kind_of(flag):
    if isinstance(flag, flags.EnumFlag):
        return "enum " + "|".join(flag.parser.enum_values)
    name = flag.flag_type()
    return {"bool": "boolean", "int": "integer", "float": "number"}.get(
        name, "list" if "list" in name else name
    )


def seed_flags(model):
    lines = (GOLDEN / PROGRAMS[model][1]).read_text().splitlines()
    rows = [line.split(" | ") for line in lines if not line.startswith("#")]
    heads = [re.fullmatch(r"(\w+)(?: \[(\w+)\])?", head) for head, _, _ in rows]
    return [
        pytest.param(model, head[1], head[2], kind, default, id=f"{model} {head[1]}")
        for head, (_, kind, default) in zip(heads, rows, strict=True)
    ]


def test_the_document_lists_every_flag_of_every_program():
    text = flag_reference.render()
    if os.environ.get("RECIPES_REWRITE_GOLDEN"):
        flag_reference.DOCUMENT.write_text(text)
    assert text == flag_reference.DOCUMENT.read_text(), "run `make golden` and review the diff"


@pytest.mark.parametrize("model", PROGRAMS)
def test_all_flags_of_the_seed_are_listed(model):
    assert len(seed_flags(model)) == PROGRAMS[model][2]


@pytest.mark.parametrize(
    ("model", "name", "short", "kind", "default"),
    [row for model in PROGRAMS for row in seed_flags(model)],
)
def test_a_flag_of_the_seed_keeps_its_meaning(model, name, short, kind, default):
    flag = flags_of(model)[name]
    assert flag.short_name == short
    assert default_of(flag) == DEFAULTS_THAT_DIFFER.get((model, name), default)
    if kind.startswith("enum "):
        offered = set(flag.parser.enum_values)
        assert set(kind.removeprefix("enum ").split("|")) <= offered
    elif name != "base_device":  # a free string in the seed, where any but two values fail later
        assert kind_of(flag) == kind


@pytest.mark.parametrize("program", flag_reference.programs(), ids=lambda p: p.command)
def test_help_lists_every_flag_by_section_after_the_ten_most_used(program):
    command = program.command.removeprefix("python ").removesuffix(" DIR").split()
    done = harness.forked(*command, "--help")
    assert done.stderr == ""
    parts = re.split(r"^(\S[^:\n]*):\n(?=  )", done.stdout, flags=re.MULTILINE)
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
        assert parts[1] == "Most used"
        assert 8 <= len(found["Most used"]) <= 10
    assert {title: found[title] for title in expected} == expected


DOORS = re.compile(
    r".*/scripts/.*|.*/__main__\.py|preproc/[^/]*\.py|preproc/ratings/command\.py"
    r"|recsys/(program|flags)\.py|recsys_recipes/serving/nvidia_options\.py"
)
"""Modules that read command lines."""


def messages_of(tree):
    """Yields (line, text) of a module's strings, but docstrings and the help of settings."""
    left_out = set()
    for node in ast.walk(tree):
        is_help = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setting"
        if is_help or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            left_out |= set(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in left_out:
            left_out |= set(map(id, ast.walk(node)))
            yield (
                node.lineno,
                "".join(
                    part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
                ),
            )
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in left_out:
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
            flags_of_text = re.findall(r"--([a-z]\w*)(?![\w-])", text)
            if names & set(flags_of_text) or re.search(r"--(%s|\{\})(?![-=])", text):
                spelled.append(f"{name}:{line}: {text}")
    assert spelled == [], "name a setting in backquotes; see recsys/errors.py"


def test_a_message_names_its_setting_and_a_program_its_flag(capsys):
    error = UserError("`batch_size` must be at least 1; `mode` test needs none, `make x` neither")
    assert error.settings == ["batch_size", "mode"]
    assert UserError("no setting").settings == []
    assert fail(str(error)) == 2
    expected = "error: --batch_size must be at least 1; --mode test needs none, `make x` neither\n"
    assert capsys.readouterr().err == expected
