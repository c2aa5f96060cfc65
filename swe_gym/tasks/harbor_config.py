"""The fields of Harbor's `task.toml`, schema versions 1.0 to 1.4, as Harbor 0.25 reads them.

Harbor ignores fields that it does not know. Here they are refused, except in the tables `task` and `metadata`, which
only describe: a misspelt field, or one of a later version, could change what a task means.
"""

import re
import tomllib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from ..errors import TaskError
from ..types import Json, JsonObject

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
"""Schema versions that are read."""

MOST_PROBLEMS = 5
"""Problems of a file that an error lists."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NetworkMode = Literal["no-network", "public", "allowlist"]


def _megabytes(value: Json) -> Json:
    """Return the MiB of a size in the form of schema 1.0, such as "2G"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([GMK])\s*", value, re.IGNORECASE) if isinstance(value, str) else None
    if match is None:
        raise ValueError('not a size such as "2G" or "512M"')
    return int(float(match[1]) * {"G": 1024.0, "M": 1.0, "K": 1 / 1024}[match[2].upper()])


class Table(BaseModel):
    """Base of the tables of a `task.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Network(Table):
    """Network access, as in `environment`, `agent` and `verifier`."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class HarborHealthcheck(Table):
    """The table `environment.healthcheck`."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0, le=3600)
    timeout_sec: float = Field(default=30.0, ge=1, le=3600)
    start_period_sec: float = Field(default=0.0, ge=0, le=3600)
    start_interval_sec: float = Field(default=5.0, ge=0, le=3600)
    retries: int = Field(default=3, ge=1, le=1000)


class Environment(Network):
    """The table `environment`."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: JsonObject | None = None
    mcp_servers: list[JsonObject] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: HarborHealthcheck | None = None
    workdir: str | None = Field(default=None, pattern=r"^/[^\x00]*$")
    allow_internet: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_sizes(cls, data: Any) -> Any:
        """Read `memory` and `storage`, the names of sizes in schema 1.0."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in data:
                size = _megabytes(data.pop(old))
                if data.setdefault(new, size) != size:
                    raise ValueError(f"{old} and {new} contradict each other")
        return data

    @field_validator("os")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()

    @property
    def mode(self) -> NetworkMode:
        """Network access, also by the old field `allow_internet`. Harbor's default is "public"."""
        if self.network_mode is not None:
            return self.network_mode
        return "no-network" if self.allow_internet is False and self.allowed_hosts is None else "public"


class HarborAgent(Network):
    """The table `agent`."""

    timeout_sec: Seconds | None = None
    user: str | int | None = None


class Verifier(Network):
    """The table `verifier`."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: JsonObject | None = None
    collect: list[JsonObject] = []


class Solution(Table):
    """The table `solution`."""

    env: dict[str, str] = {}


class Package(BaseModel):
    """The table `task`, which describes the task in Harbor's registry."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    name: str = ""
    version: str = ""
    description: str = ""
    authors: list[JsonObject] = []
    keywords: tuple[str, ...] = ()


class HarborConfig(Table):
    """A whole `task.toml`."""

    schema_version: str = VERSIONS[-1]
    task: Package = Package()
    metadata: JsonObject = {}
    verifier: Verifier = Verifier()
    agent: HarborAgent = HarborAgent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: str | None = None
    steps: list[JsonObject] | None = None
    artifacts: list[Json] = []

    @model_validator(mode="before")
    @classmethod
    def _rename_version(cls, data: Any) -> Any:
        """Read `version`, the name of the schema's version in schema 1.0."""
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
            data.pop("version", None)
        return data


