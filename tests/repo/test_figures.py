# SPDX-License-Identifier: Apache-2.0
"""Figures of the documents beside the records that they are from, and directions of ratios."""

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


def at(digits, *values):
    """Returns figures as a document spells them."""
    return [f"{value:.{digits}f}" for value in values]


def pair(candidate, metric="full"):
    """Returns HR@10 and NDCG@10 of the test, as README rounds them."""
    return at(3, *objectives(candidate, f"{metric} hr@10", f"{metric} ndcg@10"))


BERT4REC = "docs/bert4rec.md"
ALL_FIRST = ("full hr@10", "full ndcg@10", "popular hr@10", "popular ndcg@10")
FIGURES = [
    (
        "README.md",
        "LightGBM",
        *(
            at(3, SAMPLE[row]["mean test AUC"])
            for row in ("preset criteo_sample", "logistic regression, binned numbers", "LightGBM")
        ),
    ),
    ("README.md", "causal objective", pair("best")),
    ("README.md", "hidden items", pair("masked"), pair("Markov chain")),
    (
        "README.md",
        "popular negatives",
        *(pair(candidate, "popular") for candidate in ("masked", "masked, tested with 0")),
    ),
    ("README.md", "H100", at(1, rows("gpu_training")["bfloat16 graph"]["throughput"] / 1e6)),
    (
        "README.md",
        "Polars",
        at(1, rows("preprocessing")["native"]["rows_per_s"] / 1e6),
        at(2, rows("preprocessing")["polars"]["rows_per_s"] / 1e6),
    ),
    ("README.md", "TorchRec", at(1, *ends(as_fast("train_step")))),
    (
        "docs/dlrm.md",
        "`criteo_sample`",
        at(4, *(PRESET[m] for m in ("AUC above the linear model", "from (95%)", "to (95%)"))),
        at(4, LEAD["mean prediction of 5 seeds"]),
        at(3, LEAD["16 columns, one epoch, no bins"]),
    ),
    (
        "docs/dlrm.md",
        "`--bin_numerical`",
        at(3, LEAD["preset criteo_sample"] - LEAD["without bins of numbers"]),
        at(3, LEAD["one epoch"] - LEAD["16 columns, one epoch, no bins"]),
    ),
    (
        "docs/dlrm.md",
        "`--reset_embeddings`",
        at(3, LEAD["preset criteo_sample"] - LEAD["one epoch"]),
    ),
    (
        "docs/dlrm.md",
        "32 columns",
        ["16", *at(4, LEAD["preset criteo_sample"] - LEAD["16 columns"])],
    ),
    *(
        (
            "docs/deployment.md",
            name,
            at(2, ALONE[f"batch 1, 1 client, {served}"] - ALONE[alone], ALONE[alone]),
        )
        for name, served, alone in (
            ("native", "native", "batch 1, in process, native"),
            ("Python", "batching", "batch 1, in process"),
        )
    ),
    (
        "docs/deployment.md",
        "16 clients",
        *(
            at(1, SERVED["batch 1, 16 clients, native"] / SERVED[f"batch 1, 16 clients, {other}"])
            for other in ("batching", "plain")
        ),
    ),
    ("docs/results.md", NEWER[:7], at(1, *ends(as_fast("train_step", NEWER)))),
    ("docs/results.md", "bfloat16", at(1, *ends(as_fast("train_step_bfloat16", NEWER)))),
    (
        "docs/kernels.md",
        NEWER[:7],
        *(at(1, *as_fast("inference_step", NEWER, size)) for size in ("big", "small")),
    ),
    (BERT4REC, "", at(4, *(QUALITY[f"mean test {metric}"] for metric in AMONG))),
    *(
        (BERT4REC, name, at(4, *objectives(candidate, *AMONG)))
        for name, candidate in (
            ("`best`", "best"),
            ("`masked`", "masked"),
            ("128 columns", "masked, 128 columns"),
            ("256 columns", "masked, 256 columns"),
            ("`--popularity_correction 0.2`", "masked, 256 columns, correction 0.2"),
        )
    ),
    *(
        (BERT4REC, "", [strength, *at(4, *objectives(candidate, *AT_10))])
        for strength, candidate in (
            ("0", "masked, 256 columns"),
            *((a, f"masked, 256 columns, correction {a}") for a in ("0.2", "0.4")),
            *((a, f"masked, tested with {a}") for a in ("0", "0.2", "0.25", "0.35")),
        )
    ),
    *(
        (BERT4REC, name, at(4, *objectives(candidate, *AT_10)))
        for name, candidate in (
            ("`best-short`", "Beauty, best-short"),
            ("`--baselines`", "Beauty, Markov chain"),
            ("`--baselines`", "Markov chain"),
            ("`masked`", "masked, tested with 0"),
        )
    ),
    (
        BERT4REC,
        "NDCG@10",
        at(4, *objectives("masked", *AT_10[2:])),
        at(4, *objectives("Markov chain", *AT_10[2:])),
        at(4, *objectives("masked, tested with 0", AT_10[3])),
    ),
    *(
        (BERT4REC, name, at(4, *objectives(f"masked, correction 0.3, {steps}", *ALL_FIRST)))
        for name, steps in (
            ("2,000 of 128", "2,000 steps of 128"),
            ("`--lr 2e-3`", "2,000 steps of 128 at 2e-3"),
            ("8,000 of 32", "8,000 steps of 32"),
        )
    ),
    (BERT4REC, "12,000", at(4, *objectives("best, 12,000 steps of 32", *ALL_FIRST))),
    *(
        (BERT4REC, steps, at(4, *objectives(candidate, *AT_10)))
        for steps, candidate in (
            ("16,000", "masked, 256 columns, correction 0.3, 16,000 steps of 32"),
            ("13,000", "masked, on a CPU"),
        )
    ),
]
"""Document, a name in the passage that tells the figures, groups of figures in their order."""


