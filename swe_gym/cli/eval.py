"""`swe-gym eval`: evaluate models on tasks, from the model's name to a table of results."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..envs import shared_source
from ..errors import UsageError
from ..rollout.engine import RolloutStopped
from ..rollout.plan import Plan, hash_config
from ..tasks import TaskSource
from ..trajectories.run_folder import check_run
from ..trajectories.trajectory import ModelServer
from ..types import JsonObject
from ..viewer import RESULTS, write_results
from .common import (
    BACKENDS_HELP,
    SOURCE_HELP,
    ExecutorName,
    RayAddress,
    SandboxOptions,
    SourceOptions,
    TaskFilter,
    make_table,
    open_console,
    takes_filter,
)
from .preflight import (
    backend_for,
    bring_kit,
    check_agent,
    check_machine,
    check_model,
    check_sandboxes,
    read_tasks,
    start_agent,
)
from .rollout import (
    AgentName,
    Attempts,
    BaseUrl,
    CacheFolder,
    MaxTurns,
    Output,
    Overrides,
    RolloutCommand,
    RolloutConfig,
    RunName,
    Temperature,
    Tools,
    Workers,
    end,
    make_config,
    nest_options,
    play,
)
from .rollout_display import dollars, duration, tell_if_nothing_ran

MOST_REPOSITORIES = 25

COMMAND_CLASS = RolloutCommand

PriceIn = Annotated[
    float | None, typer.Option(min=0, help="Dollars per million prompt tokens.", rich_help_panel="Prices")
]
PriceOut = Annotated[
    float | None, typer.Option(min=0, help="Dollars per million completion tokens.", rich_help_panel="Prices")
]
CachedPrice = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Dollars per million prompt tokens from the server's cache (default: --price-in).",
        rich_help_panel="Prices",
    ),
]


class Evaluation(NamedTuple):
    """An evaluation that may start.

    Attributes:
        config: Its configuration.
        plan: Its plan.
        tasks: Its task source, held so that it is read once.
    """

    config: RolloutConfig
    plan: Plan
    tasks: TaskSource


@takes_filter()
def evaluate(
    overrides: Overrides = None,
    tasks: Annotated[str, typer.Option("--tasks", "-t", metavar="SOURCE[:N]", help=SOURCE_HELP)] = "",
    source_option: SourceOptions = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model name at the server. Repeat to evaluate several models.")
    ] = None,
    base_url: BaseUrl = None,
    agent: AgentName = None,
    attempts: Attempts = None,
    temperature: Temperature = None,
    backend: Annotated[
        str | None, typer.Option(help=f"{BACKENDS_HELP} (default: docker if tasks have images, else local).")
    ] = None,
    sandbox_option: SandboxOptions = None,
    tools: Tools = None,
    max_turns: MaxTurns = None,
    workers: Workers = None,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    price_cached: CachedPrice = None,
    cache: CacheFolder = None,
    name: RunName = None,
    output: Output = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", dir_okay=False, help="Configuration (.toml) of a rollout.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check everything and exit. No episode starts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    *,
    only: TaskFilter,
) -> None:
    """Evaluate a model on tasks: checks first, then a rollout, then a table of results.

    Before an episode starts, the command checks tasks, backend, images and disk, and asks the model's server once for
    the key, the model's name, its context length and tool calls. The same command resumes a stopped evaluation. The
    exit status is 1 if episodes could not be graded.
    """
    options = nest_options(locals())
    if wrong := next((one for one in overrides or [] if "=" not in one), ""):
        raise UsageError(f"{wrong!r} is not FIELD=VALUE. Tasks are an option: --tasks {wrong}")
    if (price_in is None) != (price_out is None) or (price_cached is not None and price_in is None):
        raise UsageError("--price-in and --price-out belong together, also for --price-cached: give both")
    options["tasks"]["source"] = tasks or None
    prices = {"input": price_in, "cached": price_cached, "output": price_out}
    options["policy"]["prices"] = None if price_in is None else prices
    console = open_console(stderr=as_json)
    ready = []
    for one in model or [""]:
        options["policy"]["model"] = one or None
        ready.append(_prepare(console, make_config(str(config) if config else "", overrides or [], options)))
    folders = [one.config.folder for one in ready]
    if len(set(folders)) < len(folders):
        raise UsageError(f"two models would share the run folder {folders[0]}: use one command and one --name for each")
    if check:
        console.print("Everything is ready. Run the same command without --check.")
        return
    _run(console, ready, as_json=as_json)


def _prepare(console: Console, config: RolloutConfig) -> Evaluation:
    """Check everything before an episode starts, and print what was found.

    Raises:
        UsageError: Something cannot work.
    """
    if "source" not in config.tasks.model_fields_set:
        raise UsageError("no tasks: add --tasks swebench-verified:50, --tasks toy, or a task file")
    if not config.policy.get("name"):
        config = config.model_copy(update={"policy": {**config.policy, "name": "llm"}})
    check_machine(config.folder, policy=config.policy_name, executor=config.run.executor)
    tasks = shared_source(*config.source())
    plan = config.plan(tasks)
    names = plan.tasks or ()
    chosen = read_tasks(tasks, names) or [tasks.get(names[0])]
    if "backend" not in plan.env:
        plan = plan.model_copy(update={"env": {**plan.env, "backend": backend_for(chosen)}})
    asked = plan.config()
    check_run(config.folder, asked, hash_config(asked))
    env = asked["env"]
    check_machine(config.folder, backend=env["backend"])
    console.print(f"{'tasks':8}{len(names)} from {plan.source}, backend {env['backend']}")
    for found in check_sandboxes(env["backend"], env["sandbox_options"], chosen, executor=config.run.executor):
        console.print(f"{found.what:8}{found.detail}")
    check_agent(plan)
    for told in filter(None, (check_model(plan, config.run, config.folder), bring_kit(plan))):
        console.print(f"{told.what:8}{told.said}")
    start_agent(plan, config.run.executor)
    return Evaluation(config, plan, tasks)


def _run(console: Console, ready: list[Evaluation], *, as_json: bool) -> None:
    """Run evaluations one after another; print the results of each, and finally those of all."""
    found: list[JsonObject] = []
    try:
        for one in ready:
            folder = one.config.folder
            stopped: RolloutStopped | None = None
            interrupted = False
            try:
                latest, interrupted = play(console, one.plan, folder, one.config.run)
                tell_if_nothing_ran(console, latest)
            except RolloutStopped as error:
                stopped = error
            found.append({**write_results(folder), "folder": str(folder)})
            print_results(console, found[-1])
            if stopped:
                raise stopped
            if interrupted:
                break
    finally:
        if as_json and found:
            typer.echo(json.dumps({"runs": found}, indent=1))
    _print_end(console, found)
    left = len(found) < len(ready) or any(one["graded"] < one["episodes"] for one in found)
    end(console, interrupted, left=left)


# --- the results ------------------------------------------------------------------------------------------------


def print_results(console: Console, found: JsonObject) -> None:
    """Print the results of a run, as `write_results` returns them."""
    console.print()
    for name, said in _lines(found).items():
        if said:
            console.print(Text.assemble((f"{name:14}", "bold"), said))
    if len(found["repositories"]) > 1:
        console.print()
        console.print(_repositories(found["repositories"]))


def _print_end(console: Console, found: list[JsonObject]) -> None:
    """Print a line per model if there are several, and the next commands."""
    folders = [one["folder"] for one in found]
    if len(found) > 1:
        table = make_table("model", "resolved", "interval", "cost")
        for one in found:
            low, high = one["interval"] or (0.0, 1.0)
            rate = "" if one["resolved_rate"] is None else f"{one['resolved_rate']:.1%}"
            table.add_row(Text(one["model"]), rate, f"{low:.1%} to {high:.1%}", dollars(one["cost"], one["uncounted"]))
        console.print()
        console.print(table)
    other = folders[1] if len(folders) > 1 else "ANOTHER_RUN"
    console.print(f"\nResults: {', '.join(f'{folder}/{RESULTS}' for folder in folders)}. Next:")
    console.print(f"  swe-gym view {folders[0]}")
    console.print(f"  swe-gym compare {folders[0]} {other}")
    console.print(f"  swe-gym export {folders[0]} sft.jsonl --to sft --resolved")


def _lines(found: JsonObject) -> dict[str, str]:
    graded, episodes = found["graded"], found["episodes"]
    left = f", {episodes - graded} left: run the same command" if graded < episodes else ""
    if found["omitted"]:
        left += f"; {found['omitted']} more of earlier commands are in the folder and not counted"
    read, cached, written = found["prompt_tokens"], found["cached_tokens"], found["completion_tokens"]
    tokens = f"{read:,} prompt ({cached / read:.0%} cached), {written:,} completion" if read else ""
    asked = found["requests"] + found["retries"]
    return {
        "run": f"{found['agent'] and found['agent'] + ' with '}{found['model']} on {found['source']}",
        "server": ", ".join(str(ModelServer.model_validate(one)) for one in found["servers"]),
        "answered as": ", ".join(f"{name} in {count} tries" for name, count in found["answered_as"].items()),
        "resolved": _format_resolved(found),
        "pass@k": ", ".join(_format_pass_at_k(found)),
        "episodes": f"{graded} of {episodes} graded ({found['tasks']} tasks x {found['attempts']}){left}",
        "cost": _cost(found) if found["requests"] or found["cached_answers"] else "",
        "tokens": tokens + _uncounted(found),
        "cache": _format_cached(found) if found["cached_answers"] else "",
        "requests": f"{found['requests']:,} answered, {found['retries']:,} failed and sent again" if asked else "",
        "time": _time(found) if graded else "",
        "invalid calls": _format_invalid(found) if graded else "",
        "shortened": f"the conversations of {found['shortened']} episodes, to fit the model's context"
        if found["shortened"]
        else "",
        "not resolved": _counts(found["unresolved"]),
        "failed tries": _counts(found["failed_tries"]),
        "cheat signs": f"in {found['cheat_signs']} episodes: look at them" if found["cheat_signs"] else "",
        "predictions": " to ".join(dict.fromkeys([*found["predictions"][:1], *found["predictions"][-1:]])),
    }


def _format_pass_at_k(found: JsonObject) -> Iterator[str]:
    """Yield pass@k for each k; with the number of tasks if some of them have fewer graded attempts."""
    tasks = found["pass_at_k_tasks"]
    for k, value in found["pass_at_k"].items():
        yield f"pass@{k} {value:.1%}" + (f" ({tasks[k]} of {tasks['1']} tasks)" if tasks[k] < tasks["1"] else "")


def _format_resolved(found: JsonObject) -> str:
    if found["interval"] is None:
        return "no episode was graded"
    low, high = found["interval"]
    return (
        f"{found['resolved_rate']:.1%} ({found['resolved']} of {found['graded']}), {low:.1%} to {high:.1%} "
        f"({found['interval_method']})"
    )


def _cost(found: JsonObject) -> str:
    if found["cost"] is None:
        hint = "" if found["uncounted"] else ": give --price-in and --price-out"
        return dollars(None, found["uncounted"]) + hint
    each = f" (${found['cost'] / found['graded']:,.4f} an episode)" if found["graded"] else ""
    cached = ". Cached prompt tokens are billed in full: give --price-cached" if found["cached_at_full_price"] else ""
    return dollars(found["cost"]) + each + cached


def _uncounted(found: JsonObject) -> str:
    if not found["uncounted"]:
        return ""
    besides = "; besides, " if found["prompt_tokens"] else ""
    return f"{besides}those of {found['uncounted']:,} answers, which the server did not tell"


def _format_cached(found: JsonObject) -> str:
    known = found["cached_answers"]
    return f"{known:,} of {known + found['requests']:,} answers came from the cache: not billed, and in no other number"


def _format_invalid(found: JsonObject) -> str:
    invalid, turns = found["invalid_calls"], found["all_turns"]
    if invalid is None:
        return "not counted"
    return f"{invalid:,} of {turns:,} turns" + (f" ({invalid / turns:.0%})" if invalid else "")


def _time(found: JsonObject) -> str:
    return f"{duration(found['seconds'])}, an episode {found['episode_seconds']:.1f} s and {found['turns']:.1f} turns"


def _counts(causes: dict[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in causes.items())


def _repositories(rows: list[JsonObject]) -> Table:
    table = make_table("repository", "resolved", "episodes", "rate")
    for row in rows[:MOST_REPOSITORIES]:
        table.add_row(
            Text(row["repository"]), str(row["resolved"]), str(row["graded"]), f"{row['resolved'] / row['graded']:.0%}"
        )
    if len(rows) > MOST_REPOSITORIES:
        table.add_row(f"{len(rows) - MOST_REPOSITORIES} more in {RESULTS}", "", "", "")
    return table
