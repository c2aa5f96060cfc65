"""Harbor task folders: `task.toml`, `instruction.md`, an image, tests that write a reward and a solution.

What a policy did inside of the workdir is judged, in a fresh sandbox, and nothing else: a task that asks for changes to
the rest of the machine cannot be solved here. The reward file is read where the tests ran, which a policy never was in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from ..errors import TaskError, UsageError, unknown_name
from ..types import ExitCode, Oracle, Task
from .dataset import Columns, Text, Texts, facts, read_columns, task_name

TIMEOUT = 600.0

JUDGE = """\
rm -rf /logs/verifier && mkdir -p /logs/verifier && cd {workdir} && bash /tests/test.sh
cd /logs/verifier || exit 1
if [ -f reward.txt ]; then grep -Eqx '[[:space:]]*1(\\.0*)?[[:space:]]*' reward.txt
else tr '\\n' ' ' < reward.json | grep -Eq '"reward"[[:space:]]*:[[:space:]]*1(\\.0*)?[[:space:]]*[,}]'; fi
"""
"""Runs the tests; status 0 where the reward that they write is 1."""


class Package(Columns):
    """What a task is as a package of Harbor's registry."""

    keywords: Texts = ()


class Environment(Columns):
    """Where a task is worked at."""

    docker_image: Text = ""
    env: dict[str, str] = {}


class Verifier(Columns):
    """How it is judged."""

    timeout_sec: float = Field(default=TIMEOUT, gt=0, allow_inf_nan=False)


class Config(Columns):
    """What is read of a `task.toml`. Its metadata may be anything."""

    task: Package = Package()
    metadata: dict[str, Any] = {}
    environment: Environment = Environment()
    verifier: Verifier = Verifier()


class HarborSource:
    """The tasks of a folder of Harbor task folders, or of one.

    Args:
        path: The folder.
        image: The image of tasks that name none and whose Dockerfile does more than that; "{task_id}" in it is the
            task's id.

    Raises:
        UsageError: There is no such folder, or no task in it.
        TaskError: Two tasks have one id.
    """

    def __init__(self, path: str, *, image: str | None = None) -> None:
        root = Path(path).expanduser().absolute()
        self._image = image
        self._folders: dict[str, Path] = {}
        for file in sorted(root.rglob("task.toml")) if root.is_dir() else []:
            task_id = task_name(file.parent.name)
            if task_id in self._folders:
                raise TaskError(f"{file.parent}: {task_id!r} is the id of {self._folders[task_id]} already")
            self._folders[task_id] = file.parent
        if not self._folders:
            raise UsageError(f"{root} holds no folder with a task.toml")
        self._ids = tuple(self._folders)

    def ids(self) -> Sequence[str]:
        """The ids of all tasks: the names of their folders."""
        return self._ids

    def get(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            UsageError: There is none; the message suggests the nearest.
            TaskError: Its folder is broken; the message names the file.
        """
        if task_id not in self._folders:
            raise unknown_name("task", task_id, self._ids)
        folder = self._folders[task_id]
        config = _config(folder / "task.toml")
        metadata = config.metadata
        docker = folder / "environment" / "Dockerfile"
        dockerfile = _text(docker) if docker.is_file() else ""
        tags = metadata.get("tags")
        return Task(
            task_id=task_id,
            problem_statement=_text(folder / "instruction.md").strip(),
            image=self._image_of(config, dockerfile, task_id, folder),
            workdir=(re.findall(r"^WORKDIR\s+(/\S+)", dockerfile, re.MULTILINE) or ["/app"])[-1],
            env={name: value for name, value in config.environment.env.items() if "${" not in value},
            difficulty=str(metadata.get("difficulty", "")),
            tags=tuple(map(str, tags)) if isinstance(tags, list) else config.task.keywords,
            metadata=facts(category=str(metadata.get("category", ""))),
            oracle=Oracle(
                gold_patch=_gold(folder / "solution" / "solve.sh"),
                test_files={f"/tests/{name}": text for name, text in _tests(folder / "tests").items()},
                evaluation=ExitCode(test_cmd=JUDGE),
                timeout=config.verifier.timeout_sec,
                hidden_paths=("/tests", "/solution", "/logs/verifier"),
            ),
        )

    def _image_of(self, config: Config, dockerfile: str, task_id: str, folder: Path) -> str:
        if config.environment.docker_image:
            return config.environment.docker_image
        if self._image is not None:
            return self._image.replace("{task_id}", task_id)
        lines = (line.strip() for line in dockerfile.splitlines())
        steps = [line.split() for line in lines if line and not line.startswith("#")]
        base = [word for word in steps[0] if not word.startswith("--")] if steps else []  # without --platform
        if len(base) > 1 and [step[0] for step in steps] == ["FROM", *["WORKDIR"] * (len(steps) - 1)]:
            return base[1]
        raise TaskError(f"{folder}: it names no image: build environment/Dockerfile, and give its name as image=")


def _config(file: Path) -> Config:
    try:
        data = tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{file}: {error}") from error
    return read_columns(Config, data, str(file))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(f"{file}: there is no such file") from None
    except UnicodeDecodeError:
        raise TaskError(f"{file}: it is not text") from None


def _tests(folder: Path) -> dict[str, str]:
    if not (folder / "test.sh").is_file():
        raise TaskError(f"{folder}: it has no test.sh")
    return {str(file.relative_to(folder)): _text(file) for file in sorted(folder.rglob("*")) if file.is_file()}


def _gold(script: Path) -> str:
    """The patch that a solution's script applies, as those of software tasks do; empty where it does something else."""
    text = _text(script) if script.is_file() else ""
    match = re.search(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(diff --git .*?)^\2$", text, re.DOTALL | re.MULTILINE)
    return match[3] if match else ""
