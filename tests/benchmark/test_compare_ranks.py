# SPDX-License-Identifier: Apache-2.0
"""The comparison of files of ranks."""

import numpy as np
import pyarrow as pa
import pytest
import scipy
from pyarrow import csv, parquet

from benchmark import compare_ranks
from benchmark.compare_ranks import holm, randomization_test
from tests.harness import assert_tells

USERS = 600


def write(path, ranks, **changes):
    columns = {
        "user": np.array([f"u{user}" for user in range(USERS)]),
        "item": np.array([f"i{user % 50}" for user in range(USERS)]),
        "history_length": np.full(USERS, 7),
        "rank": ranks,
        "rank_popular": pa.array(ranks, mask=np.arange(USERS) < 20),
    } | changes
    table = pa.table(columns)
    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(table, path)
    return str(path)


@pytest.fixture
def drawn():
    return np.random.default_rng(4).integers(1, 41, (3, USERS))


def test_differences_seeds_and_corrected_probabilities(tmp_path, drawn, capsys):
    first = write(tmp_path / "first.csv", drawn[0])
    better = [
        write(tmp_path / f"better{seed}.parquet", np.maximum(ranks - 6, 1))
        for seed, ranks in enumerate(drawn[1:])
    ]
    chance = write(tmp_path / "chance.csv", drawn[1])
    flags = ("--metrics=hr@10,mrr", "--exchanges=999")
    assert compare_ranks.main(["", first, ",".join(better), chance, *flags]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{USERS} targets")
    rows = {}
    for line in lines:
        name, metric, *numbers, model = line.replace("[", "").replace("]", "").split()
        rows[model, name, metric] = [float(n.strip(",")) for n in numbers if n not in ("p", "<=")]
    assert len(rows) == 8
    of_better = next(line for line in lines if "hr@10" in line and better[0] in line)
    assert " p <= 0.0080 " in of_better
    value, second, difference, low, high, p = rows[",".join(better), "rank", "hr@10"]
    assert value == pytest.approx((drawn[0] <= 10).mean(), abs=1e-4)
    assert second == pytest.approx((drawn[1:] <= 16).mean(), abs=1e-4)
    assert difference == pytest.approx(second - value, abs=2e-4)
    assert 0 < low < difference < high
    assert p == pytest.approx(8 / 1000)  # none of the exchanges is as large
    kept = rows[",".join(better), "rank_popular", "hr@10"]
    assert kept[0] == pytest.approx((drawn[0][20:] <= 10).mean(), abs=1e-4)
    *_, low, high, p = rows[chance, "rank", "hr@10"]
    assert low < 0 < high
    assert p > 0.05


def test_lists_of_another_software_are_judged_as_their_ranks(tmp_path, drawn, capsys):
    first = write(tmp_path / "first.csv", drawn[0])
    ranks = write(tmp_path / "ranks.csv", drawn[1])
    listed = drawn[1] <= 20
    columns = {
        "user_id": [f"u{user}" for user in range(USERS)],
        "item_id": [f"i{user % 50}" if listed[user] else "other" for user in range(USERS)],
        "score": -drawn[1],
        "rank": np.where(listed, drawn[1], 1),
    }
    lists = str(tmp_path / "lists.parquet")
    of_all = pa.table(columns).take(np.random.default_rng(0).permutation(USERS))
    parquet.write_table(of_all, lists)
    flags = ("--metrics=hr@5,ndcg@20", "--exchanges=9")
    assert compare_ranks.main(["", first, ranks, lists, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    of_ranks, of_lists = (
        [line.split()[:6] for line in lines if line.endswith(name) and line.startswith("rank ")]
        for name in (ranks, lists)
    )
    assert of_ranks == of_lists
    assert len(of_lists) == 2
    assert compare_ranks.main(["", first, lists, "--metrics=mrr,hr@20,hr@21"]) == 2
    assert_tells(capsys.readouterr().err, lists, 20, "mrr, hr@21")
    parquet.write_table(of_all.slice(7), lists)
    assert compare_ranks.main(["", first, lists, *flags]) == 2
    assert_tells(capsys.readouterr().err, lists, 7, f"{USERS:,}")


@pytest.mark.parametrize("shift", [0, 0.02, 0.05, 1])
def test_exchanges_give_the_probability_of_scipy(shift):
    of_users = np.random.default_rng(3).normal(shift, 0.5, 1001)
    expected = scipy.stats.permutation_test(
        (of_users,), np.mean, permutation_type="samples", vectorized=True, batch=100, rng=0
    )
    assert randomization_test(of_users, 9999) == pytest.approx(expected.pvalue, abs=0.02)
    assert randomization_test(np.zeros(9), 99) == 1  # models that are equal


def test_holm_of_its_definition():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]).tolist() == [1, 1]


def test_other_targets_are_refused(tmp_path, drawn, capsys):
    first = write(tmp_path / "first.csv", drawn[0])
    for column, values in {
        "user": np.arange(USERS),
        "item": np.full(USERS, "i1"),
        "history_length": np.arange(USERS),
        "rank_uniform_9": drawn[0],
        "rank_popular": drawn[0],
    }.items():
        other = write(tmp_path / "other.csv", drawn[1], **{column: values})
        assert compare_ranks.main(["", first, other]) == 2
        assert_tells(capsys.readouterr().err, other, column)
    (tmp_path / "text.csv").write_text("a,b\n1,2\n")
    for files, *facts in (
        ((first,),),
        ((first, tmp_path / "none.csv"), tmp_path / "none.csv", "--ranks_file"),
        ((first, tmp_path / "text.csv"), tmp_path / "text.csv", "--ranks_file"),
        ((first, first, "--metrics=auc"), "--metrics", "hr@K", "ndcg@K", "mrr", "auc"),
    ):
        assert compare_ranks.main(["", *map(str, files)]) == 2
        assert_tells(capsys.readouterr().err, *facts)
