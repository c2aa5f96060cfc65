"""`swe-gym clean`: remove sandboxes that dead clients left behind."""

import typer

from ..errors import SweGymError, UsageError
from ..sandboxes import BACKENDS, load_backend
from ..toml import parse_pairs
from ..types import JsonObject
from .common import open_console, print_json
from .options import AsJson, BackendOptions, Backends


def clean(
    backend: Backends = None,
    backend_option: BackendOptions = None,
    as_json: AsJson = False,
) -> None:
    """Remove sandboxes whose owner has died or whose lease has expired. Nothing without swe_gym's label is touched.

    The exit status is 1 if a backend named by --backend could not be cleaned.
    """
    options = parse_pairs("--backend-option", backend_option)
    if options and len(backend or []) != 1:
        raise UsageError("--backend-option needs exactly one --backend: options differ between backends")
    for name in backend or []:
        load_backend(name)
    found: JsonObject = {}
    for name in backend or BACKENDS.names():
        try:
            swept = load_backend(name).sweep(options)
            if swept is not None or backend:
                found[name] = {"removed": swept}
        except SweGymError as error:
            if backend or not isinstance(error, UsageError):  # nothing of a backend that is not installed or configured
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
        console.print(f"{name}: {one.get('problem') or _said(one['removed'])}")
    if not found:
        console.print("Nothing to clean: no backend with containers is installed and configured.")


def _said(removed: list[str] | None) -> str:
    if removed is None:
        return "nothing to clean: its sandboxes end with their client"
    return f"{len(removed)} removed {' '.join(removed)}".rstrip()
