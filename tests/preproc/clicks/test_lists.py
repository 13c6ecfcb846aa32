# SPDX-License-Identifier: Apache-2.0
"""Lists in the rows of a click log: what they mean, in models and served."""

import gc
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from dataspec import verify
from dlrm.config import ModelConfig
from dlrm.nn.bags import BaggedEmbedding, Bags
from dlrm.serve.native import NativeDlrm
from dlrm.serve.served import ServedDlrm
from dlrm.train.metrics import roc_auc
from preproc.clicks import columns
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.line_transform import LineTransform
from preproc.files.errors import PreprocError
from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.list_columns import ListColumn
from recsys.data.manifest import Manifest
from recsys.data.split_binary import SplitBinaryReader
from recsys.serve.client.requests import BadRequestError
from recsys.serve.raw_rows import served_from_raw_rows
from recsys.train.optimizers.rows import RowwiseOptimizer
from tests import harness
from tests.dlrm.conftest import DlrmProgram
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import assert_same, stopped
from tests.preproc.clicks.schema_log import (
    LINE,
    LISTS,
    SCHEMA,
    SINGLE,
    columns_of,
    columns_without,
    prepare,
    text_of,
    write_log,
    write_schema,
)
from tests.preproc.clicks.test_shuffle import shuffled_order
from tests.tools import needs


def test_lists_hold_the_ids_of_their_elements(tmp_path):
    table = write_log(tmp_path, 400, seed=9)
    schema = write_schema(tmp_path, split={"fractions": [1, 0, 0]})
    prepare(tmp_path / "log.csv", schema, tmp_path / "made", engine="reference")
    spec, reader = columns_of(tmp_path / "made", "train")
    assert [(f.name, f.pooling, f.is_weighted) for f in spec.lists] == [
        *(("tags", "sum", False), ("viewed", "mean", True)),
        *(("codes", "mean", False), ("words", "mean", False)),
    ]
    made = reader.read(0, len(table))
    tags, viewed, codes, words = made.lists
    counts: dict[str, int] = {}
    texts = [row["tags"].split(" ")[-4:] if row["tags"] not in ("", "n/a") else [] for row in table]
    for text in (text for of_row in texts for text in of_row):
        counts[text] = counts.get(text, 0) + 1
    kept = sorted(
        (t for t in counts if counts[t] > 1), key=lambda t: (-counts[t], len(t.encode()), t)
    )
    ids = [[kept.index(t) + 1 if t in kept else 0 for t in of_row] for of_row in texts]
    assert [tags[i : i + 1].ids.tolist() for i in range(len(table))] == ids
    pairs = [[e.split(":") for e in row["viewed"].split("|")[:5] if e] for row in table]
    weights = np.float32([float(w) for p in pairs for _, w in p])
    np.testing.assert_array_equal(viewed.weights, weights)
    of_number: dict[int, set[int]] = {}
    for number, id_ in zip([float(n) for p in pairs for n, _ in p], viewed.ids, strict=True):
        of_number.setdefault(int(number), set()).add(int(id_))
    assert all(len(ids) == 1 for ids in of_number.values())
    assert len(set().union(*of_number.values())) == len(of_number)
    assert spec.lists[2].cardinality == 21
    assert codes.ids.max() == 20
    assert np.diff(words.offsets).max() == 50
    assert words.ids.max() <= 9
    some = reader.read(100, 120)
    for own, whole in zip(some.lists, made.lists, strict=True):
        np.testing.assert_array_equal(own.ids, whole[100:120].ids)
        np.testing.assert_array_equal(own.offsets, whole[100:120].offsets)
    prepare(
        *(tmp_path / "log.csv", schema, tmp_path / "shuffled", {"shuffle_seed": 5}),
        engine="reference",
    )
    _, reader = columns_of(tmp_path / "shuffled", "train")
    shuffled = reader.read(0, len(table))
    for place, row in enumerate(shuffled_order(5, len(table))):
        for own, whole in zip(shuffled.lists, made.lists, strict=True):
            assert own[place : place + 1].ids.tolist() == whole[row : row + 1].ids.tolist()


