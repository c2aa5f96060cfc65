"""Cases of deadlines: `exec` returns within timeout, grace and slack, and a timeout leaves no process alive."""

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
