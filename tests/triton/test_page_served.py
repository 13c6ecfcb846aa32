# SPDX-License-Identifier: Apache-2.0
"""The page of `ask --mode page` in Chromium, on models of a real server."""

import contextlib
import http.client
import json
import signal
import urllib.parse

import numpy as np
import pytest

from recsys.data.sequences.files import ITEM_MAP_FILE, ITEM_MAP_SCHEMA, read_table, write_parquet
from recsys_recipes.serving.page.clicks import clicks_view
from recsys_recipes.serving.page.items import items_view
from recsys_recipes.serving.page.server import PageServer
from tests import harness
from tests.bert4rec.conftest import NUM_ITEMS, raw_id
from tests.browser import chromium
from tests.tools import needs, require
from tests.triton.conftest import Server, deploy, title

pytestmark = [
    pytest.mark.triton_server,
    pytest.mark.release,
    needs("compiled Criteo kernel"),
]

NUMBERS = {raw_id(item): item for item in range(1, NUM_ITEMS + 1)}


@pytest.fixture(scope="module", autouse=True)
def models(server, clicks, recommenders):
    server.serve("raw_python", clicks.run, "--backend=python", *clicks.flags)
    server.serve("features", clicks.run)
    server.serve("few", clicks.run, "--max_batch_size=7", *clicks.flags)


@pytest.fixture(scope="module")
def lines(clicks):
    return [line.decode() for line in clicks.lines]


@contextlib.contextmanager
def page_program(server, *arguments, quiet=("--no_browser",)):
    """Starts `ask --mode page`; yields the address that it prints and the process."""
    command = ("-m", "recsys_recipes", "ask", f"--url={server.http_url}", "--mode=page")
    with harness.started(*command, *quiet, *arguments) as process:
        line = harness.wait_for_line(process, lambda line: "http://" in line)
        yield line.split()[-1], process


@contextlib.contextmanager
def page_here(server, model, dataset=None):
    """Serves the same page from this process, which is faster; yields its address."""
    with server.endpoint(model) as endpoint:
        recommends = endpoint.signature.recommends
        view = (items_view if recommends else clicks_view)(endpoint, dataset)
        with PageServer(view, 0) as page:
            yield page.url


@pytest.fixture(scope="module")
def items_url(server, ratings):
    with page_program(server, "--model=bert4rec", f"--dataset={ratings}") as (url, _):
        yield url


@pytest.fixture(scope="module")
def clicks_url(server):
    with page_program(server, "--model=raw_python") as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser():
    require("Chromium")
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.set_default_timeout(harness.PATIENCE_S * 1000)
    yield page
    page.close()


@pytest.fixture
def complaints(page):
    """Errors of scripts, and what the page's policy kept from loading."""
    heard = []
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("console", lambda message: heard.append(message.text))
    return heard


@pytest.fixture
def requests(page):
    """Addresses that the page asks for."""
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    return asked


def opened(page, url):
    """Opens the page and waits until it knows its model."""
    page.goto(url)
    page.locator("#about", has_text="server").wait_for()


def wait_for_count(page, selector, count):
    """Waits for a number of elements; the page's policy forbids Playwright's own way."""
    harness.wait_for(lambda: page.locator(selector).count() == count, f"{count} {selector}")


def add(page, text):
    """Types into the search and takes the first item, by keys."""
    before = len(page.locator("#history li").all_inner_texts())
    page.focus("#search")
    page.keyboard.insert_text(text)
    page.wait_for_selector("#options")
    page.keyboard.press("Enter")
    wait_for_count(page, "#history li", before + 1)


def shown_items(page):
    """Returns title, id and score of each row of the recommendations."""
    rows = page.evaluate(
        """[...document.querySelectorAll("#next tbody tr")].map((row) => [
          row.querySelector("span").firstChild.data, row.querySelector("span.muted")?.innerText,
          row.cells[2].innerText])"""
    )
    return [(name, number, float(score)) for name, number, score in rows]


