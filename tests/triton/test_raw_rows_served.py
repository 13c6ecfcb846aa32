# SPDX-License-Identifier: Apache-2.0
"""A DLRM that takes raw rows on a real server: lines and fields, refusals, and deployments."""

import gzip
import json
import random

import numpy as np
import pytest
from pyarrow import parquet

from preproc.clicks import __main__ as clicks_program
from recsys.data.split_binary import SplitBinaryReader
from recsys.serve.client.connection import predict_in_order
from tests.dlrm.conftest import make_program
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import without_labels
from tests.recsys.serve.checkpoints import bert4rec_checkpoint
from tests.tools import needs
from tests.triton.conftest import RAW_MODEL, deploy, train_raw

pytestmark = [
    pytest.mark.triton_server,
    needs("compiled Criteo kernel"),
]


@pytest.fixture(scope="module", params=["python", "native"])
def model(server, clicks, request):
    return server.serve(
        f"raw_{request.param}", clicks.run, f"--backend={request.param}", *clicks.flags
    )


@pytest.fixture(params=["grpc", "http"])
def endpoint(server, model, request):
    with server.endpoint(model, request.param) as endpoint:
        yield endpoint


def as_line(lines):
    return {"line": np.array(lines, np.object_)[:, None]}


def as_fields(lines):
    return {"fields": np.array([line.split(b"\t") for line in lines], np.object_)}


def test_lines_fields_and_features_have_the_same_answers(endpoint, clicks):
    lines = clicks.lines
    rows = SplitBinaryReader(clicks.dataset, "test").read(0, len(lines))
    features = {
        "numerical": np.asarray(rows.numerical, np.float32),
        "categorical": np.stack(rows.categorical, axis=1).astype(np.int64),
    }
    expected = endpoint.predict(features)
    for request in (as_line(lines), as_fields(lines)):
        answer = endpoint.predict(request)
        assert answer["logit"].tobytes() == expected["logit"].tobytes()
        assert answer["probability"].tobytes() == expected["probability"].tobytes()


@pytest.mark.parametrize(
    ("request_of", "facts"),
    [
        (lambda lines: as_line([lines[0], b"1\t" + lines[1]]), ["row 1", 40, 39]),
        (lambda lines: as_line(lines[:2]) | as_fields(lines[:2]), ["'line'", "'fields'"]),
        (
            lambda lines: as_line([lines[0], lines[1].rpartition(b"\t")[0] + b"\t\xff"]),
            ["row 1", "C26", r"'\xff'", "encoding"],
        ),
        (
            lambda lines: {"fields": np.full((2, 39), b"a\tb", object)},
            ["row 0", "I1", r"'\a\tb'"],
        ),
    ],
)
def test_wrong_raw_rows_are_refused(endpoint, clicks, request_of, facts):
    with refusal(*facts):
        endpoint.predict(request_of(clicks.lines))


