# SPDX-License-Identifier: Apache-2.0
"""Sentences of the documents beside the records that they speak of, and directions of ratios."""

import re

import pytest

from benchmark.record import RESULTS, read_records
from tests.harness import REPOSITORY, repository_files


def rows(benchmark, commit=None):
    """Returns candidate -> metric -> newest value, of all records or those of a commit."""
    values = {}
    for record in read_records(RESULTS / f"{benchmark}.jsonl"):
        if commit in (None, record.commit):
            values.setdefault(record.candidate, {})[record.metric] = record.value
    return values


def means(benchmark):
    """Returns candidate -> metric -> mean of all seeds of all records."""
    samples = {}
    for record in read_records(RESULTS / f"{benchmark}.jsonl"):
        metrics = samples.setdefault(record.candidate, {})
        metrics[record.metric] = metrics.get(record.metric, []) + record.samples
    return {
        candidate: {metric: sum(all_seeds) / len(all_seeds) for metric, all_seeds in of_row.items()}
        for candidate, of_row in samples.items()
    }


def ends(values):
    """Returns the smallest and the largest."""
    return min(values), max(values)


SAMPLE = {name.removeprefix("DLRM, "): row for name, row in rows("criteo_sample").items()}
LEAD = {name: row["AUC above the linear model"] for name, row in SAMPLE.items()}
PRESET = SAMPLE["preset criteo_sample"]
SERVED, ALONE = (
    {name: row.get(metric) for name, row in rows("serving").items()}
    for metric in ("throughput", "p50")
)
NEWER = "632cf8795b7f+"
"""Commit that was measured on a Zen 5."""
QUALITY = rows("bert4rec_quality", "6a659ecabd7e")["ours"]
OBJECTIVES = means("bert4rec_objectives")
AMONG = ("popular hr@1", "popular hr@5", "popular hr@10", "popular ndcg@5", "popular ndcg@10")
AMONG += ("full hr@10", "full ndcg@10")
AT_10 = ("popular hr@10", "popular ndcg@10", "full hr@10", "full ndcg@10")


def objectives(candidate, *metrics):
    """Returns means over the seeds of metrics of the test, on MovieLens-1M by default."""
    log = "" if candidate.startswith("Beauty") else "MovieLens-1M, "
    return [OBJECTIVES[log + candidate][f"test {metric}"] for metric in metrics]


def as_fast(benchmark, commit=None, among=""):
    """Returns the ratios to TorchRec of the rows whose names hold a text."""
    found = rows(benchmark, commit).items()
    return [row["times as fast as TorchRec"] for name, row in found if among in name]