def wait_for_shown(page, expected):
    harness.wait_for(lambda: shown_items(page) == expected, f"{expected} on the page")


def recommended(server, history, *, exclude_seen=True):
    """Returns the answer of the server, as the page should show it."""
    with server.endpoint("bert4rec") as endpoint:
        request = {"history": np.array([history]), "exclude_seen": np.array([[exclude_seen]])}
        reply = endpoint.predict(request)
    items, scores = reply["items"][0].tolist(), reply["scores"][0].tolist()
    return [
        (title(item), raw_id(item), round(score, 4))
        for item, score in zip(items, scores, strict=True)
    ]


def test_a_history_is_picked_by_title_and_followed(page, complaints, requests, items_url, server):
    opened(page, items_url)
    assert "10 best next items among 40 items" in page.inner_text("#about")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.insert_text("cafe 17")  # without case and accent
    page.locator("#options li", has_text="17").first.wait_for()
    page.keyboard.press("Enter")
    add(page, "CAFÉ <b>№</b> 18")
    add(page, raw_id(19))
    assert page.locator("#history div > span").all_inner_texts() == [
        f"{title(i)} {raw_id(i)}" for i in (17, 18, 19)
    ]
    wait_for_shown(page, recommended(server, [17, 18, 19]))
    assert title(19) in page.inner_text("#status")

    page.click("#exclude")
    wait_for_shown(page, recommended(server, [17, 18, 19], exclude_seen=False))
    page.click("#exclude")
    page.click("#history li:nth-child(2) button")  # removes 18
    wait_for_shown(page, recommended(server, [17, 19]))
    page.click("#next tbody tr button")  # adds the best one
    wait_for_count(page, "#history li", 3)
    page.click("#clear")
    page.wait_for_selector("#next", state="hidden")
    assert "Add an item" in page.inner_text("#status")
    assert complaints == []
    origin = urllib.parse.urlsplit(items_url).netloc
    assert {urllib.parse.urlsplit(url).netloc for url in requests} == {origin}


def test_arrow_keys_choose_among_the_items_and_escape_closes_them(page, items_url):
    opened(page, items_url)
    page.click("#search")
    page.keyboard.insert_text("№ 1")
    page.locator("#options [role=option]").nth(2).wait_for()
    first, second, *_, last = page.locator("#options [role=option]").all_inner_texts()
    chosen = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    for key, expected in (("ArrowDown", second), ("ArrowUp", first), ("ArrowUp", last)):
        page.keyboard.press(key)
        assert page.evaluate(f"{chosen}.innerText") == expected
    page.keyboard.press("Escape")
    assert page.is_hidden("#options")
    page.keyboard.insert_text("999")
    page.locator("#search-help", has_text="No item matches").wait_for()
    assert page.locator("#history li").all_inner_texts() == []


@pytest.mark.parametrize(
    ("model", "with_titles", "history"),
    [
        ("bert4rec", False, ["3", "4"]),
        ("exported", False, ["3", "4"]),
        ("named", False, [raw_id(3), raw_id(4)]),
        ("named", True, ["café 3", raw_id(4)]),
    ],
)
def test_items_have_the_names_that_model_and_dataset_know(
    page, server, ratings, model, with_titles, history
):
    with page_here(server, model, ratings if with_titles else None) as url:
        opened(page, url)
        for item in history:
            add(page, item)
        best = recommended(server, [3, 4])
        if model != "named":  # whose answers have titles
            best = [(str(NUMBERS[raw]), None, score) for _, raw, score in best]
        wait_for_shown(page, best)
        if not with_titles:
            add(page, "nothing")
            page.wait_for_selector("#error")
            assert "'nothing'" in page.inner_text("#error")


