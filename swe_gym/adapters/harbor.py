"""The adapter for Harbor: an environment whose sandboxes are those of swe_gym, on any backend.

    harbor run -p TASKS -a oracle --env swe_gym.adapters.harbor:SweGymEnvironment --ek backend=local

Harbor makes one for each trial, and one more for a verifier with an environment of its own.
"""

import inspect
import io
import itertools
import uuid
from pathlib import Path
from typing import Any, Literal

from ..errors import MissingDependency, SweGymError, Unsupported, unknown_name
from ..sandboxes import Sandbox, SandboxSpec, as_user, find_identity, load_backend, make_spec, write_tar
from ..task_folder import Dockerfile, TaskFolder
from ..types import ExecResult, JsonObject
from .aio import in_thread

try:
    from harbor.environments.base import BaseEnvironment
    from harbor.environments.base import ExecResult as HarborResult
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import should_use_prebuilt_docker_image
    from harbor.environments.tar_transfer import extract_dir
except ImportError as error:
    raise MissingDependency(f"this adapter needs Harbor: pip install 'swe-gym[harbor]' ({error})") from error

LONGEST = 24 * 3600.0
"""Seconds that a command may run if Harbor sets no limit, and that a sandbox lives at most."""

MAX_OUTPUT = 64 << 20
"""Bytes that are kept of each stream of a command."""

MAX_TRANSFER = 1 << 30
"""Bytes of a file or folder that is copied from or to a sandbox."""

TRANSFER_SECONDS = 600.0
SHORT = 30.0

KILL_TRIES = 50
"""Attempts to end a cancelled command. If none does, the sandbox is closed."""

ROOT = ("root", "0")

ARGUMENTS = ("backend", "sandbox_options", "image", "workdir")
"""Arguments of the environment beside Harbor's."""

WHO = "id -u; command -v bash >/dev/null && echo bash || echo sh"

KEEP = '"$@"; exit $?'
"""Runs a command and stays, so that a cancelled one is found by the name of this shell."""

KILL = """\
# The pattern in $0 does not match itself.
for process in /proc/[0-9]*; do
  if grep -qa "$0" "$process/cmdline" 2>/dev/null; then kill -9 "-${process#/proc/}" 2>/dev/null; fi
done
true
"""


