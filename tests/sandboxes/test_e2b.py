"""The E2B backend through E2B's own SDK: what it asks the service for, faults, secrets, AGS."""

import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import (
    SandboxClosed,
    SandboxLost,
    SandboxStartError,
    SweGymError,
    Unsupported,
    UsageError,
)
from swe_gym.rollout.validate import validate
from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.e2b import E2BOptions, E2BSandbox
from swe_gym.sandboxes.e2b.service import relay_program
from swe_gym.sandboxes.e2b.stream import Cut, Gone, ResumedStream
from swe_gym.tasks.toy import ToySource
from swe_gym.testing.e2b_server import E2BServer
from swe_gym.types import PythonEnv

needs_sdk = pytest.mark.skipif(find_spec("e2b") is None, reason="the extra e2b is not installed")

BACKEND = "swe_gym.sandboxes.e2b:E2BSandbox"
CANARY = "e2b_c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"
CREATE = "*/sandboxes"
SEND = "/process.Process/SendInput"
LISTEN = "/process.Process/Connect"
START = "/process.Process/Start"


class Impatient(E2BSandbox):
    """Takes a sandbox for lost sooner, so that the tests are short."""

    slack = 1.0


Make = Callable[..., E2BSandbox]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[E2BServer]:
    with E2BServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def make(server: E2BServer) -> Iterator[Make]:
    """Makes sandboxes of the server, not started; `options` are the backend's own."""
    made: list[E2BSandbox] = []

    def make(server: E2BServer = server, options: dict[str, Any] | None = None, **fields: Any) -> E2BSandbox:
        given = server.sandbox_options(**(options or {}))
        made.append(Impatient(SandboxSpec.model_validate({**given, **fields})))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)


def refusal(sandbox: E2BSandbox, seconds: float = 10.0) -> SandboxStartError:
    """The error that a start ends in, in time."""
    before = time.monotonic()
    with pytest.raises(SandboxStartError) as caught:
        sandbox.start()
    assert time.monotonic() < before + seconds
    assert sandbox.closed
    return caught.value


def count_up(sandbox: E2BSandbox, times: int) -> None:
    """Commands that would show if one of them were lost or sent twice."""
    for number in range(1, times + 1):
        result = sandbox.exec("echo x >> count; wc -l < count; head -c 30000 /dev/zero", timeout=20)
        assert result.stdout[:-30000] == b"%d\n" % number


def test_the_sdk_is_there_where_it_is_required() -> None:
    assert "e2b" not in os.environ.get("SWE_GYM_REQUIRE", "").split(",") or find_spec("e2b")


# --- what the service is asked for ------------------------------------------------------------------------


@needs_sdk
def test_what_is_asked_for(server: E2BServer, make: Make) -> None:
    with make(image="tester", labels={"run": "7"}, options={"metadata": {"team": "a"}, "timeout": 120}) as sandbox:
        assert sandbox.exec("echo hi").text == "hi\n"
    asked = server.requests[0].body
    assert asked["templateID"] == "tester"
    assert asked["timeout"] == 120
    assert asked["metadata"] == {"run": "7", "team": "a", "swe_gym": sandbox.id}
    assert asked["allow_internet_access"] is False
    assert server.running == []


@needs_sdk
def test_egress_is_asked_for(server: E2BServer, make: Make) -> None:
    with make(network="egress") as sandbox:
        assert sandbox.capabilities.network == "egress"
    assert server.requests[0].body["allow_internet_access"] is True
    assert server.requests[0].body["templateID"] == "base"


@pytest.mark.parametrize(
    ("options", "image", "template"),
    [
        ({}, None, "base"),
        ({}, "made-by-me", "made-by-me"),
        ({"template": "t"}, None, "t"),
        ({"template": "t"}, "org/image:tag", "t"),
        ({"template": "t", "templates": {"org/image:tag": "mapped"}}, "org/image:tag", "mapped"),
    ],
)
def test_the_template(options: dict[str, Any], image: str | None, template: str) -> None:
    assert E2BOptions(**options).choose_template(image) == template


