"""The results of an evaluation, printed."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import quantify
from ..trajectories import ModelServer
from ..types import JsonObject
from ..viewer import RESULTS
from .common import make_table
from .rollout_display import dollars, duration

MOST_REPOSITORIES = 25


def print_results(console: Console, found: JsonObject) -> None:
    """Print the results of a run, as `write_results` returns them."""
    console.print()
    for name, said in _lines(found).items():
        if said:
            console.print(Text.assemble((f"{name:14}", "bold"), said))
    if len(found["repositories"]) > 1:
        console.print()
        console.print(_repositories(found["repositories"]))


def print_next(console: Console, found: list[JsonObject]) -> None:
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
        "shortened": f"the conversations of {quantify(found['shortened'], 'episode')}, to fit the model's context"
        if found["shortened"]
        else "",
        "not resolved": _counts(found["unresolved"]),
        "failed tries": _counts(found["failed_tries"]),
        "cheat signs": f"in {quantify(found['cheat_signs'], 'episode')}: look at them" if found["cheat_signs"] else "",
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
        hint = "" if found["uncounted"] else ": set policy.prices.input and policy.prices.output"
        return dollars(None, found["uncounted"]) + hint
    each = f" (${found['cost'] / found['graded']:,.4f} an episode)" if found["graded"] else ""
    cached = (
        ". Cached prompt tokens are billed in full: set policy.prices.cached" if found["cached_at_full_price"] else ""
    )
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
