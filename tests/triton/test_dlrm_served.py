# SPDX-License-Identifier: Apache-2.0
"""A deployed DLRM on a real server: answers, refusals, and the client's program."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from pyarrow import parquet

from dlrm.model.weights import OpenedCheckpoint
from recsys.data.split_binary import SplitBinaryReader
from recsys.serve.client.connection import Endpoint, EndpointError, predict_in_order
from recsys.serve.client.requests import BadRequestError
from recsys.serve.server.process import ServerSettings, TritonServer
from recsys.serve.signature import dlrm_signature
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS, make_program
from tests.triton.conftest import client, deploy, replay, run

pytestmark = pytest.mark.triton_server

MAX_BATCH_SIZE = 512


@pytest.fixture(scope="module")
def server(dlrm_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    deploy(dlrm_checkpoint, folder / "models", f"--max_batch_size={MAX_BATCH_SIZE}")
    with TritonServer(ServerSettings(repository=folder / "models"), folder / "log") as server:
        server.wait_ready()
        yield server


@pytest.fixture(params=["grpc", "http"])
def endpoint(server, request):
    url = server.grpc_url if request.param == "grpc" else server.http_url
    with Endpoint(url, "dlrm", protocol=request.param) as endpoint:
        yield endpoint


def draw(rows, seed=0):
    generator = np.random.default_rng(seed)
    return {
        "numerical": generator.normal(size=(rows, NUM_NUMERICAL)).astype(np.float32),
        "categorical": generator.integers(0, CARDINALITIES, (rows, len(CARDINALITIES)), np.int64),
    }


@pytest.fixture(scope="module")
def offline(dlrm_checkpoint):
    model = OpenedCheckpoint.open(dlrm_checkpoint).load()

    @torch.inference_mode()
    def answer(request):
        logits = model(*(torch.from_numpy(request[n]) for n in ("numerical", "categorical")))
        return logits.numpy()[:, None], torch.sigmoid(logits).numpy()[:, None]

    return answer


def test_the_server_says_what_the_model_takes(endpoint):
    assert endpoint.signature == dlrm_signature(NUM_NUMERICAL, len(CARDINALITIES))
    assert endpoint.max_batch_size == MAX_BATCH_SIZE


@pytest.mark.parametrize("rows", [1, 2, 64, MAX_BATCH_SIZE])
def test_answers_equal_the_checkpoint(endpoint, offline, rows):
    request = draw(rows, rows)
    found = endpoint.predict(request)
    logits, probabilities = offline(request)
    assert found["logit"].shape == (rows, 1)
    # The kernels of training, on the same rows: the order of a sum may depend on their number.
    np.testing.assert_allclose(found["logit"], logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["probability"], probabilities, rtol=0, atol=1e-5)


def test_answers_are_those_of_a_file_of_predictions(endpoint, dlrm_checkpoint, dataset, tmp_path):
    """All rows of the test split, as `--mode predict` writes them."""
    file = tmp_path / "predictions.parquet"
    make_program(tmp_path)(
        *("--mode=predict", f"--dataset={dataset}", f"--load_checkpoint_path={dlrm_checkpoint}"),
        f"--predictions={file}",
    )
    rows = SplitBinaryReader(dataset, "test").read(0, ROWS["test"])
    ids = np.stack(rows.categorical, axis=1).astype(np.int64)
    requests = [
        {
            "numerical": rows.numerical[start : start + MAX_BATCH_SIZE].astype(np.float32),
            "categorical": ids[start : start + MAX_BATCH_SIZE],
        }
        for start in range(0, len(rows), MAX_BATCH_SIZE)
    ]
    answers = [endpoint.predict(request) for request in requests]
    table = parquet.read_table(file)
    for name in ("logit", "probability"):
        served = np.concatenate([answer[name][:, 0] for answer in answers])
        np.testing.assert_allclose(served, table[name].to_numpy(), rtol=0, atol=1e-5)


def test_requests_that_the_server_puts_together_keep_their_answers(endpoint, offline):
    requests = [draw(1 + i % 7, i) for i in range(60)]
    answers = list(predict_in_order(endpoint, requests, concurrency=8))
    assert len(answers) == len(requests)
    for request, found in zip(requests, answers, strict=True):
        np.testing.assert_allclose(found["logit"], offline(request)[0], rtol=0, atol=1e-5)


def changed(rows=4, **arrays):
    return {**draw(rows), **arrays}


def with_value(name, row, feature, value):
    request = draw(4)
    request[name][row, feature] = value
    return request


NUMERICAL_4 = np.zeros((4, NUM_NUMERICAL), np.float32)

BAD = {
    "too few features": (
        changed(numerical=NUMERICAL_4[:, :2]),
        r"unexpected shape for input 'numerical'",
        r"input 'numerical': expected shape \[rows, 3\], got \[4, 2\]",
    ),
    "no batch dimension": (
        {"numerical": NUMERICAL_4[0], "categorical": np.zeros(len(CARDINALITIES), np.int64)},
        r"batch size does not match|unexpected shape",
        r"expected shape \[rows, 3\], got \[3\]",
    ),
    "different numbers of rows": (
        changed(numerical=NUMERICAL_4[:2]),
        r"batch size does not match other inputs",
        r"differ in their number of rows: numerical 2, categorical 4",
    ),
    "float64": (
        changed(numerical=NUMERICAL_4.astype(np.float64)),
        r"data-type is 'FP64', but model 'dlrm' expects 'FP32'",
        r"input 'numerical': expected float32, got float64; values are not converted",
    ),
    "int32 ids": (
        changed(categorical=np.zeros((4, len(CARDINALITIES)), np.int32)),
        r"data-type is 'INT32', but model 'dlrm' expects 'INT64'",
        r"input 'categorical': expected int64, got int32",
    ),
    "unknown input": (
        changed(cat=NUMERICAL_4),
        r"unexpected inference input 'cat'|expected 2 inputs but got 3",
        r"unknown input 'cat'; the model takes categorical, numerical",
    ),
    "missing input": (
        {"numerical": NUMERICAL_4},
        r"expected 2 inputs but got 1 .*'categorical'",
        r"input 'categorical' is missing",
    ),
    "too many rows": (
        draw(MAX_BATCH_SIZE + 1),
        r"batch-size must be <= 512",
        r"513 rows are more than the 512 that dlrm takes",
    ),
    "no row": (
        draw(0),
        r"got 0",  # the server speaks of bytes
        r"the request holds no row",
    ),
    "NaN": (
        with_value("numerical", 2, 1, np.nan),
        r"input 'numerical', row 2, feature 1: nan is no finite number",
        r"input 'numerical', row 2, feature 1: nan is no finite number",
    ),
    "infinity": (
        with_value("numerical", 0, 0, np.inf),
        r"input 'numerical', row 0, feature 0: inf is no finite number",
        r"input 'numerical', row 0, feature 0: inf is no finite number",
    ),
    "finite, but the answer is not": (
        changed(numerical=np.where(np.arange(4)[:, None] == 2, np.float32(3e38), NUMERICAL_4)),
        r"output '\w+', row 2: \S+ is no finite number; an input of the row is too large",
        None,
    ),
    "id past its table": (
        with_value("categorical", 3, 1, CARDINALITIES[1]),
        r"input 'categorical', row 3, feature 1: 200 is not in \[0, 200\)",
        None,  # the server alone knows the tables
    ),
    "negative id": (
        with_value("categorical", 1, 0, -1),
        r"input 'categorical', row 1, feature 0: -1 is not in \[0, 5\)",
        None,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_gets_its_error_and_the_server_goes_on(endpoint, offline, case):
    request, from_server, from_client = BAD[case]
    with pytest.raises(EndpointError, match=from_server) as refused:
        endpoint.send(request)
    assert refused.value.status == ("INVALID_ARGUMENT" if endpoint.protocol == "grpc" else "400")
    if from_client is not None:
        with pytest.raises(BadRequestError, match=from_client):
            endpoint.predict(request)
    good = draw(3)
    np.testing.assert_allclose(endpoint.predict(good)["logit"], offline(good)[0], rtol=0, atol=1e-5)


def test_a_bad_request_does_not_harm_those_it_is_put_together_with(server, offline):
    with Endpoint(server.grpc_url, "dlrm") as endpoint:
        bad = with_value("categorical", 1, 0, -1)
        requests = [bad if i % 3 == 0 else draw(2, i) for i in range(40)]

        def answer(request):
            with endpoint.again() as own:
                try:
                    return own.send(request)["logit"]
                except EndpointError as error:
                    return error

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(answer, requests))
    for request, found in zip(requests, answers, strict=True):
        if request is bad:
            assert "row 1, feature 0" in str(found)
        else:
            np.testing.assert_allclose(found, offline(request)[0], rtol=0, atol=1e-5)


def test_unknown_models_versions_and_servers(server):
    for arguments in (("absent",), ("dlrm", "7")):
        with pytest.raises(EndpointError) as refused:
            Endpoint(server.grpc_url, *arguments)
        assert refused.value.status in ("NOT_FOUND", "UNAVAILABLE")
        with pytest.raises(EndpointError):
            Endpoint(server.http_url, *arguments, protocol="http")
    for protocol in ("grpc", "http"):
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9"):
            Endpoint("127.0.0.1:9", "dlrm", protocol=protocol, timeout_s=5)


def test_the_client_program_scores_a_split_as_the_checkpoint(
    server, dataset, dlrm_checkpoint, tmp_path
):
    said = run(
        "triton/client.py",
        f"--url={server.http_url}",
        "--protocol=http",
        "--mode=test",
        f"--dataset={dataset}",
        f"--checkpoint={dlrm_checkpoint}",
        "--concurrency=2",
    )
    served, of_checkpoint = said.splitlines()
    assert served.startswith(f"{ROWS['test']} rows: auc 0.")
    records = make_program(tmp_path)(
        "--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={dlrm_checkpoint}", model=()
    )
    auc = f"auc {records[-1]['data']['auc']:.6f}"
    assert auc in served
    assert auc in of_checkpoint


def test_the_client_program_finds_out_a_checkpoint_that_was_not_deployed(
    server, dataset, tmp_path, capsys
):
    make_program(tmp_path)(
        f"--dataset={dataset}", f"--save_checkpoint_path={tmp_path}/a", "--max_steps=2"
    )
    code = client(
        [
            f"--url={server.grpc_url}",
            "--mode=test",
            f"--dataset={dataset}",
            f"--checkpoint={tmp_path}/a",
        ]
    )
    assert code == 1
    assert "the server does not answer as" in capsys.readouterr().err


def test_the_client_program_answers_requests_and_refuses_bad_ones(
    server, offline, tmp_path, capsys
):
    url = f"--url={server.grpc_url}"
    assert client([url]) == 0
    said = capsys.readouterr().out
    assert "takes numerical: float32 [rows, 3]" in said
    assert "gives probability: float32 [rows, 1]" in said
    request = draw(2)
    file = tmp_path / "requests"
    good = json.dumps({name: array.tolist() for name, array in request.items()})
    file.write_text(f"{good}\n\n{good}\n")
    assert client([url, f"--request={file}"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2
    np.testing.assert_allclose(answers[1]["logit"], offline(request)[0], rtol=0, atol=1e-5)
    for bad, message in (
        ('{"numerical": [[1, 2, 3]]}', "input 'categorical' is missing"),
        ("[1]", "expected an object"),
        ("{", "not JSON: Expecting property name"),
        ("1\t2", 'a request is an object {"numerical": [...], "categorical": [...]}'),
        (
            '{"numerical": [[1, 2, 3], [1]]}',
            "expected [3] in each row, got 3 values in row 0 and 1 ",
        ),
        ('{"numerical": [[1, 2, 3]], "categorical": [[0, 0, 0, 0.5]]}', "expected whole numbers"),
        ('{"numerical": [["a", 2, 3]], "categorical": [[0, 0, 0, 0]]}', "input 'numerical'"),
        ('{"numerical": [[1, 2, 3]], "categorical": [[9, 0, 0, 0]]}', "9 is not in [0, 5)"),
    ):
        file.write_text(bad)
        assert client([url, f"--request={file}"]) == 2
        assert message in capsys.readouterr().err
    assert client([url, f"--request={tmp_path / 'absent'}"]) == 2
    assert f"--request {tmp_path / 'absent'}: No such file" in capsys.readouterr().err


def test_the_client_program_measures_a_load(server, dataset, capsys):
    arguments = [f"--url={server.grpc_url}", "--mode=load", f"--dataset={dataset}"]
    arguments += ["--batch_sizes=1,16", "--concurrency=1,4", "--seconds=0.5"]
    assert client(arguments) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["batch", "clients"]
    figures = [list(map(float, row.replace(",", "").split())) for row in rows]
    assert [row[:2] for row in figures] == [[1, 1], [1, 4], [16, 1], [16, 4]]
    for batch, _, p50, p90, p99, rows_per_s, requests_per_s, _, compute, together in figures:
        assert 0 < p50 <= p90 <= p99
        assert rows_per_s == pytest.approx(batch * requests_per_s, rel=0.01, abs=20)
        assert compute > 0
        assert together >= 1


def test_rows_for_perf_analyzer_are_those_of_the_dataset(endpoint, dataset, tmp_path, capsys):
    file = tmp_path / "rows.json"
    common = [f"--url={endpoint.url}", f"--protocol={endpoint.protocol}", "--mode=perf_input"]
    common += [f"--perf_input={file}"]
    assert client([*common, f"--dataset={dataset}", "--perf_rows=70"]) == 0
    assert capsys.readouterr().out == f"{file}: 70 rows for perf_analyzer --input-data\n"
    replayed = list(replay(endpoint, file))
    rows = SplitBinaryReader(dataset, "test").read(0, 70)
    for name, values in (
        ("numerical", np.asarray(rows.numerical, np.float32)),
        ("categorical", np.stack(rows.categorical, axis=1).astype(np.int64)),
    ):
        np.testing.assert_array_equal([request[name][0] for request, _ in replayed], values)
    requests = tmp_path / "requests.json"
    text = {name: values.tolist() for name, values in draw(3).items()}
    requests.write_text(json.dumps(text) + "\n" + json.dumps(text) + "\n")
    assert client([*common, f"--request={requests}", "--perf_rows=5"]) == 0
    assert len(list(replay(endpoint, file))) == 5
    requests.write_text("\n")
    assert client([*common, f"--request={requests}"]) == 2
    assert "holds no row" in capsys.readouterr().err
    assert client(common) == 2
    assert "--mode perf_input needs --dataset, or --request" in capsys.readouterr().err
    assert client([common[0], f"--perf_input={file}"]) == 2
    assert "--mode perf_input and the file --perf_input go together" in capsys.readouterr().err
