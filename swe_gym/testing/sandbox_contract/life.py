"""Cases of the lifecycle (starting, closing from any thread, leaving nothing behind) and of whole backends."""

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial

from ...errors import SandboxClosed, SandboxStartError, TaskError, Unsupported, UsageError
from ...sandboxes import ISOLATION_LEVELS, Finding, Sandbox
from ...types import FolderWorkspace
from .case import (
    CANCEL_SECONDS,
    CLOSE_SECONDS,
    SLACK,
    Background,
    Opener,
    case,
    check_refused,
    eventually,
    loss_of,
    new_marker,
    ok,
    processes_here,
    run_all,
)

FILL_WITH_FILES = """
import os, time
end = time.time() + 15  # fewer on a slow disk
for number in range(100000):
    if number % 1000 == 0:
        if time.time() > end:
            break
        os.mkdir("%d" % (number // 1000))
    os.close(os.open("%d/%d" % (number // 1000, number), os.O_CREAT))
for depth in range(300):
    os.mkdir("deep-folder")
    os.chdir("deep-folder")
"""


def every_call(sandbox: Sandbox) -> dict[str, Callable[[], object]]:
    """Return one call of each public method."""
    return {
        "exec": lambda: sandbox.exec("true"),
        "read_file": lambda: sandbox.read_file("file"),
        "write_file": lambda: sandbox.write_file("file", b""),
        "put_tar": lambda: sandbox.put_tar("", b""),
        "get_tar": lambda: sandbox.get_tar(""),
        "manifest": lambda: sandbox.manifest(),
        "open_pty": lambda: sandbox.open_pty("true"),
        "forward": lambda: sandbox.forward(0, lambda _: None),
    }


def close_while(make: Opener, sandbox: Sandbox, running: Background[object], what: str) -> None:
    """Close the sandbox and assert that the running call raises `SandboxClosed` within a second."""
    sandbox.close()
    with make.within(CANCEL_SECONDS, what):
        check_refused(SandboxClosed, lambda: running.result(20), what)


@case("life")
def capabilities_are_told(make: Opener, sandbox: Sandbox) -> None:
    """An open sandbox reports its backend, its isolation, its transport and its network."""
    told = sandbox.capabilities
    assert told.backend == sandbox.name, told
    assert told.isolation in ISOLATION_LEVELS, told
    assert told.transport, told
    assert len(sandbox.id) >= 8, sandbox.id
    assert sandbox.id != make().id


@case("life")
def demanded_isolation(make: Opener) -> None:
    """`min_isolation` is met or refused with `Unsupported`."""
    isolation = make().capabilities.isolation
    own = ISOLATION_LEVELS.index(isolation)
    for level in ISOLATION_LEVELS:
        if ISOLATION_LEVELS.index(level) <= own:
            assert make(min_isolation=level).capabilities.isolation == isolation
        else:
            try:
                stronger = make(min_isolation=level)
            except Unsupported:
                continue
            assert ISOLATION_LEVELS.index(stronger.capabilities.isolation) >= ISOLATION_LEVELS.index(level)


@case("life")
def unknown_options(make: Opener) -> None:
    """An unknown option is a `UsageError` that names it."""
    unknown = {"no_such_option_of_any_backend": 1}
    error = check_refused(UsageError, lambda: make(options=unknown), "an unknown option")
    assert "no_such_option_of_any_backend" in str(error), error


@case("life")
def short_start_timeout(make: Opener) -> None:
    """A start that exceeds `start_timeout` is a timely `SandboxStartError` with that reason."""
    reason = "timeout"
    with make.within(0.001 + SLACK, "starting with start_timeout=0.001"):
        try:
            make(start_timeout=0.001)
        except SandboxStartError as error:
            reason = error.reason
    assert reason == "timeout", reason


@case("life", "workspace")
def missing_workspace(make: Opener) -> None:
    """A missing workspace is a `TaskError`."""
    missing = FolderWorkspace(path="/no/such/folder/anywhere")
    check_refused(TaskError, lambda: make(workspace=missing), "a missing workspace")


@case("life")
def time_to_live(make: Opener) -> None:
    """A sandbox ends itself after its `ttl`; later calls report that it expired."""
    sandbox = make(ttl=1.5)
    marker = new_marker()
    with make.within(1.5 + SLACK, "a command that outlives its sandbox"):
        loss = loss_of(lambda: sandbox.exec(f"setsid sleep {marker} & sleep 60", timeout=60))
    assert loss is not None, "the sandbox outlived its ttl"
    assert loss.reason == "expired", loss.reason
    eventually(lambda: not processes_here(marker), 2, "processes outlived their sandbox")
    idle = make(ttl=0.5)
    threading.Event().wait(1.0)
    loss = loss_of(lambda: idle.exec("true"))
    assert loss is not None, "the sandbox outlived its ttl"
    assert loss.reason == "expired", loss.reason


