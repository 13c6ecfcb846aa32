# SPDX-License-Identifier: Apache-2.0
"""Reports a test: prints tables, and writes each user's rank."""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from recsys.data.sequences.histories import Sequences, TemporalSplit
from recsys.errors import UserError
from recsys.files.durable import whole_file
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.data.split import count_targets, repeated_targets, targets_of, true_items
from recsys.ratings.evaluation import EvaluationConfig
from recsys.ratings.model import RatingsModel
from recsys.ratings.ranking.evaluate import Lists, Negatives, Ranks, SplitRanks, rank_on_host
from recsys.ratings.ranking.metrics import (
    bootstrap_intervals,
    flat_metrics,
    list_metrics,
    metrics_of,
    ranking_metrics,
)
from recsys.ratings.ranking.popularity import popularity_ranks
from recsys.ratings.ranking.verdict import leads_over
from recsys.train.measure.verdict import VERDICT, verdict
from recsys.train.recipe import Machine, PrintLine

Baseline = Callable[[Sequences], RatingsModel] | None
"""Fits a model to the training items; None is the popularity of the last seven days."""

_FEW_KS = (10,)
_ROWS = 1 << 20
"""Rows of lists written at once."""

Metrics = Mapping[str, float]


def report_test(
    sequences: Sequences,
    negatives: Negatives,
    ranked: SplitRanks,
    machine: Machine,
    baselines: Mapping[str, Baseline],
) -> dict[str, Any]:
    """Prints the results of a test, compared with popularity.

    Args:
        negatives: name of a ranking -> [U, S] items.
        ranked: ranks of the test items, from all processes.
        machine: prints the lines.
        baselines: models to compare with, by name.

    Returns:
        The values to log.
    """
    print_line = machine.print_line
    targets = targets_of(sequences, "test")
    baseline = popularity_ranks(sequences, "test", negatives)
    model, popular = metrics_of(ranked.ranks), metrics_of(baseline)
    values: dict[str, Any] = flat_metrics(model)
    for name, metrics in popular.items():
        values |= flat_metrics({f"popularity_{name}".removesuffix("_full"): metrics})
    half_widths: dict[str, dict[str, float]] = {}
    for name, ranks in (*ranked.ranks.items(), ("popularity", baseline["full"])):
        intervals = bootstrap_intervals(ranks, users=targets.users)
        half_widths[name] = {m: (high - low) / 2 for m, (low, high) in intervals.items()}
        for metric, (low, high) in intervals.items():
            values |= {f"{name}_{metric}_low": low, f"{name}_{metric}_high": high}
    print_line(
        f"Test on {count_targets(sequences, 'test')}, {ranked.users_per_s:,.0f}/s; +- is half of a "
        "95% interval, popul. ranks by popularity"
    )
    for line in _comparison_table(model, half_widths, popular):
        print_line(line)
    if machine.processes.is_first:
        values |= _report_baselines(baselines, sequences, negatives, ranked.ranks, print_line)
    repeated = int(repeated_targets(sequences, "test").sum())
    if repeated:
        print_line(
            f"{repeated} of {len(targets)} targets occur earlier in the user's history: full "
            "counts them, recommend never lists them"
        )
    values["repeated_targets"] = repeated
    if sequences.temporal is not None:
        values |= _report_cold(sequences, sequences.temporal, ranked.ranks["full"], print_line)
    if machine.processes.is_first:
        of_lists = list_metrics(ranked.lists, sequences)
        print_line("Lists: " + ", ".join(f"{name} {value:.4f}" for name, value in of_lists.items()))
        values |= of_lists
    return {f"test_{name}": value for name, value in values.items()}


