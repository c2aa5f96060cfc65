"""Grading sandboxes that start while the policy works, and wait for the end of its episode."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from env_parts import SUBMIT, CountedSandbox, call

from swe_gym.envs.group import SandboxGroup
from swe_gym.envs.swe_env import SweEnv
from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.channel import ByteStream
from swe_gym.sandboxes.container import ContainerSandbox
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.types import Capabilities, FilesWorkspace, Oracle, Task

Make = Callable[..., SweEnv]

WORK = call("bash", command="true")


class Waiting(CountedSandbox):
    """A fake of which two may wait, in a list that grows at the start."""

    name = "waiting-fake"
    waiting = 2

    @property
    def capabilities(self) -> Capabilities:
        return super().capabilities.model_copy(update={"network": self.spec.network})


@pytest.fixture
def make(fake_env: Make) -> Iterator[Make]:
    def of(spec: dict[str, Any] | None = None, **options: Any) -> SweEnv:
        sandbox = {"options": {"files": {"a.py": "x = 1\n"}, **options}, **(spec or {})}
        return fake_env({"backend": f"{__name__}:Waiting", "sandbox_options": sandbox})

    yield of
    eventually(lambda: not background(), 60, "no thread is left")


def fault(at: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "error": "SandboxLost", "retryable": False, **fields}


def background() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sandbox-group"]


def started(count: int) -> None:
    """Wait until as many sandboxes were started, and none is starting."""
    eventually(lambda: len(CountedSandbox.started) == count, 60, f"{count} sandboxes are started")
    eventually(lambda: not background(), 60, "none is starting")


def all_closed() -> bool:
    return all(sandbox.closed for sandbox in CountedSandbox.started)


def test_the_grading_sandbox_starts_after_the_first_action_and_is_used(make: Make) -> None:
    env = make()
    env.reset()
    started(1)
    for _ in range(3):
        env.step(WORK)
        started(2)
    policys, waits = CountedSandbox.started
    assert not waits.closed
    assert [one.at for one in waits.calls] == ["start"]
    assert env.step(SUBMIT)[1] == 1.0
    started(2)
    assert [one.target for one in waits.calls if one.at == "exec"][-1] == "run-the-hidden-tests"
    assert "run-the-hidden-tests" not in [one.target for one in policys.calls]
    eventually(all_closed, 60, "all sandboxes are closed")


def test_an_episode_whose_first_action_is_its_last_starts_no_more_than_it_needs(make: Make) -> None:
    env = make()
    env.reset()
    assert env.step(SUBMIT)[1] == 1.0
    started(2)
    eventually(all_closed, 60, "all sandboxes are closed")


def test_a_policy_that_works_in_the_sandbox_has_one_from_its_first_turn(make: Make) -> None:
    env = make()
    env.reset()
    env.count_turn([])
    started(2)
    assert env.submit()[1] == 1.0
    started(2)


@pytest.mark.parametrize("end", ["close", "reset", "lost"])
def test_an_episode_that_is_not_graded_closes_the_sandbox_that_waits(end: str, make: Make) -> None:
    env = make(faults=[fault("exec", match="destroy")])
    env.reset()
    env.step(WORK)
    started(2)
    episodes = [*CountedSandbox.started]
    if end == "lost":
        assert env.step(call("bash", command="destroy"))[4]["outcome"] == "infra_failed"
    else:
        getattr(env, end)()
    eventually(lambda: all(sandbox.closed for sandbox in episodes), 60, "the sandboxes of the episode are closed")


@pytest.mark.parametrize("at", ["start", "exec"])
def test_a_sandbox_that_was_lost_while_it_waited_is_replaced(at: str, make: Make) -> None:
    env = make(strikes=2, faults=[fault(at)])
    env.reset()
    env.step(WORK)
    started(2)
    _, reward, _, _, info = env.step(SUBMIT)
    assert (reward, info["outcome"], len(CountedSandbox.started)) == (1.0, "submitted", 3)
    eventually(all_closed, 60, "all sandboxes are closed")


def test_a_sandbox_that_used_up_much_of_its_lease_is_replaced(make: Make) -> None:
    env = make({"ttl": 1e-6})  # fakes live longer
    env.reset()
    env.step(WORK)
    started(2)
    assert env.step(SUBMIT)[1] == 1.0
    assert len(CountedSandbox.started) == 3
    eventually(all_closed, 60, "all sandboxes are closed")


def test_closing_ends_a_start(make: Make) -> None:
    env = make(strikes=2, faults=[{"at": "start", "stall": True}])
    env.reset()
    env.step(WORK)
    eventually(lambda: len(CountedSandbox.started) == 2, 60, "the second one starts")
    assert CountedSandbox.started[1].stalled.wait(60)
    env.close()
    started(2)
    eventually(all_closed, 60, "all sandboxes are closed")


def test_no_more_than_the_backend_allows_wait(make: Make) -> None:
    environments = [make() for _ in range(3)]
    for env in environments:
        env.reset()
    for env in environments:
        env.step(WORK)
    started(5)
    assert environments[0].step(SUBMIT)[1] == 1.0
    environments[2].step(WORK)
    started(6)
    environments[1].close()
    assert environments[2].step(SUBMIT)[1] == 1.0
    assert len(CountedSandbox.started) == 6
    eventually(all_closed, 60, "all sandboxes are closed")


def test_none_waits_beside_a_policy_that_has_a_network(make: Make) -> None:
    env = make({"network": "egress"})
    env.reset()
    env.step(WORK)
    started(1)


def test_a_sandbox_is_closed_even_if_no_thread_can_start(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    env.reset()
    env.step(WORK)
    started(2)

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("swe_gym.envs.group.in_thread", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        env.step(SUBMIT)
    env.close()
    eventually(all_closed, 60, "all sandboxes are closed")


class WaitingContainer(ContainerSandbox):
    """A container backend that lets four sandboxes wait, as a user writes it."""

    waiting = 4

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(backend="waiting", isolation="container")

    def _connect(self, deadline: float) -> ByteStream:
        raise NotImplementedError

    def _disconnect(self) -> None:
        pass


def test_a_backend_with_images_sets_how_many_wait_like_any_other() -> None:
    assert WaitingContainer(SandboxSpec(), activate="").waiting == 4


def test_grading_in_the_middle_of_an_episode_takes_the_one_that_waits_and_the_next_action_starts_another(
    make: Make,
) -> None:
    env = make()
    env.reset()
    env.step(WORK)
    assert env.grade().resolved
    started(2)
    env.step(WORK)
    started(3)
    assert env.step(SUBMIT)[1] == 1.0
    assert len(CountedSandbox.started) == 3


class SlowToClose(CountedSandbox):
    """A fake whose removal takes until the test ends."""

    over = threading.Event()

    def close(self) -> None:
        self.over.wait(60)
        super().close()


def test_the_removal_of_a_grading_sandbox_is_not_waited_for() -> None:
    task = Task(task_id="t", problem_statement="", workspace=FilesWorkspace(files={}), oracle=Oracle())
    with SandboxGroup(task, f"{__name__}:SlowToClose", {}) as group:
        with group.fresh():
            pass
        with group.fresh() as second:
            assert not CountedSandbox.started[-2].closed
            assert CountedSandbox.started[-1] is second
        SlowToClose.over.set()
    assert all_closed()
