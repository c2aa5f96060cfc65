"""`swe-gym tasks`: what tasks there are, one in full, files of them, and new ones."""

import fnmatch
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from ..errors import UsageError
from ..rollout.new_task import build_release_task
from ..tasks.file import FileSource, write_tasks
from ..types import Task
from .common import Source, open_source

app = typer.Typer(no_args_is_help=True, help="List, show, export and make tasks.")

Difficulty = Annotated[str | None, typer.Option(help="Only tasks of this difficulty.")]
Tag = Annotated[list[str] | None, typer.Option("--tag", help="Only tasks with this tag; may be repeated.")]
Match = Annotated[str, typer.Option("--match", "-m", help="Only ids that match this glob pattern.")]


@app.command("list")
def list_tasks(source: Source = "toy", match: Match = "*", difficulty: Difficulty = None, tag: Tag = None) -> None:
    """List the tasks of a source."""
    table = Table("task", "repository", "level", "tags", "the issue", pad_edge=False)
    tasks = _selected(source, match, difficulty, tag)
    for task in tasks:
        headline = task.problem_statement.strip().partition("\n")[0].lstrip("# ")
        table.add_row(task.task_id, task.repo, task.difficulty, " ".join(task.tags), headline)
    table.caption = f"{len(tasks)} tasks"
    Console().print(table)


@app.command()
def show(
    task_id: Annotated[str, typer.Argument(help="The task's id.")],
    source: Source = "toy",
    oracle: Annotated[bool, typer.Option("--oracle", help="The gold patch and the test lists too.")] = False,
) -> None:
    """Show one task: the issue, where the code comes from, how it is judged."""
    task = open_source(source).get(task_id)
    console = Console()
    console.rule(task.task_id)
    console.print(Markdown(task.problem_statement))
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name in ("repo", "difficulty", "tags", "image", "workspace", "python", "workdir", "env", "eval_cmd"):
        value = getattr(task, name)
        if value:
            facts.add_row(f"[dim]{name}[/]", str(value).replace("[", "\\["))
    tests = f"{len(task.oracle.fail_to_pass)} to make pass, {len(task.oracle.pass_to_pass)} to keep passing"
    facts.add_row("[dim]hidden tests[/]", tests)
    console.print(facts)
    if oracle:
        console.rule("oracle: never show this to a policy")
        console.print(task.oracle.gold_patch, markup=False, highlight=False)
        console.print("\n".join(task.oracle.fail_to_pass), markup=False, highlight=False)


@app.command()
def export(
    output: Annotated[Path, typer.Argument(help="A .jsonl, .json or .parquet file.")],
    source: Source = "toy",
    match: Match = "*",
    difficulty: Difficulty = None,
    tag: Tag = None,
) -> None:
    """Write tasks, oracle included, to a file that SWE/Tasks-v0 reads."""
    tasks = _selected(source, match, difficulty, tag)
    write_tasks(tasks, output)
    Console().print(f"{len(tasks)} tasks in {output}")


@app.command()
def new(
    from_pypi: Annotated[
        tuple[str, str, str], typer.Option(metavar="PACKAGE OLD NEW", help="Two releases of a package on the index.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The task file to add it to.")] = Path("tasks.jsonl"),
    statement: Annotated[
        typer.FileText | None, typer.Option(help="A file with the problem statement; by default the changelog's words.")
    ] = None,
    python: Annotated[str, typer.Option(help="Version of Python; by default the running one.")] = "",
    requirement: Annotated[list[str] | None, typer.Option(help="What the tests need besides; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often the tests run in each state.")] = 3,
) -> None:
    """Make a real task: repair release OLD so that the tests of release NEW pass."""
    console = Console()
    package, old, new_version = from_pypi
    known = list(_tasks_of(output)) if output.exists() else []
    with console.status("starting") as status:
        task = build_release_task(
            package,
            old,
            new_version,
            statement=statement.read() if statement else "",
            python=python,
            requirements=requirement or (),
            runs=runs,
            progress=status.update,
        )
    if any(other.task_id == task.task_id for other in known):
        raise UsageError(f"{output} holds a task {task.task_id!r} already: give another --output")
    write_tasks([*known, task], output)
    console.print(
        f"{task.task_id}: {len(task.oracle.fail_to_pass)} tests to make pass, {len(task.oracle.pass_to_pass)} to keep "
        f"passing, in {output}. Next: swe-gym validate {output}"
    )


def _tasks_of(path: Path) -> list[Task]:
    source = FileSource(str(path))
    return [source.get(task_id) for task_id in source.ids()]


def _selected(source: str, match: str, difficulty: str | None, tags: list[str] | None) -> list[Task]:
    tasks = open_source(source)
    return [
        task
        for task in map(tasks.get, fnmatch.filter(tasks.ids(), match))
        if difficulty in (None, task.difficulty) and set(tags or ()) <= set(task.tags)
    ]
