"""Sandboxes that are started ahead of time."""

import threading
from collections.abc import Sequence
from typing import ClassVar

import pytest
from vector_parts import TIMEOUT

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.sandboxes.pool import WarmPool
from swe_gym.types import Oracle, Task
from swe_gym.vector import SweVectorEnv

SUBMIT = '{"name": "submit", "arguments": {}}'


class TwentyTasks:
    """Tasks with different sandboxes, so that tests can tell them apart."""

    def ids(self) -> Sequence[str]:
        return tuple(f"task-{number}" for number in range(20))

    def get(self, task_id: str) -> Task:
        oracle = Oracle(test_cmd="true", grader="exit_code")
        return Task(task_id=task_id, problem_statement=task_id, env={"TASK": task_id}, oracle=oracle)


class Gated(FakeSandbox):
    """A fake that records the thread of each start. Warm ones wait at a gate if there is one."""

    starts: ClassVar[list[tuple[str, str]]] = []
    alive: ClassVar[list["Gated"]] = []
    gate: ClassVar[threading.Event] = threading.Event()

    def _start(self, deadline: float) -> None:
        thread = threading.current_thread().name
        self.starts.append((self.spec.env["TASK"], "warm" if thread.startswith("warm-pool") else "own"))
        self.alive.append(self)
        if thread.startswith("warm-pool"):
            while not self.gate.wait(0.01):
                if self.closed:
                    return
        super()._start(deadline)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Gated.starts.clear()
    Gated.alive.clear()
    Gated.gate.set()


def make() -> SweEnv:
    return SweEnv(f"{__name__}:TwentyTasks", backend=f"{__name__}:Gated", max_turns=3)


def tasks_of(envs: SweVectorEnv, episodes: int) -> list[list[str]]:
    played = [envs.reset(seed=1)[1]["task_id"].tolist()]
    while len(played) < episodes:
        infos = envs.step((SUBMIT,) * envs.num_envs)[4]
        if (infos["outcome"] == "running").all():
            played.append(infos["task_id"].tolist())
    return played


def test_resets_use_warm_sandboxes_and_play_the_same_tasks() -> None:
    with SweVectorEnv([make] * 3) as cold, SweVectorEnv([make] * 3, warm=3) as warm:
        expected = tasks_of(cold, 5)
        Gated.starts.clear()
        assert tasks_of(warm, 5) == expected
        of_episodes = [start for start in Gated.starts if start[1] == "warm"]
        assert sorted(task for task, _ in of_episodes[: 3 * 4]) == sorted(sum(expected[1:], []))  # noqa: RUF017  short
    assert all(sandbox.closed for sandbox in Gated.alive)


def test_a_new_seed_drops_the_drawn_task_and_a_named_task_does_not() -> None:
    plain, ahead = make(), make()
    with WarmPool(f"{__name__}:Gated", ready=4) as pool:
        for seed, task_id in [(1, None), (None, None), (None, "task-3"), (None, None), (5, None), (None, None)]:
            options = {"task_id": task_id} if task_id else None
            assert ahead.reset(seed=seed, options=options) == plain.reset(seed=seed, options=options)
            ahead.prepare_next(pool)
            ahead.prepare_next(pool)
        ahead.close()
        plain.close()
    assert all(sandbox.closed for sandbox in Gated.alive)


def test_no_more_sandboxes_are_started_than_requested() -> None:
    with SweVectorEnv([make] * 4, warm=1) as envs:
        envs.reset(seed=1)
        assert sum(kind == "warm" for _, kind in Gated.starts) <= 1


def test_close_ends_hanging_starts() -> None:
    Gated.gate.clear()
    envs = SweVectorEnv([make] * 2, warm=2)
    envs.reset(seed=1)
    envs.step((SUBMIT,) * 2)
    envs.step_async((SUBMIT,) * 2)  # waits for the warm ones
    with pytest.raises(TimeoutError):
        envs.step_wait(0.05)
    with pytest.warns(UserWarning, match="pending call"):
        envs.close(TIMEOUT)
    assert envs.closed
    assert all(sandbox.closed for sandbox in Gated.alive)


def test_a_dead_warm_sandbox_is_replaced() -> None:
    env = make()
    with WarmPool(f"{__name__}:Gated", ready=1) as pool:
        env.reset(seed=1)
        env.prepare_next(pool)
        warm = next(iter(pool._shelf.values()))[0]
        warm.start.result(TIMEOUT)
        warm.sandbox._close()
        warm.sandbox.close()
        assert env.reset()[1]["outcome"] == "running"
        assert not env.sandbox.closed
        env.close()


def test_warm_needs_swe_envs_and_a_number() -> None:
    import gymnasium

    for warm, message in ((1, "one backend"), (-1, "0 or more sandboxes, not -1")):
        with pytest.raises(UsageError, match=message):
            SweVectorEnv([lambda: gymnasium.make("CartPole-v1")], warm=warm)
