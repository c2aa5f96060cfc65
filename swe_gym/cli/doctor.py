"""`swe-gym doctor`: report what works on this machine, and how to fix what does not."""

import importlib.util
import itertools
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from ..cache import cache_folder
from ..errors import MissingDependency, SandboxError, SweGymError, UsageError
from ..index import find_sdists
from ..sandboxes.images import ImageStore
from ..sandboxes.local import problem
from ..sandboxes.local.image import OVERLAYS, choose_overlay
from ..sandboxes.local.tiers import TIERS, delegated_group
from ..toml import parse_pairs
from ..types import JsonObject
from .agents import agent_rows
from .common import AsJson, BackendOptions, open_console, print_json

EXTRAS = {
    "parquet": ("pyarrow", "task files in parquet"),
    "render": ("PIL", 'render_mode="rgb_array"'),
}

INDENT = " " * 4
ENGINE_SECONDS = 5.0

ENGINE_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "CPU"}
"""Field of an engine's info -> the resource that it can limit."""

DOCKER_GUARDS = ("seccomp", "systempaths", "apparmor")
"""Protections of Docker that forbid namespaces in a container. Disabling one that is not in use is harmless."""


class Finding(NamedTuple):
    """One line of the report.

    A `needed` finding that does not work sets the exit status. One that is neither `needed` and broken nor `main` is
    shown with --verbose only.
    """

    what: str
    works: bool
    detail: str
    fix: str = ""
    needed: bool = False
    main: bool = False


