"""Commands on this machine, outside any sandbox: git and pip, with a deadline."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import MissingDependency, TaskError

TAIL = 4000
"""Characters of a failed command's output that are shown."""


def run_command(
    argv: Sequence[str | Path],
    *,
    deadline: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    failure: str = "",
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with empty standard input. At the deadline, kill it and everything it started.

    Args:
        argv: The command, without a shell.
        deadline: Time (`time.monotonic`) at which the command is killed.
        cwd: Working directory.
        env: Whole environment; None inherits ours.
        failure: Message of the error if the command fails; empty returns the result.

    Raises:
        TaskError: The command failed, and `failure` is set. The message ends with the output.
        TimeoutError: The command was killed at the deadline.
        FileNotFoundError: The command does not exist.
    """
    with subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, error = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except BaseException as reason:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Do not read its pipes to their end: processes that left its group may hold them open.
            if isinstance(reason, subprocess.TimeoutExpired):
                raise TimeoutError(f"{Path(argv[0]).name} timed out and was killed") from reason
            raise
    result = subprocess.CompletedProcess(list(argv), process.returncode, out, error)
    if failure and result.returncode:
        raise TaskError(f"{failure}:\n{tail(result)}")
    return result


def tail(result: subprocess.CompletedProcess[bytes]) -> str:
    """Return the end of a command's output on both streams, for an error message."""
    text = (result.stdout + b"\n" + result.stderr).decode("utf-8", "replace").strip()
    return text if len(text) <= TAIL else "..." + text[-TAIL:]


def git_program() -> str:
    """Return the path of git.

    Raises:
        MissingDependency: git is not installed.
    """
    program = shutil.which("git")
    if program is None:
        raise MissingDependency("git is not on the PATH: install it, for example with 'apt-get install git'")
    return program


def git_environment() -> dict[str, str]:
    """Return our environment without what names another repository than the one asked, as hooks of git set it."""
    kept = ("GIT_CONFIG", "GIT_SSH", "GIT_ASKPASS", "GIT_SSL", "GIT_HTTP", "GIT_PROXY", "GIT_TERMINAL", "GIT_ALLOW")
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(kept)}


def find_repository(url: str) -> Path | None:
    """Return the path of a repository on this machine; None if it is elsewhere."""
    local = Path(url.removeprefix("file://")).expanduser().absolute()
    return local if local.exists() else None


def commit_of(repository: Path, ref: str, deadline: float) -> str:
    """Return the full hash of a reference in a local repository.

    Raises:
        TaskError: The repository does not exist, or does not have the reference.
        TimeoutError: The time (`time.monotonic`) was up.
    """
    if len(ref) == 40 and not ref.strip("0123456789abcdef"):
        return ref
    result = run_command(
        [git_program(), "-C", repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"],
        deadline=deadline,
        env=git_environment(),
    )
    if result.returncode:
        raise TaskError(f"{repository} has no commit {ref!r}, or is not a git repository. {tail(result)}".rstrip())
    return result.stdout.decode().strip()
