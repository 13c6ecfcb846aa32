# SPDX-License-Identifier: Apache-2.0
"""A deployed DLRM on a real server, by two backends: answers, refusals, the client's program."""

import errno
import functools
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from recsys.data.split_binary import SplitBinaryReader
from recsys.serve.client.connection import Endpoint, EndpointError, predict_in_order
from recsys.serve.client.requests import BadRequestError
from recsys.serve.server.instances import find_instances
from recsys.serve.signature import clicks_signature
from tests import harness
from tests.dlrm import deployed
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS, make_program
from tests.dlrm.deployed import with_value
from tests.harness import assert_tells, refusal
from tests.tools import needs
from tests.triton.conftest import MAX_BATCH_SIZE, deploy, replay

pytestmark = pytest.mark.triton_server

FLAGS = {
    "dlrm": (f"--max_batch_size={MAX_BATCH_SIZE}",),
    "native": (f"--max_batch_size={MAX_BATCH_SIZE}", "--backend=native", "--warmup=8"),
}
BACKENDS = ["dlrm", pytest.param("native", marks=needs("compiled Triton backend"))]


@pytest.fixture(scope="module")
def dlrm(server, dlrm_run):
    return server.serve("dlrm", dlrm_run, *FLAGS["dlrm"])


@pytest.fixture(scope="module", params=BACKENDS)
def model(server, dlrm_run, request):
    return server.serve(request.param, dlrm_run, *FLAGS[request.param])


@pytest.fixture(params=["grpc", "http"])
def endpoint(server, model, request):
    with server.endpoint(model, request.param) as endpoint:
        yield endpoint


WIDE = ("--tolerance=1e3", "--auc_tolerance=1")
draw = functools.partial(deployed.draw, table_sizes=CARDINALITIES, num_numerical=NUM_NUMERICAL)


def test_the_server_says_what_the_model_takes(endpoint):
    assert endpoint.signature == clicks_signature(NUM_NUMERICAL, len(CARDINALITIES))
    assert endpoint.max_batch_size == MAX_BATCH_SIZE
    with refusal(513, 512, kind=BadRequestError, settings=("max_batch_size",)):
        endpoint.predict(draw(MAX_BATCH_SIZE + 1))


@pytest.mark.parametrize("rows", [1, 2, 9, 64, MAX_BATCH_SIZE])
def test_answers_equal_the_checkpoint(endpoint, offline, rows):
    request = draw(rows, rows)
    found, logits = endpoint.predict(request), offline(request)
    assert found["logit"].shape == (rows, 1)
    # The kernels of training, on the same rows: the order of a sum may depend on their number.
    np.testing.assert_allclose(found["logit"], logits, rtol=0, atol=1e-5)
    probabilities = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found["probability"], probabilities, rtol=0, atol=1e-5)


ZEROS = np.zeros((4, NUM_NUMERICAL), np.float32)
TOO_LARGE = np.where(np.arange(4)[:, None] == 2, np.float32(3e38), ZEROS)
BAD = {
    "shape": (draw(4) | {"numerical": ZEROS[:, :2]}, "'numerical'"),
    "float64": (draw(4) | {"numerical": ZEROS.astype(np.float64)}, "'FP64'", "'FP32'"),
    "missing input": ({"numerical": ZEROS}, "'categorical'"),
    "too many rows": (draw(MAX_BATCH_SIZE + 1), 512),
    "no row": (draw(0), 0),  # the server speaks of bytes
    "finite, but the answer is not": (draw(4) | {"numerical": TOO_LARGE}, "output", "row 2"),
    "id past its table": (
        with_value(draw(4), "categorical", 3, 1, CARDINALITIES[1]),
        *("'categorical'", "row 3", "feature 1", 200, "[0, 200)"),
    ),
}
"""Requests that server or backend refuses, with facts; more in tests/dlrm/test_native.py."""


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_gets_its_error_and_the_server_goes_on(endpoint, offline, case):
    request, *facts = BAD[case]
    status = "INVALID_ARGUMENT" if endpoint.protocol == "grpc" else "400"
    with refusal(*facts, kind=EndpointError, status=status):
        endpoint.send(request)
    good = draw(3)
    np.testing.assert_allclose(endpoint.predict(good)["logit"], offline(good), rtol=0, atol=1e-5)


