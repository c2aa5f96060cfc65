"""The fields of Harbor's `task.toml`, schema versions 1.0 to 1.4, as Harbor 0.25 reads them.

Harbor ignores fields that it does not know. Here they are refused, except in the tables `task` and `metadata`, which
only describe: a misspelt field, or one of a later version, could change what a task means.
"""

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from ..errors import TaskError
from ..task_folder import IMAGE
from ..types import Json, JsonObject, check_host

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
"""Schema versions that are read."""

MAIN = "main"
"""The service of the policy. Others are those of Docker Compose."""

PUBLISHED = "/logs/artifacts"
"""Folder that a verifier of its own gets in any case."""

MOST_PARTS = 50
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS},}}+")
"""A dotted key that costs `tomllib` much memory: it grows with the square of the parts."""

MOST_PROBLEMS = 5
"""Problems of a file that an error lists."""

LONGEST = 1e8
"""Seconds that a task may ask for: three years."""

LONGEST_VALUE = 100_000
"""Bytes of a variable. Linux takes 131,072 with its name."""

MOST_MEGABYTES = 1 << 30

MOST_CPUS = 10_000


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character")
    return text


def _name_variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("not the name of a variable")
    return _without_nul(name)


def _limit_value(value: str) -> str:
    if len(value.encode("utf-8", "surrogatepass")) > LONGEST_VALUE:
        raise ValueError(f"more than {LONGEST_VALUE} bytes")
    return _without_nul(value)


def _name_user(user: str | int) -> str | int:
    if user == "" or (isinstance(user, int) and not 0 <= user < 1 << 32):
        raise ValueError("not a user")
    return _without_nul(user) if isinstance(user, str) else user


def _name_image(image: str) -> str:
    if image and not IMAGE.fullmatch(image):
        raise ValueError("not the name of an image")
    return image


Seconds = Annotated[float, Field(gt=0, le=LONGEST, allow_inf_nan=False)]
Megabytes = Annotated[int, Field(gt=0, le=MOST_MEGABYTES)]
Plain = Annotated[str, AfterValidator(_without_nul)]
Variables = dict[Annotated[str, AfterValidator(_name_variable)], Annotated[str, AfterValidator(_limit_value)]]
User = Annotated[str | int, AfterValidator(_name_user)]
Image = Annotated[str, AfterValidator(_name_image)]
NetworkMode = Literal["no-network", "public", "allowlist"]
AllowedHosts = Annotated[tuple[Annotated[str, AfterValidator(check_host)], ...], Field(max_length=1000)]
Policy = Literal["none", "egress"] | tuple[str, ...]
POLICIES: Mapping[str, Literal["none", "egress"]] = {"no-network": "none", "public": "egress"}


def _megabytes(value: Json) -> Json:
    """Return the MiB of a size in the form of schema 1.0, such as "2G"."""
    match = (
        re.fullmatch(r"\s*(\d{1,12}(?:\.\d+)?)\s*([GMK])\s*", value, re.IGNORECASE) if isinstance(value, str) else None
    )
    if match is None:
        raise ValueError('not a size such as "2G" or "512M"')
    return int(float(match[1]) * {"G": 1024.0, "M": 1.0, "K": 1 / 1024}[match[2].upper()])


