"""Cases of bounds: `exec` returns within its time, leaves no process alive, and keeps as much output as it says."""

import hashlib
import resource
import struct
import sys
from collections.abc import Callable
from functools import partial

from ...sandboxes import Sandbox
from ...types import ExecResult
from .case import (
    SLACK,
    Background,
    Opener,
    case,
    check_refused,
    eventually,
    loss_of,
    new_marker,
    ok,
    processes_inside,
    python,
    run_all,
)

FORK_CHAIN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
end = time.time() + 15
while time.time() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.01)
"""

X86_CHAIN = bytes.fromhex(
    "bb204e00006a015889c7488d350000000089c20f05"  # 20000 times: write a byte
    "6a39580f0585c078f77504ffcb75e1"  # fork, until it succeeds; the child goes on
    "6a3c5831ff0f05"  # end
)
"""Machine code whose processes live for less time than a look takes. They need no memory that a fork would copy."""

HALF_ENDED = """
import ctypes, os, threading, time
def work():
    for _ in range(3000):
        time.sleep(0.01)
        os.write(1, b".")
os.setsid()
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""
"""Its first thread ends, alone: the list of processes shows a zombie."""

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    time.sleep(300)
time.sleep(300)
"""


def run_into_timeout(
    make: Opener, sandbox: Sandbox, command: str | list[str], *, timeout: float = 1.0, grace: float = 0.3
) -> ExecResult:
    """Run a command and assert that it times out within its deadline."""
    with make.within(timeout + grace + SLACK, f"{command!r} with timeout={timeout:g}"):
        result = sandbox.exec(command, timeout=timeout, grace=grace)
    assert result.timed_out, f"not marked as timed out: {result}"
    assert not result.ok, result
    assert result.duration >= timeout * 0.9, f"ended before its timeout: {result}"
    return result


def check_nobody_survives(make: Opener, command: str) -> None:
    """Run a command into its timeout and assert that no process with MARKER in its arguments survives."""
    sandbox = make()
    marker = new_marker()
    run_into_timeout(make, sandbox, command.replace("MARKER", marker))
    left = processes_inside(sandbox, marker)
    assert not left, f"{len(left)} processes survived the timeout of {command!r}"
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("deadlines")
def timeout_is_a_result(make: Opener, sandbox: Sandbox) -> None:
    """A timeout is a result with the output so far; the next command runs at once."""
    result = run_into_timeout(make, sandbox, "echo before; echo error >&2; sleep 60; echo after", timeout=0.5)
    assert (result.text, result.error_text) == ("before\n", "error\n"), result
    assert result.exit_code is None, result
    with make.within(SLACK, "the command after a timeout"):
        assert ok(sandbox.exec("echo on")).text == "on\n"


@case("deadlines", "threads")
def commands_are_ended_from_another_thread(make: Opener, sandbox: Sandbox) -> None:
    """`end_processes` spares a running command unless it is asked to end it; then `exec` returns what it printed."""
    marker = new_marker()
    running = Background(partial(sandbox.exec, f"echo before; (sleep {marker} &); sleep {marker}", timeout=120))
    eventually(lambda: len(processes_inside(sandbox, marker)) >= 2, 10 + SLACK, "the command started")
    sandbox.end_processes()
    assert not running.wait(0.2), "a running command was not spared"
    with make.within(SLACK, "ending a command"):
        sandbox.end_processes(commands=True)
        result = running.result(20)
    assert (result.text, result.signal, result.timed_out) == ("before\n", 9, False), result
    assert not processes_inside(sandbox, marker)
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("deadlines")
def very_short_timeout(make: Opener, sandbox: Sandbox) -> None:
    """A timeout of 0.01 s holds."""
    for command in ("sleep 60", ["sleep", "60"]):
        with make.within(0.01 + SLACK, "timeout=0.01"):
            assert sandbox.exec(command, timeout=0.01, grace=0).timed_out
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("deadlines")
def grace_is_for_cleaning_up(make: Opener, sandbox: Sandbox) -> None:
    """A timeout sends SIGTERM; a command that handles it ends by itself within the grace, and still timed out."""
    handler = "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    with make.within(1 + SLACK, "a command that ends at SIGTERM, with a grace of 20 s"):
        result = sandbox.exec(handler, timeout=1, grace=20)
    assert result.timed_out, result
    assert (result.exit_code, result.text) == (3, "ready\ncleaned\n"), result


@case("deadlines")
def ending_just_in_time_is_no_timeout(make: Opener) -> None:
    """A command that ends before its timeout did not time out, even if its children still run."""
    result = ok(make().exec("sleep 0.5; sleep 60 & echo done", timeout=5))
    assert (result.text, result.timed_out) == ("done\n", False), result


@case("deadlines", "hostile")
def kills_what_ignores_signals(make: Opener) -> None:
    """A busy loop that ignores SIGTERM, SIGINT and SIGHUP is dead at the deadline."""
    check_nobody_survives(make, "trap '' TERM INT HUP; : MARKER; while :; do :; done")


@case("deadlines")
def kills_children(make: Opener) -> None:
    """Children and grandchildren of a timed-out command are dead."""
    check_nobody_survives(make, "sleep MARKER & (sleep MARKER & sleep MARKER) & sh -c 'sleep MARKER; :'")


@case("deadlines", "hostile")
def kills_new_sessions(make: Opener) -> None:
    """Children in sessions of their own are dead."""
    check_nobody_survives(make, "setsid sleep MARKER & setsid sh -c 'setsid sleep MARKER; :' & sleep MARKER")


@case("deadlines", "hostile")
def kills_daemons(make: Opener) -> None:
    """A daemon that forked twice and closed every stream is dead."""
    check_nobody_survives(make, f"python3 -c '{DAEMON}' MARKER")


@case("deadlines", "hostile")
def kills_nohup(make: Opener) -> None:
    """Processes protected from a terminal by `nohup` and `disown` are dead."""
    check_nobody_survives(make, "nohup sleep MARKER >/dev/null 2>&1 & disown; (nohup sleep MARKER &) ; sleep MARKER")


@case("deadlines", "hostile")
def kills_daemons_without_environment(make: Opener) -> None:
    """A daemon with an empty environment, whose parents are gone, is dead."""
    check_nobody_survives(make, "(env -i setsid sleep MARKER >/dev/null 2>&1 </dev/null &) ; sleep MARKER")


@case("deadlines", "hostile")
def kills_what_runs_away(make: Opener, sandbox: Sandbox) -> None:
    """A process that forks endlessly, each time in a new session, is dead."""
    marker = new_marker()
    command = ["bash", "-c", 'python3 -c "$1" "$2" & sleep 300', "bash", FORK_CHAIN, marker]
    run_into_timeout(make, sandbox, command)
    left = processes_inside(sandbox, marker) + processes_inside(sandbox, marker)
    assert not left, "a process that forks endlessly survived the timeout"


def program_of(code: bytes) -> bytes:
    """Return a program for Linux on x86-64 that is this machine code alone."""
    size, base = 120 + len(code), 1 << 22
    kind = b"\x7fELF\x02\x01\x01"
    head = struct.pack("<16sHHIQQQIHHHHHH", kind, 2, 62, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096) + code


def check_beats_end(make: Opener, sandbox: Sandbox, program: str, tries: int) -> None:
    """Assert that neither `end_processes` nor a timeout leaves a program alive that prints without end."""
    command = f"{program} >beats 2>&1 & until [ -s beats ]; do sleep 0.01; done"
    for number in range(2 * tries):
        if number % 2:
            run_into_timeout(make, sandbox, f"{command}; sleep 60", timeout=0.5)
        else:
            ok(sandbox.exec(command, timeout=20))
            assert sandbox.end_processes(), "it says that processes are left"
        before = sandbox.read_file("beats")
        ok(sandbox.exec("sleep 0.1"))
        assert sandbox.read_file("beats") == before, f"it survived {'a timeout' if number % 2 else 'end_processes'}"


@case("deadlines", "hostile")
def kills_a_chain_of_forks(make: Opener, sandbox: Sandbox) -> None:
    """Processes that each start the next one and end at once are dead after `end_processes` and after a timeout."""
    if ok(sandbox.exec("uname -m")).text == "x86_64\n":
        sandbox.write_file("chain", program_of(X86_CHAIN), mode=0o755)
        check_beats_end(make, sandbox, "setsid ./chain", tries=2)


@case("deadlines", "hostile")
def kills_what_half_ended(make: Opener, sandbox: Sandbox) -> None:
    """A process whose first thread has ended, and is listed as a zombie, is dead too."""
    check_beats_end(make, sandbox, f"python3 -c '{HALF_ENDED}'", tries=1)


@case("deadlines", "hostile")
def pipe_holders_do_not_delay_a_timeout(make: Opener) -> None:
    """A timeout is on time even if children in other sessions hold the pipes and ignore SIGTERM."""
    holders = "setsid sleep MARKER & (setsid sleep MARKER &)"
    check_nobody_survives(make, f"trap '' TERM; {holders} ; sleep MARKER; sleep MARKER")


@case("deadlines", "hostile")
def stopped_command(make: Opener) -> None:
    """A command that stops itself with SIGSTOP is dead at the deadline."""
    check_nobody_survives(make, "sleep MARKER & kill -STOP $!; kill -STOP $$; sleep MARKER")


@case("deadlines")
def closed_streams(make: Opener, sandbox: Sandbox) -> None:
    """A command may close its streams before it ends, and may end before its streams are closed."""
    result = sandbox.exec("exec >&- 2>&-; sleep 0.5; exit 4")
    assert (result.exit_code, result.timed_out) == (4, False), result
    assert result.duration >= 0.4, result
    run_into_timeout(make, sandbox, "exec >&- 2>&- <&-; sleep 60", timeout=0.5)


@case("deadlines")
def reading_for_ever(make: Opener) -> None:
    """A command that reads from a pipe without a writer runs into its timeout."""
    run_into_timeout(make, make(), "mkfifo pipe; cat pipe", timeout=0.5)


@case("deadlines", "threads")
def timeout_spares_the_others(make: Opener, sandbox: Sandbox) -> None:
    """A timeout kills only its own command's processes, not concurrent commands or servers of other commands."""
    before, meanwhile = new_marker(), new_marker()
    ok(sandbox.exec(f"sleep {before} >/dev/null 2>&1 & setsid sleep {before} & echo started"))
    beside = Background(lambda: sandbox.exec("sleep 2; echo done", timeout=20))
    timed = Background(lambda: run_into_timeout(make, sandbox, "touch timed; setsid sleep 60 & sleep 60", timeout=1))
    eventually(lambda: sandbox.exec("test -e timed").ok, 10, "the command that will time out has started")
    ok(sandbox.exec(f"sleep {meanwhile} & echo started"))
    timed.result(20)
    assert ok(beside.result(20)).text == "done\n", "the concurrent command was killed"
    assert len(processes_inside(sandbox, before)) == 2, "servers of earlier commands were killed"
    assert len(processes_inside(sandbox, meanwhile)) == 1, "another command's server was killed"


