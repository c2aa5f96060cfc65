"""A sandbox as one of its users sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from ..errors import FileError, UsageError
from ..guests import bundle
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
from ..types import Capabilities
from .base import LARGEST_MAX_OUTPUT, Sandbox, make_result
from .channel import parsing
from .container import start_command
from .runner_sandbox import FILE_ERRORS
from .types import Forward, Handler

if TYPE_CHECKING:
    from ..guests.protocol import ExecRequest, Operation, Reply, Request

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


def as_user(user: str, argv: list[str]) -> list[str]:
    """Return the arguments that run a command as a user of the image, in a sandbox whose commands run as root."""
    return start_command(bundle("as_user"), arguments=[user, *argv])


class UserSandbox(Sandbox):
    """A sandbox whose commands, terminals and files have the rights of one of its users.

    `privileged` is the sandbox itself. Both are closed together.

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
            request = cast("Request", {**fields, "argv": as_user(self._user, fields["argv"])})
        elif operation.name not in WITHOUT_RIGHTS:
            raise UsageError(f"{operation.name!r} cannot be carried out with the rights of user {self._user!r}")
        return self._whole._ask(operation, request, payload, timeout=timeout)

    def _serve(
        self, operation: Operation[Request, Reply], fields: dict[str, Any], payload: bytes, timeout: float
    ) -> tuple[Reply, bytes]:
        """Carry out an operation on files in a process of the user."""
        program = start_command(bundle("file_request"), arguments=[operation.name, json.dumps(fields)])
        request: ExecRequest = {
            "argv": as_user(self._user, program),
            "cwd": "/",
            "env": self.environment(),
            "timeout": timeout,
            "grace": 1.0,
            "max_output": min(LARGEST_MAX_OUTPUT, fields.get("max_bytes", 0) + HEADER),
            "merge": False,
        }
        result = make_result(*self._whole._ask(EXEC, request, payload, timeout=timeout + 1.0))
        if not result.ok:
            raise FileError(f"{fields['path']}: {result.error_text.strip()[-500:] or result.describe()}")
        with parsing():
            head, _, data = result.stdout.partition(b"\n")
            reply = json.loads(head)
            if "error" in reply:
                name, message = reply["error"]
                raise FILE_ERRORS.get(name, FileError)(f"{fields['path']}: {message}")
        return cast("Reply", reply), data

    def _forward(self, port: int, handler: Handler, max_connections: int) -> Forward:
        return self._whole._forward(port, handler, max_connections)
