"""`swe-gym tasks`: list, show, export, split, make, audit and rate tasks."""

import datetime
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from ..errors import TaskError, UsageError, quantify
from ..files import SUFFIXES, load_arrow
from ..tasks import (
    HUB,
    TASK_EXPORTERS,
    TaskRecord,
    TaskSource,
    by_image,
    is_place_of_tasks,
    load_source,
    read_records,
    split_by_repository,
    write_tasks,
)
from ..types import Task
from .common import (
    MAX_SHOWN,
    TaskFilter,
    TaskSubset,
    check_name,
    headline,
    make_table,
    open_console,
    open_source,
    print_json,
    progress_bar,
    source_of,
    split_slice,
    takes_filter,
)
from .common import sandbox_options as parse_sandbox_options
from .options import (
    BASE_IMAGE,
    RUNS,
    SEED,
    SOURCE_HELP,
    TIMES,
    WORKERS,
    AsJson,
    Backend,
    ExecutorName,
    RayAddress,
    ResultRecord,
    SandboxOptions,
    Source,
    SourceOptions,
    Timeout,
    Workers,
    executor_options,
)
from .preflight import check_machine, check_sandboxes, read_tasks

if TYPE_CHECKING:
    from ..curation import AuditRecord, BuildOptions

app = typer.Typer(no_args_is_help=True, help="List, show, export, split and make tasks.")

HARBOR = "harbor"
"""Value of `--to` for a folder of Harbor's tasks."""

ALL = "all"
"""Value that stands for the newer release of each pair."""

BUGS_AT_ONCE = 2
"""Bugs and tasks that `tasks new --mutate` tries at a time, by default."""

WRITE_EVERY = 5
"""New tasks after which the task file is written."""

WIDE = 130
"""Terminal width from which repositories and tags are shown."""


@app.command("list")
@takes_filter()
def list_tasks(
    given: Annotated[str | None, typer.Argument(metavar="SOURCE", help=SOURCE_HELP)] = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    as_json: AsJson = False,
    *,
    only: TaskFilter,
) -> None:
    """List the tasks of a source."""
    console, tasks = open_console(), only.tasks(open_source(given or source, source_option))
    if as_json:
        names = ("task_id", "repo", "difficulty", "tags")
        print_json([{name: getattr(task, name) for name in names} | {"issue": headline(task)} for task in tasks])
        return
    wide = console.width >= WIDE
    table = make_table("task", "level", *(["repository", "tags"] if wide else []), "issue")
    for task in tasks:
        more = [task.repo, " ".join(task.tags)] if wide else []
        table.add_row(*map(Text, [task.task_id, task.difficulty, *more, headline(task)]))
    console.print(table)
    if console.is_terminal:
        where = "" if (given or source) == "toy" else f"{given or source} "
        console.print(
            f"\n{quantify(len(tasks), 'task')}. Show one: swe-gym tasks show {where}{tasks[0].task_id}", style="dim"
        )