@case("deadlines", "threads")
def many_timeouts_at_once(make: Opener, sandbox: Sandbox) -> None:
    """Sixteen concurrent commands time out, each by its deadline."""
    marker = new_marker()
    with make.within(1 + 0.3 + SLACK, "16 timeouts of 1 s"):
        running = [
            Background(lambda: sandbox.exec(f"setsid sleep {marker} & sleep {marker}", timeout=1, grace=0.3))
            for _ in range(16)
        ]
        results = [background.result(20) for background in running]
    assert all(result.timed_out for result in results), results
    assert not processes_inside(sandbox, marker), "processes survived"


@case("deadlines", "hostile")
def stopped_runner(make: Opener, sandbox: Sandbox) -> None:
    """A command that stops its parent cannot block the caller: a result, or `SandboxLost`, by the deadline."""
    with make.within(1 + 0.3 + SLACK + 0.5, "a command that stops its parent, and destroying what it stopped"):
        loss = loss_of(lambda: sandbox.exec("kill -STOP $PPID; sleep 60", timeout=1, grace=0.3))
    if loss is None:
        assert ok(sandbox.exec("echo on")).text == "on\n"
    else:
        assert (loss.reason, sandbox.closed) == ("unresponsive", True), loss


@case("deadlines")
def file_calls_have_deadlines(make: Opener, sandbox: Sandbox) -> None:
    """Reading a pipe or an endless device is refused or times out; the sandbox can be closed."""
    ok(sandbox.exec("mkfifo pipe"))
    for path in ("pipe", "/dev/zero"):
        with make.within(5 + SLACK, f"reading {path} with timeout=5"):
            check_refused(OSError, partial(sandbox.read_file, path, max_bytes=1 << 20, timeout=5), f"reading {path}")
    assert python(sandbox, "print('on')") == "on\n"