@case("life")
def demanded_user(make: Opener) -> None:
    """`user` runs the commands, or is refused with `Unsupported`."""
    try:
        sandbox = make(user="nobody")
    except Unsupported:
        return
    assert ok(sandbox.exec("id -un")).text == "nobody\n"


@case("life")
def before_start_and_after_close(sandbox: Sandbox) -> None:
    """Every call on a sandbox that is not open raises `SandboxClosed`; a closed one cannot start again."""
    sandbox.close()
    assert sandbox.closed
    unstarted = type(sandbox)(sandbox.spec)
    for box in (sandbox, unstarted):
        for name, call in every_call(box).items():
            check_refused(SandboxClosed, call, f"{name} on {box}")
    check_refused(SandboxClosed, sandbox.start, "starting again")
    unstarted.close()
    check_refused(SandboxClosed, unstarted.start, "starting after close")


@case("life", "threads")
def closing_twice_and_together(make: Opener, sandbox: Sandbox) -> None:
    """`close` may be called again, and by eight threads at once; it never raises and is bounded."""
    with make.within(CLOSE_SECONDS, "closing from eight threads"):
        run_all([sandbox.close] * 8, 20)
    sandbox.close()
    assert sandbox.closed


@case("life", "threads")
def closing_ends_a_command(make: Opener, sandbox: Sandbox) -> None:
    """A running command raises `SandboxClosed` within a second of `close`, and its processes are dead."""
    marker = new_marker()
    command = f"trap '' TERM; setsid sleep {marker} & touch running; while :; do sleep {marker}; done"
    running: Background[object] = Background(lambda: sandbox.exec(command, timeout=60))
    eventually(lambda: sandbox.exec("test -e running").ok, 10, "the command runs")
    close_while(make, sandbox, running, "a command while the sandbox is closed")
    eventually(lambda: not processes_here(marker), 2, "processes outlived their sandbox")


@case("life", "threads")
def closing_ends_many_commands(make: Opener, sandbox: Sandbox) -> None:
    """Sixteen running calls all raise `SandboxClosed` within a second of `close`."""
    running = [
        Background(partial(sandbox.exec, f"touch running-{number}; sleep 60", timeout=90)) for number in range(16)
    ]
    eventually(lambda: sandbox.exec("test $(ls running-* | wc -l) = 16").ok, 10, "all 16 commands run")
    sandbox.close()
    with make.within(CANCEL_SECONDS, "16 commands while the sandbox is closed"):
        for background in running:
            check_refused(SandboxClosed, partial(background.result, 20), "a command")


@case("life", "threads")
def closing_ends_file_calls(make: Opener, sandbox: Sandbox) -> None:
    """Reading and writing in other threads raise `SandboxClosed` within a second of `close`."""
    data = b"x" * 5_000_000
    sandbox.write_file("file", data)
    turns = threading.Semaphore(0)

    def read_on() -> None:
        while True:
            assert sandbox.read_file("file") == data, "a torn read"
            turns.release()

    def write_on() -> None:
        while True:
            sandbox.write_file("other", data)
            turns.release()

    running = [Background(read_on), Background(write_on)]
    for _ in range(6):
        assert turns.acquire(timeout=20), "reading and writing have stopped"
    sandbox.close()
    with make.within(CANCEL_SECONDS, "file calls while the sandbox is closed"):
        for background in running:
            check_refused(SandboxClosed, partial(background.result, 20), "a file call")


@case("life", "threads", budget=500.0)
def closing_at_any_moment(make: Opener) -> None:
    """A busy sandbox that is closed at twelve different moments gives only results and `SandboxClosed`."""
    pause = threading.Event()
    for moment in range(12):
        sandbox = make()

        def use(box: Sandbox = sandbox) -> None:
            while True:
                ok(box.exec("echo x"))
                box.write_file("f", b"y")
                assert box.read_file("f") == b"y"

        running: Background[object] = Background(use)
        pause.wait(moment * 0.005)
        close_while(make, sandbox, running, "calls while the sandbox is closed")


