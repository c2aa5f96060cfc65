"""The host's end of the relay: a byte stream that survives interrupted calls."""

import binascii
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ...guests.relay import LINE_MARK, encode_line
from ..gates import add_jitter

log = logging.getLogger(__name__)

CHUNK = 384 * 1024
"""Maximum bytes per call: as JSON, twice in base64, they stay below the usual limit of 1 MB of gateways."""

SLOWEST = 50_000
"""Assumed minimum bytes per second of a connection."""

LONGEST_PAUSE = 2.0
USEFUL_SECONDS = 1.0
"""Seconds after which an interrupted call counts as a success."""

LONGEST_LINE = 1 << 20
KEPT_ERRORS = 1 << 14


class Cut(Exception):
    """A call failed, but the sandbox may be fine. The call may be retried."""


class Gone(Exception):
    """The sandbox or the relay in it has ended; the message tells what is known."""


class RemoteProcess(Protocol):
    """Access to the relay in a sandbox. Any call may raise `Cut` or `Gone`."""

    def send(self, text: str, timeout: float) -> None:
        """Write to its standard input."""
        ...

    def follow(
        self, opened: Callable[[], None], output: Callable[[str], None], errors: Callable[[str], None], seconds: int
    ) -> None:
        """Listen for `seconds`: call `opened` once connected, then the others with what the relay prints."""
        ...

    def check(self) -> None:
        """Check with the service that the sandbox exists."""
        ...

    def renew(self) -> None:
        """Extend the sandbox's life."""
        ...


class ResumedStream:
    """A `ByteStream` over a `RemoteProcess`. Interrupted calls are retried; no byte is lost or duplicated.

    Two threads serve it until `close`. One listens in calls of `listen_seconds`, short enough for gateways. The other
    sends in calls of `send_seconds` plus a time for their size, and renews the sandbox every `renew_seconds`.
    """

    def __init__(
        self, process: RemoteProcess, *, name: str, send_seconds: float, listen_seconds: int, renew_seconds: float
    ) -> None:
        self._process = process
        self._name = name
        self._send_seconds = send_seconds
        self._listen_seconds = listen_seconds
        self._renew_seconds = renew_seconds
        self._renew_at = time.monotonic() + renew_seconds
        self._change = threading.Condition()
        self._outgoing = bytearray()
        self._sent = 0
        self._incoming = bytearray()
        self._received = 0
        self._asked = 0  # how often a retransmission was needed
        self._answered = 0
        self._end: str | None = None
        self.trouble = ""  # error of the last interrupted call
        self._rest = ""
        self._errors = ""
        for work in (self._listen_on, self._send_on):
            threading.Thread(target=work, name=f"e2b-{name}{work.__name__}", daemon=True).start()

    # --- what a channel uses ------------------------------------------------------------------------------

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`."""
        with self._change:
            if not self._change.wait_for(lambda: self._incoming or self._end is not None, max(0.0, timeout)):
                raise TimeoutError
            if not self._incoming:
                raise OSError(self._end)
            data = bytes(self._incoming)
            self._incoming.clear()
            return data

    def write(self, data: bytes, timeout: float) -> None:
        """See `ByteStream.write`."""
        with self._change:
            self._outgoing += data
            whole = self._sent + len(self._outgoing)
            self._change.notify_all()
            if not self._change.wait_for(lambda: self._sent >= whole or self._end is not None, max(0.0, timeout)):
                raise TimeoutError
            if self._sent < whole:
                raise OSError(self._end)

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._finish("the stream is closed")

    @property
    def errors(self) -> str:
        """End of the relay's standard error."""
        return self._errors

    def _finish(self, why: str) -> None:
        with self._change:
            if self._end is None:
                self._end = why
            self._change.notify_all()

    # --- listening ----------------------------------------------------------------------------------------

    def _listen_on(self) -> None:
        failures = 0
        while self._end is None:
            self._rest = ""
            before, began = self._received, time.monotonic()
            try:
                if failures > 1:
                    self._process.check()
                self._process.follow(self._ask_again, self._on_output, self._on_errors, self._listen_seconds)
                failures = 0
            except Gone as gone:
                self._finish(str(gone))
            except Cut as cut:
                useful = self._received > before or time.monotonic() > began + USEFUL_SECONDS
                failures = 0 if useful else failures + 1
                self._pause(failures, "listening", cut)

    def _ask_again(self) -> None:
        with self._change:
            self._asked += 1
            self._change.notify_all()

    def _on_output(self, text: str) -> None:
        if self._end is not None:
            raise Cut("closed")  # ends the call
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()[:LONGEST_LINE]
        for line in lines:
            self._on_line(line)

    def _on_line(self, line: str) -> None:
        """Take a line of the relay if it continues the received bytes; others are duplicates or retransmitted."""
        mark, _, rest = line.partition(" ")
        place, _, text = rest.partition(" ")
        if mark != LINE_MARK or not place.isdigit():
            return
        try:
            data = binascii.a2b_base64(text, strict_mode=True) if text else b""
        except binascii.Error:
            return
        with self._change:
            known = self._received - int(place)
            if not data and known == 0:
                self._finish("its runner ended")
            if 0 <= known < len(data):
                self._incoming += data[known:]
                self._received += len(data) - known
                self._change.notify_all()

    def _on_errors(self, text: str) -> None:
        self._errors = (self._errors + text)[-KEPT_ERRORS:]

    # --- sending ------------------------------------------------------------------------------------------

    def _send_on(self) -> None:
        failures = 0
        while self._wait_for_work():
            try:
                if time.monotonic() >= self._renew_at:
                    self._renew()
                else:
                    self._send()
                failures = 0
            except Gone as gone:
                self._finish(str(gone))
            except Cut as cut:
                failures += 1
                self._pause(failures, "sending", cut)

    def _wait_for_work(self) -> bool:
        """Wait until there is something to send or to renew; False at the end of the stream."""
        with self._change:
            self._change.wait_for(
                lambda: self._outgoing or self._asked > self._answered or self._end is not None,
                max(0.0, self._renew_at - time.monotonic()),
            )
            return self._end is None

    def _send(self) -> None:
        with self._change:
            data, asked = bytes(self._outgoing[:CHUNK]), self._asked
            head = f"{LINE_MARK} {self._sent} {self._received}"
            lines = encode_line(head, b"") if asked > self._answered else b""
            if data:
                lines += encode_line(head, data)
        if not lines:
            return
        self._process.send(lines.decode("ascii"), self._send_seconds + len(lines) / SLOWEST)
        with self._change:
            del self._outgoing[: len(data)]
            self._sent += len(data)
            self._answered = asked
            self._change.notify_all()

    def _renew(self) -> None:
        self._renew_at = time.monotonic() + min(self._renew_seconds, 15.0)  # if it fails
        self._process.renew()
        self._renew_at = time.monotonic() + self._renew_seconds

    def _pause(self, failures: int, what: str, cut: Cut) -> None:
        """Wait before a retry: exponential with jitter."""
        self.trouble = str(cut)
        if self._end is None:
            level = logging.WARNING if failures else logging.DEBUG  # gateways routinely cut long streams
            log.log(level, "sandbox %s: %s was interrupted; retrying: %s", self._name, what, cut)
        seconds = add_jitter(min(LONGEST_PAUSE, 0.05 * 2**failures))
        with self._change:
            self._change.wait_for(lambda: self._end is not None, seconds)