def test_the_image_of_an_instance_on_ags() -> None:
    options = E2BOptions(template="swe-tool", image_config={"imageRegistryType": "enterprise"})
    spec = SandboxSpec(image="ccr.ccs.tencentyun.com/a/b:c", cpus=2, memory_mb=4096)
    entry = options.image_metadata(spec, "ap-guangzhou.tencentags.com")
    assert {name: json.loads(text) for name, text in entry.items()} == {
        "x-custom-config": {
            "image": "ccr.ccs.tencentyun.com/a/b:c",
            "resources": {"cpu": "2", "memory": "4096Mi"},
            "imageRegistryType": "enterprise",
        }
    }
    assert options.image_metadata(spec, "e2b.app") == {}
    assert options.image_metadata(SandboxSpec(image="swe-tool"), "ap-guangzhou.tencentags.com") == {}
    other = E2BOptions(template="t", image_key="image")
    assert other.image_metadata(SandboxSpec(image="i"), "self.hosted") == {"image": '{"image": "i"}'}


@needs_sdk
def test_ags(tmp_path: Path, make: Make) -> None:
    with E2BServer(tmp_path / "ags", v2=False) as ags:
        options = {"domain": "ap-guangzhou.tencentags.com", "template": "swe-tool"}
        with make(ags, image="registry/image:tag", options=options) as sandbox:
            assert sandbox.exec("echo hi").text == "hi\n"
            assert sandbox.capabilities.network == "open"
        asked = next(request.body for request in ags.requests if request.path == "/sandboxes")
        assert asked["templateID"] == "swe-tool"
        assert json.loads(asked["metadata"]["x-custom-config"]) == {"image": "registry/image:tag"}
        assert ags.running == []


@needs_sdk
def test_a_server_without_v2(tmp_path: Path, make: Make) -> None:
    with E2BServer(tmp_path / "old", v2=False, templates={"base"}) as old:
        with make(old) as sandbox:
            count_up(sandbox, 3)
        assert "POST /sandboxes" in old.paths()[:2]
        assert old.running == []
        assert refusal(make(old, image="nothing")).reason == "image"
        old.inject("/sandboxes", method="POST", status=429, headers={"Retry-After": "1"})
        before = time.monotonic()
        make(old).start()
        assert time.monotonic() >= before + 1


@needs_sdk
def test_the_workdir_belongs_to_the_user(make: Make) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory(prefix="e2b-") as folder:
        os.chmod(folder, 0o755)
        with E2BServer(f"{folder}/server") as server:
            box = make(server, user="nobody", workdir=f"{folder}/work", options={"workdir_in_home": False})
            with box as sandbox:
                assert sandbox.exec("id -un; touch file && stat -c %U file").text == "nobody\nnobody\n"


@needs_sdk
def test_the_environment_is_the_template_s(make: Make) -> None:
    with make() as sandbox:
        seen = dict(line.split("=", 1) for line in sandbox.exec("env").text.splitlines())
        home = sandbox.workdir.removesuffix("/testbed")
    assert seen["HOME"] == home
    assert not [name for name in seen if name.startswith("E2B")]
    assert seen["LANG"] == "C.UTF-8"


@needs_sdk
def test_commands_have_no_powers_over_the_machine(make: Make) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has any to lose")
    with make() as sandbox:
        status = sandbox.exec("grep -E 'CapBnd|CapEff' /proc/self/status").text
    sys_ptrace = 1 << 19
    assert [int(line.split()[1], 16) & sys_ptrace for line in status.splitlines()] == [0, 0]


@needs_sdk
def test_a_workdir_that_cannot_be_made(server: E2BServer, make: Make) -> None:
    error = refusal(make(workdir="/proc/nothing", options={"workdir_in_home": False}))
    assert (error.reason, error.retryable) == ("setup", False)
    assert "cannot make the workdir /proc/nothing" in error.detail
    assert server.running == []


