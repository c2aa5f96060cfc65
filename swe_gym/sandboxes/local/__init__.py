"""Sandboxes on this machine, without Docker, root or network, for tasks with a workspace or an image.

There are three tiers, and by default the strongest that works is used: "namespace" (its own root file system, processes
and network), "landlock" (file and network rules, for machines without namespaces, such as Docker containers), and
"process" (a folder and a process group, for code that you trust).
"""

import functools
import os
import shutil
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from ...errors import SandboxError, Unsupported, UsageError
from ...types import Capabilities, Frozen, JsonMapping, PythonEnv
from ..base import Sandbox
from ..channel import ByteStream
from ..contents.pythons import PreparedPython, prepare_python
from ..contents.workspaces import DATE, base_commit, prepare_workspace
from ..runner_sandbox import RunnerSandbox
from ..types import ISOLATION_LEVELS, Finding, SandboxSpec, parse_options
from .forkserver import Supervisor, launch, layers_of
from .tiers import TIERS, check_cpus, find_pasta, group_config, process_limits, watched_memory

PYTHON_HOME = "/opt/venv"
"""Path of the Python environment in tier "namespace", the same on every machine. See `namespace.build`."""

COPIED_FILES, COPIED_BYTES = 2000, 32 << 20
"""Largest workspace to copy into a sandbox of tier "namespace" if it cannot be a layer. See `layers`."""

OWN_PACKAGE = str(Path(__file__).parents[2])
"""Folder of swe_gym, which sandboxes must not see: it has the bundled tasks' oracles."""


class LocalOptions(Frozen):
    """The local backend's own options.

    Attributes:
        tier: Tier to use; "auto" is the strongest that works on this machine.
        python_prefix: `sys.prefix` of an existing Python environment to use, read-only, instead of `spec.python`.
    """

    tier: Literal["auto", "namespace", "landlock", "process"] = "auto"
    python_prefix: str | None = None