@app.command()
def show(
    words: Annotated[
        list[str], typer.Argument(metavar="TASK_ID", help="Task id; a source or task file may precede it.")
    ],
    source: Source = "toy",
    source_option: SourceOptions = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="Also show the gold patch and the test lists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one task: the issue, the source of the code and how the work is judged."""
    if len(words) > 2:
        raise UsageError(f"{' '.join(words)!r} is not one task: write swe-gym tasks show [SOURCE] TASK_ID")
    *given, task_id = words
    if not given and is_place_of_tasks(task_id):
        raise UsageError(f"{task_id} is a task file: add a task id; `swe-gym tasks list {task_id}` lists them")
    task = open_source(given[0] if given else source, source_option).get(task_id)
    if as_json:
        print_json(task.model_dump(mode="json", exclude=None if oracle else {"oracle"}))
        return
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
        "workspace": task.workspace and " ".join(map(_short, filter(None, task.workspace.model_dump().values()))),
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


def _short(value: object) -> str:
    """Return a field of a workspace as text: of files, only the paths."""
    return " ".join(value) if isinstance(value, dict) else str(value)


def _python(task: Task) -> str:
    assert task.python is not None
    version = task.python.version or "the Python that runs swe-gym"
    return ", ".join([version, *task.python.requirements])


def _tests(task: Task) -> str:
    if task.oracle.expected:
        return f"{len(task.oracle.expected)} with an expected status."
    return f"{len(task.oracle.fail_to_pass)} to make pass, {len(task.oracle.pass_to_pass)} to keep passing."


@app.command()
@takes_filter()
def export(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="Output file: .jsonl, .json or .parquet.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="|".join(sorted([*TASK_EXPORTERS, HARBOR])),
            help="Write a trainer's rows, without oracles, or a folder of Harbor's tasks.",
        ),
    ] = "",
    base: Annotated[str, BASE_IMAGE] = "",
    source: Source = "toy",
    source_option: SourceOptions = None,
    *,
    only: TaskFilter,
) -> None:
    """Write tasks, including their oracles, to a file that SWE/Tasks-v0 reads. Missing folders are created.

    With --to, write the rows that a trainer's data loader reads instead: prompt and task, no oracle. They are in the
    order of their images unless you shuffle. For rLLM, write ~/.rllm/datasets/NAME/SPLIT.parquet: its registry's place.

    With --to harbor, FILE is a folder: each task becomes a task folder of Harbor, which holds its tests and solution.
    The base image is python:VERSION unless --base names another one.
    """
    write = TASK_EXPORTERS.load(to) if to and to != HARBOR else None
    if base and to != HARBOR:
        raise UsageError(f"--base needs --to {HARBOR}")
    tasks = only.tasks(open_source(source, source_option))
    if to == HARBOR:
        from ..curation import export_harbor  # slow to import

        export_harbor(tasks, output, base=base)
    elif write is not None:
        name, options = source_of(source, source_option)
        if isinstance(options.get("path"), str):  # a trainer's workers run in other folders
            options["path"] = str(Path(options["path"]).expanduser().absolute())
        write(by_image(tasks) if only.shuffle is None else tasks, output, name, options)
    else:
        write_tasks(tasks, output)
    open_console().print(f"{quantify(len(tasks), 'task')} in {output}")


@app.command()
@takes_filter()
def pack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make. It must be missing or empty.")],
    source: Source = "toy",
    source_option: SourceOptions = None,
    license: Annotated[str, typer.Option(help="License for the dataset card, such as mit or apache-2.0.")] = "unknown",
    *,
    only: TaskFilter,
) -> None:
    """Pack tasks and the code that they start from into a folder that works on any machine.

    Folders, archives and git commits become archives in the bundle, each with its SHA-256. Files that git ignores are
    left out. Use the bundle as a task source, or share it with `swe-gym tasks push`.
    """
    from ..curation import pack_bundle as pack_tasks  # slow to import

    bundle = pack_tasks(only.tasks(open_source(source, source_option)), folder, license=license)
    console = open_console()
    archives = {packed.path for packed in bundle.sources.values()}
    tasks, files = quantify(len(bundle.tasks), "task"), quantify(len(archives), "archive")
    console.print(f"{tasks} and {files} in {folder}, {decimal(bundle.bytes)}")
    if ignored := sorted({name for packed in bundle.sources.values() for name in packed.ignored}):
        console.print(f"left out {quantify(len(ignored), 'file')} that git ignores: {', '.join(ignored[:MAX_SHOWN])}")
    if images := {task.image for task in bundle.tasks if task.image}:
        console.print(f"left out {quantify(len(images), 'image')}: other machines must be able to pull them")
    if missing := bundle.unlicensed():
        console.print(
            f"no license file in the code of {quantify(len(missing), 'task')}: {', '.join(missing[:MAX_SHOWN])}"
        )
    console.print(f"Check it: swe-gym validate {folder}\nShare it: swe-gym tasks push {folder} OWNER/NAME")


