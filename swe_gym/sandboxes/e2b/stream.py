"""The host's end of the relay: a byte stream that outlives the calls it is made of."""

import binascii
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ...guests.relay import LINE_MARK, encode_line
from ..jitter import jittered

CHUNK = 384 * 1024
"""Bytes per call at most: as JSON, twice in base64, they stay below the 1 MB that gateways commonly take."""

SLOWEST = 50_000
"""Bytes per second that a line is thought to carry at least."""

LONGEST_PAUSE = 2.0
OF_USE_SECONDS = 1.0
"""A call that let us listen for so long was cut, but did not fail."""

LONGEST_LINE = 1 << 20
KEPT_ERRORS = 1 << 14


class Cut(Exception):
    """A call failed in a way that says nothing about the sandbox. It may be made again."""


class Gone(Exception):
    """The sandbox, or the program in it, is no more; the text says what is known."""


class RemoteProcess(Protocol):
    """The relay in a sandbox, as the service lets us reach it. Any call may raise `Cut` or `Gone`."""

    def send(self, text: str, timeout: float) -> None:
        """Write to its standard input."""
        ...

    def follow(
        self, opened: Callable[[], None], output: Callable[[str], None], errors: Callable[[str], None], seconds: int
    ) -> None:
        """Listen to it: call `opened` once that is so, then the others with what it prints. Return after `seconds`."""
        ...

    def check(self) -> None:
        """Ask the service whether the sandbox is still there."""
        ...

    def renew(self) -> None:
        """Have the service keep the sandbox for longer."""
        ...


class ResumedStream:
    """A `ByteStream` over a `RemoteProcess`. A call that is cut is made again; no byte is lost or comes twice.

    Two threads serve it until it is closed: one listens, in calls of `listen_seconds` each, so that no gateway sees a
    long one; one sends, in calls of `send_seconds` and what their size asks for, and has the sandbox renewed every
    `renew_seconds`. After `close` neither starts another call.
    """

    def __init__(
        self, process: RemoteProcess, *, name: str, send_seconds: float, listen_seconds: int, renew_seconds: float
    ) -> None:
        self._process = process
        self._send_seconds = send_seconds
        self._listen_seconds = listen_seconds
        self._renew_seconds = renew_seconds
        self._renew_at = time.monotonic() + renew_seconds
        self._change = threading.Condition()
        self._outgoing = bytearray()
        self._sent = 0
        self._incoming = bytearray()
        self._received = 0
        self._asked = 0  # how often we wanted to hear again what we lack
        self._answered = 0
        self._end: str | None = None
        self.trouble = ""  # the last call that was cut
        self._rest = ""
        self._errors = ""
        for work in (self._listen_on, self._send_on):
            threading.Thread(target=work, name=f"{name}-{work.__name__}", daemon=True).start()

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
        """The last that the relay wrote to its standard error."""
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
                self.trouble = str(cut)
                of_use = self._received > before or time.monotonic() > began + OF_USE_SECONDS
                failures = 0 if of_use else failures + 1
                self._pause(failures)

    def _ask_again(self) -> None:
        with self._change:
            self._asked += 1
            self._change.notify_all()

    def _on_output(self, text: str) -> None:
        if self._end is not None:
            raise Cut("closed")  # leaves the call
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()[:LONGEST_LINE]
        for line in lines:
            self._on_line(line)

    def _on_line(self, line: str) -> None:
        """Take a line of the relay's that goes on where we are; all else was had, or will be asked for again."""
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
                self.trouble = str(cut)
                failures += 1
                self._pause(failures)

    def _wait_for_work(self) -> bool:
        """Wait until there is something to send or to renew; False at the end."""
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
        self._renew_at = time.monotonic() + min(self._renew_seconds, 15.0)  # where it fails
        self._process.renew()
        self._renew_at = time.monotonic() + self._renew_seconds

    def _pause(self, failures: int) -> None:
        """Wait a little longer after each failure, and never as long as others who failed with us."""
        seconds = jittered(min(LONGEST_PAUSE, 0.05 * 2**failures))
        with self._change:
            self._change.wait_for(lambda: self._end is not None, seconds)
