"""Vector environments that are closed after the test."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vector_parts import Scripted

from swe_gym.vector import SweVectorEnv


@pytest.fixture
def gates() -> Iterator[dict[str, threading.Event]]:
    """Gates that open at the end of the test."""
    opened: dict[str, threading.Event] = defaultdict(threading.Event)
    yield opened
    for gate in opened.values():
        gate.set()


@pytest.fixture
def make_scripted(gates: dict[str, threading.Event]) -> Iterator[Callable[..., SweVectorEnv]]:
    """Return a function that makes a vector environment of scripted ones, named "a", "b" and so on."""
    made: list[SweVectorEnv] = []

    def make(count: int = 3, **arguments: Any) -> SweVectorEnv:
        makers = [lambda name=name: Scripted(gates, name) for name in "abcdefgh"[:count]]
        made.append(SweVectorEnv(makers, **arguments))
        return made[-1]

    yield make
    for gate in gates.values():
        gate.set()
    for envs in made:
        envs.close()
