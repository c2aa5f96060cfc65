"""A sandbox as one of its users sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from ..errors import FileError, SandboxError, Unsupported, UsageError
from ..guests import bundle
from ..guests.as_user import PREFIX as PREFIX_BYTES
from ..guests.protocol import (
    END_PROCESSES,
    EXEC,
    FORWARD_CLOSE,
    FORWARD_DATA,
    FORWARD_END,
    FORWARD_OPEN,
    FORWARD_TAKEN,
    FORWARD_WAIT,
    GET_TAR,
    MANIFEST,
    PTY_CLOSE,
    PTY_OPEN,
    PTY_READ,
    PTY_SIGNAL,
    PTY_WRITE,
    PUT_TAR,
    READ_FILE,
    WRITE_FILE,
)
from ..types import Capabilities, ExecResult
from .base import DEFAULT_MAX_OUTPUT, LARGEST_MAX_OUTPUT, Sandbox, make_result
from .channel import parsing
from .container import PYTHONS
from .runner_sandbox import FILE_ERRORS
from .types import Forward, Handler, Identity

if TYPE_CHECKING:
    from ..guests.protocol import ExecRequest, Operation, Reply, Request

P = ParamSpec("P")
T = TypeVar("T")

LOOK_SECONDS = 60.0

COMMANDS = (EXEC.name, PTY_OPEN.name)
FILES = (READ_FILE.name, WRITE_FILE.name, GET_TAR.name, PUT_TAR.name, MANIFEST.name)
WITHOUT_RIGHTS = tuple(
    operation.name
    for operation in (
        *(END_PROCESSES, PTY_READ, PTY_WRITE, PTY_SIGNAL, PTY_CLOSE),
        *(FORWARD_OPEN, FORWARD_WAIT, FORWARD_CLOSE, FORWARD_DATA, FORWARD_TAKEN, FORWARD_END),
    )
)
"""Operations that touch no file and start nothing. Any other would have root's rights, and is refused."""

HEADER = 64 << 20
"""Bytes of a reply beside its payload: the entries of a manifest."""


