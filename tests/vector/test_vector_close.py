"""The end of a vector environment: close, interrupts, garbage collection."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from vector_parts import TIMEOUT, Scripted

from swe_gym.vector import SweVectorEnv

Make = Callable[..., SweVectorEnv]
Gates = dict[str, threading.Event]

SLEEP = '{"name": "bash", "arguments": {"command": "sleep 300"}}'


def real(folder: Path, count: int = 2) -> SweVectorEnv:
    return SweVectorEnv([lambda: gym.make("SWE/Local-v0", path=str(folder), test_cmd="false")] * count)


def ctrl_c() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_close_cancels_running_calls(tmp_path: Path) -> None:
    envs = real(tmp_path)
    envs.reset()
    sandboxes = [env.unwrapped.sandbox for env in envs.envs]
    envs.send((SLEEP, SLEEP))
    with pytest.raises(TimeoutError):
        envs.recv(timeout=0.2)
    envs.close()
    assert all(sandbox.closed for sandbox in sandboxes)
    _, rewards, _, truncations, infos = envs.drain()
    assert truncations.all()
    assert not infos["reward_valid"].any()
    assert not rewards.any()
    assert set(infos["outcome"]) == {"infra_failed"}
    with pytest.raises(ClosedEnvironmentError):
        envs.recv()


class CountsResets(gym.Wrapper):  # type: ignore[type-arg]  # of any kind of environment
    resets = 0

    def reset(self, **how: Any) -> Any:
        self.resets += 1
        return super().reset(**how)


def test_a_cancelled_step_starts_no_episode(tmp_path: Path) -> None:
    def make() -> CountsResets:
        return CountsResets(gym.make("SWE/Local-v0", path=str(tmp_path), test_cmd="false"))

    envs = SweVectorEnv([make] * 2, autoreset_mode="SameStep")
    envs.reset()
    envs.send((SLEEP, SLEEP))
    with pytest.raises(TimeoutError):
        envs.recv(timeout=0.2)
    envs.close()
    assert envs.drain()[3].all()
    assert [env.resets for env in envs.envs] == [1, 1]


class SlowToBegin(gym.Env):  # type: ignore[type-arg]  # its observations are numbers
    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2)

    def __init__(self, begin: threading.Event) -> None:
        self.asked, self._begin = threading.Event(), begin

    def reset(self, **_: Any) -> Any:
        self.asked.set()
        self._begin.wait(TIMEOUT)
        return np.zeros(3, np.float32), {}


def test_a_cancelled_first_episode_is_a_row() -> None:
    begin = threading.Event()
    envs = SweVectorEnv([lambda: SlowToBegin(begin)] * 2)
    envs.send_reset()
    assert all(env.unwrapped.asked.wait(TIMEOUT) for env in envs.envs)
    with pytest.warns(UserWarning, match="left behind"):
        envs.close(timeout=0.1)
    observations, *_, infos = envs.drain()
    begin.set()
    assert observations.shape == (2, 3)
    assert infos["failure"].tolist() == ["closed", "closed"]


def test_a_killed_sandbox_affects_only_its_slot(tmp_path: Path) -> None:
    with real(tmp_path, 3) as envs:
        envs.reset()
        hello = '{"name": "bash", "arguments": {"command": "echo hello"}}'
        envs.step_async((hello, SLEEP, hello))
        threading.Timer(0.2, envs.envs[1].unwrapped.sandbox.close).start()
        observations, _, _, truncations, infos = envs.step_wait(TIMEOUT)
        assert truncations.tolist() == [False, True, False]
        assert infos["outcome"].tolist() == ["running", "infra_failed", "running"]
        assert infos["reward_valid"].tolist() == [False] * 3
        assert observations[0] == observations[2] == "hello\n[exit code 0]"
        observations, *_, infos = envs.step((hello,) * 3)
        assert infos["turn"].tolist() == [2, 0, 2]


def test_close_in_another_thread_ends_a_wait(tmp_path: Path) -> None:
    envs = real(tmp_path)
    envs.reset()
    envs.send((SLEEP, SLEEP))
    closer = threading.Timer(0.2, envs.close)
    closer.start()
    assert envs.drain(timeout=TIMEOUT)[3].all()
    closer.join(TIMEOUT)
    assert envs.closed


def test_close_works_before_reset_and_twice(tmp_path: Path) -> None:
    with real(tmp_path) as envs:
        pass
    envs.close()
    assert envs.closed


def test_a_hanging_environment_does_not_block_close(make_scripted: Make, gates: Gates) -> None:
    envs = make_scripted()
    envs.reset()
    envs.send(("wait for ever",), [1])
    assert envs.envs[1].started.wait(TIMEOUT)
    with pytest.warns(UserWarning, match=r"slots \[1\] did not end within 2 s"):  # the others do
        envs.close(timeout=2.0)
    assert [env.closed for env in envs.envs] == [1, 0, 1]
    assert envs.recv()[4]["failure"].tolist() == ["closed"]
    left = envs._slots[1]._thread
    gates["for ever"].set()
    left.join(TIMEOUT)
    assert envs.envs[1].closed == 1
    assert not envs.in_flight


def test_an_error_in_close_is_raised_after_all_are_closed() -> None:
    class Stubborn(Scripted):
        def close(self) -> None:
            super().close()
            raise RuntimeError("will not")

    envs = SweVectorEnv([Stubborn, Scripted, Stubborn])
    with pytest.raises(RuntimeError, match="will not"):
        envs.close()
    assert [env.closed for env in envs.envs] == [1, 1, 1]


def test_close_warns_about_unfetched_results(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.step_async(("x",) * 3)
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step`"):
        envs.close()


def test_an_interrupt_loses_nothing(make_scripted: Make, gates: Gates) -> None:
    envs = make_scripted()
    envs.reset()

    def interrupt() -> None:
        assert envs.envs[1].started.wait(TIMEOUT)
        ctrl_c()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        envs.step(("x", "wait gate", "z"))
    thread.join(TIMEOUT)
    gates["gate"].set()
    assert envs.step_wait(TIMEOUT)[0] == ("a x", "b wait gate", "c z")
    assert envs.step(("1", "2", "3"))[0] == ("a 1", "b 2", "c 3")


@pytest.fixture
def armed() -> Iterator[list[bool]]:
    """Ctrl-C interrupts once whenever this list holds True, so never the test itself."""
    armed = [False]

    def handler(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    yield armed
    signal.signal(signal.SIGINT, before)


def test_interrupts_at_any_moment(make_scripted: Make, armed: list[bool]) -> None:
    """A thread interrupts continuously; every step runs once, and results match their actions."""
    envs = make_scripted(4)
    envs.reset()
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.0007):
            ctrl_c()

    thread = threading.Thread(target=interrupt)
    thread.start()
    interrupts = 0
    while len(envs.envs[0].actions) < 150 or not interrupts:
        step = len(envs.envs[0].actions) + 1
        try:
            armed[0] = True
            if not envs.in_flight:
                envs.step_async([f"{step}"] * 4)
            assert set(envs.step_wait(TIMEOUT)[1]) == {1.0}
            armed[0] = False
        except KeyboardInterrupt:
            interrupts += 1
            if envs.in_flight:
                envs.step_wait(TIMEOUT)
    stop.set()
    thread.join(TIMEOUT)
    for env in envs.envs:
        assert env.actions == [f"{step + 1}" for step in range(len(env.actions))]
    assert len({len(env.actions) for env in envs.envs}) == 1


def test_garbage_collection_closes() -> None:
    gc.collect()
    envs = SweVectorEnv([Scripted] * 3)
    envs.reset()
    inner = list(envs.envs)
    threads = [slot._thread for slot in envs._slots]
    del envs
    gc.collect()
    assert [env.closed for env in inner] == [1, 1, 1]
    assert not any(thread.is_alive() for thread in threads)


def test_a_program_that_forgets_to_close_ends(tmp_path: Path) -> None:
    program = (
        "import gymnasium, swe_gym\n"
        f"envs = gymnasium.make_vec('SWE/Local-v0', num_envs=2, path={str(tmp_path)!r}, test_cmd='false')\n"
        "envs.reset()\n"
        f"envs.send(({SLEEP!r}, {SLEEP!r}))\n"
        "print(*(env.unwrapped.sandbox.id for env in envs.envs))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    assert len(result.stdout.split()) == 2


def test_a_fork_leaves_the_parents_environments_alone(make_scripted: Make) -> None:
    envs = make_scripted()
    envs.reset()
    pid = os.fork()
    if pid == 0:
        try:
            envs.step(("x",) * 3)
        except ClosedEnvironmentError:
            envs.close()
            os._exit(sum(env.closed for env in envs.envs))
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert envs.step(("x", "y", "z"))[0] == ("a x", "b y", "c z")