def respelled(text: str, rng: random.Random) -> str:
    """Returns a list, perhaps an empty one, with blanks around its elements and weights."""
    blanks = [" ", "\t", "  ", " \t "]
    pieces = re.split("([,:])", text)
    padded = "".join(piece.join((rng.choice(blanks), rng.choice(blanks))) for piece in pieces)
    return rng.choice([text, padded, rng.choice(blanks) + text])


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_blanks_around_elements_and_weights_do_not_count(engine, tmp_path):
    """In a dataset and in served rows, as lines and as fields."""
    rng = random.Random(5)
    columns = [
        {"name": "items", "role": "categorical_list", "type": "string", "separator": ","},
        {
            **{"name": "pairs", "role": "categorical_list", "type": "int", "separator": ","},
            **{"weight_separator": ":", "missing": ["none", "?"]},
        },
        {"name": "codes", "role": "categorical_list", "type": "hex", "separator": ","},
    ]
    schema = write_schema(
        tmp_path, label={"column": "click"}, columns=columns, split={"fractions": [1, 0, 0]}
    )
    rows = []
    for _ in range(200):
        items = [rng.choice(["a b", "größe", "c-long-name-of-an-item", "d"]) for _ in range(3)]
        pairs = [f"{rng.randrange(9)}:{rng.random():.2f}" for _ in range(rng.randrange(4))]
        codes = [f"{rng.randrange(40):x}" for _ in range(rng.randrange(4))]
        fields = [",".join(each) for each in (items, pairs, codes)]
        fields[1] = rng.choice([fields[1], "none", "?"])
        rows.append(fields)
    spaced = [[respelled(field, rng) for field in fields] for fields in rows]
    made = []
    for name, table in (("plain", rows), ("spaced", spaced)):
        lines = [f"{i % 2};{';'.join(fields)}" for i, fields in enumerate(table)]
        (tmp_path / name).write_text("\n".join(["click;items;pairs;codes", *lines]) + "\n")
        made.append(prepare(tmp_path / name, schema, tmp_path / f"{name}.data", engine=engine))
    assert not any(manifest.rejected[reason] for manifest in made for reason in manifest.rejected)
    assert made[1].fingerprint == made[0].fingerprint
    write_feature_file(tmp_path / "plain.data", tmp_path / "features.bin", "float32")
    cells = [[[f.encode() for f in fields] for fields in table] for table in (rows, spaced)]
    with LineTransform(tmp_path / "features.bin") as transform:
        plain, *others = (
            transform.transform([b";".join(fields) for fields in cells[0]]),
            transform.transform([b";".join(fields) for fields in cells[1]]),
            transform.transform_fields([[f.replace(b"\t", b" ") for f in r] for r in cells[1]]),
        )
    for other in others:
        np.testing.assert_array_equal(other.ids, plain.ids)
        np.testing.assert_array_equal(other.scale, plain.scale)


def test_lists_with_doubtful_separators_are_told(tmp_path, capfd):
    unweighted = {"weight_separator": "", "type": "string"}
    write_log(tmp_path, 200, seed=9)
    columns = [
        column | {"tags": {"separator": "/"}, "viewed": unweighted}.get(str(column["name"]), {})
        for column in SCHEMA["columns"]
    ]
    label = {"column": "bought", "positive": ["Yes"], "negative": "other"}
    schema = write_schema(tmp_path, columns=columns, label=label)
    prepare(tmp_path / "log.csv", schema, tmp_path / "made", engine="reference", progress="auto")
    told = capfd.readouterr().err
    assert re.search(
        r"tags 0\.\d .*\b1\b.*, viewed \d\.\d .*\b5\b.*, .*; tags: .*`separator`", told
    )
    assert_tells(told, "`positive` 'Yes'")
    assert re.search(r"viewed: .*`weight_separator`", told)


def file_of(name: str, kind: str = "") -> str:
    """Returns the file of a list in a split."""
    return f"cat_{len(SINGLE) + LISTS.index(name)}{kind}.bin"


