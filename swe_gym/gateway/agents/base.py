"""`Agent`: what the file of an agent says about it, and the MCP servers and skills that it is given."""

import abc
import dataclasses
import functools
import json
import os
import re
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import ValidationError, field_validator, model_validator

from ...errors import TaskError, UsageError, wrong_fields
from ...toml import resolve_variables
from ...types import Frozen, JsonMapping, Task
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


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Names of servers and skills."""

SKILL = "SKILL.md"
MAX_SKILL_FILES = 1000
MAX_SKILL_BYTES = 16 << 20


class McpServer(Frozen):
    """A server in the common form: a command, or an address.

    Attributes:
        command: Program in the sandbox.
        args: Its arguments.
        env: Variables added to its environment.
        type: Transport. Empty: "stdio" with a command, "http" with an address.
        url: Address of a server that runs already.
        headers: Headers of each request to that address.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    type: str = ""
    url: str = ""
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        if self.type not in (("", "stdio") if self.command else ("", "http", "sse")):
            raise ValueError(f"type: {self.type!r} does not fit: stdio has a command, http and sse have a url")
        return self


class EquippedAgent(Agent):
    """An agent that takes MCP servers and skills.

    Attributes:
        mcp: File of this machine with MCP servers, `{"mcpServers": {NAME: ...}}`. They run in the sandbox.
        skills: Folder of this machine with skills, each a folder with a SKILL.md.
        variables: Variables of this machine that `${NAME}` in the file of servers may name.
    """

    transports: ClassVar[tuple[str, ...]] = ("stdio", "http", "sse")
    """Types of servers that the agent takes."""

    mcp: str = ""
    skills: str = ""
    variables: tuple[str, ...] = ()

    @field_validator("mcp", "skills")
    @classmethod
    def _resolve(cls, path: str) -> str:
        return str(Path(path).expanduser().absolute()) if path else ""

    @model_validator(mode="after")
    def _read(self) -> Self:
        try:
            _ = (self.servers, self.skill_files)  # mistakes are found before anything starts
        except (UsageError, OSError) as error:
            raise ValueError(str(error)) from error
        return self

    @functools.cached_property
    def servers(self) -> dict[str, McpServer]:
        """MCP servers by name."""
        found = read_servers(Path(self.mcp), self.variables) if self.mcp else {}
        for name, server in found.items():
            if server.type and server.type not in self.transports:
                raise UsageError(
                    f"{self.mcp}: mcpServers.{name}: this agent takes no server of type {server.type!r}: use one of "
                    f"type {' or '.join(map(repr, self.transports))}, or another agent"
                )
        return found

    @functools.cached_property
    def skill_files(self) -> dict[str, bytes]:
        """Files of the skills: path below the folder of skills -> content."""
        return read_skills(Path(self.skills)) if self.skills else {}

    def put_skills(self, folder: str) -> dict[str, bytes]:
        """Return the files of the skills in a folder of the sandbox."""
        return {f"{folder}/{path}": content for path, content in self.skill_files.items()}


def check_steps(task: Task) -> None:
    """Refuse a task of several steps.

    Raises:
        TaskError: It has them.
    """
    script = task.oracle.in_place
    if script and script.steps:
        text = f"task {task.task_id} has several steps, which agents in sandboxes cannot play"
        raise TaskError(f"{text}: choose a policy that calls tools")


def check_network(name: str, agent: Agent, sandbox_options: JsonMapping) -> None:
    """Refuse MCP servers that the sandbox cannot reach.

    Args:
        name: Name of the agent.
        agent: The agent.
        sandbox_options: Fields of `SandboxSpec`.

    Raises:
        UsageError: A server has a url, and the sandbox has no network.
    """
    network = sandbox_options.get("network", "none")
    if isinstance(agent, EquippedAgent) and network != "egress":
        for server, one in agent.servers.items():
            if one.url:
                raise UsageError(
                    f"the MCP server {server!r} of the agent {name!r} has a url, and the sandbox has network="
                    f"{network!r}: give it a command that runs in the sandbox, or the sandbox network=egress"
                )


def read_servers(file: Path, variables: tuple[str, ...]) -> dict[str, McpServer]:
    """Read a file of MCP servers.

    Args:
        file: The file.
        variables: Variables of this machine that it may name.

    Raises:
        UsageError: The file or a field of it is invalid, or it names another variable.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(data, dict) or list(data) != ["mcpServers"] or not isinstance(data["mcpServers"], dict):
        raise UsageError(f'{file}: write {{"mcpServers": {{"NAME": {{"command": "...", "args": [...]}}}}}}')
    if not data["mcpServers"]:
        raise UsageError(f"{file}: mcpServers names no server: add one, or omit the file")
    found = {}
    for name, fields in data["mcpServers"].items():
        if not NAME.fullmatch(name):
            raise UsageError(f"{file}: invalid name {name!r}: use letters, digits, '_' and '-'")
        try:
            server = McpServer.model_validate(fields)
        except ValidationError as error:
            raise UsageError(f"{file}: mcpServers.{name}: {wrong_fields(error)}") from error
        found[name] = _fill(server, variables, f"{file}: mcpServers.{name}")
    return found


def _fill(server: McpServer, variables: tuple[str, ...], place: str) -> McpServer:
    """Fill in variables in `env` and `headers`, where each is a whole value. Others are refused."""
    filled = {
        field: resolve_variables(getattr(server, field), variables, f"{place}.{field}", "agent.variables")
        for field in ("env", "headers")
    }
    for field in ("command", "url"):
        _refuse_variable(getattr(server, field), f"{place}.{field}")
    for text in server.args:
        _refuse_variable(text, f"{place}.args")
    for field in filled:
        for name, text in getattr(server, field).items():
            if filled[field][name] == text:
                _refuse_variable(text, f"{place}.{field}.{name}")
    return server.model_copy(update=filled)


def _refuse_variable(text: str, place: str) -> None:
    if "${" in text:
        raise UsageError(f"{place}: ${{...}} may only be a whole value of env or headers, not a part of {text!r}")


def read_skills(folder: Path) -> dict[str, bytes]:
    """Read skills.

    Args:
        folder: A folder of skills.

    Returns:
        Path below the folder -> content.

    Raises:
        UsageError: The folder has no skill, a link or a special file, a folder without SKILL.md, or is too large.
    """
    found: dict[str, bytes] = {}
    size = 0
    for name in sorted(os.listdir(folder)):
        if not NAME.fullmatch(name) or not (folder / name / SKILL).is_file():
            raise UsageError(
                f"{folder / name} is not a skill: write a folder with a {SKILL}, named with letters, digits, '_', '-'"
            )
        for path in _walk(folder / name):
            size += path.stat().st_size
            if size > MAX_SKILL_BYTES or len(found) == MAX_SKILL_FILES:
                raise UsageError(f"{folder}: skills may have {MAX_SKILL_FILES} files and {MAX_SKILL_BYTES >> 20} MiB")
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    if not found:
        raise UsageError(f"{folder} has no skill: a skill is a folder with a {SKILL}")
    return found


def _walk(skill: Path) -> list[Path]:
    """Return the files of a skill.

    Raises:
        UsageError: It holds a link or a special file.
    """
    paths = [skill, *sorted(skill.rglob("*"))]
    for path in paths:
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UsageError(f"{path} is a link or a special file: skills may hold only files and folders")
    return [path for path in paths if path.is_file()]
