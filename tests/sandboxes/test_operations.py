"""The table of operations: the runner, the host's client, the fake and the contract know every operation."""

import os

import pytest

from swe_gym.errors import UsageError
from swe_gym.guests.file_request import SERVED
from swe_gym.guests.protocol import OPERATIONS, Decoder, fields_of
from swe_gym.guests.runner.serve import Runner
from swe_gym.sandboxes import SandboxSpec, user_sandbox
from swe_gym.sandboxes.channel import ByteStream, reply_types
from swe_gym.sandboxes.fake import KINDS, FakeSandbox, empty_reply, kind_of_call
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
