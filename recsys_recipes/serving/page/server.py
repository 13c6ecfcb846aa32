# SPDX-License-Identifier: Apache-2.0
"""Serves a page to this machine's browser, and answers its questions."""

import http.server
import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Self

from recsys.errors import UserError, as_flags
from recsys.serve.client.requests import parse_json
from recsys_recipes.serving.page.view import QuestionError, View

HOST = "127.0.0.1"
MAX_BODY_BYTES = 65_536
"""Longest question; a history of some thousand items is shorter."""
_DISCARDED_BYTES = 16 * MAX_BODY_BYTES
"""Read of a question that is too long, so that its sender sees the refusal."""
_LOCAL_NAMES = frozenset({HOST, "localhost"})
Response = tuple[HTTPStatus, bytes, dict[str, str]]
"""Status, body and headers."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class RefusedError(Exception):
    """A request that this page did not send.

    Attributes:
        status: of the response.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class PageServer:
    """Answers a browser on 127.0.0.1 in threads; a context manager.

    GET / is the page, POST /NAME a question of it with a JSON object. Requests that name another
    host, or come from a page of another one, are refused: any page that the user visits could send
    them.

    Attributes:
        url: address of the page.

    Raises:
        UserError: the port is taken.
    """

    def __init__(self, view: View, port: int) -> None:
        page, policy = view.document()

        class Handler(_Handler):
            def do_GET(self) -> None:
                self.respond(self.page)

            def do_POST(self) -> None:
                self.respond(self.answer)

            def page(self) -> Response:
                if self.path != "/":
                    raise RefusedError(HTTPStatus.NOT_FOUND, "only the page / is here")
                headers = {"Content-Type": "text/html", "Content-Security-Policy": policy}
                return HTTPStatus.OK, page, headers

            def answer(self) -> Response:
                question = view.answers.get(self.path.removeprefix("/"))
                if question is None:
                    known = ", ".join(view.answers)
                    raise RefusedError(HTTPStatus.NOT_FOUND, f"questions are {known}")
                status, values = HTTPStatus.OK, self.read_object()
                try:
                    answered: Mapping[str, Any] = question(values)
                except UserError as error:
                    status = HTTPStatus.UNPROCESSABLE_ENTITY
                    field = error.field if isinstance(error, QuestionError) else None
                    answered = {"error": as_flags(str(error), error.settings), "field": field}
                headers = {"Content-Type": "application/json"}
                return status, json.dumps(answered, allow_nan=False).encode(), headers

        try:
            self._server = http.server.ThreadingHTTPServer((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "no port has this number"
            raise UserError(f"`port` {port}: {reason}; 0 takes a free one") from error
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Checks requests and writes responses."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # a silent connection does not keep its thread

    def respond(self, make: Callable[[], Response]) -> None:
        """Writes the response that a function makes, or why there is none."""
        try:
            self.check_sender()
            status, body, headers = make()
        except RefusedError as error:
            status, body = error.status, json.dumps({"error": str(error)}).encode()
            headers = {"Content-Type": "application/json"}
            self.close_connection = True  # a body that was not read would be the next request
        self.send_response(status)
        for name, value in (_HEADERS | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def check_sender(self) -> None:
        """Refuses requests of other origins.

        A name that another site points at this machine shows in Host (DNS rebinding), a page of
        another site in Origin. The port is not compared: it may be forwarded.
        """
        host = self.headers.get("Host", "")
        if host.partition(":")[0] not in _LOCAL_NAMES:
            raise RefusedError(HTTPStatus.FORBIDDEN, f"{host!r} is not the host of this page")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise RefusedError(HTTPStatus.FORBIDDEN, f"{origin!r} is not the origin of this page")

    def read_object(self) -> dict[str, Any]:
        """Reads the JSON object of a question."""
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question is application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "a question has a Content-Length")
        count = int(min(float(length), _DISCARDED_BYTES))  # int refuses thousands of digits
        if count > MAX_BODY_BYTES:
            self.rfile.read(count)
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a question has {MAX_BODY_BYTES} bytes at most",
            )
        try:
            values = parse_json(self.rfile.read(count))
        except ValueError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"not JSON: {error}") from error
        if not isinstance(values, dict):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a question is a JSON object")
        return values

    def log_message(self, format: str, *args: object) -> None:
        """Leaves requests out of the program's output."""
