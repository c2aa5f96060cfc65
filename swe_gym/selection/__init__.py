"""Choosing among attempts at a task, without a look at their grading."""

from typing import TYPE_CHECKING

from ..registry import Registry
from ..registry import load as _load
from .attempts import Selector

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .attempts import Candidate as Candidate
    from .attempts import Scores as Scores
    from .attempts import SelectionSettings as SelectionSettings
    from .attempts import TaskAttempts as TaskAttempts
    from .attempts import fixed_scores as fixed_scores
    from .choosing import Selection as Selection
    from .choosing import SelectorResult as SelectorResult
    from .choosing import read_candidates as read_candidates
    from .choosing import select as select

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


SELECTORS = Registry[Selector](
    "selector",
    {
        "votes": "swe_gym.selection.recorded:score_by_votes",
        "logprob": "swe_gym.selection.recorded:score_by_logprob",
        "tests": "swe_gym.selection.execution:score_by_tests",
        "judge": "swe_gym.selection.judging:score_by_judge [llm]",
        "hybrid": "swe_gym.selection.judging:score_by_both [llm]",
    },
    group="swe_gym.selectors",
)
