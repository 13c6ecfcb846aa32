# SPDX-License-Identifier: Apache-2.0
"""An HTML page of charts and tables, in one file without scripts."""

import dataclasses
from collections.abc import Sequence
from html import escape
from pathlib import Path

from recsys.files.durable import whole_file

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --grid: #ddd; --muted: #666;
  --series-0: #1f6fb2; --series-1: #c8541b; --series-2: #2e8b57; --series-3: #8a4fa3;
  --series-4: #a67c00; --series-5: #c0396b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; --grid: #3a3f47;
  --muted: #9aa0a8; --series-0: #6cb2f0; --series-1: #f09a6a; --series-2: #74cf9d;
  --series-3: #c79be0; --series-4: #d9b64a; --series-5: #f08bb0; } }
body { margin: 0 auto; max-width: 1200px; padding: 12px; background: var(--paper);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0 .8rem; color: var(--muted); }
nav { columns: 16rem; } nav a, a { color: var(--series-0); }
.charts { display: grid; gap: 16px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); }
.charts svg { width: 100%; max-width: 560px; height: auto; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: 3px 10px; border-bottom: 1px solid var(--grid); text-align: right; }
td:first-child, th:first-child { text-align: left; } td { font-variant-numeric: tabular-nums; }
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A heading with text, charts and a table below.

    Attributes:
        title: heading; unique in its page.
        charts: <svg> elements.
        table: rows of cells, the first is the head; none for no table.
    """

    title: str
    text: Sequence[str] = ()
    charts: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    links: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        """Returns the section as HTML."""
        lines = [f'<section id="{_anchor(self.title)}"><h2>{escape(self.title)}</h2>']
        lines += [f"<p>{escape(text)}</p>" for text in self.text]
        lines += [f'<p><a href="{escape(to)}">{escape(text)}</a></p>' for text, to in self.links]
        if self.charts:
            lines += ['<div class="charts">', *self.charts, "</div>"]
        if self.table:
            head, *rows = self.table
            lines.append('<div class="table"><table><thead>' + _row(head, "th") + "</thead><tbody>")
            lines += [_row(row, "td") for row in rows]
            lines.append("</tbody></table></div>")
        return "\n".join([*lines, "</section>"])


def render_page(title: str, text: Sequence[str], sections: Sequence[Section]) -> str:
    """Returns a page with a list of its sections, one or more."""
    items = [f'<a href="#{_anchor(s.title)}">{escape(s.title)}</a><br>' for s in sections]
    contents = ["<nav>", *items, "</nav>"] if len(sections) > 1 else []
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *(f"<p>{escape(paragraph)}</p>" for paragraph in text),
            *contents,
            *(section.html() for section in sections),
            "</body></html>\n",
        ]
    )


def write_page(path: Path, page: str) -> None:
    """Writes a whole page, or leaves the earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(page.encode(errors="backslashreplace"))  # a name of a file may not be UTF-8


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _anchor(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower())
