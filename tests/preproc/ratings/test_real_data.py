# SPDX-License-Identifier: Apache-2.0
"""Real logs give the published counts."""

import pytest

from preproc.ratings.job import AMAZON, MOVIELENS
from recsys.data.manifest import Manifest
from recsys.data.verify import run as verify
from tests.preproc.ratings.oracle import run
from tests.tools import require

FIVE_CORE = {"min_user_count": 5, "min_item_count": 5}
LOGS = {
    "ml-1m, 5-core": ("ml-1m/ml-1m.txt.gz", MOVIELENS, FIVE_CORE, (6040, 3416, 999_611)),
    "ml-100k": ("ml-100k/u.data.gz", MOVIELENS, {}, (943, 1682, 100_000)),
    "ml-100k, 5-core": ("ml-100k/u.data.gz", MOVIELENS, FIVE_CORE, (943, 1349, 99_287)),
    "latest-small": ("ml-latest-small", MOVIELENS, {}, (610, 9724, 100_836)),
    "Beauty": ("amazon_beauty/beauty.txt.gz", AMAZON, {}, (40_226, 54_542, 353_962)),
    "Electronics, a sample": (
        "amazon_electronics_sample/electronics_sample.txt.gz",
        AMAZON,
        {},
        (6274, 3666, 151_075),
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_counts_are_the_published_ones(real_data, tmp_path, name):
    path, family, settings, counts = LOGS[name]
    source = real_data / path
    require("real data", source.exists())
    made = run(source, tmp_path / "made", family=family, **settings)
    statistics = Manifest.load(made).statistics
    assert tuple(statistics[k] for k in ("users", "items", "interactions")) == counts
    assert verify.verify(made)[0].problems == []
