"""`swe-gym validate`: check that tasks are usable."""

import datetime
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..tasks import TaskRecord, read_records
from ..types import find_shared
from .common import TaskFilter, open_console, open_source, print_json, progress_bar, takes_filter
from .common import sandbox_options as parse_sandbox_options
from .options import (
    RUNS,
    SOURCE_HELP,
    TIMES,
    AsJson,
    Backend,
    Counters,
    CounterScope,
    ExecutorName,
    RayAddress,
    ResultRecord,
    SandboxOptions,
    SourceOptions,
    Workers,
    executor_options,
)
from .preflight import check_machine, check_sandboxes, read_tasks

MOST_NAMES = 10
"""Tests per task that the terminal shows."""

STYLES = {"valid": "green", "invalid": "red", "skipped": "yellow", "error": "bold red"}


@takes_filter(without=("record", "pass_rate"))
def validate(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP)] = "toy",
    source_option: SourceOptions = None,
    times: Annotated[int | None, TIMES] = None,
    workers: Workers = 2,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    record: ResultRecord = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    counter: Counters = CounterScope.few,
    as_json: AsJson = False,
    *,
    only: TaskFilter,
) -> None:
    """Check that tasks are usable: grade the gold patch and the untouched repository several times.

    A task is valid if the gold patch resolves it and the untouched repository does not, in every run. Results in the
    record file are not run again. The exit status is 1 if a task is invalid or could not be graded.
    """
    from ..curation import validate as validate_tasks  # slow to import

    place, chosen = executor_options(executor, ray_address), "choose another file: --record"
    check_machine(
        record and record.parent,
        what="the folder of the record",
        fix=chosen,
        backend=backend,
        executor=place["executor"] or "threads",
    )
    console, tasks = open_console(), open_source(source, source_option)
    ids, options = only.ids(tasks), parse_sandbox_options(backend, sandbox_option)
    check_sandboxes(backend, options, read_tasks(tasks, ids), executor=place["executor"] or "threads")
    known = read_records(record) if record else []
    with progress_bar(console, "validating", 0 if as_json else len(ids)) as progress:
        bar = progress.add_task("", total=len(ids))

        def show(result: TaskRecord) -> None:
            if not as_json:
                console.print(_lines(result, recorded=result in known))
            progress.advance(bar)

        try:
            results = validate_tasks(
                tasks,
                ids,
                backend=backend,
                sandbox_options=options,
                times=times or RUNS,
                counter=counter.value,
                workers=workers,
                record=record,
                date=datetime.datetime.now(datetime.UTC).date().isoformat(),
                on_record=show,
                **{name: value for name, value in place.items() if value},
            )
        except KeyboardInterrupt:
            if record and not as_json:
                console.print(f"\nInterrupted. Run the same command to resume from {record}.")
            raise
    if as_json:
        print_json([result.model_dump(mode="json") for result in results])
    counts = {status: sum(result.status == status for result in results) for status in STYLES}
    _end(console, counts, quiet=as_json)


def _end(console: Console, counts: dict[str, int], *, quiet: bool) -> None:
    """Print how many tasks there are of each status, and exit."""
    if not quiet:
        console.print(", ".join(f"{number} {status}" for status, number in counts.items() if number))
    if counts["invalid"] or counts["error"]:
        raise typer.Exit(1)


def _lines(result: TaskRecord, recorded: bool) -> Text:
    """Return the lines about one task: its status, and the reasons."""
    line = Text.assemble((f"{result.status:8}", STYLES[result.status]), f" {result.task_id}")
    facts = [f"recorded {result.date}" if recorded else f"{sum(result.seconds):.1f} s"]
    if result.gold:
        facts[:0] = [
            f"{name} {sum(runs)}/{len(runs)}" for name, runs in (("gold", result.gold), ("empty", result.empty))
        ]
    line.append("  " + ", ".join(facts), style="dim")
    for reason in result.reason.splitlines():
        line.append(f"\n         {reason}")
    if result.status == "valid":
        line.append(f"\n         {_counter_tests(result)}", style="dim")
    if result.unforkable:
        line.append(
            f"\n         {len(result.unforkable)} tests cannot be played in forks of the test process; further runs "
            "prove them: pass this record to environments (record=FILE)"
        )
    for test, how in list(result.wrong.items())[:MOST_NAMES]:
        line.append(f"\n         {test}: {how}")
    if len(result.wrong) > MOST_NAMES:
        line.append(f"\n         and {len(result.wrong) - MOST_NAMES} more tests; --record FILE keeps them all")
    if result.flaky:
        line.append(f"\n         flaky tests: {', '.join(result.flaky)}")
    return line


def _counter_tests(result: TaskRecord) -> str:
    """Return how many tests have a counter-test, by the number of texts among which only a guess finds the original."""
    texts = Counter(result.texts.get(test, 1) for test in result.counter_tests)
    total = len(result.counter_tests) + len(result.uncovered)
    if not texts:
        why = find_shared(result.uncovered.values())
        return f"no test has a counter-test{f' ({why})' if why else ''}: rewards of this task are not verified"
    parts = (f"{tests} with {number} text{'s'[: number - 1]}" for number, tests in sorted(texts.items(), reverse=True))
    return f"counter-tests for {len(result.counter_tests)} of {total} tests: {', '.join(parts)}"
