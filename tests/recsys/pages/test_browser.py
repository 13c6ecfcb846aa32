# SPDX-License-Identifier: Apache-2.0
"""The page of a run in a real browser: nothing is cut off, wide and narrow, light and dark."""

import html
import json
import re

import pytest

from dlrm.scripts import main as dlrm
from tests import harness
from tests.browser import CHROMIUM
from tests.recsys.train.tiny import TINY_DLRM
from tests.tools import needs

pytestmark = [needs("Chromium"), pytest.mark.release]

DARK, LIGHT = 0, 1
MEASURE = """
<iframe src="PAGE" width="WIDTH" height="900"></iframe><pre></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement, cut = [], flat = [];
  for (const svg of page.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect();
    if (box.width < 200 || box.height < 80) flat.push(svg.textContent.slice(0, 40));
    for (const text of svg.querySelectorAll("text")) {
      const t = text.getBoundingClientRect();
      if (t.left < box.left - 2 || t.right > box.right + 2 || t.bottom > box.bottom + 2)
        cut.push(text.textContent);
    }
  }
  const style = frame.contentWindow.getComputedStyle(page.body);
  document.querySelector("pre").textContent = JSON.stringify({
    wide: root.scrollWidth - frame.clientWidth, charts: page.querySelectorAll("svg").length,
    cut, flat, paper: style.backgroundColor, ink: style.color});
};</script>
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of a short training, in its folder."""
    folder = tmp_path_factory.mktemp("pages")
    run = harness.Program(dlrm, folder, TINY_DLRM)
    run(
        *("--synthetic_dataset_num_entries=3000", "--max_steps=20", "--test_freq=10"),
        *("--print_freq=5", f"--report={folder / 'run.html'}"),
    )
    assert run.exit_code == 0
    return folder


def measured(folder, page, width, scheme):
    """Returns the measures of a page at a width, in pixels."""
    frame = folder / f"{page}-{width}.html"
    frame.write_text(MEASURE.replace("PAGE", page).replace("WIDTH", str(width)))
    done = harness.run(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000",
        f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", f"file://{frame}",
    )  # fmt: skip
    return json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[1]))


@pytest.mark.parametrize(("width", "scheme"), [(1280, LIGHT), (390, LIGHT), (390, DARK)])
def test_nothing_is_cut_off_and_colours_are_the_readers(pages, width, scheme):
    found = measured(pages, "run.html", width, scheme)
    assert found["charts"] >= 6
    assert (found["cut"], found["flat"]) == ([], [])
    assert found["wide"] <= 0
    paper, ink = (sum(map(int, re.findall(r"\d+", found[n])[:3])) for n in ("paper", "ink"))
    if scheme == LIGHT:
        assert paper > 600 > 300 > ink
    else:
        assert ink > 450 > 250 > paper
