"""Episodes that live across updates. Needs neither torch nor a tokenizer."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from test_collect import SUBMIT, collector, divide

from swe_gym.errors import PolicyError
from swe_gym.train.collect import AsyncCollector, End, PlayedBatch, TrainSlot


@contextlib.contextmanager
def in_flight(answer: Any, slots: Sequence[TrainSlot], ends: Sequence[End] = ()) -> Iterator[AsyncCollector]:
    """A collector with two workers that plays slots."""
    with contextlib.closing(collector(answer)) as one, contextlib.closing(AsyncCollector(one, 1.0)) as ahead:
        ahead.add(slots, ends)
        yield ahead


def groups(count: int, size: int = 2) -> list[TrainSlot]:
    return [TrainSlot("micro-1-1", group, 10 * group + index) for group in range(count) for index in range(size)]


def seeds(played: PlayedBatch) -> list[int | None]:
    return [one.seed for one in played.trajectories]


class Slow:
    """Submits at once, but for seed 1, which belongs to group 0: it waits until `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[int | None] = []

    def __call__(self, seed: int | None, number: int) -> str:  # noqa: ARG002
        self.asked.append(seed)
        if seed == 1:
            self.release.wait(600)
        return SUBMIT


@pytest.mark.slow
def test_a_slow_group_is_overtaken_and_never_discarded() -> None:
    slow = Slow()
    with in_flight(slow, groups(4)) as ahead:
        assert seeds(ahead.take(2)) == [10, 11, 20, 21]
        left = {slot.seed: end for slot, end in ahead.in_flight()}
        assert left[1] is None
        assert (set(left), ahead.groups) == ({0, 1, 30, 31}, 2)
        ahead.add([TrainSlot("micro-1-1", 4, 40)])  # while an episode runs
        assert seeds(ahead.take(1, [4])) == [40]
        slow.release.set()
        assert seeds(ahead.take(2)) == [0, 1, 30, 31]
        assert ahead.groups == 0
        ahead.add([TrainSlot("micro-1-1", 5, 50)])  # after all have ended
        played = ahead.take(1)
    assert seeds(played) == [50]
    assert played.seconds["all"] * 2 == pytest.approx(sum(played.seconds.values()) - played.seconds["all"])


def test_episodes_in_flight_start_again_and_those_that_ended_do_not() -> None:
    slow = Slow()
    with in_flight(slow, groups(2)) as ahead:
        ahead.take(1)
        saved = ahead.in_flight()
    slow.release.set()
    assert [slot.seed for slot, _ in saved] == [0, 1]
    again = Slow()
    again.release.set()
    slots, ends = zip(*saved, strict=True)
    with in_flight(again, slots, ends) as ahead:
        assert seeds(ahead.take(1)) == [0, 1]
    assert again.asked == [slot.seed for slot, end in saved if end is None]


def no_route(seed: int | None, number: int) -> str:  # noqa: ARG001
    if seed in {0, 1}:
        raise PolicyError("no route", reason="connection")
    return SUBMIT


def test_a_lost_group_is_taken_once() -> None:
    """A resumed run takes the same groups again, so those without episodes are named too."""
    with in_flight(no_route, groups(2)) as ahead:
        played = ahead.take(2)
        assert (seeds(played), len(played.lost)) == ([10, 11], 2)
        assert (sorted(played.all_groups), ahead.groups) == ([0, 1], 0)


def test_a_mistake_ends_the_collection() -> None:
    with in_flight(divide, groups(2)) as ahead, pytest.raises(ZeroDivisionError):
        ahead.take(1)


def test_closing_does_not_wait_for_answers() -> None:
    slow = Slow()
    with in_flight(slow, groups(1)) as ahead:
        ahead.add([TrainSlot("micro-1-1", 1, 5)])
        ahead.take(1)
    assert not slow.release.is_set()
    slow.release.set()  # its thread ends
