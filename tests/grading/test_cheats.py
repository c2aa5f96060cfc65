"""Every published cheat scores 0, and honest work of every shape 1."""

from collections.abc import Callable

import pytest

from swe_gym.sandboxes import Sandbox
from swe_gym.testing.cheats import CHEATS, HONEST, Cheat, play_cheat
from swe_gym.types import Task


@pytest.mark.parametrize("cheat", [*CHEATS, *HONEST], ids=lambda cheat: cheat.name)
def test_only_honest_work_counts(cheat: Cheat, task: Task, open_box: Callable[[Task], Sandbox]) -> None:
    result = play_cheat(cheat, task, open_box)
    assert result.verdict.resolved is cheat.resolved, (result.verdict, result.verdict.log, result.output)
    assert not result.leaked, result.output