def passages(document):
    """Returns paragraphs, list items and rows of tables."""
    text = (REPOSITORY / document).read_text().replace("**", "")
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\|)|\n(?=- )", text)]


def in_order(group, numbers):
    """Tells if numbers hold those of a group, others between them or not."""
    rest = iter(numbers)
    return all(figure in rest for figure in group)


@pytest.mark.parametrize(
    ("document", "name", "groups"),
    [(document, name, groups) for document, name, *groups in FIGURES],
    ids=[f"{document} {name} {groups[0][-1]}" for document, name, *groups in FIGURES],
)
def test_a_document_tells_the_figures_of_the_records(document, name, groups):
    told = [re.findall(r"\d[\d,]*(?:\.\d+)?", p) for p in passages(document) if name in p]
    lacking = [[group for group in groups if not in_order(group, numbers)] for numbers in told]
    assert [] in lacking, lacking[:1]


def test_epochs_of_the_same_embeddings_end_with_the_model_of_one():
    """As docs/dlrm.md says of `--reset_embeddings`."""
    assert SAMPLE["one epoch"] == SAMPLE["three epochs of the same embeddings"]


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
    BERT4REC: (
        13,
        "docs/log.md",
        "tests/bert4rec/test_configs.py",
        f"{RECORDS}bert4rec_objectives.jsonl",
        f"{RECORDS}bert4rec_quality.jsonl",
        f"{RECORDS}bert4rec_adapters.jsonl",
    ),
    "docs/dataset_format.md": (1, "tests/recsys/data/test_format_document.py"),
    "docs/deployment.md": (1, "docs/flags.md"),
    "docs/dlrm.md": (1, "docs/log.md"),
    "docs/image.md": (1, "docs/flags.md"),
    "docs/training_input.md": (1, "docs/flags.md"),
    "docs/kernels.md": (2, "tests/fake_cuda/test_budget.py", f"{RECORDS}gpu_training.jsonl"),
    "docs/reliability.md": (2, "tests/fuzz/__main__.py", "tests/kills/__main__.py"),
    "docs/several_devices.md": (3, "tests/dlrm/test_placement.py", "docs/log.md"),
}
"""Document -> its tables of figures that no report fills, and where these are from: records, a test
or program that computes them, the flags, or the log, which has the figures of programs that are
gone. Two of docs/bert4rec.md are what others publish."""


def tables_of_figures(text):
    """Returns the tables with more than three cells that are figures."""
    text = re.sub("<!-- results:.*?<!-- /results:", "", text, flags=re.DOTALL)
    figure = re.compile(r"[\d.,x% *]*\d[\d.,x% *]*(MiB|M|us)?[ *]*")
    return [
        table
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        if sum(bool(figure.fullmatch(c)) for c in re.split(r"[|\n]", table)) > 3
    ]


def test_each_table_of_figures_says_where_they_are_from():
    counted = {
        str(path.relative_to(REPOSITORY)): len(tables_of_figures(path.read_text()))
        for path in repository_files("*.md", ":!docs/log.md")
    }
    assert {name: count for name, count in counted.items() if count} == {
        name: count for name, (count, *_) in SOURCES.items()
    }
    named = [source for _, *sources in SOURCES.values() for source in sources]
    assert [source for source in named if not (REPOSITORY / source).is_file()] == []
