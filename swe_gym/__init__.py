"""Software-engineering tasks as Gymnasium environments.

Importing the package registers the ids `SWE/Toy-v0`, `SWE/Micro-v0`, `SWE/Tasks-v0`, `SWE/Local-v0` and those of the
datasets with Gymnasium.
"""

import logging
from typing import TYPE_CHECKING

from .envs.registration import register_families as _register_families
from .registry import homes as _homes
from .registry import load as _load

__version__ = "0.1.0"

# The public names. Type checkers follow these imports; at run time, `door` reads them, and a name is imported when it
# is first used: importing the package stays cheap.
if TYPE_CHECKING:
    from .curation.validation import TaskRecord as TaskRecord
    from .curation.validation import validate as validate
    from .envs.registration import register_tasks as register_tasks
    from .envs.swe_env import SweEnv as SweEnv
    from .errors import ActionError as ActionError
    from .errors import AgentError as AgentError
    from .errors import FileError as FileError
    from .errors import GradingError as GradingError
    from .errors import MissingDependency as MissingDependency
    from .errors import MissingInterpreter as MissingInterpreter
    from .errors import PolicyError as PolicyError
    from .errors import SandboxClosed as SandboxClosed
    from .errors import SandboxError as SandboxError
    from .errors import SandboxLost as SandboxLost
    from .errors import SandboxStartError as SandboxStartError
    from .errors import SweGymError as SweGymError
    from .errors import TaskError as TaskError
    from .errors import ToolError as ToolError
    from .errors import Unsupported as Unsupported
    from .errors import UsageError as UsageError
    from .grading.patch import Patch as Patch
    from .rollout.episode import play as play
    from .rollout.policies import make_policies as make_policies
    from .rollout.policies.base import Policy as Policy
    from .rollout.policies.base import PolicyFactory as PolicyFactory
    from .rollout.policies.base import PolicyReport as PolicyReport
    from .rollout.policies.base import ReportingPolicy as ReportingPolicy
    from .rollout.policies.baseline import EmptyPolicy as EmptyPolicy
    from .rollout.policies.baseline import ScriptedPolicy as ScriptedPolicy
    from .rollout.policies.gold import GoldPolicy as GoldPolicy
    from .sandboxes import Sandbox as Sandbox
    from .sandboxes import SandboxSpec as SandboxSpec
    from .sandboxes import open_sandbox as open_sandbox
    from .tasks import TaskSource as TaskSource
    from .tasks import load_source as load_source
    from .tasks.file import write_tasks as write_tasks
    from .tools import Tool as Tool
    from .tools import ToolContext as ToolContext
    from .tools import make_tools as make_tools
    from .tools import tool as tool
    from .trajectories.trajectory import Trajectory as Trajectory
    from .trajectories.trajectory import Turn as Turn
    from .types import Action as Action
    from .types import ExecResult as ExecResult
    from .types import ExitCode as ExitCode
    from .types import ExpectedMap as ExpectedMap
    from .types import FolderWorkspace as FolderWorkspace
    from .types import GitWorkspace as GitWorkspace
    from .types import LogScript as LogScript
    from .types import Oracle as Oracle
    from .types import PythonEnv as PythonEnv
    from .types import Reward as Reward
    from .types import SdistWorkspace as SdistWorkspace
    from .types import TarWorkspace as TarWorkspace
    from .types import Task as Task
    from .types import TestCommand as TestCommand
    from .types import ToolCall as ToolCall
    from .types import ToolResult as ToolResult
    from .types import ToolSpec as ToolSpec
    from .types import Verdict as Verdict
    from .vector import SweVectorEnv as SweVectorEnv
    from .vector import make_vec as make_vec
    from .wrappers.record_trajectory import RecordTrajectory as RecordTrajectory

else:

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return __dir__()
        return _load(__name__, name)


def __dir__() -> list[str]:
    return sorted([*_homes(__name__), "__version__"])


logging.getLogger(__name__).addHandler(logging.NullHandler())
_register_families()
