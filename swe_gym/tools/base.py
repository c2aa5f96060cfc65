"""What a tool is: a name, a JSON schema, and one method that runs in a sandbox."""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ..sandboxes.base import Sandbox
from ..types import ToolResult, ToolSpec


@dataclasses.dataclass(slots=True)
class ToolContext:
    """What a tool may use while it runs.

    Attributes:
        sandbox: The episode's sandbox.
        eval_cmd: The task's visible entry point; empty where it has none.
        eval_timeout: Seconds that it may take.
        max_output: Characters of output that a tool should aim to stay under.
        deadline: `time.monotonic()` at which the episode's time is up.
    """

    sandbox: Sandbox
    eval_cmd: str = ""
    eval_timeout: float = 120.0
    max_output: int = 16_000
    deadline: float = float("inf")

    def time_left(self, wanted: float) -> float:
        """`wanted` seconds, or less where the episode has less left; at least 0.1."""
        return max(0.1, min(wanted, self.deadline - time.monotonic()))


class Tool(abc.ABC):
    """Something that a policy may do.

    A subclass sets the three class variables and writes `run`. An instance belongs to one environment and
    may keep state over an episode; `reset` drops it.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    parameters: ClassVar[Mapping[str, Any]]
    """A JSON schema of type "object"; arguments are converted and checked by it before `run`."""
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Arguments of harmless, deterministic calls: what `action_space.sample()` draws from."""

    @property
    def spec(self) -> ToolSpec:
        """What a policy is told about the tool."""
        return ToolSpec(name=self.name, description=self.description, parameters=dict(self.parameters))

    @abc.abstractmethod
    def run(self, context: ToolContext, *_: Any, **arguments: Any) -> ToolResult:
        """Do it.

        A tool names its own parameters here; that `*_` and `**arguments` stand for any is a rule of type checkers.

        Args:
            context: The sandbox and the episode's limits.
            *_: Never given.
            **arguments: By the schema; a parameter that the policy left out is not passed.

        Raises:
            ToolError: It could not be done; the message becomes the observation.
            SandboxError: The sandbox failed; the episode ends without a reward.
        """

    def reset(self) -> None:  # noqa: B027  most tools keep no state, so this is a hook and not abstract
        """Drop everything that belongs to an episode. Called at reset and at close, also after failures."""
