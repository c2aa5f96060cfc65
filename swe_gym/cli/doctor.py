"""`swe-gym doctor`: what works on this machine, and the exact fix for what does not."""

import importlib.util
import itertools
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from ..cache import cache_folder
from ..errors import MissingDependency, SweGymError
from ..index import find_sdists
from ..sandboxes.local import problem
from ..sandboxes.local.tiers import TIERS
from .common import open_console

EXTRAS = {
    "parquet": ("pyarrow", "task files in parquet"),
    "render": ("PIL", 'render_mode="rgb_array"'),
}

INDENT = " " * 4


DOCKER_GUARDS = ("seccomp", "systempaths", "apparmor")
"""What Docker puts around a container that keeps it from making namespaces. Each may be named where it is not used."""


class Finding(NamedTuple):
    """One line of the report. `needed` findings decide the exit status."""

    what: str
    works: bool
    detail: str
    fix: str = ""
    needed: bool = False


def doctor(
    cluster: Annotated[bool, typer.Option("--cluster", help="Look at the Kubernetes cluster too.")] = False,
) -> None:
    """Say what works on this machine, what does not, and how to mend it. Exit status 1: no sandbox can run."""
    console = open_console()
    findings = []
    for finding in itertools.chain(_findings(), _cluster() if cluster else ()):
        _print_finding(console, finding)
        findings.append(finding)
    _print_isolation(console)
    if any(finding.needed and not finding.works for finding in findings):
        raise typer.Exit(1)


def _cluster() -> Iterator[Finding]:
    """What the cluster of the current context grants and lacks."""
    try:
        from ..sandboxes.kubernetes.doctor import examine  # an extra, and slow to import
    except ImportError as error:
        raise MissingDependency(f"--cluster needs the extra: pip install 'swe-gym[kubernetes]' ({error})") from error
    for found in examine():
        yield Finding(*found)


def _print_finding(console: Console, finding: Finding) -> None:
    mark = ("ok", "green") if finding.works else ("no", "bold red" if finding.needed else "yellow")
    console.print(Text.assemble(mark, f"  {finding.what:20}  {finding.detail}"))
    if finding.fix and not finding.works:
        console.print(Text.assemble(INDENT, ("fix: ", "bold"), finding.fix))


def _print_isolation(console: Console) -> None:
    """What each tier keeps apart and what it does not, in full: nobody should find out later."""
    width = min(console.width, 120)
    for name, tier in TIERS.items():
        console.print(Text.assemble("\nWhat tier ", (name, "bold"), " isolates:"))
        console.print(textwrap.fill(tier.isolates, width, initial_indent="  + ", subsequent_indent=INDENT))
        console.print("and what it does not:")
        for gap in tier.gaps:
            console.print(textwrap.fill(gap, width, initial_indent="  - ", subsequent_indent=INDENT))


def _findings() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("Python 3.11+", sys.version_info >= (3, 11), version, needed=True)
    git = shutil.which("git")
    yield Finding("git", git is not None, git or "not on the PATH", "apt-get install git", needed=True)
    yield _cache()
    yield from _tiers()
    yield _open_files()
    for extra, (module, use) in EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        yield Finding(f"extra {extra}", found, use, f"pip install 'swe-gym[{extra}]'")
    yield _index()


def _cache() -> Finding:
    folder = Path(cache_folder())
    fix = "set SWE_GYM_CACHE to a folder that you may write to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free >> 30
    except OSError as error:
        return Finding("cache", False, f"{folder}: {error.strerror}", fix, needed=True)
    writable = os.access(folder, os.W_OK)
    room = "" if free >= 5 else ": real tasks need more room for their environments"
    return Finding("cache", writable, f"{folder}, {free} GB free{room}", fix, needed=True)


def _tiers() -> Iterator[Finding]:
    best = True
    for tier in TIERS:
        reason = problem(tier)
        fix = _namespace_fix() if tier == "namespace" else "Linux 5.13 or newer with Landlock in its `lsm=` list"
        works = "a command ran; taken by default" if best else "a command ran"
        yield Finding(f"tier {tier}", not reason, reason or works, fix, needed=tier == "process")
        best = best and bool(reason)


def _namespace_fix() -> str:
    """The most likely reason why unprivileged namespaces are refused, and what lifts it."""
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
        fix = "configure pip (PIP_INDEX_URL, proxy); only tasks made from packages need it"
        return Finding("package index", False, str(error).partition("\n")[0], fix)
    return Finding("package index", True, "reached as pip is configured: real tasks can be made and set up")
