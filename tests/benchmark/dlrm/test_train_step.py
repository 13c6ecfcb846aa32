# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from benchmark.dlrm import train_step
from benchmark.dlrm.train_step_models import (
    PYTORCH,
    SIZES,
    build_candidates,
    check_training,
    forward_flops,
    make_batches,
    training_flops,
)
from benchmark.peers.torchrec_dlrm import single_process_group
from benchmark.peers.torchrec_interaction import has_torchrec
from benchmark.record import read_records

TABLES = [20, 3, 50]
TINY = [
    *("--models", "small", "--tables", "3", "--rows", "50", "--repeats", "1"),
    *("--matmul_size", "64", "--threads", "1", "--allocator", "default"),
]


@pytest.fixture
def process_group():
    if not has_torchrec():
        yield
        return
    with single_process_group():
        yield


@pytest.mark.parametrize(
    ("flags", "benchmark", "case"),
    [
        (["--batch_sizes", "2048"], "train_step", "small, zipf, B=2,048"),
        (["--inference", "--batch_sizes", "1", "64"], "inference_step", "small, zipf, B=64"),
        pytest.param(
            ["--bfloat16", "--batch_sizes", "2048"],
            "train_step_bfloat16",
            "small, zipf, B=2,048",
            marks=pytest.mark.release,
        ),
    ],
)
def test_every_case_is_measured_and_recorded(tmp_path, flags, benchmark, case):
    assert train_step.main([*TINY, "--results", str(tmp_path), *flags]) == 0
    records = read_records(tmp_path / f"{benchmark}.jsonl")
    found = {record.metric: record for record in records if record.candidate == case}
    assert found.keys() >= {
        *("ours", "PyTorch", "ours over PyTorch", "our throughput", "ours, share of the ceiling"),
        "matrix product",
    }
    assert ("TorchRec" in found) == has_torchrec()
    assert ("ours over ours in float32" in found) == ("--bfloat16" in flags)
    assert found["ours"].config["allocator"] == "default"
    batch_size = int(case.rpartition("=")[2].replace(",", ""))
    rate = batch_size / (found["ours"].value / 1e3)
    assert found["our throughput"].value == pytest.approx(rate)
    assert found["ours over PyTorch"].value == pytest.approx(
        found["PyTorch"].value / found["ours"].value
    )


@pytest.mark.usefixtures("process_group")
def test_implementations_train_alike_and_a_different_one_is_found():
    config = SIZES["small"]
    candidates = build_candidates(config, TABLES)
    batches = make_batches(config, TABLES, 64, "zipf")
    check_training(candidates, batches)
    data = candidates[PYTORCH].prepare(batches[0])
    ours = candidates["ours"].logits(data)
    torch.testing.assert_close(candidates[PYTORCH].logits(data), ours, rtol=1e-4, atol=1e-4)
    candidates[PYTORCH].train(data)
    with pytest.raises(ArithmeticError, match="losses of the same steps"):
        check_training(candidates, batches)


def test_operations_of_a_sample():
    # Counted by hand for 26 tables: MLPs 4.73 MFLOP and 0.09 for the dot products of 27 vectors.
    bottom = 13 * 512 + 512 * 256 + 256 * 128
    top = 479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert forward_flops(SIZES["big"], 26) == 2 * (bottom + top) + 2 * 128 * 27 * 26 / 2
    assert training_flops(SIZES["big"], 26) == 3 * forward_flops(SIZES["big"], 26) - 2 * 13 * 512
