# SPDX-License-Identifier: Apache-2.0
"""Malformed flags, YAML, datasets, checkpoints: a clear message, exit code 2, nothing written."""

import io
import json
import re
import shutil

import pyarrow.parquet as pq
import pytest

from bert4rec.config import Bert4RecConfig
from recsys.data.manifest import Manifest
from tests import harness
from tests.bert4rec.conftest import CheckedProgram, make_program, raw_id, write_other_dataset

FEW = ("--num_eval_negatives=5",)
"""Fewer than the default, for which the small catalogue has too few items."""

FLAGS = [
    (["--max_len=0"], "--max_len must be at least 1"),
    (["--emb_dim=15"], "--emb_dim 15 cannot be divided among --nhead 2 heads"),
    (["--ffn_dim=0"], "--ffn_dim must be at least 1"),
    (["--dropout=1"], r"--dropout must lie in \[0, 1\)"),
    (["--attention_dropout=-0.1"], r"--attention_dropout must lie in \[0, 1\)"),
    (["--mask_prob=1.5"], r"--mask_prob must lie in \[0, 1\]"),
    (["--mask_replace=0.9", "--random_replace=0.2"], "must not add up to more than 1"),
    (["--num_negatives=0"], "--num_negatives must be at least 1"),
    (["--train_batch_size=0"], "--train_batch_size must be at least 1"),
    (["--dupe_factor=0"], "--dupe_factor must be at least 1"),
    (["--min_user_count=2"], "--min_user_count must be at least 3, got 2"),
    (["--lr=-1"], "--lr must not be negative"),
    (["--lr=nan"], "--lr must be a finite number, got nan"),
    (["--weight_decay=inf"], "--weight_decay must be a finite number, got inf"),
    (["--min_rating=nan"], "--min_rating must be a finite number, got nan"),
    (["--clip_norm=-5"], "--clip_norm must be positive, got -5"),
    (
        ["--amp", "--amp_dtype=float16", "--parallelism=dmp"],
        "--amp_dtype float16 cannot be had under --parallelism dmp.* Use --amp_dtype bfloat16",
    ),
    (["--popularity_correction=2"], "--popularity_correction"),
    (
        ["--popularity_correction=0.5", "--loss=sampled"],
        "--popularity_correction 0.5 changes the softmax .*: use --loss full",
    ),
    (["--seed=-1"], "--seed must not be negative, got -1"),
    (
        ["--recommend_users=all", "--recommend_input=x"],
        "--recommend_users and --recommend_input ex",
    ),
    ([f"--seed={2**63}"], f"--seed must be below {2**63}, got {2**63}"),
    (
        ["--dataset_name=random", "--random_item_count=10000000000"],
        "--random_item_count must be below 2147483647, got 10000000000",
    ),
    (
        ["--dataset_path=", "--dataset_name=random", "--random_size=10000000000000"],
        "--random_size 1.* is too large",
    ),
    (
        ["--dataset_path=", "--dataset_name=random", "--random_item_count=1"],
        "--random_item_count 1: a catalogue of one item leaves nothing to rank",
    ),
    (["--decay_step=0"], "--decay_step must be at least 1"),
    (["--num_epochs=0"], "--num_epochs must be at least 1"),
    (["--patience=0"], "--patience must be at least 1"),
    (["--top_k=0"], "--top_k must be at least 1"),
    (["--inference_benchmark_batch_sizes=0"], "--inference_benchmark_batch_sizes must be positive"),
    (["--inference_benchmark_batch_sizes=a"], "must be integers separated by commas"),
    (["--warmup_steps=1.5"], "--warmup_steps must be whole steps, or a fraction below 1, got 1.5"),
    (["--num_eval_negatives=39"], "60 of 60 users met .* fewer than --num_eval_negatives 39"),
    (["--mode=dmp", "--parallelism=ddp"], "--mode dmp contradicts --parallelism ddp"),
    (["--min_user_count=4"], "was prepared with --min_user_count 3; leave the flag out"),
    (["--min_rating=4"], r"again with `recsys-recipes prepare movielens --min_rating 4.0`"),
    (["--min_item_count=5"], "was prepared with --min_item_count 0"),
    (["--dataset_name=amazon"], "was made from movielens ratings"),
    (["--export_root=/proc/run"], "--export_root: /proc/run cannot be written"),
    (["--mode=recommend", "--export_root="], "--mode recommend needs --load_checkpoint_path"),
    (["--use_torch_jit_trace", "--mode=test", "--export_root="], "--use_torch_jit_trace"),
    (["--use_torch_jit_trace", "--loss=sampled", "--mode=dmp"], "--use_torch_jit_trace"),
    (["--dataset_path=nowhere"], "--dataset_path nowhere: no prepared dataset"),
    (["--load_checkpoint_path=nowhere"], "nowhere: no checkpoint here"),
    (["--config=nonesuch"], "no such file; built in are .*fast.*paper"),
]


