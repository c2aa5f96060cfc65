"""`send` and `recv`: results as they come, each exactly once."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from vector_parts import TIMEOUT, Scripted

from swe_gym.errors import UsageError
from swe_gym.vector import ResultsNotReady, SweVectorEnv

Make = Callable[..., SweVectorEnv]
Gates = dict[str, threading.Event]


def test_recv_returns_what_is_ready(make_scripted: Make, gates: Gates) -> None:
    envs = make_scripted()
    envs.reset()
    tickets = envs.send(("wait slow", "1", "2"))
    observations, rewards, terminations, truncations, infos = envs.recv(min_ready=2)
    assert observations == ("b 1", "c 2")
    assert (rewards.tolist(), terminations.tolist(), truncations.tolist()) == ([1, 1], [False] * 2, [False] * 2)
    assert infos["env_id"].tolist() == [1, 2]
    assert infos["ticket"].tolist() == tickets[1:]
    assert infos["episode_id"].tolist() == [1, 1]
    assert envs.in_flight == 1
    envs.send(["3"], [2])
    assert envs.recv()[0] == ("c 3",)
    gates["slow"].set()
    assert envs.drain()[0] == ("a wait slow",)


def test_the_oldest_results_come_first(make_scripted: Make, gates: Gates) -> None:
    envs = make_scripted(4)
    envs.reset()
    envs.send(("wait a", "wait b", "wait c", "wait d"))
    for name in "dcba":  # finished one after the other, in the reverse order of sending
        gates[name].set()
        until_answered(envs, "abcd".index(name))
    assert envs.recv(1, max_ready=2)[4]["env_id"].tolist() == [0, 1]
    envs.send(["x"], [0])
    until_answered(envs, 0)
    assert envs.recv(1, max_ready=2)[4]["env_id"].tolist() == [2, 3]
    assert envs.recv()[4]["env_id"].tolist() == [0]


def until_answered(envs: SweVectorEnv, slot: int) -> None:
    """Wait until the slot's thread has answered; it answers before it takes the next request."""
    deadline = time.monotonic() + TIMEOUT
    while any(ticket.slot == slot for ticket in envs._tickets.waiting()):
        assert time.monotonic() < deadline


def test_recv_returns_what_is_ready_at_the_timeout(make_scripted: Make, gates: Gates) -> None:
    envs = make_scripted()
    envs.reset()
    envs.send(("wait one", "wait two"), [0, 1])
    with pytest.raises(ResultsNotReady):
        envs.recv(timeout=0.01)
    gates["two"].set()
    assert envs.recv(min_ready=1, timeout=TIMEOUT)[0] == ("b wait two",)
    with pytest.raises(ResultsNotReady, match="1 of 1"):
        envs.drain(timeout=0)
    gates["one"].set()
    assert envs.recv(min_ready=3, timeout=TIMEOUT)[0] == ("a wait one",)
    with pytest.raises(NoAsyncCallError):
        envs.recv()
    with pytest.raises(NoAsyncCallError):
        envs.drain()


def test_invalid_requests_do_nothing(make_scripted: Make, gates: Gates) -> None:
    envs = make_scripted(autoreset_mode="Disabled")
    envs.reset()
    envs.send(["wait gate"], [1])
    for actions, slots, error in [
        (("x", "y"), [0, 1], AlreadyPendingCallError),
        (("x", "y"), [0, 0], UsageError),
        (("x",), [3], UsageError),
        (("x",), [-1], UsageError),
        ((), [], UsageError),
        (("x",), [0, 2], UsageError),
        (("x", None), [0, 2], UsageError),
    ]:
        with pytest.raises(error):
            envs.send(actions, slots)
    for use in (envs.reset, lambda: envs.step("xyz"), lambda: envs.call("name")):
        with pytest.raises((AlreadyPendingCallError, TypeError)):
            use()
    with pytest.raises(UsageError):
        envs.recv(min_ready=0)
    with pytest.raises(UsageError):
        envs.recv(min_ready=3, max_ready=2)
    gates["gate"].set()
    assert envs.drain()[0] == ("b wait gate",)
    assert envs.envs[0].actions == []
    envs.send(["end"], [0])
    envs.drain()
    with pytest.raises(ResetNeeded):
        envs.send(["x", "y"], [0, 1])


