"""`swe-gym rollout` and `swe-gym eval`: run a policy on many tasks. Checks first; stop and resume; results."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from typer.core import TyperCommand

from ..cache import cache_folder
from ..envs import shared_source
from ..errors import UsageError
from ..rollout import Plan, Progress, RolloutOptions, RolloutStopped, hash_config
from ..rollout import rollout as play_plan
from ..tasks import TaskSource
from ..trajectories.run_folder import check_run
from ..types import JsonMapping, JsonObject, Task
from ..viewer import write_results
from .common import TaskFilter, open_console, print_json, takes_filter, takes_options_of
from .options import (
    BACKEND,
    POLICY,
    WORKERS,
    AsJson,
    BaseUrl,
    Check,
    ExecutorName,
    FromTurn,
    Ignore,
    MaxTurns,
    Models,
    RayAddress,
    RunsFolder,
    SandboxOptions,
    SourceOptions,
    Tools,
)
from .preflight import (
    backend_for,
    bring_kit,
    check_agent,
    check_machine,
    check_model,
    check_sandboxes,
    read_tasks,
    rehearse_agent,
)
from .rollout_config import FIELDS, RolloutConfig, make_config, nest_options
from .rollout_display import display, print_next, print_report, print_results, tell_if_nothing_ran

CACHE = "--cache"


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


def options(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Task source, task file, or configuration (.toml).")
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIELD=VALUE", help="Any field, for example run.retries=0 env.time_limit=600."),
    ] = None,
    source_option: SourceOptions = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", "-k", min=1, help="Episodes per task (default: 1).")
    ] = None,
    policy: Annotated[str | None, POLICY] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Agent that plays with its own tools: mini, claude-code, ... `swe-gym agents` lists them."),
    ] = None,
    mcp: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="MCP servers of the agent (mcpServers JSON), for its sandbox."),
    ] = None,
    skills: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Skills of the agent: a folder of folders with SKILL.md."),
    ] = None,
    model: Models = None,
    base_url: BaseUrl = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature (default: the server's).")] = None,
    backend: Annotated[str | None, BACKEND] = None,
    sandbox_option: SandboxOptions = None,
    tools: Tools = None,
    max_turns: MaxTurns = None,
    from_turn: FromTurn = None,
    ignore: Ignore = None,
    workers: Annotated[int | None, WORKERS] = None,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    cache: Annotated[
        str | None,
        typer.Option(
            CACHE,
            metavar="[DIR]",
            help="Keep the model's answers in this folder and reuse them (default: the cache folder).",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Run name (default: SOURCE-POLICY).")] = None,
    output: RunsFolder = None,
    check: Check = False,
    as_json: AsJson = False,
    *,
    only: TaskFilter,
) -> None:
    """The options of `rollout` and `eval`."""


@takes_filter()
@takes_options_of(options)
def rollout(**given: Any) -> None:
    """Run many episodes; monitor, stop and resume them.

    Before an episode starts, the tasks, their backend, images and disk are checked, and the model's server is asked
    once. The same command resumes a stopped run. The first Ctrl-C waits for running episodes, the second cancels them.
    The exit status is 1 if episodes could not be graded.

    A configuration file has the same fields as the overrides; the documentation lists them. Tasks with images run on
    the backend docker, others on local, unless you name one. Four episodes run at once, or with Ray as many as fit,
    unless --workers is set.

    With --from, each episode continues an episode of another run: its actions up to that turn are played again, and
    the policy acts from there. Task and environment are those of the episode, unless you change the environment.
    """
    _run(given, evaluates=False)


@takes_filter()
@takes_options_of(options)
def evaluate(**given: Any) -> None:
    """Evaluate a model on tasks: a rollout of the policy llm that ends with a table of results.

    Before an episode starts, the command checks tasks, backend, images and disk, and asks the model's server once for
    the key, the model's name, its context length and tool calls. The same command resumes a stopped evaluation. The
    exit status is 1 if episodes could not be graded. Defaults are those of `swe-gym rollout`, except for the policy.
    """
    _run(given, evaluates=True)


class Prepared(NamedTuple):
    """A run that has not started.

    Attributes:
        config: Its configuration.
        plan: Its plan.
        source: Its task source, held so that it is read once.
        tasks: The tasks that its backend is checked for.
    """

    config: RolloutConfig
    plan: Plan
    source: TaskSource
    tasks: list[Task]

    def describe(self) -> JsonObject:
        """Return the whole configuration."""
        config = self.config.model_dump(mode="json", exclude={"env", "policy"})
        return {**config, **self.plan.config(), "folder": str(self.config.folder)}


class Played(NamedTuple):
    """A run that has ended, or that was stopped.

    Attributes:
        latest: Its last count.
        interrupted: Whether Ctrl-C stopped it.
        stopped: The reason why it stopped itself.
    """

    latest: Progress | None
    interrupted: bool = False
    stopped: RolloutStopped | None = None

    @property
    def left(self) -> bool:
        """Whether episodes are left."""
        return self.latest is None or self.latest.done < self.latest.total


def _run(given: JsonMapping, *, evaluates: bool) -> None:
    """Prepare a run per model, check all of them, and play one after another.

    Args:
        given: The options by name.
        evaluates: Whether a model is evaluated: tasks must be named, the policy is "llm", and results are the end.
    """
    check, as_json = given["check"], given["as_json"]
    console = open_console(stderr=as_json)
    runs = [_prepare(config, evaluates=evaluates) for config in _configs(given)]
    folders = [one.config.folder for one in runs]
    if len(set(folders)) < len(folders):
        raise UsageError(f"two models would share the run folder {folders[0]}: use one command and one --name for each")
    if check and as_json:
        print_json({"runs": [one.describe() for one in runs]})
    for one in runs:
        _check(console, one)
    if check:
        console.print("Everything is ready. Run the same command without --check.")
        return
    _play_all(console, runs, evaluates=evaluates, as_json=as_json)


def _configs(given: JsonMapping) -> list[RolloutConfig]:
    """Return a configuration per model."""
    source, overrides = given["source"], given["overrides"] or []
    if "=" in source:
        source, overrides = "", [source, *overrides]
    nested = nest_options(given)
    models = given["model"] or [None]
    return [
        make_config(source, overrides, {**nested, "policy": {**nested["policy"], "model": model}}) for model in models
    ]


def _prepare(config: RolloutConfig, *, evaluates: bool) -> Prepared:
    """Make the plan of a configuration.

    Raises:
        UsageError: A name is unknown, no task meets the conditions, or a folder cannot be used.
        MissingDependency: An extra is not installed.
    """
    if evaluates:
        if "source" not in config.tasks.model_fields_set and not config.from_turn:
            raise UsageError("no tasks: name a source such as toy or swebench-verified:50, or a task file")
        config = config.model_copy(update={"policy": {**config.policy, "name": config.policy.get("name") or "llm"}})
    backend = str(config.whole_env.get("backend", ""))
    check_machine(config.folder, backend=backend, policy=config.policy_name, executor=config.run.executor)
    source = shared_source(*config.source())
    plan = config.plan(source)
    names = plan.tasks or ()
    tasks = read_tasks(source, names) or [source.get(names[0])]
    if not backend:
        plan = plan.model_copy(update={"env": {**plan.env, "backend": backend_for(tasks)}})
        check_machine(None, backend=plan.env["backend"])
    check_agent(plan, tasks)
    return Prepared(config, plan, source, tasks)


def _check(console: Console, one: Prepared) -> None:
    """Check everything before an episode starts, and print what was found.

    Raises:
        UsageError: Something cannot work.
    """
    config, plan = one.config, one.plan
    asked = plan.config()
    env, executor = asked["env"], config.run.executor
    check_run(config.folder, asked, hash_config(asked))
    console.print(f"{'tasks':8}{len(plan.tasks or ())} from {plan.source}, backend {env['backend']}")
    for found in check_sandboxes(env["backend"], env["sandbox_options"], one.tasks, executor=executor):
        console.print(f"{found.what:8}{found.detail}")
    for told in filter(None, (check_model(plan, config.run, config.folder), bring_kit(plan))):
        console.print(f"{told.what:8}{told.said}")
    rehearse_agent(plan, executor)


def _play_all(console: Console, runs: list[Prepared], *, evaluates: bool, as_json: bool) -> None:
    """Play runs one after another; print the results of each, and finally those of all.

    Raises:
        RolloutStopped: Too many tries failed.
    """
    found: list[JsonObject] = []
    played: list[Played] = []
    try:
        for one in runs:
            folder = one.config.folder
            played.append(play(console, one.plan, folder, one.config.run))
            if evaluates or as_json:
                found.append({**write_results(folder), "folder": str(folder)})
            if evaluates:
                tell_if_nothing_ran(console, played[-1].latest)
                print_results(console, found[-1])
            elif played[-1].latest is not None:
                print_report(console, played[-1].latest, folder)
            if played[-1].stopped:
                raise played[-1].stopped
            if played[-1].interrupted:
                break
    finally:
        if as_json and found:
            typer.echo(json.dumps({"runs": found}, indent=1))
    if evaluates:
        print_next(console, found)
    _end(console, played, left=len(played) < len(runs) or any(one.left for one in played))


def play(console: Console, plan: Plan, folder: Path, how: RolloutOptions) -> Played:
    """Run a plan and show its progress."""
    latest: Progress | None = None
    with display(console) as show:

        def follow(progress: Progress) -> None:
            nonlocal latest
            latest = progress
            show(progress)

        try:
            play_plan(plan, folder, how, on_progress=follow)
        except KeyboardInterrupt:
            return Played(latest, interrupted=True)
        except RolloutStopped as error:
            if latest is not None:
                show(latest)
            return Played(latest, stopped=error)
    return Played(latest)


def _end(console: Console, played: list[Played], *, left: bool) -> None:
    """Exit with status 130 if Ctrl-C left episodes, and with 1 if episodes are left otherwise."""
    if left and played[-1].interrupted:
        console.print("Interrupted. Run the same command to resume.")
        raise typer.Exit(130)
    if left:
        raise typer.Exit(1)
