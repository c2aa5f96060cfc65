"""Checks of local sandboxes, before a run and for `swe-gym doctor`."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from ...cache import cache_folder, check_room
from ...errors import SandboxError, Unsupported
from ..images import ImageStore
from ..images.sources import ImageName
from ..types import Finding, SandboxSpec
from . import problem
from .build import check_buildable
from .image import OVERLAYS, choose_overlay
from .tiers import TIERS, delegated_group

REGISTRY_SECONDS = 4.0

CONTAINER_GUARDS = ("seccomp", "systempaths", "apparmor")
"""Protections of Docker that forbid namespaces in a container. Disabling one that is not in use is harmless."""


def check(specs: Sequence[SandboxSpec]) -> list[Finding]:
    """See `Sandbox.check`."""
    check_room(cache_folder(), "the cache", "set SWE_GYM_CACHE to a writable folder with more space")
    of_images = {spec.image: spec for spec in specs if spec.image and spec.workspace is None}
    return [_check_images(list(of_images.values()))] if of_images else []


def _check_images(specs: Sequence[SandboxSpec]) -> Finding:
    """Check that images can run here, and that the first missing one can be fetched."""
    from ..images.sources import RegistrySource  # needs an extra

    images = [str(spec.image) for spec in specs]
    kind, why = choose_overlay()
    if not kind:
        raise Unsupported(
            f"the tasks need container images, such as {images[0]}, and local sandboxes cannot run them on this "
            f"machine: {why}. Use --backend docker, or see `swe-gym doctor`"
        )
    store = ImageStore()
    missing = [spec for spec in specs if store.find(str(spec.image)) is None]
    fetched = [str(spec.image) for spec in missing if spec.build is None]
    for spec in missing:
        if spec.build:
            check_buildable(spec, spec.build)
    if fetched:
        with closing(RegistrySource(ImageName.parse(fetched[0]), time.monotonic() + REGISTRY_SECONDS)):
            pass
    counts = {"present": len(specs) - len(missing), "to fetch": len(fetched), "to build": len(missing) - len(fetched)}
    parts = [f"{count} {what}" for what, count in counts.items() if count or what != "to build"]
    return Finding("images", True, ", ".join(parts))


def diagnose() -> Iterator[Finding]:
    """See `Sandbox.diagnose`."""
    yield from _tiers()
    yield _images()
    yield _egress()
    yield _limits()
    yield _open_files()


def _tiers() -> Iterator[Finding]:
    best = True
    for name, tier in TIERS.items():
        isolates = (f"What tier {name} isolates:", f"  + {tier.isolates}", "and what it does not:")
        notes = (*isolates, *(f"  - {gap}" for gap in tier.notes()))
        try:
            reason = problem(name)
        except SandboxError as error:  # the check itself failed, for example because of the cache
            detail = f"unknown: {error}".partition("\n")[0]
            yield Finding(f"tier {name}", False, detail, needed=name == "process", notes=notes)
            continue
        fix = _namespace_fix() if name == "namespace" else "Linux 5.13 or newer with Landlock in its `lsm=` list"
        works = "a command ran; the default" if best else "a command ran"
        main = best and (not reason or name == "namespace")
        yield Finding(f"tier {name}", not reason, reason or works, fix, name == "process", main, notes)
        best = best and bool(reason)


def _images() -> Finding:
    """Check that local sandboxes can run images."""
    try:
        kind, why = choose_overlay()
    except (OSError, SandboxError) as error:
        kind, why = "", str(error)
    detail = f"{len(ImageStore().images())} stored: swe-gym images fetch"
    if kind and kind != "kernel":
        detail += f"; files by {OVERLAYS[kind]}, because of {why}"
    return Finding("images, no engine", bool(kind), detail if kind else why, _namespace_fix(), needed=False, main=True)


def _egress() -> Finding:
    """Check that local sandboxes can have a network without sharing the host's."""
    try:
        reason = problem("namespace") or problem("namespace", "egress")
    except SandboxError as error:
        reason = str(error).partition("\n")[0]
    fix = "apt-get install passt; its program pasta needs a default route and a readable /dev/net/tun"
    return Finding("network egress", not reason, reason or "pasta connects local sandboxes", fix, needed=False)


def _limits() -> Finding:
    """Check that local sandboxes are limited as a whole."""
    folder, why = delegated_group()
    fix = "run in a delegated control group: systemd-run --user --scope -p Delegate=yes COMMAND"
    works = f"memory, processes and CPU of each local sandbox, by control groups in {folder}"
    return Finding("limits in total", bool(folder), works if folder else f"per process only: {why}", fix, needed=False)


def _open_files() -> Finding:
    import resource  # not on every platform

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = f"{soft}: enough for about {max(0, soft - 100) // 2} local sandboxes at once"
    most = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    return Finding("open files", soft >= 4096, room, f"ulimit -n {most}", needed=False)


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
        return "inside Docker: docker run " + " ".join(f"--security-opt {name}=unconfined" for name in CONTAINER_GUARDS)
    return "the kernel or a security policy refuses user namespaces; use tier landlock or a container backend"
