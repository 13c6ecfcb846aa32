# SPDX-License-Identifier: Apache-2.0
"""The network against a thirty-line DLRM that shares no code with it."""

import copy
import dataclasses
import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import DlrmConfig, ModelConfig
from dlrm.model.network import Dlrm
from dlrm.model.weights import DlrmCheckpoint, weights_of
from dlrm.nn.embedding import load_table, read_tables
from dlrm.nn.mlp import Mlp
from dlrm.scripts.flags import PRESETS
from recsys.train.saving.write import write_checkpoint
from tests.dlrm.networks import SIZES, batch, build, copy_of, tables_of, train_step
from tests.dlrm.nvidia_folder import write_nvidia_folder
from tests.harness import refusal

EMBEDDING_TYPES = ("joint", "joint_fused", "joint_sparse", "multi_table")


def naive_forward(model, numerical, ids, interaction, tables=None):
    x = numerical
    for layer in model.bottom_mlp.linears:
        x = F.relu(x @ layer.weight.T + layer.bias)
    tables = tables or read_tables(model.embeddings).values()
    vectors = [x, *(t[ids[:, i]] for i, t in enumerate(tables))]
    if interaction == "cat":
        z = torch.cat(vectors, 1)
    elif interaction == "dcnv2":
        x0 = z = torch.cat(vectors, 1)
        for down, up in zip(model.interaction.down, model.interaction.up, strict=True):
            z = x0 * (z @ down.weight.T @ up.weight.T + up.bias) + z
    else:
        pairs = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
        z = torch.cat([x, *(p[:, None] for p in pairs)], 1)
    first = model.top_mlp.linears[0]
    z = F.pad(z, (0, first.in_features - z.shape[1]))
    for layer in model.top_mlp.linears[:-1]:
        z = F.relu(z @ layer.weight.T + layer.bias)
    last = model.top_mlp.linears[-1]
    return (z @ last.weight.T + last.bias)[:, 0]


def test_dcnv2_equals_its_formula():
    """As the other interactions in training, below."""
    model, data = build(interaction_op="dcnv2", dcn_low_rank_dim=3), batch()
    found = model(data.numerical, data.ids)
    expected = naive_forward(model, data.numerical, data.ids, "dcnv2")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ROW_RULES)
def test_every_embedding_type_trains_to_the_same_parameters(optimizer):
    found = {}
    for embedding_type in EMBEDDING_TYPES:
        model = build(embedding_type=embedding_type)
        step = train_step(model, optimizer)
        losses = [float(step(batch(seed=s), 0.1)) for s in range(5)]
        found[embedding_type] = (losses, tables_of(model))
    losses, tables = found["joint"]
    for other_losses, other_tables in found.values():
        assert other_losses == pytest.approx(losses, rel=1e-5)
        torch.testing.assert_close(other_tables, tables, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ROW_RULES)
def test_a_bfloat16_table_trains_as_a_float32_one(optimizer):
    found = {}
    for storage in ("float32", "bfloat16"):
        model = build(embedding_storage=storage)
        before = tables_of(model)
        step = train_step(model, optimizer)
        losses = [float(step(batch(seed=s), 0.01)) for s in range(5)]
        found[storage] = (losses, before, tables_of(model))
    losses, before, after = found["float32"]
    assert found["bfloat16"][0] == pytest.approx(losses, rel=1e-2)
    moved, expected = found["bfloat16"][2] - found["bfloat16"][1], after - before
    assert (moved - expected).norm() < 0.1 * max(expected.norm(), after.norm() * 0.02)


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_tables_can_be_read_and_put_back(storage):
    model, twin = build(embedding_storage=storage), build(embedding_storage=storage)
    values = [torch.randn_like(table) for table in read_tables(model.embeddings).values()]
    for feature, table in enumerate(values):
        load_table(model.embeddings, feature, table)
    kept = [*read_tables(model.embeddings).values()]
    if storage == "float32":
        assert all(torch.equal(a, b) for a, b in zip(kept, values, strict=True))
    for feature, table in enumerate(kept):
        load_table(twin.embeddings, feature, table)
    assert all(
        torch.equal(a, b) for a, b in zip(read_tables(twin.embeddings).values(), kept, strict=True)
    )
    data = batch()
    assert torch.equal(model.embeddings(data.ids, torch.float32)[0, 1].bfloat16(),
                       kept[1][data.ids[0, 1]].bfloat16())  # fmt: skip