class Table(BaseModel):
    """Base of the tables of a `task.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Network(Table):
    """Network access, as in `environment`, `agent` and `verifier`."""

    network_mode: NetworkMode | None = None
    allowed_hosts: AllowedHosts | None = None

    @model_validator(mode="after")
    def _list_hosts(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self

    @property
    def policy(self) -> Policy | None:
        """Network access as in `SandboxSpec`; None if it is not set. A list without hosts allows none."""
        if self.network_mode is None:
            return None
        return self.allowed_hosts or "none" if self.network_mode == "allowlist" else POLICIES[self.network_mode]


class HarborHealthcheck(Table):
    """The table `environment.healthcheck`."""

    command: Plain
    interval_sec: float = Field(default=5.0, ge=0, le=3600)
    timeout_sec: float = Field(default=30.0, ge=1, le=3600)
    start_period_sec: float = Field(default=0.0, ge=0, le=3600)
    start_interval_sec: float = Field(default=5.0, ge=0, le=3600)
    retries: int = Field(default=3, ge=1, le=1000)


class Environment(Network):
    """The table `environment`."""

    build_timeout_sec: Seconds = 600.0
    docker_image: Image | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0, le=MOST_CPUS, allow_inf_nan=False)
    memory_mb: Megabytes | None = None
    storage_mb: Megabytes | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: JsonObject | None = None
    mcp_servers: list[JsonObject] = []
    env: Variables = {}
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
    def network(self) -> Policy:
        """Network access, also by the old field `allow_internet`. Harbor's default is "public"."""
        if self.policy is not None:
            return self.policy
        return "none" if self.allow_internet is False and self.allowed_hosts is None else "egress"


class HarborAgent(Network):
    """The table `agent`."""

    timeout_sec: Seconds | None = None
    user: User | None = None


class Collect(Table):
    """An entry of `verifier.collect`."""

    command: Plain
    service: str = MAIN
    timeout_sec: Annotated[float, Field(ge=1, le=LONGEST, allow_inf_nan=False)] = 60.0
    user: User | None = None


class ArtifactEntry(Table):
    """An entry of `artifacts`: a file or folder of the policy's sandbox. A text is its source."""

    source: str = Field(pattern=r"^/[^\x00]*$")
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data

    @field_validator("source")
    @classmethod
    def _stay(cls, source: str) -> str:
        if ".." in source.split("/"):
            raise ValueError("a path with '..'")
        if not source.strip("/."):
            raise ValueError("the whole root folder")
        return posixpath.normpath(source)

    @property
    def output(self) -> str:
        """Where Harbor keeps it on its own machine, below the folder of all artifacts."""
        return posixpath.normpath("/" + (self.destination or self.source).strip("/"))


class Verifier(Network):
    """The table `verifier`."""

    timeout_sec: Seconds = 600.0
    env: Variables = {}
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' contradicts verifier.environment")
        return self

    def fill_in_hooks(self, user: str) -> Self:
        """Return the table with a user of the commands that set none."""
        hooks = [
            hook if hook.user is not None else hook.model_copy(update={"user": user or None}) for hook in self.collect
        ]
        return self.model_copy(update={"collect": hooks})

    @property
    def separate(self) -> bool:
        """Whether the verifier has a sandbox of its own."""
        return self.environment_mode == "separate" or self.environment is not None


class StepVerifier(Verifier):
    """The table `verifier` of a step, whose time limit is the task's unless it has one."""

    timeout_sec: Seconds | None = None  # type: ignore[assignment]  # a default of its own


