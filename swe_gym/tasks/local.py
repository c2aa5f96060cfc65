"""A local folder and a test command as a task."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..errors import SandboxClosed, UsageError, unknown_name, wrong_fields
from ..types import ExitCode, FolderWorkspace, Oracle, PythonEnv, Task


class LocalSource:
    """A source of one task: a folder, and a command that exits with status 0 once the work is done.

    The policy works on a copy; the folder itself is never written to. The command is not secret: the policy may run
    it with the `eval` tool. Changes to files that match `test_paths` do not count.

    Args:
        path: The folder. Each episode copies its current state.
        test_cmd: Shell command that judges the work; it runs in the folder.
        problem_statement: The task for the policy; by default, to make the command succeed.
        test_paths: Glob patterns (fnmatch, relative to the folder, such as "tests/*") of files that are restored
            before the command runs.
        python: Python version, such as "3.12"; empty is the Python that runs swe_gym.
        requirements: pip requirements, installed once, such as `("pytest==8.3.5", "attrs")`.
        env: Environment variables of all commands. `{workdir}` in a value stands for the folder in the sandbox.
        timeout: Time limit of the command in seconds.

    Raises:
        UsageError: The folder does not exist, the command is empty, or an argument has the wrong type.
    """

    def __init__(
        self,
        path: str,
        test_cmd: str,
        problem_statement: str = "",
        *,
        test_paths: Sequence[str] = (),
        python: str = "",
        requirements: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> None:
        for name, value in (("test_paths", test_paths), ("requirements", requirements)):
            if isinstance(value, str):  # each letter of it would be a pattern, "*" among them
                raise UsageError(f"{name} must be a list, such as {[value]}, not the text {value!r}")
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            raise UsageError(f"folder not found: {folder}")
        if not isinstance(test_cmd, str) or not test_cmd.strip():
            raise UsageError(f"test_cmd must be a command that succeeds once the work is done, not {test_cmd!r}")
        statement = problem_statement or f"Change the code so that this command succeeds:\n\n    {test_cmd}\n"
        try:
            self._task = Task(
                task_id=re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("._-") or "local",
                problem_statement=statement,
                workspace=FolderWorkspace(path=str(folder)),
                python=PythonEnv(version=python, requirements=tuple(requirements), no_deps=False),
                env=dict(env or {}),
                eval_cmd=test_cmd,
                eval_timeout=timeout,
                oracle=Oracle(test_paths=tuple(test_paths), evaluation=ExitCode(test_cmd=test_cmd), timeout=timeout),
            )
        except ValidationError as error:
            raise UsageError(f"task source 'local': {wrong_fields(error)}") from error
        self._passes: bool | None = None
        self._once = threading.Lock()

    def already_passes(self, try_unchanged: Callable[[], bool], closed: Callable[[], bool]) -> bool:
        """Return whether the command succeeds on the unchanged folder. The first caller finds out, for all.

        Args:
            try_unchanged: Judges the unchanged folder.
            closed: Whether the caller was closed while it waited for the first one.

        Raises:
            SandboxClosed: It was.
        """
        while not self._once.acquire(timeout=0.1):
            if closed():
                raise SandboxClosed("closed while the command was tried on the unchanged folder")
        try:
            if self._passes is None:
                self._passes = try_unchanged()
            return self._passes
        finally:
            self._once.release()

    def ids(self) -> Sequence[str]:
        """Return the only id, which is derived from the folder's name."""
        return (self._task.task_id,)

    def get(self, task_id: str) -> Task:
        """Return the task.

        Raises:
            UsageError: The id is unknown.
        """
        if task_id != self._task.task_id:
            raise unknown_name("task", task_id, self.ids())
        return self._task
