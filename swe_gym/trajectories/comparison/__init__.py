"""The comparison of runs over the same tasks.

Only graded attempts count. Failed tries (infrastructure failures, cancelled and killed episodes) are neither resolved
nor unresolved: they are counted separately, and a task without a graded attempt in a run is missing there.
"""

from __future__ import annotations

import datetime
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from ...errors import UsageError
from ...types import Frozen, Json, JsonMapping, JsonObject
from ..run_folder import RunInfo, read_episodes, read_failed, read_run
from ..statistics import difference_interval, mean_interval, pass_curve, sign_flip_test
from ..trajectory import Usage


class Attempt(Protocol):
    """What a comparison needs of an attempt, as `IndexLine` has it."""

    @property
    def task_id(self) -> str:
        """Task id."""

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 0."""

    @property
    def resolved(self) -> bool:
        """Whether the attempt is resolved."""

    @property
    def turns(self) -> int:
        """Number of turns."""

    @property
    def invalid_calls(self) -> int | None:
        """Number of turns without a valid tool call; None if they were not counted."""

    @property
    def usage(self) -> Usage:
        """Tokens and cost."""

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds by activity, and "total"."""

    @property
    def started(self) -> str:
        """Start (UTC, ISO 8601); empty if unknown."""


RunState = Literal["running", "interrupted", "finished"]
"""State of a run. "finished": each attempt is graded, or the last process tried all of them."""


class RunSummary(Frozen):
    """A run in numbers.

    Attributes:
        name: Name of the run folder.
        source: Task source.
        policy: Policy name.
        agent: Name of the agent that asks the model; empty if the policy plays.
        model: Model name; empty if there is no model.
        servers: Servers of the model, in the order in which they were first asked; "unknown" if it was not recorded.
        created: Start of the run (UTC, ISO 8601).
        planned_tasks: Number of tasks of the run.
        attempts: Attempts per task.
        tasks: Number of tasks with a graded attempt.
        graded: Number of graded attempts.
        planned: Number of attempts that the run is to grade.
        stopped_early: Whether `early_stop` may have left some of them out, so that the rates are biased.
        resolved: Mean over the tasks of the share of resolved attempts; None if nothing is graded.
        low: Lower end of its 95 % confidence interval.
        high: Upper end of it.
        pass_at_k: k -> unbiased estimate over the tasks with at least k graded attempts.
        turns: Mean number of turns of a graded attempt; None if nothing is graded.
        all_turns: Number of turns of all graded attempts.
        invalid_calls: How many of them had no valid tool call; None if that was not counted in each attempt.
        shortened: Number of graded attempts whose conversation was shortened to fit into the model's context.
        seconds: Mean wall-clock seconds of a graded attempt; None if nothing is graded.
        duration: Seconds in which at least one try ran. Pauses between two calls of the run do not count.
        failed_tries: Number of failed tries.
        omitted: Number of graded attempts that earlier calls of the run asked for, and the last one did not. No other
            number counts them.
        prompt_tokens: Prompt tokens of all tries, failed ones included.
        completion_tokens: Completion tokens of all tries.
        requests: Requests of all tries that were answered.
        uncounted: How many of them the server told no tokens of, so that the cost is unknown.
        retries: Requests of all tries that failed and were sent again.
        cached_answers: Answers of all tries from the cache of answers, which no number of tokens, requests or dollars
            counts.
        cached_tokens: Prompt tokens of all tries from the server's cache.
        cached_at_full_price: Whether these are billed like other prompt tokens, since no price of them was told.
        cost: US dollars of all tries; None if a price is unknown.
        answered_as: Number of tries with answers under another name of the model than the one that was asked, by name.
    """

    name: str
    source: str
    policy: str
    agent: str
    model: str
    servers: tuple[str, ...]
    created: str
    planned_tasks: int
    attempts: int
    tasks: int
    graded: int
    planned: int
    stopped_early: bool
    resolved: float | None
    low: float
    high: float
    pass_at_k: dict[int, float]
    turns: float | None
    all_turns: int
    invalid_calls: int | None
    shortened: int
    seconds: float | None
    duration: float
    failed_tries: int
    omitted: int
    prompt_tokens: int
    completion_tokens: int
    requests: int
    uncounted: int
    retries: int
    cached_answers: int
    cached_tokens: int
    cached_at_full_price: bool
    cost: float | None
    answered_as: dict[str, int]

    @property
    def player(self) -> str:
        """Who played: the model, or the policy without one, after the agent that asks it."""
        name = self.model or self.policy
        return f"{self.agent} with {name}" if self.agent else name


