# SPDX-License-Identifier: Apache-2.0
"""`recsys-recipes reproduce`: a run made again, and what its certificate says."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from preproc import generate_criteo
from preproc.clicks import __main__ as prepare_clicks
from recsys.data.manifest import MANIFEST_FILE, TITLES_FILE, Manifest
from recsys.errors import FAILED, UserError
from recsys.files.json_text import is_intact
from recsys_recipes import clicks, ratings, reproduce
from recsys_recipes.reproduction.compare import compare_tensors
from recsys_recipes.reproduction.dataset import RawFiles
from recsys_recipes.reproduction.original import OriginalRun
from tests import checkpoints, harness
from tests.documents import change_document

DLRM = {
    **{"embedding_dim": 4, "bottom_mlp_sizes": "8,4", "top_mlp_sizes": "8,1", "batch_size": 64},
    **{"test_batch_size": 500, "warmup_steps": 0, "decay_steps": 0, "lr": 2.0, "max_steps": 6},
    **{"test_freq": 3, "num_threads": 1, "base_device": "cpu", "baselines": ""},
}
BERT4REC = {
    **{"preset": "fast-short", "max_len": 8, "emb_dim": 8, "nhead": 2, "batch_size": 64},
    **{"epochs": 2, "num_eval_negatives": 5, "warmup_steps": 1, "num_threads": 1},
    **{"base_device": "cpu", "baselines": ""},
}
SCHEMA = {
    "label": {"column": "bought", "positive": ["1"], "negative": ["0"]},
    "defaults": {"frequency_limit": 1},
    "columns": [
        {"name": "ad", "role": "categorical", "type": "string"},
        {"name": "age", "role": "numerical", "type": "float", "bins": "quantiles:4"},
    ],
    "split": {"fractions": [0.6, 0.2, 0.2]},
}


@pytest.fixture(scope="module")
def criteo(tmp_path_factory):
    """A folder with the raw logs `raw`, their dataset `data` and a trained `run`."""
    root = tmp_path_factory.mktemp("criteo")
    words = ["generate", f"--output={root / 'raw'}", "--rows=1200", "--days=2", "--threads=1"]
    assert generate_criteo.main(words) == 0
    dataset = clicks.prepare(
        root / "raw", root / "data", format="split,parquet", layout="torchrec", frequency_limit=2
    )
    clicks.train(dataset, root / "run", **DLRM)
    return root


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """The same of orders, whose columns have names of their own."""
    root = tmp_path_factory.mktemp("orders")
    generator = np.random.default_rng(0)
    lines = [
        f"{when},c{who},{(who + when) % 12}"
        for who in range(40)
        for when in range(generator.integers(5, 12))
    ]
    (root / "orders.csv").write_text("\n".join(["t,whose,what", *lines]) + "\n")
    columns = {"user": "whose", "item": "what", "timestamp": "t"}
    dataset = ratings.prepare(root / "orders.csv", root / "data", columns=columns, id_type="string")
    ratings.train(dataset, root / "run", **BERT4REC)
    return root


def certified(run: Path, output: Path, status: int, *arguments: object) -> dict:
    """Reproduces a run; returns the certificate."""
    words = ["reproduce", str(run), f"--output={output}", *map(str, arguments)]
    assert reproduce.main(words) == status
    text = (output / "certificate.json").read_text()
    assert is_intact(text)
    return json.loads(text)


def test_a_run_of_clicks_is_made_again_to_the_bit(criteo, tmp_path):
    """In another format and layout than the usual one; the latest checkpoint is not the best."""
    output = tmp_path / "again"
    found = certified(criteo / "run", output, 0, f"--input={criteo / 'raw'}")
    assert (found["equal"], found["model"], found["may_differ_because"]) == (True, "dlrm", [])
    assert found["dataset"]["rebuilt"]
    assert found["dataset"]["fingerprint"] == Manifest.load(output / "dataset").fingerprint
    assert found["dataset"]["files"]["files"] == len(Manifest.load(criteo / "data").files)
    assert found["settings"] == {}
    assert [each["role"] for each in found["checkpoints"]] == ["latest", "best"]
    for each in found["checkpoints"]:
        assert each["equal"]
        assert each["files"]["files"] == len(checkpoints.latest(criteo / "run").files)
    checkpoints.assert_same(output / "run", criteo / "run")
    auc = found["figures"]["values"]["auc"]
    assert auc["original"] == auc["reproduced"] > 0
    here = found["environment"]["original"]
    assert here == found["environment"]["reproduced"]
    assert (here["torch"], here["threads"], here["processes"]) == (torch.__version__, 1, 1)
    assert str(criteo) not in (output / "certificate.json").read_text()


def test_what_was_changed_is_named(criteo, tmp_path):
    """A tensor, a setting that this version does not know, and another version of torch."""
    run = shutil.copytree(criteo / "run", tmp_path / "run")
    latest = checkpoints.latest(run).path

    def add(tensors):
        name = min(tensors)
        return tensors | {name: tensors[name] + torch.eye(*tensors[name].shape[-2:]) / 2}

    checkpoints.rewrite(latest / "embedding_3.safetensors", add)

    def change(document):
        document["state"]["environment"]["torch"] = "1.0"
        document["config"]["forgotten"] = 7
        return document

    change_document(latest / MANIFEST_FILE, change)
    found = certified(run, tmp_path / "again", FAILED)
    assert found["equal"] is False
    assert found["dataset"]["rebuilt"] is False
    assert found["settings"] == {"forgotten": {"original": 7, "reproduced": None}}
    changed = next(each for each in found["checkpoints"] if each["name"] == latest.name)
    assert changed["files"]["different"] == ["embedding_3.safetensors"]
    tensors = changed["tensors"]["embedding_3.safetensors"]
    assert (tensors["different"], tensors["largest_difference"]) == (1, pytest.approx(0.5))
    assert any(reason.startswith("torch 1.0 -> ") for reason in found["may_differ_because"])
    others = [each for each in found["checkpoints"] if each["name"] != latest.name]
    assert all(each["equal"] for each in others)


def test_a_changed_raw_file_explains_other_figures(tmp_path, capsys):
    """A log with a schema, whose edges of bins follow from its rows."""
    generator = np.random.default_rng(0)
    rows = [
        f"ad{generator.integers(6)},{generator.integers(10, 99)},{generator.integers(2)}"
        for _ in range(500)
    ]
    raw = tmp_path / "log.csv"
    raw.write_text("\n".join(["ad,age,bought", *rows]) + "\n")
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    flags = [f"--input={raw}", f"--output={tmp_path / 'data'}"]
    schema = f"--schema={tmp_path / 'schema.yaml'}"
    assert prepare_clicks.main(["prepare", *flags, schema]) == 0
    run = clicks.train(tmp_path / "data", tmp_path / "run", **DLRM)
    (tmp_path / "schema.yaml").unlink()
    raw.write_text(raw.read_text().replace("ad5", "ad0") + "ad0,20,1\n")
    found = certified(run, tmp_path / "again", FAILED, f"--input={raw}")
    assert found["dataset"]["sources"]["log.csv"]["original"]["rows"] == 500
    assert found["dataset"]["sources"]["log.csv"]["reproduced"]["rows"] == 501
    assert "train/cat_0.bin" in found["dataset"]["files"]["different"]
    assert found["dataset"]["settings"] == {}  # the same edges are found
    assert not any(each["equal"] for each in found["checkpoints"])
    assert found["figures"]["why_not"]  # a table of other size
    assert found["figures"]["values"]["auc"]["original"] is None
    harness.assert_tells(capsys.readouterr().out, "log.csv")


def test_a_run_of_ratings_that_recorded_no_environment(orders, tmp_path):
    """One checkpoint is given alone, and of the dataset its manifest."""
    run = shutil.copytree(orders / "run", tmp_path / "run")
    latest = checkpoints.latest(run).path

    def forget(document):
        del document["state"]["environment"]
        return document

    change_document(latest / MANIFEST_FILE, forget)
    manifest = tmp_path / "moved" / MANIFEST_FILE
    manifest.parent.mkdir()
    shutil.copy(orders / "data" / MANIFEST_FILE, manifest)
    found = certified(
        latest,
        tmp_path / "again",
        0,
        f"--input={orders / 'orders.csv'}",
        f"--dataset={manifest.parent}",
    )
    assert (found["equal"], found["model"]) == (True, "bert4rec")
    assert [each["name"] for each in found["checkpoints"]] == [latest.name]
    assert found["environment"]["original"] == {}
    assert found["environment"]["reproduced"]["threads"] == 1
    hits = found["figures"]["values"]["test_full_hr@10"]
    assert hits["original"] == hits["reproduced"] > 0


@pytest.mark.release
def test_a_run_of_two_processes_is_made_again_by_two(criteo, tmp_path):
    words = [f"--{name}={value}" for name, value in DLRM.items() if name != "test_freq"]
    files = [f"--dataset={criteo / 'data'}", f"--output={tmp_path / 'run'}"]
    program = ("-m", "recsys_recipes", "train", "dlrm")
    harness.python(*harness.torchrun(2), *program, *words, *files)
    found = certified(tmp_path / "run", tmp_path / "again", 0)
    assert found["environment"]["reproduced"]["processes"] == 2


def refused(run: Path, output: Path, *settings: str, **given: Path) -> None:
    """Expects a refusal before anything is written."""
    before = sorted(output.parent.rglob("*"))
    with harness.refusal(settings=settings):
        reproduce.reproduce(run, reproduce.ReproduceSettings(output=output, **given))
    assert sorted(output.parent.rglob("*")) == before


def test_what_cannot_be_reproduced_is_refused(criteo, orders, tmp_path):
    run, output = criteo / "run", tmp_path / "again"
    refused(tmp_path / "missing", output)
    refused(criteo / "data", output)
    refused(run, output, "dataset", dataset=tmp_path / "missing")
    refused(run, output, "dataset", dataset=orders / "data")
    refused(run, output, "input", input=tmp_path / "missing")
    refused(run, output, "schema", input=criteo / "raw", schema=tmp_path / "schema.yaml")
    refused(run, criteo, "output")
    with harness.refusal(settings=("schema", "input")):
        reproduce.ReproduceSettings(output=output, schema=tmp_path / "schema.yaml")
    assert reproduce.main(["reproduce", f"--output={output}"]) == 2
    assert not output.exists()


@pytest.mark.parametrize(
    ("changed", "settings"),
    [
        ({"config": {"load_checkpoint_path": "data/other"}}, ()),
        ({"config": {"grow": True}}, ()),
        ({"config": {"placement": "missing.json"}}, ()),
        ({"config": {"dataset_type": "synthetic_gpu"}}, ()),
        ({"config": {"batch_size": "many"}}, ()),
        ({"state": {"ended": ""}}, ()),
        ({"state": {"model": "logistic"}}, ()),
        ({"state": {"dataset_rows_fingerprint": "0"}}, ("dataset",)),
        ({"state": {"environment": {"device": "A GPU", "processes": 999, "threads": 1}}}, ()),
        ({"state": {"environment": {"device": "cpu", "processes": "two"}}}, ()),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_run_that_depends_on_more_is_refused(criteo, tmp_path, changed, settings):
    run = shutil.copytree(criteo / "run", tmp_path / "run")

    def change(document):
        return document | {key: document[key] | values for key, values in changed.items()}

    for manifest in run.glob(f"*/{MANIFEST_FILE}"):
        change_document(manifest, change)
    refused(run, tmp_path / "again", *settings)


def test_damaged_files_are_refused(criteo, tmp_path):
    for kind, pattern in (("run", "*.safetensors"), ("data", "label.bin")):
        copied = shutil.copytree(criteo / kind, tmp_path / kind)
        file = max(copied.rglob(pattern))
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    refused(tmp_path / "run", tmp_path / "again")
    refused(criteo / "run", tmp_path / "again", "dataset", "input", dataset=tmp_path / "data")


@pytest.mark.parametrize(
    ("changed", "files"),
    [
        ({"history": [{"name": "day_0000", "fingerprint": "0", "sources": []}]}, {}),
        ({"semantics": {"dictionaries": ["0"]}}, {}),
        ({"kind": "synthetic"}, {}),
        ({}, {"rows/day_0000.parquet": {"bytes": 1, "xxh3_128": "0"}}),
    ],
    ids=["a later day", "ids of others", "generated", "the first day"],
)
def test_a_dataset_that_depends_on_others_is_not_rebuilt(orders, tmp_path, changed, files):
    """The run can still be trained again on the dataset as it is."""
    dataset = shutil.copytree(orders / "data", tmp_path / "data")

    def change(document):
        semantics = document["semantics"] | changed.get("semantics", {})
        return document | changed | {"semantics": semantics, "files": document["files"] | files}

    change_document(dataset / MANIFEST_FILE, change)
    refused(
        *(orders / "run", tmp_path / "again", "dataset", "input"),
        dataset=dataset,
        input=orders / "orders.csv",
    )
    assert OriginalRun.open(orders / "run", dataset).dataset == dataset


OWN_FORMAT = {
    "format": "orders",
    "dialect": {"delimiter": ";", "header": False},
    "columns": [
        {"name": "who", "role": "user", "type": "string"},
        {"name": "what", "role": "item", "type": "string"},
    ],
}
PAIRS = [f"{who};{(who + step) % 6}" for who in range(9) for step in range(4)]


def remade(raw: Path, dataset: Path, output: Path, schema: Path | None = None) -> Manifest:
    """Makes a dataset again; returns its manifest, which must be that of the original."""
    original = Manifest.load(dataset)
    made = RawFiles(raw, dataset, original, schema).make(output)
    assert made == original
    return made


def test_ratings_are_read_as_they_were(tmp_path):
    """With titles, with ids that are numbers only at first, refused rows, and an own format."""
    lines = ["userId,movieId,rating,timestamp"]
    lines += [f"{who},{what},4.0,{what}" for who in range(1, 30) for what in range(1, 8)]
    raw = tmp_path / "ratings.csv"
    raw.write_text("\n".join([*lines, "30,x1,4.0,1", "30,2,3.0,2", "30,3,3.5,3"]) + "\n")
    (tmp_path / "titles.csv").write_text("movieId,title,genres\n2,Two,None\n")
    given = {"id_type": "string", "min_user_count": 3, "titles": tmp_path / "titles.csv"}
    dataset = ratings.prepare(raw, tmp_path / "text", **given)
    assert TITLES_FILE in remade(raw, dataset, tmp_path / "text_again").files
    dataset = ratings.prepare(raw, tmp_path / "left_out", titles="none", max_bad_fraction=0.1)
    assert remade(raw, dataset, tmp_path / "left_out_again").rejected == {"item": 1}
    own, schema = tmp_path / "pairs.txt", tmp_path / "own.yaml"
    own.write_text("\n".join(PAIRS) + "\n")
    schema.write_text(yaml.safe_dump(OWN_FORMAT))
    dataset = ratings.prepare(own, tmp_path / "own", format=schema)
    remade(own, dataset, tmp_path / "own_again", schema)


@pytest.mark.parametrize(
    "given",
    [
        {"format": "npy,parquet", "preset": "torchrec_nvt"},
        {"format": "parquet", "layout": "torchrec"},
        {"split_fractions": "0.5,0.2,0.3", "shuffle_seed": 3, "bin_numerical": True},
    ],
    ids=str,
)
def test_clicks_are_written_as_they_were(criteo, tmp_path, given):
    dataset = clicks.prepare(criteo / "raw", tmp_path / "data", **given)
    remade(criteo / "raw", dataset, tmp_path / "again")


def test_a_format_of_its_own_needs_its_schema(orders, tmp_path):
    dataset = shutil.copytree(orders / "data", tmp_path / "data")

    def change(document):
        return document | {"semantics": document["semantics"] | {"format": "orders"}}

    change_document(dataset / MANIFEST_FILE, change)
    given = {"dataset": dataset, "input": orders / "orders.csv"}
    refused(orders / "run", tmp_path / "again", "schema", **given)


def test_tensors_are_compared_by_bits(tmp_path):
    one = {"same": torch.tensor([torch.nan, 1.0]), "half": torch.ones(3, dtype=torch.bfloat16)}
    one |= {"count": torch.tensor(3), "gone": torch.zeros(1)}
    for name, other, expected in (
        ("equal", one, (0, 0.0, None)),
        ("moved", one | {"count": torch.tensor(5)}, (1, 2.0, "count")),
        ("shape", one | {"half": torch.ones(2)}, (1, None, None)),
        ("lacks", {name: one[name] for name in one if name != "gone"}, (1, None, None)),
    ):
        paths = tmp_path / "one", tmp_path / name
        for path, tensors in zip(paths, (one, other), strict=True):
            checkpoints.safetensors.torch.save_file(tensors, path)
        found = compare_tensors(*paths)
        assert found.tensors == 4
        assert (found.different, found.largest_difference, found.largest_in) == expected


def test_settings_are_refused_as_flags(criteo, tmp_path, capsys):
    words = ["reproduce", str(criteo / "run"), f"--output={criteo}"]
    assert reproduce.main(words) == UserError.exit_code
    harness.assert_tells(capsys.readouterr().err, "--output", criteo)
