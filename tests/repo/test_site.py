# SPDX-License-Identifier: Apache-2.0
"""The site of the documents, as `make docs` built it and as a browser shows it."""

import functools
import html
import http.server
import json
import queue
import re
import shutil
import subprocess
import threading

import pytest

from tests import harness
from tests.browser import CHROMIUM
from tests.repo.document_commands import DOCUMENTS, FENCE, NOTEBOOKS
from tests.repo.notebook import texts_of
from tests.tools import needs

pytestmark = [pytest.mark.release, needs("built site")]

SITE = harness.REPOSITORY / "build" / "site"
LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*?\bsrc=\"?([^\s\">]+)|<link\b[^>]*>")

WIDEST = """
<iframe width="WIDTH" height="900"></iframe><pre></pre><script>
const frame = document.querySelector("iframe"), pages = PAGES, wide = {};
const boxes = "pre > code, .md-typeset__scrollwrap";
frame.onload = () => {
  const root = frame.contentDocument.documentElement;
  const cut = [...root.querySelectorAll(boxes)].filter(box => box.scrollWidth > box.clientWidth);
  wide[pages.shift()] = [root.scrollWidth - frame.clientWidth, root.scrollHeight, cut.length];
  if (pages.length) frame.src = pages[0];
  else document.querySelector("pre").textContent = JSON.stringify(wide);
};
frame.src = pages[0];
</script>
"""


def page_of(document):
    """Returns the file of a document's page."""
    path = document.relative_to(harness.REPOSITORY)
    return SITE / (path.parent if path.name == "README.md" else path.with_suffix("")) / "index.html"


def test_every_document_has_a_page():
    pages = map(page_of, [*DOCUMENTS, *NOTEBOOKS])
    assert [str(page) for page in pages if not page.is_file()] == []


def test_a_page_loads_nothing_from_elsewhere():
    outside = [
        f"{page.relative_to(SITE)}: {match[0]}"
        for page in SITE.rglob("*.html")
        for match in LOADED.finditer(page.read_text())
        if re.search(r"(?:src|href)=\"?(?:https?:)?//", match[0])
    ]
    assert outside == []
    styles = [style.read_text() for style in SITE.rglob("*.css")]
    assert styles
    assert not any(re.search(r"url\([\"']?(?:https?:)?//", style) for style in styles)


def test_the_search_knows_every_page_and_a_flag():
    entries = json.loads((SITE / "search" / "search_index.json").read_text())["docs"]
    pages = {entry["location"].partition("#")[0] for entry in entries}
    folders = {str(page_of(document).parent.relative_to(SITE)) for document in DOCUMENTS}
    assert {"" if folder == "." else f"{folder}/" for folder in folders} <= pages
    flags = [entry for entry in entries if entry["location"].startswith("docs/flags/")]
    assert any("embedding_dim" in entry["text"] for entry in flags)


@pytest.mark.parametrize(
    "document",
    [harness.REPOSITORY / "docs" / "tutorials" / "criteo.md", *NOTEBOOKS],
    ids=lambda document: document.stem,
)
def test_a_tutorial_shows_its_outputs(document):
    text = document.read_text()
    if document.suffix == ".ipynb":
        outputs = [output for cell in texts_of(json.loads(text)) for output in cell]
    else:
        outputs = [body for kind, body in FENCE.findall(text) if kind == "text"]
    page = re.sub(r"<[^>]*>", "", page_of(document).read_text())
    page = "".join(html.unescape(page).split())
    assert outputs
    assert [output for output in outputs if "".join(output.split()) not in page] == []


def test_the_build_refuses_a_broken_link(tmp_path):
    for name in ("mkdocs.yml", "docs", "triton/README.md", *harness.REPOSITORY.glob("*.md")):
        source = harness.REPOSITORY / name
        copy = tmp_path / source.relative_to(harness.REPOSITORY)
        copy.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    with (tmp_path / "docs" / "dlrm.md").open("a") as file:
        file.write("\n[away](nowhere.md), [lost](bert4rec.md#nowhere)\n")
    done = harness.python("-m", "mkdocs", "build", folder=tmp_path, status=1)
    assert "link 'nowhere.md'" in done.stderr
    assert "anchor '#nowhere'" in done.stderr


@needs("Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window(width, tmp_path):
    pages = [f"file://{page}" for page in sorted(SITE.rglob("index.html"))]
    frame = tmp_path / "frame.html"
    frame.write_text(WIDEST.replace("WIDTH", str(width)).replace("PAGES", json.dumps(pages)))
    done = harness.run(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=100000",
        "--dump-dom", f"file://{frame}",
    )  # fmt: skip
    shown = json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1]))
    assert shown.keys() == set(pages)
    assert min(height for _, height, _ in shown.values()) > 500
    assert {page: excess for page, (excess, *_) in shown.items() if excess > 0} == {}
    if width > 1000:
        assert {page: cut for page, (*_, cut) in shown.items() if cut} == {}, "tables or code"


TYPE = """
<iframe src="/"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, box = page.querySelector(".md-search__input");
  box.focus();
  box.value = "--embedding_dim=16";
  setInterval(() => {
    box.dispatchEvent(new frame.contentWindow.Event("keyup", {bubbles: true}));
    const link = page.querySelector(".md-search-result__link");
    if (link) fetch("/found/" + link.getAttribute("href"));
  }, 200);
};
</script>
"""


@needs("Chromium")
def test_the_search_finds_a_flag_as_it_is_typed(tmp_path):
    found = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/found/"):
                found.put(self.path)
            if self.path != "/type.html":
                super().do_GET()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(TYPE.encode())

        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}")
        url = f"http://127.0.0.1:{server.server_port}/type.html"
        browser = subprocess.Popen([CHROMIUM, *options, url], stderr=subprocess.DEVNULL)
        try:
            assert "docs/flags/" in found.get(timeout=300)
        finally:
            browser.kill()
            browser.wait()
            server.shutdown()
