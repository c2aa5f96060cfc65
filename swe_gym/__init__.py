"""Software-engineering tasks as Gymnasium environments.

Importing it makes the ids `SWE/Toy-v0`, `SWE/Tasks-v0` and `SWE/Local-v0` known to Gymnasium.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .envs.registration import register_families as _register_families

if TYPE_CHECKING:
    from .curation.validate import TaskRecord, validate
    from .envs.registration import register_tasks
    from .envs.swe_env import SweEnv
    from .errors import (
        ActionError,
        AgentError,
        FileError,
        GradingError,
        MissingDependency,
        MissingInterpreter,
        PolicyError,
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
    from .rollout.policies import make_policies
    from .rollout.policies.gold import GoldPolicy
    from .rollout.policies.scripted import EmptyPolicy, ScriptedPolicy
    from .rollout.policy import Policy, PolicyFactory, PolicyReport, ReportingPolicy
    from .sandboxes import Sandbox, SandboxSpec, open_sandbox
    from .tasks import TaskSource, load_source
    from .tasks.file import write_tasks
    from .tools import Tool, ToolContext, make_tools
    from .trajectories.trajectory import Trajectory, Turn
    from .types import (
        Action,
        ExecResult,
        FolderWorkspace,
        GitWorkspace,
        Oracle,
        PythonEnv,
        Reward,
        SdistWorkspace,
        TarWorkspace,
        Task,
        ToolCall,
        ToolResult,
        ToolSpec,
        Verdict,
    )
    from .vector import SweVectorEnv
    from .wrappers.record_trajectory import RecordTrajectory

__version__ = "0.1.0"

__all__ = [
    "Action",
    "ActionError",
    "AgentError",
    "EmptyPolicy",
    "ExecResult",
    "FileError",
    "FolderWorkspace",
    "GitWorkspace",
    "GoldPolicy",
    "GradingError",
    "MissingDependency",
    "MissingInterpreter",
    "Oracle",
    "Patch",
    "Policy",
    "PolicyError",
    "PolicyFactory",
    "PolicyReport",
    "PythonEnv",
    "RecordTrajectory",
    "ReportingPolicy",
    "Reward",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "SandboxLost",
    "SandboxSpec",
    "SandboxStartError",
    "ScriptedPolicy",
    "SdistWorkspace",
    "SweEnv",
    "SweGymError",
    "SweVectorEnv",
    "TarWorkspace",
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
    "make_policies",
    "make_tools",
    "open_sandbox",
    "play",
    "register_tasks",
    "validate",
    "write_tasks",
]

# Importing the package must cost little: the names above are imported from their modules when they are first used.
_HOMES = {
    ".envs.registration": ("register_tasks",),
    ".envs.swe_env": ("SweEnv",),
    ".errors": (
        "ActionError",
        "AgentError",
        "FileError",
        "GradingError",
        "MissingDependency",
        "MissingInterpreter",
        "PolicyError",
        "SandboxClosed",
        "SandboxError",
        "SandboxLost",
        "SandboxStartError",
        "SweGymError",
        "TaskError",
        "ToolError",
        "Unsupported",
        "UsageError",
    ),
    ".grading.patch": ("Patch",),
    ".rollout.episode": ("play",),
    ".rollout.policies": ("make_policies",),
    ".rollout.policies.gold": ("GoldPolicy",),
    ".rollout.policies.scripted": ("EmptyPolicy", "ScriptedPolicy"),
    ".rollout.policy": ("Policy", "PolicyFactory", "PolicyReport", "ReportingPolicy"),
    ".trajectories.trajectory": ("Trajectory", "Turn"),
    ".curation.validate": ("TaskRecord", "validate"),
    ".sandboxes": ("Sandbox", "SandboxSpec", "open_sandbox"),
    ".tasks": ("TaskSource", "load_source"),
    ".tasks.file": ("write_tasks",),
    ".tools": ("Tool", "ToolContext", "make_tools"),
    ".types": (
        "Action",
        "ExecResult",
        "FolderWorkspace",
        "GitWorkspace",
        "Oracle",
        "PythonEnv",
        "Reward",
        "SdistWorkspace",
        "TarWorkspace",
        "Task",
        "ToolCall",
        "ToolResult",
        "ToolSpec",
        "Verdict",
    ),
    ".vector": ("SweVectorEnv",),
    ".wrappers.record_trajectory": ("RecordTrajectory",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module, __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


logging.getLogger(__name__).addHandler(logging.NullHandler())
_register_families()
