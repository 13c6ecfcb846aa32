# SPDX-License-Identifier: Apache-2.0
"""8-bit MLPs and tables: their arithmetic, and `--quantize int8` of the program."""

import itertools
import os

import pytest
import torch

from dlrm.nn.frozen_embedding import FrozenEmbedding, quantize_rows
from dlrm.nn.int8_mlp import Int8Mlp, largest_activation, observed_inputs
from dlrm.nn.mlp import Mlp
from tests import harness
from tests.dlrm.conftest import CARDINALITIES, ROWS, final
from tests.harness import assert_tells

WIDE = ("--bottom_mlp_sizes=96,64,8", "--top_mlp_sizes=128,64,1", "--embedding_dim=8")
BATCHES = (33, 70, 130)
SHAPES = [
    (13, (128, 96, 64), True),
    (97, (64, 80, 1), False),
    (64, (64,), True),
    (5, (8, 1), False),
]


def perceptron(inputs, sizes, final_relu=False, seed=0):
    torch.manual_seed(seed)
    return Mlp(inputs, sizes, final_relu).eval()


def calibrated(mlp, x):
    with observed_inputs(mlp) as largest:
        mlp(x[: len(x) // 2])
        mlp(x[len(x) // 2 :])
    return largest


def by_definition(mlp, x, largest):
    """Computes the 8-bit MLP in float64, number by number as its description says."""
    activation, scale, most = x.double(), None, largest_activation()
    half = (most + 1) // 2
    linears = mlp.linears
    wide = [min(m.in_features, m.out_features) >= 64 for m in linears]
    for i, layer in enumerate(linears):
        weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
        if wide[i]:
            if scale is None:
                columns = (largest[i] / (most - half)).double()
                whole = (activation / columns).nan_to_num(0, 0, 0).round().clamp(-half, most - half)
                weight, step = weight * columns, 1.0
            else:
                whole, step = activation, scale
            values, scales = quantize_rows(weight.float())
            activation = (whole @ values.double().T) * step * scales.double() + bias
        else:
            activation = activation @ weight.T + bias
        if i < len(linears) - 1 or mlp.final_relu:
            activation = activation.relu()
        scale = None
        if wide[i] and i + 1 < len(linears) and wide[i + 1]:
            scale = float(largest[i + 1].max()) / most
            activation = (activation / scale).round().clamp(0, most)
    return activation


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("inputs", "sizes", "final_relu"), SHAPES)
@torch.no_grad()
def test_it_computes_its_definition(batch, inputs, sizes, final_relu):
    mlp = perceptron(inputs, sizes, final_relu)
    x = torch.randn(200, inputs) * torch.logspace(-2, 2, inputs)  # columns of very different size
    largest = calibrated(mlp, x)
    result = Int8Mlp(mlp, largest)(x[:batch])
    expected = by_definition(mlp, x[:batch], largest)
    assert result.dtype == torch.float32
    # A sum on the border of two whole numbers may fall to either.
    difference = (result - expected).abs() / expected.abs().max()
    assert difference.median() < 1e-5
    assert difference.max() < 2e-2


def compute_on(_rank, isa):
    os.environ["ONEDNN_MAX_CPU_ISA"] = isa  # before oneDNN reads it
    for batch, shape in itertools.product(BATCHES, SHAPES):
        test_it_computes_its_definition(batch, *shape)
    assert largest_activation() == 127


@pytest.mark.parametrize("isa", ["AVX2", "SSE41"])
def test_it_computes_its_definition_on_older_processors(isa):
    """oneDNN as it works on a processor without VNNI, which would cut sums off."""
    harness.run_ranks(1, compute_on, isa, joined=False)


@torch.no_grad()
def test_it_stays_close_to_float32():
    mlp = perceptron(100, (256, 128, 1))
    x = torch.randn(500, 100) * torch.logspace(-1, 2, 100)
    result, expected = Int8Mlp(mlp, calibrated(mlp, x))(x), mlp(x)
    assert (result - expected).std() < 0.03 * expected.std()


@torch.no_grad()
def test_a_few_samples_are_computed_in_float32():
    mlp = perceptron(100, (256, 128, 1))
    x = torch.randn(40, 100)
    quantized = Int8Mlp(mlp, calibrated(mlp, x))
    torch.testing.assert_close(quantized(x[:3]), mlp(x)[:3], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(quantized(x), mlp(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_columns_that_are_always_zero_cost_no_accuracy():
    mlp = perceptron(100, (64,))
    x = torch.randn(500, 100) * 1e-3
    x[:, ::2] = 0
    result, expected = Int8Mlp(mlp, calibrated(mlp, x))(x), mlp(x)
    centre = mlp.linears[0].bias
    assert (result - expected).std() < 0.03 * (expected - centre).std()


@torch.no_grad()
def test_calibration_sees_every_layer_of_every_batch():
    mlp = perceptron(3, (4, 2))
    x = torch.tensor([[1.0, -5, 0], [2, 3, 0]])
    first, second = calibrated(mlp, x)
    assert first.tolist() == [2, 5, 0]
    hidden = torch.relu(mlp.linears[0](x))
    torch.testing.assert_close(second, hidden.amax(dim=0))
    mlp(x * 100)  # no longer observed
    assert first.tolist() == [2, 5, 0]


@torch.no_grad()
def test_inputs_beyond_the_calibration_are_cut_off():
    mlp = perceptron(64, (64,))
    x = torch.rand(50, 64)
    quantized = Int8Mlp(mlp, calibrated(mlp, x))
    limit = x.amax(dim=0).expand(40, -1)
    torch.testing.assert_close(quantized(limit * 1000), quantized(limit), rtol=0, atol=1e-6)


def test_the_program_says_what_8_bits_cost(program, dataset, tmp_path):
    run = tmp_path / "run"
    program.train(dataset, run, *WIDE)
    program.test(dataset, run, *WIDE)
    plain = program.stdout
    result = program.test(dataset, run, *WIDE, "--quantize=int8")
    out = program.stdout
    assert f"auc {result['auc']:.6f}" in plain  # the float32 model is tested as ever
    change = result["int8_auc"] - result["auc"]
    assert_tells(out, f"{change:+.6f}", f"{ROWS['test']} rows")
    assert result["auc"] > 0.8
    assert 0 < abs(change) < 0.005
    tables = sum(CARDINALITIES) * 8 / 2**20
    assert_tells(out, f"{tables * 1.5:.1f} MiB", f"{tables * 4:.1f}")


def test_inference_is_measured_in_8_bits(program, dataset):
    records = program(
        *(*WIDE, f"--dataset={dataset}", "--mode=inference_benchmark", "--quantize=int8"),
        *("--inference_benchmark_batch_sizes=1,64", "--inference_benchmark_steps=5"),
    )
    assert "8 bits: tables take" in program.stdout
    assert final(records)["mean_inference_latency_batch_64"] > 0


def test_an_id_outside_its_table_is_refused():
    table = torch.randn(30, 4)
    values, scale = quantize_rows(table)
    embedding = FrozenEmbedding(values, scale, (10, 20), False, checks_ids=True)
    vectors = embedding(torch.tensor([[9, 19]]), torch.float32)
    torch.testing.assert_close(vectors[0], table[[9, 29]], rtol=0, atol=float(scale.max()) / 2)
    with pytest.raises((RuntimeError, ValueError), match="10"):
        embedding(torch.tensor([[10, 0]]), torch.float32)