class RunResults(NamedTuple):
    """The results of a run.

    Attributes:
        summary: The run in numbers.
        info: Content of `run.json`.
        outcomes: Whether each graded attempt is resolved, by task, in the order of the attempts.
    """

    summary: RunSummary
    info: RunInfo
    outcomes: Mapping[str, Sequence[bool]]


class PairedDifference(Frozen):
    """The difference of two runs over the tasks that both have graded.

    Attributes:
        first: Name of the first run.
        second: Name of the second run.
        tasks: Number of common tasks, at least one.
        difference: Mean over the common tasks of the share of resolved attempts, second minus first.
        low: Lower end of its 95 % confidence interval.
        high: Upper end of it.
        p_value: Two-sided p-value of `sign_flip_test`, not corrected for the number of runs.
        better: Number of tasks that the second run resolves more often.
        worse: Number of tasks that it resolves less often.
    """

    first: str
    second: str
    tasks: int
    difference: float
    low: float
    high: float
    p_value: float
    better: int
    worse: int


class TaskComparison(Frozen):
    """A task in all runs.

    Attributes:
        task_id: Task id.
        resolved: Number of resolved attempts in each run; None if the run has no graded attempt.
        graded: Number of graded attempts in each run.
        spread: Largest minus smallest share of resolved attempts: 0 if the runs agree.
    """

    task_id: str
    resolved: tuple[int | None, ...]
    graded: tuple[int, ...]
    spread: float


class Comparison(Frozen):
    """A comparison of runs.

    Attributes:
        runs: The runs. The first is the base.
        pairs: The paired difference of the base and each other run that has a graded task in common with it.
        tasks: The tasks: disagreements first, largest first; then tasks that some run lacks; then the others.
        settings: Settings that differ: name -> value in each run.
        warnings: What makes the runs hard to compare.
    """

    runs: tuple[RunSummary, ...]
    pairs: tuple[PairedDifference, ...]
    tasks: tuple[TaskComparison, ...]
    settings: dict[str, tuple[Json, ...]]
    warnings: tuple[str, ...]


