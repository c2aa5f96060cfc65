"""The server of the page of a run, for this machine only.

Output of models is data here and on the page, never markup; the content security policy of each response enforces it.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qsl, unquote

from ..errors import UsageError
from ..types import Json
from .episode import episode_page, search, text_at, turns_page
from .index import RunIndex
from .report import PAGE, static_text
from .results import summary
from .runs import Runs, notes_path, read_notes, write_note

STATIC = {
    PAGE: "text/html; charset=utf-8",
    **dict.fromkeys(("uPlot.min.css", "style.css", "runs.css"), "text/css; charset=utf-8"),
    **dict.fromkeys(
        (
            *("uPlot.iife.min.js", "highlight.min.js", "markdown-it.umd.min.js", "dom.js", "chart.js", "data.js"),
            *("routes.js", "rich.js", "table.js", "turns.js", "notes.js", "episode.js", "plots.js", "runs.js"),
            "app.js",
        ),
        "text/javascript; charset=utf-8",
    ),
}
"""Name -> content type of every file that is served. No request path is ever joined to a path on disk."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LONGEST_ADDRESS = 4096
"""Maximum characters of an address below the root."""

LONGEST_BODY = 64 << 10
"""Maximum bytes of a note."""

MOST_FIELDS = 10
MOST_DIGITS = 15
LOCAL = {"127.0.0.1", "localhost"}
"""Accepted host names, at any port because it may be forwarded. Others may be DNS rebinding."""


