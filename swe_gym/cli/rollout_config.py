"""The configuration of `swe-gym rollout` and `swe-gym eval`: a file, overrides and options."""

import functools
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from ..errors import UsageError, wrong_fields
from ..gateway.agents import AGENTS
from ..rollout import Plan, RolloutBudget, RolloutOptions
from ..tasks import TaskSource, is_place_of_tasks
from ..toml import check_names, keep_texts, override, parse_pairs, read_toml
from ..types import Frozen, JsonMapping, JsonObject
from .common import BranchPoint, TaskFilter, check_name, part_of, read_branch, source_of, split_slice
from .options import executor_options, tools_of

PRICES = {"in": "input", "cached": "cached", "out": "output"}
FIELDS = {
    "--seed": "seed=VALUE",
    "--split": "tasks.source_options.split=VALUE",
    "--policy-option": "policy.NAME=VALUE",
    "--agent-option": "agent.NAME=VALUE",
    "--env-option": "env.NAME=VALUE",
    "--format": "env.action_format=VALUE",
    "--source": "the source without an option, as in toy:3",
    "--tasks": "the source without an option, as in toy:3",
    "-t": "the source without an option, as in toy:3",
    "--config": "the file without an option",
    "-c": "the file without an option",
    **{f"--{name.replace('_', '-')}": f"env.{name}=VALUE" for name in ("reward", "counter", "time_limit")},
    **{f"--price-{name}": f"policy.prices.{field}=VALUE" for name, field in PRICES.items()},
    **{f"--max-{name}": f"budget.{name}=VALUE" for name in ("tokens", "cost")},
    **{f"--run-{name}": f"run.budget.{name}=VALUE" for name in RolloutBudget.model_fields},
    **{
        f"--{name.replace('_', '-')}": f"run.{name}=VALUE"
        for name in RolloutOptions.model_fields.keys() - {"workers", "budget", "executor"}
    },
}
"""Names that a user may take for an option -> what to write instead."""


class TaskConfig(TaskFilter):
    """The tasks of a rollout: a source, and the conditions of `TaskFilter`.

    Attributes:
        source: Task source or task file, perhaps with a slice: "swebench-verified:50".
        source_options: Arguments of the source.
    """

    source: str = "toy"
    source_options: JsonObject = {}


class RolloutConfig(Frozen):
    """The configuration of a rollout.

    Attributes:
        name: Run name. Empty: SOURCE-POLICY.
        output: Folder of the run folders.
        attempts: Episodes per task.
        seed: Seed that the seeds of all episodes derive from.
        from_turn: Turn of a recorded episode from which all episodes continue, "RUN/TASK/ATTEMPT:TURN". Its task and
            environment take the place of `tasks` and of what `env` does not set.
        ignore: Regular expressions of text that may differ when its actions are played again.
        tasks: Tasks to run.
        policy: The policy's `name`, and its options. Without a name it is "llm" if an agent, `model` or `base_url` is
            set, else "baseline".
        agent: The `name` of the agent that asks the policy's model, and its options. Empty: the policy plays.
        env: Arguments of `SweEnv`.
        budget: Budget of one episode.
        run: How the plan is run.
    """

    name: Annotated[str, AfterValidator(check_name)] = ""
    output: str = "runs"
    attempts: int = Field(default=1, ge=1)
    seed: int = 0
    from_turn: str = ""
    ignore: tuple[str, ...] = ()
    tasks: TaskConfig = TaskConfig()
    policy: JsonObject = {}
    agent: JsonObject = {}
    env: JsonObject = {}
    budget: RolloutBudget = RolloutBudget()
    run: RolloutOptions = RolloutOptions()

    @functools.cached_property
    def branch(self) -> BranchPoint | None:
        """The point of `from_turn`; None without one.

        Raises:
            UsageError: It cannot be found or played again, or tasks are chosen beside it.
        """
        if not self.from_turn:
            if self.ignore:
                raise UsageError("--ignore is for --from, whose actions are played again: omit it")
            return None
        if self.tasks.source_options or self.tasks.model_fields_set - {"source_options"}:
            raise UsageError("--from continues an episode of one task: leave out the source and the filters")
        return read_branch(self.from_turn, self.ignore)

    @property
    def whole_env(self) -> JsonObject:
        """The arguments of `SweEnv`, with those of the recorded episode."""
        return self.env if self.branch is None else self.branch.env(self.env)

    @property
    def folder(self) -> Path:
        """The run folder."""
        source, player = split_slice(self.tasks.source)[0], str(self.policy.get("model") or self.policy_name)
        tasks = Path(source).stem if is_place_of_tasks(source) else source
        if self.branch is not None:  # another name than that of its run
            tasks = self.branch.point.origin.replace("/", "-")
        words = filter(None, (tasks, str(self.agent.get("name", "")), player.rpartition("/")[2]))
        return Path(self.output) / (self.name or "-".join(words).replace(":", "-"))

    @property
    def policy_name(self) -> str:
        """Name of the policy."""
        asks = self.agent or {"model", "base_url"} & self.policy.keys()
        return str(self.policy.get("name") or ("llm" if asks else "baseline"))

    def source(self) -> tuple[str, JsonObject]:
        """Return name and arguments of the task source."""
        if self.branch is not None:
            return self.branch.source
        source, options = source_of(self.tasks.source)
        return source, options | self.tasks.source_options

    def plan(self, tasks: TaskSource) -> Plan:
        """Make the plan for the tasks that meet the conditions.

        Raises:
            UsageError: No task meets the conditions.
        """
        source, options = self.source()
        point = self.branch and self.branch.point
        chosen = (point.task_id,) if point else tuple(self.tasks.ids(part_of(self.tasks.source, tasks)))
        return Plan(
            source=source,
            source_options=options,
            checkpoint=point,
            tasks=chosen,
            attempts=self.attempts,
            env=self.whole_env,
            policy=self.policy_name,
            policy_options={name: value for name, value in self.policy.items() if name != "name"},
            agent=str(self.agent.get("name", "")),
            agent_options={name: value for name, value in self.agent.items() if name != "name"},
            budget=self.budget,
            seed=self.seed,
        )


