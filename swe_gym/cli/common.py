"""How commands choose tasks, and how they print."""

import csv
import fnmatch
import inspect
import io
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer
from pydantic import Field
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from ..errors import TaskError, UsageError, quantify
from ..tasks import TaskSource, changed_lines, digest, is_place_of_tasks, load_source, read_rates, read_records
from ..toml import parse_pairs
from ..trajectories import Trajectory
from ..trajectories.comparison import RunSummary
from ..trajectories.run_folder import TRAJECTORIES, open_trajectories
from ..types import Frozen, JsonMapping, JsonObject, Task
from .options import MATCH_HELP

if TYPE_CHECKING:  # slow to import, and help needs none of it
    from rich.progress import Progress

    from ..envs import EpisodeCheckpoint, SweEnv

Kind = TypeVar("Kind")

SLICED = re.compile(r"(.+?)(?:\[(.*)\]|:(\d+))")
"""A source with a slice: SOURCE[START:STOP] or SOURCE:N."""

MAX_SHOWN = 20
"""Broken tasks that are named."""

BY_ID = {"match", "shuffle", "slice", "limit"}
"""Task filters that need no task, only its id."""

# --- choosing tasks -----------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """Return a name that stays within its folder.

    Raises:
        UsageError: It leads elsewhere.
    """
    if name in (".", "..") or re.search(r"[/\\\0]", name):
        raise UsageError(f"{name!r} is a path, not a name: remove the slashes; the output folder is another setting")
    return name


def _choice(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Task filters", **more)


class TaskFilter(Frozen):
    """Conditions on tasks, which must all hold. Every command that takes them means the same by them."""

    match: Annotated[str, _choice("--match", "-m", help=MATCH_HELP)] = "*"
    repo: Annotated[list[str], _choice("--repo", help="Only this repository. Repeat to allow several.")] = []
    difficulty: Annotated[str, _choice("--difficulty", help="Only this difficulty.")] = ""
    tag: Annotated[list[str], _choice("--tag", help="Only tasks with this tag. Repeat to require several.")] = []
    lines: Annotated[
        str, _choice("--lines", metavar="MIN:MAX", help="Only gold patches of so many lines, for example 5:20 or :20.")
    ] = ""
    record: Annotated[
        Path | None,
        _choice("--record", exists=True, dir_okay=False, help="Only tasks that this validation record calls valid."),
    ] = None
    pass_rate: Annotated[
        str,
        _choice(
            "--pass-rate",
            metavar="[NAME=]MIN:MAX",
            help="With --record: only tasks of this pass rate, for example 0.2:0.8; NAME is a model or policy.",
        ),
    ] = ""
    shuffle: Annotated[int | None, _choice("--shuffle", metavar="SEED", help="Shuffle the tasks before slicing.")] = (
        None
    )
    slice: Annotated[str, _choice("--slice", metavar="START:STOP", help="Only this slice of the tasks.")] = ""
    limit: Annotated[int | None, _choice("--limit", min=1, help="At most this many tasks."), Field(ge=1)] = None

    def ids(self, source: TaskSource) -> list[str]:
        """Return the ids of the tasks that meet the conditions. Tasks are loaded only if a condition needs it.

        Raises:
            UsageError: No task meets them.
        """
        if self._reads_tasks:
            return [task.task_id for task in self.tasks(source)]
        return self._cut(matching(source, self.match))

    def tasks(self, source: TaskSource) -> list[Task]:
        """Return the tasks that meet the conditions. Broken rows are named on standard error and left out.

        Raises:
            UsageError: No task meets them.
        """
        ids = matching(source, self.match) if self._reads_tasks else self.ids(source)
        if not (found := self._load(source, ids)):
            more = f", or run `swe-gym validate` with --record {self.record} again" if self.record else ""
            raise UsageError(f"no task matches: relax the filters{more}")
        return self._cut(found) if self._reads_tasks else found

    @property
    def _reads_tasks(self) -> bool:
        """Whether a condition is about more than the id."""
        fields = {name: field for name, field in TaskFilter.model_fields.items() if name not in BY_ID}
        return any(getattr(self, name) != field.default for name, field in fields.items())

    def _load(self, source: TaskSource, ids: Sequence[str]) -> list[Task]:
        """Return the tasks that meet the conditions, no more than are needed."""
        valid, lines = self._read_record(), range_of(self.lines or ":", "--lines")
        found: list[Task] = []
        broken: list[str] = []
        changed: list[Task] = []
        needed = self._count_needed()
        for task_id in ids:
            try:
                task = source.get(task_id)
            except TaskError as error:
                broken.append(str(error))
                continue
            if not self._accepts(task, valid, lines):
                continue
            same = self.record is None or valid[task_id] == digest(task)
            (found if same else changed).append(task)
            if len(found) == needed:
                break
        if broken:
            more = [f"... and {len(broken) - MAX_SHOWN} more"] if len(broken) > MAX_SHOWN else []
            typer.echo("\n  ".join([f"skipped {len(broken)} broken tasks:", *broken[:MAX_SHOWN], *more]), err=True)
        if changed:
            names = [task.task_id for task in changed[:MAX_SHOWN]] + ["..."] * (len(changed) > MAX_SHOWN)
            what = f"left out {quantify(len(changed), 'task')} that changed since {self.record} was made"
            typer.echo(f"{what}: run `swe-gym validate` again: {', '.join(names)}", err=True)
        return found

    def _count_needed(self) -> int | None:
        """The number of tasks after which no more are chosen; None if only the last one tells."""
        if self.shuffle is not None:
            return None
        if not self.slice:
            return self.limit
        start, stop, *_ = (*bounds_of(self.slice, "--slice "), None)
        return stop if stop is not None and stop > (start or 0) >= 0 else None

    def _read_record(self) -> dict[str, str]:
        """Return the tasks that the record calls valid and whose pass rate is in the range, and their digests."""
        if self.record is None:
            if self.pass_rate:
                raise UsageError(f"--pass-rate {self.pass_rate} needs a record with pass rates: add --record FILE")
            return {}
        valid = {old.task_id: old.digest for old in read_records(self.record) if old.status == "valid"}
        if not self.pass_rate:
            return valid
        policy, _, text = self.pass_rate.rpartition("=")
        low, high = range_of(text, "--pass-rate")
        if any(1 < bound < math.inf for bound in (low, high)):
            raise UsageError(f"--pass-rate {text!r} is invalid: a pass rate is a share from 0 to 1, as in 0.2:0.8")
        rates = read_rates(self.record, policy)
        return {name: valid[name] for name, rate in rates.items() if name in valid and low <= rate.share <= high}

    def _accepts(self, task: Task, valid: dict[str, str], lines: tuple[float, float]) -> bool:
        return (
            self.difficulty in ("", task.difficulty)
            and set(self.tag) <= set(task.tags)
            and (not self.repo or task.repo.lower() in {repo.lower() for repo in self.repo})
            and lines[0] <= changed_lines(task.oracle.gold_patch) <= lines[1]
            and (self.record is None or task.task_id in valid)
        )

    def _cut(self, found: Sequence[Kind]) -> list[Kind]:
        """Shuffle, slice and limit."""
        if self.shuffle is not None:
            found = list(found)
            random.Random(self.shuffle).shuffle(found)
        return cut(found, self.slice or ":", "--slice ")[: self.limit]


def cut(found: Sequence[Kind], part: str, what: str = "") -> list[Kind]:
    """Return a slice of a sequence, given as text.

    Raises:
        UsageError: The slice is invalid or empty. The message starts with `what`.
    """
    bounds = bounds_of(part, what)
    if not (chosen := found[slice(*bounds)]):
        raise UsageError(f"{what}{part} selects none of the {len(found)} tasks")
    return list(chosen)


def bounds_of(part: str, what: str = "") -> list[int | None]:
    """Return the two or three bounds of a slice, given as text.

    Raises:
        UsageError: The slice is invalid. The message starts with `what`.
    """
    try:
        bounds = [int(bound) if bound else None for bound in part.split(":")]
    except ValueError:
        bounds = []
    if len(bounds) not in (2, 3) or bounds[2:] == [0]:
        raise UsageError(f"{what}{part!r} is invalid: write START:STOP")
    return bounds


def range_of(text: str, what: str) -> tuple[float, float]:
    """Return the bounds of a range MIN:MAX, given as text. A bound that is left out is infinite.

    Raises:
        UsageError: The range is invalid. The message starts with `what`.
    """
    low, colon, high = text.partition(":")
    try:
        bounds = float(low or -math.inf), float(high or math.inf)
    except ValueError:
        bounds = math.nan, math.nan
    if not colon or not bounds[0] <= bounds[1]:
        raise UsageError(f"{what} {text!r} is invalid: write MIN:MAX, MIN: or :MAX")
    return bounds


def takes_filter(*, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `TaskFilter`. It gets them as its argument `only`, set where they were given."""
    hints = get_type_hints(TaskFilter, include_extras=True)
    fields = {name: field for name, field in TaskFilter.model_fields.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in fields}
            only = {name: value for name, value in chosen.items() if value not in (None, [], fields[name].default)}
            command(**given, only=TaskFilter(**only))

        own = inspect.signature(command).parameters
        shared = (
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=field.default or None, annotation=hints[name]
            )
            for name, field in fields.items()
        )
        parameters = [*(one for name, one in own.items() if name != "only"), *shared]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        return run

    return decorate


