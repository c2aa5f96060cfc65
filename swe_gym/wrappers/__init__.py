"""Gymnasium wrappers for `SweEnv`. The versions for `SweVectorEnv` are in `swe_gym.wrappers.vector`."""

from typing import TYPE_CHECKING

from ..door import load as _load

if TYPE_CHECKING:  # read by `door`: a name is imported when it is first used
    from .budget import Budget as Budget
    from .chat_messages import ChatMessages as ChatMessages
    from .hashed_text import HashedText as HashedText
    from .record_trajectory import RecordTrajectory as RecordTrajectory
    from .shape_reward import ShapeReward as ShapeReward
    from .task_curriculum import Curriculum as Curriculum
    from .task_curriculum import TaskCurriculum as TaskCurriculum
    from .tool_menu import ToolMenu as ToolMenu
    from .truncate_observation import TruncateObservation as TruncateObservation

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
    "TaskCurriculum",
    "ToolMenu",
    "TruncateObservation",
]