FIELDS = [*(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def column(name):
    """Returns the id of the input of a column."""
    return f"column-{FIELDS.index(name)}"


def logit(endpoint, fields):
    reply = endpoint.predict({"line": np.array([["\t".join(fields).encode()]], np.object_)})
    return reply["logit"].item(), reply["probability"].item()


def shown_effects(page):
    rows = page.evaluate(
        """[...document.querySelectorAll("#effects tbody tr")].map((row) =>
          [...row.cells].slice(0, 3).map((cell) => cell.firstChild.data))"""
    )
    return {field: (value, float(effect)) for field, value, effect in rows}


def paste(page, text):
    """Pastes into the box of the line, as the clipboard does."""
    page.evaluate(
        f"""(() => {{
          const data = new DataTransfer();
          data.setData("text/plain", {json.dumps(text)});
          document.getElementById("line").dispatchEvent(
            new ClipboardEvent("paste", {{clipboardData: data, cancelable: true}}));
        }})()"""
    )


@pytest.mark.parametrize("model", ["raw_python", "few"])  # in one request, and in several
def test_a_line_gets_its_score_and_the_effect_of_each_field(page, complaints, server, lines, model):
    line = lines[0]
    fields = line.split("\t")
    with page_here(server, model) as url, server.endpoint("raw_python") as endpoint:
        opened(page, url)
        page.wait_for_selector("#score")
        nothing, _ = logit(endpoint, [""] * 39)
        assert float(page.inner_text("#logit")) == pytest.approx(nothing, abs=6e-5)
        assert shown_effects(page) == {}
        paste(page, f"{line}\n")
        page.wait_for_selector("#effects")
        base, probability = logit(endpoint, fields)
        assert float(page.inner_text("#logit")) == pytest.approx(base, abs=6e-5)
        shown = float(page.inner_text("#probability").removesuffix(" %"))
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
    assert complaints == []


def test_fields_are_edited_by_keys_and_a_wrong_one_is_named(page, clicks_url, server, lines):
    fields = lines[1].split("\t")
    opened(page, clicks_url)
    paste(page, lines[1])
    page.wait_for_selector("#effects")
    page.evaluate(f"document.getElementById('{column('I3')}').select()")
    page.keyboard.insert_text("12345")
    page.keyboard.press("Enter")
    fields[2] = "12345"
    with server.endpoint("raw_python") as endpoint:
        expected, _ = logit(endpoint, fields)
    page.locator("#effects tbody", has_text="12345").first.wait_for()
    assert float(page.inner_text("#logit")) == pytest.approx(expected, abs=6e-5)
    assert page.evaluate("document.getElementById('line').value") == "\t".join(fields)

    page.evaluate(f"document.getElementById('{column('C4')}').select()")
    page.keyboard.insert_text("xyz")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == column("C5")
    page.wait_for_selector("#error")
    assert page.inner_text("#error").startswith(
        "column C4: 'xyz' is refused (hex): expected up to 8"
    )
    invalid = "[...document.querySelectorAll('[aria-invalid]')].map((e) => e.id)"
    assert page.evaluate(invalid) == [column("C4")]
    assert page.is_hidden("#score")

    page.evaluate("document.getElementById('line').select()")
    page.keyboard.insert_text("1\t2\t3")
    page.locator("#error", has_text="this one has 3").wait_for()
    page.click("#clear")
    page.wait_for_selector("#score")
    assert page.is_hidden("#error")
    assert page.evaluate(invalid) == []


def test_an_example_starts_and_a_category_that_the_model_lacks_is_marked(page, server, clicks):
    unknown, note = "unknown, or without effect", "#effects span.muted"
    with page_here(server, "raw_python", clicks.dataset) as url:
        opened(page, url)
        page.click("#example")
        wait_for_count(page, "#effects tbody tr", 39)
        assert page.locator(note).count() == 0
        page.fill(f"#{column('C4')}", "fffffff7")
        page.keyboard.press("Enter")
        page.locator(note).wait_for()
        assert page.locator("#effects tr", has_text=unknown).inner_text().startswith("C4")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["items", "clicks"])
def test_pages_fit_narrow_and_wide_windows_light_and_dark(page, request, lines, kind, width):
    url = request.getfixturevalue(f"{kind}_url")
    for scheme in ("light", "dark"):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        opened(page, url)
        if kind == "items":
            add(page, "№ 5")
            wait_for_count(page, "#next tbody tr", 10)
        else:
            paste(page, lines[0])
            page.wait_for_selector("#effects")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        cut = """[...document.querySelectorAll("h1, p, label, button, td, th, dd, input")]
          .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)
          .map((e) => e.outerHTML)"""
        assert page.evaluate(cut) == []
        unnamed = """[...document.querySelectorAll("input, textarea, button")]
          .filter((e) => !e.labels?.length && !e.innerText && !e.ariaLabel)
          .map((e) => e.outerHTML)"""
        assert page.evaluate(unnamed) == []
        colours = page.evaluate(
            """["backgroundColor", "color"].map((name) =>
              getComputedStyle(document.body)[name].match(/\\d+/g).reduce((a, b) => +a + +b, 0))"""
        )
        light, dark = colours if scheme == "light" else colours[::-1]
        assert light > 600 > 150 > dark


def asked(url, method, path, body=b"", **headers):
    """Sends a request as no page would; returns status, headers and body."""
    host = urllib.parse.urlsplit(url).netloc
    connection = http.client.HTTPConnection(host, timeout=harness.PATIENCE_S)
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


QUESTION = json.dumps({"text": "café 3"}).encode()


def test_the_page_may_load_nothing_and_be_framed_by_nobody(items_url):
    status, headers, page = asked(items_url, "GET", "/")
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
def test_requests_of_other_origins_are_refused(items_url, method, path, headers):
    body = QUESTION if method == "POST" else b""
    status, answered, said = asked(items_url, method, path, body, **headers)
    assert status == 403
    assert "of this page" in json.loads(said)["error"]
    assert "Access-Control-Allow-Origin" not in answered


def test_a_forwarded_port_is_the_same_page(items_url):
    there = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    status, _, body = asked(items_url, "POST", "/search", QUESTION, **there)
    assert status == 200
    assert json.loads(body)["items"][0]["title"] == title(3)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "message"),
    [
        ("/search", QUESTION, {"Content_Type": "text/plain"}, 415, "application/json"),
        ("/search", b" " * 100_000, {}, 413, "65536 bytes at most"),
        ("/search", b"", {"Content_Length": None, "Transfer_Encoding": "chunked"}, 411, "Length"),
        ("/search", b"", {"Content_Length": "-1"}, 411, "Content-Length"),
        ("/search", b" " * (1 << 20), {"Content_Length": "9" * 5000}, 413, "65536 bytes at most"),
        ("/search", b'{"text"', {}, 400, "not JSON"),
        ("/search", b"[" * 60_000, {}, 400, "not JSON"),
        ("/search", b"[]", {}, 400, "a JSON object"),
        ("/search", b'{"text": ' + b"1" * 4301 + b"}", {}, 400, "not JSON"),
        ("/recommend", b'{"history": ["\\ud800"]}', {}, 400, "surrogates not allowed"),
        ("/nowhere", b"{}", {}, 404, "questions are model, search, recommend"),
        ("/recommend", b"{}", {}, 422, "a history is a list of ids"),
        ("/recommend", b'{"history": []}', {}, 422, "1 to 1000 items, got 0"),
        ("/recommend", b'{"history": [3]}', {}, 422, "a history is a list of ids"),
        ("/recommend", b'{"history": ["x"]}', {}, 422, "'x' is no item of the dataset"),
        ("/recommend", b'{"history": ["x"], "exclude_seen": 1}', {}, 422, "true or false"),
    ],
)
def test_senseless_requests_are_refused_in_words(items_url, path, body, headers, status, message):
    code, _, text = asked(items_url, "POST", path, body, **headers)
    assert (code, message in json.loads(text)["error"]) == (status, True), text