def nest_options(given: JsonMapping) -> JsonObject:
    """Return the options of `rollout` and `eval` as a nested configuration.

    Args:
        given: The arguments of the command by name.
    """
    only: TaskFilter = given["only"]
    return {
        **{name: given[name] for name in ("name", "output", "attempts", "from_turn", "ignore")},
        "tasks": {
            **only.model_dump(exclude_unset=True),
            "source_options": parse_pairs("--source-option", given["source_option"]),
        },
        "policy": {
            "name": given["policy"],
            **{name: given[name] for name in ("base_url", "temperature")},
            "cache": given["cache"] and str(Path(given["cache"]).expanduser().absolute()),
        },
        "agent": {
            "name": given["agent"],
            **{name: given[name] and str(given[name].absolute()) for name in ("mcp", "skills")},
        },
        "env": {
            **{name: given[name] for name in ("backend", "max_turns")},
            "sandbox_options": parse_pairs("--sandbox-option", given["sandbox_option"]),
            "tools": tools_of(given["tools"]),
        },
        "run": {"workers": given["workers"], **executor_options(given["executor"], given["ray_address"])},
    }


def make_config(source: str, overrides: list[str], options: JsonObject) -> RolloutConfig:
    """Merge a configuration file, overrides and options; the later ones win.

    Args:
        source: A TOML file, a task source or a task file; empty for the default.
        overrides: For example "run.retries=0".
        options: Nested values. None and empty values are not set.

    Raises:
        UsageError: A field is unknown or invalid.
    """
    values = read_toml(source) if source.endswith(".toml") else {}
    texts = override(values, overrides, "run.retries=0")
    _check_sections(values)
    if source and not source.endswith(".toml"):
        _merge(values, {"tasks": {"source": source}})
    _merge(values, options)
    check_names(values, RolloutConfig)
    keep_texts(values, texts, RolloutConfig)
    if name := values.get("agent", {}).get("name"):
        keep_texts(values["agent"], texts, AGENTS.load(str(name)), within=("agent",))
    try:
        return RolloutConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"the configuration is invalid: {wrong_fields(error)}") from error


SECTIONS = {
    "tasks": "tasks.match=l*",
    "policy": "policy.name=gold",
    "agent": "agent.name=mini",
    "env": "env.max_turns=20",
    "budget": "budget.tokens=100000",
    "run": "run.workers=8",
}
"""Section -> an example of a field."""


def _check_sections(values: JsonObject) -> None:
    """Expand `policy=gold` and `agent=mini`; refuse a value in place of any other section."""
    for name in ("policy", "agent"):
        if isinstance(values.get(name), str):
            values[name] = {"name": values[name]}
    for name, example in SECTIONS.items():
        if not isinstance(value := values.get(name, {}), dict):
            raise UsageError(
                f"{name} is a section of fields, not a value: write for example {example}, not {name}={value}"
            )


def _merge(values: JsonObject, options: JsonObject) -> None:
    for name, value in options.items():
        if isinstance(value, dict):
            if isinstance(old := values.setdefault(name, {}), dict):  # else the file is wrong, and validation says so
                _merge(old, value)
        elif value is not None:
            values[name] = value
