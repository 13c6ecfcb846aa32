# SPDX-License-Identifier: Apache-2.0
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from preproc.clicks.schema.grammar import reject_reason
from preproc.clicks.schema.row_format import criteo_format
from preproc.synthetic import clicks as generate_criteo
from preproc.synthetic import model as planted_model
from preproc.synthetic import rows as planted_rows
from preproc.synthetic.clicks import GeneratorConfig, generate
from tests.harness import assert_tells
from tests.preproc.programs import called


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated") / "days"
    planted = generate(
        GeneratorConfig(output=folder, rows=40_001, days=2, seed=3, write_probabilities=True)
    )
    return folder, planted


def fields_of(*paths):
    rows = b"".join(path.read_bytes() for path in paths).split(b"\n")
    assert rows.pop() == b""
    return rows


def test_rows_follow_the_grammar_and_the_kaggle_log(generated):
    folder, _ = generated
    assert len(fields_of(folder / "day_0")) == 20_001
    rows = fields_of(folder / "day_0", folder / "day_1")
    assert len(rows) == 40_001
    assert {reject_reason(row, criteo_format()) for row in rows} == {None}
    columns = list(zip(*(row.split(b"\t") for row in rows), strict=True))
    missing = [sum(f == b"" for f in column) / len(rows) for column in columns[1:]]
    expected = planted_rows.MISSING_NUMERICAL + planted_rows.MISSING_CATEGORICAL
    np.testing.assert_allclose(missing, expected, atol=0.01)
    assert {b"-1", b"-2"} <= set(columns[2])
    assert all(len(f) in (0, 8) for column in columns[14:] for f in column)
    assert len(set(columns[22])) == 3
    more = planted_rows.draw_rows(
        np.random.default_rng(0), 90_000, planted_rows.KAGGLE_CARDINALITIES
    )
    assert 35_000 < len(np.unique(more.ranks[2])) < 50_000  # 46,532 in 100,000 of the real log


def test_values_agree_with_the_drawn_arrays():
    rng = np.random.default_rng(0)
    rows = planted_rows.draw_rows(rng, 500, planted_rows.KAGGLE_CARDINALITIES)
    rows.numerical[0, :9] = [0, 9, 10, 99, 9_999, 10_000, 99_999_99, 10_000_000, 23_000_000]
    rows.is_missing[0, :9] = False
    text = bytes(planted_rows.format_rows(np.zeros(500, bool), rows)).decode()
    for r, line in enumerate(text.splitlines()):
        fields = line.split("\t")
        for i, field in enumerate(fields[1:14]):
            want = "" if rows.is_missing[i, r] else str(rows.numerical[i, r])
            assert field == want
        for c, field in enumerate(fields[14:]):
            value = planted_rows.category_values(rows.ranks[c, r : r + 1], c)[0]
            assert field == ("" if rows.ranks[c, r] < 0 else f"{value:08x}")


def test_best_figures_equal_the_definition(generated):
    from sklearn import metrics

    folder, planted = generated
    p = np.fromfile(folder / planted["probabilities"], "<f4")
    label_text = [row[:1] for row in fields_of(folder / "day_0", folder / "day_1")]
    labels = np.array(label_text) == b"1"
    halves = {"last_day_first_half", "last_day_second_half"}
    assert set(planted["best_reachable"]) == {"all", "day_0", "day_1", *halves}
    for figures in planted["best_reachable"].values():
        part = slice(figures["first_row"], figures["first_row"] + figures["rows"])
        auc = metrics.roc_auc_score(labels[part], p[part])
        assert figures["auc_error_bound"] < 1e-5
        assert abs(figures["auc"] - auc) <= figures["auc_error_bound"] + 1e-12
        loss = metrics.log_loss(labels[part], p[part].astype(np.float64))
        assert figures["log_loss"] == pytest.approx(loss, rel=1e-9)
        assert figures["click_rate"] == labels[part].mean()
    assert planted["best_reachable"]["all"]["auc"] == pytest.approx(0.80, abs=0.01)
    assert planted["best_reachable"]["all"]["click_rate"] == pytest.approx(0.256, abs=0.006)
    assert json.loads((folder / "planted.json").read_text())["rows_of_file"] == [20_001, 20_000]
    score = planted_model.BestReachable()
    score.add(p[:5000], labels[:5000].astype(bool))
    again = score.result()
    assert again["auc"] == pytest.approx(metrics.roc_auc_score(labels[:5000], p[:5000]), abs=1e-5)