def test_lockstep_and_asynchronous_calls_do_not_mix(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.reset_async()
    with pytest.raises(AlreadyPendingCallError, match=r"reset_wait\(\)"):
        envs.send(("x",), [0])
    with pytest.raises(AlreadyPendingCallError):
        envs.recv()
    envs.reset_wait()


def test_send_reset_starts_episodes(make_scripted: Make) -> None:
    envs = make_scripted(autoreset_mode="Disabled")
    envs.send_reset([2, 0], seed=4, options={"task_ids": ["p", None]})
    observations, rewards, _, _, infos = envs.drain()
    assert observations == ("c reset 1", "a reset 1")
    assert rewards.tolist() == [0, 0]
    assert infos["env_id"].tolist() == [2, 0]
    assert envs.envs[2].resets == [(4, {"task_id": "p"})]
    assert envs.envs[0].resets == [(5, None)]
    envs.send(("end", "x"), [0, 2])
    assert envs.drain()[2].tolist() == [True, False]
    envs.send_reset([0])
    assert envs.drain()[4]["episode_id"].tolist() == [2]


def test_an_error_is_raised_once_and_no_result_is_lost(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.reset()
    envs.send(("x", "raise mistake", "raise lost"))
    with pytest.raises(KeyError, match="a mistake"):
        envs.drain()
    observations, _, _, truncations, infos = envs.drain()
    assert observations == ("a x", "b reset 1", "c reset 1")
    assert truncations.tolist() == [False, True, True]
    assert infos["failure"].tolist() == [None, "KeyError", "SandboxLost (oom)"]


def test_batches_of_any_size_hold_arrays() -> None:
    with SweVectorEnv([lambda: gym.make("CartPole-v1")] * 4) as envs:
        envs.reset(seed=0)
        envs.send(np.array([0, 1, 0]), np.array([3, 1, 0]))
        observations, rewards, *_ = envs.drain()
        assert observations.shape == (3, 4)
        assert observations.dtype == np.float32
        assert rewards.shape == (3,)


def test_lockstep_and_asynchronous_episodes_are_equal() -> None:
    """Each slot's sequence is the same in any order of results."""
    makers = [lambda: gym.make("CartPole-v1", max_episode_steps=10)] * 4
    actions = np.random.default_rng(0).integers(2, size=(4, 60))
    with SweVectorEnv(makers) as one, SweVectorEnv(makers) as other:
        one.reset(seed=1)
        steps = [one.step(actions[:, step]) for step in range(60)]
        lockstep = [[step[0][slot].tolist() for step in steps] for slot in range(4)]
        other.reset(seed=1)
        other.send(actions[:, 0])
        free: list[list[Any]] = [[], [], [], []]
        while other.in_flight:
            observations, *_, infos = other.recv()
            for slot, observation in zip(infos["env_id"], observations, strict=True):
                free[slot].append(observation.tolist())
                if len(free[slot]) < 60:
                    other.send(actions[slot : slot + 1, len(free[slot])], [slot])
    assert free == lockstep


def test_several_threads_receive_each_result_once(make_scripted: Make) -> None:
    envs = make_scripted(8)
    envs.reset()
    seen: list[int] = []
    sent = envs.send(("x",) * 8)

    def receive() -> None:
        while True:
            try:
                seen.extend(envs.recv(timeout=TIMEOUT)[4]["ticket"].tolist())
            except NoAsyncCallError:
                return

    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(receive) for _ in range(4)]:
            future.result(TIMEOUT)
    assert sorted(seen) == sent


class Troubled(Scripted):
    """Fails at random, as sandboxes do."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < 0.05:
            action = "raise lost"
        return super().step(action)

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        self.broken_resets = int(self.np_random.random() < 0.05)
        return super().reset(**arguments)


@pytest.mark.parametrize("seed", range(4))
def test_every_ticket_is_answered_exactly_once(seed: int) -> None:
    """Send from several threads with failures, errors, timeouts, interrupts and a close."""
    chance = random.Random(seed)
    sent: list[int] = []
    received: list[int] = []
    envs = SweVectorEnv([Troubled] * 8)
    envs.reset(seed=seed)
    free = set(range(8))

    def receive(**arguments: Any) -> None:
        try:
            infos = envs.recv(**arguments)[4]
        except (ResultsNotReady, KeyError, NoAsyncCallError):
            return
        received.extend(infos["ticket"].tolist())
        free.update(infos["env_id"].tolist())

    for _ in range(400):
        slots = chance.sample(sorted(free), min(len(free), chance.randint(1, 4)))
        if slots:
            actions = chance.choices(["x", "end", "raise mistake"], weights=[90, 8, 2], k=len(slots))
            sent += envs.send(actions, slots)
            free.difference_update(slots)
        receive(min_ready=chance.randint(1, 4), timeout=chance.choice([0, 0.001, TIMEOUT]))
    closer = threading.Thread(target=envs.close)
    closer.start()
    closer.join(TIMEOUT)
    while envs.in_flight:
        receive()
    assert sorted(received) == sent
    with pytest.raises(ClosedEnvironmentError):
        envs.recv()