class LocalSandbox(RunnerSandbox):
    """A sandbox on this machine."""

    name = "local"
    on_this_machine: ClassVar[bool] = True
    _new_layers: ClassVar[bool] = True

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec)
        self.options = parse_options(LocalOptions, spec.options, self.name)
        check_cpus(spec)
        if spec.user not in (None, "root"):
            raise Unsupported(
                f"the local backend cannot run commands as user {spec.user!r}: omit `user`, or use a container backend"
            )
        self._tier = ""
        self._root = ""
        self._pasta = ""
        self._python: PreparedPython | None = None
        self._supervisor: Supervisor | None = None

    # --- the backend --------------------------------------------------------------------------------------

    @classmethod
    def for_spec(cls, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox of the image, or of the workspace if the task has one."""
        if spec.image and spec.workspace is None:
            from .image import ImageSandbox

            return ImageSandbox(spec)
        return cls(spec)

    @classmethod
    def check(cls, specs: Sequence[SandboxSpec]) -> list[Finding]:
        """See `Sandbox.check`: the cache has room, and images can run and be fetched."""
        from . import checks  # which needs this module

        return checks.check(specs)

    @classmethod
    def diagnose(cls, options: JsonMapping) -> list[Finding]:
        """See `Sandbox.diagnose`."""
        from . import checks  # which needs this module

        parse_options(LocalOptions, options, cls.name)
        return list(checks.diagnose())

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        return TIERS[self._tier].capabilities(self._tier, self.spec.access)

    @property
    def workdir(self) -> str:
        """`spec.workdir`, below the sandbox's own folder in tiers that cannot mount."""
        return self._root + self.spec.workdir

    @property
    def _top(self) -> str:
        return self._root or "/"

    def _connect(self, deadline: float) -> ByteStream:
        self._tier = self._choose_tier()
        if self._tier == "namespace":
            self._pasta = find_pasta(self.spec)
        elif what := self._find_impossible():
            raise Unsupported(
                f"the local backend cannot {what} in tier {self._tier!r}: allow user namespaces (`swe-gym doctor` "
                "shows how), or use a container backend"
            )
        workspace = None
        if self.spec.workspace:
            timeout = deadline - time.monotonic()
            workspace = prepare_workspace(self.spec.workspace, timeout=timeout, at=self.spec.workdir)
            self._origin = base_commit(workspace)
        self._python = self._prepare_python(deadline - time.monotonic())
        if self._tier != "namespace":
            self._root = f"{os.path.realpath(tempfile.gettempdir())}/swe-gym-{uuid.uuid4().hex}"
        config = self._config(workspace)
        self._layers = layers_of(config)
        stream, self._supervisor = launch(config, deadline)
        return stream

    def _find_impossible(self) -> str:
        """Return what the spec demands and tiers without namespaces cannot do; empty if they can all of it."""
        if self.spec.access == "hosts":
            return "open the network for some hosts only"
        return f"mount {', '.join(self.spec.mounts)}" if self.spec.mounts else "limit CPUs" * bool(self.spec.cpus)

    def _choose_tier(self) -> str:
        if sys.platform != "linux":
            raise Unsupported("the local backend needs Linux: use a container backend, such as backend='docker'")
        tier = best_tier() if self.options.tier == "auto" else self.options.tier
        wanted = self.spec.min_isolation
        if ISOLATION_LEVELS.index(tier) < ISOLATION_LEVELS.index(wanted):
            reasons = "; ".join(f"{name}: {why}" for name in ("namespace", "landlock") if (why := problem(name)))
            raise Unsupported(
                f"the local backend offers isolation {tier!r} on this machine, less than min_isolation={wanted!r}. "
                f"{reasons or 'Use a container backend.'} `swe-gym doctor` shows how to change it."
            )
        return tier

    def _prepare_python(self, timeout: float) -> PreparedPython:
        prefix = self.options.python_prefix
        if prefix is not None:
            if not os.path.isdir(f"{prefix}/bin"):
                raise UsageError(f"python_prefix={prefix!r} is not a Python environment: {prefix}/bin is missing")
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
            "layers": [str(workspace).removesuffix(self.spec.workdir.rstrip("/"))] if workspace else [],
            "image": False,
            "overlay": "kernel",
            "ranges": (),
            "user": "",
            "copied": workspace is not None and _is_small(workspace, self.spec.disk_mb),
            "python": str(self._python.prefix),
            "date": DATE,
            "hidden": sorted({OWN_PACKAGE, os.path.realpath(OWN_PACKAGE), *_own_package_in(shown)}),
            "mounts": dict(self.spec.mounts),
            "read_only": sorted(path for path in prefixes if not (path + "/").startswith("/usr/")),
            "disk_mb": self.spec.disk_mb,
            **(group_config(self.spec) if self._tier == "namespace" else {}),
            "pids": self.spec.pids,
            "network": not self.spec.closed,
            "pasta": self._pasta,
        }

    def _disconnect(self) -> None:
        if self._supervisor:
            self._supervisor.end(patience=1.0 if self._loss is None else 0.0)  # a lost sandbox does not answer
        if self._root:
            shutil.rmtree(self._root, ignore_errors=True)  # the supervisor did, unless it was killed

    # --- what commands see --------------------------------------------------------------------------------

    def _limits(self) -> dict[str, int]:
        return process_limits(self.spec, self._tier)

    def _watched_memory(self) -> int:
        return watched_memory(self.spec, self._tier)

    def _base_env(self) -> Mapping[str, str]:
        assert self._python is not None
        prefix = PYTHON_HOME if self._tier == "namespace" else str(self._python.prefix)
        path = f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        env = {"PATH": path, "HOME": f"{self._root}/root", "VIRTUAL_ENV": prefix}
        return env | {"TMPDIR": f"{self._root}/tmp"} if self._root else env


@functools.cache
def _is_small(workspace: Path, disk_mb: int) -> bool:
    """Return whether to copy a prepared workspace for each sandbox: it takes memory, and about 30 us per file."""
    files = size = 0
    for folder, folders, names in os.walk(workspace):
        files += len(folders) + len(names)
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
        if files > COPIED_FILES or size > min(COPIED_BYTES, disk_mb << 19):  # half of the sandbox's disk
            return False
    return True


def _own_package_in(shown: Mapping[str, str]) -> list[str]:
    """Return the paths at which swe_gym would be visible under `shown` (path in the sandbox -> folder)."""
    package = os.path.realpath(OWN_PACKAGE)
    folders = {place: os.path.realpath(folder) for place, folder in shown.items()}
    return [place + package[len(folder) :] for place, folder in folders.items() if package.startswith(folder + "/")]


@functools.cache
def problem(tier: str, network: Literal["none", "egress"] = "none") -> str:
    """Return why a tier does not work on this machine, or an empty text. It starts one sandbox to learn that.

    Raises:
        SandboxError: The start failed in a way that may work next time, which must not select a weaker tier.
    """
    spec = SandboxSpec(network=network, options={"tier": tier}, start_timeout=60.0)
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
    """Return the strongest tier that works on this machine."""
    for tier in ("namespace", "landlock"):
        if not problem(tier):
            return tier
    warnings.warn(
        "The local backend cannot isolate commands on this machine, so they run as you: "
        f"namespaces: {problem('namespace')}; landlock: {problem('landlock')}. "
        "Run only code that you trust, or use a container backend. `swe-gym doctor` shows the details.",
        RuntimeWarning,
        stacklevel=2,
    )
    return "process"
