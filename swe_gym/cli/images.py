"""`swe-gym images`: the container images that tasks need, on a Docker engine or in the store of local sandboxes."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.text import Text

from ..envs import task_spec, verifier_spec
from ..errors import MissingDependency, SandboxError, TaskError, UsageError, quantify
from ..files import write_text
from ..sandboxes import SandboxSpec, default_image, open_sandbox
from ..sandboxes.images import ArchiveSource, ImageName, ImageSource, ImageStore, engine_source
from ..tasks import write_tasks
from ..toml import parse_pairs
from ..types import JsonObject, Task
from .common import make_table, matching, open_console, open_source, print_json, progress_bar
from .options import BASE_IMAGE, SOURCE, AsJson, Engine, Match, Source, SourceOptions, Timeout, Workers

if TYPE_CHECKING:
    from docker import APIClient

app = typer.Typer(
    no_args_is_help=True, help="The container images of tasks, on a Docker engine or in the store of local sandboxes."
)

BACKEND = "swe_gym.sandboxes.docker:DockerSandbox"
CALL_SECONDS = 60.0
MEGABYTE = 1e6

Default = Annotated[
    str | None, typer.Option("--default-image", help="Image of tasks without one (default: python:VERSION).")
]


@app.command("list")
def list_images(
    source: Source = "toy",
    source_option: SourceOptions = None,
    match: Match = "*",
    default: Default = None,
    engine: Engine = None,
    as_json: AsJson = False,
) -> None:
    """List the images that tasks need, with their size and the number of tasks."""
    console = open_console()
    needed = count_images(source, source_option, match, default)
    with closing(_connect(engine)) as client:
        found = {image: _find(client, image) for image in needed}
    sizes = {image: one["Size"] for image, one in found.items() if one}
    if as_json:
        print_json([{"image": image, "tasks": tasks, "bytes": sizes.get(image)} for image, tasks in needed.items()])
        return
    table = make_table("MB", "tasks", "image")
    for image, tasks in needed.items():
        size = f"{sizes[image] / MEGABYTE:.0f}" if image in sizes else "missing"
        table.add_row(*map(Text, [size, str(tasks), image]))
    console.print(table)
    total = sum(sizes.values()) / MEGABYTE
    console.print(f"{len(sizes)} images present, {total:.0f} MB (shared layers are counted repeatedly)")
    if missing := len(needed) - len(sizes):
        console.print(f"{missing} missing. Pull them: swe-gym images pull, with the same options")


@app.command()
def pull(
    source: Source = "toy",
    source_option: SourceOptions = None,
    match: Match = "*",
    default: Default = None,
    engine: Engine = None,
    workers: Workers = 3,
    timeout: Timeout = 3600.0,
    min_free_mb: Annotated[int, typer.Option(min=0, help="MiB that must stay free on the engine's disk.")] = 5120,
) -> None:
    """Pull the missing images of tasks. Run the same command again to resume.

    If a registry limits the rate, the command waits as long as the registry asks, within --timeout. The exit status is
    1 if an image is missing.
    """
    from ..sandboxes.docker import progress_line, pull_image

    console = open_console()
    images: list[str] = []
    if wanted := count_images(source, source_option, match, default, built=False):
        with closing(_connect(engine)) as client:
            images = [image for image in wanted if _find(client, image) is None]
    stop = threading.Event()
    with progress_bar(console, "pulling", len(images)) as progress:
        bar = progress.add_task("", total=len(images))

        def one(image: str) -> None:
            row = progress.add_task(image, total=None)
            try:
                with closing(_connect(engine)) as client:
                    pull_image(
                        client,
                        image,
                        timeout=timeout,
                        min_free_mb=min_free_mb,
                        progress=lambda event: progress.update(row, description=f"{image}: {progress_line(event)}"),
                        wanted=lambda: not stop.is_set(),
                    )
            finally:
                progress.remove_task(row)
                progress.advance(bar)

        problems = for_each(images, one, workers, stop, console.print)
    console.print(f"{len(images) - len(problems)} pulled, {len(problems)} failed")
    if problems:
        raise typer.Exit(1)


@app.command()
def build(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="Task file to write; its tasks name the images.")],
    base: Annotated[str, BASE_IMAGE],
    source: Source = "toy",
    source_option: SourceOptions = None,
    match: Match = "*",
    engine: Engine = None,
    workers: Workers = 2,
) -> None:
    """Build an image for each task with a workspace or a Dockerfile, and write a task file that uses the images.

    A task with a Dockerfile does not need the base image.

    Each image holds the base image, the task's Python, its requirements and its repository. Tasks share layers, and
    existing images are not built again. The exit status is 1 if a build failed.
    """
    console = open_console()
    _connect(engine).close()
    from ..sandboxes.docker import build_image

    tasks = open_source(source, source_option)
    built: dict[str, Task] = {}

    def one(name: str) -> None:
        task = tasks.get(name)
        image = build_image(task_spec(task, {}), base, name=f"task-{task.task_id}", base_url=engine)
        if (verifier := verifier_spec(task, {})) and verifier.build:
            build_image(verifier, base, name=task.task_id, base_url=engine)
        built[name] = task.in_image(image)

    names = list(matching(tasks, match))
    problems = for_each(names, one, workers, threading.Event(), console.print)
    write_tasks([built[name] for name in names if name in built], output)
    console.print(f"{quantify(len(built), 'task')} written to {output}; {len(problems)} failed")
    if problems:
        raise typer.Exit(1)


@app.command()
def check(
    source: Source = "toy",
    source_option: SourceOptions = None,
    match: Match = "*",
    default: Default = None,
    engine: Engine = None,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Open a sandbox of each image and check that it has the programs that tools need. Pulls nothing.

    The exit status is 1 if an image is missing or lacks a program.
    """
    console = open_console()
    images = list(count_images(source, source_option, match, default))
    options = {"pull": "never", "base_url": engine}
    _connect(engine).close()

    def one(image: str) -> None:
        with open_sandbox(SandboxSpec(image=image, options=options), BACKEND) as box:
            if missing := [name for name in ("bash", "git", "python3") if not box.exec(["which", name]).ok]:
                raise SandboxError(f"lacks {', '.join(missing)}")

    problems = for_each(images, one, workers, threading.Event(), (lambda _: None) if as_json else console.print)
    if as_json:
        print_json([{"image": image, "problem": problems.get(image, "")} for image in images])
    else:
        console.print(f"{len(images) - len(problems)} images passed, {len(problems)} failed")
    if problems:
        raise typer.Exit(1)


