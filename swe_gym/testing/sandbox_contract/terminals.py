"""Cases of pseudo-terminals: input, output, signals, closing."""

import contextlib
import time
from functools import partial

from ...errors import SandboxClosed, SandboxError
from ...sandboxes import Pty, Sandbox
from .case import (
    CANCEL_SECONDS,
    SLACK,
    Background,
    Opener,
    case,
    check_refused,
    eventually,
    new_marker,
    ok,
    processes_inside,
)

ECHO_LINES = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    print("got", line.strip(), flush=True)
"""

SUM_LINES = """
import sys
print("ready", flush=True)
print("sum", sum(map(len, iter(sys.stdin.readline, "end\\n"))), flush=True)
"""


def read(pty: Pty, marker: bytes, timeout: float = 10.0) -> bytes:
    """Read up to a marker and assert that it comes."""
    text, found = pty.read_until(marker, timeout=timeout)
    assert found, f"{marker!r} is missing: {text[-500:]!r}"
    return text


@case("terminals")
def terminal_dialogue(make: Opener) -> None:
    """Input arrives, output is returned, and input is not echoed."""
    with make() as sandbox:
        pty = sandbox.open_pty(["python3", "-c", ECHO_LINES])
        assert read(pty, b"ready\r\n") == b"ready\r\n"
        for word in (b"one", b"two", b"three"):
            pty.write(word + b"\n")
            assert read(pty, b"\r\n") == b"got " + word + b"\r\n"
        pty.close()


@case("terminals")
def typing_at_once(make: Opener) -> None:
    """Input right after opening a terminal is not echoed either."""
    with make() as sandbox:
        for _ in range(20):
            pty = sandbox.open_pty("read line; echo got $line")
            pty.write(b"early\n")
            assert read(pty, b"got early\r\n") == b"got early\r\n"
            pty.close()


@case("terminals")
def terminal_is_a_terminal(make: Opener) -> None:
    """The process has its own terminal, with the requested size, folder and environment."""
    sandbox = make(env={"FROM_SPEC": "spec"})
    ok(sandbox.exec("mkdir sub"))
    script = 'test -t 0 -a -t 1 -a -t 2 && : </dev/tty && stty size && pwd && echo "$FROM_SPEC $MINE" && echo end'
    pty = sandbox.open_pty(script, rows=33, columns=123, cwd="sub", env={"MINE": "call"})
    lines = read(pty, b"end\r\n").decode().splitlines()
    assert lines == ["33 123", f"{sandbox.workdir}/sub", "spec call", "end"], lines


@case("terminals")
def marker_in_pieces(make: Opener) -> None:
    """A marker is found across chunks, and after a false start."""
    script = (
        "import os, time\n"
        "for piece in (b'(Pdb', b'(Pd', b'b', b') ', b'rest\\n', b'x' * 70001, b'(P', b'db) '):\n"
        "    os.write(1, piece)\n    time.sleep(0.05)\n"
    )
    pty = make().open_pty(["python3", "-c", script])
    assert read(pty, b"(Pdb) ") == b"(Pdb(Pdb) "
    text = read(pty, b"(Pdb) ")
    assert text.replace(b"\r", b"") == b"rest\n" + b"x" * 70001 + b"(Pdb) ", text[-50:]


@case("terminals")
def rest_stays_for_the_next_read(make: Opener) -> None:
    """Output after the marker stays for the next read."""
    pty = make().open_pty("printf 'a>b>c>d'; sleep 60")
    assert [read(pty, b">") for _ in range(3)] == [b"a>", b"b>", b"c>"]
    assert pty.read_until(b">", timeout=0.2) == (b"d", False)


@case("terminals")
def reading_ends_at_its_timeout(make: Opener) -> None:
    """Without its marker, a read ends at its timeout and no output is lost."""
    pty = make().open_pty("echo first; read line; echo second; sleep 60")
    before = time.monotonic()
    with make.within(0.5 + SLACK, "read_until with timeout=0.5"):
        first, found = pty.read_until(b"never", timeout=0.5)
    assert not found
    assert time.monotonic() - before >= 0.4, "gave up before its timeout"
    pty.write(b"\n")
    assert first + read(pty, b"second\r\n") == b"first\r\nsecond\r\n"


@case("terminals")
def terminal_process_ends(make: Opener, sandbox: Sandbox) -> None:
    """When the process ends, a read returns at once with the rest, and the exit code is known."""
    for script, code in (("echo bye; exit 7", 7), ("echo bye; kill -9 $$", -9), ("echo bye", 0)):
        pty = sandbox.open_pty(script)
        with make.within(5, "reading to the end"):
            text, found = pty.read_until(b"never", timeout=20)
        assert (text, found, pty.exit_code) == (b"bye\r\n", False, code), (text, pty.exit_code)
        assert pty.read_until(b"never", timeout=5) == (b"", False)
        pty.close()
    pty = sandbox.open_pty("sleep 60")
    assert pty.exit_code is None


@case("terminals")
def terminal_command_that_cannot_start(sandbox: Sandbox) -> None:
    """An unknown command is an `OSError`, or exit code 127."""
    for command in (["no-such-command-at-all"], "no-such-command-at-all"):
        try:
            pty = sandbox.open_pty(command)
        except OSError:
            continue
        pty.read_until(b"never", timeout=5)
        assert pty.exit_code == 127, pty.exit_code
    ok(sandbox.exec("true"))


@case("terminals")
def interrupting(make: Opener) -> None:
    """A signal reaches the foreground process, and the session continues."""
    script = (  # sleeps briefly each time: a signal just before the system call would not end a long sleep
        "import time\n"
        "for turn in range(2):\n"
        "    try:\n        print('waiting', flush=True)\n        while True:\n            time.sleep(0.1)\n"
        "    except KeyboardInterrupt:\n        print('interrupted', flush=True)\n"
    )
    pty = make().open_pty(["python3", "-c", script])
    for _ in range(2):
        read(pty, b"waiting\r\n")
        pty.signal(2)
        assert b"interrupted" in read(pty, b"interrupted\r\n")
    pty.read_until(b"never", timeout=5)
    assert pty.exit_code == 0, pty.exit_code


@case("terminals")
def typing_much(make: Opener) -> None:
    """100 kB of lines arrive whole."""
    pty = make().open_pty(["python3", "-c", SUM_LINES])
    read(pty, b"ready\r\n")
    pty.write((b"z" * 79 + b"\n") * 1250 + b"end\n", timeout=20)
    assert read(pty, b"\r\n", timeout=20) == b"sum 100000\r\n"


@case("terminals")
def typing_to_nobody(make: Opener, sandbox: Sandbox) -> None:
    """Input to a process that does not read returns or raises by its timeout, and blocks nothing else."""
    pty = sandbox.open_pty("echo ready; sleep 60")
    read(pty, b"ready\r\n")
    with make.within(1 + SLACK, "typing to nobody with timeout=1"), contextlib.suppress(SandboxError):
        pty.write((b"z" * 79 + b"\n") * 5000, timeout=1)
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("terminals")
def terminal_flood(sandbox: Sandbox) -> None:
    """A terminal with endless output keeps at most the newest 1 MiB and disturbs no command."""
    pty = sandbox.open_pty("yes 0123456789; echo never")
    read(pty, b"0123456789\r\n")
    for number in range(10):
        assert ok(sandbox.exec(f"echo {number}")).text == f"{number}\n"
    text, found = pty.read_until(b"never", timeout=1)
    assert not found
    assert len(text) <= 1 << 20, len(text)
    pty.close()
    counted = sandbox.open_pty("seq 300000 | cat; sleep 1; echo the-end")  # cat makes it blocks, not lines
    text = read(counted, b"the-end\r\n", timeout=20)
    assert len(text) <= 1 << 20, len(text)
    assert text.endswith(b"299999\r\n300000\r\nthe-end\r\n"), text[-60:]


@case("terminals", "threads")
def several_terminals(sandbox: Sandbox) -> None:
    """Concurrent terminals and commands do not mix."""
    ptys = [sandbox.open_pty(f"while read line; do echo {number} $line; done") for number in range(4)]
    waiting = [Background(partial(read, pty, b"\r\n", 20)) for pty in ptys]
    assert ok(sandbox.exec("echo beside")).text == "beside\n"
    for number, pty in reversed(list(enumerate(ptys))):
        pty.write(f"line-{number}\n".encode())
    answers = [background.result(20) for background in waiting]
    assert answers == [f"{number} line-{number}\r\n".encode() for number in range(4)], answers


@case("terminals", "hostile")
def closing_a_terminal_kills(make: Opener, sandbox: Sandbox) -> None:
    """Closing a terminal, even twice, kills its process and everything that it started."""
    marker = new_marker()
    children = f"(setsid sleep {marker} &); nohup sleep {marker} &"
    pty = sandbox.open_pty(f"trap '' HUP TERM; {children} echo ready; while :; do sleep {marker}; done")
    read(pty, b"ready\r\n")
    eventually(lambda: len(processes_inside(sandbox, marker)) >= 3, 10, "everything has started")
    with make.within(SLACK, "closing a terminal"):
        pty.close()
        pty.close()
    eventually(lambda: not processes_inside(sandbox, marker), 2, "closing a terminal leaves no process")
    check_refused(SandboxError, lambda: pty.write(b"more\n"), "input to a closed terminal")
    ok(sandbox.exec("true"))


@case("terminals")
def closing_a_terminal_spares_the_others(sandbox: Sandbox) -> None:
    """Closing a terminal kills neither other terminals nor servers of commands."""
    first, second = (sandbox.open_pty("echo ready; read line; echo got $line; sleep 60") for _ in range(2))
    marker = new_marker()
    ok(sandbox.exec(f"sleep {marker} & echo started"))
    for pty in (first, second):
        read(pty, b"ready\r\n")
    first.close()
    second.write(b"it\n")
    assert read(second, b"\r\n") == b"got it\r\n"
    assert processes_inside(sandbox, marker), "a command's server was killed"


@case("terminals", "threads")
def closing_the_sandbox_ends_a_read(make: Opener, sandbox: Sandbox) -> None:
    """Closing the sandbox from another thread ends a waiting read within a second."""
    pty = sandbox.open_pty("echo ready; sleep 60")
    read(pty, b"ready\r\n")
    waiting = Background(lambda: pty.read_until(b"never", timeout=60))
    assert not waiting.wait(0.2), "the read did not wait"
    sandbox.close()
    with make.within(CANCEL_SECONDS, "a read while the sandbox is closed"):
        check_refused(SandboxClosed, lambda: waiting.result(20), "a read of a closed sandbox")