def test_a_logistic_regression_learns_but_misses_the_interactions():
    from sklearn import linear_model as linear
    from sklearn import metrics

    model = planted_rows.calibrated_model(
        0, planted_rows.KAGGLE_CARDINALITIES, click_rate=0.256, best_auc=0.8
    )
    rng = np.random.default_rng(5)
    rows = planted_rows.draw_rows(rng, 60_000, planted_rows.KAGGLE_CARDINALITIES)
    p = model.probabilities(rows.numerical, rows.ranks)
    labels = rng.random(len(p)) < p
    groups = model.groups(rows.numerical, rows.ranks).T
    train, test = slice(0, 40_000), slice(40_000, None)

    def auc(columns):
        fitted = linear.LogisticRegression().fit(groups[train, :columns], labels[train])
        return metrics.roc_auc_score(labels[test], fitted.decision_function(groups[test, :columns]))

    best = metrics.roc_auc_score(labels[test], p[test])
    assert auc(3) == pytest.approx(best, abs=0.002)
    assert 0.72 < auc(2) < best - 0.01


def test_same_bytes_for_a_seed_whatever_the_threads(tmp_path, monkeypatch, rough_calibration):
    monkeypatch.setattr(generate_criteo, "CHUNK_ROWS", 1000)

    def files(name, **options):
        folder = tmp_path / name
        generate(GeneratorConfig(output=folder, rows=2500, days=1, **options))
        return {p.name: p.read_bytes() for p in folder.iterdir()}

    one = files("one", threads=1)
    assert one == files("three", threads=3)
    assert one != files("seed", threads=1, seed=1)
    packed = files("packed", threads=3, gzip=True)
    assert gzip.decompress(packed["day_0.gz"]) == one["day_0"]
    assert packed == files("packed_one", threads=1, gzip=True)


def test_single_file_and_command_line(tmp_path, capsys, rough_calibration):
    out = tmp_path / "small.tsv"
    flags = (f"--output={out}", "--rows=1000")
    called("generate_criteo", *flags)
    names = {"all", "last_20_percent", "last_10_percent"}
    assert set(json.loads(capsys.readouterr().out)) == names
    planted = json.loads(Path(f"{out}.planted.json").read_text())
    assert planted["best_reachable"]["last_10_percent"]["first_row"] == 900
    before = out.read_bytes()
    assert "--overwrite" in called("generate_criteo", *flags, status=2)
    called("generate_criteo", *flags, "--overwrite", "--seed=9")
    assert out.read_bytes() != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small.tsv", "small.tsv.planted.json"]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--rows=0"], ["--rows", 0]),
        (["--rows=2", "--days=3"], ["--rows", 2]),
        (["--rows=5", "--cardinalities=1,2"], ["--cardinalities"]),
        (["--rows=5", "--best_auc=0.4"], ["--best_auc"]),
        (["--rows=5", "--best_auc=0.9999"], ["--best_auc 0.9999"]),
        (["--rows=5", "--click_rate=2"], ["--click_rate"]),
        (["--rows=5", "--seed=-1"], ["--seed", -1]),
        (["--rows=100000000000000"], ["100,000,000,000,000"]),
        (["--rows=x"], ["--rows=x"]),
        (["--raws=5"], ["raws"]),
        ([], ["--rows"]),
    ],
)
def test_bad_settings_are_refused_and_leave_nothing(tmp_path, rough_calibration, arguments, facts):
    error = called("generate_criteo", f"--output={tmp_path / 'made'}", *arguments, status=2)
    assert_tells(error, *facts)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_zipf_ranks_have_the_stated_probabilities():
    rng = np.random.default_rng(1)
    for cardinality, exponent in ((1, 1.2), (4, 0.3), (1000, 1.5), (10_131_227, 1.02)):
        ranks = planted_model.zipf_ranks(rng.random(200_000), cardinality, exponent)
        assert ranks.min() >= 0
        assert ranks.max() < cardinality
        heads = min(cardinality, 8)
        want = planted_model.zipf_probabilities(heads, cardinality, exponent)
        got = np.bincount(ranks[ranks < heads], minlength=heads) / len(ranks)
        np.testing.assert_allclose(got, want, atol=0.005)


def test_category_values_are_a_permutation():
    ranks = np.arange(100_000)
    assert len(np.unique(planted_rows.category_values(ranks, 5))) == 100_000
