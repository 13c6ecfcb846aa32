# SPDX-License-Identifier: Apache-2.0
"""dlrm.scripts.train_torchrec: the flags of TorchRec's example drive DLRM's own training."""

import json
import re
import shlex
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from absl import flags

from dlrm.scripts import train_torchrec
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader
from tests import harness

TABLES = (40, 30, 20, 10, 50, 3, 20, 15, 6, 40, 30, 40, 10, 22, 11, 15, 4, 9, 14) + (40,) * 7
ROWS = {"train": 6400, "validation": 1280, "test": 1000}
BATCH_SIZE = 128

SIZES = (
    "--num_embeddings_per_feature",
    ",".join(map(str, TABLES)),
    "--over_arch_layer_sizes",
    "16,8,1",
    "--dense_arch_layer_sizes",
    "16,8",
    "--embedding_dim",
    "8",
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


def parse(*arguments):
    values = flags.FlagValues()
    train_torchrec.define_flags(values)
    words = train_torchrec.spelled_with_two_dashes(list(map(str, arguments)))
    assert values(["train_torchrec", *words])[1:] == []
    return values


@pytest.fixture
def train(tmp_path, capsys):
    """Runs the program in this process; returns its output, exit status and log."""

    def run(*arguments):
        log = tmp_path / "log.json"
        log.unlink(missing_ok=True)
        words = train_torchrec.spelled_with_two_dashes(list(map(str, arguments)))
        always = (f"--log_path={log}", "--base_device=cpu", "--num_threads=1")
        status = harness.call(train_torchrec, *words, *always)
        captured = capsys.readouterr()
        return captured.out, captured.err, status, harness.read_log(log)

    return run


def losses(records):
    return [r["data"]["loss"] for r in records if "loss" in r["data"]]


def test_the_command_of_the_example_is_understood():
    command = (
        "--num_embeddings_per_feature 40000000,39060,17295,7424,20265,3,7122,1543,63,40000000,"
        "3067956,405282,10,2209,11938,155,4,976,14,40000000,40000000,40000000,590152,12973,108,36 "
        "--over_arch_layer_sizes 1024,1024,512,256,1 --dense_arch_layer_sizes 512,256,128 "
        "--embedding_dim 128 --binary_path /data/criteo_binary/split/ --learning_rate 1.0 "
        "--validation_freq_within_epoch 1000000 --throughput_check_freq_within_epoch 1000000 "
        "--batch_size 256 ---adagrad"
    )
    config = train_torchrec.config_from_flags(parse(*command.split()))
    assert len(config.data.num_embeddings_per_feature) == 26
    assert config.data.num_embeddings_per_feature[0] == 40_000_000
    assert config.data.dataset == "/data/criteo_binary/split/"
    assert config.data.dataset_type == "split"
    assert config.data.eval_split == "validation"
    assert config.data.batch_size == 256
    assert config.model.top_mlp_sizes == (1024, 1024, 512, 256, 1)
    assert config.model.bottom_mlp_sizes == (512, 256, 128)
    assert config.model.embedding_dim == 128
    assert config.optimizer.lr == 1.0
    assert (config.optimizer.warmup_steps, config.optimizer.decay_steps) == (0, 0)
    assert config.optimizer.optimizer == "rowwise_adagrad"
    assert config.optimizer.mlp_rule == "adagrad"
    assert config.run.test_freq == 1_000_000
    assert config.run.print_freq == 1_000_000


def test_defaults_are_those_of_the_example():
    config = train_torchrec.config_from_flags(parse())
    assert config.data.dataset == "/data/criteo_1tb/criteo_binary/split/"
    assert config.data.batch_size == 32
    assert config.optimizer.lr == 15.0
    assert config.optimizer.optimizer == config.optimizer.mlp_rule == "sgd"
    assert (config.run.epochs, config.run.test_freq, config.run.print_freq) == (1, 10000, 1000)


def test_trains_and_prints_as_the_example_does(train, binary_path):
    out, err, status, records = train(
        *SIZES,
        "--binary_path", binary_path,
        "--learning_rate", "0.5",
        "--validation_freq_within_epoch", "20",
        "--throughput_check_freq_within_epoch", "10",
        "--batch_size", BATCH_SIZE,
    )  # fmt: skip
    assert status == 0, err
    steps = [int(n) for n in re.findall(r"^step (\d+)$", out, re.MULTILINE)]
    assert steps == [10, 20, 30, 40, 50]
    speeds = re.findall(r"^throughput (\{.*\})$", out, re.MULTILINE)
    assert len(speeds) == 5
    found = json.loads(speeds[2].replace("'", '"'))
    assert found["throughput-throughput|total_examples"] == 30 * BATCH_SIZE
    (step_time,) = [r["data"]["step_time"] for r in records if r["step"] == [0, 30]][:1]
    assert found["throughput-throughput|window_throughput"] == pytest.approx(BATCH_SIZE / step_time)
    validated = [float(v) for v in re.findall(r"^AUROC over validation set: (.*)\.$", out, re.M)]
    assert len(validated) == 3
    assert validated == [r["data"]["auc"] for r in records if "auc" in r["data"]]
    (tested,) = re.findall(r"^AUROC over test set: (.*)\.$", out, re.MULTILINE)
    assert float(tested) > 0.8
    (accuracy,) = re.findall(r"^Accuracy over test set: (.*)\.$", out, re.MULTILINE)
    assert 0.7 < float(accuracy) < 1
    assert out.index("AUROC over validation") < out.index("AUROC over test")


@pytest.mark.parametrize("adagrad", [False, True])
def test_arrives_where_the_main_program_does(train, program, binary_path, adagrad):
    common = (*SIZES[:2], *SIZES[6:], "--batch_size", BATCH_SIZE, "--epochs", "2")
    _, err, status, records = train(
        *common, *SIZES[2:6], "--binary_path", binary_path, "--learning_rate", "0.3",
        "--throughput_check_freq_within_epoch", "1", *(["---adagrad"] if adagrad else []),
    )  # fmt: skip
    assert status == 0, err
    expected = program(
        *map(str, common),
        "--top_mlp_sizes=16,8,1",
        "--bottom_mlp_sizes=16,8",
        f"--dataset={binary_path}",
        "--lr=0.3",
        "--warmup_steps=0",
        "--decay_steps=0",
        "--print_freq=1",
        "--eval_split=validation",
        "--base_device=cpu",
        f"--optimizer={'rowwise_adagrad' if adagrad else 'sgd'}",
        model=(),
    )
    assert losses(records) == losses(expected)
    assert len(losses(records)) == 100


def test_the_rate_changes_once(train, binary_path):
    _, err, status, records = train(
        *SIZES, "--binary_path", binary_path, "--batch_size", BATCH_SIZE, "--learning_rate", "0.5",
        "--change_lr", "--lr_change_point", "0.8", "--lr_after_change_point", "0.1",
        "--throughput_check_freq_within_epoch", "1",
    )  # fmt: skip
    assert status == 0, err
    rates = [r["data"]["lr"] for r in records if "step_time" in r["data"]]
    assert rates == [0.5] * 40 + [0.1] * 10


def test_one_size_for_all_tables(train, binary_path):
    _, err, status, records = train(
        "--num_embeddings", "50", *SIZES[2:], "--binary_path", binary_path, "--max_steps", "3",
        "--batch_size", BATCH_SIZE,
    )  # fmt: skip
    assert status == 0, err
    assert records[0]["data"]["num_embeddings_per_feature"] == [50] * 26


def test_parquet_of_nvtabular_gives_the_same_losses(train, binary_path, tmp_path):
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
    common = (
        *SIZES, "--batch_size", BATCH_SIZE, "--learning_rate", "0.5", "--max_steps", "20",
        "--throughput_check_freq_within_epoch", "1",
    )  # fmt: skip
    expected = losses(train(*common, "--binary_path", binary_path)[3])
    _, err, status, records = train(*common, "--binary_path", root, "--dataset_type", "parquet")
    assert status == 0, err
    assert losses(records) == expected
    assert len(expected) == 20


def test_a_folder_without_sizes_says_what_to_give(train, binary_path):
    _, err, status, _ = train("--binary_path", binary_path, "--batch_size", BATCH_SIZE)
    assert status == 2
    assert "--num_embeddings_per_feature" in err


def test_a_dataset_of_ours_brings_its_sizes(train, dataset):
    out, err, status, _ = train(
        "--binary_path", dataset, "--num_numerical_features", "3", "--batch_size", BATCH_SIZE,
        *SIZES[2:], "--learning_rate", "0.5", "--dataset_type", "parquet",
    )  # fmt: skip
    assert status == 0, err
    assert float(re.findall(r"AUROC over test set: (.*)\.", out)[0]) > 0.8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--learning_rate=1", "--lr=2"), "--learning_rate and --lr are the same setting"),
        (("--adagrad", "--optimizer=sgd"), "--adagrad and --optimizer are the same setting"),
        (("--lr_change_point=2",), "--lr_change_point must lie in [0, 1], got 2.0"),
        (("--dense_arch_layer_sizes=512,64",), "--bottom_mlp_sizes must end with --embedding_dim"),
        (("--mode=test",), "use python -m dlrm.scripts.main"),
        (("--num_embeddings_per_feature=1,x",), "must be integers separated by commas"),
    ],
)
def test_refusals(train, arguments, message):
    _, err, status, _ = train(*arguments)
    assert status == 2
    assert message in err


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "more"), [(1, ("---adagrad",)), (2, ())])
def test_torchrun_trains_as_one_process(train, binary_path, tmp_path, world_size, more):
    """The batch is that of each process, as in the example; so are the printed lines, once."""
    sizes = (*SIZES, "--binary_path", binary_path, "--checkpoint_format", "nvidia")
    first, alone, found = (tmp_path / name for name in ("first", "alone", "found"))
    _, err, status, _ = train(
        *sizes, "--learning_rate=0", "--max_steps=1", "--save_checkpoint_path", first
    )
    assert status == 0, err
    common = (
        *sizes, "--learning_rate=0.5", "--max_steps=20", "--load_checkpoint_path", first,
        "--throughput_check_freq_within_epoch=1", "--change_lr", "--lr_change_point=0.2",
        "--lr_after_change_point=0.1", *more,
    )  # fmt: skip
    out, err, status, expected = train(
        *common, "--batch_size", BATCH_SIZE, "--save_checkpoint_path", alone
    )
    assert status == 0, err
    done = harness.forked(
        *harness.torchrun(world_size), "-m", "dlrm.scripts.train_torchrec",
        *common, "--batch_size", BATCH_SIZE // world_size, "--save_checkpoint_path", found,
        "--base_device=cpu", "--num_threads=1", f"--log_path={tmp_path / 'ranks.json'}",
    )  # fmt: skip
    records = harness.read_log(tmp_path / "ranks.json")
    assert losses(records) == pytest.approx(losses(expected), abs=1e-5)
    assert [r["data"]["lr"] for r in records if "step_time" in r["data"]] == [0.5] * 10 + [0.1] * 10
    for pattern in (
        r"^AUROC over validation set: (.*)\.$", r"^AUROC over test set: (.*)\.$",
        r"total_examples': (\d+)",
    ):  # fmt: skip
        printed, once = (re.findall(pattern, text, re.MULTILINE) for text in (done.stdout, out))
        assert [float(v) for v in printed] == pytest.approx([float(v) for v in once], abs=1e-5)
        assert printed
    names = sorted(path.name for path in alone.iterdir())
    assert sorted(path.name for path in found.iterdir()) == names
    for name in names:
        if name.endswith(".bin"):
            mine, theirs = (np.fromfile(folder / name, "<f4") for folder in (found, alone))
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_spec_keeps_the_names_of_its_files(dataset, train):
    spec = FeatureSpec.load(dataset)
    sizes = ",".join(str(2 * n) for n in spec.table_sizes)
    out, err, status, _ = train(
        "--binary_path", dataset, "--num_embeddings_per_feature", sizes, "--batch_size",
        BATCH_SIZE, *SIZES[2:], "--dataset_type", "binary", "--max_steps", "4",
    )  # fmt: skip
    assert status == 0, err
    assert f"4 tables with {2 * sum(spec.table_sizes)} rows" in out