SENTENCES = [
    (
        "README.md",
        "AUC {:.3f} on 30,000 unseen real rows; a tuned linear model {:.3f}, LightGBM {:.3f}",
        [
            row["mean test AUC"]
            for row in (PRESET, SAMPLE["logistic regression, binned numbers"], SAMPLE["LightGBM"])
        ],
    ),
    (
        "README.md",
        "among all items: HR@10 {:.3f}, NDCG@10 {:.3f}, level within the intervals with the best "
        "published models that are not told the time of the request (0.316, 0.186)",
        objectives("best", *AMONG[-2:]),
    ),
    (
        "README.md",
        "among 100 popular negatives {:.3f}, {:.3f} with a correction for such negatives, whose "
        "strength test items suggested, and {:.3f}, {:.3f} without it; BERT4Rec's paper has 0.697, "
        "0.482. Among all items that model has {:.3f}, {:.3f}, behind our own Markov chain "
        "({:.3f}, {:.3f})",
        [
            *objectives("masked", *AT_10[:2]),
            *objectives("masked, tested with 0", *AT_10[:2]),
            *objectives("masked", *AT_10[2:]),
            *objectives("Markov chain", *AT_10[2:]),
        ],
    ),
    (
        "README.md",
        "trains {:.1f} million samples/s on one H100",
        [rows("gpu_training")["bfloat16 graph"]["throughput"] / 1e6],
    ),
    (
        "README.md",
        "at {:.1f} million rows/s (Polars {:.2f}), and a training step of DLRM is {:.1f} to {:.1f} "
        "times as fast as TorchRec's",
        [
            *(rows("preprocessing")[name]["rows_per_s"] / 1e6 for name in ("native", "polars")),
            *ends(as_fast("train_step")),
        ],
    ),
    (
        "docs/dlrm.md",
        "leads by {:.4f} (95% of other rows: {:.4f} to {:.4f}), the mean prediction of five seeds "
        "by {:.4f}",
        [
            *(PRESET[m] for m in ("AUC above the linear model", "from (95%)", "to (95%)")),
            LEAD["mean prediction of 5 seeds"],
        ],
    ),
    ("docs/dlrm.md", "leads it by {:.3f} of AUC", [LEAD["16 columns, one epoch, no bins"]]),
    (
        "docs/dlrm.md",
        "(`--bin_numerical`): {:.3f} with three epochs, {:.3f} with one.",
        [
            LEAD["preset criteo_sample"] - LEAD["without bins of numbers"],
            LEAD["one epoch"] - LEAD["16 columns, one epoch, no bins"],
        ],
    ),
    (
        "docs/dlrm.md",
        "(`--reset_embeddings`): {:.3f}.",
        [LEAD["preset criteo_sample"] - LEAD["one epoch"]],
    ),
    (
        "docs/dlrm.md",
        "**32 columns** instead of 16: {:.4f}.",
        [LEAD["preset criteo_sample"] - LEAD["16 columns"]],
    ),
    (
        "docs/dlrm.md",
        "Three epochs of the same embeddings end with the model of {}, and its figures",
        ["one" if SAMPLE["one epoch"] == SAMPLE["three epochs of the same embeddings"] else "all"],
    ),
    (
        "docs/deployment.md",
        "the server adds {:.2f} ms to the native backend's {:.2f} ms, and {:.2f} ms to Python's "
        "{:.2f} ms",
        [
            ALONE["batch 1, 1 client, native"] - ALONE["batch 1, in process, native"],
            ALONE["batch 1, in process, native"],
            ALONE["batch 1, 1 client, batching"] - ALONE["batch 1, in process"],
            ALONE["batch 1, in process"],
        ],
    ),
    (
        "docs/deployment.md",
        "answers {:.1f} times as many requests as Python with batching, and {:.1f} times as many "
        "as without",
        [
            SERVED["batch 1, 16 clients, native"] / SERVED[f"batch 1, 16 clients, {other}"]
            for other in ("batching", "plain")
        ],
    ),
    (
        "docs/results.md",
        "TorchRec took {:.1f} to {:.1f} times as long as ours (commit 632cf87",
        ends(as_fast("train_step", NEWER)),
    ),
    (
        "docs/results.md",
        "on Zen 5 TorchRec took {:.1f} to {:.1f} times as long.",
        ends(as_fast("train_step_bfloat16", NEWER)),
    ),
    (
        "docs/kernels.md",
        "TorchRec takes {:.1f}, {:.1f} and {:.1f} times as long as ours for 1, 64 and 4,096 "
        "samples of the big model, {:.1f}, {:.1f} and {:.1f} of the small one",
        [*as_fast("inference_step", NEWER, "big"), *as_fast("inference_step", NEWER, "small")],
    ),
    (
        "docs/bert4rec.md",
        "from drawn vectors, mean of three seeds | {:.4f} | {:.4f} | {:.4f} | {:.4f} | {:.4f} | "
        "{:.4f} | {:.4f} |",
        [QUALITY[f"mean test {metric}"] for metric in AMONG],
    ),
    *(
        (
            "docs/bert4rec.md",
            f"| {row} | " + " | ".join(["{:.4f}"] * len(metrics)) + " |",
            objectives(candidate, *metrics),
        )
        for row, candidate, metrics in (
            ("`best`, causal, mean of three seeds", "best", AMONG),
            ("`masked`, mean of three seeds", "masked", AMONG),
            ("128 columns, steps of 128, no correction, three seeds", "masked, 128 columns", AMONG),
            ("256 columns, steps of 128, no correction, three seeds", "masked, 256 columns", AMONG),
            (
                "the same, trained with `--popularity_correction 0.2`, three seeds",
                *("masked, 256 columns, correction 0.2", AMONG),
            ),
            (0, "masked, 256 columns", AT_10),
            *((a, f"masked, 256 columns, correction {a}", AT_10) for a in (0.2, 0.4)),
            *((a, f"masked, tested with {a}", AT_10) for a in (0, 0.2, 0.25, 0.35)),
            ("`best-short`, mean of three seeds", "Beauty, best-short", AT_10),
            ("Markov chain (`--baselines`)", "Beauty, Markov chain", AT_10),
        )
    ),
    (
        "docs/bert4rec.md",
        "| {:.4f} | | {:.4f} | {:.4f} | {:.4f} |",
        objectives("Markov chain", *AT_10),
    ),
    (
        "docs/bert4rec.md",
        "| `masked`, tested without its correction | | | {:.4f} | | {:.4f} | {:.4f} | {:.4f} |",
        objectives("masked, tested with 0", *AT_10),
    ),
    (
        "docs/bert4rec.md",
        "behind our Markov chain ({:.4f} and {:.4f} to {:.4f} and {:.4f}), without the correction "
        "level with it in NDCG@10 ({:.4f})",
        objectives("masked", *AT_10[2:])
        + objectives("Markov chain", *AT_10[2:])
        + objectives("masked, tested with 0", AT_10[3]),
    ),
    *(
        (
            "docs/bert4rec.md",
            sentence,
            objectives(f"masked, correction 0.3, {steps}", *AMONG[5:], AMONG[2], AMONG[4]),
        )
        for sentence, steps in (
            ("| 2,000 of 128 | {:.4f} | {:.4f} | {:.4f} | {:.4f} |", "2,000 steps of 128"),
            (
                "| 2,000 of 128, `--lr 2e-3` | {:.4f} [+0.007, +0.022] | {:.4f} [+0.004, +0.012] | "
                "{:.4f} [+0.006, +0.018] | {:.4f} [+0.009, +0.017] |",
                "2,000 steps of 128 at 2e-3",
            ),
            (
                "| 8,000 of 32 | {:.4f} [+0.017, +0.032] | {:.4f} [+0.008, +0.017] | "
                "{:.4f} [+0.008, +0.021] | {:.4f} [+0.014, +0.023] |",
                "8,000 steps of 32",
            ),
        )
    ),
    (
        "docs/bert4rec.md",
        "12,000 steps of 32 reach {:.4f} and {:.4f}, {:.4f} and {:.4f} (seed 1)",
        objectives("best, 12,000 steps of 32", *AMONG[5:], AMONG[2], AMONG[4]),
    ),
    (
        "docs/bert4rec.md",
        "{:.4f} and {:.4f}, {:.4f} and {:.4f} after 16,000 steps (seed 1), {:.4f} and {:.4f}, "
        "{:.4f} and {:.4f} after 13,000 (seed 4)",
        objectives("masked, 256 columns, correction 0.3, 16,000 steps of 32", *AT_10)
        + objectives("masked, on a CPU", *AT_10),
    ),
]
"""Document, sentence with places for figures, the figures from the records."""


