# SPDX-License-Identifier: Apache-2.0
"""bert4rec.scripts.main end to end: modes, log, checkpoints."""

import json
import shutil

import numpy as np
import pytest
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.recipe import Bert4RecRecipe
from preproc import movielens
from recsys.data.sequences.files import read_sequences
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE
from recsys.train.recipe import Machine
from tests import harness
from tests.bert4rec.conftest import (
    NUM_ITEMS,
    NUM_USERS,
    SMALL_MODEL,
    make_sequences,
    raw_id,
    write_dataset,
)
from tests.harness import assert_tells


def final(records):
    assert records[-1]["step"] == []
    return records[-1]["data"]


def test_learns_the_order_better_than_popularity(program, loaded):
    found = final(program("--mode=test", *loaded))
    assert found["test_full_hr@5"] > max(0.7, 2 * found["test_popularity_hr@5"])
    assert found["test_full_hr@5_low"] <= found["test_full_hr@5"] <= found["test_full_hr@5_high"]
    for ranking in ("full", "full_with_seen", "popular", "uniform", "popularity"):
        assert {f"test_{ranking}_{m}" for m in ("hr@10", "ndcg@10", "mrr")} <= found.keys()


def test_fine_tuning_keeps_the_objective(program, dataset, tmp_path, capsys, caplog):
    first = (f"--dataset_path={dataset}", f"--export_root={tmp_path / 'run'}", "--max_steps=2")
    program(*first, "--objective=causal")
    more = (f"--dataset_path={dataset}", f"--load_checkpoint_path={tmp_path / 'run'}",
            "--max_steps=2")  # fmt: skip
    capsys.readouterr()
    records = program(*more)
    assert records[0]["data"]["objective"] == "causal"
    assert_tells(capsys.readouterr().out, "--objective causal")
    records = program(*more, "--objective=cloze")
    assert records[0]["data"]["objective"] == "cloze"
    assert_tells(caplog.text, "`objective` cloze", "causal")


@pytest.mark.parametrize("objective", ["cloze", "causal", "hybrid"])
def test_users_with_a_single_item_to_train_on_do_no_harm(program, dataset, objective):
    # Batches of one sequence: some hold one item, which has no next one.
    records = program(f"--dataset_path={dataset}", f"--objective={objective}", "--windows=recent",
                      "--train_batch_size=1", "--max_steps=60", "--print_freq=1")  # fmt: skip
    losses = [r["data"]["loss"] for r in records if "step_time" in r["data"]]
    assert len(losses) == 60
    assert all(loss is not None and loss > 0 for loss in losses)


def test_patience_ends_a_run(program, dataset, capsys):
    program(f"--dataset_path={dataset}", "--lr=0", "--num_epochs=50", "--patience=2")
    out = capsys.readouterr().out
    assert "No better full ndcg@10 in 2 evaluations" in out
    assert out.count("full ndcg@10 0.") == 3
    assert "Test on" in out


def test_the_users_that_validate_are_those_of_the_checkpoint(program, refused, dataset, tmp_path):
    run, data = tmp_path / "run", f"--dataset_path={dataset}"
    records = program(data, f"--export_root={run}", "--validation_users=20", "--max_steps=3")
    flags = (f"--dataset_path={dataset}", f"--load_checkpoint_path={run}")
    # Another seed of training ranks the same items.
    tested = program("--mode=test", *flags, "--num_eval_negatives=5", "--seed=7", model=())
    assert final(tested) == final(records)
    error = refused(*flags, "--validation_users=30", "--max_steps=1")
    assert_tells(error, run, "--validation_users 20", 30)
    error = refused(f"--dataset_path={dataset}", f"--validation_users={NUM_USERS + 1}")
    assert_tells(error, f"--validation_users {NUM_USERS + 1}", NUM_USERS)


def known_lines():
    """Returns the history of each user that the test may see, as raw ids."""
    sequences = make_sequences()
    histories = [sequences[user][:-1] for user in range(NUM_USERS)]
    return [" ".join(map(raw_id, history)) for history in histories]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_recommending_agrees_with_the_test(program, recommend, loaded, tmp_path, batch):
    tested = final(program("--mode=test", *loaded, model=()))
    file = tmp_path / "histories.txt"
    file.write_text("\n".join(known_lines()))
    found = recommend(*loaded, f"--recommend_input={file}", f"--test_batch_size={batch}")
    assert [answer["line"] for answer in found] == list(range(1, NUM_USERS + 1))
    truth = [raw_id(int(item)) for item in make_sequences().test_items]
    for k in (1, 5, 10):
        hits = [t in a["items"][:k] for t, a in zip(truth, found, strict=True)]
        assert np.mean(hits) == pytest.approx(tested[f"test_full_hr@{k}"])
    for answer, line in zip(found, known_lines(), strict=True):
        assert not set(answer["items"]) & set(line.split())
        assert answer["scores"] == sorted(answer["scores"], reverse=True)
        assert len(answer["items"]) == 10