PREFIX = PREFIX_BYTES.decode()
SYSTEM_ENV: Mapping[str, str] = {"PATH": Sandbox.system_path, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
"""The environment of root's programs: nothing in it comes from the task."""

LOOK = f"""\
id -u; id -un 2>/dev/null || echo
for python in {PYTHONS}; do
  path=$(command -v "$python" 2>/dev/null) && said=$("$path" -I -S -c "$0" 2>/dev/null) && echo "$said" && exit
done
true
"""


def as_user(sandbox: Sandbox, user: str | None) -> Sandbox:
    """Return a sandbox as a user of the image sees it; None is the image's own."""
    whole = sandbox.privileged
    return whole if user is None or user in find_identity(whole).names else UserSandbox(whole, user)


def find_identity(sandbox: Sandbox) -> Identity:
    """Return who runs the commands of a sandbox, and its Python. Call it before a policy works there.

    A later search could find what the policy put there, and run it with root's rights.
    """
    if sandbox._identity is None:
        env = {**SYSTEM_ENV, "PATH": f"{Sandbox.system_path}:{sandbox.environment().get('PATH', '')}"}
        look = ["/bin/sh", "-c", LOOK, bundle("as_user")]
        result = sandbox._call(run_plainly, sandbox, look, env, timeout=LOOK_SECONDS)
        if not result.ok:
            raise SandboxError(f"the sandbox did not tell its user: {result.describe()}", retryable=result.timed_out)
        number, name, python = [*result.text.splitlines(), "", "", ""][:3]
        sandbox._identity = Identity((number, name), python)
    return sandbox._identity


def run_plainly(
    sandbox: Sandbox,
    argv: list[str],
    env: Mapping[str, str],
    payload: bytes = b"",
    *,
    timeout: float,
    max_output: int = DEFAULT_MAX_OUTPUT,
) -> ExecResult:
    """Run a command with this environment and no other variables, within one call of the sandbox."""
    request: ExecRequest = {
        "argv": argv,
        "cwd": "/",
        "env": dict(env),
        "timeout": timeout,
        "grace": 1.0,
        "max_output": max_output,
        "merge": False,
    }
    return make_result(*sandbox._request(EXEC, request, payload, timeout=timeout + 1.0))


def hand_over(sandbox: Sandbox, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that hand a command's environment to `guests/as_user.py`, which sets HOME if it is not ours."""
    default = sandbox._base_env().get("HOME")
    return {PREFIX + name: value for name, value in env.items() if (name, value) != ("HOME", default)}


class UserSandbox(Sandbox):
    """A sandbox whose commands, terminals and files have the rights of one of its users.

    `privileged` is the sandbox itself. Both are closed together. Make the first one before a policy works there: see
    `find_identity`.

    Args:
        sandbox: An open sandbox whose commands run as root.
        user: Name or number of the user.
    """

    def __init__(self, sandbox: Sandbox, user: str) -> None:
        super().__init__(sandbox.spec)
        self.id = sandbox.id
        self.name = sandbox.name
        self._shell = sandbox._shell
        self._whole = sandbox
        self._user = user
        self._python = find_identity(sandbox).python

    @property
    def privileged(self) -> Sandbox:
        """See `Sandbox.privileged`."""
        return self._whole

    def start(self) -> Self:
        """Return this: it is open."""
        self._check_open()
        return self

    def close(self) -> None:
        """Close the whole sandbox."""
        self._whole.close()

    @property
    def closed(self) -> bool:
        """See `Sandbox.closed`."""
        return self._whole.closed

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        return self._whole.capabilities

    @property
    def workdir(self) -> str:
        """See `Sandbox.workdir`."""
        return self._whole.workdir

    @property
    def image_digest(self) -> str:
        """See `Sandbox.image_digest`."""
        return self._whole.image_digest

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """See `Sandbox.environment`."""
        return self._whole.environment(extra)

    def _check_open(self) -> None:
        self._whole._check_open()

    def _start(self, deadline: float) -> None:
        """Do nothing: it is open."""

    def _close(self) -> None:
        """Do nothing: see `close`."""

    def _request(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        fields = cast("dict[str, Any]", request)
        if operation.name in FILES:
            return self._serve(operation, fields, payload, timeout)
        if operation.name in COMMANDS:
            request = cast("Request", {**fields, **self._wrap(fields["argv"], hand_over(self._whole, fields["env"]))})
        elif operation.name not in WITHOUT_RIGHTS:
            raise UsageError(f"{operation.name!r} cannot be carried out with the rights of user {self._user!r}")
        return self._whole._request(operation, request, payload, timeout=timeout)

    def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do one call of the whole sandbox, which closes it if it is lost."""
        return self._whole._call(work, *args, **kwargs)

    def _wrap(self, argv: list[str], env: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields of a request that runs a command as the user, with an environment that `hand_over` made."""
        wrapped = [*self._program("as_user"), self._user, *argv]
        return {"argv": wrapped, "env": {**env, **SYSTEM_ENV}}

    def _program(self, guest: str) -> list[str]:
        """Return the arguments that run a guest, whatever the user put on the PATH."""
        if not self._python:
            raise Unsupported(
                f"nothing can run as user {self._user!r}: the image has no Python that all users can run and only root "
                f"can change (looked for: {PYTHONS}). Install one, for example /usr/bin/python3"
            )
        return [self._python, "-I", "-S", "-c", bundle(guest)]

    def _serve(
        self, operation: Operation[Request, Reply], fields: dict[str, Any], payload: bytes, timeout: float
    ) -> tuple[Reply, bytes]:
        """Carry out an operation on files in a process of the user."""
        program = [*self._program("file_request"), operation.name, json.dumps(fields)]
        most = min(LARGEST_MAX_OUTPUT, fields.get("max_bytes", 0) + HEADER)
        wrapped = self._wrap(program, {PREFIX + name: value for name, value in SYSTEM_ENV.items()})
        result = run_plainly(self._whole, **wrapped, payload=payload, timeout=timeout, max_output=most)
        if not result.ok:
            raise FileError(f"{fields['path']}: {result.error_text.strip()[-500:] or result.describe()}")
        if result.stdout_dropped:
            size = len(result.stdout) + result.stdout_dropped
            raise FileError(
                f"{fields['path']}: the answer to {operation.name!r} has {size} bytes, and {most} can be returned as "
                f"user {self._user!r}: ask for less"
            )
        with parsing():
            head, _, data = result.stdout.partition(b"\n")
            reply = json.loads(head)
            if "error" in reply:
                name, message = reply["error"]
                raise FILE_ERRORS.get(name, FileError)(f"{fields['path']}: {message}")
        return cast("Reply", reply), data

    def _forward(self, port: int, handler: Handler, max_connections: int) -> Forward:
        return self._whole._forward(port, handler, max_connections)
