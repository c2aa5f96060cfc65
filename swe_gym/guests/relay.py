"""The program between the service's daemon and the runner: one byte stream over calls that may be cut or made twice.

The daemon of an E2B sandbox hands over what a process prints to whoever happens to listen, drops it when nobody does,
and may take the same input twice when a reply to it was lost. So both directions count bytes, as TCP does:

    swe-gym PLACE CONFIRMED BASE64      from the host
    swe-gym PLACE BASE64                to the host

PLACE is where in the sender's stream the data belongs; what was had before is ignored. CONFIRMED is how much the host
has of our stream; the rest we keep. A line of the host's without data asks for all that it lacks: it sends one each
time that it begins to listen. One of ours says that the runner has ended.

Lines of text, because the SDK takes output for UTF-8, and in its older versions input too. Who begins to listen in the
middle of a line sees one without the mark and skips it.

The host needs the same forms, so this file keeps to Python 3.6 and the standard library, and is sent as text.
"""

import base64
import os
import select
import subprocess
import sys
import time

LINE_MARK = "swe-gym"
GREETING = "swe-gym-relay"
"""The first line: that we are here."""

LINE_BYTES = 23 * 1024
"""With a head and a third more, a line still fits into the 32 KiB that the daemon reads at a time."""

CHUNK = 1 << 16
LAST_SECONDS = 5.0

KEPT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 10)
"""As in the Docker backend: chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service."""


class Relay:
    """The poll loop between four descriptors: from and to the host, from and to the runner."""

    def __init__(self, source: int, sink: int, from_runner: int, to_runner: int) -> None:
        self.source = source  # type: int | None
        self.sink = sink
        self.from_runner = from_runner
        self.to_runner = to_runner  # type: int | None
        for fd in (source, sink, from_runner, to_runner):
            os.set_blocking(fd, False)
        self.rest = b""  # of a line of the host's that has not come whole
        self.received = 0  # how much of the host's stream we have
        self.input = bytearray()  # of it, what the runner has not taken yet
        self.output = bytearray()  # of the runner's stream, what the host is not known to have
        self.confirmed = 0  # where in the runner's stream `output` begins
        self.sent = 0  # where in it the next line begins
        self.line = (GREETING + "\n").encode("ascii")  # being written
        self.runner_ended = None  # type: float | None
        self.end_told = False

    def run(self) -> None:
        """Serve until the runner has ended and the host was told all that it said."""
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
        """Whether there is something to say that no line has said yet."""
        ended = self.runner_ended is not None and not self.end_told
        return ended or self.sent < self.confirmed + len(self.output)

    def done(self) -> bool:
        """Whether all is over: the host knows that the runner ended, or had the time to ask."""
        if self.runner_ended is None:
            return False
        nobody_asks = self.source is None and not self.line and not self.untold()
        return nobody_asks or time.monotonic() > self.runner_ended + LAST_SECONDS

    def serve(self, fd: int) -> None:
        """Do what a descriptor is ready for."""
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
        """Tell the runner that nothing more will come: it kills what runs and ends."""
        if self.to_runner is not None:
            os.close(self.to_runner)
            self.to_runner = None

    def on_host(self) -> None:
        """Take what the host sent."""
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
                raise SystemExit("the host's stream is broken")
            self.on_line(int(parts[1]), int(parts[2]), base64.b64decode(parts[3]))

    def on_line(self, place: int, confirmed: int, data: bytes) -> None:
        """Forget what the host has, and take what is new; nothing at all asks for what it lacks."""
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
        """Take what the runner said."""
        data = os.read(self.from_runner, 1 << 20)
        if not data:
            self.runner_ended = time.monotonic()
        self.output += data

    def write_line(self) -> None:
        """Go on with the line that is being written, or begin the next one."""
        if not self.line:
            start = self.sent - self.confirmed
            data = bytes(self.output[start : start + LINE_BYTES])
            self.line = encode_line(f"{LINE_MARK} {self.sent}", data)
            self.sent += len(data)
            self.end_told = not data
        self.line = self.line[os.write(self.sink, self.line) :]


def encode_line(head: str, data: bytes) -> bytes:
    """A line of text."""
    return b"%s %s\n" % (head.encode("ascii"), base64.b64encode(data))


def give_up_powers() -> None:
    """As root, keep only what a container's root has, so that commands cannot look into us or the runner."""
    if os.getuid() != 0:
        return
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: without CAP_SYS_PTRACE nobody opens our descriptors or memory
        for capability in range(64):
            if capability not in KEPT_CAPABILITIES:
                prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: the runner, when it is executed, has it no more
    except (ImportError, OSError, AttributeError):
        pass  # not Linux: nothing to give up


def serve(runner: str, workdir: str) -> None:
    """Start the runner and pass its stream on over our standard streams until it ends."""
    workdir = os.path.expanduser(workdir)
    try:
        os.makedirs(workdir, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"cannot make the workdir {workdir}: {error.strerror}") from None
    give_up_powers()
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
