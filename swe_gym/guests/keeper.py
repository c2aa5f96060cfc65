"""The first process of a test run. It alone knows the texts of counter-tests and signs the report.

The keeper forks before any code of the work is loaded: its child, the *session*, runs the tests. Before the first test
of a function that has counter-tests, the session forks once for each text of the function. The keeper gives a text only
after the answer to the one before, whoever asks. So whatever process answers must say how the tests of a text ended
having seen only the texts so far.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn
from os import getpid  # tests replace it

ORDER = "order"
HEAD = 8  # hexadecimal digits of a message's length
PR_SET_DUMPABLE = 4
PASSED = "passed"
OF_SESSION = ("absent", "started", "test", "group", "unsettled", "end")  # events that the session may report


def send(fd: int, message: "Any") -> None:
    data = json.dumps(message).encode()
    data = b"%08x" % len(data) + data
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int, end: "float | None" = None) -> "Any":
    """Return one message; None at the end of the stream, or at `end`, a monotonic time."""
    head = read_exactly(fd, HEAD, end)
    data = None if head is None else read_exactly(fd, int(head, 16), end)
    return None if data is None else json.loads(data.decode())


def read_exactly(fd: int, count: int, end: "float | None") -> "bytes | None":
    data = b""
    while len(data) < count:
        if end is not None and not select.select([fd], [], [], max(0, end - time.monotonic()))[0]:
            return None
        part = os.read(fd, count - len(data))
        if not part:
            return None
        data += part
    return data


def hide_memory() -> None:
    """Forbid other processes to read or trace this one, where the system can."""
    arguments = (PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        try:
            import _ctypes  # a third of the time that ctypes takes to import

            itself = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # typeshed wants a name
            _ctypes.call_function(_ctypes.dlsym(itself, "prctl"), arguments)
        except (ImportError, AttributeError, TypeError):  # another Python than CPython
            import ctypes

            ctypes.CDLL(None).prctl(*arguments)
    except (ImportError, OSError, AttributeError):
        pass


class Signer(object):
    """Signs by HMAC with SHA-256, without `hashlib`: to load OpenSSL takes longer than all signatures."""

    def __init__(self, key: bytes) -> None:
        for name in ("_sha2", "_sha256", "hashlib"):  # since Python 3.12; before; everywhere
            with contextlib.suppress(ImportError, AttributeError):
                sha256 = __import__(name).sha256
                break
        block = bytearray(key.ljust(64, b"\0"))
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def sign(self, data: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return bytes(outer.hexdigest().encode())


class Link(object):
    """The session's side: asks the keeper and tells it what happens."""

    def __init__(self, asks: int, answers: int) -> None:
        self.owner = getpid()
        self._asks, self._answers = asks, answers

    def tell(self, **event: object) -> None:
        """Report an event. A fork of the test process that forgot to end reports nothing."""
        if getpid() == self.owner:
            send(self._asks, {"event": event})

    def ask(self, **request: object) -> "Any":
        """Return the keeper's answer. Stale answers, which a killed twin did not read, are skipped."""
        request["nonce"] = nonce = os.urandom(8).hex()
        send(self._asks, request)
        while True:
            answer = receive(self._answers)
            if answer is None:
                os._exit(97)  # the keeper is gone
            if answer["nonce"] == nonce:
                return answer["answer"]

    def answer(self, group: int, ends: "dict[str, str]", error: str) -> None:
        """Say how the tests of the last text ended."""
        send(self._asks, {"played": group, "ends": ends, "error": error})

    def wait(self) -> "Any":
        """Return the keeper's first message; None if there is no order."""
        return receive(self._answers)


