# SPDX-License-Identifier: Apache-2.0
"""The page of `ask --mode page` in Chromium, on models of a real server."""

import contextlib
import http.client
import signal
import subprocess
import urllib.parse

import numpy as np
import pytest

from tests import harness
from tests.bert4rec.conftest import raw_id
from tests.browser import chromium
from tests.dlrm.conftest import make_program
from tests.preproc.clicks import schema_log
from tests.tools import MAIN_PYTHON, needs, require
from tests.triton.conftest import RAW_MODEL, Server, deploy, title

pytestmark = [
    pytest.mark.triton_server,
    pytest.mark.release,
    needs("compiled Criteo kernel"),
    needs("environment .venv"),  # which has Gradio
]

HISTORY, ERROR = "History, oldest first", "Error"
IGNORED = ("note", "rate", "weight", "gain")
FEATURES = [name for name in schema_log.LINE if name not in IGNORED]


@contextlib.contextmanager
def page_program(server, *arguments, quiet=("--no_browser",), url=None):
    """Starts `ask --mode page`; yields the address that it prints and the process."""
    command = [MAIN_PYTHON, "-m", "recsys_recipes", "ask", "--mode=page", *quiet, *arguments]
    with subprocess.Popen(
        [*map(str, command), f"--url={url or server.http_url}"],
        cwd=harness.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            line = harness.wait_for_line(process, lambda line: "http://" in line)
            yield line.split()[-1], process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def shop(server, tmp_path_factory):
    """A served model of a schema, seven rows a request; its dataset and the rows of its log."""
    folder = tmp_path_factory.mktemp("shop")
    rows = schema_log.write_log(folder, 800, seed=3)
    dataset, columns = folder / "dataset", schema_log.columns_without("float")
    schema = schema_log.write_schema(folder, columns=columns)
    schema_log.prepare(folder / "log.csv", schema, dataset)
    program = make_program(folder)
    program(
        f"--dataset={dataset}", f"--save_checkpoint_path={folder / 'run'}", *RAW_MODEL, "--lr=.01"
    )
    raw = ("--raw", f"--dataset={dataset}", "--split=test", "--max_batch_size=7")
    server.serve("shop", folder / "run", *raw)
    return dataset, rows


@pytest.fixture(scope="module")
def items_url(server, ratings, recommenders):
    with page_program(server, "--model=bert4rec", f"--dataset={ratings}") as (url, _):
        yield url


@pytest.fixture(scope="module")
def clicks_url(server, shop):
    with page_program(server, "--model=shop", f"--dataset={shop[0]}") as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser():
    require("Chromium")
    with chromium() as browser:
        yield browser


@pytest.fixture(params=[400, 1280])
def page(browser, request):
    page = browser.new_page(viewport={"width": request.param, "height": 900})
    page.set_default_timeout(harness.PATIENCE_S * 1000)
    yield page
    page.close()


def opened(page, url, label):
    """Opens a page; returns the addresses that it asks for."""
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    page.get_by_label(label, exact=label == "Logit").first.wait_for()
    return asked


def rows_of(page):
    """Returns the texts of the rows of the table."""
    cells = [text.strip() for text in page.get_by_role("gridcell").all_inner_texts()]
    rows = zip(cells[::3], cells[1::3], cells[2::3], strict=True)
    return [row for row in rows if any(row)]


def wait_for_rows(page, expected):
    harness.wait_for(lambda: rows_of(page) == expected, f"{expected} on the page")


def check_width(page):
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def add(page, text, name):
    """Types into the history and takes an item."""
    page.get_by_label(HISTORY).press_sequentially(text)
    page.get_by_role("option", name=name).click()
    page.keyboard.press("Escape")  # or the list of the others covers the page
    page.get_by_role("option").first.wait_for(state="detached")  # or the next text meets its end


def recommended(server, history, *, exclude_seen=True):
    """Returns the answer of the server, as the page should show it."""
    with server.endpoint("bert4rec") as endpoint:
        request = {"history": np.array([history]), "exclude_seen": np.array([[exclude_seen]])}
        reply = endpoint.predict(request)
    pairs = zip(reply["items"][0].tolist(), reply["scores"][0].tolist(), strict=True)
    return [(f"{title(item)} ({raw_id(item)})", str(item), f"{score:.4f}") for item, score in pairs]


def test_a_history_is_picked_by_title(page, items_url, server):
    asked = opened(page, items_url, HISTORY)
    add(page, "№</b> 17", f"{title(17)} ({raw_id(17)})")
    add(page, raw_id(18), f"{title(18)} ({raw_id(18)})")
    wait_for_rows(page, recommended(server, [17, 18]))
    page.get_by_label("Leave out").click()
    wait_for_rows(page, recommended(server, [17, 18], exclude_seen=False))
    check_width(page)
    assert {urllib.parse.urlsplit(url).netloc for url in asked} == {
        urllib.parse.urlsplit(items_url).netloc
    }


def test_a_user_of_the_dataset_is_filled_in(page, items_url):
    opened(page, items_url, HISTORY)
    page.get_by_role("button", name="Fill in").click()
    harness.wait_for(lambda: len(rows_of(page)) == 10, "recommendations")
    check_width(page)


def logit_of(server, row):
    with server.endpoint("shop") as endpoint:
        fields = np.array([[row[name].encode() for name in FEATURES]], np.object_)
        reply = endpoint.predict({"fields": fields})
    return reply["logit"].item(), reply["probability"].item()


def line_of(row):
    """Returns a line of the log without its label."""
    return schema_log.text_of([row], schema_log.LINE).decode().splitlines()[1]


def test_a_line_gets_its_score_and_the_effect_of_each_field(page, clicks_url, server, shop):
    row = next(row for row in shop[1] if ";" in row["brand"])
    asked = opened(page, clicks_url, "Logit")
    page.get_by_role("textbox", name="Line: 20 fields").fill(line_of(row))
    base, probability = logit_of(server, row)
    harness.wait_for(lambda: page.get_by_label("Logit", exact=True).input_value(), "the logit")
    assert float(page.get_by_label("Logit", exact=True).input_value()) == pytest.approx(
        base, abs=6e-5
    )
    for name in FEATURES:
        assert page.get_by_label(name, exact=True).input_value() == row[name]
    effects = {name: (value, effect) for name, value, effect in rows_of(page)}
    assert set(effects) == {name for name in FEATURES if row[name].strip()}
    for name, (_, effect) in effects.items():
        without, _ = logit_of(server, row | {name: ""})
        assert float(effect.split()[0]) == pytest.approx(base - without, abs=6e-5)
    text = page.locator("body").inner_text()
    assert "Probability of bought = yes or später" in text
    assert f"{100 * probability:.2f} %" in text
    check_width(page)
    assert {urllib.parse.urlsplit(url).netloc for url in asked} == {
        urllib.parse.urlsplit(clicks_url).netloc
    }


def test_a_row_is_filled_in_and_an_unknown_category_marked(page, clicks_url):
    opened(page, clicks_url, "Logit")
    page.get_by_role("button", name="Fill in").click()
    harness.wait_for(lambda: page.get_by_label("Logit", exact=True).input_value(), "the logit")
    assert "unknown" not in "".join(effect for *_, effect in rows_of(page))
    page.get_by_label("brand", exact=True).fill('b"c;d')
    harness.wait_for(
        lambda: [name for name, _, effect in rows_of(page) if "unknown" in effect] == ["brand"],
        "the mark",
    )
    assert ';"b""c;d";' in page.get_by_role("textbox", name="Line: 20 fields").input_value()


def test_what_the_server_refuses_is_said(page, clicks_url):
    opened(page, clicks_url, "Logit")
    page.get_by_label("item", exact=True).fill("xyz")
    page.get_by_label(ERROR, exact=True).wait_for()
    said = page.get_by_label(ERROR, exact=True).input_value()
    harness.assert_tells(said, "item", "'xyz'")
    page.get_by_role("textbox", name="Line: 20 fields").fill("1;2;3")
    harness.wait_for(
        lambda: "3 fields" in page.get_by_label(ERROR, exact=True).input_value(), "the message"
    )
    page.get_by_role("button", name="Empty").click()
    page.get_by_label(ERROR, exact=True).wait_for(state="hidden")


def test_a_model_that_the_server_lost_is_said(browser, bert4rec_run, tmp_path):
    deploy(bert4rec_run, tmp_path / "models")
    page = browser.new_page()
    with Server(tmp_path) as server, page_program(server, "--model=bert4rec") as (url, process):
        opened(page, url, HISTORY)
        server.stop()
        page.get_by_label(HISTORY).fill("3")
        page.keyboard.press("Enter")
        page.get_by_label(ERROR, exact=True).wait_for(timeout=harness.PATIENCE_S * 1000)
        said = page.get_by_label(ERROR, exact=True).input_value()
        harness.assert_tells(said, "bert4rec", server.http_url)
        process.send_signal(signal.SIGINT)
        assert process.wait(harness.PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1:1", 200), ("localhost", 200), ("evil.example", 400)]
)
def test_other_hosts_are_refused(items_url, host, status):
    address = urllib.parse.urlsplit(items_url).netloc
    connection = http.client.HTTPConnection(address, timeout=harness.PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/", headers={"Host": host})
        with connection.getresponse() as response:
            assert response.status == status


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model=features",), "--raw"),
        (("--model=bert4rec", "--dataset=absent"), "absent"),
        (("--model=bert4rec", "--port=70000"), "--port"),
        (("--model=absent",), "absent"),
    ],
)
def test_a_page_that_cannot_be_shown_is_refused(server, clicks, recommenders, arguments, named):
    server.serve("features", clicks.run)
    command = ("-m", "recsys_recipes", "ask", f"--url={server.http_url}", "--mode=page")
    done = harness.run(MAIN_PYTHON, *command, "--no_browser", *arguments, status=2)
    assert named in done.stderr


