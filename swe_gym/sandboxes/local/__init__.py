"""Sandboxes on this machine: no Docker, no root, no network, nothing left behind.

Three tiers, the best that works here is taken unless one is asked for: "namespace" (a root file system, processes and
a network of its own), "landlock" (where namespaces are refused, as inside Docker: file and network rules),
"process" (a folder and a process group: for code that you trust).
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal

from ...errors import SandboxError, SandboxStartError, Unsupported
from ...types import Capabilities, Frozen, PythonEnv
from ..base import ISOLATION_LEVELS, SandboxSpec, parse_options
from ..channel import ByteStream, PipeStream
from ..pythons import PreparedPython, prepare_python
from ..runner_sandbox import RunnerSandbox
from ..workspaces import prepare_workspace
from .tiers import TIERS

START = "import sys; sys.path[:0] = sys.argv[1:3]; import launcher; launcher.main()"


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
        if spec.user not in (None, "root"):
            raise Unsupported(f"the local backend runs commands as one user only, not as {spec.user!r}")
        self._tier = ""
        self._root = ""
        self._python: PreparedPython | None = None
        self._process: subprocess.Popen[bytes] | None = None

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
        workspace = (
            prepare_workspace(self.spec.workspace, timeout=deadline - time.monotonic()) if self.spec.workspace else None
        )
        self._python = self._prepare_python(deadline - time.monotonic())
        if self._tier != "namespace":
            self._make_root(workspace)
        return self._launch(self._config(workspace), deadline)

    def _choose_tier(self) -> str:
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
            return PreparedPython(prefix=Path(prefix), base_prefix=Path(sys.base_prefix), version="")
        return prepare_python(self.spec.python or PythonEnv(), timeout=timeout)

    def _make_root(self, workspace: Path | None) -> None:
        """The folder that stands for the root in tiers without mounts; the launcher removes it in the end."""
        self._root = os.path.realpath(tempfile.mkdtemp(prefix="swe-gym-"))
        for name in ("tmp", "root"):
            os.mkdir(f"{self._root}/{name}")
        if workspace:
            shutil.copytree(workspace, self.workdir, symlinks=True)
        os.makedirs(self.workdir, exist_ok=True)

    def _config(self, workspace: Path | None) -> dict[str, object]:
        assert self._python is not None
        running = os.path.realpath(sys.base_prefix)
        prefixes = {running, os.path.realpath(self._python.prefix), os.path.realpath(self._python.base_prefix)}
        prefixes |= {str(self._python.prefix), str(self._python.base_prefix)}
        return {
            "tier": self._tier,
            "root": self._root,
            "workdir": self.workdir,
            "workspace": str(workspace or ""),
            "read_only": sorted(path for path in prefixes if path != "/usr"),
            "disk_mb": self.spec.disk_mb,
            "pids": self.spec.pids,
            "network": self.spec.network != "none",
        }

    def _launch(self, config: Mapping[str, object], deadline: float) -> ByteStream:
        local = os.path.dirname(__file__)
        base = getattr(sys, "_base_executable", None) or sys.executable  # the venv's start-up would cost, and hide
        self._process = subprocess.Popen(
            [base, "-I", "-S", "-c", START, local, os.path.dirname(local)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,  # Ctrl-C in our terminal is not for the sandbox
            bufsize=0,
        )
        stream = PipeStream(_take(self._process.stdout), _take(self._process.stdin))
        try:
            stream.write(json.dumps(config).encode() + b"\n", deadline - time.monotonic())
            self._await_start(deadline)
        except BaseException:
            stream.close()
            raise
        return stream

    def _await_start(self, deadline: float) -> None:
        """Read standard error to its end: the launcher closes it when it is ready, or ends and says why."""
        assert self._process is not None
        stderr = PipeStream(_take(self._process.stderr), os.open(os.devnull, os.O_WRONLY))
        said = b""
        try:
            while data := stderr.read(deadline - time.monotonic()):
                said += data
        except TimeoutError as error:
            text = "the local sandbox did not start in time"
            raise SandboxStartError(text, reason="timeout", retryable=True) from error
        finally:
            stderr.close()
        if said:
            detail = said.decode("utf-8", "replace").strip()
            raise SandboxStartError(
                f"the local sandbox (tier {self._tier!r}) did not start", reason="setup", detail=detail
            )

    def _disconnect(self) -> None:
        process = self._process
        if process:
            for order, patience in ((None, 1.0), (process.terminate, 5.0), (process.kill, 3.0)):
                if order:
                    order()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
                    break
        if self._root:
            shutil.rmtree(self._root, ignore_errors=True)

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
        path = f"{self._python.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        env = {"PATH": path, "HOME": f"{self._root}/root", "VIRTUAL_ENV": str(self._python.prefix)}
        return env | {"TMPDIR": f"{self._root}/tmp"} if self._root else env


def _take(pipe: IO[bytes] | None) -> int:
    """The descriptor of a pipe, for keeps."""
    assert pipe is not None
    with pipe:
        return os.dup(pipe.fileno())


@functools.cache
def problem(tier: str) -> str:
    """Why a tier does not work on this machine; empty where it does. Found out by starting a sandbox, once."""
    spec = SandboxSpec(options={"tier": tier}, start_timeout=60.0)
    try:
        with LocalSandbox(spec) as sandbox:
            result = sandbox.exec("true", timeout=10.0)
            return "" if result.ok else result.describe()
    except SandboxError as error:
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
