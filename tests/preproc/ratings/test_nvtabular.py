# SPDX-License-Identifier: Apache-2.0
"""Ratings through the real NVTabular on the CPU: the bytes of the embedded engine."""

import pytest

from preproc.ratings.engines import nvtabular as nvtabular_ratings
from tests.preproc.nvtabular import environment as nvtabular_environment
from tests.preproc.ratings import oracle as ratings_oracle

pytestmark = pytest.mark.nvtabular


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with nvtabular_environment.start(tmp_path_factory.mktemp("nvtabular")) as process:
        yield process


@pytest.fixture(autouse=True)
def requests(shared, monkeypatch):
    return nvtabular_environment.share(shared, nvtabular_ratings, monkeypatch)


@pytest.mark.parametrize("kcore", ["iterated", "once"])
def test_movielens(tmp_path, kcore, requests):
    ratings_oracle.check_movielens("nvtabular", tmp_path, kcore)
    assert requests["filter"] > 2


def test_amazon_packed_and_without_filters(tmp_path):
    ratings_oracle.check_amazon_packed_and_without_filters("nvtabular", tmp_path)


def test_text_without_times(tmp_path):
    ratings_oracle.check_text_without_times("nvtabular", tmp_path)


@pytest.mark.parametrize("settings", [{"min_rating": 5.5}, {"min_user_count": 1000}])
def test_nothing_is_left(tmp_path, settings):
    ratings_oracle.check_nothing_is_left("nvtabular", tmp_path, **settings)
