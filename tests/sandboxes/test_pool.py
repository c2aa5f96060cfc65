"""The warm pool, over fake sandboxes whose starts are watched."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from swe_gym.errors import SandboxClosed, SandboxStartError, TaskError, UsageError
from swe_gym.sandboxes import Sandbox, SandboxSpec
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.sandboxes.pool import WarmPool

STARTED: list["Watched"] = []
GATE = threading.Event()


class Watched(FakeSandbox):
    """Counts starts, and starts only when the gate is open."""

    def _start(self, deadline: float) -> None:
        STARTED.append(self)
        assert GATE.wait(60)
        super()._start(deadline)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    STARTED.clear()
    GATE.set()
    yield
    GATE.set()


def pool(**settings: Any) -> WarmPool:
    return WarmPool(f"{__name__}:Watched", **settings)


def spec(**options: Any) -> SandboxSpec:
    return SandboxSpec(options=options)


def test_wanted_sandboxes_start_before_they_are_taken() -> None:
    with pool() as warm:
        assert warm.want(spec(), 2) == 2
        first, second = warm.take(spec()), warm.take(spec())
        assert len(STARTED) == 2
        assert {first, second} == set(STARTED)
        first.close()
        second.close()


def test_the_one_that_is_ready_is_taken_first() -> None:
    with pool(starting=1) as warm:
        warm.want(spec())
        ready = warm.take(spec(), refill=True)
        GATE.clear()
        ready.close()
        assert ready.closed
        GATE.set()
        warm.take(spec()).close()
        assert len(STARTED) == 2


def test_without_a_wish_one_is_opened() -> None:
    with pool() as warm, warm.take(spec()) as sandbox:
        assert sandbox.exec("true").ok


def test_one_that_could_not_be_handed_over_is_closed() -> None:
    fails = spec(faults=[{"at": "exec", "error": "TaskError"}])  # as an interrupt would, it comes while we look at it
    with pool() as warm:
        warm.want(fails)
        with pytest.raises(TaskError):
            warm.take(fails)
        assert [sandbox.closed for sandbox in STARTED] == [True]


def test_specs_are_not_mixed_up() -> None:
    with pool() as warm:
        warm.want(spec(files={"a": "1"}))
        with warm.take(spec(files={"b": "2"})) as other:
            assert other.read_file("b") == b"2"
        with warm.take(spec(files={"a": "1"})) as wanted:
            assert wanted.read_file("a") == b"1"
        assert len(STARTED) == 2


def test_the_pool_is_bounded() -> None:
    with pool(ready=3) as warm:
        assert warm.want(spec(), 2) == 2
        assert warm.want(spec(), 2) == 1
        assert warm.want(spec(), 2) == 0


def test_closing_closes_what_was_not_taken_and_only_that() -> None:
    warm = pool()
    warm.want(spec(), 3)
    taken = warm.take(spec())
    warm.close()
    warm.close()
    assert [sandbox for sandbox in STARTED if not sandbox.closed] == [taken]
    taken.close()
    with pytest.raises(SandboxClosed):
        warm.want(spec())
    with pytest.raises(SandboxClosed):
        warm.take(spec())


def test_a_start_that_failed_in_the_background_is_tried_once_more_for_the_taker() -> None:
    broken = spec(faults=[{"at": "start", "nth": "every", "error": "SandboxStartError", "reason": "capacity"}])
    with pool() as warm:
        warm.want(broken)
        with pytest.raises(SandboxStartError):
            warm.take(broken)
        assert len(STARTED) == 2


def test_many_threads_take_each_its_own() -> None:
    taken: list[Sandbox] = []
    with pool(ready=8) as warm:
        warm.want(spec(), 8)
        threads = [threading.Thread(target=lambda: taken.append(warm.take(spec()))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len({sandbox.id for sandbox in taken}) == 16
    for sandbox in taken:
        sandbox.close()
    assert all(sandbox.closed for sandbox in STARTED)


def test_invalid_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        pool(starting=0)