MIB = 1 << 20
CLIENT_GROWTH = 50 * MIB


def check_cut(result: ExecResult, total: int, limit: int) -> None:
    """Assert that a stream of `total` bytes was truncated to `limit` and counted."""
    assert len(result.stdout) <= limit, f"{len(result.stdout)} bytes kept of at most {limit}"
    assert len(result.stdout) >= limit // 2, f"only {len(result.stdout)} bytes kept of {limit}"
    assert result.stdout_dropped + len(result.stdout) >= total, f"{result.stdout_dropped} dropped of {total}"
    assert result.stdout_dropped <= total, f"{result.stdout_dropped} dropped of {total}"


def client_peak() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@case("output")
def any_bytes(sandbox: Sandbox) -> None:
    """Output is bytes: invalid UTF-8, NULs, carriage returns and a missing final newline are returned unchanged."""
    for text in (b"\xff\xfe\x80", b"a\r\nb\rc", b"\x00" * 100, "é😀".encode(), b"no newline", bytes(range(256)) * 300):
        assert ok(sandbox.exec("cat", stdin=text)).stdout == text


@case("output")
def characters_across_chunks(sandbox: Sandbox) -> None:
    """A four-byte character stays whole across chunks."""
    for size in (4096, 8192, 32768, 65536):
        for before in (1, 2, 3):
            text = "x" * (size - before) + "😀é" * 3
            program = "import sys; sys.stdout.write(sys.stdin.read())"
            result = ok(sandbox.exec(["python3", "-c", program], stdin=text.encode()))
            assert result.text == text, f"a character at {size - before} was damaged"


