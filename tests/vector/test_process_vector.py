"""`SweVectorEnv` over workers: what differs from threads is only where the environments run.

`test_ray_vector.py` runs some of these tests with Ray actors.
"""

import contextlib
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
from vector_parts import TIMEOUT, Scripted

from swe_gym.errors import SandboxLost, SweGymError, UsageError
from swe_gym.remote import link
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.vector import SweVectorEnv, workers
from swe_gym.wrappers.vector import RecordTrajectory

ACTIONS = ("1", "2", "3", "4")
LARGE = 4 << 20
"""More characters than a connection holds."""

LIST = '{"name": "listdir", "arguments": {}}'


def wide(size: int) -> gym.Env[str, str]:
    """An environment whose info has this many bytes."""
    env = Scripted(name="wide")
    step = env.step
    env.step = lambda action: (*step(action)[:4], {"bytes": bytes(size)})  # type: ignore[method-assign]
    return env


def broken() -> gym.Env[Any, Any]:
    raise RuntimeError(f"made in {os.getpid()}")


@pytest.fixture
def envs() -> Iterator[SweVectorEnv]:
    """Four environments in two processes, made by a function that is not importable."""
    names = iter("abcd")
    makers: list[Callable[[], gym.Env[Any, Any]]] = [lambda name=name: Scripted(name=name) for name in names]  # type: ignore[misc]
    with SweVectorEnv(makers, executor="process", processes=2) as made:
        yield made


def pids(envs: SweVectorEnv) -> list[int]:
    """Return the process of each slot."""
    return list(envs.get_attr("pid"))


def test_slots_share_processes_and_answer_as_in_threads(envs: SweVectorEnv) -> None:
    assert envs.reset(seed=3)[0] == ("a reset 1", "b reset 1", "c reset 1", "d reset 1")
    assert envs.get_attr("resets")[2] == [(5, None)]
    a, b, c, d = pids(envs)
    assert (a, c) == (b, d)
    assert len({a, c, os.getpid()}) == 3
    tickets = envs.send(("x", "y"), [3, 0])
    observations, rewards, *_, infos = envs.drain()
    assert (observations, rewards.tolist()) == (("d x", "a y"), [1.0, 1.0])
    assert (infos["ticket"].tolist(), infos["env_id"].tolist()) == (tickets, [3, 0])
    envs.set_attr("name", list("wxyz"))
    assert envs.step(ACTIONS)[0] == ("w 1", "x 2", "y 3", "z 4")
    with pytest.raises(AttributeError):
        envs.get_attr("unheard_of")
    with pytest.raises(UsageError, match="wrap them in env_fns"):
        envs.wrap(lambda env: env)
    for what, shown in (("mistake", KeyError), ("two", SweGymError), ("exit", RuntimeError)):
        with pytest.raises(shown) as caught:
            envs.step(("x", f"raise {what}", "raise lost", "z"))
        assert "slot 1" in caught.value.__notes__[0]
        infos = envs.step_wait()[4]
        assert infos["failure"][2] == "SandboxLost (oom)"
        assert isinstance(envs.errors[2], SandboxLost)
        assert envs.step(ACTIONS)[0][1].startswith("x reset")


def test_a_killed_process_fails_its_slots_and_starts_again_at_the_next_reset(envs: SweVectorEnv) -> None:
    envs.reset()
    first, _, _, last = pids(envs)
    os.kill(last, signal.SIGKILL)
    observations, rewards, _, truncations, infos = envs.step(ACTIONS)
    assert observations == ("a 1", "b 2", "c reset 1", "d reset 1")
    assert (rewards.tolist(), truncations.tolist()) == ([1, 1, 0, 0], [False, False, True, True])
    assert infos["_reward_valid"].tolist() == [False, False, True, True]
    assert infos["reward_valid"].tolist() == [False] * 4  # 0 where there is none, and in failed rows
    assert infos["failure"].tolist() == [None, None, *["SandboxLost (killed)"] * 2]
    envs.reset(options={"reset_mask": np.array([False, False, True, False])})
    assert envs.step(ACTIONS)[0] == ("a 1", "b 2", "c 3", "d reset 1")
    envs.send(("wait never",), [0])
    os.kill(first, signal.SIGKILL)
    assert envs.recv(timeout=TIMEOUT)[4]["outcome"].tolist() == ["infra_failed"]


