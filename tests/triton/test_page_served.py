# SPDX-License-Identifier: Apache-2.0
"""The page of `ask --mode page` in Chromium, on models of a real server."""

import contextlib
import dataclasses
import http.client
import json
import shutil
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

from recsys.data.sequences import ITEM_MAP_FILE, ITEM_MAP_SCHEMA, read_table, write_parquet
from recsys.data.titles import write_titles
from recsys.serve.client.connection import Endpoint
from recsys.serve.server.process import ServerSettings, TritonServer
from recsys_recipes.serving.page.clicks import FIELDS, clicks_view
from recsys_recipes.serving.page.items import items_view
from recsys_recipes.serving.page.server import PageServer
from tests import harness
from tests.bert4rec.conftest import (  # noqa: F401  (fixtures)
    NUM_ITEMS,
    dataset,
    raw_id,
    trained,
)
from tests.browser import Browser
from tests.preproc.criteo.rows import good_text, without_labels
from tests.tools import needs, require
from tests.triton.conftest import client, deploy
from tests.triton.test_raw_rows_served import train

pytestmark = [
    pytest.mark.triton_server,
    pytest.mark.release,
    needs("compiled Criteo kernel"),
]

LOG = good_text(600, seed=5, vocabulary=60)
NUMBERS = {raw_id(item): item for item in range(1, NUM_ITEMS + 1)}
LINES = [line.decode() for line in without_labels(LOG).splitlines()]


def title(item):
    """Returns the title of an item: with an accent, and with what HTML would read."""
    return f"Café <b>№</b> {item}"


@dataclasses.dataclass(frozen=True)
class Served:
    """A server, and the dataset of its BERT4Rec with titles."""

    server: TritonServer
    titled: Path