def doctor(
    cluster: Annotated[bool, typer.Option("--cluster", help="Also check the Kubernetes cluster.")] = False,
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

    The report covers local sandboxes, container images in them and in a Docker engine, of which public datasets need
    one, and the cache. --verbose and --json have all checks.

    --training checks a configuration of verl or rLLM (Hydra's YAML) or of `swe-gym train` (TOML) before GPUs are
    rented: lengths, batch, rows, sandboxes, credentials, versions, leftover Ray processes, and the hub.

    The exit status is 1 if no sandbox can run on this machine or, with --cluster, in the cluster, or if a check of the
    training configuration failed.
    """
    options = parse_pairs("--backend-option", backend_option)
    if options and not cluster:
        raise UsageError("--backend-option requires --cluster; it selects the namespace or the context")
    console = open_console()
    findings = []
    checks = _training(training, changes, quota) or itertools.chain(
        _findings(), _details() if verbose or as_json else (), _cluster(options) if cluster else ()
    )
    for finding in checks:
        findings.append(finding)
        if not as_json and (verbose or finding.main or (finding.needed and not finding.works)):
            _print_finding(console, finding)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    elif training is None and verbose:
        _print_isolation(console)
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


def _cluster(options: JsonObject) -> Iterator[Finding]:
    """Check the cluster that the options select."""
    try:
        from ..sandboxes.kubernetes.doctor import examine  # an extra, and slow to import
    except ImportError as error:
        raise MissingDependency(f"--cluster needs an extra: pip install 'swe-gym[kubernetes]' ({error})") from error
    for found in examine(options):
        yield Finding(*found, needed=True, main=True)


def _print_finding(console: Console, finding: Finding) -> None:
    mark = ("ok", "green") if finding.works else ("no", "bold red" if finding.needed else "yellow")
    said = textwrap.fill(f"{finding.what:20}  {finding.detail}", console.width - 4, subsequent_indent=" " * 26)
    console.print(Text.assemble(mark, "  ", said))
    if finding.fix and not finding.works:
        console.print(Text.assemble(INDENT, ("fix: ", "bold"), finding.fix))


def _print_isolation(console: Console) -> None:
    """Print what each tier isolates and what it does not, in full."""
    width = min(console.width, 120)
    for name, tier in TIERS.items():
        console.print(Text.assemble("\nWhat tier ", (name, "bold"), " isolates:"))
        console.print(textwrap.fill(tier.isolates, width, initial_indent="  + ", subsequent_indent=INDENT))
        console.print("and what it does not:")
        for gap in tier.notes():
            console.print(textwrap.fill(gap, width, initial_indent="  - ", subsequent_indent=INDENT))


def _findings() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("Python 3.11+", sys.version_info >= (3, 11), version, needed=True)
    git = shutil.which("git")
    yield Finding("git", git is not None, git or "not on the PATH", "apt-get install git", needed=True)
    yield from _tiers()
    yield _images()
    yield from _engine()
    yield _cache()


def _details() -> Iterator[Finding]:
    """Check what few need."""
    yield _egress()
    yield _limits()
    yield _open_files()
    for extra, (module, use) in EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        yield Finding(f"extra {extra}", found, use, f"pip install 'swe-gym[{extra}]'")
    yield _index()
    yield from _kits()


def _kits() -> Iterator[Finding]:
    """Check which agents' kits are built."""
    for row in agent_rows():
        if row["has_kit"]:
            size = f"kit of {row['megabytes']:,} MB" if row["built"] else "the kit is built at its first use"
            fix = f"swe-gym agents {row['name']}"
            yield Finding(f"agent {row['name']}", row["built"], f"{row['version']}, {size}", fix)


def _cache() -> Finding:
    folder = Path(cache_folder())
    fix = "set SWE_GYM_CACHE to a writable folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free >> 30
    except OSError as error:
        return Finding("cache", False, f"{folder}: {error.strerror}", fix, needed=True, main=True)
    writable = os.access(folder, os.W_OK)
    room = "" if free >= 5 else ": real tasks need more space for their environments"
    return Finding("cache", writable, f"{folder}, {free} GB free{room}", fix, needed=True, main=True)


def _tiers() -> Iterator[Finding]:
    best = True
    for tier in TIERS:
        try:
            reason = problem(tier)
        except SandboxError as error:  # the check itself failed, for example because of the cache
            yield Finding(f"tier {tier}", False, f"unknown: {error}".partition("\n")[0], needed=tier == "process")
            continue
        fix = _namespace_fix() if tier == "namespace" else "Linux 5.13 or newer with Landlock in its `lsm=` list"
        works = "a command ran; the default" if best else "a command ran"
        main = best and (not reason or tier == "namespace")
        yield Finding(f"tier {tier}", not reason, reason or works, fix, needed=tier == "process", main=main)
        best = best and bool(reason)


def _egress() -> Finding:
    """Check that local sandboxes can have a network without sharing the host's."""
    try:
        reason = problem("namespace") or problem("namespace", "egress")
    except SandboxError as error:
        reason = str(error).partition("\n")[0]
    fix = "apt-get install passt; its program pasta needs a default route and a readable /dev/net/tun"
    return Finding("network egress", not reason, reason or "pasta connects local sandboxes", fix)


def _limits() -> Finding:
    """Check that local sandboxes are limited as a whole."""
    folder, why = delegated_group()
    fix = "run in a delegated control group: systemd-run --user --scope -p Delegate=yes COMMAND"
    works = f"memory, processes and CPU of each local sandbox, by control groups in {folder}"
    return Finding("limits in total", bool(folder), works if folder else f"per process only: {why}", fix)


def _images() -> Finding:
    """Check that local sandboxes can run images."""
    try:
        kind, why = choose_overlay()
    except (OSError, SandboxError) as error:
        kind, why = "", str(error)
    detail = f"{len(ImageStore().images())} stored: swe-gym images fetch"
    if kind and kind != "kernel":
        detail += f"; files by {OVERLAYS[kind]}, because of {why}"
    return Finding("images, no engine", bool(kind), detail if kind else why, _namespace_fix(), main=True)


def _namespace_fix() -> str:
    """Return the fix for the most likely reason why unprivileged namespaces are refused."""
    switches = {
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
        "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=15000"),
    }
    for path, (bad, fix) in switches.items():
        try:
            if Path(path).read_text().strip() == bad:
                return f"{fix} (as root)"
        except OSError:
            continue
    if Path("/.dockerenv").exists():
        return "inside Docker: docker run " + " ".join(f"--security-opt {name}=unconfined" for name in DOCKER_GUARDS)
    return "the kernel or a security policy refuses user namespaces; use tier landlock or a container backend"


def _engine() -> Iterator[Finding]:
    """Check the Docker engine, and whether it enforces limits; rootless engines may not."""
    try:
        from ..sandboxes.docker.engine import connect, engine_errors  # an extra
    except ImportError:
        what = "the extra is not installed; backend docker and fetching images need it"
        yield Finding("docker", False, what, "pip install 'swe-gym[docker]'", main=True)
        return
    try:
        with closing(connect(None, ENGINE_SECONDS)) as client, engine_errors("report its capabilities"):
            told = client.info()
    except SandboxError as error:
        what, _, fix = str(error).partition("\n")[0].partition(". ")
        yield Finding("docker", False, what, fix, main=True)
        return
    yield Finding("docker", True, f"engine {told.get('ServerVersion')} on {told.get('OperatingSystem')}", main=True)
    lacking = [what for name, what in ENGINE_LIMITS.items() if told.get(name) is False]
    fix = "delegate the controllers of cgroup v2: https://rootlesscontaine.rs/getting-started/common/cgroup2/"
    limits = f"not enforced: {', '.join(lacking)}" if lacking else ", ".join(ENGINE_LIMITS.values())
    yield Finding("docker limits", not lacking, limits, fix, main=bool(lacking))


def _open_files() -> Finding:
    import resource  # not on every platform

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = f"{soft}: enough for about {max(0, soft - 100) // 2} local sandboxes at once"
    most = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    return Finding("open files", soft >= 4096, room, f"ulimit -n {most}")


def _index() -> Finding:
    try:
        find_sdists("pip", timeout=10.0)
    except SweGymError as error:
        fix = "configure pip (PIP_INDEX_URL, proxy); only tasks made from packages need the index"
        return Finding("package index", False, str(error).partition("\n")[0], fix)
    return Finding("package index", True, "reachable with pip's configuration: tasks can be made from packages")
