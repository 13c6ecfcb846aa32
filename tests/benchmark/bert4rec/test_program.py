# SPDX-License-Identifier: Apache-2.0
import dataclasses
import gzip
import json
import time

import numpy as np
import pytest

from benchmark.bert4rec.program import prepare_movielens, read_log, run_bert4rec
from benchmark.bert4rec.quality import DATASETS, main, markdown, records
from benchmark.bert4rec.recbole import write_interactions
from benchmark.peers.recbole_bert4rec import MeasuredBatches
from benchmark.record import read_records
from recsys.data.sequences import read_sequences


def line(elapsed, step, data):
    return "DLLL " + json.dumps({"elapsedtime": str(elapsed), "step": step, "data": data})


def figures(value):
    names = [f"{m}@{k}" for k in (1, 5, 10) for m in ("hr", "ndcg")]
    rankings = ("popular", "uniform", "full", "full_with_seen")
    return {f"{ranking}_{name}": value for ranking in rankings for name in names}


def logged(tmp_path):
    path = tmp_path / "log.json"
    test = {f"test_{k}": v for k, v in figures(0.75).items()}
    path.write_text(
        "\n".join(
            [
                line(0.0, "PARAMETER", {"lr": 1}),
                line(4.0, [0, 10], {"loss": 7.5, "lr": 0.1}),
                line(5.0, [0, 12], figures(0.25)),
                line(0.1, "PARAMETER", {"lr": 1}),  # resumed: its clock starts anew
                line(3.0, [1, 24], figures(0.5)),
                line(3.5, [], {"average_train_throughput": 100.0}),
                line(4.0, [], test),
            ]
        )
    )
    return read_log(path)


def test_the_clock_of_a_resumed_run_goes_on(tmp_path):
    run = logged(tmp_path)
    assert [e["elapsed_s"] for e in run.evaluations] == [5.0, 8.0]
    assert [e["step"] for e in run.evaluations] == [12, 24]
    assert run.losses == {10: 7.5}
    assert run.final["average_train_throughput"] == 100.0


def test_the_table_and_the_records_hold_means_published_metrics_and_curves(tmp_path):
    run = logged(tmp_path)
    other = dataclasses.replace(run, final={k: v / 3 for k, v in run.final.items()})
    runs = {7: run, 8: other}
    table = markdown(runs, DATASETS["beauty"])
    assert "| popular | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 0.5000 |" in table
    assert "| here, seed 8 | 0.2500 | 0.2500 | 0.2500 | 0.2500 |" in table
    assert "| RecTools, SASRec | 0.3062 | 0.2012 | 0.0595 | 0.0359 |" in table
    assert "| 8 | 24 | 0.5000 | 0.5000 | 0.5000 | 0.5000 |" in table
    made = records(runs, {"steps": 24})
    assert {r.value for r in made[:-2]} == {0.5}
    assert [row[:2] for row in made[-1].config["curve"]] == [[5.0, 12], [8.0, 24]]


@pytest.mark.release
def test_each_seed_is_trained_tested_and_recorded(tmp_path, monkeypatch):
    ratings = tmp_path / "ml-1m" / "ml-1m.txt.gz"
    ratings.parent.mkdir()
    lines = "".join(f"{u} {(u * 8 + n) % 300}\n" for u in range(110) for n in range(8))
    ratings.write_bytes(gzip.compress(lines.encode()))
    monkeypatch.setenv("RECSYS_DATA", str(tmp_path))
    results = tmp_path / "results.jsonl"
    command = [f"--folder={tmp_path / 'runs'}", f"--results={results}", "--preset=fast"]
    assert main([*command, "--steps=2", "--seeds=1,2", "--emb_dim=8", "--max_len=8"]) == 0
    first = next(r for r in read_records(results) if r.metric == "mean test full hr@10")
    assert 0 <= first.value <= 1
    seeds = [r.config["seed"] for r in read_records(results) if "curve" in r.config]
    assert seeds == [1, 2]
    assert "| here, seed 2 |" in (tmp_path / "runs" / "ml-1m" / "quality.md").read_text()


def test_a_failing_program_is_told_with_its_message(tmp_path):
    with pytest.raises(RuntimeError, match="no prepared dataset"):
        run_bert4rec(tmp_path / "log.json", "--dataset_name=ml-1m", f"--dataset_path={tmp_path}")


def test_recbole_reads_the_same_histories(tmp_path):
    ratings = tmp_path / "ratings.txt"
    histories = {1: [5, 9, 2, 5], 2: [9, 2, 7], 3: [7, 5, 9, 2, 1]}
    ratings.write_text("".join(f"{u} {i}\n" for u, items in histories.items() for i in items))
    dataset = prepare_movielens(ratings, tmp_path / "dataset")
    target = write_interactions(dataset, tmp_path / "recbole")
    rows = np.loadtxt(target / "ml-100k.inter", dtype=np.int64, skiprows=1)
    sequences = read_sequences(dataset)
    assert len(rows) == len(sequences.items) == 12
    for user in range(sequences.num_users):
        mine = rows[rows[:, 0] == user + 1]
        ordered = mine[mine[:, 2].argsort()][:, 1]
        start, stop = sequences.offsets[user : user + 2]
        assert ordered.tolist() == sequences.items[start:stop].tolist()


def test_measured_batches_count_loading_and_leave_the_first_out():
    class Slow:
        shuffle = True

        def __len__(self):
            return 5

        def __iter__(self):
            for _ in range(5):
                time.sleep(0.02)
                yield [0] * 10

    batches = MeasuredBatches(Slow(), 3)
    assert len(batches) == 3
    assert batches.shuffle
    assert [len(batch) for batch in batches] == [10, 10, 10]
    assert 20 / batches.samples_per_s(1) >= 0.04