@case("output")
def limit_is_exact(sandbox: Sandbox) -> None:
    """Output up to the limit is whole; one more byte is dropped and counted; a limit of 0 keeps nothing."""
    for size in (99, 100):
        result = ok(sandbox.exec(f"head -c {size} /dev/zero", max_output=100))
        assert (result.stdout, result.stdout_dropped) == (b"\0" * size, 0), result
    check_cut(ok(sandbox.exec("head -c 101 /dev/zero", max_output=100)), 101, 100)
    result = ok(sandbox.exec("echo hidden; echo hidden >&2", max_output=0))
    assert (result.stdout, result.stderr) == (b"", b""), result
    assert (result.stdout_dropped, result.stderr_dropped) == (7, 7), result


@case("output")
def both_ends_are_kept(sandbox: Sandbox) -> None:
    """Long output keeps the first quarter and the last three quarters of the limit, on either stream."""
    whole = "".join(f"{number}\n" for number in range(1, 50_001))
    result = ok(sandbox.exec("seq 50000", max_output=4000))
    check_cut(result, len(whole), 4000)
    assert result.text.startswith(whole[:900]), "the head is missing"
    assert result.text.endswith(whole[-2900:]), "the tail is missing"
    errors = ok(sandbox.exec("seq 50000 >&2", max_output=4000))
    assert (errors.stderr, errors.stderr_dropped) == (result.stdout, result.stdout_dropped), errors


