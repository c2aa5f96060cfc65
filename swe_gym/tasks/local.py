"""A user's own folder and test command as a task."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..errors import UsageError, unknown_name, wrong_fields
from ..types import ExitCode, FolderWorkspace, Oracle, PythonEnv, Task


class LocalSource:
    """One task: a folder of this machine, solved when a command of the user's exits with status 0.

    The policy works on a copy; the folder itself is never written to. The command is no secret: the policy
    may run it with the `eval` tool. What it may not do is change the files that `test_paths` name.

    Args:
        path: The folder. It is read anew at each episode.
        test_cmd: A shell command that runs in the folder.
        problem_statement: What to do; by default, to make the command succeed.
        test_paths: Glob patterns (fnmatch, relative to the folder, "tests/*") of files that judge the work:
            what a policy did to them is set back before the command runs.
        python: Version of Python, as in "3.12"; empty is the one that runs swe_gym.
        requirements: What pip installs beside it, once, as in `("pytest==8.3.5", "attrs")`.
        env: Environment variables of every command; `{workdir}` in a value is the folder as the sandbox sees it.
        timeout: Seconds that the command may take.

    Raises:
        UsageError: There is no such folder, the command is empty, or an argument is of a wrong kind.
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
                raise UsageError(f"{name} must be a list, as in {[value]}, not the text {value!r}")
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}")
        if not isinstance(test_cmd, str) or not test_cmd.strip():
            raise UsageError(f"test_cmd must be the command that succeeds when the work is done, not {test_cmd!r}")
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

    def ids(self) -> Sequence[str]:
        """The one id, made from the folder's name."""
        return (self._task.task_id,)

    def get(self, task_id: str) -> Task:
        """The task.

        Raises:
            UsageError: It has another id.
        """
        if task_id != self._task.task_id:
            raise unknown_name("task", task_id, self.ids())
        return self._task
