# SPDX-License-Identifier: Apache-2.0
"""dlrm.scripts.train_torchrec: the flags of TorchRec's example drive DLRM's own training."""

import json
import re
import resource
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dlrm.scripts import train_torchrec
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader
from recsys.program import new_flags
from recsys.train.optimizers.dense import dense_rule_beside
from tests import harness
from tests.checkpoints import tensors
from tests.dlrm.conftest import CARDINALITIES, CapturedProgram, losses
from tests.dlrm.ranks import torchrun
from tests.harness import assert_tells

TABLES = (40, 30, 20, 10, 50, 3, 20, 15, 6, 40, 30, 40, 10, 22, 11, 15, 4, 9, 14) + (40,) * 7
ROWS = {"train": 6400, "validation": 1280, "test": 1000}
BATCH_SIZE = 128

SIZES = (
    *("--num_embeddings_per_feature", ",".join(map(str, TABLES))),
    *("--over_arch_layer_sizes", "16,8,1", "--dense_arch_layer_sizes", "16,8"),
    *("--embedding_dim", "8"),
)


@pytest.fixture(scope="module")
def binary_path(tmp_path_factory):
    """TorchRec's layout: 4 bytes for every value, no feature spec."""
    root = tmp_path_factory.mktemp("criteo_binary") / "split"
    for seed, (split, rows) in enumerate(ROWS.items()):
        generator = np.random.default_rng(seed)
        numerical = generator.normal(size=(rows, 13)).astype("<f4")
        ids = [generator.integers(0, n, rows).astype("<i4") for n in TABLES]
        logit = 2 * numerical[:, 0] + 1.5 * (ids[5] - 1)
        folder = root / split
        folder.mkdir(parents=True)
        label = generator.random(rows) < 1 / (1 + np.exp(-logit))
        (folder / "label.bin").write_bytes(label.astype("<f4").tobytes())
        (folder / "numerical.bin").write_bytes(numerical.tobytes())
        for i, column in enumerate(ids):
            (folder / f"cat_{i}.bin").write_bytes(column.tobytes())
    return root


class Torchrec(CapturedProgram):
    """The program in this process, with flags that begin with one dash to three."""

    def __call__(self, *arguments, **options):
        words = train_torchrec.spelled_with_two_dashes(list(map(str, arguments)))
        return super().__call__(*words, "--base_device=cpu", **options)


@pytest.fixture
def train(tmp_path):
    return Torchrec(train_torchrec, tmp_path, ())


@pytest.fixture
def common(binary_path):
    """The flags of most runs."""
    return (
        *SIZES, "--binary_path", binary_path, "--learning_rate", "0.5",
        "--throughput_check_freq_within_epoch", "1",
    )  # fmt: skip


def printed(output, pattern):
    """Returns the numbers that lines of this form hold."""
    return [float(number) for number in re.findall(pattern, output, re.MULTILINE)]


VALIDATION, TEST = (f"^AUROC over {split} set: (.*)\\.$" for split in ("validation", "test"))
EXAMPLE = (
    "--num_embeddings_per_feature 40000000,39060,17295,7424,20265,3,7122,1543,63,40000000,"
    "3067956,405282,10,2209,11938,155,4,976,14,40000000,40000000,40000000,590152,12973,108,36 "
    "--over_arch_layer_sizes 1024,1024,512,256,1 --dense_arch_layer_sizes 512,256,128 "
    "--embedding_dim 128 --binary_path /data/criteo_binary/split/ --learning_rate 1.0 "
    "--validation_freq_within_epoch 1000000 --throughput_check_freq_within_epoch 1000000 "
    "--batch_size 256 ---adagrad"
)


