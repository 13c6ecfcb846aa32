# SPDX-License-Identifier: Apache-2.0
"""A page's document and the answers to its questions."""

import base64
import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from recsys.errors import UserError

_FOLDER = Path(__file__).parent
Values = Mapping[str, Any]
"""A JSON object."""


class QuestionError(UserError):
    """A question of the page with a wrong value.

    Attributes:
        field: the field that holds it, if it is known.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A page on one model.

    Attributes:
        name: of the page's files, `NAME.html` and `NAME.js`.
        answers: name of a question -> its answer; may raise `UserError`.
    """

    name: str
    title: str
    answers: Mapping[str, Callable[[Values], Values]]

    def document(self) -> tuple[bytes, str]:
        """Returns the page in one file, and its Content-Security-Policy."""
        style = (_FOLDER / "page.css").read_text()
        script = "".join((_FOLDER / name).read_text() for name in ("page.js", f"{self.name}.js"))
        page = "\n".join(
            [
                '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f'<link rel="icon" href="data:,"><title>{escape(self.title)}</title>',
                f"<style>{style}</style></head><body>",
                f"<h1>{escape(self.title)}</h1>",
                (_FOLDER / f"{self.name}.html").read_text(),
                f"<script>{script}</script></body></html>\n",
            ]
        )
        policy = (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        return page.encode(), policy


def _hash(text: str) -> str:
    """Returns the hash that names an inline text in a Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