def test_an_interrupted_run_continues_with_the_same_losses(train, binary_path, tmp_path):
    common = (
        *SIZES, "--binary_path", binary_path, "--batch_size", BATCH_SIZE, "--learning_rate", "0.5",
        "--throughput_check_freq_within_epoch", "1", "--change_lr", "--lr_change_point", "0.5",
    )  # fmt: skip
    whole = losses(train(*common)[3])
    saved = ("--save_checkpoint_path", tmp_path / "run")
    assert train(*common, *saved, "--max_steps", "30")[2] == 0
    _, err, status, records = train(*common, *saved, "--resume")
    assert status == 0, err
    assert losses(records)[-20:] == whole[30:]
    out, err, status, _ = train(*common, *saved, "--resume")
    assert status == 0, err
    assert "Finished after 50 steps" in out
    assert "no throughput measured in training" in out


def test_the_documents_command_says_what_memory_its_tables_need(binary_path, tmp_path):
    text = (harness.REPOSITORY / "docs" / "training_input.md").read_text()
    command = (
        text.split("\npython -m dlrm.scripts.train_torchrec", 1)[1]
        .split("```")[0]
        .replace("\\\n", " ")
    )
    words = shlex.split(command.replace("/data/criteo_binary/split/", str(binary_path)))
    words += [f"--log_path={tmp_path / 'log.json'}", "--base_device=cpu"]
    limited = ("bash", "-c", 'ulimit -v 40000000; exec "$@"', "bash", sys.executable)
    done = harness.run(*limited, "-m", "dlrm.scripts.train_torchrec", *words, status=2)
    assert re.search(r"the model needs 97\.\d GiB of memory: 97\.\d GiB of tables", done.stderr)
    assert "Traceback" not in done.stderr
