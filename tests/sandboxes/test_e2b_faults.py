"""The E2B backend when the service refuses, hangs, cuts streams and loses replies: typed errors in time."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2b_boxes import CREATE, LISTEN, SEND, START, Make, count_up, eventually, making, refusal
from servers.e2b_machine import Machine, Process
from servers.e2b_server import E2BServer

from swe_gym.errors import SandboxClosed, SandboxLost, SweGymError

pytest.importorskip("e2b")

CUT_REPLY = {"cut_after": 10}
LOST_REPLY = {"lose_reply": True}
LEASE = 2.0
"""Seconds that the service keeps a sandbox; a start may take one of them on a busy machine."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[E2BServer]:
    with E2BServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def make(server: E2BServer) -> Iterator[Make]:
    with making(server) as make:
        yield make


def named(value: object) -> str:
    """The id of a parameter."""
    return "-".join(map(str, *value.items())) if isinstance(value, dict) else str(value).rpartition("/")[2]


# --- start ----------------------------------------------------------------------------------------------------


@pytest.mark.sample(every=4)
@pytest.mark.parametrize(
    ("path", "fault", "reason", "retryable"),
    [
        (CREATE, {"status": 401}, "setup", False),
        (CREATE, {"status": 403}, "setup", False),
        (CREATE, {"status": 400}, "setup", False),
        (CREATE, {"status": 404}, "image", False),
        (CREATE, {"status": 429}, "rate_limit", True),
        (CREATE, {"status": 503}, "capacity", True),
        (CREATE, {"status": 500}, "unknown", True),
        (CREATE, {"hang": True}, "timeout", True),
        (CREATE, LOST_REPLY, "unknown", True),
        (CREATE, CUT_REPLY, "unknown", True),
        (START, {"status": 401}, "setup", False),
        (START, {"status": 429}, "rate_limit", True),
        (START, {"status": 500}, "unknown", True),
        (START, {"hang": True}, "timeout", True),
        (START, LOST_REPLY, "unknown or timeout", True),  # older SDKs confuse the two
        (START, {"cut_after": 100}, "unknown or timeout", True),
        (LISTEN, {"hang": True}, "timeout", True),
        (SEND, {"hang": True}, "timeout", True),
    ],
    ids=named,
)
def test_a_failed_start(
    server: E2BServer, make: Make, path: str, fault: dict[str, Any], reason: str, retryable: bool
) -> None:
    server.inject(path, method="POST", times=None, **fault)
    error = refusal(make(start_timeout=1.0 if "hang" in fault else 3.0))
    assert error.reason in reason.split(" or ")
    assert error.retryable is retryable
    eventually(lambda: server.running == [])


class Noisy(Machine):
    """Runs a program without an end in place of the relay."""

    def start(self, config: Mapping[str, Any], user: str | None, stdin: bool) -> Process:
        return super().start({**config, "cmd": "yes", "args": ["noise"]}, user, stdin)


