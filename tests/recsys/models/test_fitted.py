# SPDX-License-Identifier: Apache-2.0
"""Models that are fitted: trained, tested, asked and deployed by their programs."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from bert4rec.scripts import main as bert4rec
from recsys.data.sequences.files import read_sequences
from recsys.models.registry import FITTED
from recsys.models.serving import FittedExport, ServedFitted
from recsys.ratings.config import RatingsExportOptions
from recsys.ratings.data.split import known_items, targets_of, true_items
from recsys.ratings.fitted.stored import StoredFitted
from recsys.ratings.ranking.evaluate import rank_on_host
from recsys.ratings.scorer import history_item_pairs
from recsys.serve.client.requests import BadRequestError
from recsys.train.checkpoint import CheckpointError
from recsys_recipes import fitted
from recsys_recipes.models import MODELS, model_of
from recsys_recipes.serving import deploy
from tests import harness
from tests.bert4rec.conftest import NUM_ITEMS, raw_id
from tests.harness import assert_tells, refusal

CPU = torch.device("cpu")
TOP_K = 7


def run(name, *flags, status=0):
    assert fitted.main(["fitted", name, *map(str, flags)]) == status


@pytest.fixture(scope="module", params=FITTED)
def trained(request, dataset, tmp_path_factory):
    """A model's name, the folder of its run, and its log."""
    folder = tmp_path_factory.mktemp(request.param)
    log = folder / "log.json"
    flags = (f"--dataset_path={dataset}", f"--export_root={folder / 'run'}", f"--log_path={log}")
    run(request.param, *flags, "--baselines=markov,item_knn")
    return request.param, folder / "run", log


def test_the_figures_are_those_of_another_fit(trained, dataset):
    name, folder, log = trained
    sequences, found, kind = read_sequences(dataset), harness.last_figures(log), FITTED[name].load()
    model = kind.fit(sequences, kind.settings_class())
    ranks = rank_on_host(model, sequences, "test", {}).ranks["full"]
    assert found["test_full_hr@10"] == pytest.approx((ranks < 10).mean())
    assert f"test_{name}_hr@10" not in found  # no model is compared with itself
    assert model_of(folder) is MODELS[name]


def test_a_checkpoint_is_tested_as_it_was(trained, dataset, tmp_path):
    name, folder, log = trained
    again, files = tmp_path / "log.json", [tmp_path / f"{i}.parquet" for i in range(2)]
    flags = (f"--dataset_path={dataset}", f"--load_checkpoint_path={folder}", f"--log_path={again}")
    run(name, "--mode=test", *flags, "--baselines=markov,item_knn", f"--ranks_file={files[0]}",
        f"--lists_file={files[1]}")  # fmt: skip
    assert harness.last_figures(again) == harness.last_figures(log)
    ranks, lists = map(pq.read_table, files)
    first = {row["user_id"]: row["item_id"] for row in lists.to_pylist() if row["rank"] == 1}
    best = [row for row in ranks.to_pylist() if row["rank"] == 1]  # none has the same score
    assert best
    assert [first[row["user"]] for row in best] == [row["item"] for row in best]


def of_plain_sort(model, history, count):
    """Returns the best unseen items of a history and their scores, by the whole row of scores."""
    row = model.scorer([history]).dense()[0].numpy().copy()
    row[history - 1] = -np.inf
    order = sorted(range(NUM_ITEMS), key=lambda item: (-row[item], item))[:count]
    return [item + 1 for item in order], row[order].astype(np.float32)


def test_lists_have_the_best_unseen_items(trained):
    name, folder, _ = trained
    model = StoredFitted.open(folder, FITTED[name].load()).open_model()
    histories = [np.array(h) for h in ([3], [5, 6, 7], [40, 1, 40, 2], list(range(1, NUM_ITEMS)))]
    best, scores = model.scorer(histories).top(TOP_K, *history_item_pairs(histories, CPU))
    for history, items, values in zip(histories, best.tolist(), scores.numpy(), strict=True):
        expected, of_expected = of_plain_sort(model, history, TOP_K)
        left = np.isfinite(of_expected)
        assert [item for item, is_left in zip(items, left, strict=True) if is_left] == [
            item for item, is_left in zip(expected, left, strict=True) if is_left
        ]
        np.testing.assert_array_equal(values, of_expected)


