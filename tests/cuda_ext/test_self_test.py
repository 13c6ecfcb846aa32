# SPDX-License-Identifier: Apache-2.0
"""The self-test of the kernels: right ones pass, planted faults are switched off."""

import json
import re
import sys

import pytest
import torch

from cuda_ext import library, ops, self_test
from cuda_ext.ops import registration
from cuda_ext.self_test_cases import FAMILIES
from tests import harness
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

CPU = torch.device("cpu")


@pytest.fixture
def clean_library(monkeypatch):
    monkeypatch.setattr(library, "_switched_off", {})


def test_the_command_tests_the_kernels_of_this_processor():
    done = harness.python("-m", "cuda_ext", "--selftest", "--device=cpu")
    lines = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [line[0].strip("| ") for line in lines] == list(FAMILIES)
    assert [line[3] for line in lines] == ["right |"] * 4 + ["nothing to test here |"] * 2
    assert [int(line[1]) > 0 for line in lines] == [True] * 4 + [False] * 2


def plant(monkeypatch, op, change):
    """Has a kernel return what `change` makes of its result."""

    class Faulty:
        def __getattr__(self, name):
            kernel = getattr(torch.ops.cuda_ext, name)
            return (lambda *given: change(kernel(*given))) if name == op else kernel

    for name, module in list(sys.modules.items()):
        if name.startswith("cuda_ext.ops.") and hasattr(module, "kernels"):
            monkeypatch.setattr(module, "kernels", Faulty())


def fail(_):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")


@pytest.mark.parametrize(
    ("family", "op", "change", "reason"),
    [
        ("lookup", "joint_rows", lambda rows: rows + 1, "joint_rows, int8: an error is inf"),
        ("lookup", "stack_ids", lambda ids: ids.flip(1), "stack_ids: an error is inf"),
        ("interaction", "dot_interaction", lambda y: y * 1.01, "dot_interaction, .* rounding's"),
        ("interaction", "dot_interaction", lambda y: y * torch.nan, "an error is inf"),
        ("update", "sort_rows", lambda s: (s[0], s[1].flip(0)), "sort_rows: an error is inf"),
        ("update", "sort_rows", fail, "CUDA error: an illegal memory access was encountered$"),
    ],
)
def test_a_planted_fault_is_found(family, op, change, reason, monkeypatch):
    plant(monkeypatch, op, change)
    outcome = self_test.run_family(family, CPU)
    assert not outcome.is_right
    assert re.search(reason, outcome.reason())


def test_a_process_that_dies_costs_its_family_alone(monkeypatch, tmp_path):
    dying = tmp_path / "python"
    dying.write_text(
        f"""#!{sys.executable}
import json, os, sys
for family in sys.argv[-1].split(","):
    if family == "update":
        print("Segmentation fault in a kernel", file=sys.stderr)
        os._exit(139)
    print(json.dumps({{"family": family, "cases": 3}}), flush=True)
"""
    )
    dying.chmod(0o755)
    monkeypatch.setattr(self_test.sys, "executable", str(dying))
    outcomes = {outcome.family: outcome for outcome in self_test.run("cuda")}
    assert list(outcomes) == list(FAMILIES)
    wrong = {family: o.reason() for family, o in outcomes.items() if not o.is_right}
    assert wrong == {"update": "ended with status 139: Segmentation fault in a kernel"}


def test_a_family_that_is_switched_off_runs_its_reference(clean_library, monkeypatch):
    ids = torch.tensor([[0, 1], [1, 0]])
    offsets = torch.tensor([0, 2, 5])
    expected = ops.joint_rows(ids, offsets)
    plant(monkeypatch, "joint_rows", fail)
    with pytest.raises(RuntimeError, match="illegal memory"):
        ops.joint_rows(ids, offsets)
    with pytest.warns(RuntimeWarning, match="the lookup kernels are switched off on cpu.*broken"):
        library.switch_off("cpu", "lookup", "broken")
    assert torch.equal(ops.joint_rows(ids, offsets), expected)
    assert registration.is_compiled_for(ids, "update")


def test_what_was_found_on_a_device_is_kept(clean_library, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "COMPILED_FOR", frozenset({"cpu", "cuda"}))
    monkeypatch.setattr(self_test, "_key", lambda _: "a device")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a device")
    calls = []

    def found(device):
        calls.append(device)
        return [self_test.Outcome("lookup", 3), self_test.Outcome("linear", 2, 7.5, "linear, big")]

    monkeypatch.setattr(self_test, "run", found)
    for _ in range(2):
        with pytest.warns(
            RuntimeWarning, match="the linear kernels .*linear, big: an error is 7.5"
        ):
            self_test.switch_off_what_fails(torch.device("cuda", 1))
        assert library.path_of("cuda", "linear") == "reference"
        assert library.path_of("cuda", "lookup") == "compiled"
    assert calls == ["cuda:1"]
    kept = json.loads(self_test.known_file().read_text())
    assert kept == {"a device": {"linear": "linear, big: an error is 7.5 times rounding's"}}
    assert list((tmp_path / "recsys-recipes").iterdir()) == [self_test.known_file()]


def test_nothing_is_tested_for_a_cpu(monkeypatch):
    monkeypatch.setattr(self_test, "run", lambda _: pytest.fail("tested"))
    self_test.switch_off_what_fails(CPU)


@pytest.mark.gpu
@needs("CUDA device")
def test_the_kernels_of_this_gpu_are_right():
    assert {o.family: o.reason() for o in self_test.run("cuda") if not o.is_right} == {}