def read_config(text: str, place: str) -> HarborConfig:
    """Read a `task.toml`.

    Args:
        text: Its content.
        place: The file, for messages.

    Raises:
        TaskError: It is not TOML, a field is unknown or invalid, or the task needs what swe_gym cannot do.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskError(f"{place}: {error}") from None
    try:
        config = HarborConfig.model_validate(data)
    except ValidationError as error:
        raise TaskError(f"{place}: {'; '.join(map(_problem, error.errors()[:MOST_PROBLEMS]))}") from None
    for field, value, advice in _find_refused(config):
        if value:
            raise TaskError(f"{place}: {field} = {_show(value)}: {advice}")
    return config


OWN_SANDBOX = "the verifier runs in the policy's sandbox only. Leave it out, or play this task with Harbor"
ONE_NETWORK = "a sandbox keeps the network that it starts with. Set environment.network_mode only"
HARBOR_ONLY = "swe_gym has nothing like it. Play this task with Harbor"
NOT_ROOT = "files of the verifier need root. Leave it out, or set agent.user to root"


def _problem(problem: ErrorDetails) -> str:
    """Return a field's problem in words, with its value."""
    field = ".".join(map(str, problem["loc"]))
    value = _show(problem["input"])
    if problem["type"] == "extra_forbidden":
        return f"{field} = {value}: unknown field. Remove it if the task does not depend on it"
    said = problem["msg"].removeprefix("Value error, ")
    return f"{field} = {value}: {said}".removeprefix(" = ")


def _find_refused(config: HarborConfig) -> list[tuple[str, Json, str]]:
    """Return each field of what swe_gym cannot do, with its value, empty if it demands nothing, and what to do."""
    environment, agent, verifier = config.environment, config.agent, config.verifier
    known = ", ".join(VERSIONS)
    return [
        ("schema_version", _unless(config.schema_version in VERSIONS, config.schema_version), f"known: {known}"),
        ("steps", config.steps, "multi-step tasks cannot be played. Make one task of each step"),
        ("artifacts", config.artifacts, "no file is collected from the sandbox. Leave it out"),
        ("environment.os", _unless(environment.os == "linux", environment.os), "only Linux is supported"),
        ("environment.gpus", environment.gpus, "sandboxes have no GPU"),
        ("environment.gpu_types", environment.gpu_types, "sandboxes have no GPU"),
        ("environment.tpu", environment.tpu, "sandboxes have no TPU"),
        ("environment.mcp_servers", _names(environment.mcp_servers), HARBOR_ONLY),
        ("environment.skills_dir", environment.skills_dir, HARBOR_ONLY),
        (
            "environment.network_mode",
            _unless(environment.mode != "allowlist", "allowlist"),
            'use "no-network" or "public"',
        ),
        ("environment.allowed_hosts", environment.allowed_hosts, "a sandbox reaches all hosts or none. Leave it out"),
        (
            "agent.network_mode",
            _unless(agent.network_mode in (None, environment.mode), agent.network_mode),
            ONE_NETWORK,
        ),
        ("agent.allowed_hosts", agent.allowed_hosts, ONE_NETWORK),
        (
            "verifier.network_mode",
            _unless(verifier.network_mode in (None, environment.mode), verifier.network_mode),
            ONE_NETWORK,
        ),
        ("verifier.allowed_hosts", verifier.allowed_hosts, ONE_NETWORK),
        ("agent.user", _unless(is_root(agent.user) or agent.user is None, agent.user), NOT_ROOT),
        ("verifier.environment_mode", _unless(verifier.environment_mode != "separate", "separate"), OWN_SANDBOX),
        ("verifier.environment", verifier.environment is not None and "a table", OWN_SANDBOX),
        ("verifier.collect", verifier.collect and [hook.get("command") for hook in verifier.collect], OWN_SANDBOX),
    ]


def _unless(allowed: bool, value: Json) -> Json:
    return None if allowed else value


def _names(servers: list[JsonObject]) -> list[str]:
    return [str(server.get("name", "?")) for server in servers]


def _show(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_root(user: str | int | None) -> bool:
    """Whether a user of a task is root by name or number."""
    return str(user) in ("root", "0")
