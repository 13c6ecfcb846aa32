# SPDX-License-Identifier: Apache-2.0
"""The client's program beside a deployed BERT4Rec: its figures are those of the offline test."""

import json
import re
import urllib.request

import numpy as np
import pytest

from bert4rec.serve.score import score_served_split
from recsys.data.sequences import Sequences
from recsys.serve.signature import bert4rec_signature
from tests.bert4rec.conftest import (
    NUM_ITEMS,
    NUM_USERS,
    make_program,
    make_sequences,
    raw_id,
    write_dataset,
)
from tests.triton.conftest import client, replay, title

pytestmark = [pytest.mark.triton_server, pytest.mark.usefixtures("recommenders")]


def figures(line):
    return dict(re.findall(r"(hr@10|ndcg@10) (\d\.\d+)", line))


@pytest.fixture(scope="module")
def of_the_test(bert4rec_run, ratings, tmp_path_factory):
    """HR@10 and NDCG@10 by split, as the training program logs them for the checkpoint."""
    program = make_program(tmp_path_factory.mktemp("offline"))
    given = (f"--dataset_path={ratings}", f"--load_checkpoint_path={bert4rec_run}")
    found = program("--mode=test", *given, model=())[-1]["data"]
    return {name: f"{found[f'test_full_{name}']:.6f}" for name in ("hr@10", "ndcg@10")}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("model", ["bert4rec", "named"])
def test_a_split_through_the_server_has_the_figures_of_the_offline_test(
    server, ratings, bert4rec_run, of_the_test, model, protocol, capsys
):
    url = server.grpc_url if protocol == "grpc" else server.http_url
    arguments = [f"--url={url}", f"--protocol={protocol}", f"--model={model}", "--mode=test"]
    arguments += [f"--dataset={ratings}", f"--checkpoint={bert4rec_run}"]
    assert client([*arguments, "--batch_size=7", "--concurrency=3"]) == 0
    served, of_checkpoint = capsys.readouterr().out.splitlines()
    assert served.startswith(f"{NUM_USERS} users: hr@10 0.")
    assert figures(served) == of_the_test
    assert figures(of_checkpoint) == of_the_test


def test_raw_ids_and_titles_are_answered_as_text(server, tmp_path, capsys):
    request = tmp_path / "request.json"
    replies = []
    for model, history in (("bert4rec", [3, 4]), ("named", [raw_id(3), raw_id(4)])):
        request.write_text(json.dumps({"history": [history]}) + "\n")
        arguments = [f"--url={server.grpc_url}", f"--model={model}", f"--request={request}"]
        assert client(arguments) == 0
        replies.append(json.loads(capsys.readouterr().out))
    numbered, named = replies
    (items,) = numbered.pop("items")
    assert named == numbered | {"items": [[*map(raw_id, items)]], "titles": [[*map(title, items)]]}


def test_a_model_without_raw_ids_says_so(server, capsys):
    for model, says in (("bert4rec", True), ("exported", True), ("named", False)):
        assert client([f"--url={server.grpc_url}", f"--model={model}"]) == 0
        assert ("--raw_ids DATASET` makes a model" in capsys.readouterr().out) is says


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def test_places_without_an_item_are_valid_json(server):
    everything = list(range(1, NUM_ITEMS + 1))
    history = {"name": "history", "shape": [1, NUM_ITEMS], "datatype": "INT64", "data": everything}
    url = f"http://{server.http_url}/v2/models/bert4rec/infer"
    with urllib.request.urlopen(url, json.dumps({"inputs": [history]}).encode()) as response:
        outputs = json.loads(response.read(), parse_constant=refuse_constant)["outputs"]
    items, scores = (output["data"] for output in outputs)
    assert items == [0] * len(scores)


def test_a_network_of_fixed_places_is_compared_by_what_it_is_sent(
    server, ratings, bert4rec_run, capsys
):
    arguments = [f"--url={server.grpc_url}", "--model=exported", "--mode=test"]
    arguments += [f"--dataset={ratings}", f"--checkpoint={bert4rec_run}", "--eval_split=validation"]
    assert client(arguments) == 0
    served, of_checkpoint = capsys.readouterr().out.splitlines()
    assert figures(served) == figures(of_checkpoint)
    assert float(figures(served)["hr@10"]) > 0.5


def test_what_was_not_deployed_is_found_out(server, ratings, bert4rec_run, tmp_path, capsys):
    program = make_program(tmp_path)
    program(f"--dataset_path={ratings}", f"--export_root={tmp_path / 'other'}", "--max_steps=2")
    common = [f"--url={server.grpc_url}", "--model=bert4rec", "--mode=test"]
    assert client([*common, f"--dataset={ratings}", f"--checkpoint={tmp_path / 'other'}"]) == 1
    assert "the server does not answer as" in capsys.readouterr().err
    items = np.tile(np.arange(1, NUM_ITEMS + 1, dtype=np.int32), 2)
    other = Sequences(items, np.array([0, len(items)]), NUM_ITEMS)
    write_dataset(tmp_path / "dataset", other)
    common.append(f"--dataset={tmp_path / 'dataset'}")
    assert client([*common, f"--checkpoint={bert4rec_run}"]) == 2
    assert "name the dataset of the training with --dataset" in capsys.readouterr().err
    # Who met the true item before cannot be recommended it.
    assert client(common) == 0
    assert "1 of them had met the true item before" in capsys.readouterr().out