def test_one_pass_lookup_trains_to_the_same_bits_as_two(monkeypatch):
    tables = []
    for fused in (True, False):
        model = build()
        monkeypatch.setattr(model.embeddings, "prefers_one_pass", lambda fused=fused: fused)
        step = train_step(model)
        for seed in range(4):
            step(batch(seed=seed), 0.3)
        tables.append(model.embeddings.weight.detach().clone())
    assert torch.equal(*tables)


@pytest.mark.parametrize("bad", [-1, 3])
@pytest.mark.parametrize("embedding_type", ["joint", "joint_fused", "joint_sparse"])
def test_an_id_outside_its_table_is_named(embedding_type, bad):
    model = build(embedding_type=embedding_type)
    data = batch()
    data.ids[5, 1] = bad  # the neighbours in the joint table would be read silently
    with refusal("feature 1", "sample 5", bad, kind=(RuntimeError, ValueError)):
        model(data.numerical, data.ids)


def test_a_bad_id_found_without_waiting_is_reported_later():
    model = build()
    embeddings = model.embeddings
    embeddings.raise_bad_ids()
    embeddings._bad_id.fill_(7)
    with refusal("feature 1", "[0, 3)", kind=ValueError):
        embeddings.raise_bad_ids()


@pytest.mark.parametrize("interaction", ["dot", "cuda_dot", "cat", "dcnv2"])
@pytest.mark.parametrize("embedding_type", EMBEDDING_TYPES)
def test_training_equals_plain_sgd_on_the_naive_network(interaction, embedding_type):
    settings = {"interaction_op": interaction, "dcn_low_rank_dim": 3}
    model, twin = build(embedding_type=embedding_type, **settings), build(**settings)
    step = train_step(model)
    table = twin.embeddings.weight.requires_grad_()
    optimizer = torch.optim.SGD([table, *twin.mlp_parameters()], lr=0.3)
    for seed in range(4):
        data = batch(seed=seed)
        step(data, 0.3)
        optimizer.zero_grad()
        views = torch.split(table, list(SIZES))
        logits = naive_forward(twin, data.numerical, data.ids, interaction, views)
        F.binary_cross_entropy_with_logits(logits, data.label).backward()
        optimizer.step()
    torch.testing.assert_close(tables_of(model), table.detach(), rtol=1e-5, atol=1e-6)
    for a, b in zip(model.mlp_parameters(), twin.mlp_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


TWINS = {
    "sgd": torch.optim.SGD,
    "adagrad": functools.partial(torch.optim.Adagrad, eps=1e-8),
    "adam": torch.optim.Adam,
}
"""Row optimizer -> PyTorch's of the same formula, whose weight decay is L2 in the gradient."""


@pytest.mark.parametrize("scale", [1.0, 64.0])
@pytest.mark.parametrize("embedding_type", EMBEDDING_TYPES)
@pytest.mark.parametrize("optimizer", TWINS)
def test_l2_moves_all_rows_as_that_of_a_dense_table(optimizer, embedding_type, scale):
    model = build(embedding_type=embedding_type)
    step = train_step(model, optimizer, embedding_l2=0.3, loss_scale=scale)
    tables, twin = tables_of(model).double().requires_grad_(), build().double()
    optimizers = [
        TWINS[optimizer]([tables], lr=0.01, weight_decay=0.3),
        TWINS[optimizer](twin.mlp_parameters(), lr=0.01),
    ]
    for seed in range(4):
        data = batch(rows=5, seed=seed)
        step(data, 0.01)
        for each in optimizers:
            each.zero_grad()
        views = torch.split(tables, list(SIZES))
        logits = naive_forward(twin, data.numerical.double(), data.ids, "dot", views)
        F.binary_cross_entropy_with_logits(logits, data.label.double()).backward()
        for each in optimizers:
            each.step()
    torch.testing.assert_close(tables_of(model).double(), tables.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ROW_RULES)
def test_l2_shrinks_rows_that_never_occur(optimizer, storage):
    model = build(embedding_storage=storage, embedding_type="joint_fused")
    step = train_step(model, optimizer, embedding_l2=0.5, loss_scale=8.0)
    before, data = tables_of(model)[-1].clone(), batch()
    data.ids.clamp_(max=48)
    step(dataclasses.replace(data, label=data.label * float("inf")), 0.01)
    assert torch.equal(tables_of(model)[-1], before)
    for _ in range(9):
        step(data, 0.01)
    assert tables_of(model)[-1].norm() < before.norm()


@pytest.mark.parametrize("num_tables", [0, 1, 40])
@pytest.mark.parametrize("num_numerical", [0, 1, 13])
@pytest.mark.parametrize("interaction", ["cuda_dot", "cat", "dcnv2"])
def test_any_number_of_features(num_tables, num_numerical, interaction):
    sizes = (3,) * num_tables
    model = build(sizes=sizes, num_numerical_features=num_numerical, interaction_op=interaction)
    data = batch(sizes=sizes, num_numerical=num_numerical)
    step = train_step(model)
    assert torch.isfinite(step(data, 0.1))
    assert model(data.numerical, data.ids).shape == (16,)


def test_hash_indices_wraps_without_changing_the_ids():
    model = build(hash_indices=True, max_table_size=4)
    assert model.embeddings.table_sizes == (4, 3, 4)
    data = batch()
    before = data.ids.clone()
    found = model(data.numerical, data.ids)
    assert torch.equal(found, model(data.numerical, data.ids % torch.tensor([4, 3, 4])))
    assert torch.equal(data.ids, before)


def test_padding_columns_start_at_zero_and_stay():
    model = build(embedding_dim=5, bottom_mlp_sizes=(5,))
    padding = model.interaction.num_padding
    assert padding == 8 - (5 + 6) % 8
    step = train_step(model)
    step(batch(), 0.5)
    assert (model.top_mlp.linears[0].weight[:, -padding:] == 0).all()


@pytest.mark.parametrize("embedding_type", EMBEDDING_TYPES)
def test_overflow_leaves_every_parameter_alone(embedding_type):
    model = build(embedding_type=embedding_type)
    before = copy_of(model)
    step = train_step(model, loss_scale=1024.0)
    data = batch()
    step(dataclasses.replace(data, label=data.label * float("inf")), 0.5)
    assert all(torch.equal(a, b) for a, b in zip(before, copy_of(model), strict=True))
    step(data, 0.5)
    assert not torch.equal(before[0], copy_of(model)[0])


def test_lookup_and_interaction_in_one_pass_report_overflow():
    model = build()
    train_step(model, loss_scale=1024.0)
    ids = batch().ids
    for value, expected in ((1.0, False), (math.inf, True), (math.nan, True)):
        bottom = torch.ones(len(ids), model.embeddings.embedding_dim, requires_grad=True)
        output = model.embeddings.interact(ids, bottom)
        gradient = torch.zeros_like(output)
        gradient[-1, bottom.shape[1]] = value  # of the first pair
        output.backward(gradient)
        (row_gradients,) = model.embeddings.take_row_gradients()
        assert bool(row_gradients.overflow) == expected


def test_loss_scale_does_not_change_the_result():
    tables = []
    for scale in (1.0, 1024.0):
        model = build()
        step = train_step(model, loss_scale=scale)
        for seed in range(3):
            step(batch(seed=seed), 0.3)
        tables.append(model.embeddings.weight.detach())
    torch.testing.assert_close(tables[0], tables[1], rtol=1e-5, atol=1e-6)


def test_initial_values_follow_the_recipe():
    shape = {"embedding_dim": 64, "bottom_mlp_sizes": (512, 64), "top_mlp_sizes": (512, 1)}
    model = build(sizes=(100, 10_000), **shape)
    for table, rows in zip(read_tables(model.embeddings).values(), (100, 10_000), strict=True):
        bound = rows**-0.5
        assert table.abs().max() <= bound
        assert float(table.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    weight, bias = (p.detach() for p in model.bottom_mlp.linears[1].parameters())
    assert float(weight.std()) == pytest.approx((2 / (512 + 64)) ** 0.5, rel=0.05)
    assert float(bias.std()) == pytest.approx((1 / 64) ** 0.5, rel=0.3)


@pytest.mark.parametrize("embedding_type", EMBEDDING_TYPES)
def test_every_table_starts_with_the_deviation_asked_for(embedding_type):
    changes = {"embedding_dim": 64, "bottom_mlp_sizes": (64,), "embedding_type": embedding_type}
    model = build(sizes=(100, 10_000), embedding_init=0.01, **changes)
    drawn = []
    for _ in range(2):
        tables = [table.clone() for table in read_tables(model.embeddings).values()]
        assert [float(table.std()) for table in tables] == pytest.approx([0.01] * 2, rel=0.05)
        assert all(table.abs().max() > 0.02 for table in tables)
        drawn.append(tables[0])
        model.reset_embeddings()
    assert not torch.equal(*drawn)


def test_dropout_acts_in_training_only():
    model = build(dropout=0.5)
    data = batch()
    model.eval()
    assert torch.equal(model(data.numerical, data.ids), model(data.numerical, data.ids))
    model.train()
    assert not torch.equal(model(data.numerical, data.ids), model(data.numerical, data.ids))


def test_dropout_differs_at_each_step_of_training():
    step = train_step(build(dropout=0.5), "sgd")
    first, second = (float(step(batch(), 0.0)) for _ in range(2))
    assert first != second


def test_batch_norm_is_between_each_hidden_layer_and_its_relu():
    mlp = Mlp(3, (5, 4, 2), final_relu=True, batch_norm=True)
    plain = nn.Sequential(
        *(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU()),
        *(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU()),
        *(nn.Linear(4, 2), nn.ReLU()),
    )
    for ours, theirs in zip(
        (*mlp.linears, *mlp.norms), [plain[i] for i in (0, 3, 6, 1, 4)], strict=True
    ):
        theirs.load_state_dict(ours.state_dict())
    x = torch.randn(9, 3)
    torch.testing.assert_close(mlp(x), plain(x))
    torch.testing.assert_close(mlp.eval()(x), plain.eval()(x))
    assert not torch.equal(mlp.norms[0].running_mean, torch.zeros(5))


@pytest.mark.parametrize("half", [False, True])
def test_inference_of_few_and_of_many_samples_is_that_of_the_present_weights(half, tmp_path):
    model = build(top_mlp_sizes=(40, 8, 1), sizes=(50, 60)).eval()
    data = batch(40, sizes=(50, 60))
    tolerance = 0.02 if half else 1e-5

    def check():
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            with_graph = model(data.numerical, data.ids).detach().float()
            for rows in (1, 8, 9, 33, 40):
                with torch.no_grad():
                    found = model(data.numerical[:rows], data.ids[:rows]).float()
                torch.testing.assert_close(found, with_graph[:rows], rtol=tolerance, atol=tolerance)
        return with_graph

    before = check()
    with torch.no_grad():
        for parameter in model.mlp_parameters():
            parameter.mul_(1.5)
    model.eval()
    after = check()
    assert not torch.allclose(before, after, rtol=0.05)
    train_step(model, "adam")(data, 0.1)
    model.eval()
    check()
    other = build(1, top_mlp_sizes=(40, 8, 1), sizes=(50, 60))
    write_checkpoint(tmp_path / "ours", weights_of(other), {}, {})
    DlrmCheckpoint.open(tmp_path / "ours").load_into(model)
    loaded = check()
    write_nvidia_folder(tmp_path / "theirs", build(2, top_mlp_sizes=(40, 8, 1), sizes=(50, 60)))
    DlrmCheckpoint.open(tmp_path / "theirs").load_into(model)
    assert not torch.allclose(loaded, check(), rtol=0.05)
    model = copy.deepcopy(model)
    check()


def test_preset_bars_x1_is_the_leaderboards_model():
    """It has the parameters that BARS's log counts for DLRM_criteo_x1, with its ids."""
    ids_of_criteo_x1 = 2_086_303
    settings = PRESETS.read("bars_x1").values | {"dataset_type": "synthetic_gpu"}
    config = DlrmConfig.from_dict(settings)
    most = [80_000] * 25
    model = Dlrm(config.model, (*most, ids_of_criteo_x1 - sum(most)))
    padding = model.interaction.num_padding * config.model.top_mlp_sizes[0]
    assert sum(p.numel() for p in model.parameters()) - padding == 21_664_241


def test_a_model_with_default_settings_needs_no_apex():
    model = Dlrm(ModelConfig(), (5, 7))
    assert model(torch.zeros(3, 13), torch.zeros(3, 2, dtype=torch.int64)).shape == (3,)


def alone(model, number, **changes):
    """Returns a model of one network with the values of one of several."""
    single = build(**changes)
    dim = model.embeddings.embedding_dim // len(model.networks)
    with torch.no_grad():
        for feature, table in read_tables(model.embeddings).items():
            load_table(single.embeddings, feature, table[:, number * dim : (number + 1) * dim])
        state = model.networks[number].state_dict()
        single.networks[0].load_state_dict(state)
    return single


@pytest.mark.parametrize("embedding_type", EMBEDDING_TYPES)
@pytest.mark.parametrize(("optimizer", "interaction"), [("adam", "cuda_dot"), ("sgd", "cat")])
def test_networks_side_by_side_train_as_each_alone(embedding_type, optimizer, interaction):
    """Row-wise Adagrad has one rate for the vectors of a row together, so it is no case of this."""
    changes = {"embedding_type": embedding_type, "interaction_op": interaction}
    model = build(seeds=3, **changes)
    singles = [alone(model, number, **changes) for number in range(3)]
    assert not torch.equal(tables_of(singles[0]), tables_of(singles[1]))
    step, steps = train_step(model, optimizer), [train_step(s, optimizer) for s in singles]
    for seed in range(4):
        data = batch(seed=seed)
        losses = [each(data, 0.1) for each in steps]
        torch.testing.assert_close(step(data, 0.1), torch.stack(losses).mean())
    model.eval()
    data = batch(seed=9)
    expected = torch.stack([s.eval()(data.numerical, data.ids) for s in singles]).mean(0)
    found = model(data.numerical, data.ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.shape == (16,)


@pytest.mark.parametrize("num_tables", [0, 2])
@pytest.mark.parametrize("num_numerical", [0, 4])
def test_several_networks_take_any_number_of_features(num_tables, num_numerical):
    sizes = SIZES[:num_tables]
    model = build(sizes=sizes, num_numerical_features=num_numerical, seeds=2, batch_norm=True)
    data = batch(sizes=sizes, num_numerical=num_numerical)
    before = [p.detach().clone() for p in model.mlp_parameters()]
    train_step(model, "adam")(data, 0.1)
    assert not any(map(torch.equal, before, model.mlp_parameters()))
    assert model.eval()(data.numerical, data.ids).shape == (16,)
