# SPDX-License-Identifier: Apache-2.0
"""Malformed flags, YAML, datasets, checkpoints: a clear message, exit code 2, nothing written."""

import itertools
import json
import re
import shutil

import pytest

from bert4rec.config import Bert4RecConfig
from recsys.data.manifest import Manifest
from recsys.train.saving.write import write_checkpoint
from tests import harness
from tests.bert4rec.conftest import raw_id, write_other_dataset

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
    (["--dataset_name=random", "--random_size=10000000000000"], "--random_size 1.* is too large"),
    (
        ["--dataset_name=random", "--random_item_count=1"],
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
    (["--min_rating=4"], r"again with `python -m preproc.movielens --min_rating 4.0`"),
    (["--min_item_count=5"], "was prepared with --min_item_count 0"),
    (["--dataset_name=amazon"], "was made from movielens ratings"),
    (["--export_root=/proc/run"], "--export_root: /proc/run cannot be written"),
    (["--mode=recommend"], "--mode recommend needs --load_checkpoint_path"),
    (["--load_checkpoint_path=nowhere"], "nowhere: no checkpoint here"),
    (["--config=nonesuch"], "no such file; built in are .*fast.*paper"),
]


@pytest.mark.parametrize(("arguments", "message"), FLAGS, ids=[" ".join(a) for a, _ in FLAGS])
def test_flags(program, dataset, tmp_path, capsys, arguments, message):
    output = tmp_path / "run"
    program(f"--dataset_path={dataset}", f"--export_root={output}", *arguments)
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    assert error.startswith("error: ")
    assert re.search(message, error), error
    assert not output.exists()
    assert not program.log_path.exists()


