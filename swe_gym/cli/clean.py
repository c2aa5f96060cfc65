"""`swe-gym clean`: removes what dead clients left behind, and nothing that is not ours."""

from typing import Annotated

import typer

from ..errors import MissingDependency, SandboxError, unknown_name
from ..registry import Registry
from .common import open_console

SWEEPS = Registry(
    "backend to clean",
    {
        "docker": "swe_gym.sandboxes.docker:sweep",
        "kubernetes": "swe_gym.sandboxes.kubernetes:sweep",
    },
    extras={"docker": "docker", "kubernetes": "kubernetes"},
    group="swe_gym.sweeps",
)
"""Backends whose sandboxes can outlive their client for a while. A local sandbox cannot: there is nothing to sweep."""


def clean(
    backend: Annotated[list[str] | None, typer.Option(help="Only this kind of sandbox; may be repeated.")] = None,
) -> None:
    """Remove sandboxes whose owner is gone or whose lease is over. What carries no label of ours is never touched."""
    for name in backend or []:
        if name not in SWEEPS:
            raise unknown_name(SWEEPS.kind, name, SWEEPS)
    console = open_console()
    failed = False
    for name in backend or SWEEPS:
        try:
            swept = SWEEPS.load(name)()
        except MissingDependency:
            console.print(f"{name}: not installed", markup=False)
        except SandboxError as error:
            failed = True
            console.print(f"{name}: {str(error).splitlines()[0]}", markup=False)
        else:
            console.print(f"{name}: {len(swept)} removed {' '.join(swept)}".rstrip(), markup=False)
    if failed and backend:
        raise typer.Exit(1)