def takes_options_of(shape: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of another function. It gets them by name."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.__signature__ = inspect.signature(shape)  # type: ignore[attr-defined]  # `takes_filter` reads it
        return command

    return decorate


def open_source(name: str, pairs: list[str] | None = None) -> TaskSource:
    """Open the task source that a user named, with the arguments of `--source-option`."""
    source, options = source_of(name, pairs)
    return part_of(name, load_source(source, **options))


class TaskSubset(NamedTuple):
    """Some tasks of a source, as a source."""

    chosen: list[str]
    get: Callable[[str], Task]

    def ids(self) -> list[str]:
        """Return the ids of the tasks."""
        return self.chosen


def part_of(name: str, source: TaskSource) -> TaskSource:
    """Return the tasks that a name such as "toy:3" or "toy[2:5]" selects from its source."""
    part = split_slice(name)[1]
    return TaskSubset(cut(source.ids(), part, f"{name}: the slice "), source.get) if part else source


def split_slice(name: str) -> tuple[str, str]:
    """Return a source and its slice: "toy" and ":3" for "toy:3", "toy" and "2:5" for "toy[2:5]", else no slice."""
    found = SLICED.fullmatch(name)
    if found is None:
        return name, ""
    return found[1], f":{found[3]}" if found[3] else found[2]


def open_env(name: str, pairs: list[str] | None = None, **settings: Any) -> "SweEnv":
    """Make an environment over the task source that a user named."""
    from ..envs import SweEnv

    source, options = source_of(name, pairs)
    return SweEnv(source, options, **settings)


def source_of(name: str, pairs: list[str] | None = None) -> tuple[str, JsonObject]:
    """Return name and arguments of a task source, without its slice; a file name stands for the tasks in the file."""
    options = parse_pairs("--source-option", pairs)
    name = split_slice(name)[0]
    return ("file", {"path": name, **options}) if is_place_of_tasks(name) else (name, options)


class BranchPoint(NamedTuple):
    """A turn of a recorded episode, from which others start.

    Attributes:
        record: The episode.
        point: The point after the turn. It has no files: its actions are played again.
    """

    record: Trajectory
    point: "EpisodeCheckpoint"

    def env(self, changes: JsonMapping) -> JsonObject:
        """Return the arguments of the episode's environment with changes, as `trusted_env` does.

        Raises:
            UsageError: The record names what only its user may choose, or the replay would differ by a change.
        """
        env = trusted_env(self.record, changes)
        for name in _OF_A_REPLAY:
            if env.get(name) != self.record.env.get(name):
                raise UsageError(
                    f"--from plays recorded actions again, and another {name} would change their observations: leave "
                    f"out env.{name}, which was {self.record.env.get(name)!r}"
                )
        return {name: value for name, value in env.items() if name not in _OF_THE_EPISODE}

    @property
    def source(self) -> tuple[str, JsonObject]:
        """Name and arguments of the task source."""
        return self.record.env["source"], self.record.env["source_options"]


_OF_THE_EPISODE = ("source", "source_options", "task_id", "render_mode")
_OF_A_REPLAY = ("action_format", "max_observation")

_NAMING_CODE = ("source", "backend", "tools", "action_format", "reward")
"""Arguments of an environment that may be "module:Class"."""

_HARMLESS = (
    "image",
    "workdir",
    "env",
    "user",
    "cpus",
    "memory_mb",
    "disk_mb",
    "pids",
    "ttl",
    "start_timeout",
    "activate",
)
"""Sandbox options that reach nothing outside the sandbox."""


def trusted_env(record: Trajectory, changes: JsonMapping) -> JsonObject:
    """Return the arguments of a recorded environment, with changes of the user. Someone else may have written the file.

    Args:
        record: The episode.
        changes: Arguments that the user gave; None and empty ones change nothing. Sandbox options are added to the
            recorded ones, or take their place if the backend is another one.

    Raises:
        UsageError: The record has no environment, or names code, or sandbox options that reach out of the sandbox.
    """
    env = record.env
    needed = {"source": str, "source_options": dict, "backend": str, "sandbox_options": dict}
    for name, kind in needed.items():
        if not isinstance(env.get(name), kind):
            raise UsageError(f"{record.task_id} cannot be replayed: the environment of its record has no {name}")
    changes = {name: value for name, value in changes.items() if value not in (None, {}, [])}
    for name in set(_NAMING_CODE) - changes.keys():
        for named in env[name] if isinstance(env.get(name), list) else [env.get(name)]:
            if ":" in str(named):
                raise UsageError(
                    f"the record of {record.task_id} names code, {name} {named!r}, and a command does not run the code "
                    "that a file names: if you trust it, use `swe_gym.rollout` in Python"
                )
    given = changes.get("sandbox_options", {})
    kept = env["sandbox_options"] if changes.get("backend", env["backend"]) == env["backend"] else {}
    unsafe = {
        name: value for name, value in kept.items() if not (name in _HARMLESS or name in given or value in (None, {}))
    }
    if unsafe.get("network") == "none":
        del unsafe["network"]
    if unsafe:
        again = " ".join(f"--sandbox-option {name}=..." for name in unsafe)
        raise UsageError(
            f"the record of {record.task_id} has sandbox options that only you may give, {unsafe}: if you trust them, "
            f"add {again}"
        )
    return {**env, **changes, "sandbox_options": {**kept, **given}}


def read_branch(text: str, ignore: Sequence[str] | None) -> BranchPoint:
    """Return the turn of a recorded episode that `--from` names. Of several episodes it is the last one.

    Args:
        text: "RUN/TASK/ATTEMPT:TURN", where RUN is a run folder or a trajectory file.
        ignore: Regular expressions of text that may differ in the replay.

    Raises:
        UsageError: There is no such episode or turn, or it cannot be played again.
    """
    from ..envs import EpisodeCheckpoint

    form = "write RUN/TASK/ATTEMPT:TURN, for example runs/toy-llm/larder-overwrite-evicts/0:3"
    parts = re.fullmatch(r"(.+)/(\d+):(\d+)", text)
    if parts is None:
        raise UsageError(f"--from {text!r} names no turn: {form}")
    folders = parts[1].split("/")
    for place in range(len(folders) - 1, 0, -1):
        path, task_id = Path("/".join(folders[:place])), "/".join(folders[place:])
        if not (path.is_file() or (path / TRAJECTORIES).is_file()):
            continue
        found = [one for one in open_trajectories(path) if (one.task_id, one.attempt) == (task_id, int(parts[2]))]
        if not found:
            raise UsageError(f"{path} holds no episode of task {task_id!r}, attempt {parts[2]}: {form}")
        origin = f"{path.resolve().name}/{task_id}/{parts[2]}:{parts[3]}"
        point = EpisodeCheckpoint.of_record(found[-1], int(parts[3]), origin=origin, ignore=ignore or ())
        return BranchPoint(found[-1], point)
    raise UsageError(f"--from {text!r}: no run folder or trajectory file is in this path: {form}")


def matching(source: TaskSource, pattern: str) -> Sequence[str]:
    """Return the ids of the tasks that match, at least one."""
    ids = source.ids() if pattern == "*" else fnmatch.filter(source.ids(), pattern)
    if not ids:
        raise UsageError(f"no task matches {pattern!r}; `swe-gym tasks list` lists them")
    return ids


def sandbox_options(backend: str, pairs: list[str] | None) -> JsonObject:
    """Parse `["memory_mb=512", "image=python:3.12"]` and check it before anything starts."""
    from ..envs import check_sandbox

    options = parse_pairs("--sandbox-option", pairs)
    check_sandbox(backend, options)
    return options


# --- how a command prints -----------------------------------------------------------------------------------


class _Console(Console):
    """Prints the tables of `make_table` whole: in a narrow terminal their lines wrap, and no number is cut."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print objects, as `Console.print` does."""
        needed = max((_measure_width(one) for one in objects if isinstance(one, Table)), default=0)
        if needed <= self.width:
            super().print(*objects, **how)
            return
        before, self._width = self._width, needed
        try:
            super().print(*objects, **{**how, "crop": False})
        finally:
            self._width = before


LAST_COLUMN = 20
"""Characters that the last column of a table keeps in a narrow terminal, where it wraps."""


def _measure_width(table: Table) -> int:
    """Return the width in which no column of a table is cut. The last column wraps."""
    texts = ([column.header, *column.cells] for column in table.columns)
    widths = [max(cell_len(str(text)) for text in column) for column in texts]
    return sum(width + 2 for width in widths[:-1]) + min(LAST_COLUMN, *widths[-1:])


def open_console(*, stderr: bool = False) -> Console:
    """Open standard output or standard error: rich output in a terminal, plain lines of any length in a file or a pipe.

    Markup is off, since much of the output comes from tasks and policies.
    """
    plain = _Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not plain.is_terminal:
        plain.width = 100_000
    return plain


def print_json(data: object) -> None:
    """Print plain data as JSON, in ASCII."""
    typer.echo(json.dumps(data, indent=2, default=str))


def one_format(*, as_json: bool, as_csv: bool) -> None:
    """Check that a command prints one format.

    Raises:
        UsageError: Two are set.
    """
    if as_json and as_csv:
        raise UsageError("--csv and --json exclude each other: pass one of them")


def print_csv(rows: Sequence[JsonObject]) -> None:
    """Print rows of the same columns as CSV, with a header. None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    typer.echo(text.getvalue(), nl=False)


def percent(share: float | None) -> str:
    """Return a share as text; empty for None."""
    return "" if share is None else f"{100 * share:.1f} %"


def format_p(p_value: float) -> str:
    """Return a p-value as text."""
    return f"{p_value:.3f}" if p_value >= 0.001 else f"{p_value:.1e}"


def tokens_of(run: RunSummary) -> str:
    """Return the tokens of a run as text, with a note if the server did not tell all."""
    tokens = f"{run.prompt_tokens + run.completion_tokens:,}"
    return f"{tokens} + unknown" if run.uncounted else tokens


def format_cost(run: RunSummary) -> str:
    """Return the cost of a run as text; empty if no model was asked."""
    if run.cost is None:
        return "unknown" if run.prompt_tokens + run.completion_tokens + run.requests else ""
    return f"${run.cost:,.2f}"


def progress_bar(console: Console, verb: str, total: int) -> "Progress":
    """Return the progress bar of a command on many tasks or images; it is shown on terminals only."""
    from rich.progress import (  # most commands have none
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        TextColumn(f"{verb} {{task.description}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or not total,
    )


def make_table(*headers: str) -> Table:
    """Make a table without lines. Columns are as wide as their content; the last one may wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers[:-1]:
        table.add_column(header, no_wrap=True, overflow="fold")
    table.add_column(headers[-1], overflow="fold")
    return table


def headline(task: Task) -> str:
    """Return the first line of the issue."""
    return task.problem_statement.strip().partition("\n")[0].lstrip("# ")
