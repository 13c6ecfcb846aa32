# SPDX-License-Identifier: Apache-2.0
"""What --report draws and --tensorboard shows are the numbers of the log, whole and readable."""

import html
import json
import re
import sys

import pytest

from bert4rec.scripts import main as bert4rec
from dlrm.scripts import main as dlrm
from recsys.train.measure.report import run_page, write_page
from tests import harness
from tests.bert4rec.conftest import SMALL_MODEL
from tests.browser import CHROMIUM
from tests.recsys.train.shown import Page, scalars
from tests.recsys.train.tiny import TINY_DLRM
from tests.tools import needs

RANDOM = ("--dataset_name=random", "--random_user_count=40", "--random_size=400", "--max_steps=30")
MANY_ROWS = ("--synthetic_dataset_num_entries=4000", "--max_steps=30")
DARK, LIGHT = 0, 1


def of_steps(records, name):
    """Returns {step: value} of what a log has by a name."""
    steps = (record for record in records if len(record["step"]) == 2)
    return {r["step"][1]: r["data"][name] for r in steps if name in r["data"]}


def final(records):
    return {name: v for r in records if r["step"] == [] for name, v in r["data"].items()}


def in_unit_square(points):
    """Returns points moved and stretched so that both axes go from 0 to 1."""
    sides = list(zip(*points, strict=True))
    return [[(v - min(side)) / (max(side) - min(side)) for v in side] for side in sides]


def assert_drawn(page, tag, values):
    """Holds that a line goes through the values of a log."""
    drawn = [(x, -y) for x, y in page.curve(tag)]
    expected = in_unit_square(sorted(values.items()))
    for found, side in zip(in_unit_square(drawn), expected, strict=True):
        assert found == pytest.approx(side, abs=1e-3)


@pytest.mark.parametrize(
    ("model", "flags", "split", "metrics"),
    [
        (bert4rec, (*SMALL_MODEL, *RANDOM), "validation", ("full_ndcg@10", "popular_ndcg@10")),
        (dlrm, (*TINY_DLRM, *MANY_ROWS), "test", ("auc", "log_loss")),
    ],
    ids=["bert4rec", "dlrm"],
)
def test_page_and_events_have_the_numbers_of_the_log(model, flags, split, metrics, tmp_path):
    path = tmp_path / "pages" / "run.html"
    run = harness.Program(model, tmp_path, flags)
    records = run(
        *("--test_freq=10", f"--report={path}", f"--tensorboard={tmp_path / 'events'}"),
        *("--run_benchmark", "--benchmark_steps=5", "--benchmark_warmup_steps=1", "--run_profiler"),
    )
    losses, page, events = of_steps(records, "loss"), Page(path), scalars(tmp_path / "events")
    assert 10 <= len(losses) <= 20
    assert dict(events["train/loss"]) == pytest.approx(losses, rel=1e-6)
    assert [step for step, _ in events["train/lr"]] == list(losses)
    assert_drawn(page, "train/loss", losses)
    for name in metrics:
        values = of_steps(records, name)
        assert list(values) == [10, 20, 30]
        assert dict(events[f"{split}/{name}"]) == pytest.approx(values, rel=1e-6)
        assert_drawn(page, f"{split}/{name}", values)
    assert [step for step, _ in events["benchmark/samples_per_s"]] == [6]
    assert {name for name, _ in page.tables["Settings"]} >= {"seed", "test_freq"}
    assert [(path.parent / link).is_file() for link in page.links] == [True, True]
    if model is dlrm:
        assert {"test/calibration curve", "test/feature importance"} <= page.pictures.keys()
        chosen = final(records)["explained_step"]
        assert page.grid("test")["auc", "model", "all rows"] == [
            pytest.approx(of_steps(records, "auc")[chosen], abs=5.1e-5)
        ]


def test_the_grid_of_a_page_has_every_metric_of_a_test_and_its_interval(tmp_path):
    run = harness.Program(bert4rec, tmp_path, (*SMALL_MODEL, *RANDOM))
    records = run(f"--report={tmp_path / 'run.html'}", f"--tensorboard={tmp_path / 'events'}")
    values, grid = final(records), Page(tmp_path / "run.html").grid("test")
    shown = set()
    for (metric, who, protocol), numbers in grid.items():
        words = [protocol] if who == "model" else [who, *({protocol} - {"full"})]
        name = "_".join(["test", *words, metric])
        if name not in values:  # of lists, which are those among all items
            name = f"test_{metric}"
        names = [name, f"{name}_low", f"{name}_high"][: len(numbers)]
        assert numbers == pytest.approx([values[name] for name in names], abs=5.1e-5)
        shown.update(names)
    assert shown == {name for name in values if re.search(r"@|mrr", name)}
    rankings = ("full", "full_with_seen", "popular", "uniform")
    with_intervals = [("model", ranking) for ranking in rankings] + [("lead", "full")]
    assert {len(grid["ndcg@10", who, ranking]) for who, ranking in with_intervals} == {3}
    assert len(grid["ndcg@10", "markov", "popular"]) == 1
    events = scalars(tmp_path / "events")
    of_test = {tag.removeprefix("test/") for tag in events if tag.startswith("test/")}
    assert {"full_ndcg@10", "popular_mrr"} <= of_test
    assert not [name for name in of_test if re.search("popularity|markov|lead|_low|_high", name)]
    assert events["test/full_ndcg@10"] == [
        (values["tested_step"], pytest.approx(values["test_full_ndcg@10"], rel=1e-6))
    ]


