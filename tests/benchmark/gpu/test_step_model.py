# SPDX-License-Identifier: Apache-2.0
"""The model of a step's time on a GPU, held against sums by hand."""

import json

import pytest

from benchmark.gpu import step_model
from benchmark.gpu.step_model import Ceilings, StageTime, model

CEILINGS = Ceilings(
    memory=1e12, cache=4e12, products={"float16": 1e14}, sorted_keys=1e9, launch=1e-6
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["a", "aten::add", 3, 0, 0, 0], StageTime(3, 0, 3e-6)),
        (["a", "aten::add", 1, 10**9, 0, 0], StageTime(1, 1e9, 1.001e-3)),
        (["a", "aten::mm", 1, 10**6, 0, 10**12], StageTime(1, 1e6, 1.0001e-2)),
        # A quarter of the rows through memory, all through the cache.
        (["a", "cuda_ext::gather", 1, 0, 8 * 10**9, 0], StageTime(1, 2e9, 2.001e-3)),
        (["a", "cuda_ext::gather", 1, 0, 40 * 10**9, 0], StageTime(1, 10e9, 1.0001e-2)),
        (["a", "cuda_ext::update_rows", 2, 0, 4 * 10**9, 0], StageTime(2, 1e9, 1.002e-3)),
        (["a", "cuda_ext::sort_rows", 7, 12 * 10**6, 0, 0], StageTime(7, 12e6, 1.007e-3)),
    ],
)
def test_a_kernel_takes_its_launch_and_the_longer_of_its_limits(line, expected):
    (stage,) = model([line], CEILINGS, "float16", 0.25).values()
    assert stage.kernels == expected.kernels
    assert stage.num_bytes == pytest.approx(expected.num_bytes)
    assert stage.seconds == pytest.approx(expected.seconds)


def test_stages_add_up():
    lines = [["a", "aten::add", 1, 0, 0, 0], ["b", "aten::add", 1, 0, 0, 0]] * 2
    assert list(model(lines, CEILINGS, "float16", 1.0)) == ["a", "b"]
    text = step_model.markdown(model(lines, CEILINGS, "float16", 1.0), rows=8)
    assert "| all | 4 | 0.0 | 4 |" in text
    assert text.endswith("2.0 M samples/s")


@pytest.mark.parametrize("case", json.loads(step_model.COUNTS.read_text()))
@pytest.mark.parametrize("device", step_model.DEVICES)
def test_every_case_is_modelled(case, device, capsys):
    assert step_model.main(["--case", case, "--device", device, "--ids", "uniform"]) == 0
    text = capsys.readouterr().out
    assert "modelled, not measured" in text
    assert "| table update |" in text
