"""Runs the part of an evaluation script that precedes its tests, and carries its shell state over to them.

The two parts run as two commands. So the second prints the log alone, without marks that a test could print too, and
the reporter gets its key only after the first, in which code of the work may have run.
"""

import re
import secrets

from ..errors import GradingError
from ..sandboxes import Sandbox
from ..types import Task
from .reporter import make_folder, steady_env

MAX_LOG = 64 << 20
"""Bytes of a log that are read. A longer log loses its middle, and the tests named there."""

STATE = "declare -p; declare -f; printf 'cd %q\\n' \"$PWD\"; set +o"
MARK = "swe_gym_mark"
PREPARATION = f"""\
exec 3>&1 1>&2
IFS= read -r {MARK}
{{prepare}}
{{{{ printf '%s\\n' "${MARK}"; {{unset}}{STATE}; printf '%s\\n' "${MARK}"; }}}} >&3
"""
"""Prints its state alone to standard output, between two marks that only the shell knows. No other process can change
the state, because it is on no disk."""

OFFLINE = {"PIP_RETRIES": "0"}
"""Set during a preparation without network: pip gives up at once, not after eight seconds a package."""


def run_preparation(prepare: str, task: Task, sandbox: Sandbox) -> bytes:
    """Run commands, end the processes that they left, and return shell commands that restore their state.

    Raises:
        GradingError: The commands ended the shell.
        SandboxError: The sandbox failed.
    """
    if not prepare.strip():
        return b""
    hurry = OFFLINE if sandbox.capabilities.network == "none" else {}
    unset = f"unset {' '.join(hurry)}; " if hurry else ""  # the tests do not see them
    mark = secrets.token_hex(16)
    folder = make_folder(sandbox)
    path = f"{folder}/before.sh"
    sandbox.write_file(path, PREPARATION.format(prepare=prepare, unset=unset).encode())
    result = sandbox.exec(
        ["bash", path],
        stdin=f"{mark}\n".encode(),
        timeout=task.oracle.timeout,
        env={**steady_env(sandbox), **hurry},
        max_output=MAX_LOG,
    )
    sandbox.end_processes()
    sandbox.exec(["rm", "-rf", "--", folder])  # it may hold the hidden tests unchanged
    parts = result.stdout.split(f"{mark}\n".encode())
    if len(parts) != 3:
        raise GradingError(
            f"task {task.task_id}: its eval_script did not reach the tests ({result.describe()}): "
            f"{result.error_text[-2000:].strip()}"
        )
    return re.sub(rb"(?m)^declare -- %s=.*\n" % MARK.encode(), b"", parts[1])


def restore(state: bytes, sandbox: Sandbox) -> str:
    """Return the shell line that restores a state; empty for an empty state."""
    if not state:
        return ""
    path = f"{make_folder(sandbox)}/state"
    sandbox.write_file(path, state)
    return f". {path} 2>/dev/null\n"
