"""Gymnasium wrappers for `SweEnv`. The versions for `SweVectorEnv` are in `swe_gym.wrappers.vector`."""

from .budget import Budget
from .chat_messages import ChatMessages
from .hashed_text import HashedText
from .record_trajectory import RecordTrajectory
from .shape_reward import ShapeReward
from .task_curriculum import Curriculum, TaskCurriculum
from .tool_menu import ToolMenu
from .truncate_observation import TruncateObservation

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