def _report_baselines(
    baselines: Mapping[str, Baseline],
    sequences: Sequences,
    negatives: Negatives,
    ranks: Mapping[str, Ranks],
    print_line: PrintLine,
) -> dict[str, Any]:
    """Prints the model next to item-to-item baselines, and which of them is best.

    Returns:
        The metrics of the baselines and the leads over the best of them, to log.
    """
    rows, settings = {"model": ranks}, []
    for name, fit in baselines.items():
        if fit is None:
            if (temporal := sequences.temporal) is not None:
                counts = temporal.recent_counts
                rows[name] = popularity_ranks(sequences, "test", negatives, counts)
            continue
        print_line(f"Fitting {name}")  # ease takes minutes on a large catalogue
        try:
            model = fit(sequences)
        except UserError as error:
            print_line(f"{name} is left out: {error}")
            continue
        settings.append(f"{name}: {model}")
        rows[name] = rank_on_host(model, sequences, "test", negatives).ranks
        del model  # frees its memory before the next one, which may be as large
    if len(rows) == 1:
        return {}
    rankings = ("full", *negatives)
    metrics = {
        name: {ranking: ranking_metrics(of_row[ranking], _FEW_KS) for ranking in rankings}
        for name, of_row in rows.items()
    }
    shown = ("hr@10", "ndcg@10", "mrr")
    width = max(map(len, rows)) + 1
    print_line((" " * width + "".join(f"  {name:<22}" for name in rankings)).rstrip())
    print_line(" " * width + "".join(f"{name:>8}" for name in shown) * len(rankings))
    for name, of_row in metrics.items():
        cells = (of_row[ranking][metric] for ranking in rankings for metric in shown)
        print_line(f"{name:{width}}" + "".join(f"{cell:8.4f}" for cell in cells))
    for line in settings:
        print_line(line)
    del metrics["model"]
    others = {name: of_row["full"] for name, of_row in rows.items() if name != "model"}
    leads = leads_over(others, ranks["full"], targets_of(sequences, "test").users)
    for lead in leads:
        print_line(f"{lead}, among all items")
    sentence = verdict(leads)
    print_line(f"Verdict: {sentence}")
    return (
        {
            f"{name}_{metric}".replace("_full", "", 1): value
            for name, of_row in metrics.items()
            for metric, value in flat_metrics(of_row).items()
        }
        | {
            f"lead_{lead.metric}{end}": value
            for lead in leads
            for end, value in (("", lead.value), ("_low", lead.low), ("_high", lead.high))
        }
        | {VERDICT: sentence}
    )


def _report_cold(
    sequences: Sequences, temporal: TemporalSplit, ranks: Ranks, print_line: PrintLine
) -> dict[str, float]:
    """Counts cold users and items, and evaluates their targets separately.

    Args:
        temporal: temporal split of the histories.
        ranks: [T] ranks of the test targets among all items.

    Returns:
        The values to log; metrics of `warm` and `cold` targets where such targets exist.
    """
    is_cold = temporal.is_cold[true_items(sequences, "test") - 1]
    values: dict[str, float] = {
        "users_with_targets": len(np.unique(temporal.test.users)),
        "cold_users": int((temporal.before == 0).sum()),
        "ended_users": int((temporal.before == sequences.lengths).sum()),
        "cold_items": int(temporal.is_cold.sum()),
        "cold_targets": int(is_cold.sum()),
    }
    print_line(
        f"Of {sequences.num_users} users {values['users_with_targets']} have targets; "
        f"{values['cold_users']} have nothing before the cut (cold, not tested), "
        f"{values['ended_users']} nothing after"
    )
    print_line(
        f"Of {sequences.num_items} items {values['cold_items']} are cold, met by nobody before the "
        f"cut; {values['cold_targets']} targets are cold items, and count in the metrics"
    )
    for name, chosen in (("warm", ~is_cold), ("cold", is_cold)):
        if chosen.any():
            metrics = ranking_metrics(ranks[chosen], _FEW_KS)
            values |= flat_metrics({name: metrics})
            shown = ", ".join(f"{m} {metrics[m]:.4f}" for m in ("hr@10", "ndcg@10"))
            print_line(f"On only the {name} targets, among all items: {shown}")
    return values