class ViewServer:
    """Serves the page of one run, or of the run folders in a folder, on 127.0.0.1 while it is open.

    Args:
        path: Run folder, trajectory file, or folder of run folders.
        port: Port. 0 takes any free port.

    Attributes:
        url: Address of the page. It holds a secret, so that other users and programs in sandboxes cannot read verdicts.

    Raises:
        UsageError: The run is missing, or the port is in use.
    """

    def __init__(self, path: str | os.PathLike[str], port: int = 0) -> None:
        runs = Runs(path)
        try:
            self._server = _Server(runs, port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise UsageError(
                f"cannot listen on port {port} ({error.strerror}): choose another port, or 0 for any free one"
            ) from error
        self.url = f"http://127.0.0.1:{self._server.server_port}{self._server.root}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="view", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Serve until `close`, or for a number of seconds."""
        self._thread.join(seconds)

    def close(self) -> None:
        """Stop. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a browser requests all files at once

    def __init__(self, runs: Runs, port: int) -> None:
        self.runs = runs
        self.root = f"/{secrets.token_urlsafe(16)}/"
        super().__init__(("127.0.0.1", port), _Handler)

    def answer(self, name: str, query: dict[str, str]) -> Json:
        """Return the answer of an API address.

        Raises:
            UsageError: The address, the run or the episode is unknown.
            BadRequest: A number or a list of the request is invalid.
        """
        if name == "runs":
            return self.runs.news()
        if name == "compare":
            return self.runs.compare(_names(query, "runs"))
        index = self.runs.index(query.get("run", ""))
        if name == "rows":
            index.refresh()
            return index.news(query.get("generation", ""), _count(query, "known"))
        if name == "stats":
            index.refresh()
            return summary(index.rows[:], index.run)
        if name == "notes":
            return [note.model_dump() for note in read_notes(notes_path(index.path))]
        if name in ("episode", "turns", "text", "search"):
            return _answer_episode(index, name, query)
        raise UsageError(f"unknown address {name!r}")

    def write_note(self, query: dict[str, str], note: bytes) -> None:
        """Write a note on a run.

        Raises:
            UsageError: The run is unknown, or the note is invalid.
        """
        write_note(notes_path(self.runs.index(query.get("run", "")).path), note)

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Print an error, unless the browser closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _answer_episode(index: RunIndex, name: str, query: dict[str, str]) -> Json:
    first, turn, start, end = (_count(query, which) for which in ("turns", "turn", "start", "end"))
    numbers = [_number(text, "numbers") for text in query.get("numbers", "0").split(",")]
    turns = index.turns(query.get("id", ""))
    if name == "episode":
        return episode_page(turns, first)
    if name == "turns":
        return turns_page(turns, numbers)
    if name == "text":
        return text_at(turns, turn, query.get("part", ""), start, end)
    return search(turns, query.get("words", ""), turn)


class BadRequest(Exception):
    """An invalid address."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30.0
    """Seconds before an idle connection is closed."""

    def do_GET(self) -> None:
        if refusal := self._refusal():
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", refusal)
        try:
            name, query = _parse(self.path[len(self.server.root) :])
            if name in STATIC:
                return self._send(HTTPStatus.OK, STATIC[name], static_text(name).encode())
            return self._send_answer(lambda: self.server.answer(name.removeprefix("api/"), query))
        except BadRequest as error:
            return self._send_bad(error)

    def do_POST(self) -> None:
        """Save a note. A browser names the origin of a POST, so that other pages are refused."""
        refusal = self._refusal()
        if refusal or self.headers.get("Origin") != f"http://{self.headers.get('Host')}":
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", refusal or b"Notes come from this page only.\n")
        try:
            name, query = _parse(self.path[len(self.server.root) :])
            length = _number(self.headers.get("Content-Length", ""), "Content-Length")
            if name != "api/notes" or length > LONGEST_BODY:
                raise BadRequest(f"A note has at most {LONGEST_BODY} bytes, and is sent to api/notes.")
            note = self.rfile.read(length)
            return self._send_answer(lambda: self.server.write_note(query, note))
        except BadRequest as error:
            return self._send_bad(error)

    def _refusal(self) -> bytes:
        """Return why a request is refused; empty if it is not."""
        if self.headers.get("Host", "").partition(":")[0] not in LOCAL:
            return b"This page is available on this machine only.\n"
        root = self.server.root
        if not secrets.compare_digest(self.path[: len(root)].encode("latin-1"), root.encode()):
            return b"Open the full address that swe-gym view printed.\n"
        return b""

    def _send_bad(self, error: BadRequest) -> None:
        self._send(HTTPStatus.BAD_REQUEST, "application/json", json.dumps({"error": str(error)}).encode())

    def _send_answer(self, answer: Callable[[], Json]) -> None:
        try:
            status, said = HTTPStatus.OK, answer()
        except UsageError as error:
            status, said = HTTPStatus.NOT_FOUND, {"error": str(error)}
        except OSError as error:
            status, said = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"cannot read the run: {error.strerror}"}
        self._send(status, "application/json", json.dumps(said).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def _parse(address: str) -> tuple[str, dict[str, str]]:
    """Parse name and query of an address below the root.

    Raises:
        BadRequest: It is too long, not ASCII, not percent-encoded UTF-8, or holds a control character.
    """
    if len(address) > LONGEST_ADDRESS:
        raise BadRequest(f"The address has {len(address)} characters; the maximum is {LONGEST_ADDRESS}.")
    if not address.isascii() or re.search(r"%(?![0-9A-Fa-f]{2})", address):
        raise BadRequest("The address is not percent-encoded.")
    path, _, query = address.partition("#")[0].partition("?")
    try:
        name = unquote(path, errors="strict")
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError as error:  # not UTF-8, or too many fields
        raise BadRequest(f"The address cannot be decoded: {error}.") from error
    if any(not character.isprintable() for text in (name, *itertools.chain(*pairs)) for character in text):
        raise BadRequest("The address holds a control character.")
    return name or PAGE, dict(pairs)


def _count(query: dict[str, str], name: str) -> int:
    """Parse a non-negative number of a request."""
    return _number(query.get(name, "0"), name)


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise BadRequest(f"{name} must be a number of at most {MOST_DIGITS} digits, not {text[:20]!r}.")
    return int(text)


def _names(query: dict[str, str], name: str) -> list[str]:
    """Parse a JSON list of texts of a request."""
    try:
        names = json.loads(query.get(name, "[]"))
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise BadRequest(f"{name} must be a JSON list of texts.")
    return names
