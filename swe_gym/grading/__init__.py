"""Judges work: puts its patch and the hidden tests into fresh sandboxes, and has a grader run them there.

The grader "reward" is the exception: it judges the policy's own sandbox. See `in_place`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..registry import Registry
from ..registry import load as _load
from ..types import Reward, Verdict

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .conditions import run_plainly as run_plainly
    from .counter import CounterOptions as CounterOptions
    from .diff import file_diff as file_diff
    from .diff import split_diff as split_diff
    from .graders import find_statuses as find_statuses
    from .ids import parse_id as parse_id
    from .judge import grade as grade
    from .patch import DiffReader as DiffReader
    from .patch import Patch as Patch
    from .patch import apply_diff as apply_diff
    from .patch import list_work as list_work
    from .patch import read_state as read_state
    from .patch import take_patch as take_patch
    from .plan import parse_command as parse_command
    from .protect import Protection as Protection
    from .protect import hidden_files as hidden_files
    from .reporter import STEADY_ENV as STEADY_ENV
    from .seal import hidden_places as hidden_places
    from .seal import seal_workspace as seal_workspace
    from .signs import signs_in_call as signs_in_call
    from .signs import signs_in_work as signs_in_work
    from .staging import put_tests_in as put_tests_in

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


GRADERS = Registry[Any](
    "grader",
    {
        "tests": "swe_gym.grading.graders:TESTS",
        "exit_code": "swe_gym.grading.graders:EXIT_CODE",
        "log": "swe_gym.grading.graders:LOG",
        "expected": "swe_gym.grading.graders:EXPECTED",
        "reward": "swe_gym.grading.in_place:grade_in_place",
    },
    group="swe_gym.graders",
)

REWARDS = Registry[Callable[[Verdict], Reward]](
    "reward",
    {
        "binary": "swe_gym.grading.rewards:binary",
        "fraction": "swe_gym.grading.rewards:fraction",
        "shaped": "swe_gym.grading.rewards:shaped",
    },
    group="swe_gym.rewards",
)