class HarborStep(Table):
    """An entry of `steps`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    agent: HarborAgent = HarborAgent()
    verifier: StepVerifier = StepVerifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: HarborHealthcheck | None = None
    artifacts: list[ArtifactEntry] = []

    @property
    def least(self) -> float | None:
        """Least reward with which the task goes on."""
        return self.min_reward.get("reward") if isinstance(self.min_reward, dict) else self.min_reward


class Solution(Table):
    """The table `solution`."""

    env: Variables = {}


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
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[HarborStep] = []
    artifacts: list[ArtifactEntry] = []

    @model_validator(mode="before")
    @classmethod
    def _rename_version(cls, data: Any) -> Any:
        """Read `version`, the name of the schema's version in schema 1.0."""
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
            data.pop("version", None)
        return data

    def agent_user(self, step: HarborStep) -> str | int | None:
        """Return the user of the policy in a step; None is the image's."""
        return self.agent.user if step.agent.user is None else step.agent.user

    def fill_in_users(self, user: str, verifiers: str) -> Self:
        """Return the configuration with a user of the image where none is set, and with another for the verifier."""
        steps = [step.model_copy(update={"verifier": step.verifier.fill_in_hooks(user)}) for step in self.steps]
        agent = self.agent if self.agent.user is not None else self.agent.model_copy(update={"user": user or None})
        verifier = self.verifier.fill_in_hooks(user)
        if verifier.user is None:
            verifier = verifier.model_copy(update={"user": verifiers or None})
        return self.model_copy(update={"agent": agent, "verifier": verifier, "steps": steps})

    @property
    def as_root(self) -> bool:
        """Whether the policy is root by name, in any step."""
        users = [self.agent_user(step) for step in self.steps] or [self.agent.user]
        return any(map(is_root, users))

    @property
    def agent_network(self) -> Policy:
        """Network access of the policy."""
        return self.agent.policy or self.environment.network

    @property
    def verifier_environment(self) -> Environment:
        """Environment of a verifier with a sandbox of its own."""
        return self.verifier.environment or self.environment

    def list_artifacts(self) -> list[ArtifactEntry]:
        """Return the artifacts of a verifier with a sandbox of its own: the conventional folder first.

        Raises:
            ValueError: Two overlap on Harbor's machine, so that it would keep only one.
        """
        given = self.artifacts
        if all(entry.source != PUBLISHED for entry in given):
            given = [ArtifactEntry(source=PUBLISHED), *given]
        kept: list[ArtifactEntry] = []
        for entry in given:
            if any(_covers(before, entry) for before in kept):
                continue
            for before in kept:
                if _overlap(before.output, entry.output):
                    raise ValueError(f"{before.source} and {entry.source} overlap, and Harbor keeps only the first")
            kept.append(entry)
        return kept


def _covers(before: ArtifactEntry, entry: ArtifactEntry) -> bool:
    """Whether an earlier artifact holds this one."""
    if before.source == entry.source and before.output == entry.output:
        return before.exclude == entry.exclude
    within = posixpath.relpath(entry.source, before.source)
    return (
        not before.exclude
        and not within.startswith("..")
        and entry.output == posixpath.normpath(posixpath.join(before.output, within))
    )


def _overlap(one: str, other: str) -> bool:
    return posixpath.commonpath([one, other]) in (one, other)


def read_config(text: str, place: str) -> HarborConfig:
    """Read a `task.toml`.

    Args:
        text: Its content.
        place: The file, for messages.

    Raises:
        TaskError: It is not TOML, a field is unknown or invalid, or the task needs what swe_gym cannot do.
    """
    if (found := LONG_KEY.search(text)) is not None:
        raise TaskError(f"{place}: a key of more than {MOST_PARTS} parts: {_show(found[0])}")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, or a number of thousands of digits
        raise TaskError(f"{place}: {error}") from None
    try:
        config = HarborConfig.model_validate(data)
    except ValidationError as error:
        raise TaskError(f"{place}: {'; '.join(map(_problem, error.errors()[:MOST_PROBLEMS]))}") from None
    for field, value, advice in _find_refused(config):
        if value:
            raise TaskError(f"{place}: {field} = {_show(value)}: {advice}")
    return config


ONE_NETWORK = "a sandbox keeps its network. Set environment.network_mode, with allowed_hosts, for all"
ONE_SANDBOX = "all steps are judged in the policy's sandbox. Play this task with Harbor"
ONE_USER = "another step's is root, which then is the user of the sandbox. Name the user of each step"
HARBOR_ONLY = "swe_gym has nothing like it. Play this task with Harbor"
NO_SERVICES = "services of Docker Compose are not supported. Play this task with Harbor"


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
    known = ", ".join(VERSIONS)
    return [
        ("schema_version", _unless(config.schema_version in VERSIONS, config.schema_version), f"known: {known}"),
        *_find_refused_in_steps(config),
        *_find_refused_in("environment", config.environment),
        *_find_refused_for_roles(config),
        *_find_refused_services(config),
    ]