@app.command()
def push(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="Bundle made by `swe-gym tasks pack`."),
    ],
    dataset: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Dataset on the Hugging Face Hub.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new dataset public.")] = False,
    timeout: Timeout = 3600.0,
) -> None:
    """Upload a bundle to the Hugging Face Hub, with its dataset card. Files of an earlier upload are replaced.

    HF_TOKEN holds the token; HF_ENDPOINT names another server. New datasets are private unless you pass --public.
    """
    from ..curation import check_bundle  # slow to import
    from ..tasks import push_files

    check_bundle(folder)
    address = push_files(folder, dataset, private=not public, timeout=timeout)
    open_console().print(f"{address}\nUse it: swe-gym tasks list --source {HUB}{dataset}")


@app.command()
@takes_filter()
def split(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Output folder. Each part is one file.")],
    part: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=SHARE", help="Name and share of a part: train=0.9, or train.parquet=0.9. Repeatable."
        ),
    ],
    seed: Annotated[int, SEED] = 0,
    source: Source = "toy",
    source_option: SourceOptions = None,
    *,
    only: TaskFilter,
) -> None:
    """Split tasks into task files that share no repository. --seed orders repositories of equal size.

    A name without .jsonl, .json or .parquet gets .jsonl.
    """
    tasks = {task.task_id: task for task in only.tasks(open_source(source, source_option))}
    parts = split_by_repository({task_id: task.repo for task_id, task in tasks.items()}, _shares(part), seed=seed)
    console = open_console()
    for name, ids in parts.items():
        file = folder / (name if is_place_of_tasks(name) else f"{name}.jsonl")
        write_tasks((tasks[task_id] for task_id in ids), file)
        repos = quantify(len({tasks[task_id].repo for task_id in ids}), "repository", "repositories")
        console.print(f"{quantify(len(ids), 'task')} of {repos} in {file}")


