# SPDX-License-Identifier: Apache-2.0
"""The page of a DLRM whose log has a schema: lists, times, another delimiter, and quotes."""

import json

import numpy as np
import pytest

from preproc.clicks.applied import dictionaries_of_dataset
from preproc.clicks.schema.time_rule import TimeRule
from recsys_recipes.serving.page.clicks import clicks_view
from recsys_recipes.serving.page.server import PageServer
from tests.browser import chromium
from tests.dlrm.conftest import make_program
from tests.preproc.clicks import schema_log
from tests.tools import needs, require
from tests.triton.conftest import RAW_MODEL
from tests.triton.test_page_served import asked, paste

pytestmark = [pytest.mark.triton_server, needs("compiled Criteo kernel")]

IGNORED = (
    "note",
    "rate",
    "weight",
    "gain",
)  # decimal numbers of the log are too extreme to train on
FEATURES = [name for name in schema_log.LINE if name not in IGNORED]


@pytest.fixture(scope="module")
def shop(server, tmp_path_factory):
    """A served model of the schema; its dataset and its rows."""
    folder = tmp_path_factory.mktemp("shop")
    rows = schema_log.write_log(folder, 800, seed=3)
    dataset, columns = folder / "dataset", schema_log.columns_without("float")
    schema = schema_log.write_schema(folder, columns=columns)
    schema_log.prepare(folder / "log.csv", schema, dataset)
    program = make_program(folder)
    program(
        f"--dataset={dataset}", f"--save_checkpoint_path={folder / 'run'}", *RAW_MODEL, "--lr=.01"
    )
    assert program.exit_code == 0
    server.serve("schema_page", folder / "run", "--raw", f"--dataset={dataset}", "--split=test")
    return dataset, rows


@pytest.fixture(scope="module", params=["grpc", "http"])
def url(server, shop, request):
    dataset, _ = shop
    with (
        server.endpoint("schema_page", request.param) as endpoint,
        PageServer(clicks_view(endpoint, dataset), 0) as page,
    ):
        yield page.url


def answer(url, name, status=200, **question):
    code, _, text = asked(url, "POST", f"/{name}", json.dumps(question).encode())
    assert code == status, text
    return json.loads(text)


def line_of(row):
    """Returns a line of the log without its label."""
    return schema_log.text_of([row], schema_log.LINE).decode().splitlines()[1]


def test_the_example_has_each_value_under_its_column(url, shop, server):
    dataset, _ = shop
    model = answer(url, "model")
    example = dict(zip(model["fields"], model["example"], strict=True))
    assert list(example) == FEATURES
    keys = dictionaries_of_dataset(dataset)

    def most_frequent(name, count=1):
        place = [*schema_log.SINGLE, *schema_log.LISTS].index(name)
        found = [*keys.load_column(place)][:count]
        return [key.decode() if isinstance(key, bytes) else key for key in found]

    assert {example[name] for name in ("price", "seen")} == {"1"}
    assert int(example["item"], 16) == most_frequent("item")[0]
    assert example["brand"] == most_frequent("brand")[0]
    assert example["tags"].split(" ") == most_frequent("tags", 3)
    assert example["viewed"].split("|") == [f"{key}:1" for key in most_frequent("viewed", 3)]
    assert [int(text, 16) for text in example["codes"].split("/")] == most_frequent("codes", 3)
    assert (example["shop"], example["words"]) == ("", "")  # in buckets
    assert example["when"] == "15.01.2024 10:30"  # an hour east of UTC
    scored = answer(url, "score", fields=model["example"])
    with server.endpoint("schema_page") as endpoint:
        fields = np.array([[text.encode() for text in model["example"]]], np.object_)
        assert scored["logit"] == endpoint.predict({"fields": fields})["logit"].item()


def test_a_line_is_split_as_the_schema_has_it(url, shop, server):
    _, rows = shop
    quoted = [row for row in rows if ";" in row["brand"] or '"' in row["brand"]]
    assert len(quoted) > 9
    assert any("," in line_of(row) or "|" in line_of(row) for row in quoted)
    with server.endpoint("schema_page") as endpoint:
        for row in (*quoted[:10], *rows[:10]):
            fields = answer(url, "split", line=line_of(row))["fields"]
            assert fields == [row[name] for name in FEATURES]
            line = {"line": np.array([[line_of(row).encode()]], np.object_)}
            scored = answer(url, "score", fields=fields)
            assert scored["logit"] == endpoint.predict(line)["logit"].item()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,b,c", "this one has 1"),
        ("1;2;3", "this one has 3"),
        ('"1;2', "does not end"),
        (None, "a text"),
    ],
)
def test_a_line_that_is_none_is_refused(url, line, message):
    refused = answer(url, "split", status=422, line=line)
    assert (message in refused["error"], refused["field"]) == (True, None)


@pytest.mark.parametrize("form", ["unix_s", "unix_ms", "unix_us", "unix_ns", "iso8601"])
@pytest.mark.parametrize("zone", [0, 330, -60])
def test_a_time_is_written_as_it_is_read(form, zone):
    rule = TimeRule(form, zone)
    assert rule.milliseconds(rule.text(1_705_311_000_000).encode()) == 1_705_311_000_000


@pytest.mark.parametrize("form", ["%Y%m%d%H", "%d.%m.%y %H:%M:%S", "%m/%d/%Y %I:%M %p"])
def test_a_time_of_a_format_is_written_as_it_is_read(form):
    rule, time = TimeRule(form, 60), 1_705_312_800_000
    assert rule.milliseconds(rule.text(time).encode()) == time


@pytest.mark.release
def test_a_pasted_line_fills_the_fields_and_an_edited_field_the_line(url, shop):
    require("Chromium")
    _, rows = shop
    row = next(row for row in rows if ";" in row["brand"])
    with chromium() as browser:
        page = browser.new_page()
        page.goto(url)
        page.locator("#about", has_text="server").wait_for()
        paste(page, line_of(row) + "\n")
        page.wait_for_selector("#effects")
        texts = page.evaluate("""[...document.querySelectorAll("#columns input")].map(
            (input) => input.value)""")
        assert texts == [row[name] for name in FEATURES]
        page.fill(f"#column-{FEATURES.index('brand')}", 'b"c;d')
        page.keyboard.press("Enter")
        page.locator("#effects tbody", has_text='b"c;d').wait_for()
        shown = page.evaluate("document.getElementById('line').value")
        assert shown == line_of(row | {"brand": 'b"c;d'} | dict.fromkeys(IGNORED, ""))
        page.fill("#line", "1;2;3")
        page.locator("#error", has_text="this one has 3").wait_for()
        page.click("#clear")
        page.wait_for_selector("#score")
        assert page.is_hidden("#error")
