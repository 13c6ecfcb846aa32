# SPDX-License-Identifier: Apache-2.0
"""Names and docstrings use the words of CONTRIBUTING's glossary."""

import ast

import pytest

from tests.harness import REPOSITORY, repository_files

MAX_WORDS = 12
RIDDLES = ("What", "Where", "How", "Returns what", "Returns whether", "Tells whether")
NOT_NAMES = {"found", "part", "piece", "place", "share"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources():
    files = {str(path.relative_to(REPOSITORY)): path for path in repository_files("*.py")}
    return [
        pytest.param(path, id=name) for name, path in files.items() if not name.startswith("tests/")
    ]


def names_of(node):
    """Returns the names that a node gives to something."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.id if isinstance(node, ast.Name) else node.attr]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name.lower()]
    return []


def complaints(source):
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        for name in names_of(node):
            if name.strip("_") in NOT_NAMES:
                yield f"{line}: `{name}` does not say what it holds"
        documented = isinstance(node, DOCUMENTED) and ast.get_docstring(node)
        first = documented.splitlines()[0] if documented else ""
        words = first.split()
        if first.startswith(RIDDLES):
            yield f"{line}: begins without a noun: {first}"
        if len(words) > MAX_WORDS:
            yield f"{line}: {len(words)} words, at most {MAX_WORDS}: {first}"


@pytest.mark.parametrize("file", sources())
def test_docstrings_are_short_and_names_say_what_they_hold(file):
    wrong = [f"{file}:{each}" for each in complaints(file.read_text())]
    assert not wrong, "\n".join([*wrong, "see the rules of CONTRIBUTING"])
