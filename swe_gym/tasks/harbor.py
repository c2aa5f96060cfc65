"""Harbor task folders: `task.toml`, `instruction.md`, an image, a solution, and tests that write a reward.

Only changes inside the workdir are judged, in a fresh sandbox: a task that asks for changes elsewhere cannot be solved
here. The reward file is read in the judging sandbox, which the policy never entered.
"""

import re
import tomllib
from pathlib import Path

from pydantic import Field

from ..errors import TaskError, UsageError
from ..types import ExitCode, JsonObject, Oracle, Task
from .base import ListedSource
from .dataset import Columns, Text, Texts, facts, read_columns, task_name

TIMEOUT = 600.0

JUDGE = """\
rm -rf /logs/verifier && mkdir -p /logs/verifier && cd {workdir} && bash /tests/test.sh
cd /logs/verifier || exit 1
if [ -f reward.txt ]; then grep -Eqx '[[:space:]]*1(\\.0*)?[[:space:]]*' reward.txt
else tr '\\n' ' ' < reward.json | grep -Eq '"reward"[[:space:]]*:[[:space:]]*1(\\.0*)?[[:space:]]*[,}]'; fi
"""
"""Runs the tests. Exits with status 0 if they write the reward 1."""


class Package(Columns):
    """The table `task`: the task as a package of Harbor's registry."""

    keywords: Texts = ()


class Environment(Columns):
    """The table `environment`."""

    docker_image: Text = ""
    env: dict[str, str] = {}


class Verifier(Columns):
    """The table `verifier`."""

    timeout_sec: float = Field(default=TIMEOUT, gt=0, allow_inf_nan=False)


class Config(Columns):
    """The fields of `task.toml` that are read. Its metadata is free-form."""

    task: Package = Package()
    metadata: JsonObject = {}
    environment: Environment = Environment()
    verifier: Verifier = Verifier()


class HarborSource(ListedSource[Path]):
    """The tasks of one Harbor task folder, or of a folder of them.

    Args:
        path: The folder.
        image: Image of the tasks that name none and whose Dockerfile has build steps. "{task_id}" stands for the id.

    Raises:
        UsageError: The folder does not exist, or holds no task.
        TaskError: Two tasks have the same id.
    """

    def __init__(self, path: str, *, image: str | None = None) -> None:
        super().__init__()
        root = Path(path).expanduser().absolute()
        self._image = image
        for file in sorted(root.rglob("task.toml")) if root.is_dir() else []:
            self.add(task_name(file.parent.name), file.parent)
        if not self._items:
            raise UsageError(f"{root} holds no folder with a task.toml")

    def build(self, task_id: str, item: Path) -> Task:
        """Read the task in a folder."""
        folder = item
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
        raise TaskError(f"{folder}: no image: build environment/Dockerfile and pass the image name as image=")


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
        raise TaskError(f"file not found: {file}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{file}: not UTF-8 text") from None


def _tests(folder: Path) -> dict[str, str]:
    if not (folder / "test.sh").is_file():
        raise TaskError(f"file not found: {folder}/test.sh")
    return {str(file.relative_to(folder)): _text(file) for file in sorted(folder.rglob("*")) if file.is_file()}


def _gold(script: Path) -> str:
    """Return the patch that a solution's script applies. It is empty if the script does something else."""
    text = _text(script) if script.is_file() else ""
    match = re.search(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(diff --git .*?)^\2$", text, re.DOTALL | re.MULTILINE)
    return match[3] if match else ""