@app.command()
def remove(
    source: Annotated[str, SOURCE],
    source_option: SourceOptions = None,
    match: Match = "*",
    default: Default = None,
    engine: Engine = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove the images of these tasks from the engine. Images in use stay."""
    console = open_console()
    with closing(_connect(engine)) as client:
        images = [image for image in count_images(source, source_option, match, default) if _find(client, image)]
        for image in images:
            console.print(Text(image))
        if not images:
            console.print("None of the images is present.")
            return
        if not yes:
            typer.confirm(f"Remove these {len(images)} images?", abort=True)
        problems = for_each(images, lambda image: _remove(client, image), 1, threading.Event(), console.print)
    console.print(f"{len(images) - len(problems)} removed, {len(problems)} not")
    if problems:
        raise typer.Exit(1)


def _remove(client: "APIClient", image: str) -> None:
    from ..sandboxes.docker import engine_errors

    with engine_errors(f"remove image {image!r}"):
        client.remove_image(image)


@app.command()
def ags(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="JSON file to write: image -> name of its tool.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Settings of the tools, for example region=ap-guangzhou cpus=2."),
    ] = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    match: Match = "*",
    workers: Workers = 4,
    timeout: Timeout = 600.0,
) -> None:
    """Make the sandbox tools for the images of tasks on Tencent's Agent Sandbox. Run it again to resume.

    TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY hold the account's key. Name the images of your own registry with
    --source-option image=REGISTRY/{image}.

    Settings: `region`; `registry_type` (enterprise, personal or custom); `role_arn`, the role that may pull the images;
    `envd_image`, an image with /usr/bin/envd to mount; `network` (PUBLIC, VPC or SANDBOX, which has none); `cpus`;
    `memory_mb`; `endpoint` of the API.
    """
    from ..sandboxes import parse_options
    from ..sandboxes.e2b import Tools, ToolSettings

    console = open_console()
    chosen = parse_options(ToolSettings, parse_pairs("setting", settings), "ags")
    images = list(count_images(source, source_option, match, None))
    tools = Tools(chosen)
    output.parent.mkdir(parents=True, exist_ok=True)
    made: dict[str, str] = {}
    stop = threading.Event()

    def one(image: str) -> None:
        made[image] = tools.make(image, timeout=timeout, stop=stop)

    problems = for_each(images, one, workers, stop, console.print)
    write_text(output, json.dumps({image: made[image] for image in images if image in made}, indent=1) + "\n")
    console.print(f"{len(made)} tools are active, {len(problems)} failed. Their names are in {output}:")
    domain = f"{chosen.region}.tencentags.com"
    console.print(f"pass its content as the backend option `templates`, with --backend-option domain={domain}")
    if problems:
        raise typer.Exit(1)


def count_images(
    source: str, options: list[str] | None, match: str, default: str | None, *, built: bool = True
) -> Counter[str]:
    """Return image -> number of tasks that need it, verifiers' images included, in the order of the tasks.

    Args:
        source: Name of the source.
        options: Its options.
        match: Pattern of task ids.
        default: Image of tasks without one.
        built: Whether to count images that are built from a Dockerfile; no registry has them.
    """
    tasks = open_source(source, options)
    found = [tasks.get(task_id) for task_id in matching(tasks, match)]
    if not built and (own := [task for task in found if task.needs.build]):
        text = f"skipped {len(own)} of {len(found)} tasks: their images are built from Dockerfiles, at the first reset"
        typer.echo(f"{text} or ahead by: swe-gym images build", err=True)
        found = [task for task in found if not task.needs.build]
    fit = [task for task in found if task.image or not (task.python and task.python.requirements)]
    if unfit := len(found) - len(fit):
        text = f"skipped {unfit} of {len(found)} tasks: they have requirements and no image."
        typer.echo(f"{text} Build one: swe-gym images build", err=True)
    needed = Counter(task.image or default or default_image(task.python) for task in fit)
    for task in fit:
        verifier = verifier_spec(task, {})
        if verifier and verifier.image != task.image and (built or not verifier.build):
            needed[str(verifier.image)] += 1
    return needed


def _connect(engine: str | None) -> "APIClient":
    try:
        from ..sandboxes.docker import connect
    except ImportError as error:
        text = f"`swe-gym images` needs the extra 'docker': pip install 'swe-gym[docker]' ({error})"
        raise MissingDependency(text) from error
    return connect(engine, CALL_SECONDS)


def _find(client: "APIClient", image: str) -> JsonObject | None:
    from ..sandboxes.docker import find_image

    return find_image(client, image)


def for_each(
    images: list[str], work: Callable[[str], object], workers: int, stop: threading.Event, say: Callable[[Text], None]
) -> dict[str, str]:
    """Work on images, `workers` at a time, and print each result; return those that failed, each with its problem."""
    problems: dict[str, str] = {}

    def one(image: str) -> str:
        try:
            if stop.is_set():
                return "interrupted"
            work(image)
        except (SandboxError, TaskError) as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(workers) as pool:
        try:
            for image, problem in zip(images, pool.map(one, images), strict=True):
                if problem:
                    problems[image] = problem
                mark = Text.assemble(("no  ", "bold red")) if problem else Text.assemble(("ok  ", "green"))
                say(mark.append(f"{image}  {problem}" if problem else image, style=None))
        except BaseException:
            stop.set()
            raise
    return problems


GIB = 1 << 30


@app.command("fetch")
def fetch_images(
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="Images (default: those of --source).")
    ] = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    match: Match = "*",
    workers: Workers = 3,
    timeout: Timeout = 3600.0,
) -> None:
    """Fetch images from their registries into the store of local sandboxes, which need no container engine.

    Run the same command again to resume. The exit status is 1 if an image is missing.
    """
    console = open_console()
    store = ImageStore()
    wanted = images or list(count_images(source, source_option, match, None, built=False))
    missing = [image for image in wanted if store.find(image) is None]
    stop = threading.Event()
    with progress_bar(console, "fetching", len(missing)) as progress:
        bar = progress.add_task("", total=len(missing))

        def one(image: str) -> None:
            try:
                store.pull(image, deadline=time.monotonic() + timeout)
            finally:
                progress.advance(bar)

        problems = for_each(missing, one, workers, stop, console.print)
    console.print(
        f"{len(missing) - len(problems)} fetched, {len(problems)} failed, {len(wanted) - len(missing)} were present"
    )
    if problems:
        raise typer.Exit(1)


@app.command("import")
def import_images(
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="Images (default: those of --source).")
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Archive of `docker save`, or an OCI layout as tar."),
    ] = None,
    engine: Engine = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    match: Match = "*",
    timeout: Timeout = 3600.0,
) -> None:
    """Copy images from a Docker engine or an archive into the store of local sandboxes."""
    if archive and len(images or ()) != 1:
        raise UsageError("--archive takes one image: give the name that it has, or gets if the archive holds no other")
    console = open_console()
    store = ImageStore()
    store.folder.parent.mkdir(parents=True, exist_ok=True)
    for image in images or list(count_images(source, source_option, match, None)):
        name = ImageName.parse(image)
        with ExitStack() as stack:
            opened: ImageSource = (
                stack.enter_context(closing(ArchiveSource(archive, name)))
                if archive
                else stack.enter_context(engine_source(image, store.folder.parent, engine))
            )
            added = store.add(name, opened, deadline=time.monotonic() + timeout)
        console.print(f"{added.name}: {len(added.layers)} layers, {decimal(added.size)}")


@app.command("stored")
def list_stored(as_json: AsJson = False) -> None:
    """List the images in the store of local sandboxes."""
    console = open_console()
    images = ImageStore().images()
    if as_json:
        print_json([image.model_dump() for image in images])
        return
    table = make_table("MB", "layers", "image")
    for image in images:
        table.add_row(*map(Text, [f"{image.size / 1e6:.0f}", str(len(image.layers)), image.name]))
    console.print(table)
    console.print(f"{len(images)} images in {ImageStore().folder}, {decimal(ImageStore().disk_usage())} on disk")


@app.command("prune")
def prune_images(
    images: Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help="Images to remove.")] = None,
    keep_gb: Annotated[
        float | None,
        typer.Option(min=0, help="Remove the images unused for longest until the store takes this many GiB."),
    ] = None,
) -> None:
    """Remove images from the store of local sandboxes, layers that no image needs, and what killed processes left.

    Images in use stay.
    """
    limit = None if keep_gb is None else int(keep_gb * GIB)
    removed = ImageStore().prune(images or (), max_bytes=limit)
    open_console().print(f"{len(removed)} removed {' '.join(removed)}".rstrip())