@pytest.fixture(scope="module")
def served(trained, dataset, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("pages")
    (folder / "clicks").mkdir()
    clicks, clicks_run = train(LOG, folder / "clicks", 400)
    titled, models = folder / "titled", folder / "models"
    shutil.copytree(dataset, titled)
    write_titles(titled, [title(item) for item in range(1, NUM_ITEMS + 1)])
    deploy(clicks_run, models, "--raw", f"--dataset={clicks}", "--split=test")
    deploy(clicks_run, models, "--name=features")
    few = ("--name=few", "--max_batch_size=7")
    deploy(clicks_run, models, "--raw", f"--dataset={clicks}", "--split=test", *few)
    deploy(trained, models)
    deploy(trained, models, "--name=named", f"--raw_ids={titled}", "--titles")
    deploy(trained, models, "--name=exported", "--format=torchscript", "--max_batch_size=16")
    with TritonServer(ServerSettings(repository=models), folder / "log") as server:
        server.wait_ready(300)
        yield Served(server, titled)


@contextlib.contextmanager
def page_program(served, *arguments):
    """Starts `ask --mode page`; yields the address that it prints and the process."""
    command = ("-m", "recsys_recipes", "ask", f"--url={served.server.grpc_url}", "--mode=page")
    with harness.started(*command, "--no_browser", *arguments) as process:
        line = harness.wait_for_line(process, lambda line: "http://" in line)
        yield line.split()[-1], process


@contextlib.contextmanager
def page_here(served, model, dataset=None):  # noqa: F811
    """Serves the same page from this process, which is faster; yields its address."""
    with Endpoint(served.server.grpc_url, model) as endpoint:
        recommends = endpoint.signature.recommends
        view = items_view(endpoint, dataset) if recommends else clicks_view(endpoint)
        with PageServer(view, 0) as server:
            yield server.url


@pytest.fixture(scope="module")
def items_url(served):
    with page_program(served, "--model=bert4rec", f"--dataset={served.titled}") as (url, _):
        yield url


@pytest.fixture(scope="module")
def clicks_url(served):
    with page_program(served, "--model=dlrm") as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    require("Chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser):
    return browser.page()


def opened(page, url):
    """Opens the page and waits until it knows its model."""
    page.open(url)
    page.wait("document.getElementById('about').innerText.includes('server')")


def add(page, text):
    """Types into the search and takes the first item, by keys."""
    before = len(page.texts("#history li"))
    page.value("document.getElementById('search').focus()")
    page.type(text)
    page.wait("!document.getElementById('options').hidden")
    page.press("Enter")
    page.wait(f"document.querySelectorAll('#history li').length === {before + 1}")


def shown_items(page):
    """Returns title, id and score of each row of the recommendations."""
    rows = page.value(
        """[...document.querySelectorAll("#next tbody tr")].map((row) => [
          row.querySelector("span").firstChild.data, row.querySelector("span.muted")?.innerText,
          row.cells[2].innerText])"""
    )
    return [(name, number, float(score)) for name, number, score in rows]


def wait_for_items(page, count=10):
    page.wait(f"document.querySelectorAll('#next tbody tr').length === {count}")


def wait_for_shown(page, expected):
    harness.wait_for(lambda: shown_items(page) == expected, f"{expected} on the page", 60)


def recommended(served, history, *, exclude_seen=True):
    """Returns what the server answers, as the page should show it."""
    with Endpoint(served.server.grpc_url, "bert4rec") as endpoint:
        request = {"history": np.array([history]), "exclude_seen": np.array([[exclude_seen]])}
        reply = endpoint.predict(request)
    items, scores = reply["items"][0].tolist(), reply["scores"][0].tolist()
    return [
        (title(item), raw_id(item), round(score, 4))
        for item, score in zip(items, scores, strict=True)
    ]


def test_a_history_is_picked_by_title_and_followed(page, items_url, served):
    opened(page, items_url)
    assert "10 best next items among 40 items" in page.text("#about")
    page.press("Tab")
    assert page.value("document.activeElement.id") == "search"
    page.type("cafe 17")  # without case and accent
    page.wait("document.querySelector('#options li')?.innerText.includes('17')")
    page.press("Enter")
    add(page, "CAFÉ <b>№</b> 18")
    add(page, raw_id(19))
    assert page.texts("#history div > span") == [f"{title(i)} {raw_id(i)}" for i in (17, 18, 19)]
    wait_for_shown(page, recommended(served, [17, 18, 19]))
    assert title(19) in page.text("#status")

    page.click("#exclude")
    wait_for_shown(page, recommended(served, [17, 18, 19], exclude_seen=False))
    page.click("#exclude")
    page.click("#history li:nth-child(2) button")  # removes 18
    wait_for_shown(page, recommended(served, [17, 19]))
    page.click("#next tbody tr button")  # adds the best one
    page.wait("document.querySelectorAll('#history li').length === 3")
    page.click("#clear")
    page.wait("document.getElementById('next').hidden")
    assert "Add an item" in page.text("#status")
    assert page.complaints == []
    origin = urllib.parse.urlsplit(items_url).netloc
    assert {urllib.parse.urlsplit(url).netloc for url in page.requests} == {origin}


def test_arrow_keys_choose_among_the_items_and_escape_closes_them(page, items_url):
    opened(page, items_url)
    page.click("#search")
    page.type("№ 1")
    page.wait("document.querySelectorAll('#options [role=option]').length > 2")
    first, second, *_, last = page.texts("#options [role=option]")
    chosen = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    for key, expected in (("ArrowDown", second), ("ArrowUp", first), ("ArrowUp", last)):
        page.press(key)
        assert page.value(f"{chosen}.innerText") == expected
    page.press("Escape")
    assert page.value("document.getElementById('options').hidden")
    page.type("999")
    page.wait("document.getElementById('search-help').innerText.includes('No item matches')")
    assert page.texts("#history li") == []


@pytest.mark.parametrize("model", ["bert4rec", "exported", "named"])
def test_without_a_dataset_items_have_their_ids(page, served, model):
    history = [raw_id(3), raw_id(4)] if model == "named" else ["3", "4"]
    with page_here(served, model) as url:
        opened(page, url)
        for item in history:
            add(page, item)
        best = recommended(served, [3, 4])
        if model != "named":  # whose answers have titles
            best = [(str(NUMBERS[raw]), None, score) for _, raw, score in best]
        wait_for_shown(page, best)
        add(page, "nothing")
        page.wait("!document.getElementById('error').hidden")
        assert "'nothing'" in page.text("#error")


def test_titles_come_with_raw_ids_too(page, served):
    with page_here(served, "named", served.titled) as url:
        opened(page, url)
        add(page, "café 3")
        wait_for_shown(page, recommended(served, [3]))


def logit(endpoint, fields):
    reply = endpoint.predict({"line": np.array([["\t".join(fields).encode()]], np.object_)})
    return reply["logit"].item(), reply["probability"].item()


def shown_effects(page):
    rows = page.value(
        """[...document.querySelectorAll("#effects tbody tr")].map((row) =>
          [...row.cells].slice(0, 3).map((cell) => cell.innerText))"""
    )
    return {field: (value, float(effect)) for field, value, effect in rows}


def paste(page, text):
    """Pastes into the box of the line, as the clipboard does."""
    page.value(
        f"""(() => {{
          const data = new DataTransfer();
          data.setData("text/plain", {json.dumps(text)});
          document.getElementById("line").dispatchEvent(
            new ClipboardEvent("paste", {{clipboardData: data, cancelable: true}}));
        }})()"""
    )


@pytest.mark.parametrize("model", ["dlrm", "few"])  # in one request, and in several
def test_a_line_gets_its_score_and_the_effect_of_each_field(page, served, model):
    line = LINES[500]
    fields = line.split("\t")
    with (
        page_here(served, model) as url,
        Endpoint(served.server.grpc_url, "dlrm") as endpoint,
    ):
        opened(page, url)
        page.wait("!document.getElementById('score').hidden")
        nothing, _ = logit(endpoint, [""] * 39)
        assert float(page.text("#logit")) == pytest.approx(nothing, abs=6e-5)
        assert shown_effects(page) == {}
        paste(page, f"1\t{line}\n")
        page.wait("!document.getElementById('effects').hidden")
        base, probability = logit(endpoint, fields)
        assert float(page.text("#logit")) == pytest.approx(base, abs=6e-5)
        shown = float(page.text("#probability").removesuffix(" %"))
        assert shown == pytest.approx(100 * probability, abs=6e-3)
        effects = shown_effects(page)
        assert set(effects) == {n for n, text in zip(FIELDS, fields, strict=True) if text}
        for number, name in enumerate(FIELDS):
            if name in effects:
                without, _ = logit(endpoint, [*fields[:number], "", *fields[number + 1 :]])
                assert effects[name] == (fields[number], pytest.approx(base - without, abs=6e-5))
        sizes = [abs(effect) for _, effect in effects.values()]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > 0
    assert page.complaints == []


def test_fields_are_edited_by_keys_and_a_wrong_one_is_named(page, clicks_url, served):
    fields = LINES[501].split("\t")
    opened(page, clicks_url)
    paste(page, LINES[501])
    page.wait("!document.getElementById('effects').hidden")
    page.value("document.getElementById('I3').select()")
    page.type("12345")
    page.press("Enter")
    fields[2] = "12345"
    with Endpoint(served.server.grpc_url, "dlrm") as endpoint:
        expected, _ = logit(endpoint, fields)
    page.wait("document.querySelector('#effects tbody').innerText.includes('12345')")
    assert float(page.text("#logit")) == pytest.approx(expected, abs=6e-5)
    assert page.value("document.getElementById('line').value") == "\t".join(fields)

    page.value("document.getElementById('C4').select()")
    page.type("xyz")
    page.press("Tab")
    assert page.value("document.activeElement.id") == "C5"
    page.wait("!document.getElementById('error').hidden")
    assert page.text("#error").startswith("field C4: 'xyz' is refused (hex): expected up to 8")
    invalid = "[...document.querySelectorAll('[aria-invalid]')].map((e) => e.id)"
    assert page.value(invalid) == ["C4"]
    assert page.value("document.getElementById('score').hidden")

    page.value("document.getElementById('line').select()")
    page.type("1\t2\t3")
    page.wait("document.getElementById('error').innerText.includes('this one has 3')")
    page.click("#clear")
    page.wait("!document.getElementById('score').hidden")
    assert page.value("document.getElementById('error').hidden")
    assert page.value(invalid) == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["items", "clicks"])
def test_pages_fit_narrow_and_wide_windows_light_and_dark(page, request, kind, width):
    url = request.getfixturevalue(f"{kind}_url")
    for scheme in ("light", "dark"):
        page.look(width, scheme)
        opened(page, url)
        if kind == "items":
            add(page, "№ 5")
            wait_for_items(page)
        else:
            paste(page, LINES[500])
            page.wait("!document.getElementById('effects').hidden")
        assert page.value("document.documentElement.scrollWidth - innerWidth") <= 0
        cut = """[...document.querySelectorAll("h1, p, label, button, td, th, dd, input")]
          .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)
          .map((e) => e.outerHTML)"""
        assert page.value(cut) == []
        unnamed = """[...document.querySelectorAll("input, textarea, button")]
          .filter((e) => !e.labels?.length && !e.innerText && !e.ariaLabel)
          .map((e) => e.outerHTML)"""
        assert page.value(unnamed) == []
        colours = page.value(
            """["backgroundColor", "color"].map((name) =>
              getComputedStyle(document.body)[name].match(/\\d+/g).reduce((a, b) => +a + +b, 0))"""
        )
        light, dark = colours if scheme == "light" else colours[::-1]
        assert light > 600 > 150 > dark


@pytest.fixture
def asked(items_url):
    """Sends a request as no page would; returns status, headers and body."""
    host = urllib.parse.urlsplit(items_url).netloc

    def ask(method, path, body=b"", **headers):
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        given = {"Host": host, "Content-Length": str(len(body)), "Content-Type": "application/json"}
        for name, value in (given | {n.replace("_", "-"): v for n, v in headers.items()}).items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, response.headers, text

    return ask


QUESTION = json.dumps({"text": "café 3"}).encode()


def test_the_page_may_load_nothing_and_be_framed_by_nobody(asked):
    status, headers, page = asked("GET", "/")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"http://" not in page
    assert b"https://" not in page


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": None},
        {"Origin": "http://evil.example"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/search")])
def test_requests_of_other_origins_are_refused(asked, method, path, headers):
    status, answered, body = asked(method, path, QUESTION if method == "POST" else b"", **headers)
    assert status == 403
    assert "of this page" in json.loads(body)["error"]
    assert "Access-Control-Allow-Origin" not in answered


def test_a_forwarded_port_is_the_same_page(asked):
    there = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    status, _, body = asked("POST", "/search", QUESTION, **there)
    assert status == 200
    assert json.loads(body)["items"][0]["title"] == title(3)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "message"),
    [
        ("/search", QUESTION, {"Content_Type": "text/plain"}, 415, "application/json"),
        ("/search", b" " * 100_000, {}, 413, "65536 bytes at most"),
        ("/search", b"", {"Content_Length": None, "Transfer_Encoding": "chunked"}, 411, "Length"),
        ("/search", b"", {"Content_Length": "-1"}, 411, "Content-Length"),
        ("/search", b'{"text"', {}, 400, "not JSON"),
        ("/search", b"[" * 60_000, {}, 400, "not JSON"),
        ("/search", b"[]", {}, 400, "a JSON object"),
        ("/nowhere", b"{}", {}, 404, "questions are model, search, recommend"),
        ("/recommend", b"{}", {}, 422, "a history is a list of ids"),
        ("/recommend", b'{"history": []}', {}, 422, "1 to 1000 items, got 0"),
        ("/recommend", b'{"history": [3]}', {}, 422, "a history is a list of ids"),
        ("/recommend", b'{"history": ["x"]}', {}, 422, "'x' is no item of the dataset"),
        ("/recommend", b'{"history": ["x"], "exclude_seen": 1}', {}, 422, "true or false"),
    ],
)
def test_senseless_requests_are_refused_in_words(asked, path, body, headers, status, message):
    code, _, text = asked("POST", path, body, **headers)
    assert (code, message in json.loads(text)["error"]) == (status, True), text


