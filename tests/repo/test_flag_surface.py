# SPDX-License-Identifier: Apache-2.0
"""The flags that users' scripts depend on: those of seed 004, and the whole list as it stands.

A flag that is added or changed edits tests/golden/help_main.txt in the same commit; `make golden`
writes it anew.
"""

import os
import re
from pathlib import Path

import pytest
from absl import flags

from dlrm.scripts.flags import define_flags

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

DEFAULTS_THAT_DIFFER = {
    "base_device": "auto",  # CUDA if present, else CPU: the seed's `cuda` fails without a GPU
}


def dlrm_flags():
    values = flags.FlagValues()
    define_flags(values)
    return {
        name: values[name]
        for name in values
        if name == values[name].name  # short names are keys of their own
    }


def default_of(flag):
    return "none" if flag.default is None else (flag.default_as_str or "").strip("'")


def kind_of(flag):
    if isinstance(flag, flags.EnumFlag):
        return "enum " + "|".join(flag.parser.enum_values)
    name = flag.flag_type()
    return {"bool": "boolean", "int": "integer", "float": "number"}.get(
        name, "list" if "list" in name else name
    )


def render(found):
    lines = ["# python -m dlrm.scripts.main: flag | type | default, then the help.\n"]
    for name in sorted(found):
        flag = found[name]
        short = f" [{flag.short_name}]" if flag.short_name else ""
        lines.append(f"{name}{short} | {kind_of(flag)} | {default_of(flag)}\n    {flag.help}\n")
    return "".join(lines)


def seed_flags():
    lines = (GOLDEN / "seed_flags.txt").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if not line.startswith("#")]
    heads = [re.fullmatch(r"(\w+)(?: \[(\w+)\])?", head) for head, _, _ in rows]
    return [
        pytest.param(head[1], head[2], kind, default, id=head[1])
        for head, (_, kind, default) in zip(heads, rows, strict=True)
    ]


def test_the_golden_list_is_the_list():
    file = GOLDEN / "help_main.txt"
    text = render(dlrm_flags())
    if os.environ.get("RECIPES_REWRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), "run `make golden` and review the diff"


def test_all_43_flags_of_the_seed_are_listed():
    assert len(seed_flags()) == 43


@pytest.mark.parametrize(("name", "short", "kind", "default"), seed_flags())
def test_a_flag_of_the_seed_keeps_its_meaning(name, short, kind, default):
    flag = dlrm_flags()[name]
    assert flag.short_name == short
    assert default_of(flag) == DEFAULTS_THAT_DIFFER.get(name, default)
    if kind.startswith("enum "):
        offered = set(flag.parser.enum_values)
        assert set(kind.removeprefix("enum ").split("|")) <= offered
    elif name != "base_device":  # a free string in the seed, where any but two values fail later
        assert kind_of(flag) == kind
