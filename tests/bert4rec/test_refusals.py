# SPDX-License-Identifier: Apache-2.0
"""Malformed flags, YAML, datasets, checkpoints: a clear message, exit code 2, nothing written."""

import errno
import io
import json
import os
import shutil

import pyarrow.parquet as pq
import pytest

from bert4rec.config import Bert4RecConfig
from recsys.data.manifest import Manifest
from tests import harness
from tests.bert4rec.conftest import make_program, raw_id, write_other_dataset
from tests.documents import change_document, with_checksum
from tests.harness import assert_tells, refusal

FEW = ("--num_eval_negatives=5",)
"""Fewer than the default, for which the small catalogue has too few items."""

FLAGS = {  # flags: what the error tells besides the first of them
    "--max_len=0": "1 0",
    "--emb_dim=15": "15 --nhead 2",
    "--ffn_dim=0": "1 0",
    "--dropout=1": "[0, 1) 1.0",
    "--attention_dropout=-0.1": "[0, 1) -0.1",
    "--mask_prob=1.5": "[0, 1] 1.5",
    "--mask_replace=0.9 --random_replace=0.2": "0.9 --random_replace 0.2 1",
    "--num_negatives=0": "1 0",
    "--train_batch_size=0": "1 0",
    "--dupe_factor=0": "1 0",
    "--min_user_count=2": "3 2",
    "--lr=-1": "-1.0",
    "--lr=nan": "nan",
    "--weight_decay=inf": "inf",
    "--min_rating=nan": "nan",
    "--clip_norm=-5": "-5.0",
    "--amp_dtype=float16 --amp --parallelism=dmp": "float16 --parallelism dmp bfloat16",
    "--popularity_correction=2": "[0, 1] 2.0",
    "--popularity_correction=0.5 --loss=sampled": "0.5 --loss sampled full",
    "--seed=-1": "-1",
    "--recommend_users=all --recommend_input=x": "--recommend_input",
    f"--seed={2**63}": f"{2**63}",
    "--random_item_count=10000000000 --dataset_name=random": "2147483647 10000000000",
    "--random_size=10000000000000 --dataset_name=random --dataset_path=": "10000000000000 36.4",
    "--random_item_count=1 --dataset_name=random --dataset_path=": "1",
    "--decay_step=0": "1 0",
    "--num_epochs=0": "1 0",
    "--patience=0": "1 0",
    "--top_k=0": "1 0",
    "--inference_benchmark_batch_sizes=0": "'0'",
    "--inference_benchmark_batch_sizes=a": "'a'",
    "--warmup_steps=1.5": "1 1.5",
    "--num_eval_negatives=39": "60 40 39",
    "--mode=dmp --parallelism=ddp": "dmp --parallelism ddp",
    "--min_user_count=4": "4 3 recsys-recipes prepare ratings",
    "--min_rating=4": "4.0 0.0 recsys-recipes prepare ratings",
    "--min_item_count=5": "5 0 recsys-recipes prepare ratings",
    "--dataset_name=amazon": "amazon movielens",
    "--export_root=/proc/run": "/proc/run /proc:",
    "--mode=recommend --export_root=": "--load_checkpoint_path",
    "--use_torch_jit_trace --mode=test --export_root=": "--mode inference_benchmark train test",
    "--use_torch_jit_trace --loss=sampled --mode=dmp": "--parallelism dmp --mode",
    "--dataset_path=nowhere": "nowhere manifest.json",
    "--load_checkpoint_path=nowhere": "nowhere",
    "--config=nonesuch": "nonesuch fast, paper,",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_flags(program, refused, dataset, tmp_path, flags):
    output = tmp_path / "run"
    error = refused(f"--dataset_path={dataset}", f"--export_root={output}", *flags.split())
    assert error.startswith("error: ")
    assert_tells(error, flags.split("=")[0].split()[0], *FLAGS[flags].split())
    assert not output.exists()
    assert not program.log_path.exists()


def uncompressed(content):
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(content)), sink, compression="none")
    return sink.getvalue()


def of_another_kind(content: bytes) -> bytes:
    return with_checksum(content.decode().replace('"sequences"', '"criteo"', 1)).encode()


PART, MANIFEST = "sequences/part-0000.parquet", "manifest.json"
DATASETS = [
    (PART, lambda content: content[:200], f"copy/{PART} manifest.json"),
    (PART, uncompressed, f"copy/{PART} manifest.json"),
    (MANIFEST, lambda _: b"{", "copy/manifest.json"),
    (MANIFEST, of_another_kind,
     "--dataset_path copy criteo ratings"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "change", "facts"), DATASETS)
def test_datasets(refused, dataset, tmp_path, file, change, facts):
    copy, output = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(dataset, copy)
    (copy / file).write_bytes(change((copy / file).read_bytes()))
    error = refused(f"--dataset_path={copy}", f"--export_root={output}", "--max_steps=2")
    assert_tells(error, *facts.split())
    assert not output.exists()


def flip_a_bit(folder):
    for file in folder.glob("step_*/model.safetensors"):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def change_state(folder, change):
    """Rewrites the manifests of a run; `change` alters what they store in place."""
    for file in folder.glob("step_*/manifest.json"):
        document = json.loads(file.read_text())
        change(document["state"])
        change_document(file, lambda _, changed=document: changed)


