# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt: what is written is what Triton's own schema reads, and nonsense is refused."""

import json

import pytest

from recsys.serve.config_pbtxt import (
    ConfigError,
    ServingSettings,
    check_config,
    check_same_tensors,
    config_text,
    parse_config,
)
from recsys.serve.signature import clicks_signature, ratings_signature, with_raw_rows
from tests.harness import refusal

DLRM = clicks_signature(13, 26)


def parsed(signature=DLRM, name="dlrm", **settings):
    settings = ServingSettings(**settings)
    text = config_text(name, signature, settings)
    check_config(text, name)
    return parse_config(text, "config.pbtxt")


def test_a_dlrm_for_the_python_backend():
    config = parsed(
        max_batch_size=512,
        max_queue_delay_us=500,
        max_queue_size=9,
        timeout_us=700,
        preferred_batch_sizes=(128, 512),
        instances=2,
        threads=1,
        warmup=64,
    )
    assert (config.name, config.backend, config.platform) == ("dlrm", "python", "")
    assert config.max_batch_size == 512
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [
        ("numerical", 11, [13]),  # TYPE_FP32
        ("categorical", 9, [26]),  # TYPE_INT64
    ]
    assert [(t.name, t.data_type, list(t.dims)) for t in config.output] == [
        ("probability", 11, [1]),
        ("logit", 11, [1]),
    ]
    (group,) = config.instance_group
    assert (group.count, group.kind) == (2, 2)  # KIND_CPU
    assert list(config.dynamic_batching.preferred_batch_size) == [128, 512]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    policy = config.dynamic_batching.default_queue_policy
    assert (policy.timeout_action, policy.max_queue_size) == (0, 9)  # REJECT
    assert (policy.default_timeout_microseconds, policy.allow_timeout_override) == (700, True)
    assert config.parameters["threads"].string_value == "1"
    assert config.parameters["warmup_rows"].string_value == "64"  # our model.py reads it


def test_a_queue_has_a_policy_where_it_is_bounded_and_leaves_requests_their_timeout():
    for settings in ({}, {"preferred_batch_sizes": (4,)}):
        assert not parsed(**settings).dynamic_batching.HasField("default_queue_policy")
    policy = parsed(max_queue_size=3).dynamic_batching.default_queue_policy
    assert policy.allow_timeout_override
    assert policy.default_timeout_microseconds == 24 * 60 * 60 * 1_000_000


def test_histories_of_any_length_are_batched_ragged():
    config = parsed(ratings_signature(10), "bert4rec")
    history, exclude_seen = config.input
    assert (list(history.dims), history.allow_ragged_batch, history.optional) == ([-1], True, False)
    assert (list(exclude_seen.dims), exclude_seen.optional) == ([1], True)