def _find_refused_in_steps(config: HarborConfig) -> Iterator[tuple[str, Json, str]]:
    """Yield what is refused of the steps."""
    names = [step.name for step in config.steps]
    yield "steps", next((name for name in names if names.count(name) > 1), None), "two steps have this name"
    if config.steps:
        separate = config.verifier.separate or None
        yield "verifier.environment_mode", separate and "separate", f"the task has steps: {ONE_SANDBOX}"
    for number, step in enumerate(config.steps):
        verifier, place = step.verifier, f"steps.{number}"
        keys = sorted(step.min_reward.keys() - {"reward"}) if isinstance(step.min_reward, dict) else []
        user = config.agent_user(step)
        yield f"{place}.agent.user", _unless(user is not None or not config.as_root, "the image's"), ONE_USER
        yield f"{place}.min_reward", keys, "only the value 'reward' is compared"
        yield f"{place}.verifier.environment_mode", verifier.separate and "separate", ONE_SANDBOX
        for role, table in (("agent", step.agent), ("verifier", verifier)):
            yield f"{place}.{role}.network_mode", _another_network(table, config.environment), ONE_NETWORK
        for hook in verifier.collect:
            yield f"{place}.verifier.collect.service", _unless(hook.service == MAIN, hook.service), NO_SERVICES


def _find_refused_in(table: str, environment: Environment) -> list[tuple[str, Json, str]]:
    """Return what is refused in the environment of the policy or the verifier."""
    refused: list[tuple[str, Json, str]] = [
        ("os", _unless(environment.os == "linux", environment.os), "only Linux is supported"),
        ("gpus", environment.gpus, "sandboxes have no GPU"),
        ("gpu_types", environment.gpu_types, "sandboxes have no GPU"),
        ("tpu", environment.tpu, "sandboxes have no TPU"),
        ("mcp_servers", _names(environment.mcp_servers), HARBOR_ONLY),
        ("skills_dir", environment.skills_dir, HARBOR_ONLY),
    ]
    return [(f"{table}.{field}", value, advice) for field, value, advice in refused]


def _find_refused_for_roles(config: HarborConfig) -> list[tuple[str, Json, str]]:
    """Return what is refused of agent and verifier."""
    verifier, environment = config.verifier, config.environment
    agents_own = verifier.separate and not verifier.collect and config.environment.healthcheck is None
    refused: list[tuple[str, Json, str]] = [
        ("agent.network_mode", None if agents_own else _another_network(config.agent, environment), ONE_NETWORK),
        ("verifier.network_mode", None if verifier.separate else _another_network(verifier, environment), ONE_NETWORK),
    ]
    if verifier.environment is not None:
        check = "Harbor never runs it. Leave it out"
        refused += _find_refused_in("verifier.environment", verifier.environment)
        refused.append(("verifier.environment.healthcheck", verifier.environment.healthcheck is not None, check))
    return refused


def _find_refused_services(config: HarborConfig) -> list[tuple[str, Json, str]]:
    """Return what is refused of artifacts and of the commands that collect them."""
    refused: list[tuple[str, Json, str]] = [
        (f"verifier.collect.{number}.service", _unless(hook.service == MAIN, hook.service), NO_SERVICES)
        for number, hook in enumerate(config.verifier.collect)
    ]
    for number, entry in enumerate(config.artifacts):
        refused.append(
            (f"artifacts.{number}.service", _unless(entry.service in (None, MAIN), entry.service), NO_SERVICES)
        )
    try:
        if config.verifier.separate:
            config.list_artifacts()
    except ValueError as error:
        refused.append(("artifacts", [entry.source for entry in config.artifacts], f"{error}. Leave one out"))
    return refused


def _another_network(table: Network, environment: Environment) -> str | None:
    """Return the mode of a network that is set and differs from the environment's."""
    given, kept = (frozenset(one) if isinstance(one, tuple) else one for one in (table.policy, environment.network))
    return None if given in (None, kept) else table.network_mode


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
