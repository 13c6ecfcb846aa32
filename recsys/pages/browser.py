# SPDX-License-Identifier: Apache-2.0
"""Opens pages in the user's browser."""

import contextlib
import os
import webbrowser

_SIGNS_OF_A_BROWSER = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def open_in_browser(url: str) -> bool:
    """Opens a page in the browser; returns whether it did.

    Without a desktop or BROWSER it does not: a browser in the terminal would take that over.
    """
    if any(os.environ.get(name) for name in _SIGNS_OF_A_BROWSER):
        with contextlib.suppress(webbrowser.Error):
            return webbrowser.open(url)
    return False
