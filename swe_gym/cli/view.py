"""`swe-gym view`: show a run in the browser."""

import contextlib
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ..viewer import ViewServer
from .common import open_console


def view(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, trajectory file, or folder of run folders.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8642,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a run, or all runs of a folder, in the browser, also while they are running.

    The page has a table, episodes, comparisons and plots; for a folder of runs, a list of runs to compare. Only this
    machine can open it. It shows verdicts, which name hidden tests: do not share its address. Press Ctrl-C to stop.
    """
    with ViewServer(path, port) as server, contextlib.suppress(KeyboardInterrupt):
        open_console().print(server.url)
        if open_:
            webbrowser.open(server.url)
        server.wait()
