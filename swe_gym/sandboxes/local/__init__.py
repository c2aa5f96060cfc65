"""Sandboxes on this machine: no Docker, no root, no network, nothing left behind.

Three tiers, the best that works here is taken unless one is asked for: "namespace" (a root file system, processes and
a network of its own), "landlock" (where namespaces are refused, as inside Docker: file and network rules),
"process" (a folder and a process group: for code that you trust).
"""

import functools
import os
import shutil
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ...errors import SandboxError, Unsupported, UsageError
from ...types import Capabilities, Frozen, PythonEnv
from ..base import ISOLATION_LEVELS, SandboxSpec, parse_options
from ..channel import ByteStream
from ..pythons import PreparedPython, prepare_python
from ..runner_sandbox import RunnerSandbox
from ..workspaces import DATE, prepare_workspace
from .forkserver import Supervisor, launch
from .tiers import TIERS

PYTHON_HOME = "/opt/venv"
"""Where the Python environment lies in tier "namespace": the same on every machine. See `namespace.build`."""

COPIED_FILES, COPIED_BYTES = 2000, 32 << 20
"""The largest workspace that is copied into a sandbox of tier "namespace", where it cannot be a layer with all rights.
See `layers`."""

OWN_PACKAGE = str(Path(__file__).parents[2])
"""Where swe_gym lies: installed beside the Python in use, it would show the bundled tasks' oracles."""


class LocalOptions(Frozen):
    """The local backend's own options.

    Attributes:
        tier: Which tier to use; "auto" is the best that works on this machine.
        python_prefix: An existing Python environment (`sys.prefix` of it) to use, read-only, in place of `spec.python`.
    """

    tier: Literal["auto", "namespace", "landlock", "process"] = "auto"
    python_prefix: str | None = None


class LocalSandbox(RunnerSandbox):
    """A sandbox on this machine."""

    name = "local"

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec)
        self.options = parse_options(LocalOptions, spec.options, self.name)
        if spec.cpus is not None:
            raise Unsupported("the local backend cannot limit CPUs: leave `cpus` out, or use a container backend")
        if spec.image and spec.workspace is None:
            raise Unsupported(
                f"the local backend runs no images, and the code is in one, {spec.image}: use backend='docker' or "
                "another that runs containers, or give the code, sandbox_options={'workspace': ...}"
            )
        if spec.user not in (None, "root"):
            raise Unsupported(f"the local backend runs commands as one user only, not as {spec.user!r}")
        self._tier = ""
        self._root = ""
        self._python: PreparedPython | None = None
        self._supervisor: Supervisor | None = None

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        return TIERS[self._tier].capabilities(self._tier, self.spec.network)

    @property
    def workdir(self) -> str:
        """Below the sandbox's own folder in the tiers that cannot mount; else as the spec says."""
        return self._root + self.spec.workdir

    # --- life ---------------------------------------------------------------------------------------------

    def _connect(self, deadline: float) -> ByteStream:
        self._tier = self._choose_tier()
        workspace = None
        if self.spec.workspace:
            timeout = deadline - time.monotonic()
            workspace = prepare_workspace(self.spec.workspace, timeout=timeout, at=self.spec.workdir)
        self._python = self._prepare_python(deadline - time.monotonic())
        if self._tier != "namespace":
            self._root = f"{os.path.realpath(tempfile.gettempdir())}/swe-gym-{uuid.uuid4().hex}"
        stream, self._supervisor = launch(self._config(workspace), deadline)
        return stream

    def _choose_tier(self) -> str:
        if sys.platform != "linux":
            raise Unsupported("the local backend needs Linux: use a container backend")
        tier = best_tier() if self.options.tier == "auto" else self.options.tier
        wanted = self.spec.min_isolation
        if ISOLATION_LEVELS.index(tier) < ISOLATION_LEVELS.index(wanted):
            reasons = "; ".join(f"{name}: {why}" for name in ("namespace", "landlock") if (why := problem(name)))
            raise Unsupported(
                f"min_isolation={wanted!r} was asked for and this machine's local backend gives {tier!r}. "
                f"{reasons or 'Use a container backend.'} `swe-gym doctor` says what can be done about it."
            )
        return tier

    def _prepare_python(self, timeout: float) -> PreparedPython:
        prefix = self.options.python_prefix
        if prefix is not None:
            if not os.path.isdir(f"{prefix}/bin"):
                raise UsageError(f"python_prefix={prefix!r} is no Python environment: it has no folder `bin`")
            return PreparedPython(prefix=Path(prefix), base_prefix=Path(sys.base_prefix), version="")
        return prepare_python(self.spec.python or PythonEnv(), timeout=timeout)

    def _config(self, workspace: Path | None) -> dict[str, object]:
        assert self._python is not None
        prefixes = {str(self._python.prefix), str(self._python.base_prefix), sys.base_prefix}
        prefixes |= {os.path.realpath(path) for path in prefixes}
        shown = {PYTHON_HOME: str(self._python.prefix), **{path: path for path in prefixes}}
        return {
            "tier": self._tier,
            "root": self._root,
            "workdir": self.workdir,
            "workspace": str(workspace or ""),
            "layer": str(workspace).removesuffix(self.spec.workdir.rstrip("/")) if workspace else "",
            "copied": workspace is not None and _is_small(workspace, self.spec.disk_mb),
            "python": str(self._python.prefix),
            "date": DATE,
            "hidden": sorted({OWN_PACKAGE, os.path.realpath(OWN_PACKAGE), *_own_package_in(shown)}),
            "read_only": sorted(path for path in prefixes if not (path + "/").startswith("/usr/")),
            "disk_mb": self.spec.disk_mb,
            "pids": self.spec.pids,
            "network": self.spec.network != "none",
        }

    def _disconnect(self) -> None:
        if self._supervisor:
            self._supervisor.end(patience=1.0 if self._loss is None else 0.0)  # what is lost does not answer
        if self._root:
            shutil.rmtree(self._root, ignore_errors=True)  # the supervisor did, unless it had to be killed

    # --- what commands see --------------------------------------------------------------------------------

    def _limits(self) -> dict[str, int]:
        limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 65536, "RLIMIT_FSIZE": self.spec.disk_mb << 20}
        if self._tier == "namespace":
            limits["RLIMIT_NPROC"] = self.spec.pids  # elsewhere it would count all of the user's processes
        if self.spec.memory_mb:
            limits["RLIMIT_DATA"] = self.spec.memory_mb << 20
        return limits

    def _base_env(self) -> Mapping[str, str]:
        assert self._python is not None
        prefix = PYTHON_HOME if self._tier == "namespace" else str(self._python.prefix)
        path = f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        env = {"PATH": path, "HOME": f"{self._root}/root", "VIRTUAL_ENV": prefix}
        return env | {"TMPDIR": f"{self._root}/tmp"} if self._root else env


