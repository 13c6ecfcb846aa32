# SPDX-License-Identifier: Apache-2.0
"""The network, the loader and the captured step on a CUDA device, against the CPU."""

import pytest
import torch

from dlrm.data.batch import Batch
from dlrm.train.graphs import GraphedInference, GraphedTrainStep
from dlrm.train.metrics import roc_auc
from recsys.train.optimizers.precision import set_tf32
from tests.dlrm import networks
from tests.dlrm.batches import FILE_TYPES, open_batches
from tests.dlrm.conftest import final
from tests.dlrm.networks import copy_of, tables_of, train_step
from tests.tools import needs

pytestmark = [
    pytest.mark.gpu,
    needs("CUDA device"),
]


@pytest.fixture(autouse=True)
def exact_products():
    """Undoes what a run with --tf32 sets in this process."""
    yield
    set_tf32(torch.device("cuda"), False)


SIZES = (7, 3, 50_000)

SHAPE = {"embedding_dim": 8, "bottom_mlp_sizes": (16, 8), "top_mlp_sizes": (16, 1)}


def build(device, **changes):
    return networks.build(sizes=SIZES, **(SHAPE | changes)).to(device)


def batch(seed, device, size=256):
    drawn = networks.batch(size, SIZES, seed=seed)
    return Batch(drawn.numerical.to(device), drawn.ids.to(device), drawn.label.to(device))


def train(device, make_step=lambda step: step, optimizer="sgd", precision=None, l2=0.0, **changes):
    model = build(device, **changes)
    precision = {"device_type": torch.device(device).type} | (precision or {})
    step = make_step(train_step(model, optimizer, embedding_l2=l2, **precision))
    # One batch is short, as the last of an epoch.
    losses = [float(step(batch(s, device, 100 if s == 5 else 256), 0.1)) for s in range(8)]
    return losses, tables_of(model).cpu()


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("embedding_type", ["joint", "joint_fused", "joint_sparse", "multi_table"])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_trains_as_on_the_cpu(embedding_type, optimizer, l2):
    settings = {"optimizer": optimizer, "embedding_type": embedding_type, "l2": l2}
    runs = [train(device, **settings) for device in ("cpu", "cuda")]
    assert runs[1][0] == pytest.approx(runs[0][0], rel=1e-3)
    # Adam's first step is as long as the learning rate, whatever the gradient: where that is near
    # zero, another rounding gives it the other sign.
    if optimizer != "adam":
        torch.testing.assert_close(runs[1][1], runs[0][1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_a_captured_step_trains_as_an_eager_one(l2):
    eager = train("cuda", l2=l2)
    graphed = train("cuda", GraphedTrainStep, l2=l2)
    assert graphed[0] == pytest.approx(eager[0], rel=1e-5)
    torch.testing.assert_close(graphed[1], eager[1], rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_replayed_inference_predicts_as_the_eager_one_after_an_update_too():
    model = build("cuda").eval()

    def predict(batch):
        return model(batch.numerical, batch.ids)

    graphed = GraphedInference(predict)
    for seed in range(6):
        wanted = batch(seed, "cuda", 256 if seed % 2 else 1)
        torch.testing.assert_close(graphed(wanted), predict(wanted))
        for parameter in model.mlp_parameters():
            parameter.mul_(1.1)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 1024.0), (torch.bfloat16, 1.0)])
def test_mixed_precision_stays_close(dtype, scale):
    full = train("cuda")
    mixed = train("cuda", precision={"dtype": dtype, "loss_scale": scale})
    assert mixed[0] == pytest.approx(full[0], abs=0.01)


@pytest.mark.parametrize("make_step", [lambda s: s, GraphedTrainStep])
def test_overflow_leaves_every_parameter_alone(make_step):
    model = build("cuda")
    precision = {"device_type": "cuda", "dtype": torch.float16, "loss_scale": 1024.0}
    step = make_step(train_step(model, **precision))
    for seed in range(5):
        step(batch(seed, "cuda"), 0.1)
    before = copy_of(model)
    bad = batch(9, "cuda")
    step(Batch(bad.numerical, bad.ids, bad.label * float("inf")), 0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, copy_of(model), strict=True))


@pytest.mark.parametrize("dataset_type", FILE_TYPES)
def test_the_loader_brings_the_same_rows(dataset, dataset_type):
    ours, theirs = (
        open_batches(dataset, dataset_type, device=torch.device(d)) for d in ("cuda", "cpu")
    )
    for mine, expected in zip(ours.batches(), theirs.batches(), strict=True):
        for name in ("ids", "label", "numerical"):
            assert torch.equal(getattr(mine, name).cpu(), getattr(expected, name))


def test_auc_is_the_same_on_both_devices():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(100_000, generator=generator).mul(100).round()
    labels = torch.rand(100_000, generator=generator) < 0.3
    assert roc_auc(scores.cuda(), labels.cuda()) == roc_auc(scores, labels)


@pytest.mark.parametrize("flags", [("--tf32",), ("--cuda_graphs", "--amp", "--amp_dtype=bfloat16")])
def test_the_program_learns_as_on_the_cpu(program, dataset, flags):
    aucs = []
    for device in (("--base_device=cpu",), ("--base_device=cuda", *flags)):
        aucs.append(final(program(f"--dataset={dataset}", "--epochs=2", *device))["best_auc"])
    assert aucs[1] == pytest.approx(aucs[0], abs=0.005)