def test_a_dataset_that_is_not_there_is_named(server, capsys):
    arguments = [f"--url={server.grpc_url}", "--model=bert4rec", "--mode=test"]
    assert client([*arguments, "--dataset=absent"]) == 2
    assert "absent/item_map.parquet" in capsys.readouterr().err


def test_lists_that_are_too_short_are_refused():
    sequences, signature = make_sequences(), bert4rec_signature(5)
    with pytest.raises(ValueError, match="deploy it with `top_k` 10 or more"):
        score_served_split(sequences, "test", signature, iter, 16, None, causal=False)


@pytest.mark.parametrize("model", ["bert4rec", "named", "exported"])
def test_a_load_is_made_of_the_users_of_a_dataset(server, ratings, model, capsys):
    arguments = [f"--url={server.grpc_url}", f"--model={model}", "--mode=load"]
    arguments += [f"--dataset={ratings}", "--batch_sizes=1,16", "--concurrency=2"]
    assert client([*arguments, "--seconds=0.3"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    found = [list(map(float, row.replace(",", "").split())) for row in rows]
    assert [row[:2] for row in found] == [[1, 2], [16, 2]]
    assert all(row[2] > 0 for row in found)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("bert4rec", "bert4rec takes at most 256 rows"),
        ("exported", "exported takes at most 16 row"),
    ],
)
def test_a_load_leaves_out_sizes_that_nobody_asked_for(server, ratings, model, reason, capsys):
    arguments = [f"--url={server.grpc_url}", f"--model={model}", "--mode=load"]
    arguments += [f"--dataset={ratings}", "--seconds=0.2"]
    assert client(arguments) == 0
    said = capsys.readouterr().out
    assert f"Without 4096 rows a request: {reason}" in said
    rows = [line for line in said.splitlines() if line.split()[0].isdecimal()]
    assert [line.split()[0] for line in rows] == ["1"]
    assert f"{ratings} has fewer rows" in said or model == "exported"
    for sizes, refused in (
        ("1,4096", f"--batch_sizes 4096: {reason}"),
        ("1,250", f"--batch_sizes 250: {ratings} has fewer rows"),
    ):
        if model == "bert4rec":
            assert client([*arguments, f"--batch_sizes={sizes}"]) == 2
            answer = capsys.readouterr()
            assert refused in answer.err
            assert answer.out == ""


def test_short_histories_are_filled_up(server, tmp_path, capsys):
    request = tmp_path / "request.json"
    for model, histories in (
        ("bert4rec", [[1, 2], [3]]),
        ("named", [[raw_id(1), raw_id(2)], [raw_id(3)]]),
    ):
        alone = [{"history": [history]} for history in histories]
        together = [{"history": histories}]
        answers = []
        for requests in (alone, together):
            request.write_text("".join(json.dumps(values) + "\n" for values in requests))
            url = f"--url={server.grpc_url}"
            assert client([url, f"--model={model}", f"--request={request}"]) == 0
            lines = capsys.readouterr().out.splitlines()
            answers.append([row for line in lines for row in json.loads(line)["items"]])
        assert answers[0] == answers[1]


def arrival_rows(server, ratings, capsys, *flags):
    arguments = [f"--url={server.grpc_url}", "--model=bert4rec", "--mode=load", *flags]
    assert client([*arguments, f"--dataset={ratings}", "--batch_sizes=1", "--concurrency=4"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    return lines


def numbers(line):
    return [float(word) for word in re.sub("[,%]", "", line).split()]


def test_requests_arrive_at_a_rate_whatever_the_server_does(server, ratings, capsys):
    (line,) = arrival_rows(server, ratings, capsys, "--request_rate=20", "--seconds=1")
    batch, rate, clients, p50, p90, p99, rows_per_s, answered = numbers(line)
    assert (batch, rate, clients) == (1, 20, 4)
    assert 0 < answered <= 100
    assert 0 < p50 <= p90 <= p99
    assert 5 < rows_per_s < 80
    # Far too many: the last one waits for all before it, though the server is as fast as ever.
    (line,) = arrival_rows(server, ratings, capsys, "--request_rate=20000", "--seconds=0.05")
    _, _, _, _, _, overloaded, rows_per_s, answered = numbers(line)
    assert answered < 50
    assert overloaded == pytest.approx(1e6 / rows_per_s, rel=0.3)  # of 1,000 requests, in ms


def test_the_largest_rate_within_a_latency_is_searched(server, ratings, capsys):
    flags = ("--request_rate=50", "--seconds=0.3", "--p99_ms=150")
    *tried, last = arrival_rows(server, ratings, capsys, *flags)
    rates = {numbers(line)[1]: numbers(line)[5] for line in tried}
    best = max(rate for rate, p99 in rates.items() if p99 <= 150)
    assert last.startswith(f"p99 within 150 ms up to {best:,.0f}/s")
    assert max(rates) > best


@pytest.mark.parametrize("model", ["bert4rec", "named"])
def test_histories_for_perf_analyzer_are_answered(server, ratings, model, tmp_path):
    file = tmp_path / "histories.json"
    arguments = [f"--url={server.grpc_url}", f"--model={model}", "--mode=perf_input"]
    assert client([*arguments, f"--dataset={ratings}", f"--perf_input={file}"]) == 0
    with server.endpoint(model) as endpoint:
        replayed = list(replay(endpoint, file))
    assert len(replayed) == NUM_USERS
    lengths = {request["history"].shape[1] for request, _ in replayed}
    assert len(lengths) > 1
