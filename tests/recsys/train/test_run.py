# SPDX-License-Identifier: Apache-2.0
"""What every model's program does alike: resume, refusals, divergence, inference times."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from recsys.train.checkpoint import read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from tests import harness
from tests.bert4rec import conftest as bert4rec
from tests.bert4rec.conftest import dataset as bert4rec_dataset  # noqa: F401  (a fixture)
from tests.dlrm import conftest as dlrm
from tests.dlrm.conftest import dataset as dlrm_dataset  # noqa: F401  (a fixture)
from tests.harness import assert_tells
from tests.recsys.train.tiny import TINY_DLRM


@dataclasses.dataclass
class Model:
    """A model's program on its small dataset, and how it spells what all have.

    Attributes:
        name: its package.
        program: runs it.
        data: flag and value of the dataset.
        output: flag of the folder of checkpoints.
        setting: flag that may not change, its value in a run, and another one.
        logged: settings as the dataset and SMALL_MODEL give them.
    """

    name: str
    program: harness.Program
    data: str
    output: str
    setting: tuple[str, object, object]
    logged: dict[str, object]

    def __call__(self, *arguments: object, **options: Any) -> list[dict[str, Any]]:
        """Returns the records of the log."""
        return self.program(self.data, *arguments, **options)


@pytest.fixture(params=["dlrm", "bert4rec"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    """Each model."""
    dataset = request.getfixturevalue(f"{request.param}_dataset")
    if request.param == "dlrm":
        return Model(
            *("dlrm", dlrm.make_program(tmp_path), f"--dataset={dataset}"),
            *("--save_checkpoint_path", ("--dropout", 0.0, 0.1)),
            {"embedding_dim": 8, "base_device": "cpu", "num_numerical_features": 3},
        )
    return Model(
        *("bert4rec", bert4rec.make_program(tmp_path), f"--dataset_path={dataset}"),
        *("--export_root", ("--mask_prob", 0.15, 0.3)),
        {"emb_dim": 16, "base_device": "cpu", "min_user_count": 3},  # the default is 5
    )


def test_the_first_record_holds_every_setting_as_the_dataset_has_it(model):
    first = model("--max_steps=1")[0]
    assert first["step"] == "PARAMETER"
    assert model.logged.items() <= first["data"].items()


def test_resume_with_other_settings_is_refused(model, tmp_path, capsys):
    flag, was, now = model.setting
    output = f"{model.output}={tmp_path / 'run'}"
    model(output, "--max_steps=3")
    model(output, "--resume", "--seed=99", f"{flag}={now}", status=2)
    error = capsys.readouterr().err
    assert_tells(error, "--seed", 12345, 99, flag, was, now)


def test_resume_without_a_checkpoint_starts_anew(model, tmp_path):
    model(f"{model.output}={tmp_path / 'run'}", "--resume", "--max_steps=3")
    assert read_checkpoint(CheckpointFolder(tmp_path / "run").latest()).state["step"] == 3


def test_resume_needs_a_folder_and_no_other_checkpoint(model, tmp_path, capsys):
    model("--resume", status=2)
    assert_tells(capsys.readouterr().err, "--resume", model.output)
    model("--resume", f"{model.output}={tmp_path}", "--load_checkpoint_path=x", status=2)
    assert_tells(capsys.readouterr().err, "--resume", "--load_checkpoint_path")


def test_an_earlier_run_is_not_replaced(model, tmp_path, capsys):
    output = f"{model.output}={tmp_path / 'run'}"
    model(output, "--max_steps=4")
    log = model.program.log_path
    before = log.read_bytes()
    model(output, "--max_steps=2", status=2)
    assert_tells(capsys.readouterr().err, model.output, tmp_path / "run")
    assert log.read_bytes() == before
    assert not log.with_name(f"{log.name}.old").exists()
    assert (tmp_path / "run" / "step_000000004" / "manifest.json").is_file()


def test_nan_is_called_divergence(model):
    model("--lr=1e30", "--print_freq=5", status=4)


def test_inference_benchmark_reports_each_batch_size(model, tmp_path, capsys):
    model(f"{model.output}={tmp_path / 'run'}", "--max_steps=2")
    records = model(
        "--mode=inference_benchmark",
        f"--load_checkpoint_path={tmp_path / 'run'}",
        "--inference_benchmark_batch_sizes=1,200",
        model=(),  # the model's shape comes from the checkpoint
    )
    assert records[-1]["step"] == []
    data = records[-1]["data"]
    for size in (1, 200):
        mean = data[f"mean_inference_latency_batch_{size}"]
        assert data[f"mean_inference_throughput_batch_{size}"] == pytest.approx(size / mean)
        low, high = (data[f"{p}_inference_latency_batch_{size}"] for p in ("p50", "p99"))
        assert 0 < low <= high
    assert "p99 ms" in capsys.readouterr().out


TRAIN_BOTH = """
import sys
from bert4rec.scripts import main as bert4rec
from dlrm.scripts import main as dlrm
from tests import harness

for program, flags in (dlrm, sys.argv[1]), (bert4rec, sys.argv[2]):
    assert harness.call(program, *flags.split()) == 0
    assert "torch._dynamo" not in sys.modules, program
"""


def test_training_and_evaluating_do_not_import_the_compiler(tmp_path):
    """It takes longer to import than the rest of torch, 5 s of a processor."""
    logs = [tmp_path / name for name in ("dlrm.json", "bert4rec.json")]
    always = [f"--base_device=cpu --max_steps=3 --log_path={log}" for log in logs]
    random = ("--dataset_name=random", "--random_user_count=10", "--random_item_count=50",
              "--random_size=100", "--emb_dim=16", "--max_len=8", "--train_batch_size=8",
              "--num_eval_negatives=5")  # fmt: skip
    dlrm_flags = " ".join((*TINY_DLRM, "--optimizer=adam", always[0]))
    harness.python("-c", TRAIN_BOTH, dlrm_flags, " ".join((*random, always[1])))
    for log in logs:
        records = harness.read_log(log)
        assert any("average_train_throughput" in record["data"] for record in records)
