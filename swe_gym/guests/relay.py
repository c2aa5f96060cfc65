"""A reliable byte stream between host and runner over a service's daemon, whose calls may be cut or repeated.

The daemon of an E2B sandbox drops a process's output while nobody listens, and takes the same input twice if a reply
was lost. So both directions count bytes, as TCP does:

    swe-gym PLACE CONFIRMED BASE64      from the host
    swe-gym PLACE BASE64                to the host

PLACE is the data's position in the sender's stream; data received before is ignored. CONFIRMED is how much the host
has of our stream; we keep the rest. A line of the host without data asks for all that it lacks; it sends one each time
it starts to listen. A line of ours without data says that the runner has ended.

Lines are text because the SDK decodes output, and in older versions input, as UTF-8. A listener that joins in the
middle of a line sees one without the mark and skips it.
"""

import base64
import os
import select
import subprocess
import sys
import time

LINE_MARK = "swe-gym"
GREETING = "swe-gym-relay"
"""The first line that the relay prints."""

LINE_BYTES = 23 * 1024
"""Bytes of data in a line: in base64 and with its head it fits into the 32 KiB that the daemon reads at a time."""

CHUNK = 1 << 16
LAST_SECONDS = 5.0

KEPT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 10)
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service, as in the Docker backend."""


class Relay:
    """The poll loop between four descriptors: from and to the host, from and to the runner."""

    def __init__(self, source: int, sink: int, from_runner: int, to_runner: int) -> None:
        self.source: int | None = source
        self.sink = sink
        self.from_runner = from_runner
        self.to_runner: int | None = to_runner
        for fd in (source, sink, from_runner, to_runner):
            os.set_blocking(fd, False)
        self.rest = b""  # the host's last line, which is not complete
        self.received = 0  # bytes of the host's stream that we have
        self.input = bytearray()  # those of them that the runner has not taken yet
        self.output = bytearray()  # bytes of the runner's stream that the host has not confirmed
        self.confirmed = 0  # position of `output` in the runner's stream
        self.sent = 0  # position of the next line in it
        self.line = (GREETING + "\n").encode("ascii")  # being written
        self.runner_ended: float | None = None
        self.end_told = False

    def run(self) -> None:
        """Serve until the runner has ended and the host was sent all of its output."""
        while not self.done():
            poll = select.poll()
            if self.source is not None:
                poll.register(self.source, select.POLLIN)
            if self.line or self.untold():
                poll.register(self.sink, select.POLLOUT)
            if self.runner_ended is None:
                poll.register(self.from_runner, select.POLLIN)
            if self.input and self.to_runner is not None:
                poll.register(self.to_runner, select.POLLOUT)
            for fd, _ in poll.poll(None if self.runner_ended is None else 100):
                self.serve(fd)

    def untold(self) -> bool:
        """Return whether there is anything left to send."""
        ended = self.runner_ended is not None and not self.end_told
        return ended or self.sent < self.confirmed + len(self.output)

    def done(self) -> bool:
        """Return whether the runner ended and the host knows it, or had the time to ask."""
        if self.runner_ended is None:
            return False
        nobody_asks = self.source is None and not self.line and not self.untold()
        return nobody_asks or time.monotonic() > self.runner_ended + LAST_SECONDS

    def serve(self, fd: int) -> None:
        """Read from or write to a descriptor that is ready."""
        try:
            if fd == self.source:
                self.on_host()
            elif fd == self.from_runner:
                self.on_runner()
            elif fd == self.sink:
                self.write_line()
            else:
                del self.input[: os.write(fd, self.input[:CHUNK])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            if fd == self.sink:
                raise
            self.hang_up()

    def hang_up(self) -> None:
        """Close the runner's input, so that it kills what runs and ends."""
        if self.to_runner is not None:
            os.close(self.to_runner)
            self.to_runner = None

    def on_host(self) -> None:
        """Read from the host."""
        assert self.source is not None
        data = os.read(self.source, 1 << 20)
        if not data:
            self.source = None
            self.hang_up()
            return
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            parts = line.decode("ascii").split(" ")
            if len(parts) != 4 or parts[0] != LINE_MARK:
                raise SystemExit("invalid line from the host")
            self.on_line(int(parts[1]), int(parts[2]), base64.b64decode(parts[3]))

    def on_line(self, place: int, confirmed: int, data: bytes) -> None:
        """Forget what the host has confirmed, and take new data. A line without data asks for what the host lacks."""
        if confirmed > self.confirmed:
            del self.output[: confirmed - self.confirmed]
            self.confirmed = confirmed
            self.sent = max(self.sent, confirmed)
        if not data:
            self.sent = self.confirmed
            self.end_told = False
        elif place <= self.received < place + len(data):
            self.input += data[self.received - place :]
            self.received = place + len(data)

    def on_runner(self) -> None:
        """Read from the runner."""
        data = os.read(self.from_runner, 1 << 20)
        if not data:
            self.runner_ended = time.monotonic()
        self.output += data

    def write_line(self) -> None:
        """Continue the current line, or start the next one."""
        if not self.line:
            start = self.sent - self.confirmed
            data = bytes(self.output[start : start + LINE_BYTES])
            self.line = encode_line(f"{LINE_MARK} {self.sent}", data)
            self.sent += len(data)
            self.end_told = not data
        self.line = self.line[os.write(self.sink, self.line) :]


def encode_line(head: str, data: bytes) -> bytes:
    """Return a line of the stream."""
    return b"%s %s\n" % (head.encode("ascii"), base64.b64encode(data))


def drop_capabilities() -> None:
    """As root, keep only a container's capabilities, so that commands cannot inspect this process or the runner."""
    if os.getuid() != 0:
        return
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: without CAP_SYS_PTRACE nobody opens our descriptors or memory
        for capability in range(64):
            if capability not in KEPT_CAPABILITIES:
                prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: takes effect when the runner is executed
    except (ImportError, OSError, AttributeError):
        pass  # not Linux: nothing to drop


def serve(runner: str, workdir: str) -> None:
    """Start the runner, and relay its streams over the standard streams until it ends."""
    workdir = os.path.expanduser(workdir)
    try:
        os.makedirs(workdir, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"cannot make the workdir {workdir}: {error.strerror}") from None
    drop_capabilities()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", runner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin
    assert process.stdout
    to_runner, from_runner = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
    process.stdin.close()
    process.stdout.close()
    Relay(0, 1, from_runner, to_runner).run()
    sys.exit(process.wait())