@pytest.mark.parametrize(
    ("model", "item", "status", "message"),
    [
        ("bert4rec", "1" * 4301, 422, "is no item number"),
        ("bert4rec", str(2**63), 422, "is no item number"),
        ("named", "1" * 4301, 422, "is no item of the catalogue"),
    ],
)
def test_items_that_cannot_be_are_refused_in_words(server, model, item, status, message):
    with page_here(server, model) as url:
        question = json.dumps({"history": [item]}).encode()
        code, _, text = asked(url, "POST", "/recommend", question)
    assert (code, message in json.loads(text)["error"]) == (status, True), text


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        (None, None, "39 fields"),
        ([""] * 38, None, "39 fields"),
        ([""] * 38 + [3], "C26", ""),
        ([""] * 38 + ["a\tb"], "C26", ""),
        (["1" * 5000, *[""] * 38], "I1", "is refused (integer)"),
    ],
)
def test_senseless_lines_are_refused_in_words(clicks_url, fields, field, message):
    code, _, text = asked(clicks_url, "POST", "/score", json.dumps({"fields": fields}).encode())
    said = json.loads(text)
    assert (code, said["field"]) == (422, field)
    assert message in said["error"]


def test_a_model_that_the_server_lost_is_said_in_words(page, bert4rec_run, tmp_path):
    deploy(bert4rec_run, tmp_path / "models")
    with (
        Server(tmp_path) as server,
        page_program(server, "--model=bert4rec") as (url, process),
    ):
        opened(page, url)
        add(page, "3")
        wait_for_count(page, "#next tbody tr", 10)
        server.stop()
        add(page, "4")
        page.wait_for_selector("#error")
        assert f"bert4rec at {server.http_url}: " in page.inner_text("#error")
        assert page.is_hidden("#next")
        process.send_signal(signal.SIGINT)
        assert process.wait(harness.PATIENCE_S) == 0
        page.click("#exclude")
        page.locator("#error", has_text="start it again").wait_for()