def test_histories_get_lists_by_raw_ids(trained, dataset, tmp_path, capsys):
    name, folder, _ = trained
    lines = tmp_path / "histories"
    lines.write_text(f"{raw_id(4)} {raw_id(5)}\nnothing\n{raw_id(9)}\n")
    flags = (f"--dataset_path={dataset}", f"--load_checkpoint_path={folder}", f"--top_k={TOP_K}")
    run(name, "--mode=recommend", *flags, f"--recommend_input={lines}", "--output_format=json")
    first, unknown, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert raw_id(6) in first["items"]
    assert raw_id(10) in other["items"]
    assert "items" not in unknown
    run(name, "--mode=recommend", *flags, "--recommend_users=user-1", "--output_format=json")
    (of_user,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert of_user["user"] == "user-1"
    assert len(of_user["items"]) == TOP_K


@pytest.mark.parametrize("raw", [False, True], ids=["numbers", "raw ids"])
def test_served_answers_are_the_lists_of_the_checkpoint(trained, dataset, tmp_path, raw):
    name, folder, _ = trained
    models = tmp_path / "models"
    flags = [f"--raw_ids={dataset}"] if raw else []
    command = (f"--checkpoint={folder}", f"--repository={models}", f"--top_k={TOP_K}", *flags)
    assert harness.call(deploy, *command) == 0
    served = ServedFitted.open(models / name / "1", CPU)
    sequences = read_sequences(dataset)
    rows = np.arange(len(targets_of(sequences, "test")))
    histories = known_items(sequences, "test", rows)
    offline = StoredFitted.open(folder, FITTED[name].load()).open_model().scorer(histories)
    best, scores = offline.top(TOP_K, *history_item_pairs(histories, CPU))
    for row, history in enumerate(histories):
        sent = np.array([[raw_id(i).encode() for i in history]], object) if raw else history[None]
        answer = served.respond({"history": sent})
        is_left = np.isfinite(scores[row].numpy())
        items = answer["items"][0][is_left].tolist()
        expected = best[row].numpy()[is_left].tolist()
        assert items == ([raw_id(i).encode() for i in expected] if raw else expected)
        np.testing.assert_array_equal(answer["scores"][0][is_left], scores[row].numpy()[is_left])
    with pytest.raises(BadRequestError):
        served.respond({"history": np.array([[b"other"]], object) if raw else np.array([[999]])})


def test_what_a_matrix_cannot_do_is_refused(trained, dataset, tmp_path, capsys):
    _, folder, _ = trained
    common = (f"--checkpoint={folder}", f"--repository={tmp_path / 'models'}")
    for flags, setting in (
        (("--format=onnx",), "--format"),
        (("--quantize=int8",), "--quantize"),
        (("--raw", f"--dataset={dataset}"), "--dataset"),
        ((f"--top_k={NUM_ITEMS + 1}",), "--top_k"),
    ):
        assert harness.call(deploy, *common, *flags) == 2
        assert_tells(capsys.readouterr().err, setting)
    assert not list((tmp_path / "models").glob("*/1"))


def test_a_checkpoint_of_another_model_is_named(trained, dataset, tmp_path, capsys):
    name, folder, _ = trained
    other = next(each for each in FITTED if each != name)
    with refusal(name, path=folder / "step_000000000", kind=CheckpointError):
        FittedExport(FITTED[other].load(), folder, RatingsExportOptions(top_k=3))
    flags = (f"--dataset_path={dataset}", f"--load_checkpoint_path={folder}", "--mode=test")
    assert harness.call(bert4rec, *flags, f"--log_path={tmp_path / 'log'}") == 2
    assert_tells(capsys.readouterr().err, folder / "step_000000000", name)


def test_a_run_is_not_replaced(trained, dataset, tmp_path, capsys):
    name, folder, _ = trained
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    flags = (f"--dataset_path={dataset}", f"--export_root={folder}")
    run(name, *flags, f"--log_path={tmp_path / 'log'}", status=2)
    told = capsys.readouterr().err
    assert_tells(told, "--export_root", folder)
    assert "--resume" not in told  # which such a run does not have
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_settings_of_the_counting_change_the_figures_and_are_kept(dataset, tmp_path):
    for name, flags in (
        ("markov", ("--window=1", "--last_items=1")),
        ("item_knn", ("--neighbours=2", "--last_items=0")),
        ("ease", ("--ridge=3",)),
        ("gru", ("--epochs=1",)),
    ):
        figures = []
        for folder, more in ((tmp_path / f"{name}_plain", ()), (tmp_path / name, flags)):
            log = folder.with_suffix(".json")
            run(name, f"--dataset_path={dataset}", f"--export_root={folder}", f"--log_path={log}",
                "--baselines=", *more)  # fmt: skip
            figures.append(harness.last_figures(log))
        assert figures[0] != figures[1], name
        again = tmp_path / f"{name}_again.json"
        run(name, "--mode=test", f"--dataset_path={dataset}", "--baselines=",
            f"--load_checkpoint_path={folder}", f"--log_path={again}")  # fmt: skip
        assert harness.last_figures(again) == figures[1]


def test_targets_are_those_of_the_split(dataset):
    sequences = read_sequences(dataset)
    rows = np.array([3, 0])
    for split, left_out in (("validation", 2), ("test", 1)):
        known = known_items(sequences, split, rows)
        for row, items in zip(rows, known, strict=True):
            assert items.tolist() == sequences[row][:-left_out].tolist()
            assert true_items(sequences, split)[row] == sequences[row][-left_out]
