# SPDX-License-Identifier: Apache-2.0
"""Runs a notebook from top to bottom and prints it with its outputs, as Jupyter stores them.

python -m tests.repo.notebook docs/tutorials/own_clicks.ipynb

A kernel of Jupyter would take as much processor time as the notebooks themselves.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run_cell(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Runs the code of a cell; returns what it printed and the value of its last expression."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    with (
        contextlib.redirect_stdout(streams["stdout"]),
        contextlib.redirect_stderr(streams["stderr"]),
    ):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = [
        {"name": name, "output_type": "stream", "text": lines(stream.getvalue())}
        for name, stream in streams.items()
        if stream.getvalue()
    ]
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": lines(value._repr_html_())} | data
        outputs.append(
            {
                "data": data,
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def lines(text: str) -> list[str]:
    """Returns a text as notebooks store it."""
    return text.splitlines(keepends=True)


def texts_of(notebook: dict[str, Any]) -> list[list[str]]:
    """Returns the outputs of each cell of code, as texts."""
    return [
        ["".join(each["text"] if "text" in each else each["data"]["text/plain"]) for each in cell]
        for cell in (each["outputs"] for each in notebook["cells"] if "outputs" in each)
    ]


def main() -> None:
    """Runs the notebook that the command line names."""
    notebook = json.loads(Path(sys.argv[1]).read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(code, 1):
        cell["execution_count"] = number
        cell["outputs"] = run_cell("".join(cell["source"]), names, number)
    print(json.dumps(notebook, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
