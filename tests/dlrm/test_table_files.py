# SPDX-License-Identifier: Apache-2.0
"""Tables in files: the same bits as in memory, within a limit, and errors before a run begins."""

import resource
import weakref
from pathlib import Path

import pytest
import torch

from dlrm.nn.table_files import TableFiles
from preproc.clicks.job import semantics_of_schema
from recsys.errors import UserError
from tests import harness
from tests.checkpoints import assert_same
from tests.dlrm.conftest import SMALL_MODEL
from tests.dlrm.days import FIRST, write_logs
from tests.harness import assert_tells
from tests.mounts import tmpfs
from tests.preproc.clicks import schema_log
from tests.preproc.clicks.rows import extend, run
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

IN_FILES = "--table_memory=1MiB"  # less than the tables
RULES = {
    "sgd": (),
    "rowwise_adagrad": ("--optimizer=rowwise_adagrad", "--lr=0.05"),
    "adam": ("--optimizer=adam", "--lr=0.01", "--epochs=2"),
    "networks": ("--seeds=2", "--shuffle_batch_order", "--embedding_weight_decay=0.01"),
}


@pytest.mark.parametrize("case", RULES)
def test_the_bits_are_those_of_tables_in_memory(program, dataset, tmp_path, case):
    program.train(dataset, tmp_path / "memory", *RULES[case])
    program.train(dataset, tmp_path / "files", *RULES[case], IN_FILES)
    assert_same(tmp_path / "memory", tmp_path / "files")
    assert not list((tmp_path / "files").glob("table_*"))


def test_a_run_moves_from_memory_to_files_and_back(program, dataset, tmp_path):
    program.train(dataset, tmp_path / "whole", "--optimizer=adam", "--lr=0.01")
    for steps, place in ((10, ()), (25, (IN_FILES,)), (None, ())):
        end = () if steps is None else (f"--max_steps={steps}", "--test_after=9")
        parts = ("--optimizer=adam", "--lr=0.01", "--resume", *place, *end)
        program.train(dataset, tmp_path / "parts", *parts)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_test_of_tables_in_files_gives_the_same_numbers(program, dataset, tmp_path):
    program.train(dataset, tmp_path / "run", "--max_steps=20")
    test = ("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={tmp_path / 'run'}")
    in_memory, in_files = (program(*test, *place)[-1] for place in ((), (IN_FILES,)))
    assert in_files["data"]["auc"] == in_memory["data"]["auc"]
    assert in_files["data"]["log_loss"] == in_memory["data"]["log_loss"]


@needs("compiled Criteo kernel")
def test_tables_with_lists(program, tmp_path):
    schema = schema_log.write_schema(tmp_path)
    log = tmp_path / "log.csv"
    log.write_bytes(schema_log.text_of(schema_log.rows(400, seed=1)))
    dataset = tmp_path / "dataset"
    run(log, dataset, semantics=semantics_of_schema(schema, {}))
    for place, where in (((), "memory"), ((IN_FILES,), "files")):
        program.train(dataset, tmp_path / where, "--batch_size=32", "--lr=0.01", *place)
    assert_same(tmp_path / "memory", tmp_path / "files")


@needs("compiled Criteo kernel")
def test_tables_that_grow(program, tmp_path):
    for log in write_logs(tmp_path / "logs"):
        extend(tmp_path / "days", log, FIRST)
    for place, where in (((), "memory"), ((IN_FILES,), "files")):
        program.train(tmp_path / "days", tmp_path / where, "--grow", "--progressive", *place)
    assert_same(tmp_path / "memory", tmp_path / "files")


def test_the_memory_stays_below_the_limit(tmp_path):
    rows = 500_000  # 128 MB, and as much for each moment of Adam
    run = (
        *("-m", "dlrm.scripts.main", *SMALL_MODEL, "--embedding_dim=64", "--optimizer=adam"),
        *("--bottom_mlp_sizes=16,64", "--dataset_type=synthetic_gpu", "--max_steps=40"),
        *(f"--synthetic_dataset_table_sizes={rows},100", "--synthetic_dataset_num_entries=10000"),
        *("--lr=0.01", "--num_threads=1", f"--log_path={tmp_path / 'log.json'}"),
    )
    _, in_memory = harness.measure_memory(*run, kind="VmRSS")
    saved = f"--save_checkpoint_path={tmp_path / 'run'}"
    _, in_files = harness.measure_memory(*run, "--table_memory=32MiB", saved, kind="VmRSS")
    tables = 3 * rows * 64 * 4
    assert in_memory - in_files > tables - 32 * 2**20 - 96 * 2**20


def test_files_are_gone_with_their_tables(tmp_path):
    """Also on the next day of a growing dataset, whose tables are new files in the same process."""
    files = TableFiles(tmp_path, 2**20, 2**24)
    table = files.allocate(torch.Size((100_000, 64)))
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 1
    gone = weakref.ref(files)
    del files, table
    harness.wait_for(lambda: gone() is None, "the end of the tables")
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    "flag",
    [
        "--embedding_type=multi_table",
        "--embedding_storage=bfloat16",
        "--embedding_l2=0.1",
        "--reset_embeddings",
    ],
)
def test_what_needs_whole_tables_in_memory_is_refused(program, dataset, tmp_path, flag):
    message = program.refused(f"--dataset={dataset}", IN_FILES, flag)
    assert_tells(message, "--table_memory", flag.partition("=")[0])


def test_quantization_and_no_memory_are_refused(program, dataset, tmp_path):
    quantized = ("--mode=test", "--quantize=int8", f"--load_checkpoint_path={tmp_path}")
    assert_tells(program.refused(f"--dataset={dataset}", IN_FILES, *quantized), "--quantize")
    assert_tells(program.refused(f"--dataset={dataset}", "--table_memory=0"), "--table_memory")


@pytest.mark.multiprocess
def test_several_processes_are_refused(dataset, tmp_path):
    from dlrm.scripts import main

    run = (*SMALL_MODEL, f"--dataset={dataset}", IN_FILES, f"--log_path={tmp_path / 'log'}")
    assert_tells(harness.call_on_ranks(2, main, *run, status=2), "--table_memory", 2)


def test_a_disk_without_space_is_named_before_training(tmp_path):
    files = TableFiles(tmp_path, 2**20, 2**24)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(UserError) as refused:
            files.allocate(torch.Size((10_000, 64)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert refused.value.settings[0] == "table_memory"
    assert_tells(str(refused.value), "2.4 MiB", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_for_all_tables_is_named(program, dataset, tmp_path):
    """Before the first table is made: the state of the optimizer comes after it."""
    adam = ("--optimizer=adam", "--lr=0.01", f"--save_checkpoint_path={tmp_path / 'disk' / 'run'}")
    with tmpfs(tmp_path / "disk", "2m") as disk:  # more than the table, less than the moments too
        message = program.refused(f"--dataset={dataset}", IN_FILES, *adam)
        assert_tells(message, "--table_memory", "3.7 MiB", disk / "run")
