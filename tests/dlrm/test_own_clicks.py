# SPDX-License-Identifier: Apache-2.0
"""A click log of one's own: raw rows to served answers, by the commands of a user."""

import csv
import gzip

import numpy as np
import pytest
import torch
from pyarrow import parquet

from dlrm.serve.native import NativeDlrm
from dlrm.serve.served import ServedDlrm
from preproc.clicks.serving.line_transform import LineTransform
from recsys.serve.raw_rows import served_from_raw_rows
from tests import harness
from tests.tools import needs

pytestmark = [needs("compiled Criteo kernel"), needs("compiled Triton backend")]

CPU = torch.device("cpu")
NEW = 300


@pytest.fixture(scope="module")
def avazu(real_data, tmp_path_factory):
    """A folder with a model of Avazu's log, two deployments of it, and predictions of new rows."""
    folder = tmp_path_factory.mktemp("avazu")

    def recipes(*arguments):
        return harness.forked("-m", "recsys_recipes", *arguments, folder=folder)

    with gzip.open(real_data / "avazu" / "train_8k.csv.gz", "rt") as log:
        rows = list(csv.reader(log))
    label = rows[0].index("click")
    unlabelled = [[*row[:label], *row[label + 1 :]] for row in [rows[0], *rows[-NEW:]]]
    for name, table in (("log.csv", rows), ("new.csv", unlabelled)):
        (folder / name).write_text("".join(",".join(row) + "\n" for row in table))
    schema, data, run = folder / "schema.yaml", folder / "data", folder / "run"
    recipes("prepare", "clicks", f"--input={folder / 'log.csv'}", f"--infer={schema}")
    prepare = ("prepare", "clicks", f"--input={folder / 'log.csv'}", f"--schema={schema}")
    recipes(*prepare, f"--output={data}")
    train = ("train", "dlrm", f"--dataset={data}", "--preset=criteo_sample", "--max_steps=40")
    recipes(*train, "--eval_split=validation", f"--output={run}")
    for backend in ("native", "python"):
        deploy = ("deploy", f"--checkpoint={run}", f"--dataset={data}", "--raw")
        models = f"--repository={folder / 'models'}"
        recipes(*deploy, f"--backend={backend}", f"--name={backend}", models)
    given = (f"--input={folder / 'new.csv'}", f"--dictionaries={data}", "--unlabelled")
    recipes("prepare", "clicks", *given, f"--output={folder / 'new'}")
    predict = ("predict", f"--dataset={folder / 'new'}", f"--checkpoint={run}")
    recipes(*predict, f"--predictions={folder / 'new.parquet'}")
    return folder, unlabelled


def test_predictions_name_the_lines_under_the_header(avazu):
    folder, _ = avazu
    table = parquet.read_table(folder / "new.parquet")
    assert table["line"].to_pylist() == list(range(2, NEW + 2))
    assert set(table["file"].to_pylist()) == {"new.csv"}
    assert table["label"].null_count == NEW


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("form", ["line", "fields"])
def test_raw_rows_have_the_logits_of_the_offline_path(avazu, backend, form):
    folder, (header, *rows) = avazu
    expected = parquet.read_table(folder / "new.parquet")["logit"].to_numpy()
    served_class = {
        "native": NativeDlrm,
        "python": served_from_raw_rows(ServedDlrm, LineTransform),
    }[backend]
    served = served_class.open(folder / "models" / backend / "1", CPU)
    features = served.deployment.signature.input("fields").columns
    assert features == tuple(name for name in header if name not in ("id", "hour"))
    if form == "line":
        texts = [[",".join(row)] for row in rows]
    else:
        texts = [[row[header.index(name)] for name in features] for row in rows]
    request = {form: np.array([[text.encode() for text in row] for row in texts], np.object_)}
    answer = served.respond(request)
    np.testing.assert_allclose(answer["logit"][:, 0], expected, rtol=1e-6, atol=1e-6)


def test_a_log_of_numbers_alone_is_served(tmp_path):
    """Raw rows have the logits of the offline path, and every engine makes the same dataset."""
    generator = np.random.default_rng(3)
    numbers = generator.normal(size=(2000, 2))
    clicks = (np.abs(numbers[:, 0]) < 0.7).astype(int)
    lines = [f"{a:.4f},{b:.4f}" for a, b in numbers]
    rows = [f"{click},{line}" for click, line in zip(clicks, lines, strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["target,a,b", *rows]) + "\n")
    (tmp_path / "new.csv").write_text("\n".join(["a,b", *lines[:NEW]]) + "\n")

    def recipes(*arguments):
        return harness.forked("-m", "recsys_recipes", *arguments, folder=tmp_path)

    prepare = ("prepare", "clicks", "--input=log.csv")
    recipes(*prepare, "--infer=schema.yaml")
    for engine in ("native", "reference"):
        recipes(*prepare, "--schema=schema.yaml", f"--engine={engine}", f"--output={engine}")
    written, expected = (
        {
            path.relative_to(tmp_path / engine): path.read_bytes()
            for path in (tmp_path / engine).rglob("*.*")
            if path.name != "manifest.json"
        }
        for engine in ("native", "reference")
    )
    assert written == expected
    settings = ("--numerical_embedding=piecewise_linear", "--interaction_op=cat", "--epochs=3")
    train = ("train", "dlrm", "--dataset=native", "--preset=criteo_sample", *settings)
    recipes(*train, "--eval_split=validation", "--output=run")
    assert harness.read_log(tmp_path / "run" / "log.json")[-1]["data"]["best_auc"] > 0.9
    recipes(
        *("deploy", "--checkpoint=run", "--dataset=native", "--raw", "--backend=native"),
        "--repository=models",
    )
    given = ("--input=new.csv", "--dictionaries=native", "--unlabelled", "--output=new")
    recipes("prepare", "clicks", *given)
    recipes("predict", "--dataset=new", "--checkpoint=run", "--predictions=new.parquet")
    logits = parquet.read_table(tmp_path / "new.parquet")["logit"].to_numpy()
    served = NativeDlrm.open(tmp_path / "models" / "dlrm" / "1", CPU)
    text = np.array(lines[:NEW], object)[:, None]
    (answer,) = served.predict([{"line": text}])
    np.testing.assert_allclose(answer["logit"][:, 0], logits, rtol=1e-5, atol=1e-5)