@pytest.mark.parametrize(("arguments", "message"), FLAGS, ids=[" ".join(a) for a, _ in FLAGS])
def test_flags(program, refused, dataset, tmp_path, arguments, message):
    output = tmp_path / "run"
    error = refused(f"--dataset_path={dataset}", f"--export_root={output}", *arguments)
    assert error.startswith("error: ")
    assert re.search(message, error), error
    assert not output.exists()
    assert not program.log_path.exists()


def uncompressed(content):
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(content)), sink, compression="none")
    return sink.getvalue()


PART, MANIFEST = "sequences/part-0000.parquet", "manifest.json"
DATASETS = [
    (PART, lambda content: content[:200], "part-0000.parquet: was changed after"),
    (PART, uncompressed, "part-0000.parquet: was changed after manifest.json was written"),
    (MANIFEST, lambda _: b"{", "manifest.json"),
    (MANIFEST, lambda content: content.replace(b'"kind": "sequences"', b'"kind": "criteo"'),
     "holds a dataset of kind criteo, expected sequences"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "change", "message"), DATASETS)
def test_datasets(refused, dataset, tmp_path, file, change, message):
    copy, output = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(dataset, copy)
    (copy / file).write_bytes(change((copy / file).read_bytes()))
    error = refused(f"--dataset_path={copy}", f"--export_root={output}", "--max_steps=2")
    assert message in error
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
        file.write_text(json.dumps(document))


def other_catalogue(folder):
    change_state(folder, lambda state: state.update(num_items=41))


# All modes open a checkpoint alike: each fault is met in one of them.
@pytest.mark.parametrize(
    ("mode", "damage", "arguments", "message"),
    [
        ("inference_benchmark", flip_a_bit, [], "its checksum differs"),
        ("recommend", lambda folder: harness.put_nan(folder, "model"), [], "NaN or infinite"),
        ("test", other_catalogue, [], "was trained on 41 items"),
        ("recommend", lambda folder: None, ["--emb_dim=8"], "the model float32 [42, 8]"),
    ],
)
def test_checkpoints(refused, dataset, trained, tmp_path, mode, damage, arguments, message):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    damage(folder)
    flags = (f"--dataset_path={dataset}", f"--load_checkpoint_path={folder}", *arguments)
    assert message in refused(f"--mode={mode}", *flags, model=FEW, stdin=b"")


MODELS = {
    "plain": ("--num_layers=1", "--norm=post", "--head=tied", "--nohead_transform"),
    "rich": ("--num_layers=2", "--norm=pre", "--head=untied", "--head_transform"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """A checkpoint of a plain and of a rich model."""
    folder = tmp_path_factory.mktemp("variants")
    program = make_program(folder, CheckedProgram)
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
    assert f"was trained on 40 items (dataset fingerprint {first}), " in error
    assert f"{other} has 40 items (dataset fingerprint {second})" in error
    assert "name the dataset of the training with --dataset_path" in error
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
    assert error.startswith(
        "error: --dataset_path ml-1m, the default for --dataset_name ml-1m: no prepared dataset"
    )


def test_a_diverged_model_is_neither_ranked_nor_saved(program, dataset, tmp_path, capsys):
    output = tmp_path / "run"
    flags = (f"--dataset_path={dataset}", f"--export_root={output}", "--lr=1e38")
    for schedule in ("--test_freq=1", "--max_steps=1"):
        program(*flags, schedule, status=4)
        assert "is NaN or infinite" in capsys.readouterr().err
        assert not list(output.glob("step_*/manifest.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe 5\n", "histories.txt: not one of 1 lines holds an item of the dataset"),
        (b"1\n2\n\n", "histories.txt: not one of 3 lines holds an item of the dataset"),
        (None, "histories.txt: No such file or directory"),
    ],
)
def test_histories(refused, loaded, tmp_path, content, message):
    file = tmp_path / "histories.txt"
    if content is not None:
        file.write_bytes(content)
    error = refused("--mode=recommend", *loaded, f"--recommend_input={file}", model=())
    assert message in error


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe", "not UTF-8 text: "),
        (b'["item 1" "item 2"]', "not a JSON list of item ids: Expecting ',' delimiter"),
        (b'{"history": ["item 1"]}', "not a JSON list of item ids: a JSON dict"),
    ],
)
def test_a_line_that_is_no_history_leaves_the_others_their_lists(recommend, loaded, line, reason):
    lines = [raw_id(1).encode(), line, raw_id(2).encode()]
    first, second, third = recommend(*loaded, lines=b"\n".join(lines))
    assert len(first["items"]) == len(third["items"]) == 10
    assert second["line"] == 2
    assert second["error"].startswith(reason)


def test_settings_under_names_that_are_none():
    with pytest.raises(ValueError, match="unknown settings: max_length"):
        Bert4RecConfig.from_dict({"max_length": 3})
