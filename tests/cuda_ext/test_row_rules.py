# SPDX-License-Identifier: Apache-2.0
"""The registry of row optimizers, and that everything which names one knows them all."""

from typing import get_args

import pytest
import torch

from cuda_ext import RowOptimizer
from cuda_ext.row_rules import ROW_RULES
from recsys.train.optimizers.dense import dense_rule_beside
from tests.harness import refusal

NAMES = set(ROW_RULES)


def test_each_name_of_the_type_has_a_rule():
    assert set(get_args(RowOptimizer)) == NAMES


@pytest.mark.parametrize("name", ROW_RULES)
def test_state_takes_the_bytes_that_are_planned_for(name):
    table = torch.zeros(7, 5)
    state = ROW_RULES[name].new_state(table)
    assert sum(t.nbytes for t in state.values()) == 7 * ROW_RULES[name].state_bytes_per_row(5)


@pytest.mark.parametrize(
    ("name", "beside"),
    [("sgd", "sgd"), ("adagrad", "adagrad"), ("adam", "adam"), ("rowwise_adagrad", "adagrad")],
)
def test_dense_parameters_have_an_optimizer_of_the_same_kind(name, beside):
    assert dense_rule_beside(name) == beside


def test_an_optimizer_of_embeddings_alone_is_refused():
    with refusal("lion"):
        dense_rule_beside("lion")
