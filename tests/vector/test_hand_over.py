"""Requests to more slots than wake at once."""

import threading

import pytest
from vector_parts import TIMEOUT, Scripted

from swe_gym.vector import ResultsNotReady, SweVectorEnv

MANY = 100
Gates = dict[str, threading.Event]


@pytest.fixture
def many(gates: Gates) -> SweVectorEnv:
    """A hundred slots. The tests open the gates and close it."""
    return SweVectorEnv([lambda: Scripted(gates)] * MANY)


def test_slots_work_in_parallel(many: SweVectorEnv, gates: Gates) -> None:
    with many as envs:
        envs.reset()
        envs.send(("wait gate",) * MANY)
        assert all(env.started.wait(TIMEOUT) for env in envs.envs)
        with pytest.raises(ResultsNotReady):
            envs.recv(timeout=0)
        gates["gate"].set()
        assert envs.drain(TIMEOUT)[4]["steps"].tolist() == [1] * MANY


def test_requests_in_many_small_parts_all_arrive(many: SweVectorEnv) -> None:
    with many as envs:
        envs.reset()
        for slot in range(MANY):
            envs.send(["x"], [slot])
        assert envs.drain(TIMEOUT)[4]["steps"].tolist() == [1] * MANY


def test_close_answers_requests_that_were_not_started(many: SweVectorEnv, gates: Gates) -> None:
    with many as envs:
        envs.reset()
        sent = envs.send(("wait gate",) * MANY)
        closing = threading.Thread(target=envs.close)
        closing.start()
        gates["gate"].set()
        closing.join(TIMEOUT)
        infos = envs.drain(TIMEOUT)[4]
        assert sorted(infos["ticket"].tolist()) == sent
    assert all(env.closed for env in envs.envs)
