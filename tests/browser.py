# SPDX-License-Identifier: Apache-2.0
"""The system's Chromium, which a test drives as a person does."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Starts it without a window; yields Playwright's Browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