@pytest.mark.parametrize(
    ("command", "rules", "expected"),
    [
        (
            EXAMPLE,
            ("rowwise_adagrad", "adagrad"),
            {
                "dataset": "/data/criteo_binary/split/",
                "dataset_type": "split",
                "eval_split": "validation",
                "batch_size": 256,
                "top_mlp_sizes": [1024, 1024, 512, 256, 1],
                "bottom_mlp_sizes": [512, 256, 128],
                "embedding_dim": 128,
                "lr": 1.0,
                "warmup_steps": 0,
                "decay_steps": 0,
                "test_freq": 1_000_000,
                "print_freq": 1_000_000,
            },
        ),
        (
            "",
            ("sgd", "sgd"),
            {
                "dataset": "/data/criteo_1tb/criteo_binary/split/",
                "batch_size": 32,
                "lr": 15.0,
                "epochs": 1,
                "test_freq": 10000,
                "print_freq": 1000,
            },
        ),
    ],
    ids=["example", "defaults"],
)
def test_flags_mean_what_they_do_in_the_example(command, rules, expected):
    values = new_flags()
    train_torchrec.define_flags(values)
    words = train_torchrec.spelled_with_two_dashes(command.split())
    assert values(["train_torchrec", *words])[1:] == []
    config = train_torchrec.config_from_flags(values)
    assert expected.items() <= config.to_dict().items()
    rule = config.optimizer.optimizer
    assert (rule, dense_rule_beside(rule)) == rules
    sizes = config.data.num_embeddings_per_feature
    assert (len(sizes), sizes[:1]) == ((26, (40_000_000,)) if command else (0, ()))


def test_trains_and_prints_as_the_example_does(train, binary_path):
    records = train(
        *SIZES, "--binary_path", binary_path, "--learning_rate", "0.5",
        "--validation_freq_within_epoch", "20", "--throughput_check_freq_within_epoch", "10",
        "--batch_size", BATCH_SIZE,
    )  # fmt: skip
    out = train.stdout
    assert printed(out, r"^step (\d+)$") == [10, 20, 30, 40, 50]
    speeds = re.findall(r"^throughput (\{.*\})$", out, re.MULTILINE)
    assert len(speeds) == 5
    found = json.loads(speeds[2].replace("'", '"'))
    assert found["throughput-throughput|total_examples"] == 30 * BATCH_SIZE
    (step_time,) = [r["data"]["step_time"] for r in records if r["step"] == [0, 30]][:1]
    assert found["throughput-throughput|window_throughput"] == pytest.approx(BATCH_SIZE / step_time)
    validated = printed(out, VALIDATION)
    assert len(validated) == 3
    assert validated == [r["data"]["auc"] for r in records if "auc" in r["data"]]
    (tested,) = printed(out, TEST)
    assert tested > 0.8
    (accuracy,) = printed(out, r"^Accuracy over test set: (.*)\.$")
    assert 0.7 < accuracy < 1
    assert out.index("AUROC over validation") < out.index("AUROC over test")


@pytest.mark.parametrize(
    ("rule", "flags"), [("sgd", ()), ("rowwise_adagrad", ("---adagrad",))], ids=["sgd", "adagrad"]
)
def test_arrives_where_the_main_program_does(train, program, binary_path, common, rule, flags):
    more = ("--batch_size", BATCH_SIZE, "--epochs", "2")
    records = train(*common, *more, *flags)
    expected = program(
        *map(str, more),
        *(f"--num_embeddings_per_feature={SIZES[1]}", "--embedding_dim=8"),
        *("--top_mlp_sizes=16,8,1", "--bottom_mlp_sizes=16,8", f"--optimizer={rule}"),
        *(f"--dataset={binary_path}", "--eval_split=validation", "--base_device=cpu"),
        *("--lr=0.5", "--warmup_steps=0", "--decay_steps=0", "--print_freq=1"),
        model=(),
    )
    assert losses(records) == losses(expected)
    assert len(losses(records)) == 100


def test_one_size_for_all_tables(train, binary_path):
    records = train(
        "--num_embeddings", "50", *SIZES[2:], "--binary_path", binary_path, "--max_steps", "3",
        "--batch_size", BATCH_SIZE,
    )  # fmt: skip
    assert records[0]["data"]["num_embeddings_per_feature"] == [50] * 26


