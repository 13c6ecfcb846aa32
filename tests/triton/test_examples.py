# SPDX-License-Identifier: Apache-2.0
"""The examples of triton/examples, in three languages, beside this project's own client."""

import json
import shutil
import sys

import numpy as np
import pytest

from recsys.data.titles import write_titles
from recsys.serve.client.connection import Endpoint
from recsys.serve.server.process import ServerSettings, TritonServer
from tests import harness
from tests.bert4rec.conftest import NUM_ITEMS, dataset, raw_id, trained  # noqa: F401  (fixtures)
from tests.preproc.criteo.rows import good_text, without_labels
from tests.tools import needs, require
from tests.triton.conftest import deploy
from tests.triton.test_raw_rows_served import train

pytestmark = [
    pytest.mark.triton_server,
    needs("compiled Criteo kernel"),
]

EXAMPLES = harness.REPOSITORY / "triton" / "examples"
LINES = good_text(600, seed=5, vocabulary=60)


@pytest.fixture(scope="module")
def server(trained, dataset, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("examples")
    (folder / "clicks").mkdir()
    clicks, clicks_run = train(LINES, folder / "clicks", 400)
    titled = folder / "titled"
    shutil.copytree(dataset, titled)
    write_titles(titled, [f"Film № {item}" for item in range(1, NUM_ITEMS + 1)])
    models = folder / "models"
    deploy(clicks_run, models, "--raw", f"--dataset={clicks}", "--split=test")
    deploy(trained, models)
    deploy(trained, models, "--name=titled", f"--raw_ids={titled}", "--titles")
    with TritonServer(ServerSettings(repository=models), folder / "log") as server:
        server.wait_ready(300)
        yield server


def ask(server, language, *arguments, status=0):
    """Runs an example; returns its reply by output, or what it says on an error."""
    program = {"sh": "curl", "py": sys.executable, "mjs": "node"}[language]
    if language != "py":
        require(program)
    command = [EXAMPLES / "ask.sh"] if language == "sh" else [program, EXAMPLES / f"ask.{language}"]
    address = server.grpc_url if language == "py" else server.http_url
    done = harness.run(*command, address, *arguments, status=None)
    assert (done.returncode != 0) == bool(status), done.stdout + done.stderr
    if status:
        return done.stdout + done.stderr
    reply = json.loads(done.stdout)
    if language == "sh":
        return {output["name"]: np.ravel(output["data"]).tolist() for output in reply["outputs"]}
    return {name: np.ravel(values).tolist() for name, values in reply.items()}


LANGUAGES = pytest.mark.parametrize("language", ["sh", "py", "mjs"])


@LANGUAGES
def test_a_line_and_the_features_of_a_row(server, language):
    line = without_labels(LINES).split(b"\n")[500]
    with Endpoint(server.grpc_url, "dlrm") as endpoint:
        shapes = {tensor.name: tensor.shape[0] for tensor in endpoint.signature.inputs}
        numerical = np.arange(shapes["numerical"]) / 8
        categorical = np.arange(shapes["categorical"]) % 2
        of_line = endpoint.predict({"line": np.array([[line]], np.object_)})
        of_row = endpoint.predict(
            {"numerical": numerical[None].astype(np.float32), "categorical": categorical[None]}
        )
    features = (",".join(map(str, numerical)), ",".join(map(str, categorical)))
    for expected, *arguments in (
        (of_line, "line", line.decode()),
        (of_row, "features", *features),
    ):
        reply = ask(server, language, "dlrm", *arguments)
        assert reply.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(reply[name], values.ravel(), rtol=1e-6)


@LANGUAGES
def test_a_history_and_one_of_raw_ids_with_titles(server, language):
    with Endpoint(server.grpc_url, "bert4rec") as endpoint:
        expected = endpoint.predict({"history": np.array([[3, 4]])})
    reply = ask(server, language, "bert4rec", "history", "3,4")
    assert reply["items"] == expected["items"].ravel().tolist()
    np.testing.assert_allclose(reply["scores"], expected["scores"].ravel(), rtol=1e-6)
    titled = ask(server, language, "titled", "ids", f"{raw_id(3)},{raw_id(4)}")
    assert titled["items"] == [raw_id(item) for item in reply["items"]]
    assert titled["titles"] == [f"Film № {item}" for item in reply["items"]]


@LANGUAGES
def test_a_refused_request_says_why(server, language):
    said = ask(server, language, "dlrm", "line", "1\t2", status=1)
    assert "row 0: has 2 fields, expected 39" in said
    assert "features" in ask(server, language, "dlrm", status=2)