def _shares(parts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        name, _, share = part.partition("=")
        if name in found:
            raise UsageError(f"--part {part}: duplicate name {name}")
        check_name(name)
        try:
            found[name] = float(share)
        except ValueError:
            raise UsageError(f"--part {part}: expected NAME=SHARE, such as train=0.9") from None
    return found


@app.command()
def new(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="Task file to add the task to.")] = Path("tasks.jsonl"),
    from_pypi: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            metavar="PACKAGE OLD NEW",
            help="Three values: package and two of its releases on the package index. With all in place of NEW, each "
            "pair of neighbours from OLD on.",
        ),
    ] = None,
    from_git: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="FOLDER COMMIT",
            help="Two values: local git repository, and the commit that solves the task, or a range of them to try. "
            "Needs --tests.",
        ),
    ] = None,
    tests: Annotated[str, typer.Option(help="With a folder: command that runs its tests.")] = "",
    statement: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="File with the problem statement (default: changelog or commit message)."
        ),
    ] = None,
    python: Annotated[str, typer.Option(help="Python version (default: the running one).")] = "",
    requirement: Annotated[
        list[str] | None, typer.Option(help="Additional requirement of the tests. Repeatable.")
    ] = None,
    mutate: Annotated[
        tuple[str, str, int] | None,
        typer.Option(
            metavar="PACKAGE VERSION COUNT",
            help="Make many tasks: bugs in a release, or in a commit, with --tests: FOLDER COMMIT COUNT.",
        ),
    ] = None,
    seed: Annotated[int, SEED] = 0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, help=WORKERS.help, show_default=f"{BUGS_AT_ONCE} with --mutate"),
    ] = None,
    times: Annotated[int | None, TIMES] = None,
) -> None:
    """Make a task from two releases of a package, or from a commit; or many from one release, by mutation.

    The policy starts from release OLD or the parent commit; the tests of release NEW or of the commit judge its work.
    With a range of commits, each that changes code and tests is tried; with all releases, each and the one before it.

    With --mutate, the policy starts from a release, or a commit of a local folder, with a bug; the tests that find it
    are hidden. Run the command again to resume it, or with a larger COUNT for more tasks.

    Tasks are validated and added to the file, where they replace those with the same id. By default, each patch runs
    three times, or once with --mutate. Building a release runs its build code on this machine, outside any sandbox.
    """
    from ..curation import BuildOptions, build_commit_task, build_release_task  # slow to import

    console = open_console()
    ways = (from_pypi is not None) + (from_git is not None) + (mutate is not None)
    if ways != 1 or (tests and from_pypi) or (from_git and not tests):
        raise UsageError(
            "pass --from-pypi PACKAGE OLD NEW (or all), --mutate PACKAGE VERSION COUNT, "
            "or --from-git FOLDER COMMIT and --tests COMMAND"
        )
    if mutate and statement:
        raise UsageError("--mutate writes its own issues: drop --statement")
    every = (from_git is not None and ".." in from_git[1]) or (from_pypi is not None and from_pypi[2].lower() == ALL)
    if statement and every:
        raise UsageError("--statement is for one task: each commit's message, or release's changelog, is a statement")
    if workers and not mutate:
        raise UsageError("--workers goes with --mutate: commits and releases are tried one after the other")
    if not mutate and seed:
        raise UsageError("--seed goes with --mutate")
    known = _tasks_of(output)  # a broken file fails before the work starts
    output.parent.mkdir(parents=True, exist_ok=True)
    with console.status("starting") as status:
        options = BuildOptions(
            statement=statement.read_text(encoding="utf-8") if statement else "",
            python=python,
            requirements=tuple(requirement or ()),
            runs=times or RUNS,
            progress=status.update,
            on_lists=lambda lists: _print_dropped(console, lists.dropped),
        )
        if mutate:
            _mutate(
                *mutate,
                output,
                known,
                tests=tests,
                seed=seed,
                times=times or 1,
                workers=workers or BUGS_AT_ONCE,
                build=replace(options, runs=RUNS),
            )
            return
        if every:
            options = replace(options, on_lists=lambda _: None)
            _try_each(from_pypi, from_git or ("", ""), tests, output, known, options)
            return
        if from_pypi:
            task = build_release_task(*from_pypi, options)
        else:
            folder, commit = from_git or ("", "")
            task = build_commit_task(folder, tests, commit, options)
        status.update("grading the gold patch and the untouched repository")
        _check(task, options.runs)
    known[task.task_id] = task
    write_tasks(known.values(), output)
    console.print(f"{task.task_id} is valid and was added to {output}. {_tests(task)}")
    console.print(f"Play it: swe-gym play {task.task_id} --source {output}")


def _mutate(name: str, version: str, count: int, output: Path, known: dict[str, Task], **options: Any) -> None:
    """Add tasks with bugs of a project to a file, which holds all that are finished whenever the command ends."""
    from ..curation import make_mutants  # slow to import

    if not options["tests"] and ("/" in name or Path(name).is_dir()):
        text = f"{name} is a folder: pass the command that runs its tests (--tests 'python -m pytest tests')"
        raise UsageError(text if "/" in name else f"{text}, or start in another folder to take the package {name}")
    record, date = output.with_suffix(".records.jsonl"), datetime.datetime.now(datetime.UTC).date().isoformat()
    made = make_mutants(name, version, count=count, known=known.values(), record=str(record), date=date, **options)
    if _add_tasks(made, output, known, record) < count:
        ends = Counter(one.status for one in read_records(record))
        text = f"No further bug of {name} {version} makes a task. The records say why."
        open_console().print(text + _say_undecided(ends["error"] + ends["skipped"]))