def test_without_gradio_the_extra_is_named(server, recommenders):
    program = (
        "import sys; sys.modules['gradio'] = None; from recsys_recipes.serving import ask; "
        "sys.exit(ask.main(['ask', *sys.argv[1:]]))"
    )
    flags = (f"--url={server.http_url}", "--model=bert4rec", "--mode=page", "--no_browser")
    done = harness.run(MAIN_PYTHON, "-c", program, *flags, status=2)
    assert "recsys-recipes[page]" in done.stderr


def test_a_taken_port_is_refused_and_a_free_one_opens_in_the_users_browser(
    server, items_url, tmp_path, monkeypatch
):
    taken = urllib.parse.urlsplit(items_url).port
    command = ("-m", "recsys_recipes", "ask", f"--url={server.http_url}", "--mode=page")
    done = harness.run(MAIN_PYTHON, *command, "--model=bert4rec", f"--port={taken}", status=2)
    assert f"--port {taken}" in done.stderr
    opened_file, script, port = tmp_path / "opened", tmp_path / "browser.sh", harness.free_port()
    script.write_text(f'#!/bin/sh\necho "$1" >> {opened_file}\nexec sleep 600\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    flags = ("--model=bert4rec", f"--port={port}")
    with page_program(server, *flags, quiet=()) as (url, process):
        harness.wait_for(opened_file.is_file, "the browser")
        process.send_signal(signal.SIGTERM)
        assert process.wait(harness.PATIENCE_S) == 0
    assert opened_file.read_text().split() == [url] == [f"http://127.0.0.1:{port}/"]
