"""Software-engineering tasks as Gymnasium environments.

Importing it makes the ids `SWE/Toy-v0`, `SWE/Tasks-v0` and `SWE/Local-v0` known to Gymnasium.
"""

from .envs.registration import register_families as _register_families
from .envs.registration import register_tasks
from .envs.swe_env import SweEnv
from .errors import (
    ActionError,
    AgentError,
    GradingError,
    MissingDependency,
    SandboxClosed,
    SandboxError,
    SandboxLost,
    SandboxStartError,
    SweGymError,
    TaskError,
    ToolError,
    Unsupported,
    UsageError,
)
from .grading.patch import Patch
from .rollout.episode import play
from .rollout.policy import EmptyPolicy, GoldPolicy, Policy, ScriptedPolicy
from .rollout.trajectory import Trajectory, Turn
from .rollout.validate import TaskRecord, validate
from .sandboxes import Sandbox, SandboxSpec, open_sandbox
from .tasks import TaskSource, load_source
from .tools import Tool, ToolContext, make_tools
from .types import Action, ExecResult, Oracle, Reward, Task, ToolCall, ToolResult, ToolSpec, Verdict
from .wrappers.record_trajectory import RecordTrajectory

__version__ = "0.1.0"

__all__ = [
    "Action",
    "ActionError",
    "AgentError",
    "EmptyPolicy",
    "ExecResult",
    "GoldPolicy",
    "GradingError",
    "MissingDependency",
    "Oracle",
    "Patch",
    "Policy",
    "RecordTrajectory",
    "Reward",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "SandboxLost",
    "SandboxSpec",
    "SandboxStartError",
    "ScriptedPolicy",
    "SweEnv",
    "SweGymError",
    "Task",
    "TaskError",
    "TaskRecord",
    "TaskSource",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "Unsupported",
    "UsageError",
    "Verdict",
    "__version__",
    "load_source",
    "make_tools",
    "open_sandbox",
    "play",
    "register_tasks",
    "validate",
]

_register_families()