@case("life", "hostile")
def killed_from_inside(make: Opener, sandbox: Sandbox) -> None:
    """A command that kills its parent gives a result or `SandboxLost` by the deadline, and nothing survives."""
    marker = new_marker()
    with make.within(1 + 1 + SLACK, "a command that kills its parent"):
        loss = loss_of(lambda: sandbox.exec(f"setsid sleep {marker} & kill -9 $PPID; sleep 60", timeout=1))
    if loss is None:
        assert ok(sandbox.exec("echo on")).text == "on\n"
    else:
        assert sandbox.closed, "a lost sandbox must be closed"
        check_refused(SandboxClosed, lambda: sandbox.exec("true"), "a call after the loss")
    sandbox.close()
    eventually(lambda: not processes_here(marker), 2, "processes outlived their sandbox")


@case("life")
def nothing_is_left_open(make: Opener) -> None:
    """Opening, using and closing sandboxes leaks no thread and no descriptor."""

    def use() -> None:
        sandbox = make()
        ok(sandbox.exec("true"))
        with contextlib.suppress(OSError):
            sandbox.read_file("nothing")
        sandbox.open_pty("sleep 60")
        sandbox.close()

    use()  # a permanent helper process is not a leak
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(4):
        use()
    eventually(
        lambda: (
            (threading.active_count(), len(os.listdir("/proc/self/fd"))) <= before
            and len(os.listdir("/proc/self/fd")) <= before[1]
        ),
        2,
        f"threads and descriptors were {before} and are more after four sandboxes",
    )


@case("life")
def eight_sandboxes_at_once(make: Opener) -> None:
    """Eight threads open, use and close eight sandboxes concurrently."""

    def one(number: int) -> None:
        sandbox = make()
        sandbox.write_file("file", str(number).encode())
        assert ok(sandbox.exec("cat file")).text == str(number)
        sandbox.close()

    run_all([partial(one, number) for number in range(8)])


@case("life", "slow", budget=500.0)
def closing_a_hundred_thousand_files(make: Opener, sandbox: Sandbox) -> None:
    """A sandbox full of files, deep folders and locked folders closes within its deadline."""
    ok(sandbox.exec(["python3", "-c", FILL_WITH_FILES], timeout=40))
    ok(sandbox.exec("mkdir -p lock/in/side && touch lock/in/side/file && chmod 000 lock/in/side lock/in lock"))
    if sandbox.capabilities.isolation in ISOLATION_LEVELS[ISOLATION_LEVELS.index("namespace") :]:
        sandbox.exec("touch pinned && chattr +i pinned")  # fails without privileges
    with make.within(CLOSE_SECONDS, "closing a sandbox with 100,000 files"):
        sandbox.close()


def problems(findings: list[Finding]) -> list[Finding]:
    """Return the findings that keep sandboxes from starting, or that have no fix."""
    return [found for found in findings if not found.works and (found.needed or not found.fix)]


@case("backend")
def the_class_makes_what_is_open(sandbox: Sandbox) -> None:
    """`for_spec` makes a sandbox of the same backend, which is not started."""
    another = type(sandbox).for_spec(sandbox.spec)
    assert another.name == sandbox.name
    assert another.id != sandbox.id
    another.close()


@case("backend")
def check_passes_if_a_sandbox_starts(sandbox: Sandbox) -> None:
    """`check` finds nothing wrong with the description of a sandbox that runs, and leaves that one alone."""
    assert problems(type(sandbox).check([sandbox.spec, sandbox.spec])) == []
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("backend", budget=500.0)
def diagnosis_of_a_backend_that_works(sandbox: Sandbox) -> None:
    """`diagnose` finds all that sandboxes need, and has a fix for what else does not work."""
    assert problems(type(sandbox).diagnose(sandbox.spec.options)) == []


@case("backend")
def sweep_leaves_open_sandboxes(sandbox: Sandbox) -> None:
    """`sweep` returns names or None, and does not touch a sandbox whose client lives."""
    swept = type(sandbox).sweep(sandbox.spec.options)
    assert swept is None or all(isinstance(name, str) and sandbox.id not in name for name in swept), swept
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("backend")
def class_methods_check_options(sandbox: Sandbox) -> None:
    """`diagnose` and `sweep` refuse an unknown option with a `UsageError`, or do nothing at all."""
    for method, nothing in ((type(sandbox).diagnose, []), (type(sandbox).sweep, None)):
        try:
            found = method({**sandbox.spec.options, "no_such_option": 1})
        except UsageError:
            continue
        assert found == nothing, f"{method.__name__} ignored an unknown option: {found}"
