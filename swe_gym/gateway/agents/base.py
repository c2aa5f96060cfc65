"""`Agent`: what an agent's file says about it."""

import abc
import dataclasses
from typing import ClassVar, Literal, NamedTuple

from ...types import Frozen
from ..kits import Kit

KEY = "swe-gym"
"""API key for agents that insist on one. The gateway accepts any."""


class Assignment(NamedTuple):
    """What an agent gets to know of its episode.

    Attributes:
        issue: The task's problem statement.
        model: Model name.
        base_url: Address of the gateway in the sandbox, without "/v1".
        kit: Folder of the kit in the sandbox.
        home: Folder of the agent's own files in the sandbox, new in each episode.
    """

    issue: str
    model: str
    base_url: str
    kit: str
    home: str


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started. Its working directory is the repository.

    Attributes:
        argv: The command line.
        env: Variables added to the environment of this process only. `HOME` and `PATH` belong to the task.
        stdin: Standard input. Unlike an argument, it has no limit of 128 KiB.
        files: Files to write before: path -> content.
    """

    argv: list[str]
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    stdin: str = ""
    files: dict[str, str | bytes] = dataclasses.field(default_factory=dict)


class Agent(Frozen, abc.ABC):
    """An agent that works on the repository in its working directory and asks a model at a given address.

    A subclass sets `version` and `protocol` and implements `launch`. Its fields are the agent's options.

    Attributes:
        arguments: Arguments added to the command line.
        env: Variables added to the agent's environment.
    """

    version: ClassVar[str] = ""
    """Version of the kit's main package; empty if unknown."""

    protocol: ClassVar[Literal["chat", "responses", "messages", "google", "any"]] = "any"
    """API that the agent speaks: OpenAI chat completions or responses, Anthropic messages, Google generateContent."""

    shell: ClassVar[tuple[str, str]] = ("bash", "command")
    """Name of its tool for shell commands, and the argument with the command; empty if it has none."""

    required: ClassVar[dict[str, str]] = {}
    """Further arguments that the shell tool requires."""

    ending: ClassVar[str] = ""
    """Command that ends it; empty if an answer without a call does."""

    opening: ClassVar[tuple[str, ...]] = ("system", "user")
    """Roles of its first messages."""

    arguments: tuple[str, ...] = ()
    env: dict[str, str] = {}

    @property
    def kit(self) -> Kit | None:
        """Recipe of the kit; None if the agent is part of the image."""
        return None

    @abc.abstractmethod
    def launch(self, assignment: Assignment) -> Launch:
        """Return how to start the agent on an assignment."""