def test_a_service_that_sends_other_output_than_the_relay_s(
    server: E2BServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servers.e2b_server.Machine", Noisy)
    error = refusal(make(start_timeout=60.0))
    assert (error.reason, error.retryable) == ("setup", False)
    assert "sent other output than the relay's" in str(error)
    assert error.detail.startswith("noise\n")
    eventually(lambda: server.running == [])
    eventually(lambda: not any(thread.name.startswith("e2b-") for thread in threading.enumerate()))


@pytest.mark.parametrize("v2", [True, False])
def test_a_missing_template(tmp_path: Path, make: Make, v2: bool) -> None:
    with E2BServer(tmp_path / "t", v2=v2, templates={"base"}) as server:
        error = refusal(make(server, image="nothing"))
        assert (error.reason, error.retryable) == ("image", False)
        assert "'nothing'" in error.detail


def test_an_unreachable_service(make: Make) -> None:
    error = refusal(make(options={"api_url": "http://127.0.0.1:9", "sandbox_url": "http://127.0.0.1:9"}))
    assert (error.reason, error.retryable) == ("unknown", True)
    assert "is unreachable" in str(error)


def test_retry_after_is_honoured(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", status=429, headers={"Retry-After": "1"})
    before = time.monotonic()
    with make() as sandbox:
        assert time.monotonic() >= before + 1
        assert sandbox.exec("true").ok


def test_a_retry_is_logged(tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with E2BServer(tmp_path / "full", most=0) as server:
        sandbox = make(server, start_timeout=4.0)
        assert refusal(sandbox).reason == "capacity"
    (first, *_) = [record.getMessage() for record in caplog.records if ".e2b" in record.name]
    assert first.startswith(f"sandbox {sandbox.id}: the service at")
    assert "retrying in" in first


@pytest.mark.slow
def test_a_later_timeout_is_not_blamed_on_an_earlier_rate_limit(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", status=429, headers={"Retry-After": "0"})
    server.inject(START, method="POST", hang=True, times=None)
    assert refusal(make(start_timeout=2.0)).reason == "timeout"


def test_the_limit_of_concurrent_sandboxes(tmp_path: Path, make: Make) -> None:
    with E2BServer(tmp_path / "few", most=1) as server:
        first = make(server).start()
        error = refusal(make(server, start_timeout=1.0))
        assert (error.reason, error.retryable) == ("capacity", True)
        late = make(server)
        starting = threading.Thread(target=late.start)
        starting.start()
        first.close()
        starting.join(60)
        assert late.exec("echo hi").text == "hi\n"


def test_close_ends_a_hanging_start(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", hang=True, times=None)
    sandbox = make()
    errors: list[BaseException] = []

    def start() -> None:
        try:
            sandbox.start()
        except SweGymError as error:
            errors.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    eventually(lambda: server.paths() != [])
    sandbox.close()
    starting.join(60)
    assert [type(error) for error in errors] == [SandboxClosed]


@pytest.mark.slow
def test_a_sandbox_created_too_late_is_ended(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", delay=2.0)
    assert refusal(make(start_timeout=1.0)).reason == "timeout"
    eventually(lambda: server.created == 1 and server.running == [])


def test_a_sandbox_whose_reply_was_lost_is_ended(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", lose_reply=True)
    assert refusal(make()).retryable
    assert (server.created, server.running) == (1, [])


# --- retried calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [LOST_REPLY, {"status": 500}, {"status": 429}, {"status": 503}, {"hang": True}], ids=named
)
def test_input_is_resent_but_not_repeated(server: E2BServer, make: Make, fault: dict[str, Any]) -> None:
    with make(options={"request_timeout": 1.0}, slack=10.0) as sandbox:
        for skip in (0,) if "hang" in fault else (0, 1, 2):
            server.inject(SEND, skip=skip, **fault)
        count_up(sandbox, 5)


@pytest.mark.sample(every=4)
@pytest.mark.parametrize("after", [0, 300, 5_000, 50_000])
def test_an_interrupted_stream_resumes(server: E2BServer, make: Make, after: int) -> None:
    with make(slack=10.0) as sandbox:
        server.inject(LISTEN, cut_after=after, times=3)
        server.inject(LISTEN, status=502, message="bad gateway", times=1)
        server.cut_streams()
        count_up(sandbox, 8)
        assert sandbox.exec("wc -l < count").text == "8\n"


def test_a_gateway_that_cuts_every_stream(server: E2BServer, make: Make) -> None:
    server.inject(LISTEN, cut_after=100_000, times=None)
    with make(slack=10.0) as sandbox:
        data = random.Random(1).randbytes(500_000)
        sandbox.write_file("file", data)
        assert sandbox.read_file("file") == data
        count_up(sandbox, 5)


@pytest.mark.slow
def test_streams_are_reopened_regularly(server: E2BServer, make: Make) -> None:
    with make(options={"listen_seconds": 1}, slack=10.0) as sandbox:
        times = 0
        while server.paths().count(f"POST {LISTEN}") < 3:
            count_up(sandbox, 10, begin=times + 1)
            times += 10
        assert sandbox.exec("sleep 1.5; echo late").text == "late\n"
    assert server.paths().count(f"POST {LISTEN}") >= 4


# --- a lost sandbox -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [LISTEN, SEND])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"status": 429}, "unresponsive"),
        ({"status": 500}, "unresponsive"),
        ({"hang": True}, "unresponsive"),
        (LOST_REPLY, "unresponsive"),
        ({"status": 401}, "killed"),
        ({"status": 404}, "killed"),
    ],
    ids=named,
)
def test_an_unavailable_service(server: E2BServer, make: Make, path: str, fault: dict[str, Any], reason: str) -> None:
    sandbox = make().start()
    server.inject(path, times=None, **fault)
    if path == LISTEN:
        server.cut_streams()
    before = time.monotonic()
    with pytest.raises(SandboxLost) as lost:
        sandbox.exec("echo hi", timeout=0.2, grace=0)
    assert time.monotonic() < before + 25
    assert (lost.value.reason, lost.value.retryable) == (reason, True)
    assert sandbox.closed
    assert server.running == []


def test_close_while_the_service_hangs(server: E2BServer, make: Make) -> None:
    sandbox = make(options={"request_timeout": 0.5}).start()
    server.inject("/sandboxes/*", method="DELETE", hang=True)
    before = time.monotonic()
    sandbox.close()
    assert time.monotonic() < before + 25


@pytest.mark.parametrize("moment", ["during", "between"])
def test_a_killed_sandbox(server: E2BServer, make: Make, moment: str) -> None:
    sandbox = make().start()
    if moment == "between":
        server.expire(server.running[0])
    else:
        threading.Timer(0.3, server.expire, server.running).start()
    before = time.monotonic()
    with pytest.raises(SandboxLost) as lost:
        sandbox.exec("echo begun; sleep 30", timeout=60)
    assert time.monotonic() < before + 25
    assert (lost.value.reason, lost.value.retryable) == ("killed", True)


# --- lifetime -------------------------------------------------------------------------------------------------


@pytest.mark.sample(every=4)
@pytest.mark.parametrize("fault", [{"status": 500}, {"hang": True}], ids=named)
def test_a_sandbox_that_cannot_be_renewed(server: E2BServer, make: Make, fault: dict[str, Any]) -> None:
    sandbox = make(options={"timeout": LEASE}).start()
    server.inject("/sandboxes/*/timeout", times=None, **fault)
    with pytest.raises(SandboxLost) as lost:
        sandbox.exec("sleep 30", timeout=60)
    assert lost.value.reason == "expired"


@pytest.mark.slow
def test_a_sandbox_lives_as_long_as_its_client(server: E2BServer, make: Make) -> None:
    sandbox = make(options={"timeout": 2 * LEASE}).start()
    assert sandbox.exec(f"sleep {2 * LEASE + 0.5}; echo here").text == "here\n"
    assert len([path for path in server.paths() if path.endswith("/timeout")]) >= 3
    program = (
        "import os\nfrom swe_gym.sandboxes import SandboxSpec, open_sandbox\n"
        f"open_sandbox(SandboxSpec(**{server.sandbox_options(timeout=2 * LEASE)!r}), 'e2b')\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert server.created == 2
    eventually(lambda: len(server.running) == 1)
    assert sandbox.exec("echo here").text == "here\n"
