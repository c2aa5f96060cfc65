"""The Gymnasium environment and the ids under which it is registered."""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .arguments import check_sandbox as check_sandbox
    from .arguments import shared_source as shared_source
    from .arguments import warn_of_time_limit as warn_of_time_limit
    from .checkpoint import Difference as Difference
    from .checkpoint import EpisodeCheckpoint as EpisodeCheckpoint
    from .checkpoint import check_replayable as check_replayable
    from .checkpoint import find_differences as find_differences
    from .episode import SHOWN_TURNS as SHOWN_TURNS
    from .episode import WORLD_ERRORS as WORLD_ERRORS
    from .episode import ShownTurn as ShownTurn
    from .episode import ToolEnv as ToolEnv
    from .episode import draw_turns as draw_turns
    from .episode import format_end as format_end
    from .episode import format_turn as format_turn
    from .episode import format_turns as format_turns
    from .group import SandboxGroup as SandboxGroup
    from .group import task_spec as task_spec
    from .group import verifier_spec as verifier_spec
    from .registration import make_env as make_env
    from .registration import register_families as register_families
    from .registration import register_tasks as register_tasks
    from .swe_env import MAX_ACTION as MAX_ACTION
    from .swe_env import SANDBOX_FAILED as SANDBOX_FAILED
    from .swe_env import SweEnv as SweEnv

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
