"""All errors of the package, grouped by who causes them.

SweGymError
├── UsageError (ValueError)               the caller: unknown id, option or name
│   ├── MissingDependency (ImportError)   an extra is not installed
│   └── Unsupported                       not supported by this backend or tier
├── AgentError                            the policy: becomes text in the observation
│   ├── ActionError                       no valid tool call in the action
│   └── ToolError                         the tool call cannot be done
├── SandboxError                          the infrastructure: never an observation, never a reward
│   ├── SandboxStartError                 the sandbox did not start
│   ├── SandboxLost                       the sandbox is gone or unusable
│   ├── SandboxClosed                     closed, perhaps during a call
│   └── FileError (OSError)               a file operation failed inside the sandbox
├── ConnectionEnded (ConnectionError)     a connection of a forwarded port was closed by either side
├── ConnectionTimeout (TimeoutError)      a connection of a forwarded port missed a deadline
├── PolicyError                           the policy's model returned no action: no reward, not reward 0
├── ReplayError                           an episode that was played again differs from its record
├── GradingError                          the grader failed: no reward, not reward 0
└── TaskError                             the task is broken
    ├── DiffError                         a diff does not apply
    └── MissingInterpreter                this machine lacks the Python that the task needs
"""

from __future__ import annotations

import contextlib
import difflib
import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError  # `import swe_gym` alone does not need it

MOST_FIELDS = 20
"""Maximum number of invalid fields that an error lists."""


class SweGymError(Exception):
    """Base class of all errors of swe_gym."""


class UsageError(SweGymError, ValueError):
    """An argument, option or name is invalid."""


class MissingDependency(UsageError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""


class Unsupported(UsageError):
    """This backend, tier or task does not support the operation."""


class AgentError(SweGymError):
    """An error of the policy. `SweEnv.step` returns it as an observation and the episode continues."""


class ActionError(AgentError):
    """The action holds no valid tool call. The message shows a valid one."""


class ToolError(AgentError):
    """A tool call cannot be done: the file is missing, a match is ambiguous, a line range is invalid."""


class SandboxError(SweGymError):
    """An infrastructure error. Never shown to the policy, and never a reward.

    Attributes:
        retryable: Whether a new sandbox is likely to work. The episode may be played again; a command is never sent
            twice.
        detail: Further information: the end of a log, an exit status, the provider's reason.
    """

    def __init__(self, message: str, *, retryable: bool = False, detail: str = "") -> None:
        super().__init__(f"{message}\n{detail}" if detail else message)
        self.retryable = retryable
        self.detail = detail


class SandboxStartError(SandboxError):
    """The sandbox did not start.

    Attributes:
        reason: One of "image", "capacity", "rate_limit", "timeout", "setup", "unknown".
    """

    def __init__(self, message: str, *, reason: str = "unknown", retryable: bool = False, detail: str = "") -> None:
        super().__init__(message, retryable=retryable, detail=detail)
        self.reason = reason


class SandboxLost(SandboxError):
    """The sandbox is gone, or missed a deadline and was destroyed.

    Attributes:
        reason: One of "oom", "evicted", "expired", "killed", "unresponsive", "protocol", "server" (the server of a
            remote environment, not its sandbox), "unknown".
    """

    def __init__(self, message: str, *, reason: str = "unknown", retryable: bool = True, detail: str = "") -> None:
        super().__init__(message, retryable=retryable, detail=detail)
        self.reason = reason


class SandboxClosed(SandboxError):
    """The sandbox was closed before or during the call. Closing cancels a call."""


class FileError(SandboxError, OSError):
    """A file operation inside the sandbox failed.

    The subclasses `MissingFile`, `NotAFile` and `NoPermission` are also the built-in errors, so
    `except FileNotFoundError` works.
    """


class MissingFile(FileError, FileNotFoundError):
    """The file does not exist in the sandbox."""


class NotAFile(FileError, IsADirectoryError):
    """The path is a directory or another special file."""


class NoPermission(FileError, PermissionError):
    """The sandbox's user lacks the permission."""


class ConnectionEnded(SweGymError, ConnectionError):
    """A connection of a forwarded port is closed, or its client is gone."""


class ConnectionTimeout(SweGymError, TimeoutError):
    """A connection of a forwarded port neither received nor took data in time. It is still open."""


class ReplayError(SweGymError):
    """An episode that was played again differs from its record: `reset` cannot continue it."""


class PolicyError(SweGymError):
    """The policy's model returned no action, for a reason outside of the episode. There is no reward.

    Attributes:
        reason: One of "rate_limit", "server", "timeout", "connection", "context", "refused", "bad_reply", "closed",
            "agent" (an agent ended before its model answered once), "unknown".
        retryable: Whether the same episode is likely to work later.
        retries: Requests that failed and were sent again before this one failed.
    """

    retries: int = 0

    def __init__(self, message: str, *, reason: str = "unknown", retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.retryable = retryable


class GradingError(SweGymError):
    """The grader reached no verdict. There is no reward, which is not reward 0.

    Attributes:
        reason: "starved" if the tests timed out on a machine where the gold patch is slow too, "unconfirmed" if the
            gold patch could not be run to confirm an alarm, else "unknown".
    """

    def __init__(self, message: str, *, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason


class TaskError(SweGymError):
    """The task is broken: an invalid row, a gold patch that does not apply, no interpreter."""


class DiffError(TaskError):
    """A git diff does not apply, or is not one. The task is broken if the diff is the task's."""


class MissingInterpreter(TaskError):
    """The task needs a Python version that is not installed here. Skip the task; it has not failed."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return a `UsageError` that suggests the nearest known name and lists all.

    Args:
        kind: Kind of the name, such as "tool" or "sandbox option".
        name: The unknown name.
        known: All valid names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(names[:40]) + (f", ... ({len(names)} in all)" if len(names) > 40 else "")
    return UsageError(f"unknown {kind} {name!r}.{hint} Known: {shown or 'none'}.")


def wrong_fields(error: ValidationError) -> str:
    """Return the problems of invalid data by field, without values: they may be the oracle's."""
    problems = [
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}".removeprefix(": ")
        for problem in error.errors()
    ]
    more = [f"and {len(problems) - MOST_FIELDS} more"] if len(problems) > MOST_FIELDS else []
    return "; ".join(problems[:MOST_FIELDS] + more)


def quantify(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural unless the number is 1. By default, the plural ends in "s"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def portable(error: BaseException) -> BaseException:
    """Return an error that survives pickling: itself, or its text."""
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return SweGymError(f"{type(error).__name__}: {error}")