class SweGymEnvironment(BaseEnvironment):
    """A Harbor environment in a sandbox of swe_gym. Pass the arguments as `--ek NAME=VALUE`.

    `start` refuses what a backend cannot do, before anything starts: the trial fails, and others go on.

    Args:
        backend: Backend, as in `gym.make`: "local", "docker", "kubernetes", a dotted path or an entry point.
        sandbox_options: Fields of `SandboxSpec` that replace those of the task, as in `gym.make`.
        image: Image, instead of `environment.docker_image` and of the Dockerfile.
        workdir: Folder of tasks that set none and whose Dockerfile does not tell.
        **arguments: Harbor's own arguments.

    Raises:
        UsageError: An argument is unknown or invalid.
    """

    def __init__(
        self,
        *args: Any,
        backend: str = "local",
        sandbox_options: JsonObject | None = None,
        image: str | None = None,
        workdir: str | None = None,
        **arguments: Any,
    ) -> None:
        known = [*inspect.signature(BaseEnvironment.__init__).parameters, *ARGUMENTS]
        for name in arguments:
            if name not in known:
                raise unknown_name("environment argument", name, ARGUMENTS)
        self._backend = backend
        self._options = sandbox_options or {}
        self._image = image
        self._workdir = workdir
        self._sandbox: Sandbox | None = None
        self._own_user, self._shell = "root", "bash"
        self._users: set[str] = set()
        load_backend(backend)
        make_spec(SandboxSpec(), self._options)
        super().__init__(*args, **arguments)
        self._refusal = self._find_refusal()

    # --- what it is --------------------------------------------------------------------------------------

    @staticmethod
    def type() -> str:
        """See `BaseEnvironment.type`."""
        return "swe-gym"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Tasks without network, or with one for some host names. GPUs, Windows and Docker Compose are refused."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """CPUs and memory are limits. A backend that cannot limit CPUs refuses a task that sets them."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        """Do nothing: an error in Harbor's constructor would end all trials of the job. `start` refuses."""

    _validate_gpu_support = _validate_tpu_support = _validate_definition
    _validate_network_policy_support = _validate_windows_support = _validate_definition

    def _find_refusal(self) -> Exception | None:
        """Return why the task cannot be played; None if it can."""
        try:
            super()._validate_gpu_support()
            super()._validate_tpu_support()
            super()._validate_network_policy_support()
            super()._validate_windows_support()
            self._check_folder()
            self._new_sandbox(self._describe(force_build=False))
        except (SweGymError, ValueError, RuntimeError) as error:
            return error
        return None

    def _check_folder(self) -> None:
        folder = TaskFolder(self.environment_dir.parent)
        name = f"{self.environment_dir.name}/docker-compose.yaml"
        if folder.has(name):
            raise Unsupported(
                f"{folder.path}: {name}: services of Docker Compose ({folder.services(name) or 'none'}) are not "
                "supported. Use Harbor's environment docker"
            )
        if folder.has(self.environment_dir.name):
            folder.digest(self.environment_dir.name)  # refuses links out of the folder

    def _describe(self, *, force_build: bool, user: str | None = None) -> SandboxSpec:
        config = self.task_env_config
        directory = self.environment_dir
        dockerfile = Dockerfile(TaskFolder(directory.parent), directory.name)
        image, build = self._image, None
        if image is None:
            given = (
                config.docker_image
                if should_use_prebuilt_docker_image(
                    directory, docker_image=config.docker_image, force_build=force_build
                )
                else None
            )
            image, build = dockerfile.choose_image(given, directory.parent.name, config.build_timeout_sec)
        limits = {
            "cpus": self._effective_cpus,
            "memory_mb": self._effective_memory_mb,
            "disk_mb": self._effective_storage_mb,
            "user": user,
        }
        spec = SandboxSpec(
            image=image,
            build=build,
            workdir=dockerfile.choose_workdir(config.workdir or self._workdir),
            activate=False,
            ttl=LONGEST,
            start_timeout=config.build_timeout_sec,
            mounts=dict(map(_mount, self._host_mounts)),
            **{name: value for name, value in limits.items() if value is not None},
        )
        return make_spec(spec, {"network": self._network(), **self._options})

    def _network(self) -> Literal["none", "egress"] | tuple[str, ...]:
        hosts = tuple(self.network_policy.allowed_hosts) if self._network_is_allowlist else ()
        return hosts or ("egress" if self._network_is_public else "none")

    def _new_sandbox(self, spec: SandboxSpec) -> Sandbox:
        try:
            return load_backend(self._backend).for_spec(spec)
        except Unsupported as error:
            raise Unsupported(
                f"task {self.environment_name}: {error}. (Harbor's `--cpus ignore` leaves out `cpus`, and "
                "`--ek backend=NAME` chooses another backend)"
            ) from error

    # --- life ---------------------------------------------------------------------------------------------

    async def start(self, force_build: bool) -> None:
        """Start the sandbox. An image of the Dockerfile is built if the backend has none of its content yet.

        Raises:
            TaskError: The task's folder is broken, leads out of itself, or has a step that cannot be honoured.
            Unsupported: The backend cannot provide what the task needs.
            SandboxError: The sandbox did not start.
        """
        if self._refusal is not None:
            raise self._refusal
        await self._open(self._describe(force_build=force_build))
        who = await self._run(["/bin/sh", "-c", WHO])
        self._own_user, self._shell = who.text.split()
        if self._own_user not in ROOT:  # Harbor runs commands as root too
            await self._close()
            await self._open(self._describe(force_build=force_build, user="root"))
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Close the sandbox. It cannot be kept: `--no-delete` is answered with a warning."""
        if not delete:
            self.logger.warning("swe_gym keeps no sandbox after its trial: --no-delete is ignored")
        await self._close()

    async def _open(self, spec: SandboxSpec) -> None:
        sandbox = self._new_sandbox(spec)
        await in_thread(sandbox.start, sandbox.close)
        await in_thread(lambda: find_identity(sandbox), sandbox.close)  # before an agent works there
        self._sandbox = sandbox

    async def _close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await in_thread(sandbox.close, lambda: None)

    # --- work ---------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> HarborResult:
        """Run a command with bash. See `BaseEnvironment.exec`.

        Raises:
            RuntimeError: It timed out, as in Harbor's environment docker. Its whole process tree was killed.
            Unsupported: The sandbox cannot run commands as this user.
        """
        whole = self._merge_env(env) or {}
        for name, value in whole.items():
            if "{workdir}" in value:
                raise Unsupported(f"variable {name}: {{workdir}} has another meaning in swe_gym: write the folder")
        sandbox = await self._sandbox_of(self._resolve_user(user))
        line = [self._shell, "-c", command]
        result = await self._run(line, sandbox, cwd=cwd, env=whole, timeout=timeout_sec or LONGEST)
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        code = -(result.signal or 0) if result.exit_code is None else result.exit_code
        return HarborResult(stdout=result.text, stderr=result.error_text, return_code=code)

    async def _sandbox_of(self, user: str | int | None) -> Sandbox:
        """Return the sandbox as a user sees it; None is the image's."""
        name = self._own_user if user is None else str(user)
        sandbox = as_user(self._opened, name)
        if name not in (*ROOT, *self._users):
            tried = await self._run(["true"], sandbox)
            if not tried.ok:
                said = tried.error_text.strip()[-500:] or tried.describe()
                raise Unsupported(f"the sandbox cannot run commands as user {name!r}: {said}")
            self._users.add(name)
        return sandbox

    async def _run(
        self,
        argv: list[str],
        sandbox: Sandbox | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = SHORT,
    ) -> ExecResult:
        """Run a command that is killed if this task is cancelled."""
        root, mark = self._opened, f"swe-gym-{uuid.uuid4().hex}"
        of_command = sandbox or root
        tries = itertools.count(1)

        def kill() -> None:
            if next(tries) > KILL_TRIES:
                root.close()
            root.exec(["/bin/sh", "-c", KILL, f"[s]{mark[1:]}"], timeout=SHORT)

        def run() -> ExecResult:
            return of_command.exec(
                ["/bin/sh", "-c", KEEP, mark, *argv], cwd=cwd, env=env, timeout=timeout, max_output=MAX_OUTPUT
            )

        return await in_thread(run, kill)

    # --- files --------------------------------------------------------------------------------------------

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox, with its mode. It belongs to root."""
        source, sandbox = Path(source_path), self._opened

        def copy() -> None:
            sandbox.write_file(
                str(target_path), source.read_bytes(), mode=source.stat().st_mode & 0o777, timeout=TRANSFER_SECONDS
            )

        await in_thread(copy, lambda: None)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder into the sandbox, with modes and links. Everything belongs to root."""
        sandbox = self._opened
        await in_thread(
            lambda: sandbox.put_tar(str(target_dir), _pack(Path(source_dir)), timeout=TRANSFER_SECONDS), lambda: None
        )

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the sandbox."""
        sandbox, target = self._opened, Path(target_path)

        def copy() -> None:
            data = sandbox.read_file(str(source_path), max_bytes=MAX_TRANSFER, timeout=TRANSFER_SECONDS)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        await in_thread(copy, lambda: None)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder out of the sandbox, without links that lead out of it and without devices."""
        sandbox = self._opened

        def copy() -> None:
            data = sandbox.get_tar(str(source_dir), max_bytes=MAX_TRANSFER, timeout=TRANSFER_SECONDS)
            for why in extract_dir(io.BytesIO(data), target_dir):
                self.logger.warning(f"not copied from {source_dir}: {why}")

        await in_thread(copy, lambda: None)

    @property
    def _opened(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment is not started")
        return self._sandbox


def _mount(mount: dict[str, Any]) -> tuple[str, str]:
    """Return the place and the folder of a mount.

    Raises:
        Unsupported: It is not a read-only folder of this machine.
    """
    source = Path(mount["source"])
    if mount["type"] != "bind" or not mount.get("read_only") or not source.is_dir():
        raise Unsupported(
            f"mount {mount['source']} -> {mount['target']}: only read-only folders of this machine can be mounted. "
            "Copy files into the image, or use Harbor's environment docker"
        )
    return mount["target"], str(source.absolute())


def _pack(folder: Path) -> bytes:
    """Return a folder as a tar archive whose files belong to root."""
    buffer = io.BytesIO()
    write_tar(folder, buffer)
    return buffer.getvalue()
