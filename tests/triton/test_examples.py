# SPDX-License-Identifier: Apache-2.0
"""The examples of triton/examples, in three languages, beside this project's own client."""

import json
import sys

import numpy as np
import pytest

from tests import harness
from tests.bert4rec.conftest import raw_id
from tests.tools import needs, require
from tests.triton.conftest import title

pytestmark = [
    pytest.mark.triton_server,
    needs("compiled Criteo kernel"),
]

EXAMPLES = harness.REPOSITORY / "triton" / "examples"


@pytest.fixture(scope="module", autouse=True)
def raw(server, clicks, recommenders):
    server.serve("raw_python", clicks.run, "--backend=python", *clicks.flags)


def ask(server, language, *arguments, status=0):
    """Runs an example; returns its reply by output, or what it says on an error."""
    program = {"sh": "curl", "py": sys.executable, "mjs": "node"}[language]
    if language != "py":
        require(program)
    command = [EXAMPLES / "ask.sh"] if language == "sh" else [program, EXAMPLES / f"ask.{language}"]
    done = harness.run(*command, server.http_url, *arguments, status=None)
    assert (done.returncode != 0) == bool(status), done.stdout + done.stderr
    if status:
        return done.stdout + done.stderr
    reply = json.loads(done.stdout)
    if language == "sh":
        return {output["name"]: np.ravel(output["data"]).tolist() for output in reply["outputs"]}
    return {name: np.ravel(values).tolist() for name, values in reply.items()}


LANGUAGES = pytest.mark.parametrize("language", ["sh", "py", "mjs"])


@LANGUAGES
def test_a_line_and_the_features_of_a_row(server, clicks, language):
    line = clicks.lines[0]
    with server.endpoint("raw_python") as endpoint:
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
        reply = ask(server, language, "raw_python", *arguments)
        assert reply.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(reply[name], values.ravel(), rtol=1e-6)


@LANGUAGES
def test_a_history_and_one_of_raw_ids_with_titles(server, language):
    with server.endpoint("bert4rec") as endpoint:
        expected = endpoint.predict({"history": np.array([[3, 4]])})
    reply = ask(server, language, "bert4rec", "history", "3,4")
    assert reply["items"] == expected["items"].ravel().tolist()
    np.testing.assert_allclose(reply["scores"], expected["scores"].ravel(), rtol=1e-6)
    titled = ask(server, language, "named", "ids", f"{raw_id(3)},{raw_id(4)}")
    assert titled["items"] == [raw_id(item) for item in reply["items"]]
    assert titled["titles"] == [title(item) for item in reply["items"]]


@LANGUAGES
def test_a_refused_request_says_why(server, language):
    said = ask(server, language, "raw_python", "line", "1\t2", status=1)
    harness.assert_tells(said, "row 0", 2, 39)
    assert "features" in ask(server, language, "raw_python", status=2)
