# SPDX-License-Identifier: Apache-2.0
"""Run folders in which something is missing: the run resumes or says what is left."""

import json
import re
import shutil

import pytest

from tests.dlrm.conftest import DlrmProgram, latest

OLD, NEW = "step_000000002", "step_000000004"
POINTER = "latest.json"
TRAIN = ("--test_after=99", "--optimizer=rowwise_adagrad")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """The folder of a run with its best checkpoint, of step 2, and its latest one, of step 4."""
    folder = tmp_path_factory.mktemp("saved")
    program, run = DlrmProgram(folder), folder / "run"
    program.train(dataset, run, *TRAIN, "--max_steps=2")
    shutil.copytree(run / OLD, folder / OLD)
    program.train(dataset, run, *TRAIN, "--max_steps=4", "--resume")
    shutil.move(folder / OLD, run / OLD)
    (run / POINTER).write_text(json.dumps({"latest": NEW, "best": OLD}))
    return run


def write(text):
    return lambda run: (run / POINTER).write_text(text)


def remove(*names):
    def apply(run):
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def empty_manifest_without_pointer(run):
    (run / NEW / "manifest.json").write_bytes(b"")
    (run / POINTER).unlink()


LEFT = "the newest whole checkpoint is {run}/"
REFUSED = {
    "no pointer": (remove(POINTER), f"is missing, though {NEW} stands beside it; {LEFT}{NEW}"),
    "empty object": (write("{}"), f"names no latest checkpoint, though {NEW} .*{LEFT}{NEW}"),
    "best alone": (write(f'{{"best": "{OLD}"}}'), f"names no latest checkpoint.*{LEFT}{NEW}"),
    "empty pointer": (write(""), f"latest.json: not readable as JSON.*{LEFT}{NEW}"),
    "list": (write("[]"), f"latest.json: is malformed; {LEFT}{NEW}"),
    "no latest": (remove(NEW), f"latest is {NEW}, but .*{LEFT}{OLD}"),
    "no best": (remove(OLD), f"best is {OLD}, but .*{LEFT}{NEW}"),
    "no manifest": (remove(f"{NEW}/manifest.json"), f"manifest.json is missing; {LEFT}{OLD}"),
    "no tensors": (remove(f"{NEW}/mlp.safetensors"), "mlp.safetensors: missing or cut short"),
    "no pointer, new one cut": (remove(POINTER, f"{NEW}/mlp.safetensors"), f"{LEFT}{OLD}: name it"),
    "no pointer, new one empty": (empty_manifest_without_pointer, f"{LEFT}{OLD}: name it"),
    "no pointer, none whole": (
        remove(POINTER, f"{NEW}/mlp.safetensors", f"{OLD}/manifest.json"),
        "no step folder there is whole: begin anew in another folder",
    ),
}


def killed_before_the_pointer(run):
    (run / POINTER).rename(run / (POINTER + ".tmp"))


def killed_before_a_later_pointer(run):
    killed_before_the_pointer(run)
    write(json.dumps({"latest": OLD, "best": OLD}))(run)


def killed_while_replacing(run):
    (run / NEW).rename(run / (NEW + ".old"))


RESUMED = (killed_before_the_pointer, killed_before_a_later_pointer, killed_while_replacing)


@pytest.fixture
def run(saved, tmp_path):
    """A copy of the folder."""
    return shutil.copytree(saved, tmp_path / "run")


def contents(run):
    return {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file()}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_missing_is_named_and_nothing_is_lost(run, program, dataset, case):
    damage, message = REFUSED[case]
    damage(run)
    before = contents(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", "--resume", status=2)
    error = program.stderr
    assert re.search(message.format(run=re.escape(str(run))), error), error
    assert contents(run) == before


def test_without_a_pointer_no_other_run_begins_and_the_remedy_works(run, program, dataset):
    (run / POINTER).unlink()
    before = contents(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", status=2)
    errors = [program.stderr]
    test = ("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={run}")
    for error in (*errors, program.refused(*test)):
        (pointer,) = re.findall(r"or write (\{.*\}) to (\S+) to continue", error)
        assert pointer == (json.dumps({"latest": NEW}), str(run / POINTER))
    assert contents(run) == before
    write(pointer[0])(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", "--resume")
    assert f"Resumed from {run / NEW} at step 4" in program.stdout


@pytest.mark.parametrize("kill", RESUMED)
def test_a_save_that_a_kill_left_half_done_is_completed(run, program, dataset, kill):
    kill(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", "--resume")
    assert f"Resumed from {run / NEW} at step 4" in program.stdout
    assert latest(run).state["step"] == 6
    assert sorted(p.name for p in run.iterdir()) == [POINTER, OLD, "step_000000006"]
