# SPDX-License-Identifier: Apache-2.0
"""Renders results as markdown tables, between markers in a document.

    python -m benchmark.report docs/results.md            writes the tables
    python -m benchmark.report docs/results.md --check    exits 1 when a table is not up to date
    python -m benchmark.report --html results.html        writes a page with charts of all results
    python -m benchmark.report --markdown results.md      writes them as a document, for a site

Between `<!-- results:NAME -->` and `<!-- /results:NAME -->` is the table of results/NAME.jsonl: a
row per candidate, a column per metric, medians with the newest run's settings and hardware.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.page import results_document, results_page
from benchmark.record import RESULTS, Record, latest, read_records
from recsys.pages.page import write_page

MARKERS = re.compile(
    r"(?P<open><!-- results:(?P<name>[\w-]+) -->\n).*?(?P<close><!-- /results:(?P=name) -->)",
    re.DOTALL,
)


def format_value(value: float | None) -> str:
    """Formats four significant digits, thousands separated, without exponent."""
    if value is None:
        return "failed"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def render_table(records: list[Record]) -> str:
    """Formats a benchmark's table, and a line with settings and hardware.

    Raises:
        ValueError: there are no records.
    """
    if not records:
        raise ValueError("no records to show")
    newest = records[-1]
    shown = [
        record
        for record in latest(records)
        if (record.config_hash, record.machine) == (newest.config_hash, newest.machine)
    ]
    metrics = list(dict.fromkeys((record.metric, record.unit) for record in shown))
    candidates = list(dict.fromkeys(record.candidate for record in shown))
    values = {(record.candidate, record.metric): record for record in shown}

    def cell(candidate: str, metric: str) -> str:
        record = values.get((candidate, metric))
        return "" if record is None else format_value(record.value)

    head = [f"{metric} ({unit})" if unit else metric for metric, unit in metrics]
    lines = [
        " | ".join(["| candidate", *head]) + " |",
        "| --- |" + " ---: |" * len(metrics),
        *(" | ".join([f"| {c}", *(cell(c, m) for m, _ in metrics)]) + " |" for c in candidates),
    ]
    machine = newest.hardware
    settings = ", ".join(f"{key} {value}" for key, value in newest.config.items())
    repeats = f"Median of {newest.repeats}; " if newest.repeats > 1 else ""
    kind = f" ({newest.cpu_kind})" if "cpu_kind" in machine else ""
    note = (
        f"{repeats}{settings}; {machine['cpu']}{kind}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['gpu'] or 'no GPU'}; commit {newest.commit}."
    )
    return "\n".join([*lines, "", note]) + "\n"


def render_document(text: str, results: Path) -> str:
    """Replaces the tables between markers in a document.

    The table of a benchmark without results is kept.

    Raises:
        ValueError: a marker has no end.
    """
    opened = re.findall(r"<!-- results:([\w-]+) -->", text)
    closed = [match["name"] for match in MARKERS.finditer(text)]
    if opened != closed:
        raise ValueError(f"markers results:{', results:'.join(opened)} must each have their end")

    def replace(match: re.Match[str]) -> str:
        file = results / f"{match['name']}.jsonl"
        if not file.is_file():
            return match[0]
        table = render_table(read_records(file))
        return f"{match['open']}{table}{match['close']}"

    return MARKERS.sub(replace, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Updates or checks the documents; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("documents", type=Path, nargs="*", help="markdown files with markers")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of .jsonl files")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when out of date")
    parser.add_argument("--html", type=Path, help="file of the page with charts")
    parser.add_argument("--markdown", type=Path, help="file of the document with charts")
    arguments = parser.parse_args(argv)
    pages = ((arguments.html, results_page), (arguments.markdown, results_document))
    if not arguments.documents and not any(file for file, _ in pages):
        parser.error("name documents, or --html FILE, or --markdown FILE")
    status = 0
    for file, page in pages:
        if file is not None:
            try:
                write_page(file, page(arguments.results))
            except (OSError, ValueError) as error:
                print(f"{file}: {error}", file=sys.stderr)
                return 2
    for document in arguments.documents:
        try:
            old = document.read_text()
            new = render_document(old, arguments.results)
        except (OSError, ValueError) as error:
            print(f"{document}: {error}", file=sys.stderr)
            return 2
        if new == old:
            continue
        if arguments.check:
            print(f"{document}: tables differ from the results; run python -m benchmark.report")
            status = 1
        else:
            document.write_text(new)
    return status


if __name__ == "__main__":
    sys.exit(main())
