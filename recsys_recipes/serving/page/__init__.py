# SPDX-License-Identifier: Apache-2.0
"""A page in the browser that asks a served model: a Gradio app on 127.0.0.1."""

import contextlib
import importlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from recsys.errors import UserError
from recsys.installation import command_for

_HOST = "127.0.0.1"


def gradio() -> Any:
    """Imports Gradio with its analytics turned off; refused if it is not installed."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        return importlib.import_module("gradio")
    except ModuleNotFoundError as error:
        needs = f"{error.name} is not installed, which `mode` page needs"
        raise UserError(f"{needs}: {command_for('page')}", setting="mode") from error


def table(gr: Any, headers: Sequence[str], label: str) -> Any:
    """Returns a table of answers, which grows with its rows."""
    return gr.Dataframe(
        headers=[*headers], label=label, interactive=False, wrap=True, max_height=4000
    )


@contextlib.contextmanager
def served(gr: Any, page: Any, port: int) -> Iterator[str]:
    """Serves an app in a thread, and yields its address; a port that is taken is refused."""
    try:
        listening = socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no port has this number"
        raise UserError(f"`port` {port}: {reason}; 0 takes a free one", setting="port") from error
    uvicorn, fastapi, hosts = map(
        importlib.import_module, ("uvicorn", "fastapi", "starlette.middleware.trustedhost")
    )
    app = fastapi.FastAPI(openapi_url=None)
    # Another site may point a name at this machine (DNS rebinding) so that its pages read answers.
    app.add_middleware(hosts.TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"])
    gr.mount_gradio_app(app, page, "/", footer_links=[], run_history=False, ssr_mode=False)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://{_HOST}:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
