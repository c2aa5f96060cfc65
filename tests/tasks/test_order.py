"""`ShuffledOrder`: tasks without replacement."""

import pytest

from swe_gym.tasks.base import ShuffledOrder


@pytest.mark.parametrize("count", [1, 5, 14])
def test_each_pass_has_every_task_once_in_another_order(count: int) -> None:
    order = ShuffledOrder(count, 3)
    passes = [[order[number * count + place] for place in range(count)] for number in range(3)]
    assert all(sorted(one) == list(range(count)) for one in passes)
    assert count == 1 or passes[0] != passes[1]
    again = ShuffledOrder(count, 3)
    backwards = [again[place] for place in reversed(range(3 * count))]
    assert backwards[::-1] == [number for one in passes for number in one]


def test_a_million_tasks_are_shuffled_at_once() -> None:
    order = ShuffledOrder(1_000_000, 0)
    assert len({order[place] for place in range(1000)}) == 1000