def test_a_bad_request_does_not_harm_those_it_is_put_together_with(server, model, offline):
    bad = with_value(draw(4), "categorical", 1, 0, -1)
    requests = [bad if i % 3 == 0 else draw(1 + i % 7, i) for i in range(120)]
    with server.endpoint(model) as endpoint:
        before = endpoint.times()

        def answer(request):
            with endpoint.again() as own:
                try:
                    return own.send(request)["logit"]
                except EndpointError as error:
                    return error

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(answer, requests))
        # To the server a request that a Python model refuses is one that was answered, and it
        # counts a request after the answer.
        counted = [r for r in requests if r is not bad or model != "native"]
        count = before.requests + len(counted)
        harness.wait_for(lambda: endpoint.times().requests >= count, "the count")
        times = endpoint.times().since(before)
    for request, found in zip(requests, answers, strict=True):
        if request is bad:
            assert "row 1, feature 0" in str(found)
        else:
            np.testing.assert_allclose(found, offline(request), rtol=0, atol=1e-5)
    assert times.requests == len(counted)
    assert times.rows == sum(len(request["numerical"]) for request in counted)
    assert 0 < times.executions <= len(requests)
    assert times.compute_s > 0


def test_unknown_models_versions_and_servers(server, dlrm):
    for arguments, flag in ((("absent",), "model"), ((dlrm, "7"), "version")):
        with pytest.raises(EndpointError) as refused:
            Endpoint(f"grpc://{server.grpc_url}", *arguments)
        assert refused.value.status in ("NOT_FOUND", "UNAVAILABLE")
        assert_tells(str(refused.value), *arguments, f"`{flag}`")
        with pytest.raises(EndpointError):
            Endpoint(server.http_url, *arguments, protocol="http")
    for protocol in ("grpc", "http"):
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9"):
            Endpoint("127.0.0.1:9", "dlrm", protocol=protocol, timeout_s=5)


@pytest.mark.usefixtures("dlrm")
def test_the_client_program_scores_a_split_as_the_checkpoint(
    server, ask, dataset, dlrm_run, tmp_path
):
    options = (f"--url={server.http_url}", "--protocol=http", "--mode=test", "--concurrency=2")
    paths = (f"--dataset={dataset}", f"--checkpoint={dlrm_run}")
    served, of_checkpoint = harness.forked(
        harness.REPOSITORY / "triton" / "client.py", *options, *paths
    ).stdout.splitlines()
    program, other = make_program(tmp_path), tmp_path / "other"
    records = program("--mode=test", paths[0], f"--load_checkpoint_path={dlrm_run}", model=())
    auc = f"auc {records[-1]['data']['auc']:.6f}"
    assert_tells(served, ROWS["test"], auc, "version 1")
    assert auc in of_checkpoint
    program(paths[0], f"--save_checkpoint_path={other}", "--max_steps=2")
    said = ask("--mode=test", paths[0], f"--checkpoint={other}", status=1)
    assert_tells(said, other, "version 1", "--tolerance 1e-05")  # it was not deployed
    assert_tells(ask("--mode=test", paths[0]), "--checkpoint")
    assert ask("--mode=test", paths[0], f"--checkpoint={other}", *WIDE).count("auc") == 2


