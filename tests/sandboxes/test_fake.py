import io
import json
import socket
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from swe_gym.errors import (
    FileError,
    MissingFile,
    NoPermission,
    NotAFile,
    SandboxClosed,
    SandboxError,
    SandboxLost,
    SandboxStartError,
    SweGymError,
    Unsupported,
    UsageError,
)
from swe_gym.sandboxes import Connection, SandboxSpec, make_spec, open_sandbox
from swe_gym.sandboxes.fake import FakeSandbox, Fault, Reply


def opened(**options: object) -> FakeSandbox:
    return FakeSandbox(**options).start()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run `work` beside the test; the list gets its result or its exception."""
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(work())
        except SweGymError as error:
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ends


# --- replies ------------------------------------------------------------------------------------------


def test_a_script_given_as_json_works_through_the_spec() -> None:
    options = json.loads(
        """{"files": {"calc.py": "x = 1\\n"},
            "replies": [{"match": "pytest", "stdout": "1 failed", "stderr": "oh", "exit_code": 1}],
            "default": {"stdout": "hello"}}"""
    )
    spec = make_spec(SandboxSpec(), {"options": options})
    assert SandboxSpec.model_validate_json(spec.model_dump_json()) == spec
    with open_sandbox(spec, "fake") as sandbox:
        failed = sandbox.exec("python -m pytest -q")
        assert (failed.exit_code, failed.text, failed.error_text, failed.ok) == (1, "1 failed", "oh", False)
        assert sandbox.exec("anything").text == "hello"
        assert sandbox.exec(["an", "argument list"]).ok
        assert sandbox.read_file("calc.py") == b"x = 1\n"
        assert sandbox.capabilities.backend == "fake"


def test_the_first_matching_reply_answers_and_times_makes_a_sequence() -> None:
    with opened(replies=[Reply(match="pytest", exit_code=1, times=2), Reply(match="^py"), Reply(exit_code=9)]) as box:
        assert [box.exec("pytest").exit_code for _ in range(3)] == [1, 1, 0]
        assert box.exec("other").exit_code == 9


def test_an_argument_list_is_matched_as_a_quoted_line() -> None:
    with opened(replies=[{"match": "^grep 'a b' x$", "stdout": "found"}]) as box:
        assert box.exec(["grep", "a b", "x"]).text == "found"
        assert box.exec(["grep", "a", "b", "x"]).text == ""


def test_timeouts_and_signals_are_results() -> None:
    with opened(replies=[Reply(match="loop", timed_out=True, stdout=b"part"), Reply(match="crash", signal=11)]) as box:
        loop, crash = box.exec("loop", timeout=3), box.exec("crash")
    assert (loop.timed_out, loop.exit_code, loop.text, loop.duration) == (True, None, "part", 3.0)
    assert (crash.exit_code, crash.signal, crash.describe()) == (None, 11, "killed by signal 11")


def test_output_is_merged_and_bounded_like_a_real_one() -> None:
    with opened(default=Reply(stdout=b"0123456789", stderr=b"err")) as box:
        assert box.exec("x", merge=True).stdout == b"0123456789err"
        cut = box.exec("x", max_output=4)
    assert (cut.stdout, cut.stdout_dropped, cut.stderr, cut.stderr_dropped) == (b"0789", 6, b"err", 0)


def test_calls_are_recorded_with_their_arguments() -> None:
    with opened() as box:
        box.exec("make", env={"A": "1"}, cwd="sub", stdin=b"in", timeout=7)
        box.write_file("x", b"data", mode=0o600)
    assert [(call.at, call.target) for call in box.calls] == [
        ("start", ""),
        ("exec", "make"),
        ("write", "/testbed/x"),
        ("close", ""),
    ]
    arguments = box.calls[1].arguments
    assert (arguments["cwd"], arguments["stdin"], arguments["timeout"]) == ("/testbed/sub", b"in", 7)
    assert arguments["env"]["A"] == "1"
    assert box.calls[2].arguments["data"] == b"data"


# --- files --------------------------------------------------------------------------------------------


def test_files_are_kept_and_errors_are_those_of_a_file_system() -> None:
    with opened(files={"a/b.txt": "text", "/etc/x": "out"}) as box:
        assert box.read_file("a/b.txt") == box.read_file("/testbed/a/../a/b.txt") == b"text"
        assert box.read_file("/etc/x") == b"out"
        box.write_file("new/deep/file", b"\x00\xff")
        assert box.read_file("new/deep/file") == b"\x00\xff"
        with pytest.raises(MissingFile):
            box.read_file("nothing")
        with pytest.raises(NotAFile):
            box.read_file("a")
        with pytest.raises(NotAFile):
            box.write_file("a", b"")
        with pytest.raises(FileError, match="not a directory"):
            box.write_file("a/b.txt/c", b"")
        with pytest.raises(FileError, match="more than 3"):
            box.read_file("a/b.txt", max_bytes=3)


def test_an_overwritten_file_keeps_its_mode() -> None:
    with opened() as box:
        box.write_file("run.sh", b"1", mode=0o755)
        box.write_file("run.sh", b"2")
        assert box.manifest()["run.sh"].mode == 0o755


def test_a_tar_goes_out_and_in_again() -> None:
    with opened(files={"src/a.py": "a", "src/sub/b.py": "b", "other": "o"}) as box:
        archive = box.get_tar("src")
        box.put_tar("copy", archive)
        assert box.manifest("copy") == box.manifest("src")
        assert list(box.manifest("copy")) == ["a.py", "sub/b.py"]
        assert list(box.manifest(exclude=["sub", "o*"])) == ["copy/a.py", "src/a.py"]
        with pytest.raises(FileError):
            box.get_tar("src", max_bytes=10)
        with pytest.raises(FileError):
            box.manifest(max_files=2)
        with pytest.raises(MissingFile):
            box.manifest("nothing")


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_a_tar_that_leads_out_is_refused_whole(name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("good"))
        archive.addfile(tarfile.TarInfo(name))
    with opened() as box:
        with pytest.raises(FileError, match="leads out"):
            box.put_tar("x", buffer.getvalue())
        assert box.manifest() == {}
        with pytest.raises(FileError, match="not a tar"):
            box.put_tar("x", b"garbage" * 100)


# --- faults -------------------------------------------------------------------------------------------

USES: dict[str, Callable[[FakeSandbox], object]] = {
    "exec": lambda box: box.exec("make", timeout=0.05, grace=0),
    "read": lambda box: box.read_file("f", timeout=0.05),
    "write": lambda box: box.write_file("f", b"new", timeout=0.05),
    "pty": lambda box: box.open_pty("pdb", timeout=0.05),
    "manifest": lambda box: box.manifest(timeout=0.05),
    "tar": lambda box: box.get_tar("", timeout=0.05),
}


@pytest.mark.parametrize("at", USES)
def test_a_fault_happens_at_its_call_and_at_no_other(at: str) -> None:
    faults = [{"at": at, "nth": 2, "error": "NoPermission", "message": "no way"}]
    with opened(files={"f": "x"}, faults=faults) as box:
        for name, use in USES.items():
            use(box)
            if name == at:
                with pytest.raises(NoPermission, match="no way"):
                    use(box)
            use(box)


@pytest.mark.parametrize("at", USES)
def test_a_lost_sandbox_says_why_and_is_closed(at: str) -> None:
    with opened(files={"f": "x"}, faults=[{"at": at, "error": "SandboxLost", "reason": "oom"}]) as box:
        with pytest.raises(SandboxLost) as caught:
            USES[at](box)
        assert (caught.value.reason, caught.value.retryable) == ("oom", True)
        assert box.closed
        with pytest.raises(SandboxClosed):
            box.exec("x")


def test_a_failed_start_has_its_reason_and_leaves_the_sandbox_closed() -> None:
    fault = {"at": "start", "error": "SandboxStartError", "reason": "capacity", "retryable": True}
    spec = SandboxSpec(options={"faults": [fault]})
    box = FakeSandbox(spec)
    with pytest.raises(SandboxStartError) as caught:
        box.start()
    assert (caught.value.reason, caught.value.retryable, box.closed) == ("capacity", True, True)


def test_a_close_can_fail() -> None:
    box = opened(faults=[Fault(at="close", error="SandboxError")])
    with pytest.raises(SandboxError, match="scripted"):
        box.close()
    box.close()


def test_a_fault_can_wait_for_a_matching_command_and_can_be_for_ever() -> None:
    faults = [Fault(at="exec", match="pytest", nth=2, error="SandboxError"), Fault(at="read", nth="every", truncate=2)]
    with opened(files={"f": "12345"}, faults=faults) as box:
        assert box.exec("ls").ok
        assert box.exec("pytest").ok
        assert box.exec("ls").ok
        with pytest.raises(SandboxError):
            box.exec("pytest -x")
        assert [box.read_file("f") for _ in range(2)] == [b"12", b"12"]


def test_a_truncated_command_counts_what_was_cut() -> None:
    with opened(default=Reply(stdout=b"x" * 100), faults=[Fault(at="exec", truncate=10)]) as box:
        assert (len(box.exec("a").stdout), box.exec("a").stdout_dropped) == (10, 0)


@pytest.mark.parametrize("at", USES)
def test_a_stall_ends_at_its_deadline_with_a_lost_sandbox(at: str) -> None:
    with opened(files={"f": "x"}, slack=0.05, faults=[Fault(at=at, stall=True)]) as box:
        before = time.monotonic()
        with pytest.raises(SandboxLost) as caught:
            USES[at](box)
        assert time.monotonic() - before < 20
        assert caught.value.reason == "unresponsive"
        assert box.closed


def test_a_stalled_start_ends_at_the_start_timeout() -> None:
    spec = SandboxSpec(start_timeout=0.05, options={"faults": [{"at": "start", "stall": True}]})
    with pytest.raises(SandboxStartError) as caught:
        open_sandbox(spec, "fake")
    assert caught.value.reason == "timeout"


@pytest.mark.parametrize("at", [*USES, "start"])
def test_closing_from_another_thread_ends_a_stall_at_once(at: str) -> None:
    box = FakeSandbox(files={"f": "x"}, faults=[Fault(at=at, stall=True)])
    uses = {**USES, "exec": lambda box: box.exec("make", timeout=60), "start": lambda box: box.start()}
    for name in ("read", "write", "pty", "manifest", "tar"):
        uses[name] = {
            "read": lambda box: box.read_file("f"),
            "write": lambda box: box.write_file("f", b""),
            "pty": lambda box: box.open_pty("pdb"),
            "manifest": lambda box: box.manifest(),
            "tar": lambda box: box.get_tar(""),
        }[name]
    if at != "start":
        box.start()
    thread, ends = in_thread(lambda: uses[at](box))
    assert box.stalled.wait(60)
    box.close()
    thread.join(60)
    assert isinstance(ends[0], SandboxClosed)


def test_a_stalled_close_still_ends_the_others_and_can_be_released() -> None:
    box = opened(faults=[Fault(at="close", stall=True)])
    thread, ends = in_thread(box.close)
    assert box.stalled.wait(60)
    assert box.closed
    box.release()
    thread.join(60)
    assert ends == [None]


def test_a_released_stall_continues_normally() -> None:
    with opened(replies=[Reply(match="make", stdout=b"done")], faults=[Fault(at="exec", stall=True)]) as box:
        thread, ends = in_thread(lambda: box.exec("make").text)
        assert box.stalled.wait(60)
        assert box.exec("make").text == "done"
        box.release()
        thread.join(60)
        assert ends == ["done"]


# --- ptys ---------------------------------------------------------------------------------------------


def test_a_pty_prints_what_replies_say_and_ends_when_one_has_an_exit_code() -> None:
    replies = [
        Reply(match="^python", stdout=b"> x.py(1)\n(Pdb) "),
        Reply(match="^n\n$", stdout=b"> x.py(2)\n(Pdb) "),
        Reply(match="^q", exit_code=1),
    ]
    with opened(replies=replies) as box:
        pty = box.open_pty(["python", "-m", "pdb", "x.py"])
        assert pty.read_until(b"(Pdb) ", timeout=1) == (b"> x.py(1)\n(Pdb) ", True)
        pty.write(b"n\n")
        assert pty.read_until(b"2)", timeout=1) == (b"> x.py(2)", True)
        assert pty.read_until(b"nothing", timeout=1) == (b"\n(Pdb) ", False)
        assert pty.exit_code is None
        pty.signal(2)
        pty.write(b"q\n")
        assert box.calls[-1].target == "q\n"
        assert pty.read_until(b"", timeout=1) == (b"", True)
        assert pty.exit_code == 1
        pty.close()
        pty.close()
        with pytest.raises(SandboxClosed):
            pty.write(b"more")


def test_faults_reach_into_a_pty() -> None:
    with opened(faults=[Fault(at="pty", match="^hang$", error="SandboxLost", reason="killed")]) as box:
        pty = box.open_pty("pdb")
        with pytest.raises(SandboxLost):
            pty.write(b"hang")
        assert box.closed


# --- forwarded ports ----------------------------------------------------------------------------------


def echo(connection: Connection) -> None:
    while data := connection.recv(100, timeout=10):
        connection.send(data, timeout=10)


def test_a_forwarded_port_serves_clients_of_the_test_until_the_sandbox_is_closed() -> None:
    with opened() as box:
        forward = box.forward(0, echo)
        with socket.create_connection(("127.0.0.1", forward.port), 10) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
            box.close()
            assert client.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", forward.port), 10)
        forward.close()


def test_a_fault_can_refuse_a_port_and_a_handlers_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with opened(faults=[Fault(at="forward", error="SandboxLost")]) as box, pytest.raises(SandboxLost):
        box.forward(0, echo)
    with opened() as box:
        forward = box.forward(0, lambda connection: connection.recv(0, timeout=10))
        with socket.create_connection(("127.0.0.1", forward.port), 10) as client:
            assert client.recv(100) == b""
    assert "size must be positive: 0" in caplog.text


# --- the script itself --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reply": []}, "unknown option of backend 'fake': 'reply'. Did you mean 'replies'.*Known: default, faults"),
        ({"replies": [{"stdoutt": "x"}]}, r"replies\.0\.stdoutt"),
        ({"replies": [{"match": "("}]}, "invalid regular expression"),
        ({"faults": [{"at": "exec", "match": "[", "stall": True}]}, "invalid regular expression"),
        ({"faults": [{"at": "lunch", "stall": True}]}, r"faults\.0\.at"),
        ({"faults": [{"at": "exec"}]}, "exactly one of error, stall and truncate"),
        ({"faults": [{"at": "exec", "stall": True, "truncate": 1}]}, "exactly one of"),
        ({"faults": [{"at": "write", "truncate": 1}]}, "only exec and read"),
        ({"faults": [{"at": "exec", "nth": 0, "stall": True}]}, "nth must be at least 1"),
        ({"faults": [{"at": "exec", "error": "OutOfLuck"}]}, "swe_gym.errors has no error 'OutOfLuck'"),
        ({"faults": [{"at": "read", "error": "FileError", "reason": "oom"}]}, "FileError takes no such argument"),
    ],
)
def test_an_invalid_script_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FakeSandbox(SandboxSpec(options=options))


def test_a_fake_does_not_claim_to_isolate() -> None:
    with pytest.raises(Unsupported):
        open_sandbox(SandboxSpec(min_isolation="process"), "fake")


def test_many_sandboxes_with_faults_in_one_call_of_twenty_neither_hang_nor_leak() -> None:
    before = threading.active_count()

    def play(index: int) -> str:
        kinds = ({"error": "SandboxLost"}, {"stall": True}, {"error": "SandboxError"})
        faults = [{"at": "exec", "nth": index % 20 + 1, **kinds[index % 3]}] if index % 5 == 0 else []
        with opened(slack=0.01, faults=faults) as box:
            try:
                for _ in range(20):
                    box.exec("true", timeout=0.01, grace=0)
            except SandboxError as error:
                return type(error).__name__
        return "done"

    with ThreadPoolExecutor(64) as pool:
        ends = Counter(pool.map(play, range(1000)))
    assert ends == {"done": 800, "SandboxLost": 133, "SandboxError": 67}
    assert threading.active_count() == before


def test_a_snapshot_holds_all_files() -> None:
    with FakeSandbox(files={"a": "1", "b": "2"}).start() as box, FakeSandbox(files={"c": "3"}).start() as other:
        box.write_file("/tmp/x", b"4", mode=0o755)
        other.restore(box.snapshot())
        assert other.manifest("/") == box.manifest("/")