@pytest.mark.parametrize("fields", [None, [""] * 38, [""] * 38 + [3], [""] * 38 + ["a\tb"]])
def test_senseless_lines_are_refused_in_words(clicks_url, fields):
    host = urllib.parse.urlsplit(clicks_url).netloc
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/score", json.dumps({"fields": fields}), headers)
    response = connection.getresponse()
    said = json.loads(response.read())
    connection.close()
    assert response.status == 422
    wrong = isinstance(fields, list) and len(fields) == 39
    assert (said["field"], "39 fields" in said["error"]) == (
        ("C26", False) if wrong else (None, True)
    )


def test_a_model_that_the_server_lost_is_said_in_words(page, served, trained, tmp_path):  # noqa: F811
    deploy(trained, tmp_path / "models")
    settings = ServerSettings(repository=tmp_path / "models")
    with TritonServer(settings, tmp_path / "log") as server:
        server.wait_ready(300)
        lost = dataclasses.replace(served, server=server)
        with page_program(lost, "--model=bert4rec") as (url, process):
            opened(page, url)
            add(page, "3")
            wait_for_items(page)
            server.stop()
            add(page, "4")
            page.wait("!document.getElementById('error').hidden")
            assert f"bert4rec at {server.grpc_url}: " in page.text("#error")
            assert page.value("document.getElementById('next').hidden")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            add_again = page.value("document.getElementById('exclude').click()")
            assert add_again is None
            page.wait("document.getElementById('error').innerText.includes('start it again')")


