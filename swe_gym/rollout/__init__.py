"""Running episodes: one, a replay, or many in a pool and an engine.

`rollout.policies` has who plays, `rollout.tokens` conversations as token ids, `rollout.executors` where episodes run.
"""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .attempt import EpisodeJob as EpisodeJob
    from .engine import RolloutOptions as RolloutOptions
    from .engine import RolloutResult as RolloutResult
    from .engine import RolloutStopped as RolloutStopped
    from .engine import rollout as rollout
    from .episode import LiveEpisode as LiveEpisode
    from .episode import RecordedEpisode as RecordedEpisode
    from .episode import play as play
    from .episode import replay_trajectory as replay_trajectory
    from .plan import Plan as Plan
    from .plan import hash_config as hash_config
    from .plan import without_secrets as without_secrets
    from .pool import CLOSE_TIMEOUT as CLOSE_TIMEOUT
    from .pool import NODE_RETRIES as NODE_RETRIES
    from .pool import DriverLink as DriverLink
    from .pool import EpisodePool as EpisodePool
    from .pool import Executor as Executor
    from .pool import Job as Job
    from .pool import OutcomeJob as OutcomeJob
    from .pool import run_outcomes as run_outcomes
    from .progress import Failure as Failure
    from .progress import Progress as Progress
    from .progress import RolloutBudget as RolloutBudget
    from .progress import check_price as check_price

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