def _comparison_table(
    model: Mapping[str, Metrics],
    half_widths: Mapping[str, Metrics],
    popularity: Mapping[str, Metrics],
) -> Iterator[str]:
    """Yields lines with every metric of every ranking, compared with popularity."""
    yield (f"{'':8}" + "".join(f"  {name:<20}" for name in model)).rstrip()
    yield f"{'metric':8}" + f"{'model':>7}{'+-':>7}{'popul.':>8}" * len(model)
    for metric in model["full"]:
        cells = "".join(
            f"{model[name][metric]:7.4f}{half_widths[name][metric]:7.4f}"
            f"{popularity[name][metric]:8.4f}"
            for name in model
        )
        yield f"{metric:8}{cells}"


def check_result_files(config: EvaluationConfig, sequences: Sequences) -> None:
    """Refuses result files that cannot be written, before the work starts.

    Raises:
        UserError: names the setting and the file.
    """
    users = targets_of(sequences, "test").users
    if config.lists_file and len(np.unique(users)) < len(users):
        raise UserError(
            "`lists_file` holds one list per user, so it needs one target per user: do not use "
            "`temporal_targets` all",
            settings=("lists_file", "temporal_targets"),
        )
    for name in ("ranks_file", "lists_file"):
        path = Path(getattr(config, name))
        if path.name:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() or not os.access(path.parent, os.W_OK):
                raise UserError(f"`{name}` {path}: cannot be written there", setting=name)


def write_files(
    files: EvaluationConfig,
    dataset: OpenedHistories,
    sequences: Sequences,
    ranked: SplitRanks,
    print_line: PrintLine,
) -> None:
    """Writes ranks and lists of the test targets to the files of the settings.

    Ranks are written from 1, and those left out as missing. The columns of sampled rankings end in
    their number of negatives, because ranks among different numbers do not compare. Lists have
    RecTools' columns. A file appears only when complete, and replaces an earlier one.
    """
    targets = targets_of(sequences, "test")
    if not (files.ranks_file or files.lists_file):
        return
    users, items = dataset.raw_ids(sequences)
    if files.ranks_file:
        columns = {
            "user": users.take(pa.array(targets.users)),
            "item": items.take(pa.array(true_items(sequences, "test") - 1)),
            "history_length": pa.array(targets.known),
        }
        for name, of_user in ranked.ranks.items():
            sampled = "" if name.startswith("full") else f"_{files.num_eval_negatives}"
            column = "rank" if name == "full" else f"rank_{name}{sampled}"
            columns[column] = pa.array(of_user + 1, mask=of_user < 0)
        _write(Path(files.ranks_file), iter([pa.table(columns)]))
        print_line(f"Ranks of {count_targets(sequences, 'test')}: {Path(files.ranks_file)}")
    if files.lists_file:
        _write(Path(files.lists_file), _list_tables(ranked.lists, targets.users, users, items))
        print_line(f"Lists of {count_targets(sequences, 'test')}: {Path(files.lists_file)}")


def _list_tables(
    lists: Lists, owners: npt.NDArray[np.int64], users: pa.Array, items: pa.Array
) -> Iterator[pa.Table]:
    """Yields tables with the lists of some targets at a time, to bound the memory.

    Args:
        lists: [T, K] items, 0 where a list ends.
        owners: [T] user of each target.
        users: raw ids of the users, by number.
        items: raw ids of the items, by number minus 1.
    """
    size = max(_ROWS // lists.shape[1], 1)
    for begin in range(0, len(lists), size):
        some = lists[begin : begin + size]
        row, number = np.nonzero(some)
        yield pa.table({
            "user_id": users.take(pa.array(owners[begin + row])),
            "item_id": items.take(pa.array(some[row, number] - 1)),
            "rank": pa.array(number + 1),
        })  # fmt: skip


def _write(path: Path, tables: Iterator[pa.Table]) -> None:
    first = next(tables)
    kind = pyarrow.csv.CSVWriter if path.suffix == ".csv" else pyarrow.parquet.ParquetWriter
    with whole_file(path) as file, kind(file, first.schema) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table)
