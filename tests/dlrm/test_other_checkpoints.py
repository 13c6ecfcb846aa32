# SPDX-License-Identifier: Apache-2.0
"""A checkpoint belongs to a dataset and a model: another one is refused by name."""

import itertools
import shutil

import pytest
import torch

from dlrm.model.weights import DlrmCheckpoint
from dlrm.scripts import main
from preproc import generate_criteo
from preproc.clicks.__main__ import main as prepare
from recsys.serve.manifest import Deployment
from recsys.serve.versions.repository import LOCK_FILE
from recsys.train.origin import FINGERPRINT, SEMANTICS
from recsys_recipes.serving import deploy
from tests import harness
from tests.checkpoints import latest, rewrite
from tests.dlrm.conftest import SMALL_MODEL, DlrmProgram, final
from tests.dlrm.nvidia_folder import write_nvidia_folder
from tests.documents import with_checksum
from tests.harness import assert_tells

HASHED = (*SMALL_MODEL, "--hash_indices", "--max_table_size=3")
"""Tables of three rows each, so that the sizes of all datasets agree."""
LOG = ("--rows=3000", "--days=2", f"--cardinalities={','.join(['40'] * 26)}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two datasets of a log, and a run trained on the first."""
    root = tmp_path_factory.mktemp("origin")
    assert generate_criteo.main(["generate_criteo", f"--output={root / 'log'}", *LOG]) == 0
    for name, *settings in (
        ("mine", "--preset=dlrm"),
        ("offset", "--preset=dlrm", "--numerical_offset=4"),
        ("limit", "--preset=dlrm", "--frequency_limit=30"),
        ("shuffled", "--preset=nvidia", "--numerical_offset=2", "--numerical_min=-1",
         "--numerical_missing=raw_zero", "--shuffle_seed=1", "--format=parquet"),
    ):  # fmt: skip
        output = ("--progress=none", f"--input={root / 'log'}", f"--output={root / name}")
        assert prepare(["criteo", *output, *settings]) == 0
    shutil.copytree(root / "mine", root / "plain")
    (root / "plain" / "manifest.json").unlink()
    DlrmProgram(root).train(root / "mine", root / "run", "--max_steps=2", model=HASHED)
    return root


@pytest.fixture
def tested(folder):
    """The flags that test the run."""
    return ("--mode=test", f"--load_checkpoint_path={folder / 'run'}")


@pytest.mark.parametrize(
    ("mode", "short"),
    [
        ("train", ["--max_steps=2"]),
        ("test", []),
        (
            "inference_benchmark",
            ["--inference_benchmark_batch_sizes=1", "--inference_benchmark_steps=5"],
        ),
    ],
)
def test_a_dataset_prepared_otherwise_is_refused(program, folder, mode, short):
    options = (f"--mode={mode}", f"--load_checkpoint_path={folder / 'run'}",
               f"--dataset={folder / 'offset'}", *short)  # fmt: skip
    error = program.refused(*options, model=HASHED)
    assert_tells(error, "numerical_offset 2", folder / "offset", "numerical_offset 4")
    assert_tells(error, "--dataset", "--ignore_fingerprint")
    program(*options, "--ignore_fingerprint", model=HASHED)


def test_other_dictionaries_are_refused(program, folder, tested, tmp_path):
    error = program.refused(*tested, f"--dataset={folder / 'limit'}", model=HASHED)
    assert "frequency_limit 15" in error
    # The same settings on another log.
    log, other = tmp_path / "log", tmp_path / "other"
    assert generate_criteo.main(["generate_criteo", f"--output={log}", *LOG, "--seed=9"]) == 0
    assert prepare(["criteo", "--progress=none", f"--input={log}", f"--output={other}"]) == 0
    error = program.refused(*tested, f"--dataset={other}", model=HASHED)
    assert "dataset fingerprint" in error


def test_another_format_of_the_same_data_is_taken(program, folder, tested):
    parquet = ("--dataset_type=parquet", f"--dataset={folder / 'shuffled'}")
    program(*tested, *parquet, model=HASHED)
    assert "fingerprint" not in program.stderr


def test_a_resumed_run_keeps_its_dataset(program, folder, tmp_path):
    run, more = tmp_path / "run", ("--resume", "--max_steps=3")
    program.train(folder / "mine", run, "--max_steps=2", model=HASHED)
    program.train(folder / "offset", run, *more, model=HASHED, status=2)
    assert "numerical_offset 4" in program.stderr
    program.train(folder / "offset", run, *more, "--ignore_fingerprint", model=HASHED)
    assert latest(run).state["step"] == 3


def test_a_resumed_run_keeps_its_rows(program, folder, tmp_path):
    """Rows of the same ids are another dataset too, to go on in the middle of an epoch."""
    run, fewer = tmp_path / "run", tmp_path / "fewer"
    options = ("--progress=none", f"--input={folder / 'log' / 'day_0'}", f"--output={fewer}")
    applied = (f"--dictionaries={folder / 'mine'}", "--split_rows=1000,200,-1")
    assert prepare(["criteo", *options, *applied]) == 0
    program.train(folder / "mine", run, "--max_steps=9", model=HASHED)
    for facts in ([run, fewer], [9, 0, 8]):
        program.train(fewer, run, "--resume", model=HASHED, status=2)
        assert_tells(program.stderr, *facts)
        (fewer / "manifest.json").unlink(missing_ok=True)
    assert program.test(fewer, run, model=HASHED)["num_rows"] == 300
    program.train(fewer, run, "--resume", "--ignore_fingerprint", model=HASHED)
    assert latest(run).state["step"] == 9


def of_dtype(name, dtype):
    return lambda stored: stored | {name: stored[name].to(dtype)}


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("embedding_0", of_dtype("sum_of_squares", torch.float16)),
        ("embedding_0", of_dtype("weight", torch.float64)),
        ("mlp_optimizer", of_dtype("embedding_steps", torch.int32)),
        ("mlp_optimizer", lambda stored: stored | {"more": torch.zeros(2)}),
        ("mlp_optimizer", lambda stored: {"more": torch.zeros(2)}),
        ("another", lambda _: {"more": torch.zeros(2)}),
    ],
)
def test_a_run_does_not_resume_from_other_tensors(program, folder, tmp_path, group, change):
    run, rule = tmp_path / "run", "--optimizer=rowwise_adagrad"
    program.train(folder / "mine", run, "--max_steps=2", rule, model=HASHED)
    file = latest(run).path / f"{group}.safetensors"
    rewrite(file, change)
    more = ("--resume", "--max_steps=3", rule)
    program.train(folder / "mine", run, *more, model=HASHED, status=2)
    assert str(file) in program.stderr
    assert latest(run).state["step"] == 2


