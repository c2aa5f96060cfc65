"""`swe-gym rollout`: run a policy on many tasks; stop and resume."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import AfterValidator, Field, ValidationError
from rich.console import Console
from typer.core import TyperCommand

from ..cache import cache_folder
from ..envs import shared_source
from ..errors import UsageError, wrong_fields
from ..gateway.agents import AGENTS
from ..rollout.budget import RolloutBudget
from ..rollout.engine import RolloutOptions, RolloutStopped
from ..rollout.engine import rollout as play_plan
from ..rollout.plan import Plan
from ..rollout.progress import Progress
from ..tasks import TaskSource, is_place_of_tasks
from ..toml import check_names, keep_texts, override, parse_pairs, read_toml
from ..tools import TOOLSETS
from ..types import Frozen, JsonMapping, JsonObject
from .common import (
    BACKEND_HELP,
    ExecutorName,
    RayAddress,
    SandboxOptions,
    SourceOptions,
    TaskFilter,
    check_name,
    executor_options,
    open_console,
    part_of,
    source_of,
    split_slice,
    takes_filter,
)
from .preflight import bring_kit, check_agent, check_machine, check_model, check_sandboxes, read_tasks, start_agent
from .rollout_display import display, print_report

POLICY_HELP = "Policy: baseline, llm, gold, random, ... or module:Class."
PRICES = {"in": "input", "cached": "cached", "out": "output"}
FIELDS = {
    "--seed": "seed=VALUE",
    "--split": "tasks.source_options.split=VALUE",
    "--policy-option": "policy.NAME=VALUE",
    "--agent-option": "agent.NAME=VALUE",
    "--env-option": "env.NAME=VALUE",
    "--format": "env.action_format=VALUE",
    "--source": "tasks.source=VALUE",
    **{f"--{name.replace('_', '-')}": f"env.{name}=VALUE" for name in ("reward", "counter", "time_limit")},
    **{f"--price-{name}": f"policy.prices.{field}=VALUE" for name, field in PRICES.items()},
    **{f"--max-{name}": f"budget.{name}=VALUE" for name in ("tokens", "cost")},
    **{f"--run-{name}": f"run.budget.{name}=VALUE" for name in RolloutBudget.model_fields},
    **{
        f"--{name.replace('_', '-')}": f"run.{name}=VALUE"
        for name in RolloutOptions.model_fields.keys() - {"workers", "budget", "executor"}
    },
}
"""Names that a user may take for an option -> the override to write instead."""

TOOLS_HELP = f"Tool preset ({', '.join(TOOLSETS)}) or comma-separated tool names."

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="FIELD=VALUE", help="Any field, for example run.retries=0 env.time_limit=600."),
]
Attempts = Annotated[int | None, typer.Option("--attempts", "-k", min=1, help="Episodes per task (default: 1).")]
AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent", help="Agent that plays with its own tools: mini, claude-code, ... `swe-gym agents` lists them."
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="Server URL, for example http://localhost:8000/v1 (default: OPENAI_BASE_URL, else OpenAI)."),
]
Temperature = Annotated[float | None, typer.Option(help="Sampling temperature (default: the server's).")]
Tools = Annotated[str | None, typer.Option(help=TOOLS_HELP)]
MaxTurns = Annotated[int | None, typer.Option(min=1, help="Steps per episode (default: 50).")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, help="Episodes that run at once (default: 4; with Ray, as many as fit)."),
]
CACHE = "--cache"
CacheFolder = Annotated[
    str | None,
    typer.Option(
        CACHE,
        metavar="[DIR]",
        help="Keep the model's answers in this folder and reuse them (default: the cache folder).",
    ),
]
RunName = Annotated[str | None, typer.Option("--name", "-n", help="Run name (default: SOURCE-POLICY).")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Folder of runs (default: runs).")]


class RolloutCommand(TyperCommand):
    """Answers an option that is a field of the configuration with the override to write."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line.

        Raises:
            UsageError: It holds an option that is a field.
        """
        own = {name for parameter in self.params for name in parameter.opts}
        for option in (one.partition("=")[0] for one in args):
            if option in FIELDS and option not in own:
                raise UsageError(f"no option {option}: write {FIELDS[option]}")
        return super().parse_args(ctx, _with_folder(args))


def _with_folder(args: Sequence[str]) -> list[str]:
    """Return the arguments with the default folder of `--cache`, if it has none."""
    found = []
    for place, one in enumerate(args):
        after = args[place + 1] if place + 1 < len(args) else "-"
        bare = one == CACHE and (after.startswith("-") or "=" in after)
        found.append(f"{CACHE}={cache_folder() / 'answers'}" if bare else one)
    return found


COMMAND_CLASS = RolloutCommand


class TaskConfig(TaskFilter):
    """The tasks of a rollout: a source, and the conditions of `TaskFilter`.

    Attributes:
        source: Task source or task file, perhaps with a slice: "swebench-verified:50".
        source_options: Arguments of the source.
    """

    source: str = "toy"
    source_options: JsonObject = {}


class RolloutConfig(Frozen):
    """The configuration of `swe-gym rollout`.

    Attributes:
        name: Run name. Empty: SOURCE-POLICY.
        output: Folder of the run folders.
        attempts: Episodes per task.
        seed: Seed that the seeds of all episodes derive from.
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
    tasks: TaskConfig = TaskConfig()
    policy: JsonObject = {}
    agent: JsonObject = {}
    env: JsonObject = {}
    budget: RolloutBudget = RolloutBudget()
    run: RolloutOptions = RolloutOptions()

    @property
    def folder(self) -> Path:
        """The run folder."""
        source, player = split_slice(self.tasks.source)[0], str(self.policy.get("model") or self.policy_name)
        tasks = Path(source).stem if is_place_of_tasks(source) else source
        words = filter(None, (tasks, str(self.agent.get("name", "")), player.rpartition("/")[2]))
        return Path(self.output) / (self.name or "-".join(words).replace(":", "-"))

    @property
    def policy_name(self) -> str:
        """Name of the policy."""
        asks = self.agent or {"model", "base_url"} & self.policy.keys()
        return str(self.policy.get("name") or ("llm" if asks else "baseline"))

    def source(self) -> tuple[str, JsonObject]:
        """Return name and arguments of the task source."""
        source, options = source_of(self.tasks.source)
        return source, options | self.tasks.source_options

    def plan(self, tasks: TaskSource) -> Plan:
        """Make the plan for the tasks that meet the conditions.

        Raises:
            UsageError: No task meets the conditions.
        """
        source, options = self.source()
        return Plan(
            source=source,
            source_options=options,
            tasks=tuple(self.tasks.ids(part_of(self.tasks.source, tasks))),
            attempts=self.attempts,
            env=self.env,
            policy=self.policy_name,
            policy_options={name: value for name, value in self.policy.items() if name != "name"},
            agent=str(self.agent.get("name", "")),
            agent_options={name: value for name, value in self.agent.items() if name != "name"},
            budget=self.budget,
            seed=self.seed,
        )