def test_recommending_from_standard_input(recommend, loaded, caplog):
    history = " ".join(raw_id(item) for item in range(1, 38))
    lines = f"{raw_id(3)} nobody-knows {raw_id(4)}\n\nneither this\n{history}"
    first, empty, unknown, long = recommend(*loaded, "--top_k=5", lines=lines)
    assert len(first["items"]) == len(first["scores"]) == 5
    assert (empty["line"], unknown["line"]) == (2, 3)
    assert empty.keys() == {"line", "error"}
    assert unknown["error"] == empty["error"]
    assert sorted(long["items"]) == sorted(map(raw_id, (38, 39, 40)))  # all that is left
    assert_tells(caplog.messages[-2], "input:1", "'nobody-knows'")
    assert_tells(caplog.messages[-1], "input:3", "'neither', 'this'")
    assert recommend(*loaded) == []


def test_a_history_may_be_a_list_of_json(recommend, loaded):
    ids = [raw_id(3), raw_id(4)]
    lines = [" ".join(ids), json.dumps(ids), json.dumps(["no such id", *ids]), "[ " + ids[0]]
    plain, listed, third, not_a_list = recommend(*loaded, lines="\n".join(lines))
    assert plain["items"] == listed["items"] == third["items"]
    assert len(not_a_list["items"]) == 10


def test_a_history_longer_than_the_model_is_cut_at_its_start(recommend, loaded):
    end = " ".join(raw_id(item) for item in range(20, 31))  # the model sees eleven items
    lines = f"{end}\n{raw_id(35)} {raw_id(36)} {end}\n"
    short, long = recommend(*loaded, "--top_k=40", lines=lines)
    scores = dict(zip(short["items"], short["scores"], strict=True))
    assert len(long["items"]) == NUM_ITEMS - 13
    for item, score in zip(long["items"], long["scores"], strict=True):
        assert score == pytest.approx(scores[item], abs=1e-5)


def test_users_of_the_dataset_are_recommended_for_by_their_ids(
    program, refused, recommend, loaded, dataset, capsys
):
    sequences = read_sequences(dataset)
    seventh, nobody, third = recommend(*loaded, "--recommend_users=user-7,nobody,user-3")
    assert (seventh["user"], third["user"]) == ("user-7", "user-3")
    assert nobody["user"] == "nobody"
    assert nobody.keys() == {"user", "error"}
    lines = [json.dumps([raw_id(item) for item in sequences[user]]) for user in (7, 3)]
    of_lines = recommend(*loaded, lines="\n".join(lines))
    assert [line["items"] for line in of_lines] == [seventh["items"], third["items"]]
    everyone = recommend(*loaded, "--recommend_users=all", "--test_batch_size=7")
    assert [answer["user"] for answer in everyone] == [f"user-{u}" for u in range(NUM_USERS)]
    assert everyone[7]["items"] == seventh["items"]
    said = refused("--mode=recommend", *loaded, "--recommend_users=8,9", model=())
    assert_tells(said, "--recommend_users", 2, dataset)
    table = ("--recommend_users=user-7", "--output_format=table")
    program("--mode=recommend", *loaded, *table, model=())
    assert capsys.readouterr().out.startswith("user user-7")


def test_targets_that_repeat_an_item_are_counted(program, tmp_path, capsys):
    sequences = make_sequences()
    for user in (3, 8):  # the last item is the first one again
        sequences.items[sequences.offsets[user + 1] - 1] = sequences[user][0]
    # An item that stands twice before the target is no such case.
    sequences.items[sequences.offsets[11] + 1] = sequences[11][0]
    write_dataset(tmp_path / "repeats", sequences)
    records = program("--mode=test", f"--dataset_path={tmp_path / 'repeats'}")
    out = capsys.readouterr().out
    assert_tells(out, f"2 of {NUM_USERS} targets")
    assert final(records)["test_repeated_targets"] == 2