def test_parquet_of_nvtabular_gives_the_same_losses(train, common, binary_path, tmp_path):
    """Parts numbered without zeros, a `_metadata` file, TorchRec's names, no cardinalities."""
    root = tmp_path / "split"
    for split, rows in ROWS.items():
        reader = SplitBinaryReader(binary_path, split, FeatureSpec.criteo(TABLES, 13, "float32"))
        columns = reader.read(0, rows)
        table = pa.table(
            {f"cat_{i}": ids for i, ids in enumerate(columns.categorical)}
            | {f"int_{i}": columns.numerical[:, i] for i in range(13)}
            | {"label": columns.label.astype(np.float32)}
        )
        folder = root / ("valid" if split == "validation" else split)
        folder.mkdir(parents=True)
        size = -(-rows // 12)
        for part in range(12):
            pq.write_table(table[part * size :][:size], folder / f"part.{part}.parquet")
        pq.write_metadata(table.schema, folder / "_metadata")
    more = ("--batch_size", BATCH_SIZE, "--max_steps", "20")
    expected = losses(train(*common, *more))
    parquet = ("--binary_path", root, "--dataset_type", "parquet")
    assert losses(train(*common, *more, *parquet)) == expected
    assert len(expected) == 20


def test_a_folder_without_sizes_says_what_to_give(train, binary_path):
    error = train.refused("--binary_path", binary_path, "--batch_size", BATCH_SIZE)
    assert "--num_embeddings_per_feature" in error


def test_a_dataset_of_ours_brings_its_sizes(train, dataset):
    ours = ("--binary_path", dataset, "--batch_size", BATCH_SIZE, *SIZES[2:])
    train(*ours, "--dataset_type", "parquet", "--num_numerical_features", "3",
          "--learning_rate", "0.5")  # fmt: skip
    assert printed(train.stdout, TEST)[0] > 0.8
    # Others may be given, and the names of its files stay.
    sizes = ",".join(str(2 * n) for n in CARDINALITIES)
    train(*ours, "--dataset_type", "binary", "--num_embeddings_per_feature", sizes,
          "--max_steps", "4")  # fmt: skip
    assert f"4 tables with {2 * sum(CARDINALITIES)} rows" in train.stdout


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("--learning_rate=1", "--lr=2"), ["--learning_rate", "--lr"]),
        (("--adagrad", "--optimizer=sgd"), ["--adagrad", "--optimizer"]),
        (("--lr_change_point=2",), ["--lr_change_point", "[0, 1]", 2.0]),
        (("--dense_arch_layer_sizes=512,64",), ["--bottom_mlp_sizes", "--embedding_dim", "512,64"]),
        (("--mode=test",), ["--mode", "python -m dlrm.scripts.main"]),
        (("--num_embeddings_per_feature=1,x",), ["--num_embeddings_per_feature", "1,x"]),
    ],
)
def test_refusals(train, arguments, facts):
    assert_tells(train.refused(*arguments), *facts)


def rates(records):
    """Returns the learning rate of each step."""
    return [record["data"]["lr"] for record in records if "step_time" in record["data"]]


CHANGED = ("--change_lr", "--lr_change_point", "0.8", "--lr_after_change_point", "0.1")


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ((), 12, 3),  # 6,400 rows are two batches of 2,500 and one of 1,400
        (("--drop_last",), 8, 2),
        (("--dataset_subset", "0.5"), 4, 1),
        (("--dataset_subset", "0.5", "--drop_last", "--epochs", "10"), 8, 2),
        (("--lr_change_point", "0"), 0, 15),
        (("--lr_change_point", "1"), 15, 0),
        (("--max_steps", "13"), 12, 1),
    ],
)
def test_the_rate_changes_after_a_fraction_of_the_steps_that_are_made(
    train, common, flags, before, after
):
    given = (*common, "--batch_size", "2500", "--epochs", "5", *CHANGED, *flags)
    assert rates(train(*given)) == [0.5] * before + [0.1] * after