@pytest.mark.parametrize(
    ("document", "sentence", "figures"), SENTENCES, ids=[s[1][:40] for s in SENTENCES]
)
def test_a_sentence_says_what_its_rows_say(document, sentence, figures):
    text = " ".join((REPOSITORY / document).read_text().split())
    assert sentence.format(*figures).replace("**", "") in text.replace("**", "")


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_a_ratio_names_its_direction_and_agrees_with_its_row(file):
    for name, row in rows(file.stem).items():
        for metric, ratio in row.items():
            peer = metric.removeprefix("times as fast as ")
            if peer != metric:
                assert (ratio > 1) == (row[peer] > row["ours"]), (name, metric)
    ratios = {record.metric for record in read_records(file) if record.unit == "x"}
    told = ("times as fast as ", "time_over_", "throughput over ")
    assert [metric for metric in ratios if not metric.startswith(told)] == []


RECORDS = "benchmark/results/"
SOURCES = {
    "docs/bert4rec.md": {
        "Preset": "tests/bert4rec/test_configs.py",
        **dict.fromkeys(
            (
                "A",
                "drawn",
                "objective",
                "steps",
                "tested with A",
                *(f"100 popular negatives: HR@{k}" for k in (1, 10)),
            ),
            f"{RECORDS}bert4rec_objectives.jsonl",
        ),
        "step": f"{RECORDS}bert4rec_quality.jsonl",
        "HR@10, all": f"{RECORDS}bert4rec_adapters.jsonl",
        **dict.fromkeys(
            ("MovieLens-20M, popular negatives", "published size"),
            "tests/repo/test_figures.py",
        ),
    },
    "docs/dataset_format.md": {"field": "tests/recsys/data/test_format_document.py"},
    "docs/deployment.md": {"flag": "docs/flags.md"},
    "docs/image.md": {"Argument": "docs/flags.md"},
    "docs/training_input.md": {"flag": "docs/flags.md"},
    "docs/kernels.md": {
        "kernel": "tests/fake_cuda/test_budget.py",
        "precision": f"{RECORDS}gpu_training.jsonl",
    },
    "docs/log.md": dict.fromkeys(
        ("log", "samples/s", "test users, all items, seen ones ranked too"), "docs/log.md"
    ),
    "docs/several_devices.md": {
        **dict.fromkeys(("rank", "tables"), "tests/dlrm/test_placement.py"),
        "placement": "docs/log.md",
    },
}
"""Document -> first named column of a table of figures that no report fills -> where they are from:
records, a test that computes them, the flags, or the log of programs that are gone. A table of what
others publish alone names this file."""


def tables_of_figures(text):
    """Yields the first named column of each table with more than three cells that are figures."""
    text = re.sub("<!-- results:.*?<!-- /results:", "", text, flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = [[c.strip(" *") for c in line.split("|")] for line in table.splitlines()]
        cells = [cell for row in rows for cell in row]
        if (
            sum(bool(re.fullmatch(r"[\d.,x% ]*\d[\d.,x% ]*(MiB|M|us)?", cell)) for cell in cells)
            > 3
        ):
            yield next(filter(None, head))


def test_each_table_of_figures_says_where_they_are_from():
    documents = {
        str(path.relative_to(REPOSITORY)): set(tables_of_figures(path.read_text()))
        for path in repository_files("*.md")
    }
    assert {name: columns for name, columns in documents.items() if columns} == {
        name: set(sources) for name, sources in SOURCES.items()
    }
    named = [source for sources in SOURCES.values() for source in sources.values()]
    assert [source for source in named if not (REPOSITORY / source).is_file()] == []
