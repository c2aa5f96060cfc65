"""The table of operations: the runner, the host's client, the fake and the contract know every operation."""

import contextlib
import os

import pytest

from swe_gym.errors import FileError, SandboxClosed, SandboxError, SandboxLost, Unsupported, UsageError
from swe_gym.guests.file_request import SERVED
from swe_gym.guests.protocol import OPERATIONS, Decoder, fields_of
from swe_gym.guests.runner.serve import Runner
from swe_gym.sandboxes import SandboxSpec, user_sandbox
from swe_gym.sandboxes.channel import ByteStream, reply_types
from swe_gym.sandboxes.fake import KINDS, FakeSandbox, Fault, Reply, empty_reply, kind_of_call
from swe_gym.sandboxes.local import LocalSandbox
from swe_gym.testing.sandbox_contract import EXERCISED


class RecordingStream:
    """A stream that keeps the names of the operations sent."""

    def __init__(self, stream: ByteStream, sent: set[str]) -> None:
        self.read, self.close = stream.read, stream.close
        self._write = stream.write
        self._decoder = Decoder()
        self._sent = sent

    def write(self, data: bytes, timeout: float) -> None:
        self._sent.update(message["op"] for message, _ in self._decoder.feed(data))
        self._write(data, timeout)


class RecordingSandbox(LocalSandbox):
    sent: set[str] = set()

    def _connect(self, deadline: float) -> ByteStream:
        return RecordingStream(super()._connect(deadline), self.sent)


def test_the_runner_carries_out_every_operation() -> None:
    source, requests = os.pipe()
    replies, sink = os.pipe()
    offered = Runner(source, sink, os.forkpty, "").loop.operations
    for fd in (source, requests, replies, sink):
        os.close(fd)
    assert {name: fields for name, (fields, _) in offered.items()} == {
        name: {"id", "op", *fields_of(operation.request)} for name, operation in OPERATIONS.items()
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_fake_answers_every_operation(name: str) -> None:
    operation = OPERATIONS[name]
    assert empty_reply(operation).keys() == reply_types(operation).keys() - {"id"}
    assert kind_of_call(name) in KINDS
    box = FakeSandbox().start()
    if name not in box._answers:
        assert box._ask(operation, {}, timeout=1) == (empty_reply(operation), b"")


def test_no_operation_gets_the_rights_of_root_in_a_sandbox_of_a_user() -> None:
    known = {*user_sandbox.COMMANDS, *user_sandbox.FILES, *user_sandbox.WITHOUT_RIGHTS}
    assert known < OPERATIONS.keys()  # any other is refused
    assert set(user_sandbox.FILES) == SERVED.keys()
    with FakeSandbox().start() as box, pytest.raises(UsageError, match="'hello' cannot be carried out with the rights"):
        user_sandbox.UserSandbox(box, "me")._ask(OPERATIONS["hello"], {}, timeout=1)


LOOKED = Reply(match="id -u", stdout=b"0\nroot\n/usr/bin/python3\n")


@pytest.mark.parametrize("call", ["exec", "read_file", "manifest", "open_pty"])
def test_a_lost_sandbox_of_a_user_is_reported_as_lost(call: str) -> None:
    at = "pty" if call == "open_pty" else "exec"
    fault = Fault(at=at, nth=1 if at == "pty" else 2, error="SandboxLost", reason="oom")
    with FakeSandbox(replies=[LOOKED], faults=[fault]).start() as whole:
        box = user_sandbox.UserSandbox(whole, "me")
        with pytest.raises(SandboxLost) as caught:
            getattr(box, call)("x")
        assert caught.value.reason == "oom"
        assert whole.closed
        with pytest.raises(SandboxClosed):
            box.exec("true")


def test_nothing_of_the_environment_of_a_user_reaches_a_program_of_root() -> None:
    spec = SandboxSpec(env={"PATH": "/own", "LD_PRELOAD": "/own/x.so", "PYTHONHOME": "/own"})
    with FakeSandbox(spec, replies=[LOOKED]).start() as whole:
        box = user_sandbox.UserSandbox(whole, "me")
        box.exec("true", env={"BASH_ENV": "/own"})
        box.open_pty("true")
        with contextlib.suppress(SandboxError):  # the fake has no such file
            box.read_file("x")
        _, *calls = [call for call in whole.calls if "argv" in call.arguments]
        for call in calls:
            env = {name: value for name, value in call.arguments["env"].items() if not name.startswith("of_user_")}
            assert env == user_sandbox.SYSTEM_ENV
            assert call.arguments["argv"][:3] == ["/usr/bin/python3", "-I", "-S"]
        assert len(calls) == 3
        assert calls[0].arguments["env"]["of_user_LD_PRELOAD"] == "/own/x.so"


def test_a_file_larger_than_an_answer_is_refused_with_its_size() -> None:
    replies = [LOOKED, Reply(stdout=b"{}\n" + b"x" * 100)]
    with FakeSandbox(replies=replies, faults=[Fault(at="exec", nth=2, truncate=10)]).start() as whole:
        box = user_sandbox.UserSandbox(whole, "me")
        with pytest.raises(FileError, match=r"x\.txt: the answer to 'get_tar' has 103 bytes"):
            box.get_tar("x.txt")


def test_without_a_python_of_root_nothing_runs_as_a_user() -> None:
    with FakeSandbox(replies=[Reply(match="id -u", stdout=b"0\nroot\n")]).start() as whole:
        with pytest.raises(Unsupported, match="has no Python that all users can run and only root can change"):
            user_sandbox.UserSandbox(whole, "me").exec("true")
        assert user_sandbox.as_user(whole, "root") is user_sandbox.as_user(whole, "0") is whole


def test_every_operation_has_a_case_of_the_contract() -> None:
    assert EXERCISED.keys() == OPERATIONS.keys()


@pytest.mark.parametrize(
    "case", sorted(set(EXERCISED.values()), key=lambda case: case.name), ids=lambda case: case.name
)
def test_the_host_sends_the_operations_that_a_case_of_the_contract_exercises(case) -> None:
    class Recorded(RecordingSandbox):
        sent: set[str] = set()

    case.run(lambda **fields: Recorded(SandboxSpec.model_validate(fields)).start())
    assert {name for name, one in EXERCISED.items() if one is case} <= Recorded.sent