def test_a_dataset_of_another_catalogue_is_said_in_words(served, tmp_path):
    items = read_table(served.titled / ITEM_MAP_FILE, ITEM_MAP_SCHEMA)
    write_parquet(tmp_path / ITEM_MAP_FILE, ITEM_MAP_SCHEMA, (items.slice(0, 3),))
    ids = [raw_id(1)]
    with page_here(served, "bert4rec", tmp_path) as url:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/recommend", json.dumps({"history": ids}), headers)
        said = json.loads(connection.getresponse().read())["error"]
        connection.close()
    assert "--dataset is not that of its training" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model=features",), "deploy it under another --name, with --raw and the --dataset"),
        (("--model=bert4rec", "--dataset=absent"), "absent/item_map.parquet"),
        (("--model=bert4rec", "--port=70000"), "--port 70000: no port has this number"),
        (("--model=absent",), "absent"),
    ],
)
def test_a_page_that_cannot_be_shown_is_refused(served, arguments, message, capsys):
    url = f"--url={served.server.grpc_url}"
    assert client([url, "--mode=page", "--no_browser", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_taken_port_is_refused_and_a_free_one_is_used(served, items_url, capsys):
    taken = urllib.parse.urlsplit(items_url).port
    arguments = [f"--url={served.server.grpc_url}", "--model=bert4rec", "--mode=page"]
    assert client([*arguments, f"--port={taken}"]) == 2
    assert f"--port {taken}: Address already in use" in capsys.readouterr().err
    port = harness.free_port()
    with page_program(served, "--model=bert4rec", f"--port={port}") as (url, process):
        assert url == f"http://127.0.0.1:{port}/"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_users_browser_is_opened(served, tmp_path):
    asked_for, script = tmp_path / "asked", tmp_path / "browser.sh"
    script.write_text(f'#!/bin/sh\necho "$1" >> {asked_for}\nexec sleep 600\n')
    script.chmod(0o755)
    command = (sys.executable, "-m", "recsys_recipes", "ask", f"--url={served.server.grpc_url}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROWSER", f"{script} %s")
        with subprocess.Popen(
            [*command, "--model=bert4rec", "--mode=page"],
            cwd=harness.REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            line = harness.wait_for_line(process, lambda line: "http://" in line)
            harness.wait_for(asked_for.is_file, "the browser", 60)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
    assert asked_for.read_text().split() == [line.split()[-1]]