def other_catalogue(folder):
    change_state(folder, lambda state: state.update(num_items=41))


# All modes open a checkpoint alike: each fault is met in one of them.
@pytest.mark.parametrize(
    ("mode", "damage", "arguments", "facts"),
    [
        ("inference_benchmark", flip_a_bit, [], ["model.safetensors", "manifest.json"]),
        ("recommend", lambda f: harness.put_nan(f, "model"), [], ["model.safetensors", "NaN"]),
        ("test", other_catalogue, [], [41, 40]),
        ("recommend", lambda _: None, ["--emb_dim=8"], ["[42, 16]", "[42, 8]"]),
    ],
)
def test_checkpoints(refused, dataset, trained, tmp_path, mode, damage, arguments, facts):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    damage(folder)
    flags = (f"--dataset_path={dataset}", f"--load_checkpoint_path={folder}", *arguments)
    assert_tells(refused(f"--mode={mode}", *flags, model=FEW, stdin=b""), *facts)


MODELS = {
    "plain": ("--num_layers=1", "--norm=post", "--head=tied", "--nohead_transform"),
    "rich": ("--num_layers=2", "--norm=pre", "--head=untied", "--head_transform"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """A checkpoint of a plain and of a rich model."""
    folder = tmp_path_factory.mktemp("variants")
    program = make_program(folder)
    for name, flags in MODELS.items():
        run = f"--export_root={folder / name}"
        program(f"--dataset_path={dataset}", run, *flags, "--max_steps=1")
    return folder


@pytest.mark.parametrize(("name", "other"), [("plain", "rich"), ("rich", "plain")])
def test_every_layer_is_loaded_or_refused(program, refused, dataset, saved, name, other):
    common = ("--mode=test", f"--dataset_path={dataset}", f"--load_checkpoint_path={saved / name}")
    tested = [program(*common, *flags, model=FEW)[-1]["data"] for flags in ((), MODELS[name])]
    assert tested[0]["test_full_ndcg@10"] == tested[1]["test_full_ndcg@10"]
    for flag in (*MODELS[other], "--activation=swiglu"):
        assert str(saved / name) in refused(*common, flag, model=FEW)


@pytest.mark.parametrize("mode", ["train", "test", "recommend", "inference_benchmark"])
def test_another_dataset_with_as_many_items(program, refused, dataset, trained, tmp_path, mode):
    other = write_other_dataset(tmp_path / "other")
    flags = (f"--dataset_path={other}", f"--load_checkpoint_path={trained}")
    error = refused(f"--mode={mode}", *flags, model=FEW, stdin=b"")
    first, second = (Manifest.load(root).fingerprint for root in (dataset, other))
    assert_tells(error, trained, first, other, second, "--dataset_path")
    assert not program.log_path.exists()


def test_a_checkpoint_without_fingerprint_is_taken_by_its_items(program, trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    change_state(folder, lambda state: state.pop("dataset_fingerprint"))
    other = write_other_dataset(tmp_path / "other")
    flags = (f"--dataset_path={other}", f"--load_checkpoint_path={folder}")
    program("--mode=test", *flags, model=FEW)


def test_recommending_without_a_dataset(refused, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = refused("--mode=recommend", f"--load_checkpoint_path={trained}", model=(), stdin=b"1")
    assert_tells(error, "--dataset_path ml-1m", "--dataset_name ml-1m")


def test_a_diverged_model_is_neither_ranked_nor_saved(program, dataset, tmp_path, capsys):
    output = tmp_path / "run"
    flags = (f"--dataset_path={dataset}", f"--export_root={output}", "--lr=1e38")
    for schedule in ("--test_freq=1", "--max_steps=1"):
        program(*flags, schedule, status=4)
        assert_tells(capsys.readouterr().err, "NaN")
        assert not list(output.glob("step_*/manifest.json"))


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"\xff\xfe 5\n", [1]),
        (b"1\n2\n\n", [3]),
        (None, ["--recommend_input", os.strerror(errno.ENOENT)]),
    ],
)
def test_histories(refused, loaded, tmp_path, content, facts):
    file = tmp_path / "histories.txt"
    if content is not None:
        file.write_bytes(content)
    error = refused("--mode=recommend", *loaded, f"--recommend_input={file}", model=())
    assert_tells(error, file, *facts)


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (b"\xff\xfe", "UTF-8"),
        (b'["item 1" "item 2"]', "','"),
        (b'{"history": ["item 1"]}', "dict"),
    ],
)
def test_a_line_that_is_no_history_leaves_the_others_their_lists(recommend, loaded, line, fact):
    lines = [raw_id(1).encode(), line, raw_id(2).encode()]
    first, second, third = recommend(*loaded, lines=b"\n".join(lines))
    assert len(first["items"]) == len(third["items"]) == 10
    assert second["line"] == 2
    assert_tells(second["error"], fact)


def test_settings_under_names_that_are_none():
    with refusal("max_length"):
        Bert4RecConfig.from_dict({"max_length": 3})