@functools.cache
def _is_small(workspace: Path, disk_mb: int) -> bool:
    """Whether a prepared workspace may be copied for each sandbox: that takes memory, and about 30 us for each file."""
    files = size = 0
    for folder, folders, names in os.walk(workspace):
        files += len(folders) + len(names)
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
        if files > COPIED_FILES or size > min(COPIED_BYTES, disk_mb << 19):  # half of the sandbox's disk
            return False
    return True


def _own_package_in(shown: Mapping[str, str]) -> list[str]:
    """Where swe_gym would be seen under folders of the host that are shown at other places (place -> folder)."""
    package = os.path.realpath(OWN_PACKAGE)
    folders = {place: os.path.realpath(folder) for place, folder in shown.items()}
    return [place + package[len(folder) :] for place, folder in folders.items() if package.startswith(folder + "/")]


@functools.cache
def problem(tier: str) -> str:
    """Why a tier does not work on this machine; empty where it does. Found out by starting a sandbox, once.

    Raises:
        SandboxError: It cannot be told now: what may work next time must not decide for a weaker tier.
    """
    spec = SandboxSpec(options={"tier": tier}, start_timeout=60.0)
    try:
        with LocalSandbox(spec) as sandbox:
            result = sandbox.exec("true", timeout=10.0)
            return "" if result.ok else result.describe()
    except Unsupported as error:
        return str(error)
    except SandboxError as error:
        if error.retryable:
            raise
        return (error.detail or str(error)).splitlines()[-1]


@functools.cache
def best_tier() -> str:
    """The strongest tier that works on this machine."""
    for tier in ("namespace", "landlock"):
        if not problem(tier):
            return tier
    warnings.warn(
        "The local backend can isolate nothing on this machine: "
        f"namespaces: {problem('namespace')}; landlock: {problem('landlock')}. Commands run as you. "
        "Use it for code that you trust, or a container backend; `swe-gym doctor` says more.",
        RuntimeWarning,
        stacklevel=2,
    )
    return "process"