def _try_each(
    releases: tuple[str, str, str] | None,
    commits: tuple[str, str],
    tests: str,
    output: Path,
    known: dict[str, Task],
    options: "BuildOptions",
) -> None:
    """Add tasks of all releases of a package, or of a range of commits, to a file."""
    from ..curation import find_commits, find_releases, make_change_tasks  # slow to import

    record, date = output.with_suffix(".records.jsonl"), datetime.datetime.now(datetime.UTC).date().isoformat()
    ends: Counter[str] = Counter()

    def tell(one: TaskRecord) -> None:
        ends.update([one.status])
        line = f"{one.task_id}: {one.status}{one.reason and ': '}{one.reason}"
        open_console().print(line, markup=False, highlight=False, soft_wrap=True)

    changes = find_releases(*releases[:2]) if releases else find_commits(commits[0], tests, commits[1])
    given: dict[str, Any] = {"times": options.runs, "date": date, "known": known, "on_record": tell}
    made = make_change_tasks(changes, str(record), options, **given)
    _add_tasks(made, output, known, record)
    tried, undecided = quantify(ends.total(), "release" if releases else "commit"), ends["error"] + ends["skipped"]
    text = f"Of {tried} without a task so far, {ends['valid']} made a valid one. The records say why others did not."
    open_console().print(text + _say_undecided(undecided))


def _say_undecided(number: int) -> str:
    text = (
        f" {number} {'is' if number == 1 else 'are'} not decided: mend what the records say, and run the command again."
    )
    return text if number else ""


def _add_tasks(made: Iterator[Task], output: Path, known: Mapping[str, Task], record: Path) -> int:
    """Add tasks to a file, which holds all that are finished whenever the command ends. Return their number."""
    started, found, number = time.monotonic(), dict(known), 0
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # once what is finished is written
    try:
        for number, task in enumerate(made, 1):
            found[task.task_id] = task
            if number % WRITE_EVERY == 0:
                write_tasks(found.values(), output)
    finally:
        if found:
            write_tasks(found.values(), output)
        signal.signal(signal.SIGTERM, before)
    open_console().print(
        f"{quantify(len(found) - len(known), 'new task')} in {output} ({len(found)} in all) after "
        f"{time.monotonic() - started:.0f} s; records: {record}"
    )
    if record.exists():
        open_console().print(f"In {record}, {_cost(read_records(record))}")
    return number


def _cost(records: Sequence[TaskRecord]) -> str:
    """Return how many tasks of a record file are valid, their size, and the CPU time if it is known of each of them."""
    valid = [one for one in records if one.status == "valid"]
    seconds = [one.cpu_seconds for one in records if one.cpu_seconds is not None]
    said = f"{len(valid)} of {len(records)} tried are valid ({decimal(sum(one.bytes for one in valid))})"
    if not seconds or any(one.cpu_seconds is None for one in valid):
        return said
    said += f". Trials and validations took {sum(seconds):.0f} s of CPU time"
    if valid:
        said += f", {sum(seconds) / len(valid):.1f} s a valid task"
    unknown = len(records) - len(seconds)
    return f"{said}, without {unknown} of which it is not known" if unknown else said


