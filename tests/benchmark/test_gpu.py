# SPDX-License-Identifier: Apache-2.0
"""python -m benchmark.gpu, tried on the CPU: its parts, and what it keeps between calls."""

import dataclasses

import pytest

from benchmark import gpu
from benchmark.case import Case, Group, Key
from benchmark.record import read_records
from tests.harness import assert_tells, forked
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")


@pytest.mark.release
def test_every_part_measures(tmp_path):
    forked("-m", "benchmark.gpu", "--device=cpu", "--small", f"--results={tmp_path}")
    for part in gpu.make_parts("cpu", small=True):
        assert not any(record.failed for record in read_records(tmp_path / f"gpu_{part}.jsonl"))
    training = {record.candidate for record in read_records(tmp_path / "gpu_training.jsonl")}
    assert training == {f"{p} eager" for p in ("bfloat16", "float16", "tf32", "float32")}


@dataclasses.dataclass(frozen=True)
class Counted(Case):
    """A part that counts its calls, of which the first may fail."""

    title: str
    calls: list[str]
    fails: bool = False
    repeats = 1

    @property
    def name(self):
        return f"gpu_{self.title}"

    def config(self):
        return {}

    def groups(self, folder):
        def measure(_seed):
            self.calls.append(self.title)
            if self.fails and self.calls.count(self.title) == 1:
                raise RuntimeError("CUDA error")
            return {Key("row", "value"): 1.0}

        yield Group(candidates={"a": measure})


@pytest.fixture
def calls(monkeypatch):
    """Calls of three parts, of which one fails at first."""
    calls = []
    parts = {name: Counted(name, calls, fails=name == "b") for name in "abc"}
    monkeypatch.setattr(gpu, "make_parts", lambda *_, **__: parts)
    return calls


def call(folder, *flags):
    return gpu.main(["", "--device=cpu", "--small", f"--results={folder}", *flags])


def test_a_second_call_measures_what_failed_alone(calls, tmp_path, capsys):
    assert call(tmp_path) == 1
    assert "CUDA error" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu_a.jsonl", "gpu_c.jsonl"]
    assert call(tmp_path) == 0
    assert calls == ["a", "b", "c", "b"]
    assert "a: measured before" in capsys.readouterr().out


def test_no_part_begins_after_the_limit(calls, tmp_path):
    assert call(tmp_path, "--limit_s=0") == 3
    assert calls == []


def test_results_of_other_code_are_measured_again(calls, tmp_path, monkeypatch):
    call(tmp_path, "--parts=a")
    monkeypatch.setattr(gpu, "commit", lambda: "another")
    call(tmp_path, "--parts=a")
    assert calls == ["a", "a"]


@needs("machine without CUDA device")
def test_a_machine_without_a_gpu_is_told_so(capsys):
    assert gpu.main([""]) == 2
    assert_tells(capsys.readouterr().err, "CUDA", "--device cpu --small")