class Lost:
    """An object whose class a worker does not find."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("no_such_module",)


def test_what_a_worker_cannot_read_does_not_end_it(envs: SweVectorEnv) -> None:
    envs.reset()
    before = pids(envs)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        envs.set_attr("name", Lost())
    assert (envs.step(ACTIONS)[0], pids(envs)) == (("a 1", "b 2", "c 3", "d 4"), before)


@pytest.mark.slow
def test_a_process_that_dies_while_it_starts_again_is_not_waited_for(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    def make() -> gym.Env[Any, Any]:
        if flag.exists():
            os._exit(3)
        return Scripted(name="a")

    with SweVectorEnv([make], executor="process") as envs:
        envs.reset()
        flag.touch()
        os.kill(pids(envs)[0], signal.SIGKILL)
        envs.step(("1",))
        envs.reset_async()
        assert envs.reset_wait(timeout=TIMEOUT)[1]["failure"].tolist() == ["SandboxLost (killed)"]
        flag.unlink()
        assert envs.reset()[0] == ("a reset 1",)


@pytest.mark.slow
def test_a_worker_that_stops_reading_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SEND_TIMEOUT", 1)
    with SweVectorEnv([Scripted], executor="process") as envs:
        envs.reset()
        os.kill(pids(envs)[0], signal.SIGSTOP)
        assert envs.step(["x" * LARGE])[4]["failure"].tolist() == ["SandboxLost (killed)"]
        assert envs.reset()[0] == (" reset 1",)


def test_close_does_not_wait_for_a_worker_that_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (link, workers):
        monkeypatch.setattr(module, "END_TIMEOUT", 0.5)
    envs = SweVectorEnv([Scripted] * 4, executor="process", processes=2)
    envs.reset()
    stopped = pids(envs)
    for pid in set(stopped):
        os.kill(pid, signal.SIGSTOP)
    envs.send(["x" * LARGE] * 4)
    envs.close(timeout=0.5)
    assert envs.recv()[4]["outcome"].tolist() == ["infra_failed"] * 4
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in stopped), 60, "the workers are killed")


@pytest.mark.slow
def test_what_is_too_large_or_cannot_be_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="env_fns cannot be sent to a worker process"):
        SweVectorEnv([lambda: lock], executor="process")  # type: ignore[list-item,return-value]  # never called
    with pytest.raises(UsageError, match="unknown executor 'processes'"):
        SweVectorEnv([Scripted], executor="processes")
    with pytest.raises(RuntimeError, match="made in") as caught:
        SweVectorEnv([Scripted, broken], executor="process", processes=1)
    pid = int(str(caught.value).rpartition(" ")[2])
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 60, "the worker ended")
    with SweVectorEnv([lambda: wide(64 << 20)], executor="process") as envs:
        envs.reset()
        with pytest.raises(UsageError, match="the result of 'step' has 67,"):
            envs.step(["x"])
        monkeypatch.setattr(workers, "MAX_BYTES", 1000)
        envs.step_wait()
        envs.reset()
        with pytest.raises(UsageError, match="an argument of 'step' has"):
            envs.step(["x" * 2000])
        envs.step_wait()


def test_real_sandboxes_run_in_the_workers_with_their_wrappers() -> None:
    wrappers = [lambda env: gym.wrappers.TimeLimit(env, 2)]
    with gym.make_vec("SWE/Toy-v0", num_envs=2, executor="process", processes=2, warm=2, wrappers=wrappers) as envs:
        for _ in range(2):  # the second episode takes a warm sandbox
            assert envs.reset(seed=1)[1]["outcome"].tolist() == ["running"] * 2
            envs.step([LIST] * 2)
            assert envs.step([LIST] * 2)[3].tolist() == [True, True]
        with pytest.raises(UsageError, match="wrap them in env_fns"):
            RecordTrajectory(envs)


PARENT = """
import os, time
import gymnasium
import swe_gym

envs = gymnasium.make_vec("SWE/Toy-v0", num_envs=2, executor="process", processes=2)
envs.reset(seed=1)
print(*(worker.link._process.pid for worker in envs._workers), flush=True)
if os.fork() == 0:  # it holds the connections open
    time.sleep(60)
envs.step_async(['{"name": "bash", "arguments": {"command": "sleep 60"}}'] * 2)
time.sleep(60)
"""


def children(pid: int) -> list[int]:
    found: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += path.read_text().split()
    return [int(one) for one in found]


def test_everything_ends_with_the_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        below = [*workers, *(child for worker in workers for child in children(worker))]
        eventually(lambda: len(children(parent.pid)) > 2, 60, "it has forked")
        fork = [one for one in children(parent.pid) if one not in workers]
        parent.kill()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 60, "no process is left")
        for pid in fork:
            os.kill(pid, signal.SIGKILL)
    assert len(workers) == 2
    assert len(below) > 2
