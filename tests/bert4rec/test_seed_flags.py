# SPDX-License-Identifier: Apache-2.0
"""Flags and YAML files of the scaling repository (mahi397) mean here what they mean there."""

import gc
from pathlib import Path

import pytest
import torch

from bert4rec.train.schedule import build_schedule
from recsys.train.memory import keep_freed_memory, release_unused_memory
from recsys.train.saving.run_folder import CheckpointFolder
from tests.bert4rec.conftest import parse
from tests.checkpoints import assert_same
from tests.harness import refusal

THEIR_FILE = """\
model:
  hidden_size: 384
  num_hidden_layers: 6
  num_attention_heads: 6
  intermediate_size: 1536
  max_position_embeddings: 200
  dropout_rate: 0.1
  attention_dropout_rate: 0.2

training:
  batch_size: 256  # a comment
  learning_rate: 1e-3
  weight_decay: 0.1
  warmup_ratio: 0.1
  max_epochs: 100
  gradient_clip: 1.0
  use_amp: true
"""
"""The keys of their files, `1e-3` as there: text to a YAML reader."""


@pytest.fixture
def their_file(tmp_path):
    path = tmp_path / "bert4rec_130m.yaml"
    path.write_text(THEIR_FILE)
    return path


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["--use_amp"], ["--amp"]),
        (["--nouse_amp"], ["--noamp"]),
        (["--use_torch_compile"], ["--torch_compile"]),
    ],
)
def test_a_flag_of_theirs_is_one_of_ours(theirs, ours):
    assert parse(*theirs) == parse(*ours)
    assert parse(*theirs) != parse()


def test_a_file_of_theirs_is_read_as_it_is(their_file):
    config = parse(f"--config={their_file}")
    model, optimizer = config.model, config.optimizer
    assert (model.emb_dim, model.num_layers, model.nhead, model.ffn_dim) == (384, 6, 6, 1536)
    assert (model.max_len, model.dropout, model.attention_dropout) == (200, 0.1, 0.2)
    assert (optimizer.lr, optimizer.weight_decay, optimizer.clip_norm) == (1e-3, 0.1, 1.0)
    assert (config.data.train_batch_size, config.run.num_epochs) == (256, 100)
    assert optimizer.warmup_steps == 0.1
    assert config.precision.amp
    assert parse(f"--config={their_file}", "--nouse_amp").precision.amp is False


@pytest.mark.parametrize(
    ("setting", "line", "facts"),
    [
        ("  hidden_sizes: 384", 2, ["'hidden_sizes'"]),
        ("  init_std: 0.1", 2, ["'init_std'"]),
        ("  hidden_size: wide", 2, ["hidden_size", "'wide'"]),
        ("  emb_dim: 384\n  hidden_size: 384", 3, ["emb_dim"]),
        ("  - 384", 1, ["model"]),
        ("  hidden_size: 385\n  nhead: 6", 2, ["emb_dim 385", "nhead 6"]),
    ],
)
def test_a_wrong_line_of_their_file_is_named(their_file, setting, line, facts):
    of_training = THEIR_FILE[THEIR_FILE.index("training") :]
    their_file.write_text(f"model:\n{setting}\n{of_training}")
    with refusal(f"{their_file}:{line}", *facts):
        parse(f"--config={their_file}")


def test_warmup_steps_below_one_are_a_fraction_of_the_steps_of_the_run():
    for schedule in ("step", "cosine", "linear"):
        common = (f"--lr_schedule={schedule}", "--num_epochs=4", "--max_steps=40")
        by_ratio = build_schedule(parse(*common, "--warmup_steps=0.25"), steps_per_epoch=20)
        assert by_ratio == build_schedule(parse(*common, "--warmup_steps=10"), steps_per_epoch=20)


def test_distributed_needs_torchrun(monkeypatch):
    with refusal("torchrun"):
        parse("--distributed")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert parse("--distributed") == parse()
    with refusal("torchrun", 2):
        parse("--nodistributed")


@pytest.fixture
def common(dataset):
    return (f"--dataset_path={dataset}", "--objective=hybrid", "--accumulation_steps=2")


def test_resume_checkpoint_continues_the_run_of_a_checkpoint(program, common, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    program(*common, "--max_steps=4", f"--export_root={whole}")
    program(*common, "--max_steps=2", f"--export_root={parts}")
    latest = CheckpointFolder(parts).latest()
    program(*common, "--max_steps=4", f"--resume_checkpoint={latest}")
    assert f"Resumed from {latest} at step 2" in capsys.readouterr().out
    assert_same(whole, parts)
    with refusal(f"`export_root` {whole}"):
        parse(f"--resume_checkpoint={parts}", f"--export_root={whole}")


def test_resume_checkpoint_refuses_what_no_run_continues_from(program, common, tmp_path):
    folder = tmp_path / "run"
    with refusal(f"`resume_checkpoint` {folder}"):
        parse(f"--resume_checkpoint={folder}")
    program(*common, "--max_steps=3", "--test_freq=1", "--lr=0", f"--export_root={folder}")
    run = CheckpointFolder(folder)
    assert run.best() != run.latest()
    with refusal(run.latest()):
        parse(f"--resume_checkpoint={run.best()}")


def test_workers_make_the_same_batches(program, common, tmp_path):
    for workers in (0, 3):
        folder = tmp_path / str(workers)
        program(*common, "--max_steps=6", f"--num_workers={workers}", f"--export_root={folder}")
    assert_same(tmp_path / "0", tmp_path / "3")


@pytest.mark.parametrize(("flag", "collections"), [("--gc_after_epoch", 2), ("--print_freq=9", 0)])
def test_garbage_is_collected_after_each_epoch(program, dataset, flag, collections):
    generations = []

    def count(phase, values):
        if phase == "start":
            generations.append(values["generation"])

    gc.disable()
    gc.callbacks.append(count)
    try:
        program(f"--dataset_path={dataset}", "--num_epochs=2", "--dupe_factor=1", flag)
    finally:
        gc.callbacks.remove(count)
        gc.enable()
    assert generations.count(2) == collections


def test_memory_that_is_not_in_use_is_given_back():
    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    assert keep_freed_memory()
    held = [torch.ones(1 << 20) for _ in range(50)]
    last = torch.ones(1 << 20)  # above the others in the heap, which so cannot shrink
    del held
    before = resident()
    release_unused_memory(last.device)
    # of 204,800 KiB; what else the process does meanwhile may take some of it
    assert before - resident() > 100_000


def test_their_command_trains_here(program, their_file, tmp_path, monkeypatch):
    """All the flags of their README at once, on a model that the flags make small."""
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)):
        monkeypatch.setenv(name, str(value))
    records = program(
        f"--config={their_file}",
        *("--ffn_dim=32", "--dataset_name=random", "--max_steps=5", "--head_transform"),
        *("--use_amp", "--gc_after_epoch", "--distributed", "--num_workers=4", "--norm=post"),
        *("--run_profiler", "--run_benchmark"),
        *("--benchmark_steps=1", "--benchmark_warmup_steps=0"),
        *("--use_torch_jit_trace", "--inference_benchmark_batch_sizes=64"),
        f"--export_root={tmp_path / 'run'}",
    )
    assert records[0]["data"]["clip_norm"] == 1.0
    assert any(record["data"].get("benchmark_samples_per_s", 0) > 0 for record in records)
    assert (tmp_path / "run" / "profile" / "trace.json.gz").is_file()
    assert records[-1]["data"]["mean_inference_latency_batch_64"] > 0
