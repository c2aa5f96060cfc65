"""`swe-gym agents`: list the agents, and build their kits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..gateway import Kit, build_kit, find_kit, find_templates, kit_bytes, prove, render_matrix
from ..gateway.agents import AGENTS, make_agent
from ..types import JsonObject
from .common import make_table, open_console, print_json
from .options import AsJson


def agents(
    build: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Build the kits of these agents.")] = None,
    as_json: AsJson = False,
    matrix: Annotated[
        bool, typer.Option(help="Print which chat templates work with which agents, as Markdown.")
    ] = False,
    templates: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of chat templates (*.jinja), beside those of TRL.")
    ] = None,
) -> None:
    """List the agents for `rollout --agent`, and the size of their kits. With names, build their kits first.

    A kit is what an agent needs in a sandbox. It is built once, at its first use at the latest, and kept in the cache.
    """
    if matrix:
        found = find_templates(templates)
        if not found:
            raise UsageError("no chat templates: name a folder with --templates, or pip install --no-deps trl")
        typer.echo(render_matrix([prove(name, path.read_text()) for name, path in found.items()]), nl=False)
        return
    if templates is not None:
        raise UsageError("--templates has no effect without --matrix")
    for name in build or []:
        if (kit := make_agent(name).kit) is not None:
            ready_kit(name, kit)
    rows = list(agent_rows())
    if as_json:
        print_json(rows)
        return
    table = make_table("agent", "version", "protocol", "kit")
    for row in rows:
        size = f"{row['megabytes']:,} MB" if row["built"] else "not built"
        table.add_row(row["name"], row["version"], row["protocol"], size if row["has_kit"] else "none")
    open_console().print(table)


def ready_kit(name: str, kit: Kit) -> Path:
    """Return the folder of an agent's kit. If it must be built, say so first."""
    if find_kit(kit) is None:
        open_console(stderr=True).print(f"building the kit of {name}: this can take several minutes")
    return build_kit(kit)


def agent_rows() -> Iterator[JsonObject]:
    """Yield the name, version and protocol of each agent, and what is known of its kit."""
    for name in AGENTS.names():
        kind = AGENTS.load(name)
        try:
            kit = make_agent(name).kit
        except UsageError:  # an option is required, and it has no kit of its own
            kit = None
        folder = find_kit(kit) if kit else None
        yield {
            "name": name,
            "version": kind.version,
            "protocol": kind.protocol,
            "has_kit": kit is not None,
            "built": folder is not None,
            "megabytes": round(kit_bytes(folder) / 1e6) if folder else 0,
            "folder": str(folder or ""),
        }
