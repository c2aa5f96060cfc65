"""`swe-gym tasks`: what tasks there are, one in full, files of them, parts of them, and new ones."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from ..curation.new_task import TestLists, build_commit_task, build_release_task
from ..curation.validate import validate
from ..errors import TaskError, UsageError
from ..tasks.choice import split_by_repository
from ..tasks.file import FileSource, write_tasks
from ..tasks.training import training_row, write_rows
from ..types import Task
from .common import (
    MAX_SHOWN,
    Source,
    SourceOptions,
    TaskFilter,
    headline,
    open_console,
    open_source,
    plain_table,
    source_of,
    takes_filter,
)

app = typer.Typer(no_args_is_help=True, help="List, show, choose, split, export and make tasks.")

WIDE = 130
"""Columns from which there is room for repositories and tags."""


@app.command("list")
@takes_filter()
def list_tasks(
    source: Source = "toy",
    source_option: SourceOptions = None,
    *,
    only: TaskFilter,
) -> None:
    """List the tasks of a source."""
    console = open_console()
    tasks = only.tasks(open_source(source, source_option))
    wide = console.width >= WIDE
    table = plain_table("task", "level", *(["repository", "tags"] if wide else []), "the issue")
    for task in tasks:
        more = [task.repo, " ".join(task.tags)] if wide else []
        table.add_row(*map(Text, [task.task_id, task.difficulty, *more, headline(task)]))
    console.print(table)
    if console.is_terminal:
        console.print(f"\n{len(tasks)} tasks. One in full: swe-gym tasks show {tasks[0].task_id}", style="dim")


@app.command()
def show(
    task_id: Annotated[str, typer.Argument(help="The task's id.")],
    source: Source = "toy",
    source_option: SourceOptions = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="The gold patch and the test lists too.")] = False,
) -> None:
    """Show one task: the issue, where the code comes from, how it is judged."""
    task = open_source(source, source_option).get(task_id)
    console = open_console()
    console.print(Text(task.task_id, style="bold"), "\n", sep="")
    _print_statement(console, task)
    console.print(_facts(task))
    if oracle:
        console.print("\nOracle: never show this to a policy.\n", style="bold")
        console.out(task.oracle.gold_patch)
        for name in ("fail_to_pass", "pass_to_pass"):
            console.out(f"{name}:", *getattr(task.oracle, name), sep="\n    ")
        if task.oracle.expected:
            console.out("expected:", *(f"{end} {name}" for name, end in task.oracle.expected.items()), sep="\n    ")


def _print_statement(console: Console, task: Task) -> None:
    if console.is_terminal:
        console.print(Markdown(task.problem_statement), "")
    else:
        console.out(task.problem_statement)


def _facts(task: Task) -> Table:
    facts = {
        "repository": task.repo,
        "difficulty": task.difficulty,
        "tags": " ".join(task.tags),
        "image": task.image,
        "workspace": task.workspace and " ".join(str(value) for value in task.workspace.model_dump().values() if value),
        "python": task.python and _python(task),
        "workdir": task.workdir,
        "env": " ".join(f"{name}={value}" for name, value in task.env.items()),
        "visible tests": task.eval_cmd,
        "hidden tests": _tests(task),
    }
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(name, Text(value))
    return table


def _python(task: Task) -> str:
    assert task.python is not None
    version = task.python.version or "the one that runs swe-gym"
    return ", ".join([version, *task.python.requirements])


def _tests(task: Task) -> str:
    if task.oracle.expected:
        return f"To end as they should: {len(task.oracle.expected)}."
    return f"To make pass: {len(task.oracle.fail_to_pass)}, to keep passing: {len(task.oracle.pass_to_pass)}."


@app.command()
@takes_filter()
def export(
    output: Annotated[Path, typer.Argument(help="A .jsonl, .json or .parquet file.")],
    source: Source = "toy",
    source_option: SourceOptions = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Rows for trainers (verl, rLLM) instead: prompt and task, no oracle.")
    ] = False,
    *,
    only: TaskFilter,
) -> None:
    """Write tasks, oracle included, to a file that SWE/Tasks-v0 reads. Missing folders are made."""
    tasks = only.tasks(open_source(source, source_option))
    output.parent.mkdir(parents=True, exist_ok=True)
    if rows:
        name, options = source_of(source, source_option)
        if isinstance(options.get("path"), str):  # a trainer's workers run in folders of their own
            options["path"] = str(Path(options["path"]).expanduser().absolute())
        write_rows((training_row(task, number, name, options) for number, task in enumerate(tasks)), output)
    else:
        write_tasks(tasks, output)
    open_console().print(f"{len(tasks)} tasks in {output}")


@app.command()
@takes_filter()
def split(
    folder: Annotated[Path, typer.Argument(help="Where the files go, one for each part.")],
    part: Annotated[list[str], typer.Option("--part", metavar="NAME=SHARE", help="A part: train=0.9; repeat it.")],
    source: Source = "toy",
    source_option: SourceOptions = None,
    seed: Annotated[int, typer.Option(help="Another seed, another choice among repositories of one size.")] = 0,
    suffix: Annotated[str, typer.Option(help="Format of the files: jsonl, json or parquet.")] = "jsonl",
    *,
    only: TaskFilter,
) -> None:
    """Part tasks into task files that share no repository."""
    tasks = {task.task_id: task for task in only.tasks(open_source(source, source_option))}
    parts = split_by_repository({task_id: task.repo for task_id, task in tasks.items()}, _shares(part), seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    console = open_console()
    for name, ids in parts.items():
        file = folder / f"{name}.{suffix.lstrip('.')}"
        write_tasks((tasks[task_id] for task_id in ids), file)
        repos = {tasks[task_id].repo for task_id in ids}
        console.print(f"{len(ids)} tasks of {len(repos)} repositories in {file}")


def _shares(parts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        name, _, share = part.partition("=")
        if name in found:
            raise UsageError(f"--part {part!r}: there is a part of that name already")
        try:
            found[name] = float(share)
        except ValueError:
            raise UsageError(f"--part {part!r} is not NAME=SHARE, as in train=0.9") from None
    return found


@app.command()
def new(
    from_pypi: Annotated[
        tuple[str, str, str] | None,
        typer.Option(metavar="PACKAGE OLD NEW", help="Two releases of a package on the index."),
    ] = None,
    from_git: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="A repository of yours, with --tests.")
    ] = None,
    tests: Annotated[str, typer.Option(help="With --from-git: the command that runs the tests.")] = "",
    commit: Annotated[str, typer.Option(help="With --from-git: the commit that shows how.")] = "HEAD",
    output: Annotated[Path, typer.Option("--output", "-o", help="The task file to add it to.")] = Path("tasks.jsonl"),
    statement: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The issue text; by default the changelog's or the commit's."),
    ] = None,
    python: Annotated[str, typer.Option(help="Version of Python; by default the running one.")] = "",
    requirement: Annotated[list[str] | None, typer.Option(help="What the tests need besides; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often the tests run in each state.")] = 3,
) -> None:
    """Make a real task: repair release OLD so that the tests of release NEW pass, or do what a commit of yours did.

    It is validated, and then added to the file; a task of the same id is replaced. Building a release runs its
    build code on this machine, outside any sandbox.
    """
    console = open_console()
    if (from_pypi is None) == (from_git is None) or bool(tests) != bool(from_git):
        raise UsageError(
            "name two releases with --from-pypi, or a repository and its tests with --from-git and --tests"
        )
    known = _tasks_of(output)  # a broken file is found before the work
    output.parent.mkdir(parents=True, exist_ok=True)
    text = statement.read_text(encoding="utf-8") if statement else ""
    needs = tuple(requirement or ())
    measured: list[TestLists] = []
    with console.status("starting") as status:
        say = status.update
        if from_pypi:
            task = build_release_task(
                *from_pypi,
                statement=text,
                python=python,
                requirements=needs,
                runs=runs,
                progress=say,
                on_lists=measured.append,
            )
        else:
            repository = str(from_git)
            task = build_commit_task(
                repository,
                tests,
                commit=commit,
                statement=text,
                python=python,
                requirements=needs,
                runs=runs,
                progress=say,
                on_lists=measured.append,
            )
        for line in _dropped_lines(measured[0].dropped):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        say("judging the gold patch and the untouched state")
        _check(task, runs)
    known[task.task_id] = task
    write_tasks(known.values(), output)
    console.print(f"{task.task_id} is valid, and stands in {output}. {_tests(task)}")
    console.print(f"Play it: swe-gym play {task.task_id} --source {output}")


def _dropped_lines(dropped: Mapping[str, str]) -> Iterator[str]:
    """How many tests judge nothing, and which for which reason."""
    if not dropped:
        return
    yield f"{len(dropped)} tests are in neither list:"
    for reason in sorted(set(dropped.values())):
        tests = [test for test, why in dropped.items() if why == reason]
        yield f"  {len(tests)} {reason}"
        yield from (f"    {test}" for test in tests[:MAX_SHOWN])
        if len(tests) > MAX_SHOWN:
            yield f"    ... and {len(tests) - MAX_SHOWN} more"


class _Only(NamedTuple):
    """A source of one task."""

    task: Task

    def ids(self) -> Sequence[str]:
        return (self.task.task_id,)

    def get(self, task_id: str) -> Task:  # noqa: ARG002  there is only one
        return self.task


def _check(task: Task, times: int) -> None:
    (record,) = validate(_Only(task), times=times, workers=1)
    if record.status != "valid":
        raise TaskError(f"{task.task_id} was built and is not usable: {record.reason}")


def _tasks_of(path: Path) -> dict[str, Task]:
    if not path.exists():
        return {}
    source = FileSource(str(path))
    return {task_id: source.get(task_id) for task_id in source.ids()}