@takes_filter()
def rollout(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Task source, task file, or configuration (.toml).")
    ] = "",
    overrides: Overrides = None,
    source_option: SourceOptions = None,
    attempts: Attempts = None,
    policy: Annotated[str | None, typer.Option("--policy", "-p", help=POLICY_HELP)] = None,
    agent: AgentName = None,
    model: Annotated[str | None, typer.Option(help="Model name at the server. Implies --policy llm.")] = None,
    base_url: BaseUrl = None,
    temperature: Temperature = None,
    backend: Annotated[str | None, typer.Option(help=BACKEND_HELP)] = None,
    sandbox_option: SandboxOptions = None,
    tools: Tools = None,
    max_turns: MaxTurns = None,
    workers: Workers = None,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    cache: CacheFolder = None,
    name: RunName = None,
    output: Output = None,
    check: Annotated[bool, typer.Option("--check", help="Print the configuration and exit.")] = False,
    *,
    only: TaskFilter,
) -> None:
    """Run many episodes; monitor, stop and resume them.

    Before an episode starts, the backend is checked and the model's server is asked once. The same command resumes a
    stopped run. The first Ctrl-C waits for running episodes, the second cancels them. The exit status is 1 if episodes
    could not be graded. A configuration file has the same fields as the overrides; the documentation lists them.
    """
    options = nest_options(locals())
    options["policy"]["name"] = policy
    is_override = "=" in source
    config = make_config(
        "" if is_override else source,
        [*([source] if is_override else []), *(overrides or [])],
        options,
    )
    executor, backend = config.run.executor, str(config.env.get("backend", "local"))
    check_machine(config.folder, backend=backend, policy=config.policy_name, executor=executor)
    tasks = shared_source(*config.source())  # held until the end, so that it is read once
    plan, console = config.plan(tasks), open_console()
    check_agent(plan)
    if check:
        console.print_json(data={**config.model_dump(mode="json", exclude={"env", "policy"}), **plan.config()})
        return
    env, names = plan.config()["env"], plan.tasks or ()
    check_sandboxes(backend, env["sandbox_options"], read_tasks(tasks, names), executor=executor)
    check_model(plan, config.run, config.folder)
    bring_kit(plan)
    start_agent(plan, config.run.executor)
    latest, interrupted = play(console, plan, config.folder, config.run)
    if latest is not None:
        print_report(console, latest, config.folder)
    end(console, interrupted, left=latest is None or latest.done < latest.total)


def nest_options(given: JsonMapping) -> JsonObject:
    """Return the options that `rollout` and `eval` share as a nested configuration.

    Args:
        given: The arguments of the command by name.
    """
    env = {name: given[name] for name in ("backend", "max_turns")}
    tools = given["tools"]
    only: TaskFilter = given["only"]
    return {
        **{name: given[name] for name in ("name", "output", "attempts")},
        "tasks": {
            **only.model_dump(exclude_unset=True),
            "source_options": parse_pairs("--source-option", given["source_option"]),
        },
        "policy": {
            **{name: given[name] for name in ("model", "base_url", "temperature")},
            "cache": given["cache"] and str(Path(given["cache"]).expanduser().absolute()),
        },
        "agent": {"name": given["agent"]},
        "env": {
            **env,
            "sandbox_options": parse_pairs("--sandbox-option", given["sandbox_option"]),
            "tools": tools.split(",") if tools and "," in tools else tools,
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


def play(console: Console, plan: Plan, folder: Path, how: RolloutOptions) -> tuple[Progress | None, bool]:
    """Run a plan and show its progress. Return the last progress, and whether Ctrl-C stopped the run.

    Raises:
        RolloutStopped: Too many tries failed.
    """
    latest: Progress | None = None
    with display(console) as show:

        def follow(progress: Progress) -> None:
            nonlocal latest
            latest = progress
            show(progress)

        try:
            play_plan(plan, folder, how, on_progress=follow)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        except RolloutStopped:
            if latest is not None:
                show(latest)
            raise
    return latest, interrupted


def end(console: Console, interrupted: bool, *, left: bool) -> None:
    """Exit with status 130 if Ctrl-C left episodes, and with 1 if episodes are left otherwise."""
    if interrupted and left:
        console.print("Interrupted. Run the same command to resume.")
        raise typer.Exit(130)
    if left:
        raise typer.Exit(1)
