# SPDX-License-Identifier: Apache-2.0
"""python -m benchmark.gpu, tried on the CPU: its parts, and what it keeps between calls."""

import json

import pytest

from benchmark.gpu import __main__ as program
from benchmark.gpu.parts import PARTS
from tests.harness import forked
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

COMPILING = ("plain PyTorch", "BERT4Rec")


def run(folder, parts, *flags):
    program_flags = ("--device=cpu", "--small", f"--results={folder}", f"--parts={','.join(parts)}")
    return forked("-m", "benchmark.gpu", *program_flags, *flags)


@pytest.mark.parametrize(
    "parts",
    [
        [part for part in PARTS if part not in COMPILING],
        COMPILING,
    ],
    ids=["eager", "compiling"],
)
@pytest.mark.release
def test_every_part_measures(parts, tmp_path):
    run(tmp_path, parts)
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert list(result["parts"]) == list(parts)
    assert "failed" not in json.dumps(result["parts"])
    assert result["device"] == "cpu"
    if "training" in parts:
        rates = result["parts"]["training"]["samples_per_s"]
        assert set(rates) == {
            f"64 {ids} {precision} eager"
            for ids in ("zipf", "uniform")
            for precision in ("bfloat16", "float16", "tf32", "float32")
        }
        assert all(rate > 0 for rate in rates.values())
        assert json.loads((tmp_path / "gpu_kernels.json").read_text())["ops"]


@pytest.fixture
def parts(monkeypatch):
    """Parts that count their calls, of which one fails at first."""
    calls = []

    def part(name, fails=False):
        def measure(_):
            calls.append(name)
            if fails and calls.count(name) == 1:
                raise RuntimeError("CUDA error")
            return {"value": len(calls)}

        return measure

    monkeypatch.setattr(
        program, "PARTS", {"a": part("a"), "b": part("b", fails=True), "c": part("c")}
    )
    return calls


def call(folder, *flags):
    return program.main(["--device=cpu", "--small", f"--results={folder}", "--parts=a,b,c", *flags])


def test_a_second_call_measures_what_failed_alone(parts, tmp_path, capsys):
    assert call(tmp_path) == 1
    kept = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert kept["b"]["failed"] == "RuntimeError: CUDA error"
    assert kept["c"]["value"] == 3
    assert call(tmp_path) == 0
    assert parts == ["a", "b", "c", "b"]
    assert "a: measured before" in capsys.readouterr().out


def test_no_part_begins_after_the_limit(parts, tmp_path, capsys):
    assert call(tmp_path, "--limit_s=0") == 3
    assert parts == []
    assert "a: no time left; call again to go on" in capsys.readouterr().out


def test_results_of_other_code_are_measured_again(parts, tmp_path, monkeypatch):
    call(tmp_path)
    monkeypatch.setattr(program, "commit", lambda: "another")
    call(tmp_path)
    assert parts == ["a", "b", "c", "a", "b", "c"]


@needs("machine without CUDA device")
def test_a_machine_without_a_gpu_is_told_so():
    done = forked("-m", "benchmark.gpu", status=2)
    assert "no CUDA device is here; --device cpu --small tries the program" in done.stderr
