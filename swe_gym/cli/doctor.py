"""`swe-gym doctor` and `swe-gym clean`: what works on this machine, and what dead clients left behind on it."""

import importlib.util
import itertools
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..cache import cache_folder
from ..errors import MissingDependency, SweGymError, UsageError
from ..index import find_sdists
from ..sandboxes import BACKENDS, Finding, load_backend
from ..toml import parse_pairs
from ..types import JsonObject
from .agents import agent_rows
from .common import open_console, print_json
from .options import AsJson, BackendOptions, Backends

EXTRAS = {
    "parquet": ("pyarrow", "task files in parquet"),
    "languages": ("tree_sitter_go", "counter-tests in JavaScript, TypeScript and Go"),
    "render": ("PIL", 'render_mode="rgb_array"'),
}

INDENT = " " * 4


def doctor(
    backend: Backends = None,
    backend_option: BackendOptions = None,
    training: Annotated[
        Path | None, typer.Option("--training", metavar="CONFIG", help="Check a training configuration instead.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="With --training: overrides of the configuration.")
    ] = None,
    quota: Annotated[
        int | None, typer.Option(min=1, help="With --training: sandboxes that your account may run at once.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show all checks, and what each isolation tier does not isolate.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Report what works on this machine, what does not, and how to fix it.

    Without --backend, the report covers local sandboxes, container images in them and in a Docker engine, of which
    public datasets need one, and the cache. --verbose and --json have all checks.

    --training checks a configuration of verl or rLLM (Hydra's YAML) or of `swe-gym train` (TOML) before GPUs are
    rented: lengths, batch, rows, sandboxes, credentials, versions, leftover Ray processes, and the hub.

    The exit status is 1 if no sandbox can run on this machine, or if a check of a backend named by --backend or of the
    training configuration failed.
    """
    options = parse_pairs("--backend-option", backend_option)
    if options and len(backend or []) != 1:
        raise UsageError("--backend-option needs exactly one --backend: options differ between backends")
    console = open_console()
    findings = []
    checks = _training(training, changes, quota) or itertools.chain(
        _findings(backend or [], options), _details() if verbose or as_json else ()
    )
    for finding in checks:
        findings.append(finding)
        if not as_json and (verbose or finding.main or (finding.needed and not finding.works)):
            _print_finding(console, finding)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    elif training is None and verbose:
        _print_notes(console, findings)
    elif training is None:
        console.print("All checks: swe-gym doctor --verbose", style="dim")
    if any(finding.needed and not finding.works for finding in findings):
        raise typer.Exit(1)


def _training(file: Path | None, changes: list[str] | None, quota: int | None) -> Iterator[Finding] | None:
    """Return the checks of a training configuration; None if there is none."""
    if file is None:
        if changes or quota:
            raise UsageError("overrides and --quota need --training CONFIG")
        return None
    from .doctor_training import examine

    return examine(file, changes or (), quota)


def _named(names: list[str], options: JsonObject) -> Iterator[Finding]:
    """Check the backends that a user named."""
    for name in names:
        for found in load_backend(name).diagnose(options):
            yield found._replace(main=True)


def _here() -> Iterator[Finding]:
    """Check the backends of this machine. One that works is enough."""
    found = [finding for name in BACKENDS.names() for finding in _installed(name)]
    one_works = any(all(one.works or not one.needed for one in group) for group in found)
    for finding in itertools.chain(*found):
        yield finding._replace(needed=finding.needed and not one_works)


def _installed(name: str) -> Iterator[list[Finding]]:
    """Yield the findings of a backend, if it is one of this machine."""
    try:
        kind = load_backend(name)
    except MissingDependency as error:
        what, _, fix = str(error).partition(": ")
        yield [Finding(name, False, what, fix, main=True)]
        return
    except UsageError as error:  # an entry point of another package
        yield [Finding(name, False, str(error), "correct or uninstall the package that names it", main=True)]
        return
    if kind.on_this_machine:
        yield kind.diagnose({})


def _print_finding(console: Console, finding: Finding) -> None:
    mark = ("ok", "green") if finding.works else ("no", "bold red" if finding.needed else "yellow")
    said = textwrap.fill(f"{finding.what:20}  {finding.detail}", console.width - 4, subsequent_indent=" " * 26)
    console.print(Text.assemble(mark, "  ", said))
    if finding.fix and not finding.works:
        console.print(Text.assemble(INDENT, ("fix: ", "bold"), finding.fix))


def _print_notes(console: Console, findings: list[Finding]) -> None:
    """Print the notes of backends in full."""
    width = min(console.width, 120)
    for finding in findings:
        for number, note in enumerate(finding.notes):
            text = note.lstrip()
            indent = " " * (len(note) - len(text))
            lines = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=INDENT)
            console.print(lines if number else f"\n{lines}")


def _findings(backends: list[str], options: JsonObject) -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("Python 3.11+", sys.version_info >= (3, 11), version)
    git = shutil.which("git")
    yield Finding("git", git is not None, git or "not on the PATH", "apt-get install git")
    yield from _named(backends, options) if backends else _here()
    yield _cache()


def _details() -> Iterator[Finding]:
    """Check what few need."""
    for extra, (module, use) in EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        yield Finding(f"extra {extra}", found, use, f"pip install 'swe-gym[{extra}]'", needed=False)
    yield _index()
    yield from _kits()


def _kits() -> Iterator[Finding]:
    """Check which agents' kits are built."""
    for row in agent_rows():
        if row["has_kit"]:
            size = f"kit of {row['megabytes']:,} MB" if row["built"] else "the kit is built at its first use"
            fix = f"swe-gym agents {row['name']}"
            yield Finding(f"agent {row['name']}", row["built"], f"{row['version']}, {size}", fix, needed=False)


def _cache() -> Finding:
    folder = Path(cache_folder())
    fix = "set SWE_GYM_CACHE to a writable folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free >> 30
    except OSError as error:
        return Finding("cache", False, f"{folder}: {error.strerror}", fix, main=True)
    writable = os.access(folder, os.W_OK)
    room = "" if free >= 5 else ": real tasks need more space for their environments"
    return Finding("cache", writable, f"{folder}, {free} GB free{room}", fix, main=True)


def _index() -> Finding:
    try:
        find_sdists("pip", timeout=10.0)
    except (SweGymError, TimeoutError) as error:
        fix = "configure pip (PIP_INDEX_URL, proxy); only tasks made from packages need the index"
        return Finding("package index", False, str(error).partition("\n")[0], fix, needed=False)
    return Finding("package index", True, "reachable with pip's configuration: tasks can be made from packages")


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
