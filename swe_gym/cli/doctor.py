"""`swe-gym doctor`: what works on this machine, and the exact fix for what does not."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from ..cache import cache_folder
from ..sandboxes.local import problem
from ..sandboxes.local.tiers import TIERS

EXTRAS = {
    "parquet": ("pyarrow", "task files in parquet"),
    "render": ("PIL", 'render_mode="rgb_array"'),
}


class Finding(NamedTuple):
    """One line of the report. `needed` findings decide the exit status."""

    what: str
    works: bool
    detail: str
    fix: str = ""
    needed: bool = False


def doctor() -> None:
    """Say what works on this machine, what does not, and how to mend it. Exit status 1: no sandbox can run."""
    console = Console()
    table = Table("", "what", "found", "what to do", title="swe-gym on this machine", pad_edge=False)
    findings = list(_findings())
    for finding in findings:
        mark = "[green]ok[/]" if finding.works else "[red]no[/]" if finding.needed else "[yellow]no[/]"
        table.add_row(
            mark,
            finding.what,
            finding.detail.replace("[", "\\["),
            "" if finding.works else finding.fix.replace("[", "\\["),
        )
    console.print(table)
    console.print(_isolation_table())
    if any(finding.needed and not finding.works for finding in findings):
        raise typer.Exit(1)


def _findings() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("Python 3.11+", sys.version_info >= (3, 11), version, needed=True)
    git = shutil.which("git")
    yield Finding("git", git is not None, git or "not on the PATH", "apt-get install git", needed=True)
    yield _cache()
    yield from _tiers()
    for extra, (module, use) in EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        detail = f"{use}: {'installed' if found else 'not installed'}"
        yield Finding(f"extra {extra}", found, detail, f"pip install 'swe-gym[{extra}]'")
    yield from _limits()


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
    for tier, info in TIERS.items():
        reason = problem(tier)
        fix = _namespace_fix() if tier == "namespace" else "Linux 5.13 or newer with Landlock in its `lsm=` list"
        used = ", taken by default" if best and not reason else ""
        yield Finding(
            f"local sandboxes: {tier}",
            not reason,
            reason or f"works{used}. {info.isolates}",
            fix,
            needed=tier == "process",
        )
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
        return "inside Docker: docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
    return "the kernel or a security policy refuses user namespaces; use tier landlock or a container backend"


def _limits() -> Iterator[Finding]:
    if sys.platform != "linux":
        return
    import resource  # not on every platform

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= 4096
    detail = f"{soft}: about {max(0, soft - 100) // 2} local sandboxes at once"
    yield Finding("open files", enough, detail, f"ulimit -n {min(hard, 65536)}")


def _isolation_table() -> Table:
    table = Table("tier", "isolates", "does not", title="What local sandboxes isolate", pad_edge=False, show_lines=True)
    for name, tier in TIERS.items():
        table.add_row(name, tier.isolates, "\n".join(f"- {gap}" for gap in tier.gaps))
    return table