def test_damaged_files_of_lists_are_refused(tmp_path):
    write_log(tmp_path, 90, seed=1)
    prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "made", engine="reference")
    folder = tmp_path / "made" / "train"
    ids, offsets = file_of("tags"), file_of("tags", ".offsets")
    for name, change, *facts in [
        (offsets, lambda b: b[:-8], 576, "72 + 1"),
        (ids, lambda b: b + b"1", offsets),
        (file_of("viewed", ".weights"), lambda b: b[:-4], file_of("viewed", ".offsets")),
        (ids, lambda b: b"\x7f" + b[1:], "tags", "element 0", 127),
        (offsets, lambda b: b[:8] + b"\xff" * 7 + b"\x00" + b[16:]),
    ]:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(change(whole))
        with refusal(*facts, kind=DatasetError, path=folder / name):
            SplitBinaryReader(tmp_path / "made", "train", check_ids=True).read(0, 72)
        (folder / name).write_bytes(whole)


@needs("compiled Criteo kernel")
def test_a_model_of_lists_learns_what_they_hold(tmp_path, capsys):
    """The click depends on the mean of a list and on nothing else."""
    rng = random.Random(4)
    effects = {f"i{n}": rng.gauss(0, 2) for n in range(40)}
    lines, logits = ["click,shop,items"], []
    for _ in range(12000):
        items = [rng.choice(list(effects)) for _ in range(rng.randrange(5))]
        logits.append(sum(effects[i] for i in items) / max(len(items), 1))
        click = int(rng.random() < 1 / (1 + math.exp(-logits[-1])))
        lines.append(f"{click},s{rng.randrange(9)},{'|'.join(items)}")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    columns = [
        {"name": "shop", "role": "categorical", "type": "string"},
        {"name": "items", "role": "categorical_list", "type": "string"},
    ]
    schema = write_schema(
        tmp_path,
        dialect={"delimiter": ","},
        label={"column": "click"},
        columns=columns,
        split={"fractions": [0.7, 0.1, 0.2]},
    )
    dataset = tmp_path / "made"
    made = prepare(tmp_path / "log.csv", schema, dataset)
    assert verify.main(["verify", str(dataset)]) == 0, capsys.readouterr().out
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("items "))
    mean = sum(line.count("i") for line in lines[1:]) / 12000
    assert row.split() == ["items", "41", "40", "0.00%", f"{mean:.1f}", "4"]
    program, folder = DlrmProgram(tmp_path), tmp_path / "run"
    flags = ("--optimizer=adagrad", "--lr=0.1", "--epochs=4", "--batch_size=64")
    program.train(dataset, folder, *flags)
    values = program.test(dataset, folder, "--gauc_by=shop")
    best = roc_auc(
        torch.tensor(logits[-made.rows["test"] :]),
        torch.tensor([line[0] == "1" for line in lines[-made.rows["test"] :]]),
    )
    assert abs(values["auc"] - best) < 0.01
    assert abs(values["gauc"] - best) < 0.02
    error = program.refused(f"--dataset={dataset}", "--embedding_type=joint", "--epochs=1")
    assert_tells(error, "--embedding_type", "joint")


def bags(seed: int, sizes: tuple[int, ...]) -> tuple[ClickColumns, list[list[list[int]]]]:
    """Columns of two single features and lists, and the ids of each sample and feature."""
    rng = np.random.default_rng(seed)
    singles = tuple(rng.integers(0, size, 7).astype(np.int16) for size in sizes[:2])
    lists = []
    for size in sizes[2:]:
        lengths = rng.integers(0, 4, 7)
        ids = rng.integers(0, size, lengths.sum()).astype(np.int8)
        weights = rng.normal(size=len(ids)).astype(np.float32) if len(lists) % 2 else None
        offsets = np.concatenate([[0], lengths.cumsum()])
        lists.append(ListColumn(ids, offsets, weights, is_mean=len(lists) != 1))
    columns = ClickColumns(
        np.zeros(7, np.bool_), np.zeros((7, 0), np.float32), singles, tuple(lists)
    )
    return columns, [
        [*([int(ids[row])] for ids in singles), *(own[row : row + 1].ids.tolist() for own in lists)]
        for row in range(7)
    ]