@pytest.mark.usefixtures("dlrm")
def test_the_client_program_answers_requests_and_refuses_bad_ones(ask, offline, tmp_path):
    said = ask()
    tensors = ("numerical: float32 [rows, 3]", "probability: float32 [rows, 1]")
    assert_tells(said, MAX_BATCH_SIZE, *tensors)
    request = draw(2)
    file = tmp_path / "requests"
    good = json.dumps({name: array.tolist() for name, array in request.items()})
    file.write_text(f"{good}\n\n{good}\n")
    answers = [json.loads(line) for line in ask(f"--request={file}").splitlines()]
    assert len(answers) == 2
    np.testing.assert_allclose(answers[1]["logit"], offline(request), rtol=0, atol=1e-5)
    form = '{"numerical": [...], "categorical": [...]}'
    for bad, *facts in (
        ('{"numerical": [[1, 2, 3]]}', "'categorical'"),
        ("[1]", form, "[1]"),
        ("{", "JSON", form),
        ("[" * 100_000, "JSON", form),
        ('{"numerical": "\\ud800"}', "JSON", "'utf-8'"),
        ('{"numerical": "\udcff"}', "JSON", "'utf-8'"),
        ("1\t2", "JSON", form),
        ('{"numerical": [[1, 2, 3], [1]]}', "'numerical'", "[3]", "row 0", "row 1"),
        ('{"numerical": 5}', "'numerical'", 5),
        ("{}", "'numerical'"),
        *(
            (
                f'{{"numerical": [[1, 2, 3]], "categorical": [[0, 0, 0, {bad}]]}}',
                *("'categorical'", "row 0", "feature 3", 64, bad),
            )
            for bad in ("0.5", "true", "null", '"1"', "9223372036854775808", "[1]", "NaN")
        ),
        *(
            (
                f'{{"numerical": [[1, 2, 3], [1, {bad}, 3]]}}',
                *("'numerical'", "row 1", "feature 1", bad, *limit),
            )
            for bad, *limit in (('"a"',), ("null",), ("true",), ("1e+39", "3.4e+38"))
        ),
        (
            '{"numerical": [[1, 2, 3]], "categorical": [[9, 0, 0, 0]]}',
            *("'categorical'", "row 0", "feature 0", 9, "[0, 5)"),
        ),
    ):
        file.write_text(f"{good}\n{bad}\n{good}\n", errors="surrogateescape")
        said = ask(f"--request={file}", status=2)
        assert said.count("logit") == 1  # of the first line; the third was not sent
        assert_tells(said.partition(f"error: --request {file}:2: ")[2], *facts)
    file.write_text("\n")
    assert_tells(ask(f"--request={file}", status=2), f"--request {file}")
    absent = tmp_path / "absent"
    said = ask(f"--request={absent}", status=2)
    assert_tells(said, f"--request {absent}", os.strerror(errno.ENOENT))


@pytest.mark.usefixtures("dlrm")
def test_the_client_program_measures_a_load(ask, dataset, tmp_path):
    sizes = ("--batch_sizes=1,16", "--concurrency=1,4", "--seconds=0.5")
    head, *rows = ask("--mode=load", f"--dataset={dataset}", *sizes).splitlines()
    assert head.split()[:2] == ["batch", "clients"]
    figures = [list(map(float, row.replace(",", "").split())) for row in rows]
    assert [row[:2] for row in figures] == [[1, 1], [1, 4], [16, 1], [16, 4]]
    for batch, _, p50, p90, p99, rows_per_s, requests_per_s, _, compute, together in figures:
        assert 0 < p50 <= p90 <= p99
        assert rows_per_s == pytest.approx(batch * requests_per_s, rel=0.01, abs=20)
        assert compute > 0
        assert together >= 1
    file = tmp_path / "requests"
    lines = ({name: array.tolist() for name, array in draw(rows).items()} for rows in (1, 30))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    of_file = ("--mode=load", f"--request={file}", "--seconds=0.5")
    for flags in ((), ("--request_rate=40",)):
        batch, *_ = ask(*of_file, *flags).splitlines()[1].split()
        assert 1 < float(batch) < 30  # the mean of both lines
    assert_tells(ask(*of_file, "--batch_sizes=1", status=2), "--batch_sizes", "--dataset")


