# SPDX-License-Identifier: Apache-2.0
"""The client's program beside a deployed BERT4Rec: its figures are those of the offline test."""

import json
import re
import urllib.request

import numpy as np
import pytest

from recsys.data.sequences.histories import Sequences
from recsys.ratings.served_split import score_served_split
from recsys.serve.client.arrivals import arrival_times
from recsys.serve.signature import ratings_signature
from tests.bert4rec.conftest import (
    NUM_ITEMS,
    NUM_USERS,
    make_program,
    make_sequences,
    raw_id,
    write_dataset,
)
from tests.harness import assert_tells, refusal
from tests.triton.conftest import replay, title

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
    server, ratings, bert4rec_run, of_the_test, model, protocol, ask
):
    url = server.grpc_url if protocol == "grpc" else server.http_url
    paths = (f"--dataset={ratings}", f"--checkpoint={bert4rec_run}")
    flags = (f"--protocol={protocol}", f"--model={model}", "--batch_size=7", "--concurrency=3")
    served, of_checkpoint = ask("--mode=test", *paths, *flags, url=url).splitlines()
    assert_tells(served, NUM_USERS, "version 1")
    assert figures(served) == of_the_test
    assert figures(of_checkpoint) == of_the_test


@pytest.fixture
def answers(ask, tmp_path):
    """Sends lines of histories of items to a model; returns its replies."""

    def answers(model, *lines):
        request = tmp_path / "request.json"
        of = raw_id if model == "named" else int
        named = [{"history": [list(map(of, history)) for history in line]} for line in lines]
        request.write_text("".join(json.dumps(each) + "\n" for each in named))
        said = ask(f"--model={model}", f"--request={request}")
        return [json.loads(line) for line in said.splitlines()]

    return answers


def test_raw_ids_and_titles_are_answered_as_text(answers):
    (numbered,), (named,) = (answers(model, [[3, 4]]) for model in ("bert4rec", "named"))
    (items,) = numbered.pop("items")
    assert named == numbered | {"items": [[*map(raw_id, items)]], "titles": [[*map(title, items)]]}


@pytest.mark.parametrize("model", ["bert4rec", "named"])
def test_short_histories_are_filled_up(answers, model):
    alone = [reply["items"][0] for reply in answers(model, [[1, 2]], [[3]])]
    (together,) = answers(model, [[1, 2], [3]])
    assert alone == together["items"]


@pytest.mark.parametrize("bad", ['"false"', "null", "0"])
def test_what_is_no_truth_value_is_refused(ask, tmp_path, bad):
    request = tmp_path / "request.json"
    request.write_text(f'{{"history": [[1], [2]], "exclude_seen": [[true], [{bad}]]}}')
    said = ask("--model=bert4rec", f"--request={request}", status=2)
    assert_tells(said, f"{request}:1", "'exclude_seen'", "row 1", "feature 0", "true", bad)


def test_a_model_without_raw_ids_says_so(ask):
    for model, says in (("bert4rec", True), ("exported", True), ("named", False)):
        assert ("--raw_ids" in ask(f"--model={model}")) is says


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


def test_a_network_of_fixed_places_is_compared_by_what_it_is_sent(ask, ratings, bert4rec_run):
    paths = (f"--dataset={ratings}", f"--checkpoint={bert4rec_run}")
    said = ask("--model=exported", "--mode=test", *paths, "--eval_split=validation")
    served, of_checkpoint = said.splitlines()
    assert figures(served) == figures(of_checkpoint)
    assert float(figures(served)["hr@10"]) > 0.5


def test_what_was_not_deployed_is_found_out(ask, ratings, bert4rec_run, tmp_path):
    program, other = make_program(tmp_path), tmp_path / "other"
    program(f"--dataset_path={ratings}", f"--export_root={other}", "--max_steps=2")
    common = ("--model=bert4rec", "--mode=test")
    said = ask(*common, f"--dataset={ratings}", f"--checkpoint={other}", status=1)
    assert_tells(said, other, "version 1")
    items = np.tile(np.arange(1, NUM_ITEMS + 1, dtype=np.int32), 2)
    write_dataset(tmp_path / "data", Sequences(items, np.array([0, len(items)]), NUM_ITEMS))
    common = (*common, f"--dataset={tmp_path / 'data'}")
    said = ask(*common, f"--checkpoint={bert4rec_run}", status=2)
    assert_tells(said, tmp_path / "data", "--dataset")
    # The one user met the true item before, and cannot be recommended it.
    served, met, _ = ask(*common).splitlines()
    assert figures(served) == {"hr@10": "0.000000", "ndcg@10": "0.000000"}
    assert_tells(met, 1)
    said = ask("--model=bert4rec", "--mode=test", "--dataset=absent", status=2)
    assert_tells(said, "absent/item_map.parquet")