@app.command()
@takes_filter(without=("record", "pass_rate"))
def audit(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP)] = "toy",
    repaired: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Task file to write: the tasks without unstable tests, and with the tests that --harden adds.",
        ),
    ] = None,
    source_option: SourceOptions = None,
    workers: Workers = 2,
    executor: ExecutorName = None,
    ray_address: RayAddress = None,
    harden: Annotated[
        bool, typer.Option("--harden", help="With FILE: add tests that reject wrong solutions which pass.")
    ] = False,
    min_strength: Annotated[
        float, typer.Option(min=0, max=1, help="With FILE: leave out tasks of less strength than this.")
    ] = 0.0,
    record: ResultRecord = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    as_json: AsJson = False,
    *,
    only: TaskFilter,
) -> None:
    """Find out whether tests are stable, strong and fair, and whether the solution is out of reach.

    Tests run under changed conditions, and with wrong solutions made from the gold patch. The strength is the share of
    these that a test rejects. Validate the tasks first. Results in the record file are used again. The exit status is
    1 if anything is wrong with a task.

    With --harden, copies of a task's tests with other values, which assert what the gold patch gives, are added if they
    reject a wrong solution that passes.
    """
    from ..curation import audit_tasks  # slow to import

    if (min_strength or harden) and repaired is None:
        option = "--harden adds tests to" if harden else "--min-strength chooses"
        raise UsageError(f"{option} the tasks of a new file: write swe-gym tasks audit SOURCE FILE")
    if repaired is not None:
        _check_output(repaired, source)
    place = executor_options(executor, ray_address)
    check_machine(
        record and record.parent,
        what="the folder of the record",
        fix="choose another file: --record",
        backend=backend,
        executor=place["executor"] or "threads",
    )
    console, tasks = open_console(), open_source(source, source_option)
    ids, options = only.ids(tasks), parse_sandbox_options(backend, sandbox_option)
    check_sandboxes(backend, options, read_tasks(tasks, ids), executor=place["executor"] or "threads")
    with progress_bar(console, "auditing", 0 if as_json else len(ids)) as progress:
        bar = progress.add_task("", total=len(ids))
        results = audit_tasks(
            tasks,
            ids,
            backend=backend,
            sandbox_options=options,
            harden=harden,
            workers=workers,
            record=record,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            on_record=lambda _: progress.advance(bar),
            **{name: value for name, value in place.items() if value},
        )
    if as_json:
        print_json([result.model_dump(mode="json") for result in results])
    else:
        _print_audits(console, results)
        if record:
            console.print(f"Read it as a page: swe-gym report {record}", markup=False, highlight=False, soft_wrap=True)
    if repaired:
        _write_repaired(console, tasks, results, min_strength, repaired, quiet=as_json)
    if any(result.findings or result.status in ("invalid", "error") for result in results):
        raise typer.Exit(1)


