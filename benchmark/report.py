# SPDX-License-Identifier: Apache-2.0
"""Renders results as markdown tables, between markers in a document.

    python -m benchmark.report docs/results.md            writes the tables
    python -m benchmark.report docs/results.md --check    exits 1 if a table is out of date
    python -m benchmark.report docs/results.md --stale    lists tables older than what they measure

The table of results/NAME.jsonl goes between `<!-- results:NAME -->` and `<!-- /results:NAME -->`: a
row per candidate, a column per metric. It shows medians of the records that have the settings and
hardware of the newest run.
"""

import dataclasses
import datetime
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.door import start
from benchmark.machine import git
from benchmark.own_logs.table import NAME as OWN_LOGS
from benchmark.own_logs.table import own_logs_table
from benchmark.record import RESULTS, Record, latest, read_records
from recsys.errors import FAILED, UserError
from recsys.settings import setting

MARKERS = re.compile(
    r"(?P<open><!-- results:(?P<name>[\w-]+) -->\n).*?(?P<close><!-- /results:(?P=name) -->)",
    re.DOTALL,
)

_MEASURED = (
    (r"(gpu_)?(interaction|embedding|sparse_step)(_kernels)?", ("cuda_ext",)),
    (r"preprocessing\w*", ("preproc", "recsys/data", "recsys/files")),
    (r"loader\w*", ("dlrm/data", "recsys/data", "cuda_ext")),
    (r"serving\w*", ("dlrm/serve", "recsys/serve", "triton", "cuda_ext")),
    (r"(gpu_)?bert4rec\w*", ("bert4rec", "recsys", "cuda_ext")),
    (r"own_logs|daily|criteo_sample", ("preproc", "dlrm", "recsys", "cuda_ext")),
    (r"\w+", ("dlrm", "recsys", "cuda_ext")),
)
"""Names of benchmarks -> folders of the code that they measure; the first that matches counts."""

_OLDEST_DAYS = 60
"""Days after which figures are stale even if the code is the same: its libraries are not."""


def format_value(value: float | None) -> str:
    """Formats a value with four significant digits, thousands separated, without exponent."""
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
    own = newest.benchmark == OWN_LOGS
    lines = own_logs_table(shown) if own else _plain_table(shown)
    machine = newest.hardware
    settings = ", ".join(f"{key} {value}" for key, value in newest.config.items())
    repeats = f"Median of {newest.repeats}; " if newest.repeats > 1 else ""
    kind = f" ({newest.cpu_kind})" if "cpu_kind" in machine else ""
    note = (
        f"{repeats}{settings}; {machine['cpu']}{kind}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['gpu'] or 'no GPU'}; commit {newest.commit}."
    )
    return "\n".join([*lines, "", note]) + "\n"


def _plain_table(shown: Sequence[Record]) -> list[str]:
    """Formats a row for each candidate and a column for each metric."""
    metrics = list(dict.fromkeys((record.metric, record.unit) for record in shown))
    metrics.sort(key=lambda metric: metric[1] != "x")  # ratios first
    candidates = list(dict.fromkeys(record.candidate for record in shown))
    values = {(record.candidate, record.metric): record for record in shown}

    def cell(candidate: str, metric: str) -> str:
        record = values.get((candidate, metric))
        return "" if record is None else format_value(record.value)

    head = [f"{metric} ({unit})" if unit else metric for metric, unit in metrics]
    return [
        " | ".join(["| candidate", *head]) + " |",
        "| --- |" + " ---: |" * len(metrics),
        *(" | ".join([f"| {c}", *(cell(c, m) for m, _ in metrics)]) + " |" for c in candidates),
    ]


def render_document(text: str, results: Path) -> str:
    """Replaces the tables between markers in a document.

    The table of a benchmark without results is kept.

    Raises:
        ValueError: a marker has no end.
    """
    opened = re.findall(r"<!-- results:([\w-]+) -->", text)
    closed = [match["name"] for match in MARKERS.finditer(text)]
    if opened != closed:
        raise ValueError(f"each of results:{', results:'.join(opened)} needs its closing marker")

    def replace(match: re.Match[str]) -> str:
        file = results / f"{match['name']}.jsonl"
        if not file.is_file():
            return match[0]
        table = render_table(read_records(file))
        return f"{match['open']}{table}{match['close']}"

    return MARKERS.sub(replace, text)


def stale_tables(text: str, results: Path) -> Iterator[str]:
    """Yields a line for each table of a document that is older than what it measures.

    Args:
        text: the document.
        results: folder of the results.
    """
    today = datetime.datetime.now(datetime.UTC)
    for match in MARKERS.finditer(text):
        name, file = match["name"], results / f"{match['name']}.jsonl"
        if not file.is_file():
            continue
        newest = read_records(file)[-1]
        measured = datetime.datetime.fromisoformat(newest.time)
        when = f"{name}: measured {measured.date()} at {newest.commit}"
        base = newest.commit.removesuffix("+")
        if not git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"):
            yield f"{when}, a commit that is not in this repository"
            continue
        folders = next(paths for names, paths in _MEASURED if re.fullmatch(names, name))
        paths = [f":/{folder}" for folder in folders]  # git runs in a folder of the repository
        changes = git("log", "--format=%cs", f"{base}..HEAD", "--", *paths).split()
        if changes:
            count = f"{len(changes)} commit{'s' if len(changes) > 1 else ''}"
            yield f"{when}; {count} since in {', '.join(folders)}, the last on {changes[0]}"
        elif (age := (today - measured).days) > _OLDEST_DAYS:
            yield f"{when}, {age} days ago"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReportSettings:
    """Settings of this program."""

    results: Path = setting(
        RESULTS, "Folder of the results (.jsonl)", default_text="benchmark/results"
    )
    check: bool = setting(False, "Write nothing; exit 1 if a table is out of date")
    stale: bool = setting(
        False, "Write nothing; list tables whose code has changed since, or that are 60 days old"
    )


SECTIONS = {ReportSettings: "options"}


def run(settings: ReportSettings, documents: list[str]) -> int:
    """Updates or checks documents; returns the exit status."""
    if not documents:
        raise UserError("name the documents whose tables are to be written")
    status = 0
    for document in map(Path, documents):
        old = document.read_text()
        try:
            new = render_document(old, settings.results)
        except ValueError as error:
            raise UserError(f"{document}: {error}") from error
        if settings.stale:
            for line in stale_tables(old, settings.results):
                print(f"{document}: {line}")
            continue
        if new == old:
            continue
        if settings.check:
            print(f"{document}: tables differ from the results; run python -m benchmark.report")
            status = FAILED
        else:
            document.write_text(new)
    return status


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start(SECTIONS, run, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