def compare(folders: Sequence[str | os.PathLike[str]]) -> Comparison:
    """Compare runs over the same tasks.

    The tasks are the unit of the paired differences, since attempts at one task are not independent.

    Args:
        folders: The run folders, two or more. The first is the base, from which the others differ. Running runs are
            compared as far as they are.

    Raises:
        UsageError: A folder is not a run folder or given twice, or there are fewer than two.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2:
        raise UsageError("a comparison needs two or more run folders")
    return compare_results([read_results(path, name) for path, name in zip(paths, distinct_names(paths), strict=True)])


def summarize(name: str, info: RunInfo, graded: Iterable[Attempt], failed: Iterable[Attempt]) -> RunResults:
    """Count the attempts of a run which its last call asked for.

    Args:
        name: Name of the run.
        info: Content of `run.json`.
        graded: Graded attempts.
        failed: Failed tries.
    """
    found = sorted(graded, key=lambda one: one.attempt)
    attempts = [one for one in found if info.counts(one.task_id, one.attempt)]
    tries = [one for one in failed if info.counts(one.task_id, one.attempt)]
    outcomes: dict[str, list[bool]] = {}
    for attempt in attempts:
        outcomes.setdefault(attempt.task_id, []).append(attempt.resolved)
    low, high = mean_interval(list(outcomes.values()))
    used = [attempt.usage for attempt in (*attempts, *tries)]
    summary = RunSummary(
        name=name,
        source=source_of(info),
        policy=str(info.config.get("policy", "")),
        agent=str(info.config.get("agent", "")),
        model=model_of(info),
        servers=tuple(map(str, info.servers)),
        created=info.created,
        planned_tasks=len(info.tasks),
        attempts=info.attempts,
        tasks=len(outcomes),
        graded=len(attempts),
        planned=len(info.tasks) * info.attempts,
        stopped_early=info.stopped_early(len(attempts)),
        resolved=_mean([sum(one) / len(one) for one in outcomes.values()]),
        low=low,
        high=high,
        pass_at_k={point.k: point.value for point in pass_curve(outcomes)},
        turns=_mean([attempt.turns for attempt in attempts]),
        all_turns=sum(attempt.turns for attempt in attempts),
        invalid_calls=sum_of_known(attempt.invalid_calls for attempt in attempts),
        shortened=sum(attempt.usage.shortened > 0 for attempt in attempts),
        seconds=_mean([attempt.seconds.get("total", 0.0) for attempt in attempts]),
        duration=_duration([*attempts, *tries]),
        failed_tries=len(tries),
        omitted=len(found) - len(attempts),
        prompt_tokens=sum(usage.prompt_tokens for usage in used),
        completion_tokens=sum(usage.completion_tokens for usage in used),
        requests=sum(usage.calls for usage in used),
        uncounted=sum(usage.uncounted for usage in used),
        retries=sum(usage.retries for usage in used),
        cached_answers=sum(usage.cached_answers for usage in used),
        cached_tokens=sum(usage.cached_tokens for usage in used),
        cached_at_full_price=info.cached_at_full_price(used),
        cost=info.cost(used),
        answered_as=dict(Counter(name for usage in used for name in usage.answered_as).most_common()),
    )
    return RunResults(summary, info, outcomes)


def _duration(attempts: Iterable[Attempt]) -> float:
    """Return the seconds in which at least one attempt ran."""
    spans = []
    for one in attempts:
        if one.started:
            start = datetime.datetime.fromisoformat(one.started).timestamp()
            spans.append((start, start + one.seconds.get("total", 0.0)))
    ran, end = 0.0, 0.0
    for start, stop in sorted(spans):
        ran += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return ran


def read_results(folder: str | os.PathLike[str], name: str = "") -> RunResults:
    """Read a run folder and count its attempts.

    Args:
        folder: The run folder.
        name: Name of the run; empty for that of the folder.

    Raises:
        UsageError: The folder is not a run folder, or a line is invalid.
    """
    return summarize(name or Path(folder).resolve().name, read_run(folder), read_episodes(folder), read_failed(folder))


def run_state(summary: RunSummary, progress: JsonMapping, *, running: bool) -> RunState:
    """Return the state of a run.

    Args:
        summary: The run in numbers.
        progress: Its last progress, as `read_progress` returns it.
        running: Whether it is running.
    """
    if running:
        return "running"
    tried = progress.get("done", 0) + progress.get("given_up", 0) >= progress.get("total", 1)
    return "finished" if tried or summary.graded >= summary.planned else "interrupted"


def compare_results(results: Sequence[RunResults]) -> Comparison:
    """Compare runs whose results have been read. The first is the base."""
    base, *others = results
    settings = config_differences([compared_settings(result.info) for result in results])
    tasks = _compare_tasks([result.outcomes for result in results])
    return Comparison(
        runs=tuple(result.summary for result in results),
        pairs=tuple(pair for other in others if (pair := _compare_pair(base, other))),
        tasks=tasks,
        settings={name: tuple(values) for name, values in settings.items()},
        warnings=(
            *_differing_conditions(results, settings),
            *_find_several_servers(results),
            *(
                f"{one.summary.name}: cached prompt tokens are billed at the full price: no price of them was given"
                for one in results
                if one.summary.cached_at_full_price
            ),
            *(
                f"{one.summary.name}: the server did not tell the tokens of {one.summary.uncounted:,} of "
                f"{one.summary.requests:,} answers, which its tokens leave out"
                for one in results
                if one.summary.uncounted
            ),
            *(
                f"{one.summary.name}: {one.summary.cached_answers:,} answers came from the cache, which its tokens, "
                "cost and time leave out"
                for one in results
                if one.summary.cached_answers
            ),
            *_missing_grades(results),
            *(warning for other in others for warning in _missing_tasks(base, other)),
        ),
    )


def _compare_pair(first: RunResults, second: RunResults) -> PairedDifference | None:
    """Return the paired difference of two runs; None without common tasks."""
    common = [task_id for task_id in first.outcomes if task_id in second.outcomes]
    if not common:
        return None
    differences = [_share(second.outcomes[task_id]) - _share(first.outcomes[task_id]) for task_id in common]
    low, high = difference_interval(differences)
    return PairedDifference(
        first=first.summary.name,
        second=second.summary.name,
        tasks=len(common),
        difference=float(sum(differences, Fraction()) / len(common)),
        low=low,
        high=high,
        p_value=sign_flip_test(differences),
        better=sum(difference > 0 for difference in differences),
        worse=sum(difference < 0 for difference in differences),
    )


def _compare_tasks(outcomes: Sequence[Mapping[str, Sequence[bool]]]) -> tuple[TaskComparison, ...]:
    rows = []
    for task_id in sorted({task_id for run in outcomes for task_id in run}):
        found = [run.get(task_id, ()) for run in outcomes]
        shares = [_share(one) for one in found if one]
        rows.append(
            TaskComparison(
                task_id=task_id,
                resolved=tuple(sum(one) if one else None for one in found),
                graded=tuple(len(one) for one in found),
                spread=float(max(shares) - min(shares)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.spread, 0 not in row.graded, row.task_id)))


def _share(outcomes: Sequence[bool]) -> Fraction:
    return Fraction(sum(outcomes), len(outcomes))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def sum_of_known(counts: Iterable[int | None]) -> int | None:
    """Return a sum; None if a part of it is unknown, or there is none."""
    known = list(counts)
    return None if not known or None in known else sum(filter(None, known))


# --- what differs between the runs --------------------------------------------------------------------------

COMPARED = ("policy", "policy_options.", "server", "agent", "seed")
"""Settings that runs are compared by. All others should be equal: task source, tools, limits, grading, sandbox."""


def compared_settings(info: RunInfo) -> JsonObject:
    """Return the configuration of a run with its servers. Runs of former versions recorded none."""
    servers = [one.model_dump() for one in info.servers]
    return {**info.config, **({"server": servers[0] if len(servers) == 1 else servers} if servers else {})}


def config_differences(configs: Sequence[JsonMapping]) -> dict[str, list[Json]]:
    """Return the fields in which configurations differ: dotted name -> value in each, None if it is missing."""
    flat = [dict(_flatten(config)) for config in configs]
    names = sorted({name for values in flat for name in values})
    found = {name: [values.get(name) for values in flat] for name in names}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def _flatten(values: JsonMapping, prefix: str = "") -> Iterable[tuple[str, Json]]:
    for name, value in values.items():
        if isinstance(value, dict):  # an empty one has no field that differs
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or as many parts as distinguish them.

    Raises:
        UsageError: A folder is given twice.
    """
    paths = [folder.resolve() for folder in folders]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"a run is given twice: {path}")
    names: list[str] = []
    for parts in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def source_of(info: RunInfo) -> str:
    """Return the task source of a run, with the point from which its episodes started; empty if it is unknown."""
    env, point = info.config.get("env"), info.config.get("checkpoint")
    source = str(env.get("source") or "") if isinstance(env, dict) else ""
    return f"{source} from {point.get('origin') or point.get('id')}" if isinstance(point, dict) else source


