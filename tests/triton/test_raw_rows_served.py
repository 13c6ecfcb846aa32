# SPDX-License-Identifier: Apache-2.0
"""A DLRM that takes raw rows on a real server: lines and fields, refusals, and deployments."""

import gzip
import json
import random

import numpy as np
import pytest
from pyarrow import parquet

from preproc.criteo.rules import CriteoSemantics, reject_reason
from recsys.data.split_binary import SplitBinaryReader
from recsys.serve.client.connection import Endpoint, EndpointError, predict_in_order
from recsys.serve.server.process import ServerSettings, TritonServer
from tests import harness
from tests.dlrm.conftest import make_program
from tests.preproc.criteo.rows import good_text, run, without_labels
from tests.tools import needs
from tests.triton.conftest import client, deploy, script

pytestmark = [
    pytest.mark.triton_server,
    needs("compiled Criteo kernel"),
]

MODEL = (
    "--embedding_dim=8",
    "--bottom_mlp_sizes=16,8",
    "--top_mlp_sizes=16,1",
    "--test_batch_size=512",
    "--max_steps=100",
)
RULES = {"frequency_limit": 2, "dictionary_days": "train", "bin_numerical": True}


def train(text, folder, train_rows):
    """Prepares rows and trains on the first of them; returns the dataset and the run."""
    (folder / "log").write_bytes(text)
    rules = CriteoSemantics(**RULES, split_rows=(train_rows, 0, -1))
    run(folder / "log", folder / "dataset", semantics=rules)
    program = make_program(folder)
    program(f"--dataset={folder / 'dataset'}", *MODEL, f"--save_checkpoint_path={folder / 'run'}")
    assert program.exit_code == 0
    return folder / "dataset", folder / "run"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    text = good_text(1500, seed=5, vocabulary=60)
    return *train(text, folder, 1000), without_labels(text).splitlines()[1000:]


@pytest.fixture(scope="module", params=["python", "native"])
def server(small, tmp_path_factory, request):
    dataset, checkpoint, _ = small
    folder = tmp_path_factory.mktemp("served")
    flags = ("--raw", f"--dataset={dataset}", "--split=test", f"--backend={request.param}")
    deploy(checkpoint, folder / "models", *flags)
    with TritonServer(ServerSettings(repository=folder / "models"), folder / "log") as server:
        server.wait_ready()
        yield server


@pytest.fixture(params=["grpc", "http"])
def endpoint(server, request):
    url = server.grpc_url if request.param == "grpc" else server.http_url
    with Endpoint(url, "dlrm", protocol=request.param) as endpoint:
        yield endpoint


def as_line(lines):
    return {"line": np.array(lines, np.object_)[:, None]}


def as_fields(lines):
    fields = [line.split(b"\t") for line in lines]
    return {
        "integers": np.array([[int(f or b"-7") for f in row[:13]] for row in fields], np.int64),
        "missing": np.array([[f == b"" for f in row[:13]] for row in fields]),
        "categories": np.array([row[13:] for row in fields], np.object_),
    }


def test_lines_fields_and_features_have_the_same_answers(endpoint, small):
    dataset, _, lines = small
    rows = SplitBinaryReader(dataset, "test").read(0, len(lines))
    features = {
        "numerical": np.asarray(rows.numerical, np.float32),
        "categorical": np.stack(rows.categorical, axis=1).astype(np.int64),
    }
    expected = endpoint.predict(features)
    for request in (as_line(lines), as_fields(lines)):
        answer = endpoint.predict(request)
        assert answer["logit"].tobytes() == expected["logit"].tobytes()
        assert answer["probability"].tobytes() == expected["probability"].tobytes()
    without_gaps = as_fields([line.replace(b"\t\t", b"\t1\t") for line in lines[:5]])
    del without_gaps["missing"]
    assert endpoint.predict(without_gaps)["logit"].shape == (5, 1)


@pytest.mark.parametrize(
    ("request_of", "message"),
    [
        (lambda lines: as_line([lines[0], b"1\t" + lines[1]]), "row 1: has 40 fields, expected 39"),
        (lambda lines: as_line(lines[:2]) | as_fields(lines[:2]), "a request has 'line', or"),
        (lambda lines: {"integers": as_fields(lines[:2])["integers"]}, "'categories' is missing"),
        (
            lambda lines: as_fields(lines[:2]) | {"integers": np.full((2, 13), 2**40)},
            r"row 0: field I\d+: '1099511627776' is refused \(integer\)",
        ),
        (
            lambda lines: as_fields(lines[:2]) | {"categories": np.full((2, 26), b"a\tb", object)},
            "row 0: field C1: holds a tab or a line feed",
        ),
    ],
)
def test_wrong_raw_rows_are_refused(endpoint, small, request_of, message):
    with pytest.raises((EndpointError, ValueError), match=message):
        endpoint.predict(request_of(small[2]))