def test_the_rate_changes_at_the_same_step_of_a_resumed_run(train, common, tmp_path):
    flags = (*common, "--batch_size", "2500", "--epochs", "5", *CHANGED)
    flags = (*flags, "--save_checkpoint_path", tmp_path / "run")
    train(*flags, "--max_steps", "7")
    records = train(*flags, "--resume")
    assert rates(records)[-8:] == [0.5] * 5 + [0.1] * 3
    assert f"at step {7}" in train.stdout


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_rate_changes_at_the_same_step_on_two_ranks(train, common, tmp_path):
    flags = (*common, "--epochs", "5", *CHANGED, "--dataset_subset", "0.7")
    expected = rates(train(*flags, "--batch_size", "2500"))
    assert expected == [0.5] * 8 + [0.1] * 2
    launcher = torchrun(harness.torchrun(2), "dlrm.scripts.train_torchrec")
    log = tmp_path / "ranks.json"
    more = ("--base_device=cpu", "--num_threads=1", f"--log_path={log}")
    harness.forked(*launcher, *flags, "--batch_size", "1250", *more)
    assert rates(harness.read_log(log)) == expected


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "more"), [(1, ("---adagrad",)), (2, ())])
def test_torchrun_trains_as_one_process(train, common, tmp_path, world_size, more):
    """The batch is that of each process, as in the example; so are the printed lines, once."""
    first, alone, found = (tmp_path / name for name in ("first", "alone", "found"))
    train(*common, "--learning_rate=0", "--max_steps=1", "--save_checkpoint_path", first)
    flags = (
        *common, "--max_steps=20", "--load_checkpoint_path", first,
        "--change_lr", "--lr_change_point=0.2", "--lr_after_change_point=0.1", *more,
    )  # fmt: skip
    expected = train(*flags, "--batch_size", BATCH_SIZE, "--save_checkpoint_path", alone)
    launcher = torchrun(harness.torchrun(world_size), "dlrm.scripts.train_torchrec")
    done = harness.forked(
        *launcher, *flags, "--batch_size", BATCH_SIZE // world_size, "--base_device=cpu",
        "--save_checkpoint_path", found, "--num_threads=1", f"--log_path={tmp_path / 'ranks.json'}",
    )  # fmt: skip
    records = harness.read_log(tmp_path / "ranks.json")
    assert losses(records) == pytest.approx(losses(expected), abs=1e-5)
    assert rates(records) == [0.5] * 10 + [0.1] * 10
    for pattern in (VALIDATION, TEST, r"total_examples': (\d+)"):
        once = printed(train.stdout, pattern)
        assert printed(done.stdout, pattern) == pytest.approx(once, abs=1e-5)
        assert once
    mine, expected = tensors(found), tensors(alone)
    assert mine.keys() == expected.keys()
    for name in expected:
        if name.startswith("embedding_"):
            torch.testing.assert_close(mine[name], expected[name], rtol=1e-4, atol=1e-6)


def test_an_interrupted_run_continues_with_the_same_losses(train, common, tmp_path):
    flags = (*common, "--batch_size", BATCH_SIZE, "--change_lr", "--lr_change_point", "0.5")
    whole = losses(train(*flags))
    saved = ("--save_checkpoint_path", tmp_path / "run")
    train(*flags, *saved, "--max_steps", "30")
    assert losses(train(*flags, *saved, "--resume"))[-20:] == whole[30:]
    train(*flags, *saved, "--resume")
    *_, end = (line for line in train.stdout.splitlines() if "50 steps" in line)
    assert "samples/s" not in end


def test_the_documents_command_says_what_memory_its_tables_need(train, binary_path):
    text = (harness.REPOSITORY / "docs" / "training_input.md").read_text()
    command = (
        text.split("\npython -m dlrm.scripts.train_torchrec", 1)[1]
        .split("```")[0]
        .replace("\\\n", " ")
    )
    words = shlex.split(command.replace("/data/criteo_binary/split/", str(binary_path)))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (40_000_000 << 10, limits[1]))
    try:
        error = train.refused(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert len(re.findall(r"\b97\.\d GiB", error)) >= 2
    assert "Traceback" not in error
