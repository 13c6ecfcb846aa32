# SPDX-License-Identifier: Apache-2.0
"""Command lines of NVIDIA's deployer keep their meaning."""

import pytest

from recsys_recipes.serving.nvidia_options import translate


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("--ts-trace", "--backend=pytorch --format=torchscript --target=container"),
        (
            "--onnx --triton-model-name x",
            "--backend=onnx --format=onnx --target=container --name=x",
        ),
        ("--triton-max-batch-size=64", "--max_batch_size=64"),
        ("--max-batch-size 64", "--max_batch_size 64"),
        ("--triton-dyn-batching-delay 1.5", "--max_queue_delay_us=1500"),
        ("--triton-engine-count 2 --deploy_cpu", "--instances=2 --device=cpu"),
        ("--save-dir /m -- --embedding_dim 128 --top_mlp_sizes 4", "--repository=/m"),
        ("--checkpoint=/a-b/c --quantize int8", "--checkpoint=/a-b/c --quantize int8"),
    ],
)
def test_options_are_turned_into_ours(given, ours):
    assert translate(given.split()) == ours.split()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--dump_perf_data x", "has no counterpart"),
        ("--triton-model-name", "needs a value"),
        ("--triton-dyn-batching-delay soon", "must be milliseconds, got 'soon'"),
    ],
)
def test_what_has_no_counterpart_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        translate(given.split())