def test_1000_malformed_lines_are_refused_by_their_field(server, small):
    draw = random.Random(11)
    wrong = []
    while len(wrong) < 1000:
        fields = draw.choice(small[2]).split(b"\t")
        field = draw.randrange(39)
        fields[field] = draw.choice([b"x", b"12 ", b"-", b"9999999999", b"123456789a", b"\xff"])
        line = b"\t".join(fields)
        reason = reject_reason(line, unlabelled=True)
        if reason is not None:
            name = f"I{field + 1}" if field < 13 else f"C{field - 12}"
            wrong.append((line, f"row 1: field {name}: ", f"({reason})"))
    with Endpoint(server.grpc_url, "dlrm") as endpoint:
        for line, where, reason in wrong:
            with pytest.raises(EndpointError) as caught:
                endpoint.predict(as_line([small[2][0], line]))
            assert where in str(caught.value)
            assert reason in str(caught.value)


@pytest.mark.slow
def test_20000_real_lines_have_the_answers_of_the_offline_path(real_data, tmp_path):
    text = gzip.decompress((real_data / "criteo_kaggle" / "sample_100k.tsv.gz").read_bytes())
    dataset, checkpoint = train(text, tmp_path, 80_000)
    lines = without_labels(text).removesuffix(b"\n").split(b"\n")[80_000:]
    file = tmp_path / "predictions.parquet"
    make_program(tmp_path)(
        *(f"--dataset={dataset}", *MODEL, "--mode=predict"),
        *(f"--load_checkpoint_path={checkpoint}", f"--predictions={file}"),
    )
    expected = parquet.read_table(file)["logit"].to_numpy()
    flags = ("--raw", f"--dataset={dataset}", "--split=test")
    deploy(checkpoint, tmp_path / "models", *flags)
    with TritonServer(ServerSettings(repository=tmp_path / "models"), tmp_path / "log") as server:
        server.wait_ready()
        with Endpoint(server.grpc_url, "dlrm") as endpoint:
            requests = (as_line(lines[i : i + 512]) for i in range(0, len(lines), 512))
            answers = predict_in_order(endpoint, requests, 4)
            logits = np.concatenate([answer["logit"][:, 0] for answer in answers])
    assert len(logits) == 20_000
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)


def test_the_client_sends_lines_of_a_file(server, small, tmp_path, capsys):
    requests = tmp_path / "requests.json"
    requests.write_text(json.dumps({"line": [[small[2][0].decode()]]}) + "\n")
    assert client([f"--url={server.grpc_url}", "--model=dlrm", f"--request={requests}"]) == 0
    assert '"probability"' in capsys.readouterr().out
    requests.write_bytes(small[2][0] + b"\n")
    assert client([f"--url={server.grpc_url}", "--model=dlrm", f"--request={requests}"]) == 2
    begins = small[2][0][:12].decode().replace("\t", "\\t")
    assert f'a request is an object {{"line": [["{begins}..."]]}}' in capsys.readouterr().err


def test_raw_rows_need_their_dataset(small, tmp_path, capsys):
    dataset, checkpoint, _ = small
    for flags, message in (
        ([], "--raw needs --dataset"),
        ([f"--dataset={dataset}", "--dataset_type=binary"], "--raw needs --dataset_type split"),
    ):
        arguments = (f"--checkpoint={checkpoint}", f"--repository={tmp_path / 'models'}", "--raw")
        assert harness.call(script("deployer"), *arguments, *flags) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "models" / "dlrm").exists()


def test_raw_rows_are_kept_by_later_deployments(small, tmp_path, capsys):
    dataset, checkpoint, _ = small
    models = tmp_path / "models"
    deploy(checkpoint, models, "--raw", f"--dataset={dataset}", "--split=test")
    arguments = (f"--checkpoint={checkpoint}", f"--repository={models}")
    assert harness.call(script("deployer"), *arguments) == 2
    assert "--raw needs --dataset" in capsys.readouterr().err
    deploy(checkpoint, models, f"--dataset={dataset}", "--split=test", "--format=torchscript")
    assert (models / "dlrm" / "2" / "features.bin").is_file()
    assert harness.call(script("deployer"), *arguments, "--noraw") == 2
    assert "share one configuration" in capsys.readouterr().err