@pytest.mark.slow
def test_20000_real_lines_have_the_answers_of_the_offline_path(server, real_data, tmp_path):
    text = gzip.decompress((real_data / "criteo_kaggle" / "sample_100k.tsv.gz").read_bytes())
    dataset, checkpoint = train_raw(text, tmp_path, 80_000)
    lines = without_labels(text).removesuffix(b"\n").split(b"\n")[80_000:]
    file = tmp_path / "predictions.parquet"
    make_program(tmp_path)(
        *(f"--dataset={dataset}", "--mode=predict"),
        *(f"--load_checkpoint_path={checkpoint}", f"--predictions={file}"),
    )
    expected = parquet.read_table(file)["logit"].to_numpy()
    flags = ("--raw", f"--dataset={dataset}", "--split=test")
    with server.endpoint(server.serve("real_lines", checkpoint, *flags)) as endpoint:
        requests = (as_line(lines[i : i + 512]) for i in range(0, len(lines), 512))
        answers = predict_in_order(endpoint, requests, 4)
        logits = np.concatenate([answer["logit"][:, 0] for answer in answers])
    assert len(logits) == 20_000
    # Batches of other sizes add in another order, how far apart depends on the processor.
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_the_client_sends_lines_of_a_file(ask, model, clicks, tmp_path):
    requests, line = tmp_path / "requests.json", clicks.lines[0]
    arguments = (f"--model={model}", f"--request={requests}")
    requests.write_text(json.dumps({"line": [[line.decode()]]}) + "\n")
    assert '"probability"' in ask(*arguments)
    logit = json.loads(ask(*arguments))["logit"]
    names = [*(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    row = dict(zip(names, line.decode().split("\t"), strict=True))
    requests.write_text(json.dumps({n: t for n, t in row.items() if t}) + "\n")
    assert json.loads(ask(*arguments))["logit"] == logit
    requests.write_text(json.dumps(row | {"C27": "1"}) + "\n")
    assert_tells(ask(*arguments, status=2), "'C27'", "I1, I2")
    requests.write_text(json.dumps(row | {"C26": ["1"]}) + "\n")
    assert_tells(ask(*arguments, status=2), "C26", "null", "['1']")
    requests.write_text("{}\n" + json.dumps(dict.fromkeys(names)))
    empty, missing = ask(*arguments).splitlines()
    assert empty == missing
    text = f"{','.join(names)},day\n{','.join(row.values())},1\n"
    for name, encoding in (("rows.CSV", "utf-8"), ("rows.csv", "utf-8-sig")):
        table = tmp_path / name
        table.write_text(text, encoding=encoding)
        said = ask(f"--model={model}", f"--request={table}")
        assert json.loads(said)["logit"] == logit
    table.write_text(text.replace("day", "C3", 1))
    said = ask(f"--model={model}", f"--request={table}", status=2)
    assert_tells(said, table, "C3")
    table.write_text("I1,I2\n1,2\n")
    said = ask(f"--model={model}", f"--request={table}", status=2)
    assert_tells(said, table, "I3, I4")
    table.write_text(f"{text}1,2\n")
    assert_tells(ask(f"--model={model}", f"--request={table}", status=2), f"{table}:3")
    requests.write_bytes(line + b"\n")
    begins = line[:12].decode().replace("\t", "\\t")
    said = ask(*arguments, status=2)
    assert_tells(said, f'{{"line": [["{begins}..."]]}}')
    requests.write_text(text)
    assert_tells(ask(*arguments, status=2), ".csv", ".tsv")


SHOP = """
dialect: {delimiter: ";"}
label: {column: returned, positive: ["ja"], negative: ["nein"]}
columns:
- {name: order, role: ignored}
- {name: items, role: categorical_list, type: string, separator: ","}
- {name: sum, role: numerical, type: float, bins: quantiles:8}
- {name: town, role: categorical, type: string}
split: {fractions: [0.6, 0.2, 0.2]}
"""


def test_the_client_reads_tables_as_the_log_of_the_model_is_spelled(server, ask, tmp_path):
    rng = random.Random(4)
    rows = []
    for number in range(300):
        items = ", ".join(f"ART-{rng.randrange(9)}" for _ in range(1 + number % 4))
        town = rng.choice(["Köln", '"Bad; Ems"', '"""Süd"""'])
        rows.append([f"B{number}", items, f"{rng.random():.3f}", town])
    labels = [rng.choice(["ja", "nein"]) for _ in rows]
    log, schema, dataset = tmp_path / "log.csv", tmp_path / "schema.yaml", tmp_path / "data"
    header = ["order", "items", "sum", "town"]
    lines = [";".join([*row, label]) for row, label in zip(rows, labels, strict=True)]
    log.write_text("\n".join([";".join([*header, "returned"]), *lines]) + "\n")
    schema.write_text(SHOP)
    made = ["prepare", f"--input={log}", f"--schema={schema}", f"--output={dataset}"]
    assert clicks_program.main([*made, "--progress=none"]) == 0
    train, answers = make_program(tmp_path), tmp_path / "answers.parquet"
    flags, run = (f"--dataset={dataset}", *RAW_MODEL), tmp_path / "run"
    train(*flags, f"--save_checkpoint_path={run}")
    loaded = f"--load_checkpoint_path={run}"
    train(flags[0], "--mode=predict", f"--predictions={answers}", loaded)
    expected = parquet.read_table(answers)["logit"].to_numpy()
    model = server.serve("shop", run, "--raw", f"--dataset={dataset}")
    new = rows[-len(expected) :]
    as_log = "\n".join([";".join(header), *map(";".join, new)]) + "\n"
    quoted = [[row[0], f'"{row[1]}"', *row[2:]] for row in new]
    with_commas = "\n".join([",".join(header), *map(",".join, quoted)]) + "\n"
    for text, encoding, name in (
        (as_log, "utf-8", "rows.csv"),
        (as_log.replace("\n", "\r\n"), "utf-8-sig", "rows.csv"),
        (as_log, "utf-8", "rows.tsv"),
        (with_commas, "utf-8", "rows.csv"),
    ):
        (tmp_path / name).write_text(text, encoding=encoding, newline="")
        said = ask(f"--model={model}", f"--request={tmp_path / name}")
        logits = [json.loads(line)["logit"][0][0] for line in said.splitlines()]
        # Batches of other sizes add in another order, how far apart depends on the processor.
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_raw_rows_need_their_dataset_and_are_kept_by_later_deployments(clicks, tmp_path, change):
    run, models = f"--checkpoint={clicks.run}", tmp_path / "models"
    assert_tells(change(run, "--raw", status=2), "--raw", "--dataset")
    said = change(run, "--raw", f"--dataset={clicks.dataset}", "--dataset_type=binary", status=2)
    assert_tells(said, "--raw", "--dataset_type split")
    assert not (models / "dlrm").exists()
    deploy(clicks.run, models, *clicks.flags)
    assert_tells(change(run, status=2), "--raw", "--dataset")
    deploy(clicks.run, models, *clicks.flags[1:], "--format=torchscript")
    assert (models / "dlrm" / "2" / "features.bin").is_file()
    change(run, "--noraw", status=2)
    other, _ = bert4rec_checkpoint(tmp_path / "bert4rec")
    said = change(f"--checkpoint={other}", "--name=dlrm", status=2)
    assert_tells(said, "--name dlrm", models / "dlrm", other)
    assert sorted(path.name for path in (models / "dlrm").iterdir() if path.is_dir()) == ["1", "2"]
