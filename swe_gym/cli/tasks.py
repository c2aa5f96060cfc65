"""`swe-gym tasks`: what tasks there are, one in full, files of them, and new ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from ..errors import TaskError, UsageError
from ..rollout.new_task import build_release_task
from ..rollout.validate import validate
from ..tasks.file import FileSource, write_tasks
from ..types import Task
from .common import Match, Source, headline, matching, open_console, open_source, plain_table

app = typer.Typer(no_args_is_help=True, help="List, show, export and make tasks.")

Difficulty = Annotated[str | None, typer.Option(help="Only tasks of this difficulty.")]
Tag = Annotated[list[str] | None, typer.Option("--tag", help="Only tasks with this tag; may be repeated.")]

WIDE = 130
"""Columns from which there is room for repositories and tags."""


@app.command("list")
def list_tasks(source: Source = "toy", match: Match = "*", difficulty: Difficulty = None, tag: Tag = None) -> None:
    """List the tasks of a source."""
    console = open_console()
    tasks = _selected(source, match, difficulty, tag)
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
    oracle: Annotated[bool, typer.Option("--oracle", help="The gold patch and the test lists too.")] = False,
) -> None:
    """Show one task: the issue, where the code comes from, how it is judged."""
    task = open_source(source).get(task_id)
    console = open_console()
    console.print(Text(task.task_id, style="bold"), "\n", sep="")
    _print_statement(console, task)
    console.print(_facts(task))
    if oracle:
        console.print("\nOracle: never show this to a policy.\n", style="bold")
        console.out(task.oracle.gold_patch)
        for name in ("fail_to_pass", "pass_to_pass"):
            console.out(f"{name}:", *getattr(task.oracle, name), sep="\n    ")


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
    return f"To make pass: {len(task.oracle.fail_to_pass)}, to keep passing: {len(task.oracle.pass_to_pass)}."


@app.command()
def export(
    output: Annotated[Path, typer.Argument(help="A .jsonl, .json or .parquet file.")],
    source: Source = "toy",
    match: Match = "*",
    difficulty: Difficulty = None,
    tag: Tag = None,
) -> None:
    """Write tasks, oracle included, to a file that SWE/Tasks-v0 reads. Missing folders are made."""
    tasks = _selected(source, match, difficulty, tag)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_tasks(tasks, output)
    open_console().print(f"{len(tasks)} tasks in {output}")


@app.command()
def new(
    from_pypi: Annotated[
        tuple[str, str, str], typer.Option(metavar="PACKAGE OLD NEW", help="Two releases of a package on the index.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The task file to add it to.")] = Path("tasks.jsonl"),
    statement: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A file with the issue text; by default the changelog's words."),
    ] = None,
    python: Annotated[str, typer.Option(help="Version of Python; by default the running one.")] = "",
    requirement: Annotated[list[str] | None, typer.Option(help="What the tests need besides; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often the tests run in each state.")] = 3,
) -> None:
    """Make a real task: repair release OLD so that the tests of release NEW pass.

    It is validated, and then added to the file; a task of the same id is replaced. Building a release runs its
    build code on this machine, outside any sandbox.
    """
    console = open_console()
    package, old, new_version = from_pypi
    tasks = _tasks_of(output)  # a broken file is found before the work
    output.parent.mkdir(parents=True, exist_ok=True)
    with console.status("starting") as status:
        task = build_release_task(
            package,
            old,
            new_version,
            statement=statement.read_text(encoding="utf-8") if statement else "",
            python=python,
            requirements=requirement or (),
            runs=runs,
            progress=status.update,
        )
        status.update("judging the gold patch and the untouched release")
        _check(task, runs)
    tasks[task.task_id] = task
    write_tasks(tasks.values(), output)
    console.print(f"{task.task_id} is valid, and stands in {output}. {_tests(task)}")
    console.print(f"Play it: swe-gym play {task.task_id} --source {output}")


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


def _selected(source: str, match: str, difficulty: str | None, tags: list[str] | None) -> list[Task]:
    tasks = open_source(source)
    selected = [
        task
        for task in map(tasks.get, matching(tasks, match))
        if difficulty in (None, task.difficulty) and set(tags or ()) <= set(task.tags)
    ]
    if not selected:
        raise UsageError("no task is of that difficulty and has all of these tags")
    return selected
