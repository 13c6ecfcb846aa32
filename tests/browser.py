# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that a test uses as a person does: it types, clicks and looks."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests import harness

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40}
_AT_3_AND_4 = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
"""Runs a command whose descriptors 3 and 4 are two others: there Chromium reads and writes."""


class Page:
    """A page in the browser.

    Args:
        browser: the browser.
        session: its name for the page.

    Attributes:
        complaints: errors of scripts, and what the page's policy kept from loading.
        requests: addresses that the page asked for.
    """

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **values: Any) -> dict[str, Any]:
        """Sends a command of the DevTools protocol; returns its result."""
        return self._browser.command(method, values, self._session)

    def look(self, width: int, scheme: str = "light") -> None:
        """Gives the page a width in pixels, and a light or dark reader."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        """Opens an address and waits until it is loaded."""
        self.command("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Returns the value of JavaScript on the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        result = self.command("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until JavaScript gives something true; returns it."""
        harness.wait_for(lambda: self.value(expression), expression, seconds=60)
        return self.value(expression)

    def text(self, selector: str) -> str:
        """Returns the text of an element, as it is shown."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def texts(self, selector: str) -> list[str]:
        """Returns the texts of all elements that match."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return list(self.value(f"{found}.map((e) => e.innerText)"))

    def type(self, text: str) -> None:
        """Types into the element that has the focus."""
        self.command("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses a key."""
        values: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        values["modifiers"] = 8 if shift else 0
        down = {"type": "keyDown", "text": "\r"} if key == "Enter" else {"type": "rawKeyDown"}
        self.command("Input.dispatchKeyEvent", **down, **values)
        self.command("Input.dispatchKeyEvent", type="keyUp", **values)

    def click(self, selector: str) -> None:
        """Clicks the middle of an element, wherever the page shows it."""
        x, y = self.value(
            f"""(() => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: "center"}});
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        values = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, **values)

    def screenshot(self, file: Path) -> None:
        """Writes a picture of the whole page."""
        picture = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(picture["data"]))

    def hear(self, method: str, values: dict[str, Any]) -> None:
        """Records an event."""
        if method == "Runtime.exceptionThrown":
            self.complaints.append(values["exceptionDetails"]["exception"]["description"])
        elif method == "Log.entryAdded":
            self.complaints.append(values["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])


class Browser:
    """A running Chromium; a context manager.

    Args:
        profile: an empty folder of its own.
    """

    def __init__(self, profile: Path) -> None:
        (reads, our_end), (self._answers, writes) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (reads, writes)]
        flags = (*_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank")
        self._process = subprocess.Popen(
            ["bash", "-c", _AT_3_AND_4, *map(str, ends), CHROMIUM, *flags],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (reads, writes, *ends):
            os.close(end)
        self._questions = our_end
        self._numbers = itertools.count(1)
        self._read = b""
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.command("Browser.close")
        os.close(self._questions)
        os.close(self._answers)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def page(self) -> Page:
        """Opens an empty page."""
        target = self.command("Target.createTarget", {"url": "about:blank"})["targetId"]
        options = {"targetId": target, "flatten": True}
        session = self.command("Target.attachToTarget", options)["sessionId"]
        self._pages[session] = page = Page(self, session)
        return page

    def command(
        self, method: str, values: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Sends a command; returns its result. Events that come before it are recorded."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": values or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._questions, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            page = self._pages.get(answer.get("sessionId", ""))
            if page is not None and "method" in answer:
                page.hear(answer["method"], answer["params"])
        raise AssertionError(f"Chromium ended before it answered {method}")

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + harness.PATIENCE_S
        while time.monotonic() < deadline:
            text, end, rest = self._read.partition(b"\0")
            if end:
                self._read = rest
                yield json.loads(text)
                continue
            more = os.read(self._answers, 1 << 16)
            if not more:
                return
            self._read += more
