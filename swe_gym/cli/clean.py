"""`swe-gym clean`: remove sandboxes that dead clients left behind."""

from collections.abc import Callable
from typing import Annotated

import typer

from ..errors import SweGymError, UsageError, unknown_name
from ..registry import Registry
from .common import BackendOptions, open_console, parse_pairs

SWEEPS = Registry[Callable[[dict[str, object]], list[str]]](
    "backend to clean",
    {
        "docker": "swe_gym.sandboxes.docker:sweep",
        "kubernetes": "swe_gym.sandboxes.kubernetes:sweep",
    },
    extras={"docker": "docker", "kubernetes": "kubernetes"},
    group="swe_gym.sweeps",
)
"""Functions of a backend's options that remove abandoned sandboxes and return their names.

Local sandboxes die with their client, and E2B's end at the service's timeout."""


def clean(
    backend: Annotated[list[str] | None, typer.Option(help="Clean only this backend; may be repeated.")] = None,
    backend_option: BackendOptions = None,
) -> None:
    """Remove sandboxes whose owner has died or whose lease has expired. Nothing without swe_gym's label is touched.

    Exit status 1: a backend named by --backend could not be cleaned.
    """
    for name in backend or []:
        if name not in SWEEPS:
            raise unknown_name(SWEEPS.kind, name, SWEEPS)
    options = parse_pairs("--backend-option", backend_option)
    if options and len(backend or []) != 1:
        raise UsageError("--backend-option needs exactly one --backend: options differ between backends")
    console = open_console()
    failed = False
    for name in backend or SWEEPS:
        try:
            swept = SWEEPS.load(name)(options)
        except SweGymError as error:
            failed = True
            console.print(f"{name}: {str(error).splitlines()[0]}", markup=False)
        else:
            console.print(f"{name}: {len(swept)} removed {' '.join(swept)}".rstrip(), markup=False)
    if failed and backend:
        raise typer.Exit(1)
