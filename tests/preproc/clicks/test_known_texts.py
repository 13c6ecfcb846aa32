# SPDX-License-Identifier: Apache-2.0
"""Texts of a log that a dataset knows, read back from its features."""

import numpy as np
import pytest

from preproc.clicks.schema.time_rule import TimeRule
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.known_texts import KnownTexts
from preproc.clicks.serving.line_transform import LineTransform
from tests.preproc.clicks import schema_log
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

HASHED = ("shop", "sku", "words")
"""Columns of which the dataset keeps no text."""
IGNORED = ("note", "rate", "weight", "gain")
FEATURES = [name for name in schema_log.LINE if name not in IGNORED]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The texts and the transform of a dataset, and rows of its log without the hashed columns."""
    folder = tmp_path_factory.mktemp("shop")
    rows = schema_log.write_log(folder, 300, seed=3)
    schema = schema_log.write_schema(folder, columns=schema_log.columns_without("float"))
    schema_log.prepare(folder / "log.csv", schema, folder / "dataset")
    write_feature_file(folder / "dataset", folder / "features.bin", "float16")
    with LineTransform(folder / "features.bin") as transform:
        yield (
            KnownTexts(folder / "dataset"),
            transform,
            [row | dict.fromkeys(HASHED, "") for row in rows],
        )


def transformed(transform, rows):
    return transform.transform_fields([[row[n].encode() for n in FEATURES] for row in rows])


def test_texts_of_a_row_have_its_features(shop):
    known, transform, rows = shop
    features = transformed(transform, rows)
    texts = [known.of_row(*row) for row in zip(*features, strict=True)]
    again = transformed(transform, texts)
    assert np.allclose(again.numerical, features.numerical, rtol=2e-3)
    for before, after in zip(features.ids, again.ids, strict=True):
        assert before[before != 0].tolist() == after[after != 0].tolist()
    assert any(":" in text["viewed"] and "|" in text["viewed"] for text in texts)


def test_what_the_dictionaries_lack_is_named(shop):
    known, _, rows = shop
    brand = max((row["brand"] for row in rows), key=len)
    assert known.unknown("brand", brand) == ""
    assert known.unknown("brand", f"{brand}?") == "unknown"
    assert known.unknown("item", "fffffff7") == "unknown"
    assert known.unknown("tags", "b nowhere b") == "1 of 3 unknown"
    assert known.unknown("viewed", "7:1") == ""
    for name, text in (
        ("brand", ""),
        ("tags", "n/a"),
        ("price", "3"),
        ("when", "29.02.2028 10:00"),
    ):
        assert known.unknown(name, text) == ""
    assert known.label == "bought = yes or später"


@pytest.mark.parametrize("form", ["unix_s", "unix_ms", "unix_us", "unix_ns", "iso8601"])
@pytest.mark.parametrize("zone", [0, 330, -60])
def test_a_time_is_written_as_it_is_read(form, zone):
    rule = TimeRule(form, zone)
    assert rule.milliseconds(rule.text(1_705_311_000_000).encode()) == 1_705_311_000_000


@pytest.mark.parametrize("form", ["%Y%m%d%H", "%d.%m.%y %H:%M:%S", "%m/%d/%Y %I:%M %p"])
def test_a_time_of_a_format_is_written_as_it_is_read(form):
    rule, time = TimeRule(form, 60), 1_705_312_800_000
    assert rule.milliseconds(rule.text(time).encode()) == time
