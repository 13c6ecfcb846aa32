# SPDX-License-Identifier: Apache-2.0
"""What tests of several models share."""

import pytest

from tests.bert4rec.conftest import dataset  # noqa: F401  (a fixture, for models of ratings)
from tests.preproc.clicks.schema_log import columns_without, prepare, write_log, write_schema


@pytest.fixture(scope="session")
def with_lists(tmp_path_factory):
    """A dataset of a schema with lists, weighted ones too, and its raw test rows."""
    folder = tmp_path_factory.mktemp("lists")
    table = write_log(folder, 900, seed=8)
    schema = write_schema(folder, split={"rows": [500, 100, -1]}, columns=columns_without("float"))
    prepare(folder / "log.csv", schema, folder / "data", engine="reference")
    return folder / "data", table[600:]
