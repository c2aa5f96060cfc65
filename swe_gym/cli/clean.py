"""`swe-gym clean`: remove sandboxes that dead clients left behind."""

from collections.abc import Callable
from typing import Annotated

import typer

from ..errors import SweGymError, UsageError, unknown_name
from ..registry import Registry
from ..toml import parse_pairs
from ..types import JsonObject
from .common import AsJson, BackendOptions, open_console, print_json

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
    backend: Annotated[list[str] | None, typer.Option(help="Clean only this backend. Repeatable.")] = None,
    backend_option: BackendOptions = None,
    as_json: AsJson = False,
) -> None:
    """Remove sandboxes whose owner has died or whose lease has expired. Nothing without swe_gym's label is touched.

    The exit status is 1 if a backend named by --backend could not be cleaned.
    """
    for name in backend or []:
        if name not in SWEEPS:
            raise unknown_name(SWEEPS.kind, name, SWEEPS)
    options = parse_pairs("--backend-option", backend_option)
    if options and len(backend or []) != 1:
        raise UsageError("--backend-option needs exactly one --backend: options differ between backends")
    found: JsonObject = {}
    for name in backend or SWEEPS:
        try:
            found[name] = {"removed": list(SWEEPS.load(name)(options))}
        except SweGymError as error:
            if backend or not isinstance(
                error, UsageError
            ):  # without extra or configuration, there is nothing to clean
                found[name] = {"problem": str(error).splitlines()[0]}
    if as_json:
        print_json(found)
    else:
        _print(found)
    if backend and any("problem" in one for one in found.values()):
        raise typer.Exit(1)


def _print(found: JsonObject) -> None:
    console = open_console()
    for name, one in found.items():
        removed = one.get("removed", ())
        console.print(f"{name}: {one.get('problem') or f'{len(removed)} removed ' + ' '.join(removed)}".rstrip())
    if not found:
        console.print("Nothing to clean: no backend with containers is installed and configured.")