@app.command()
def rate(
    record: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="Validation record of the tasks.")
    ],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, for example runs/*.")],
    as_json: AsJson = False,
) -> None:
    """Add pass rates to a validation record: how often the policies of finished runs resolved each task.

    Play the tasks several times with `swe-gym rollout tasks.jsonl -k 8`, rate them by that run, and choose tasks with
    --record FILE --pass-rate 0.2:0.8. Attempts that could not be graded do not count. Runs of one model, or of one
    policy without a model, count together, and replace its former rates of the same tasks.
    """
    from ..curation import rate_tasks  # slow to import

    rated, unknown = rate_tasks(record, runs)
    if as_json:
        print_json([one.model_dump(mode="json", include={"task_id", "rates"}) for one in rated])
    else:
        _print_rates(open_console(), rated)
    if unknown:
        more = ", ..." if len(unknown) > MAX_SHOWN else ""
        typer.echo(
            f"left out {quantify(len(unknown), 'task')} that {record} does not hold for the runs' backend and sandbox "
            f"options; validate them first: "
            f"{', '.join(unknown[:MAX_SHOWN])}{more}",
            err=True,
        )


def _print_rates(console: Console, records: Sequence[TaskRecord]) -> None:
    table = make_table("task", "model or policy", "resolved", "pass rate", "95 % interval")
    for record in records:
        for name, one in record.rates.items():
            counts, interval = f"{one.resolved}/{one.attempts}", f"{one.low:.2f} to {one.high:.2f}"
            table.add_row(*map(Text, [record.task_id, name, counts, f"{one.share:.2f}", interval]))
    console.print(table)


def _print_audits(console: Console, results: Sequence["AuditRecord"]) -> None:
    """Print a table, the worst task first, and what is wrong with each."""
    worst = sorted(results, key=lambda result: result.rank)
    table = make_table("task", "strength", "conditions", "findings")
    for result in worst:
        same = sum(end == "same" for end in result.conditions.values())
        tried = sum(end in ("same", "changed") for end in result.conditions.values())
        strength = "" if result.strength is None else f"{result.strength:.2f} ({result.killed} of {result.tried})"
        if result.added:
            strength += f", {result.added.strength:.2f} with {quantify(len(result.added.tests), 'new test')}"
        elif result.harden and result.strength is not None:
            strength += ", no new test"
        kinds = Counter(finding.kind for finding in result.findings)
        said = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        conditions = f"{same} of {tried} same" if tried else ""
        table.add_row(*map(Text, [result.task_id, strength, conditions, said or result.reason or "none"]))
    console.print(table)
    for result in worst:
        for finding in result.findings:
            line = f"{result.task_id}: {finding.kind}: {finding.what}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    counts = Counter(result.status for result in results)
    clean = sum(result.status == "audited" and not result.findings for result in results)
    console.print(", ".join(f"{number} {status}" for status, number in counts.items()) + f", {clean} without findings")


def _check_output(output: Path, source: str) -> None:
    """Check the name of a task file that is written later."""
    if output.suffix not in SUFFIXES:
        raise UsageError(f"{output}: the file name must end in {', '.join(SUFFIXES)}")
    if output.suffix == ".parquet":
        load_arrow()  # raises if it is missing
    origin = Path(split_slice(source)[0])
    if output.exists() and origin.exists() and output.samefile(origin):
        raise UsageError(f"{output} is the source: choose another file for the repaired tasks")


def _write_repaired(
    console: Console,
    source: TaskSource,
    results: Sequence["AuditRecord"],
    min_strength: float,
    output: Path,
    *,
    quiet: bool,
) -> None:
    """Write the audited tasks without their unstable tests, and with those that were added."""
    from ..curation import repair_task  # slow to import

    strong = [result for result in results if not min_strength or _strength(result) >= min_strength]
    audited = [result for result in strong if result.status == "audited"]
    repaired = {result.task_id: repair_task(source.get(result.task_id), result) for result in audited}
    kept = [task for task in repaired.values() if task is not None]
    if kept:
        write_tasks(kept, output)
    else:
        output.unlink(missing_ok=True)  # a file of an earlier call
    if quiet:
        return
    console.print(f"{quantify(len(kept), 'task')} in {output}" if kept else f"no task is left: there is no {output}")
    counts = Counter("weak" if result.status == "audited" else result.status for result in results)
    counts["weak"] -= len(audited)
    said = [f"{number} {reason}" for reason, number in counts.items() if number]
    if said:
        console.print(f"left out: {', '.join(said)}")
    lost = [name for name, task in repaired.items() if task is None]
    if lost:
        console.print(f"left out, because they cannot do without their unstable tests: {', '.join(lost)}")


def _strength(result: "AuditRecord") -> float:
    return result.added.strength if result.added else result.strength or 0.0


def _print_dropped(console: Console, dropped: Mapping[str, str]) -> None:
    """Print the number of dropped tests, and their names by reason."""
    lines = [f"{len(dropped)} tests were dropped:"] if dropped else []
    for reason in sorted(set(dropped.values())):
        tests = [test for test, why in dropped.items() if why == reason]
        lines += [f"  {len(tests)} {reason}", *(f"    {test}" for test in tests[:MAX_SHOWN])]
        if len(tests) > MAX_SHOWN:
            lines.append(f"    ... and {len(tests) - MAX_SHOWN} more")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _check(task: Task, times: int) -> None:
    from ..curation import validate  # slow to import

    (record,) = validate(TaskSubset([task.task_id], lambda _: task), times=times, workers=1)
    if record.status != "valid":
        raise TaskError(f"{task.task_id} was built but is not valid: {record.reason}")


def _tasks_of(path: Path) -> dict[str, Task]:
    if not path.exists():
        return {}
    source = load_source("file", path=str(path))
    return {task_id: source.get(task_id) for task_id in source.ids()}