def entries(values, settings):
    """Returns a log of evaluations a step apart."""
    evaluations = [{"step": [0, step], "data": {"auc": v}} for step, v in enumerate(values, 1)]
    return [{"step": "PARAMETER", "data": settings}, *evaluations]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([0.791231, 0.791234, 0.791236], 1),
        ([1e-9, 3e-9], 1e-9),  # which stands at the end of the axis
        ([0.5, 0.9], 1),
        ([123456.7, 123456.8], 1),
        ([0.1 + step * step % 7 / 1000 for step in range(100)], 1),
    ],
)
def test_marks_of_axes_differ_and_say_where_the_values_are(tmp_path, values, unit):
    write_page(tmp_path / "page.html", run_page(entries(values, {"eval_split": "test"}), "run"))
    page = Page(tmp_path / "page.html")
    assert_drawn(page, "test/auc", dict(enumerate(values, 1)))
    span = max(values) - min(values)
    for axis, low, high in (
        ("x", 0, len(values) + 1),
        ("y", min(values) - span, max(values) + span),
    ):
        labels = [label.replace("\N{MINUS SIGN}", "-") for label in page.ticks("test/auc", axis)]
        marks = [float(label) * (unit if axis == "y" else 1) for label in labels]
        assert len(marks) >= 2
        assert low <= marks[0]
        assert marks[-1] <= high
        assert marks == sorted(set(marks))


def test_names_are_shown_as_they_are_and_a_page_loads_nothing(tmp_path):
    rises = {"<b>": [0.3, 0.2, 0.4], "$x$": [0.1, 0.1, 0.1], "price\\$": [-0.1, -0.2, 0.0]}
    explained = {"calibration_curve": [[0.1, 0.2], [0.3, 0.3]], "feature_importance": rises}
    log = [*entries([0.5], {"dataset": "a & b"}), {"step": [], "data": explained}]
    write_page(tmp_path / "page.html", run_page(log, "Title & <more>", [("profile", "p/x y.txt")]))
    page = Page(tmp_path / "page.html")
    assert {"Title & <more>", "Dataset: a & b"} <= set(page.texts)
    assert page.links == ["p/x y.txt"]
    assert page.ticks("validation/feature importance", "y") == list(rises)
    (rows,) = (rows for title, rows in page.tables.items() if "importance" in title)
    assert {name: [float(cell) for cell in cells] for name, *cells in rows[1:]} == rises


def test_the_page_of_an_empty_log_has_its_title_alone(tmp_path):
    write_page(tmp_path / "page.html", run_page([], "run"))
    page = Page(tmp_path / "page.html")
    assert (page.texts, page.tables, page.pictures) == (["run", "run"], {}, {})


def test_a_page_is_whole_or_as_before(tmp_path):
    path = tmp_path / "new" / "page.html"
    write_page(path, "first")
    (tmp_path / "new" / "page.html.tmp").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_page(path, "second")
    assert path.read_text() == "first"


@pytest.mark.parametrize(
    ("flag", "package"),
    [("report", "matplotlib"), ("tensorboard", "torch.utils.tensorboard")],
)
def test_what_cannot_be_drawn_is_refused_before_the_run(
    flag, package, tmp_path, monkeypatch, capsys
):
    def refusal(value):
        assert harness.call(dlrm, *TINY_DLRM, f"--{flag}={value}") == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"--{flag}" in printed.err
        return printed.err

    (tmp_path / "file").write_text("")
    refusal(tmp_path / "file" / "below")
    monkeypatch.setitem(sys.modules, package, None)
    assert f"recsys-recipes[{flag}]" in refusal(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


MEASURE = """
<iframe src="PAGE" width="WIDTH" height="900"></iframe><pre></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement, pictures = page.images;
  const style = frame.contentWindow.getComputedStyle(root);
  document.querySelector("pre").textContent = JSON.stringify({
    wide: root.scrollWidth - frame.clientWidth,
    pictures: [...pictures].map(each => each.complete && each.naturalWidth && each.width),
    dark: frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches,
    filter: frame.contentWindow.getComputedStyle(pictures[0]).filter});
};</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a short training."""
    folder = tmp_path_factory.mktemp("page")
    run = harness.Program(dlrm, folder, (*TINY_DLRM, *MANY_ROWS))
    run("--test_freq=10", f"--report={folder / 'run.html'}")
    return folder / "run.html"


@needs("Chromium")
@pytest.mark.release
@pytest.mark.parametrize(("width", "scheme"), [(1280, LIGHT), (400, LIGHT), (400, DARK)])
def test_a_browser_shows_every_picture_and_scrolls_down_alone(page, width, scheme):
    frame = page.with_name(f"{width}-{scheme}.html")
    frame.write_text(MEASURE.replace("PAGE", page.name).replace("WIDTH", str(width)))
    done = harness.run(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=10000",
        f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", f"file://{frame}",
    )  # fmt: skip
    found = json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1]))
    assert found["wide"] <= 0
    assert len(found["pictures"]) >= 6
    assert min(found["pictures"]) >= 300
    assert (found["dark"], found["filter"] != "none") == (scheme == DARK, scheme == DARK)