def test_lists_that_are_too_short_are_refused():
    sequences, signature = make_sequences(), ratings_signature(5)
    with refusal("`top_k` 10"):
        score_served_split(sequences, "test", signature, iter, 16, None)


def load_rows(ask, ratings, model, *flags):
    """Measures a load of the users of a dataset; returns what is printed below the head."""
    said = ask(f"--model={model}", "--mode=load", f"--dataset={ratings}", *flags)
    return said.splitlines()[1:]


def numbers(line):
    return [float(word) for word in re.sub("[,%]", "", line).split()]


@pytest.mark.parametrize("model", ["named", "exported"])
def test_a_load_is_made_of_the_users_of_a_dataset(ask, ratings, model):
    flags = ("--batch_sizes=1,16", "--concurrency=2", "--seconds=0.3")
    rows = list(map(numbers, load_rows(ask, ratings, model, *flags)))
    assert [row[:2] for row in rows] == [[1, 2], [16, 2]]
    assert all(row[2] > 0 for row in rows)


def test_a_load_leaves_out_sizes_that_nobody_asked_for(ask, ratings):
    arguments = ("--mode=load", f"--dataset={ratings}", "--seconds=0.2")
    for model, most in (("bert4rec", 256), ("exported", 16)):
        said = ask(f"--model={model}", *arguments)
        assert_tells(said, "4096 rows", model, f"{most} rows")
        rows = [line for line in said.splitlines() if line.split()[0].isdecimal()]
        assert [line.split()[0] for line in rows] == ["1"]
    for sizes, *facts in (("1,4096", 4096, "256 rows"), ("1,250", 250, ratings)):
        said = ask("--model=bert4rec", *arguments, f"--batch_sizes={sizes}", status=2)
        assert_tells(said, "--batch_sizes", *facts)


ARRIVALS = ("bert4rec", "--batch_sizes=1", "--concurrency=4")


def test_requests_arrive_at_a_rate_whatever_the_server_does(ask, ratings):
    (line,) = load_rows(ask, ratings, *ARRIVALS, "--request_rate=20", "--seconds=1")
    batch, rate, clients, p50, p90, p99, rows_per_s, answered = numbers(line)
    assert (batch, rate, clients) == (1, 20, 4)
    assert 0 < answered <= 100
    assert 0 < p50 <= p90 <= p99
    # Those that arrived in the time until the last one arrived, whatever the server takes longer.
    arriving = 20 / arrival_times(20, 1, seed=0)[-1]
    assert rows_per_s == pytest.approx(arriving * answered / 100, abs=0.6)
    # Far too many: the last one waits for all before it, though the server is as fast as ever.
    (line,) = load_rows(ask, ratings, *ARRIVALS, "--request_rate=20000", "--seconds=0.05")
    _, _, _, _, _, overloaded, rows_per_s, answered = numbers(line)
    assert answered < 50
    assert overloaded == pytest.approx(1e6 / rows_per_s, rel=0.3)  # of 1,000 requests, in ms


def test_the_largest_rate_within_a_latency_is_searched(ask, ratings):
    # A busy machine takes over 150 ms for a single request.
    flags = ("--request_rate=50", "--seconds=0.2", "--p99_ms=1000")
    *tried, last = load_rows(ask, ratings, *ARRIVALS, *flags)
    rates = {numbers(line)[1]: numbers(line)[5] for line in tried}
    best = max(rate for rate, p99 in rates.items() if p99 <= 1000)
    assert_tells(last, "1000 ms", f"{best:,.0f}/s")
    assert max(rates) > best


@pytest.mark.parametrize("model", ["bert4rec", "named"])
def test_histories_for_perf_analyzer_are_answered(server, ask, ratings, model, tmp_path):
    file = tmp_path / "histories.json"
    ask(f"--model={model}", "--mode=perf_input", f"--dataset={ratings}", f"--perf_input={file}")
    with server.endpoint(model) as endpoint:
        replayed = list(replay(endpoint, file))
    assert len(replayed) == NUM_USERS
    lengths = {request["history"].shape[1] for request, _ in replayed}
    assert len(lengths) > 1
