"""Gymnasium wrappers for `SweEnv`. The versions for `SweVectorEnv` are in `swe_gym.wrappers.vector`."""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .budget import Budget as Budget
    from .record_trajectory import RecordTrajectory as RecordTrajectory
    from .task_curriculum import Curriculum as Curriculum
    from .task_curriculum import TaskCurriculum as TaskCurriculum
    from .transform import ChatMessages as ChatMessages
    from .transform import HashedText as HashedText
    from .transform import ShapeReward as ShapeReward
    from .transform import StateSignature as StateSignature
    from .transform import ToolMenu as ToolMenu
    from .transform import TruncateObservation as TruncateObservation

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


__all__ = [
    "Budget",
    "ChatMessages",
    "Curriculum",
    "HashedText",
    "RecordTrajectory",
    "ShapeReward",
    "StateSignature",
    "TaskCurriculum",
    "ToolMenu",
    "TruncateObservation",
]