def test_yaml_that_says_what_flags_say(program, dataset, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("lr: 1e-3\nemb_dim: 8\nclip_norm: null\nmax_steps: 1\n"
                    "inference_benchmark_batch_sizes: [2, 4]\n")  # fmt: skip
    records = program(f"--dataset_path={dataset}", f"--config={file}", model=("--nhead=2",))
    assert program.exit_code == 0
    found = records[0]["data"]
    assert (found["lr"], found["emb_dim"], found["clip_norm"]) == (0.001, 8, None)
    assert found["inference_benchmark_batch_sizes"] == [2, 4]


def cut_part(root):
    file = root / "sequences" / "part-0000.parquet"
    file.write_bytes(file.read_bytes()[:200])


def no_item_map(root):
    (root / "item_map.parquet").unlink()


def bad_manifest(root):
    (root / "manifest.json").write_text("{")


def of_clicks(root):
    file = root / "manifest.json"
    file.write_text(file.read_text().replace('"kind": "sequences"', '"kind": "criteo"'))


DATASETS = [
    (cut_part, "part-0000.parquet: is missing or damaged"),
    (no_item_map, "item_map.parquet: is missing or damaged"),
    (bad_manifest, "manifest.json"),
    (of_clicks, "holds a dataset of kind criteo, expected sequences"),
    (lambda root: (root / "manifest.json").unlink(), "no prepared dataset"),
    (shutil.rmtree, "no prepared dataset"),
]


@pytest.mark.parametrize(("damage", "message"), DATASETS)
def test_datasets(program, dataset, tmp_path, capsys, damage, message):
    copy, output = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(dataset, copy)
    damage(copy)
    program(f"--dataset_path={copy}", f"--export_root={output}", "--max_steps=2")
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    assert message in error
    assert not output.exists()


def the_file(folder, name):
    return next(folder.glob(f"step_*/{name}"))


def cut_weights(folder):
    for file in folder.glob("step_*/model.safetensors"):
        file.write_bytes(file.read_bytes()[:-10])


def flip_a_bit(folder):
    for file in folder.glob("step_*/model.safetensors"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)


def no_weights(folder):
    for file in folder.glob("step_*/model.safetensors"):
        file.unlink()


def of_another_model(folder):
    shutil.rmtree(folder)
    write_checkpoint(folder, {}, {"step": 1}, {})


def other_catalogue(folder):
    for file in folder.glob("step_*/manifest.json"):
        document = json.loads(file.read_text())
        document["state"]["num_items"] += 1
        file.write_text(json.dumps(document))


CHECKPOINTS = [
    (cut_weights, [], "model.safetensors: missing or cut short"),
    (flip_a_bit, [], "its checksum differs"),
    (no_weights, [], "model.safetensors: missing"),
    (shutil.rmtree, [], "no checkpoint here"),
    (lambda folder: harness.put_nan(folder, "model"), [], "holds values that are NaN or infinite"),
    (of_another_model, [], "not a checkpoint of BERT4Rec"),
    (other_catalogue, [], "was trained on 41 items"),
    (lambda folder: None, ["--emb_dim=8"], "the checkpoint has shape"),
    (lambda folder: None, ["--head=untied"], "has no tensor 'head.weight'"),
]


MODES = itertools.cycle(["test", "recommend", "inference_benchmark"])
"""All open a checkpoint alike: each fault is met in one of them."""


@pytest.mark.parametrize(
    ("mode", "damage", "arguments", "message"),
    [(mode, *fault) for mode, fault in zip(MODES, CHECKPOINTS, strict=False)],
)
def test_checkpoints(program, dataset, trained, tmp_path, capsys, mode, damage, arguments, message):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    damage(folder)
    program(f"--mode={mode}", f"--dataset_path={dataset}", f"--load_checkpoint_path={folder}",
            *arguments, model=("--num_eval_negatives=5",), stdin=b"")  # fmt: skip
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    assert message in error


@pytest.mark.parametrize("mode", ["train", "test", "recommend", "inference_benchmark"])
def test_another_dataset_with_as_many_items(program, dataset, trained, tmp_path, capsys, mode):
    other = write_other_dataset(tmp_path / "other")
    program(f"--mode={mode}", f"--dataset_path={other}", f"--load_checkpoint_path={trained}",
            "--max_steps=1", model=("--num_eval_negatives=5",), stdin=b"")  # fmt: skip
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    assert f"was trained on 40 items (dataset fingerprint {fingerprint(dataset)}), " in error
    assert f"{other} has 40 items (dataset fingerprint {fingerprint(other)})" in error
    assert "name the dataset of the training with --dataset_path" in error
    assert not program.log_path.exists()


def test_a_checkpoint_without_fingerprint_is_taken_by_its_items(
    program, dataset, trained, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for file in folder.glob("step_*/manifest.json"):
        document = json.loads(file.read_text())
        del document["state"]["dataset_fingerprint"]
        file.write_text(json.dumps(document))
    other = write_other_dataset(tmp_path / "other")
    program("--mode=test", f"--dataset_path={other}", f"--load_checkpoint_path={folder}",
            model=("--num_eval_negatives=5",))  # fmt: skip
    assert program.exit_code == 0


def test_recommending_without_a_dataset(program, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program("--mode=recommend", f"--load_checkpoint_path={trained}", model=(), stdin=b"1")
    assert program.exit_code == 2
    assert capsys.readouterr().err.startswith(
        "error: --dataset_path ml-1m, the default for --dataset_name ml-1m: no prepared dataset"
    )


def fingerprint(root):
    return Manifest.load(root).fingerprint


def test_a_diverged_model_is_neither_ranked_nor_saved(program, dataset, tmp_path, capsys):
    output = tmp_path / "run"
    for schedule in (["--test_freq=1"], ["--max_steps=1"]):
        program(f"--dataset_path={dataset}", f"--export_root={output}", "--lr=1e38", *schedule)
        assert program.exit_code == 4
        assert "is NaN or infinite" in capsys.readouterr().err
        assert not list(output.glob("step_*/manifest.json"))


@pytest.mark.parametrize(("content", "lines"), [(b"\xff\xfe 5\n", 1), (b"1\n2\n\n", 3)])
def test_histories(program, loaded, tmp_path, capsys, content, lines):
    file = tmp_path / "histories.txt"
    file.write_bytes(content)
    program("--mode=recommend", *loaded, f"--recommend_input={file}", model=())
    assert program.exit_code == 2
    error = capsys.readouterr().err
    assert f"histories.txt: not one of {lines} lines holds an item of the dataset" in error


def test_a_line_that_is_not_text_leaves_the_others_their_lists(program, loaded, capsys):
    lines = [raw_id(1).encode(), b"\xff\xfe", raw_id(2).encode()]
    program("--mode=recommend", *loaded, model=(), stdin=b"\n".join(lines))
    assert program.exit_code == 0
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(first["items"]) == len(third["items"]) == 10
    assert second["line"] == 2
    assert second["error"].startswith("not UTF-8 text: ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('["item 1" "item 2"]', "not a JSON list of item ids: Expecting ',' delimiter"),
        ('{"history": ["item 1"]}', "not a JSON list of item ids: a JSON dict"),
    ],
)
def test_a_line_that_is_no_list_says_so(program, loaded, capsys, line, reason):
    lines = [raw_id(1), line]
    program("--mode=recommend", *loaded, model=(), stdin="\n".join(lines).encode())
    assert program.exit_code == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(first["items"]) == 10
    assert second["error"].startswith(reason)


def test_histories_that_are_not_there(program, loaded, tmp_path, capsys):
    program("--mode=recommend", *loaded, f"--recommend_input={tmp_path / 'none.txt'}", model=())
    assert program.exit_code == 2
    error = f"--recommend_input {tmp_path / 'none.txt'}: No such file or directory"
    assert error in capsys.readouterr().err


def test_no_history_at_all_is_no_error(program, loaded, capsys):
    program("--mode=recommend", *loaded, model=(), stdin=b"")
    assert program.exit_code == 0
    assert capsys.readouterr().out == ""
    program("--mode=recommend", *loaded, model=(), stdin=raw_id(1).encode())
    assert len(json.loads(capsys.readouterr().out)["items"]) == 10


def test_settings_under_names_that_are_none():
    with pytest.raises(ValueError, match="unknown settings: max_length"):
        Bert4RecConfig.from_dict({"max_length": 3})