def model_of(info: RunInfo) -> str:
    """Return the model name of a run; empty if it has none."""
    options = info.config.get("policy_options")
    return str(options.get("model") or "") if isinstance(options, dict) else ""


def _differing_conditions(results: Sequence[RunResults], settings: Mapping[str, Sequence[Json]]) -> Iterable[str]:
    """Yield a warning for each condition that differs."""
    conditions = {name: values for name, values in settings.items() if not name.startswith(COMPARED)}
    versions = [result.info.swe_gym for result in results]
    if len(set(versions)) > 1:
        conditions["swe_gym version"] = versions
    for name, values in conditions.items():
        named = (
            f"{_show_value(value)} in {result.summary.name}" for value, result in zip(values, results, strict=True)
        )
        yield f"{name} differs: {', '.join(named)}"


def _show_value(value: object) -> str:
    return "not set" if value in (None, "") else value if isinstance(value, str) else json.dumps(value)


def _find_several_servers(results: Sequence[RunResults]) -> Iterable[str]:
    for summary in (result.summary for result in results):
        if len(summary.servers) > 1:
            yield f"{summary.name}: mixes answers of several servers or models: {', '.join(summary.servers)}"
        if summary.answered_as:
            names = ", ".join(f"{name!r} ({count} tries)" for name, count in summary.answered_as.items())
            yield f"{summary.name}: asked for {summary.model!r}, and was answered by {names}"


def _missing_grades(results: Sequence[RunResults]) -> Iterable[str]:
    for summary in (result.summary for result in results):
        if summary.graded < summary.planned:
            yield f"{summary.name}: {summary.planned - summary.graded} of {summary.planned} attempts are not graded"
        if summary.stopped_early:
            yield (
                f"{summary.name} stopped early (run.early_stop=votes), so its rates are biased: pass@k for large k "
                "counts only tasks on which its attempts disagree"
            )
        if summary.omitted:
            yield f"{summary.name}: {summary.omitted} attempts that only earlier calls asked for are omitted"


def _missing_tasks(base: RunResults, other: RunResults) -> Iterable[str]:
    """Yield a warning if one of two runs has graded a task and the other has not."""
    common, tasks = base.outcomes.keys() & other.outcomes.keys(), base.outcomes.keys() | other.outcomes.keys()
    names = " and ".join(sorted((base.summary.name, other.summary.name)))
    if not common:
        yield f"{names} have no graded task in common, so they have no paired difference"
    elif len(common) < len(tasks):
        yield (
            f"{len(tasks) - len(common)} of {len(tasks)} tasks are graded in only one of {names}; their paired "
            "difference uses the common tasks"
        )