def test_rows_for_perf_analyzer_are_those_of_the_dataset(server, dlrm, ask, dataset, tmp_path):
    file, requests = tmp_path / "rows.json", tmp_path / "requests.json"
    common = ("--mode=perf_input", f"--perf_input={file}")
    said = ask(*common, f"--dataset={dataset}", "--perf_rows=70")
    assert_tells(said, file, "70 rows", "--input-data")
    with server.endpoint(dlrm) as endpoint:
        replayed = list(replay(endpoint, file))
    rows = SplitBinaryReader(dataset, "test").read(0, 70)
    for name, values in (
        ("numerical", np.asarray(rows.numerical, np.float32)),
        ("categorical", np.stack(rows.categorical, axis=1).astype(np.int64)),
    ):
        np.testing.assert_array_equal([request[name][0] for request, _ in replayed], values)
    text = json.dumps({name: values.tolist() for name, values in draw(3).items()})
    requests.write_text(f"{text}\n{text}\n")
    ask(*common, f"--request={requests}", "--perf_rows=5")
    assert len(json.loads(file.read_text())["data"]) == 5
    requests.write_text("\n")
    assert_tells(ask(*common, f"--request={requests}", status=2), f"--request {requests}")


@pytest.fixture(scope="module")
def side_by_side(server, dlrm, dlrm_run):
    """Both backends, and the native one without batching."""
    server.serve("native", dlrm_run, *FLAGS["native"])
    unbatched = ("--max_batch_size=0", "--nodynamic_batching", "--instances=2", "--threads=2")
    server.serve("native_unbatched", dlrm_run, "--backend=native", *unbatched, "--warmup=8")


@needs("compiled Triton backend")
@pytest.mark.usefixtures("side_by_side")
def test_rows_that_differ_are_refused(server):
    request = draw(4) | {"numerical": draw(2)["numerical"]}
    rows = refusal("numerical 2", "categorical 4", kind=EndpointError, status="400")
    with server.endpoint("native_unbatched") as own:
        assert own.max_batch_size is None
        with rows:
            own.send(request)


@needs("compiled Triton backend")
@pytest.mark.usefixtures("side_by_side")
def test_native_instances_work_at_a_time_and_without_processes_of_their_own(server, offline):
    requests = [draw(200, i) for i in range(40)] + [draw(rows, rows) for rows in (1, 9)]
    with server.endpoint("native_unbatched") as endpoint:
        answers = list(predict_in_order(endpoint, requests, concurrency=4))
    for request, found in zip(requests, answers, strict=True):
        np.testing.assert_allclose(found["logit"], offline(request), rtol=0, atol=1e-5)
    models = {instance.model for instance in find_instances(server.pid)}
    assert models & {"dlrm", "native", "native_unbatched"} == {"dlrm"}


@needs("compiled Triton backend")
@pytest.mark.usefixtures("side_by_side")
def test_a_client_may_ask_for_one_output(server, offline):
    import tritonclient.grpc as grpc

    request = draw(3)
    inputs = []
    for name, array in request.items():
        kind = "FP32" if name == "numerical" else "INT64"
        inputs.append(grpc.InferInput(name, array.shape, kind))
        inputs[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(server.grpc_url) as client:
        outputs = [grpc.InferRequestedOutput("logit")]
        answer = client.infer("native", inputs, outputs=outputs)
    np.testing.assert_allclose(answer.as_numpy("logit"), offline(request), rtol=0, atol=1e-5)
    assert answer.as_numpy("probability") is None


@needs("compiled Triton backend")
@pytest.mark.usefixtures("side_by_side")
def test_a_version_that_does_not_load_leaves_the_server_and_names_its_file(server, dlrm_run):
    deploy(dlrm_run, server.repository, "--name=damaged", "--backend=native")
    weights = server.repository / "damaged" / "1" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(Exception, match=r"weights\.safetensors"):
        server.load("damaged")
    states = {model["name"]: model.get("state") for model in server.models()}
    assert states["damaged"] == "UNAVAILABLE"
    for again in (False, True):
        if again:
            server.unload("native")
            server.load("native")
        with server.endpoint("native") as endpoint:
            assert endpoint.predict(draw(2))["logit"].shape == (2, 1)
