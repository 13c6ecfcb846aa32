# SPDX-License-Identifier: Apache-2.0
"""The dataset of BERT4Rec's tests, which has an order that can be learnt."""

from tests.bert4rec.conftest import dataset  # noqa: F401  (a fixture)