def test_new_rows_of_the_trained_items(program, refused, dataset, loaded, recommend, tmp_path):
    """Users whom the model never saw, and an item that it does not know."""
    rows = [(f"new-{u}", raw_id((u + n) % NUM_ITEMS + 1)) for u in range(30) for n in range(8)]
    rows.insert(100, ("new-12", "film-new"))
    source = tmp_path / "log"
    source.write_text("".join(f"{user} {item}\n" for user, item in rows))
    made = [f"--input={source}", "--progress=none", f"--dictionaries={dataset}"]
    for name, flags in {"own": made[:2], "new": made}.items():
        assert movielens.main(["movielens", *flags, f"--output={tmp_path / name}"]) == 0
    _, checkpoint = loaded
    new = (f"--dataset_path={tmp_path / 'new'}", checkpoint)
    values = final(program("--mode=test", *new))
    assert values["test_full_hr@10"] > 2 * values["test_popularity_hr@10"]
    assert recommend(*new, lines=raw_id(3)) == recommend(*loaded, lines=raw_id(3))
    said = refused("--mode=test", f"--dataset_path={tmp_path / 'own'}", checkpoint)
    assert_tells(said, "recsys-recipes prepare ratings --dictionaries")
    resumed = f"--export_root={shutil.copytree(checkpoint.partition('=')[2], tmp_path / 'run')}"
    trained = ("--resume", "--num_epochs=25", "--mask_last_prob=0.5", "--head=tied")
    assert_tells(refused(new[0], resumed, *trained), tmp_path / "run", tmp_path / "new")


def test_the_program_runs_as_a_script_and_as_modules(tmp_path):
    flags = ["--dataset_name=random", "--max_steps=2", f"--log_path={tmp_path / 'log.json'}"]
    # A new Python: a forked one has imported what a folder of the script's could shadow.
    script = harness.python("bert4rec/bert4rec_main.py", "--mode=ddp", *flags)
    large = ("--parallelism=ddp", "--loss=full")
    module = harness.forked("-m", "bert4rec.scripts.dist_main", *large, *flags)
    assert "rec/s" in script.stdout
    assert "rec/s" in module.stdout


def test_a_run_that_ends_within_its_warm_up_says_so(program, dataset, capsys):
    for warmup, is_said in ((8, False), (9, True)):
        program(f"--dataset_path={dataset}", "--max_steps=9", f"--warmup_steps={warmup}")
        assert (f"warmup_steps {warmup}" in capsys.readouterr().out) == is_said


def test_what_a_run_says_of_settings_names_flags(dataset, tmp_path):
    model = (flag for flag in SMALL_MODEL if "num_eval_negatives" not in flag)
    flags = ("--mode=test", f"--dataset_path={dataset}", f"--log_path={tmp_path / 'log.json'}")
    done = harness.forked("-m", "bert4rec.scripts.main", *flags, *model)
    assert_tells(done.stderr, "WARNING --mode test", "--load_checkpoint_path")
    assert_tells(done.stdout, "60 of 60 users", "--num_eval_negatives 100")


def best_items(dataset, objective, *, traced, dtype=None, **settings):
    config = Bert4RecConfig.from_dict(
        {
            **{"dataset_path": str(dataset), "objective": objective, "use_torch_jit_trace": traced},
            **{"max_len": 24, "emb_dim": 16, "mode": "inference_benchmark", "top_k": 5},
            **settings,
        }
    )
    torch.manual_seed(1)
    precision = Precision(device_type="cpu", dtype=dtype)
    machine = Machine(torch.device("cpu"), precision, ALONE, print)
    recipe = Bert4RecRecipe.open(config, machine)
    recipe.model.reset_parameters(0.5)
    with torch.inference_mode():
        return [call() for call in recipe.inferences(7)[:3]]


@pytest.mark.parametrize("head_transform", [False, True])
@pytest.mark.parametrize("objective", ["causal", "cloze"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (torch.bfloat16, 0.05)])
def test_the_traced_network_recommends_what_the_other_does(
    dataset, objective, dtype, tolerance, head_transform
):
    settings = {"dtype": dtype, "head_transform": head_transform}
    plain = best_items(dataset, objective, traced=False, **settings)
    traced = best_items(dataset, objective, traced=True, **settings)
    assert len(plain) == len(traced) == 3
    for (items, scores), (traced_items, traced_scores) in zip(plain, traced, strict=True):
        scale = scores.abs().max()
        assert torch.allclose(scores, traced_scores.float(), rtol=0, atol=tolerance * scale)
        if dtype is None:
            assert torch.equal(items, traced_items)
    assert scale > 1  # scores that differ between items


def test_a_training_ends_with_the_benchmark_of_the_traced_network(program, dataset, capsys):
    sizes = "--inference_benchmark_batch_sizes=1,3"
    common = (f"--dataset_path={dataset}", "--use_torch_jit_trace", sizes)
    for mode in (("--max_steps=1",), ("--mode=inference_benchmark",)):
        records = program(*common, *mode)
        assert_tells(capsys.readouterr().out, "torch.jit")
        latencies = [k for k in records[-1]["data"] if k.startswith("p50_inference_latency_batch")]
        assert len(latencies) == 2
