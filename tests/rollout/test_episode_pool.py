"""The pool of jobs, on an executor that the test controls: nothing runs until the test says so."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from swe_gym.remote import NodeLost
from swe_gym.rollout.pool import TICK, EpisodePool, Job, OutcomeJob, Threads, retry_delay, run_outcomes


class Echo(Job[str]):
    """A job that runs or fails when the test says so."""

    def run(self) -> None: ...

    def close(self) -> None: ...


class ByHand:
    """Ends jobs in the given order, each once all jobs before it have ended; others never end."""

    def __init__(self, order: Sequence[str] = ()) -> None:
        self._order = list(order)
        self.started: list[Echo] = []
        self.cancelled: list[str] = []
        self.left: bool | None = None

    def has_room(self, wanted: int) -> bool:  # noqa: ARG002
        return True

    def start(self, job: Any, ended: Callable[[Any], None]) -> None:
        self.started.append(job)
        while self._order and (due := [one for one in self.started if one.key == self._order[0]]):
            self._order.pop(0)
            ended(due[0])

    def cancel(self, job: Any) -> None:
        self.cancelled.append(f"{job.key}: {job.cancelled}")

    def join(self, jobs_left: bool) -> None:
        self.left = jobs_left


def test_jobs_end_in_any_order_and_a_free_worker_takes_the_next_key() -> None:
    hands = ByHand(order=["b", "a", "c"])
    with EpisodePool(Echo, workers=2, executor=hands) as pool:
        ends = [job.key for job in pool.run("abc")]
    assert ends == ["b", "a", "c"]
    assert hands.left is False


def test_retry_is_refused_after_the_last_try() -> None:
    pool = EpisodePool(Echo, workers=1, retries=1)
    assert pool.retry(Echo("a", 1))
    assert not pool.retry(Echo("a", 2))
    pool.drain("enough")
    assert (pool.dropped, pool.stopping) == (["a"], "enough")
    assert not pool.retry(Echo("a", 1))
    assert list(pool.run(())) == []


def test_dropped_keys_never_start() -> None:
    pool = EpisodePool(Echo, workers=1, retries=1, warm=1, executor=ByHand(order=["a", "e", "d"]))

    def drop_while_adding(key: str) -> bool:
        if key == "d":
            pool.add("e")
        return key in "bc"

    with pool:
        ends = []
        for job in pool.run("abcd"):
            ends.append(job.key)
            if job.key == "a":
                assert pool.retry(Echo("b", 1))
                pool.drop(drop_while_adding)  # one prepared, one waiting, one to be retried
    assert ends == ["a", "e", "d"]


def test_delays_double_up_to_half_a_minute() -> None:
    assert [retry_delay(number) for number in (2, 3, 4, 9)] == [1.0, 2.0, 4.0, 30.0]


@pytest.mark.parametrize(
    ("settings", "cancelled"), [({"wall_clock": -1.0}, "wall_clock"), ({"stragglers": 1}, "straggler")]
)
def test_a_cancelled_job_that_does_not_end_is_abandoned(settings: dict[str, Any], cancelled: str) -> None:
    hands = ByHand()
    with EpisodePool(Echo, workers=1, grace=-1.0, executor=hands, **settings) as pool:
        (job,) = pool.run("a")
    assert (job.abandoned, hands.cancelled, hands.left) == (True, [f"a: {cancelled}"], True)


def test_a_job_may_take_more_than_the_wall_clock() -> None:
    class Patient(Echo):
        def more_seconds(self) -> float:
            return 1000.0 if self.key == "a" else 0.0

    hands = ByHand()
    with EpisodePool(Patient, workers=2, grace=-1.0, wall_clock=-1.0, executor=hands) as pool:
        assert next(pool.run("ab")).key == "b"
        assert hands.cancelled == ["b: wall_clock"]


def test_leaving_the_block_cancels_what_runs_and_starts_no_more() -> None:
    hands = ByHand(order=["a"])
    with pytest.raises(RuntimeError), EpisodePool(Echo, workers=2, grace=-1.0, executor=hands) as pool:
        raise RuntimeError(next(pool.run("abcd")).key)
    assert sorted(hands.cancelled) == ["b: stopped"]
    assert len(hands.started) == 2


class Tireless(Job[str]):
    """Runs until the test lets it end."""

    def __init__(self, key: str, number: int = 1) -> None:
        super().__init__(key, number)
        self.may_end = threading.Event()

    def run(self) -> None:
        self.may_end.wait(60)

    def close(self) -> None: ...


def test_cancelling_again_and_again_wakes_the_pool_once() -> None:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        pool.cancel("interrupted")
        if ticks > 3:
            for job in pool.running:
                job.may_end.set()

    started = time.monotonic()
    with EpisodePool(Tireless, workers=1, on_tick=tick) as pool:
        (job,) = pool.run("a")
    assert (job.cancelled, job.abandoned) == ("interrupted", False)
    assert time.monotonic() - started > 2 * TICK  # it waited between the ticks


def test_a_pool_that_has_nothing_left_is_not_stopped_by_leaving_it() -> None:
    with EpisodePool(Echo, workers=2, executor=ByHand(order=["a", "b"])) as pool:
        assert len(list(pool.run("ab"))) == 2
    assert pool.stopping == ""


def test_jobs_that_have_ended_are_not_abandoned_while_the_caller_is_busy() -> None:
    class Obedient(ByHand):
        """Ends a job when it is cancelled."""

        def start(self, job: Any, ended: Callable[[Any], None]) -> None:
            super().start(job, ended)
            self._ended = ended

        def cancel(self, job: Any) -> None:
            self._ended(job)

    with EpisodePool(Echo, workers=2, grace=-1.0, wall_clock=-1.0, executor=Obedient()) as pool:
        assert [job.abandoned for job in pool.run("ab")] == [False, False]


class Prepared(Echo):
    """Notes that it was prepared or closed."""

    def __init__(self, notes: list[str], key: str, number: int) -> None:
        super().__init__(key, number)
        self._notes = notes

    def prepare(self) -> None:
        self._notes.append(f"prepare {self.key}")

    def close(self) -> None:
        self._notes.append(f"close {self.key}")


def test_the_next_jobs_are_prepared_and_closed_if_they_never_start() -> None:
    notes: list[str] = []
    make = functools.partial(Prepared, notes)
    with EpisodePool(make, workers=1, warm=2, executor=ByHand(order=["a", "b"])) as pool:
        jobs = pool.run("abcd")
        assert next(jobs).key == "a"
        assert notes == ["prepare b", "prepare c"]
        assert next(jobs).key == "b"
        pool.drain("enough")
        assert list(jobs) == []
    assert notes[:3] == ["prepare b", "prepare c", "prepare d"]
    assert sorted(notes[3:]) == ["close c", "close d"]


class Failing(Job[str]):
    """Raises its key."""

    def run(self) -> None:
        raise ValueError(self.key)

    def close(self) -> None: ...


def test_threads_keep_the_error_of_a_job() -> None:
    with EpisodePool(Failing, workers=2, executor=Threads()) as pool:
        errors = {job.key: repr(job.error) for job in pool.run("ab", raising=False)}
    assert errors == {"a": "ValueError('a')", "b": "ValueError('b')"}
    with pytest.raises(ValueError, match="a"), EpisodePool(Failing, workers=1) as pool:
        next(pool.run("a"))


class Unlucky(OutcomeJob[str, int]):
    """Its node is lost in the first try, its sandbox in the second one."""

    def run(self) -> None:
        self.lost = NodeLost("gone", reason="node") if self.number == 1 else None
        self.outcome, self.retryable = self.number, self.number > 1

    def work(self) -> Any:
        raise NotImplementedError


@pytest.mark.slow
def test_a_lost_node_does_not_use_up_the_second_try_of_a_job() -> None:
    (job,) = run_outcomes(Unlucky, "a", workers=1, executor=Threads())
    assert job.outcome == 3  # and not a fourth try, though another might help