def test_a_dataset_of_another_catalogue_is_said_in_words(server, ratings, tmp_path):
    items = read_table(ratings / ITEM_MAP_FILE, ITEM_MAP_SCHEMA)
    write_parquet(tmp_path / ITEM_MAP_FILE, ITEM_MAP_SCHEMA, (items.slice(0, 3),))
    question = json.dumps({"history": [raw_id(1)]}).encode()
    with page_here(server, "bert4rec", tmp_path) as url:
        said = asked(url, "POST", "/recommend", question)[2]
    assert "--dataset is not that of its training" in json.loads(said)["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model=features",), "deploy it under another --name, with --raw and the --dataset"),
        (("--model=bert4rec", "--dataset=absent"), "absent/item_map.parquet"),
        (("--model=bert4rec", "--port=70000"), "--port 70000: no port has this number"),
        (("--model=absent",), "absent"),
    ],
)
def test_a_page_that_cannot_be_shown_is_refused(ask, arguments, message):
    assert message in ask("--mode=page", "--no_browser", *arguments, status=2)


def test_a_taken_port_is_refused_and_a_free_one_opens_in_the_users_browser(
    server, items_url, ask, tmp_path, monkeypatch
):
    taken = urllib.parse.urlsplit(items_url).port
    said = ask("--model=bert4rec", "--mode=page", f"--port={taken}", status=2)
    assert f"--port {taken}: Address already in use" in said
    opened, script, port = tmp_path / "opened", tmp_path / "browser.sh", harness.free_port()
    script.write_text(f'#!/bin/sh\necho "$1" >> {opened}\nexec sleep 600\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    flags = ("--model=bert4rec", f"--port={port}")
    with page_program(server, *flags, quiet=()) as (url, process):
        harness.wait_for(opened.is_file, "the browser")
        process.send_signal(signal.SIGTERM)
        assert process.wait(harness.PATIENCE_S) == 0
    assert opened.read_text().split() == [url] == [f"http://127.0.0.1:{port}/"]