def test_a_folder_without_manifest_is_taken_with_a_warning(program, folder, tested, caplog):
    program(*tested, f"--dataset={folder / 'plain'}", model=HASHED)
    assert_tells(caplog.text, folder / "plain", "fingerprint")


@pytest.mark.multiprocess
def test_several_processes_compare_too(folder, tested):
    flags = (*HASHED, *tested, f"--dataset={folder / 'offset'}")
    assert "numerical_offset 4" in harness.call_on_ranks(2, main, *flags, status=2)


@pytest.mark.slow
def test_a_deployer_scores_the_dataset_of_the_training(folder, tmp_path):
    command = ("triton/deployer.py", "--checkpoint", folder / "run", "--repository", tmp_path)
    arguments = (*command, "--dataset", folder / "offset")
    assert_tells(harness.forked(*arguments, status=2).stderr, "numerical_offset 4")
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    assert_tells(harness.forked(*arguments, "--ignore_fingerprint").stdout, "AUC")


@pytest.mark.slow
def test_a_deployment_keeps_the_dataset_of_its_training(program, folder, tmp_path):
    program.train(folder / "offset", tmp_path / "other", "--max_steps=2", model=HASHED)
    command = ("triton/deployer.py", "--repository", tmp_path / "models", "--checkpoint")
    assert "WARNING" not in harness.forked(*command, folder / "run").stderr
    state = latest(folder / "run").state
    kept = Deployment.load(tmp_path / "models" / "dlrm" / "1").dataset
    assert kept == {name: state[name] for name in (FINGERPRINT, SEMANTICS)}
    assert kept[FINGERPRINT]
    assert "WARNING" not in harness.forked(*command, folder / "run").stderr
    warned = harness.forked(*command, tmp_path / "other").stderr
    assert_tells(warned, "WARNING", tmp_path / "other", "version 2")


VARIANTS = {
    "cuda_dot": (),
    "dot": ("--interaction_op=dot",),
    "cat": ("--interaction_op=cat",),
    "dcnv2": ("--interaction_op=dcnv2", "--dcn_low_rank_dim=4"),
    "batch norm": ("--batch_norm",),
    "deep": ("--bottom_mlp_sizes=16,12,8", "--top_mlp_sizes=16,12,1"),
}
SAME = {"cuda_dot", "dot"}
ALL = ("--nobatch_norm", "--interaction_op=cuda_dot")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """A checkpoint of each variant, and two in NVIDIA's layout."""
    folder = tmp_path_factory.mktemp("variants")
    program = DlrmProgram(folder)
    for name, flags in VARIANTS.items():
        program.train(dataset, folder / name, *flags, "--max_steps=2", "--test_after=9")
    for name in ("cuda_dot", "cat"):
        opened = DlrmCheckpoint.open(folder / name)
        write_nvidia_folder(folder / f"nvidia {name}", opened.load(), **opened.settings)
    return folder


def test_every_pair_of_models(program, dataset, saved):
    tested = {}
    for path, (asked, flags) in itertools.product(sorted(saved.glob("[!l]*")), VARIANTS.items()):
        name = path.name.removeprefix("nvidia ")
        fits = {name, asked} <= SAME or name == asked
        records = program("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={path}",
                          *ALL, *flags, status=0 if fits else 2)  # fmt: skip
        if fits:
            loss = final(records)["log_loss"]
            assert loss == pytest.approx(tested.setdefault(name, loss), rel=1e-6)
        else:
            assert str(path) in program.stderr
    assert len(tested) == len(VARIANTS)


def test_a_checkpoint_that_lost_its_settings_is_not_deployed(dataset, saved, tmp_path, capsys):
    """Settings of another model beside the tensors, as of an edited manifest."""
    manifest = next((saved / "dcnv2").glob("step_*/manifest.json"))
    text = manifest.read_text()
    edited = text.replace('"interaction_op": "dcnv2"', '"interaction_op": "cat"')
    manifest.write_text(with_checksum(edited))
    try:
        status = harness.call(deploy, f"--checkpoint={saved / 'dcnv2'}",
                              f"--repository={tmp_path / 'models'}")  # fmt: skip
    finally:
        manifest.write_text(text)
    assert status == 2
    assert_tells(capsys.readouterr().err, "interaction.down.0.weight")
    assert not (tmp_path / "models" / "dlrm").exists()