@case("output", "slow")
def flood_that_ends(sandbox: Sandbox) -> None:
    """100 MB on one line and 100 MB of NULs neither block nor end the command, nor fill this process's memory."""
    before = client_peak()
    size = 100_000_000
    for command in (f"head -c {size} /dev/zero | tr '\\0' x", f"head -c {size} /dev/zero"):
        result = ok(sandbox.exec(command, max_output=100_000, timeout=25))
        check_cut(result, size, 100_000)
    assert client_peak() - before < CLIENT_GROWTH, f"this process grew by {(client_peak() - before) // MIB} MiB"


@case("output")
def flood_that_does_not_end(make: Opener, sandbox: Sandbox) -> None:
    """An endless output runs into the timeout; both ends are kept."""
    before = client_peak()
    with make.within(1 + 1 + 2, "an endless flood with timeout=1"):
        result = sandbox.exec("echo first; yes", timeout=1, max_output=100_000)
    assert result.timed_out, result
    assert result.stdout.startswith(b"first\ny\n"), result.stdout[:20]
    assert result.stdout.endswith((b"y\n", b"y")), result.stdout[-20:]
    assert result.stdout_dropped > 0, result
    assert client_peak() - before < CLIENT_GROWTH, f"this process grew by {(client_peak() - before) // MIB} MiB"
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("output")
def flood_on_standard_error(make: Opener) -> None:
    """A flood on one stream blocks neither the other nor the reply."""
    result = ok(make().exec("head -c 20000000 /dev/zero >&2; echo done", max_output=1000, timeout=20))
    assert result.text == "done\n", result
    assert result.stderr_dropped == 20_000_000 - len(result.stderr), result


@case("output")
def flood_from_a_child(make: Opener, sandbox: Sandbox) -> None:
    """A child that floods after its command has ended disturbs nothing."""
    with make.within(3, "a command that leaves a flooding child"):
        assert ok(sandbox.exec("yes & echo started", max_output=10)).stdout_dropped >= 0
    for number in range(10):
        assert ok(sandbox.exec(f"echo {number}")).text == f"{number}\n"


@case("output", "threads")
def floods_at_the_same_time(sandbox: Sandbox) -> None:
    """Four floods and a quiet command run concurrently; all end, and no output is mixed up."""
    size = 10_000_000

    def flood(letter: str) -> None:
        result = ok(sandbox.exec(f"head -c {size} /dev/zero | tr '\\0' {letter}", max_output=50_000, timeout=25))
        check_cut(result, size, 50_000)
        assert set(result.text) == {letter}, "the output of another command is mixed in"

    def quiet() -> None:
        for number in range(20):
            assert ok(sandbox.exec(f"echo {number}")).text == f"{number}\n"

    works: list[Callable[[], None]] = [quiet, *(partial(flood, letter) for letter in "abcd")]
    run_all(works)


@case("output")
def large_output_comes_whole(sandbox: Sandbox) -> None:
    """16 MB within the limit are returned byte for byte."""
    digest = ok(sandbox.exec("head -c 16M /dev/urandom > random && sha256sum random")).text.split()[0]
    result = ok(sandbox.exec("cat random", max_output=32 * MIB))
    assert (len(result.stdout), result.stdout_dropped) == (16 * MIB, 0), result.stdout_dropped
    assert hashlib.sha256(result.stdout).hexdigest() == digest, "the 16 MB differ"
