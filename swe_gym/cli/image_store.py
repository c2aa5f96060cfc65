"""`swe-gym images` for the store of local sandboxes: images without a container engine."""

import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.text import Text

from ..errors import UsageError
from ..sandboxes.images import ArchiveSource, ImageName, ImageSource, ImageStore, engine_source
from .common import make_table, open_console, print_json, progress_bar
from .images import app, count_images, for_each
from .options import AsJson, Engine, Match, Source, SourceOptions, Timeout, Workers

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