@pytest.mark.parametrize(
    ("backend", "format", "device", "largest", "signature"),
    [
        ("python", "eager", "gpu", 8, ratings_signature(10)),
        ("python", "torchscript", "cpu", 0, ratings_signature(10, 199)),
        ("native", "eager", "cpu", 8, DLRM),
        ("pytorch", "torchscript", "gpu", 8, ratings_signature(10, 199)),
        ("pytorch", "torchscript", "cpu", 0, DLRM),
        ("onnx", "onnx", "gpu", 0, ratings_signature(10, 199)),
        ("onnx", "onnx", "cpu", 8, DLRM),
    ],
)
def test_every_backend_gets_its_own_words(backend, format, device, largest, signature):
    settings = {"backend": backend, "format": format, "device": device, "max_batch_size": largest}
    config = parsed(signature, "m.1", **settings, instances=3, threads=2, warmup=1)
    ours = backend in ("python", "native")
    names = {"python": "python", "native": "recsys", "pytorch": "pytorch", "onnx": "onnxruntime"}
    platforms = {"pytorch": "pytorch_libtorch", "onnx": "onnxruntime_onnx"}
    assert (config.backend, config.platform) == (names[backend], platforms.get(backend, ""))
    (group,) = config.instance_group
    assert (group.count, group.kind) == (3, {"gpu": 1, "cpu": 2}[device])  # KIND_GPU, KIND_CPU
    given = [tensor.name for tensor in signature.inputs]
    inputs = [f"INPUT__{i}" for i in range(2)] if backend == "pytorch" else given
    assert [tensor.name for tensor in config.input] == inputs
    rows = [] if largest else [-1]  # without batching a dimension of the tensors
    shapes = [list(tensor.shape) for tensor in signature.inputs]
    assert [list(tensor.dims) for tensor in config.input] == [rows + shape for shape in shapes]
    assert config.HasField("dynamic_batching") == (largest > 0)
    values = {name: value.string_value for name, value in config.parameters.items()}
    threads = {"pytorch": "INTRA_OP_THREAD_COUNT", "onnx": "intra_op_thread_count"}
    assert values == {threads.get(backend, "threads"): "2"} | ({"warmup_rows": "1"} if ours else {})
    assert len(config.model_warmup) == (not ours)
    for warmup in config.model_warmup:
        assert warmup.batch_size == (1 if largest else 0)
        dims = [list(warmup.inputs[name].dims) for name in inputs]
        assert dims == [([] if largest else [1]) + shape for shape in shapes]


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"backend": "native", "format": "onnx"}, ["`format` onnx", "`backend` native", "eager"]),
        ({"backend": "native", "device": "gpu"}, ["`backend` native", "`device` cpu"]),
        ({"backend": "onnx", "format": "eager"}, ["`format` eager", "`backend` onnx"]),
        ({"max_batch_size": -1}, ["`max_batch_size`", 0, -1]),
        ({"instances": 0}, ["`instances`", 1, 0]),
        ({"threads": 40_000}, ["`threads`", 1024, 40_000]),
        (
            {"preferred_batch_sizes": (9,), "max_batch_size": 8},
            ["`preferred_batch_sizes`", 9, "`max_batch_size`"],
        ),
        ({"warmup": 9, "max_batch_size": 8}, ["`warmup` 9", "`max_batch_size` 8"]),
        (
            {"max_batch_size": 0, "max_queue_delay_us": 5},
            ["`max_queue_delay_us`", "`dynamic_batching`"],
        ),
        ({"dynamic_batching": False, "timeout_us": 5}, ["`timeout_us`", "`dynamic_batching`"]),
        (
            {"dynamic_batching": False, "max_queue_delay_us": 5},
            ["`max_queue_delay_us`", "`dynamic_batching`"],
        ),
    ],
)
def test_senseless_settings_are_refused(settings, facts):
    with refusal(*facts):
        ServingSettings(**settings)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", 'a"b', ".hidden"])
def test_a_name_that_is_no_folder_name_is_refused(name):
    with pytest.raises(ConfigError, match="`name`"):
        config_text(name, DLRM, ServingSettings())


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ('max_batchsize: 3\nname: "m"', ["config.pbtxt", "1:1"]),
        ("input { data_type: TYPE_FLOAT }", ["config.pbtxt", "1:20"]),
        (config_text("a", DLRM, ServingSettings()), ["'a'", "'m'"]),
    ],
)
def test_what_triton_would_not_take_is_refused_with_its_place(text, facts):
    with refusal(*facts, kind=ConfigError):
        check_config(text, "m")


@pytest.mark.parametrize(
    ("signature", "settings"),
    [
        (clicks_signature(13, 25), {}),
        (ratings_signature(10), {}),
        (DLRM, {"backend": "onnx", "format": "onnx"}),
    ],
)
def test_versions_that_cannot_share_a_configuration_are_refused(tmp_path, signature, settings):
    file = tmp_path / "config.pbtxt"
    file.write_text(config_text("m", DLRM, ServingSettings()))
    same = config_text("m", DLRM, ServingSettings(instances=3, max_batch_size=7))
    check_same_tensors(file, same)
    with refusal(file, kind=ConfigError):
        check_same_tensors(file, config_text("m", signature, ServingSettings(**settings)))


def test_columns_of_any_name_are_parameters():
    names = ('größe "x"', "a'b\\c", "line", "tab\tname", "€{1}")
    config = parsed(with_raw_rows(clicks_signature(0, 3), names, names[:3], "\t", '"'))
    assert json.loads(config.parameters["line_dialect"].string_value) == ["\t", '"']
    for tensor, expected in (("line", names), ("fields", names[:3])):
        assert tuple(json.loads(config.parameters[tensor].string_value)) == expected