class Keeper(object):
    """Answers the session until it ends.

    Args:
        order: What the grader ordered: `key`, `report`, `groups` with their `texts`, and whether twins stop early.
    """

    def __init__(self, order: "dict[str, Any]") -> None:
        self._signer = Signer(bytes.fromhex(order["key"]))
        self._report = order["report"]
        self._groups = [dict(group, next=0, waits=False) for group in order["groups"]]
        self._started = False
        self._stops = order["stops"]
        self._lost = False  # whether an original failed, so that nothing is left to prove
        self._last = b""

    def write(self, **event: object) -> None:
        """Append one signed line to the report. Each signature covers the one before."""
        line = json.dumps(event, sort_keys=True).encode()
        self._last = self._signer.sign(self._last + line)
        try:
            fd = os.open(self._report, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, self._last + b" " + line + b"\n")
            os.close(fd)
        except OSError:
            pass  # a full disk: without this line, none of the later ones is believed

    def answer(self, request: "dict[str, Any]") -> object:
        if "begin" in request:
            return 0 if self._lost else len(self._group(request["begin"])["texts"])
        if "text" in request:
            return self._text(self._group(request["text"]))
        if "settle" in request:
            return self._settle(self._group(request["settle"]))
        return None

    def _answer(self, request: "dict[str, Any]") -> object:
        """The answer to a request; None to one that makes no sense, so that whoever asked does not wait."""
        try:
            return self.answer(request)
        except (ValueError, LookupError, TypeError):
            return None

    def _group(self, number: int) -> "dict[str, Any]":
        """A group by its number. Every group has one only: what is played under another one counts for nothing."""
        if type(number) is not int or number < 0:
            raise ValueError("not a number of a group")
        return self._groups[number]

    def _text(self, group: "dict[str, Any]") -> object:
        """The next text of a group; None until the one before is answered, and once there is nothing left to prove."""
        if self._lost or group["waits"] or group["next"] >= len(group["texts"]):
            return None
        group["waits"] = True
        return group["texts"][group["next"]]

    def _settle(self, group: "dict[str, Any]") -> object:
        """The original of a group that has been played. Once nothing is left to prove, it gets no more texts."""
        if self._lost and not group["waits"]:
            group["next"] = len(group["texts"])
        return group["plain"] if group["next"] == len(group["texts"]) else None

    def _take_event(self, event: "dict[str, Any]") -> None:
        """Take an event of the session. Once its runner was imported, nobody believes that there is none."""
        if event["event"] in OF_SESSION and not (self._started and event["event"] == "absent"):
            self._started = self._started or event["event"] == "started"
            self.write(**event)

    def _take_played(self, number: int, ends: "dict[str, str]", error: str) -> None:
        """Take the answer to the text of a group that waits for one."""
        group = self._group(number)
        if not group["waits"]:
            return
        self.write(event="twin", group=number, text=group["next"], ends=ends, error=error)
        failed = group["next"] in group["passing"] and not self._may_pass(group, ends)
        self._lost = self._lost or bool(error) or (self._stops and failed)
        group["waits"], group["next"] = False, group["next"] + 1

    @staticmethod
    def _may_pass(group: "dict[str, Any]", ends: "dict[str, str]") -> bool:
        """Whether no required test is known to have failed. Tests may be listed under other names than they report."""
        required = [ends[test] for test in group["required"] if test in ends]
        return set(required) <= {PASSED} and PASSED in ends.values()

    def serve(self, session: int, asked: int, answers: int) -> "NoReturn":
        """Answer requests until the session ends; then end as it did."""
        wakes, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ended, status = os.waitpid(session, os.WNOHANG)
        while True:
            ready = select.select([asked, wakes], [], [], 0 if ended else None)[0]
            if asked in ready:
                if not self._handle(asked, answers):
                    end_as(status if ended else os.waitpid(session, 0)[1])
            elif ended:
                end_as(status)
            else:
                os.read(wakes, 512)
                ended, status = os.waitpid(session, os.WNOHANG)

    def _handle(self, asked: int, answers: int) -> bool:
        """Handle one message. Return False at the end of the stream."""
        try:
            request = receive(asked, time.monotonic() + 5)
            if request is None:
                return bool(select.select([asked], [], [], 0)[0]) and bool(os.read(asked, 1))
            if "event" in request:
                self._take_event(request["event"])
            elif "played" in request:
                self._take_played(request["played"], request["ends"], request["error"])
            else:
                send(answers, {"nonce": request["nonce"], "answer": self._answer(request)})
        except Exception:  # noqa: BLE001  nonsense, which code of the work wrote
            return True
        return True


def end_as(status: int) -> "NoReturn":
    """End as another process did, given its wait status."""
    if os.WIFSIGNALED(status):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(os.WEXITSTATUS(status))


def split(folder: str) -> "tuple[Link, dict[str, Any]]":
    """Fork. The keeper stays here and does not return; the session gets its link and what it may know of the order."""
    sys.stdout.flush(), sys.stderr.flush()
    asked, asks = os.pipe()
    hears, answers = os.pipe()
    session = os.fork()
    if session:
        os.close(asks)
        os.close(hears)
        keep(folder, session, asked, answers)
    os.close(asked)
    os.close(answers)
    link = Link(asks, hears)
    known = link.wait()
    if known is None:
        sys.exit("the reporter has no order: a test command may run the tests only once")
    return link, known


def keep(folder: str, session: int, asked: int, answers: int) -> "NoReturn":
    hide_memory()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    path = os.path.join(folder, ORDER)
    try:
        with open(path) as file:
            order = json.load(file)
        os.unlink(path)
    except OSError:
        os.close(answers)
        end_as(os.waitpid(session, 0)[1])
    send(answers, order["known"])
    keeper = Keeper(order)
    keeper.write(event="began")
    keeper.serve(session, asked, answers)