def test_requirements_need_a_template() -> None:
    python = PythonEnv(requirements=("attrs==24.2.0",))
    with pytest.raises(Unsupported, match="installs no requirements"):
        E2BSandbox(SandboxSpec(python=python, options={"api_key": CANARY}))


def test_more_isolation_than_there_is() -> None:
    spec = SandboxSpec(min_isolation="vm", options={"api_key": CANARY, "isolation": "container"})
    with pytest.raises(Unsupported, match="'container'"):
        E2BSandbox(spec)


# --- credentials ------------------------------------------------------------------------------------------


def test_a_key_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(UsageError, match="E2B_API_KEY"):
        E2BSandbox(SandboxSpec())
    with pytest.raises(UsageError, match="KEY_OF_SHANGHAI"):
        E2BSandbox(SandboxSpec(options={"api_key_env": "KEY_OF_SHANGHAI"}))


@needs_sdk
def test_two_accounts_in_one_process(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_of_nobody")
    monkeypatch.setenv("E2B_DOMAIN", "nowhere.invalid")
    monkeypatch.setenv("E2B_DEBUG", "true")
    keys = {"north": "e2b_" + "a" * 40, "south": "e2b_" + "b" * 40}
    before = dict(os.environ)
    with (
        E2BServer(tmp_path / "n", api_key=keys["north"]) as north,
        E2BServer(tmp_path / "s", api_key=keys["south"]) as south,
    ):
        boxes = [make(server).start() for server in (north, south, north, south)]
        for number, box in enumerate(boxes):
            box.write_file("who", str(number).encode())
        assert [box.exec("cat who").text for box in boxes] == ["0", "1", "2", "3"]
        assert (len(north.running), len(south.running)) == (2, 2)
        for box in boxes:
            box.close()
        for server in (north, south):
            assert {request.key for request in server.requests} - {None} == {server.api_key}
    assert dict(os.environ) == before


@needs_sdk
def test_the_key_is_nowhere(tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    with E2BServer(tmp_path / "c", api_key=CANARY) as server:
        sandbox = make(server, options={"listen_seconds": 1}).start()
        told += [repr(sandbox), repr(sandbox.spec), str(sandbox.spec.model_dump()), sandbox.spec.model_dump_json()]
        told += [
            repr(sandbox.options),
            sandbox.options.model_dump_json(),
            repr(vars(sandbox)),
            repr(vars(sandbox._instance)),
        ]
        told += [
            str(sandbox.capabilities),
            sandbox.exec("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep E2B").text,
        ]
        told += [json.dumps(request.body) for request in server.requests]
        server.inject(CREATE, method="POST", status=500, times=None, message=f"the key {CANARY} is not to my taste")
        told.append(describe(refusal(make(server))))
        with pytest.raises(UsageError) as wrong:
            E2BSandbox(SandboxSpec(options={"api_key": [CANARY], "timeout": "long"}))
        told.append(describe(wrong.value))
        server.inject("/process.Process/*", status=401, times=None, message=f"the key {CANARY} is not to my taste")
        with pytest.raises(SandboxLost) as lost:
            sandbox.exec("true", timeout=1)
        told.append(describe(lost.value))
    told += [record.getMessage() for record in caplog.records]
    assert len(told) > 10
    assert [text for text in told if CANARY in text] == []


def describe(error: BaseException) -> str:
    """All that a traceback would show of the errors."""
    texts = []
    link: BaseException | None = error
    while link is not None:
        texts.append(f"{link!r} {link} {vars(link)}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(texts)


# --- a service that refuses -------------------------------------------------------------------------------


@needs_sdk
@pytest.mark.parametrize(
    ("status", "reason", "retryable"),
    [(401, "setup", False), (403, "setup", False), (400, "setup", False), (500, "unknown", True)],
)
def test_refusals(server: E2BServer, make: Make, status: int, reason: str, retryable: bool) -> None:
    server.inject(CREATE, method="POST", status=status, times=None)
    error = refusal(make())
    assert (error.reason, error.retryable) == (reason, retryable)
    assert len([path for path in server.paths() if path.endswith("/sandboxes")]) <= 2  # with the look for a stray one
    assert server.running == []


@needs_sdk
@pytest.mark.parametrize("v2", [True, False])
def test_a_template_that_is_missing(tmp_path: Path, make: Make, v2: bool) -> None:
    with E2BServer(tmp_path / "t", v2=v2, templates={"base"}) as server:
        error = refusal(make(server, image="nothing"))
        assert (error.reason, error.retryable) == ("image", False)
        assert "'nothing'" in error.detail


@needs_sdk
def test_a_rate_limit_is_waited_for(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", status=429, headers={"Retry-After": "1"})
    before = time.monotonic()
    with make() as sandbox:
        assert time.monotonic() >= before + 1
        assert sandbox.exec("true").ok


@needs_sdk
@pytest.mark.parametrize(("status", "reason"), [(429, "rate_limit"), (503, "capacity")])
def test_a_service_that_never_has_room(server: E2BServer, make: Make, status: int, reason: str) -> None:
    server.inject(CREATE, method="POST", status=status, times=None)
    error = refusal(make(start_timeout=4.0))
    assert (error.reason, error.retryable) == (reason, True)
    assert server.running == []


@needs_sdk
def test_too_many_at_once(tmp_path: Path, make: Make) -> None:
    with E2BServer(tmp_path / "few", most=1) as server:
        first = make(server).start()
        error = refusal(make(server, start_timeout=4.0))
        assert (error.reason, error.retryable) == ("capacity", True)
        late = make(server)
        starting = threading.Thread(target=late.start)
        starting.start()
        first.close()
        starting.join(20)
        assert late.exec("echo hi").text == "hi\n"


@needs_sdk
def test_nobody_listens_there(make: Make) -> None:
    error = refusal(make(options={"api_url": "http://127.0.0.1:9", "sandbox_url": "http://127.0.0.1:9"}), seconds=10)
    assert error.retryable


# --- a service that hangs, and replies that are lost ------------------------------------------------------


@needs_sdk
@pytest.mark.parametrize("path", [CREATE, START, LISTEN, SEND])
def test_a_start_that_hangs(server: E2BServer, make: Make, path: str) -> None:
    server.inject(path, method="POST", hang=True, times=None)
    error = refusal(make(start_timeout=1.5), seconds=8)
    assert (error.reason, error.retryable) == ("timeout", True)
    eventually(lambda: server.running == [])


@needs_sdk
def test_closing_ends_a_start_that_hangs(server: E2BServer, make: Make) -> None:
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
    starting.join(2)
    assert [type(error) for error in errors] == [SandboxClosed]


@needs_sdk
def test_a_sandbox_that_comes_too_late_is_ended(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", delay=2.0)
    assert refusal(make(start_timeout=0.5)).reason == "timeout"
    eventually(lambda: server.created == 1 and server.running == [])


@needs_sdk
def test_a_sandbox_whose_reply_was_lost_is_ended(server: E2BServer, make: Make) -> None:
    server.inject(CREATE, method="POST", lose_reply=True)
    error = refusal(make(), seconds=10)
    assert error.retryable
    assert server.created == 1
    assert server.running == []


@needs_sdk
def test_a_start_that_is_refused_leaves_nothing(server: E2BServer, make: Make) -> None:
    server.inject(START, status=500, times=None)
    assert refusal(make()).retryable
    assert (server.created, server.running) == (1, [])


@needs_sdk
@pytest.mark.parametrize(
    "fault",
    [{"lose_reply": True}, {"status": 500}, {"status": 429}, {"status": 503}, {"hang": True}],
    ids=lambda fault: "-".join(map(str, *fault.items())),
)
def test_input_that_fails_is_sent_again_but_not_done_again(
    server: E2BServer, make: Make, fault: dict[str, Any]
) -> None:
    sandbox = make(options={"request_timeout": 1.0})
    sandbox.slack = 10.0  # a hanging call is given up after 5 s
    sandbox.start()
    for skip in (0, 1, 2):
        server.inject(SEND, skip=skip, **fault)
        if "hang" in fault:
            break
    count_up(sandbox, 5)


@needs_sdk
@pytest.mark.parametrize("after", [0, 300, 5_000, 50_000])
def test_a_stream_that_is_cut_goes_on(server: E2BServer, make: Make, after: int) -> None:
    sandbox = make().start()
    server.inject(LISTEN, cut_after=after, times=6)
    server.inject(LISTEN, status=502, message="bad gateway", times=1)
    count_up(sandbox, 8)
    assert sandbox.exec("wc -l < count").text == "8\n"


@needs_sdk
def test_a_gateway_that_cuts_every_stream(server: E2BServer, make: Make) -> None:
    server.inject(LISTEN, cut_after=100_000, times=None)
    with make() as sandbox:
        data = random.Random(1).randbytes(1_000_000)
        sandbox.write_file("file", data)
        assert sandbox.read_file("file") == data
        count_up(sandbox, 5)


@needs_sdk
def test_listening_anew_all_the_time(server: E2BServer, make: Make) -> None:
    with make(options={"listen_seconds": 1}) as sandbox:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            count_up(sandbox, 10)
            sandbox.exec("rm count")
        result = sandbox.exec("sleep 2; echo late")
        assert result.text == "late\n"
    assert server.paths().count(f"POST {LISTEN}") >= 5


@needs_sdk
@pytest.mark.parametrize("path", [LISTEN, SEND])
@pytest.mark.parametrize("fault", [{"status": 503}, {"hang": True}], ids=["503", "hang"])
def test_a_service_that_stays_away(server: E2BServer, make: Make, path: str, fault: dict[str, Any]) -> None:
    sandbox = make(options={"listen_seconds": 1}).start()
    listened = server.paths().count(f"POST {LISTEN}")
    server.inject(path, times=None, **fault)
    eventually(lambda: path == SEND or server.paths().count(f"POST {LISTEN}") > listened)
    before = time.monotonic()

    def go_on() -> None:
        for _ in range(3):  # what was begun before may still end well
            sandbox.exec("true", timeout=1, grace=0)

    with pytest.raises(SandboxLost) as lost:
        go_on()
    assert time.monotonic() < before + 8
    assert (lost.value.reason, lost.value.retryable) == ("unresponsive", True)
    assert sandbox.closed
    assert server.running == []


@needs_sdk
def test_closing_while_the_service_hangs(server: E2BServer, make: Make) -> None:
    sandbox = make(options={"request_timeout": 1.0}).start()
    server.inject("/sandboxes/*", method="DELETE", hang=True)
    before = time.monotonic()
    sandbox.close()
    assert time.monotonic() < before + 5


@needs_sdk
@pytest.mark.parametrize("moment", ["during", "between"])
def test_a_sandbox_that_is_killed(server: E2BServer, make: Make, moment: str) -> None:
    sandbox = make().start()
    if moment == "between":
        server.expire(server.running[0])
    else:
        threading.Timer(0.3, server.expire, server.running).start()
    before = time.monotonic()
    with pytest.raises(SandboxLost) as lost:
        sandbox.exec("sleep 30", timeout=60)
    assert time.monotonic() < before + 5
    assert (lost.value.reason, lost.value.retryable) == ("killed", True)


@needs_sdk
def test_a_sandbox_that_was_not_renewed(server: E2BServer, make: Make) -> None:
    sandbox = make(options={"timeout": 1.0}).start()
    server.inject("/sandboxes/*/timeout", status=500, times=None)
    with pytest.raises(SandboxLost) as lost:
        sandbox.exec("sleep 30", timeout=60)
    assert lost.value.reason == "expired"


@needs_sdk
def test_a_sandbox_lives_as_long_as_we_do(server: E2BServer, make: Make) -> None:
    sandbox = make(options={"timeout": 1.0}).start()
    assert sandbox.exec("sleep 2.5; echo here").text == "here\n"
    assert len([path for path in server.paths() if path.endswith("/timeout")]) >= 4
    other = server.sandbox_options(timeout=1.0)
    program = (
        "import os, sys\nfrom swe_gym.sandboxes import SandboxSpec, open_sandbox\n"
        f"open_sandbox(SandboxSpec(**{other!r}), {BACKEND!r})\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert server.created == 2
    eventually(lambda: len(server.running) == 1)
    assert sandbox.exec("echo here").text == "here\n"


# --- episodes ---------------------------------------------------------------------------------------------


@needs_sdk
def test_a_bundled_task_is_judged(server: E2BServer) -> None:
    options = server.sandbox_options(activate=sys.prefix)
    (record,) = validate(
        ToySource(), ["larder-overwrite-evicts"], backend=BACKEND, sandbox_options=options, times=1, workers=1
    )
    assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason
    assert server.running == []


@needs_sdk
def test_an_episode(server: E2BServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", server.api_key)
    options = server.sandbox_options(activate=sys.prefix, api_key_env="KEY_OF_THE_TEST")
    del options["options"]["api_key"]  # what `gym.make` is given is recorded: no place for a key
    env = SweEnv("toy", task_id="larder-overwrite-evicts", backend=BACKEND, sandbox_options=options)
    try:
        env.reset(seed=0)
        observation, *_ = env.step(json.dumps({"name": "bash", "arguments": {"command": "ls; echo $((6*7))"}}))
        assert "42" in observation
        _, reward, terminated, _, info = env.step(json.dumps({"name": "submit", "arguments": {}}))
        assert (reward, terminated, info["reward_valid"]) == (0.0, True, True)
    finally:
        env.close()
    assert server.running == []


# --- the stream and the relay, without a service ----------------------------------------------------------

ECHO = """
import os
while True:
    data = os.read(0, 65536)
    if not data:
        break
    os.write(1, data)
"""


class ShakyProcess:
    """A relay on this machine, reached over calls of which many are cut, lost or made twice."""

    def __init__(self, folder: Path, seed: int) -> None:
        program = relay_program(str(folder), runner=ECHO)
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._popen.stdin
        assert self._popen.stdout
        self._input, self._output = self._popen.stdin, self._popen.stdout
        self._chances = [random.Random(seed), random.Random(seed + 100)]

    def send(self, text: str, timeout: float) -> None:  # noqa: ARG002  never slow
        luck = self._chances[0].random()
        if luck < 0.2:
            raise Cut("not sent")
        try:
            self._input.write(text.encode())
        except (OSError, ValueError):
            raise Gone("ended") from None
        if luck < 0.4:
            raise Cut("sent, but the reply was lost")

    def follow(self, opened: Callable[[], None], output: Callable[[str], None], *_: object) -> None:
        opened()
        while data := self._read(self._chances[1].randrange(1, 40_000)):
            if self._chances[1].random() < 0.1:
                raise Cut("what was on its way is lost")
            output(data.decode("ascii"))
        raise Gone("ended")

    def _read(self, size: int) -> bytes:
        try:
            return self._output.read(size)
        except (OSError, ValueError):  # closed below us
            return b""

    def check(self) -> None:
        """It is there as long as this test runs."""

    def renew(self) -> None:
        """As above."""

    def end(self) -> None:
        self._input.close()
        self._popen.wait(10)


@pytest.mark.parametrize("seed", range(4))
def test_no_byte_is_lost_or_comes_twice(tmp_path: Path, seed: int) -> None:
    process = ShakyProcess(tmp_path, seed)
    stream = ResumedStream(process, name="shaky", listen_seconds=60, renew_seconds=60)
    chance = random.Random(seed)
    for size in (1, 100, 40_000, 300_000, 7):
        data = chance.randbytes(size)
        stream.write(data, 60)
        received = b""
        while len(received) < len(data):
            received += stream.read(60)
        assert received == data
    process.end()
    with pytest.raises(OSError, match="ended"):
        stream.read(10)
    stream.close()
    process._output.close()