def test_bags_are_the_lists_sample_by_sample():
    columns, expected = bags(1, (300, 9, 5, 6, 7))
    made = Bags.from_columns(columns)
    flat = [ids for of_sample in expected for ids in of_sample]
    assert made.ids.tolist() == [i for ids in flat for i in ids]
    assert made.offsets.diff().tolist() == [len(ids) for ids in flat]
    assert made.column(1).tolist() == columns.categorical[1].tolist()
    split = [of_bag.tolist() for of_bag in made.scale.split(made.offsets.diff().tolist())]
    for row in range(7):
        assert split[5 * row] == split[5 * row + 1] == [1]
        count = len(expected[row][2])
        assert split[5 * row + 2] == pytest.approx([1 / max(count, 1)] * count)
        weights = columns.lists[1][row : row + 1].weights
        assert split[5 * row + 3] == weights.tolist()


@pytest.mark.parametrize(
    ("rule", "l2"), [("sgd", 0.0), ("rowwise_adagrad", 0.0), ("rowwise_adagrad", 0.2)]
)
def test_tables_of_bags_are_trained_as_dense_ones(rule, l2):
    """Vectors and one update equal those of PyTorch's tables, pooled by hand in float64."""
    sizes, dim = (300, 9, 5, 6, 7), 4
    columns, _ = bags(2, sizes)
    made = Bags.from_columns(columns)
    config = ModelConfig(bottom_mlp_sizes=(8, dim), top_mlp_sizes=(4, 1), embedding_dim=dim)
    tables = BaggedEmbedding.of(config, sizes)
    (stored,) = tables.stored_tables()
    whole = stored.double().requires_grad_()
    starts = torch.tensor([0, *sizes]).cumsum(0)
    feature = torch.arange(len(made.offsets) - 1).repeat_interleave(made.offsets.diff()) % 5
    bag = torch.arange(len(made.offsets) - 1).repeat_interleave(made.offsets.diff())
    rows = whole[made.ids + starts[feature]] * made.scale.double().unsqueeze(1)
    expected = whole.new_zeros(35, dim).index_add(0, bag, rows).view(7, 5, dim)
    vectors = tables(made, torch.float32)
    torch.testing.assert_close(vectors.double(), expected, rtol=1e-6, atol=1e-6)
    gradient = torch.randn(
        7, 5, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    expected.backward(gradient)
    vectors.backward(gradient.float())
    optimizer = RowwiseOptimizer(tables, rule, 0.0, l2=l2)
    before = stored.clone()
    optimizer.step(optimizer.gradients(), torch.tensor(0.5))
    update, terms = whole.grad + l2 * before.double(), whole.grad.abs() + l2 * before.double().abs()
    if rule == "rowwise_adagrad":
        mean = update.square().mean(1, keepdim=True).sqrt() + 1e-8
        # Where gradient and decay cancel, the division makes their rounding as large.
        update, terms = update / mean, terms / mean
    expected_rows = before.double() - 0.5 * torch.where(update.any(1, keepdim=True), update, 0)
    rounding = 8 * torch.finfo(torch.float32).eps * terms.amax(1, keepdim=True)
    assert ((stored.double() - expected_rows).abs() <= 1e-6 + rounding).all()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder with two deployments of a model of lists, its test rows and their logits."""
    folder = tmp_path_factory.mktemp("served")
    table = write_log(folder, 900, seed=8)
    schema = write_schema(folder, split={"rows": [500, 100, -1]}, columns=columns_without("float"))
    prepare(folder / "log.csv", schema, folder / "data")
    program = DlrmProgram(folder)
    program.train(folder / "data", folder / "run", "--epochs=1", "--lr=0.1", "--seeds=2")
    program(
        *(f"--dataset={folder / 'data'}", f"--load_checkpoint_path={folder / 'run'}"),
        *("--mode=predict", f"--predictions={folder / 'logits.parquet'}"),
    )
    for backend in ("native", "python"):
        harness.forked(
            *("-m", "recsys_recipes", "deploy", f"--checkpoint={folder / 'run'}", "--raw"),
            *(f"--dataset={folder / 'data'}", f"--backend={backend}", f"--name={backend}"),
            f"--repository={folder / 'models'}",
        )
    logits = parquet.read_table(folder / "logits.parquet")["logit"].to_numpy()
    return folder, table[600:], logits


def texts_of(table: list[dict[str, str]], form: str) -> np.ndarray:
    """Lines or fields of rows, as a request has them."""
    used = [name for name in LINE if name not in ("note", "rate", "weight", "gain")]
    cells = [[row[name].encode() for name in used] for row in table]
    lines = text_of(table, LINE).splitlines()[1:]
    return np.array([[line] for line in lines] if form == "line" else cells, np.object_)


@needs("compiled Criteo kernel")
@needs("compiled Triton backend")
@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("form", ["line", "fields"])
def test_served_rows_are_those_of_the_dataset(served, backend, form):
    folder, table, logits = served
    path = folder / "models" / backend / "1"
    raw = served_from_raw_rows(ServedDlrm, LineTransform)
    model = (NativeDlrm if backend == "native" else raw).open(path, torch.device("cpu"))
    request = {form: texts_of(table, form)}
    answer = model.respond(request)
    np.testing.assert_allclose(answer["logit"][:, 0], logits, rtol=1e-6, atol=1e-6)
    widths = [1] * len(SINGLE) + [4, 5, 50, 50]
    assert model.deployment.model["widths"] == widths
    with LineTransform(path / "features.bin") as transform:
        lines = [line for (line,) in texts_of(table, "line")]
        features = transform.transform(lines)
    dataset = SplitBinaryReader(folder / "data", "test").read(0, len(table))
    ids, scale = Bags.from_columns(dataset).to_slots(widths, 109)
    np.testing.assert_array_equal(features.ids, ids.numpy())
    np.testing.assert_array_equal(features.scale, scale.numpy())
    transformed = {
        "numerical": features.numerical,
        "categorical": features.ids,
        "factors": features.scale,
    }
    np.testing.assert_array_equal(model.respond(transformed)["logit"], answer["logit"])
    far = features.ids.copy()
    far[3, 7] = 10**6
    with refusal("row 3", "feature 7", 10**6, kind=BadRequestError):
        model.respond(transformed | {"categorical": far})
    bad = [dict(table[0]) | {"viewed": "7:1|8"}]
    with refusal("viewed", "7:1|8", "(list)", "'|'"):
        model.respond({form: texts_of(bad, form)})


@needs("compiled Criteo kernel")
@needs("compiled Triton backend")
@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("--format=onnx", ["--format", "eager"]),
        ("--quantize=int8", ["--quantize", "int8", "float32"]),
    ],
)
def test_what_models_of_lists_cannot_do_is_refused(served, flag, facts):
    folder, *_ = served
    done = harness.forked(
        *("-m", "recsys_recipes", "deploy", f"--checkpoint={folder / 'run'}", flag),
        f"--repository={folder / 'none'}",
        status=2,
    )
    assert_tells(done.stderr, *facts)
    assert not list((folder / "none").rglob("config.pbtxt"))


def test_dropped_readers_keep_no_files_open(tmp_path):
    write_log(tmp_path, 90, seed=1)
    prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "made", engine="reference")

    def opened() -> int:
        SplitBinaryReader(tmp_path / "made", "train")
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    assert opened() == opened() == opened()


@needs("compiled Criteo kernel")
def test_lost_work_files_of_lists_are_refused(tmp_path):
    """Where a run is interrupted before units are joined, and what one wrote is gone."""
    write_log(tmp_path, 900, seed=1)
    schema, settings = write_schema(tmp_path), NativeSettings(unit_bytes=20_000)

    def again() -> Manifest:
        fields = {"settings": settings, "work_dir": tmp_path / "work"}
        return prepare(tmp_path / "log.csv", schema, tmp_path / "made", **fields)

    with stopped(columns.SplitColumnsWriter, "join_lists"):
        again()
    lost = next(path for path in tmp_path.rglob("*_train_0.lengths") if path.stat().st_size)
    kept = lost.read_bytes()
    lost.unlink()
    with refusal(lost.parent, kind=PreprocError):
        again()
    lost.write_bytes(kept)
    made = again()
    whole = prepare(tmp_path / "log.csv", schema, tmp_path / "whole", settings=settings)
    assert_same(made, whole)
