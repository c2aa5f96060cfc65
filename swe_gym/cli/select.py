"""`swe-gym select`: choose among the attempts of a run without their grading, and measure the choices."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ..errors import TaskError, UsageError
from ..trajectories.run_folder import read_run
from ..types import Task
from .certify import BackendOption, TaskOption, Where, as_recorded
from .common import format_p, make_table, open_console, percent, print_json
from .options import (
    AsJson,
    BaseUrl,
    ExecutorName,
    Match,
    Models,
    RayAddress,
    SandboxOptions,
    SourceOptions,
    Workers,
    executor_options,
)
from .preflight import check_machine

if TYPE_CHECKING:  # slow to import, and help needs none of it
    from ..selection import Candidate, Selection, SelectionSettings, SelectorResult

WITHOUT_SANDBOXES = {"votes", "logprob", "judge"}
"""Selectors that run nothing. Any other may ask for the scores of "tests"."""


def select(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    selectors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SELECTOR]",
            help="Any of votes, tests, logprob, judge, hybrid, module:function (default: all that can work).",
        ),
    ] = None,
    match: Match = "*",
    source: TaskOption = None,
    source_option: SourceOptions = None,
    model: Models = None,
    base_url: BaseUrl = None,
    backend: BackendOption = None,
    sandbox_option: SandboxOptions = None,
    workers: Workers = 2,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Choose among the attempts at each task, without a look at rewards and hidden tests, and measure the choices.

    Equal patches vote, tests run on every attempt's work, a model judges. Each choice among 1, 2, ... attempts is
    compared with a random one and with the best one. The results are written to selection.json in the run folder.
    """
    from ..selection import SELECTORS, read_candidates
    from ..selection import select as select_attempts

    for name in selectors or ():
        SELECTORS.load(name)
    candidates = read_candidates(path, match).candidates
    names = selectors or _default_selectors([one for row in candidates.values() for one in row], model or ())
    place = executor_options(executor, ray_address)
    env = read_run(path).config.get("env", {})
    where = as_recorded([env], Where(source, source_option, backend, sandbox_option, workers, place))
    tasks = _load_tasks(where, list(candidates))
    settings = _settings(where, list(tasks.values()), names, tuple(model or ()), base_url)
    check_machine(path)
    console = open_console(stderr=True)
    found = select_attempts(
        path, tasks, names, settings, match=match, on_selector=lambda name: console.print(f"{name} ...")
    )
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _print_selection(found, path)


def _default_selectors(candidates: "Sequence[Candidate]", models: Sequence[str]) -> list[str]:
    """Return the selectors that can work with some attempts and models."""
    recorded = ["logprob"] if any(one.logprob is not None for one in candidates) else []
    return ["votes", "tests", *recorded, *(["judge", "hybrid"] if models else [])]


def _load_tasks(where: Where, ids: Sequence[str]) -> dict[str, Task]:
    """Return the tasks of a run.

    Raises:
        UsageError: The source lacks one.
    """
    tasks, (opened, (name, _)) = {}, where.open_source()
    for task_id in ids:
        try:
            tasks[task_id] = opened.get(task_id)
        except TaskError as error:
            raise UsageError(f"task {task_id} of the run cannot be read from {name}: {error}") from error
    return tasks


def _settings(
    where: Where, tasks: Sequence[Task], names: Sequence[str], models: tuple[str, ...], base_url: str | None
) -> "SelectionSettings":
    """Return what the selectors need. Sandboxes are checked if one of them may run tests."""
    from ..selection import SelectionSettings

    settings = SelectionSettings(workers=where.workers, models=models, base_url=base_url)
    fitting = [task for task in tasks if not task.oracle.in_place]
    if WITHOUT_SANDBOXES.issuperset(names):
        return settings
    return dataclasses.replace(settings, **vars(where.settings(fitting)))


def _show_point(result: "SelectorResult", k: int, tasks: int) -> str:
    """Return the share of a choice among k with its interval, and the number of its tasks if it is not the row's."""
    point = next((point for point in result.points if point.k == k), None)
    if point is None:
        return ""
    of = "" if point.tasks == tasks else f", {point.tasks} tasks"
    return f"{percent(point.chosen)} ({percent(point.low)} to {percent(point.high)}{of})"


def _print_selection(found: "Selection", path: Path) -> None:
    console = open_console()
    points = sorted((point for result in found.results for point in result.points), key=lambda point: point.tasks)
    rows = {point.k: point for point in points}  # of the selector with most tasks
    table = make_table("k", "tasks", "random", *(result.selector for result in found.results), "oracle")
    for k, any_point in sorted(rows.items()):
        cells = [_show_point(result, k, any_point.tasks) for result in found.results]
        table.add_row(str(k), str(any_point.tasks), percent(any_point.random), *cells, percent(any_point.oracle))
    console.print(table)
    console.print()
    table = make_table("selector", "points over random", "95 % interval", "p", "AUC", "calibration error", "tokens")
    for result in found.results:
        table.add_row(
            result.selector,
            "" if result.difference is None else f"{100 * result.difference:+.1f}",
            f"{100 * result.low:+.1f} to {100 * result.high:+.1f}",
            format_p(result.p_value),
            "" if result.auc is None else f"{result.auc:.2f}",
            "" if result.calibration_error is None else f"{result.calibration_error:.2f}",
            f"{result.tokens:,}",
        )
    console.print(table)
    for what, why in found.left_out.items():
        console.print(Text.assemble(("left out ", "yellow"), f" {what}: {why}"))
    for result in found.results:
        for task_id, why in result.unscored.items():
            console.print(Text.assemble(("no scores ", "yellow"), f" {result.selector}, {task_id}: {why}"))
    console.print(f"{found.attempts} attempts at {found.tasks} tasks. Choices and scores: {path / 'selection.json'}")
