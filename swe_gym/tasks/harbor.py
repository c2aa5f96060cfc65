"""Harbor task folders: `task.toml`, `instruction.md`, an image, a solution, and tests that write a reward.

Such a task is judged as Harbor does it: its own script runs in the sandbox in which the policy worked, and the reward
that it writes is believed.
"""

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..errors import TaskError, UsageError
from ..toml import resolve_variables
from ..types import FileContent, ImageBuild, JsonObject, Oracle, RewardScript, SandboxNeeds, Task
from .base import ListedSource
from .dataset import facts, task_name
from .harbor_config import HarborConfig, is_root, read_config
from .harbor_files import TaskFolder

CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
"""A line at the start of an instruction that Harbor does not show."""

PLAYED_BY_HARBOR = ("environment/docker-compose.yaml", "trajectory.json")
"""Files that change what Harbor runs, and that swe_gym cannot honour."""

STEPS = frozenset(
    "ADD ARG CMD COPY ENV EXPOSE FROM LABEL MAINTAINER ONBUILD RUN SHELL STOPSIGNAL USER VOLUME WORKDIR".split()
)
RUN_AT_START = ("ENTRYPOINT", "HEALTHCHECK")
HERE_TEXT = re.compile(r"""(?:^|\s)<<-?["']?\w+["']?(?:\s|$)""")
BUILDKIT_OPTIONS = ("--mount", "--network", "--security", "--link", "--chmod", "--parents", "--exclude", "--checksum")
"""Options of steps that the engine's plain builder does not know."""

APPLY = "#!/bin/sh\ngit apply /solution/patch.diff || patch -p1 < /solution/patch.diff\n"
"""The script of a solution that is only a `patch.diff`."""


class HarborSource(ListedSource[Path]):
    """The tasks of one Harbor task folder, or of a folder of them.

    Args:
        path: The folder.
        image: Image of the tasks, instead of `environment.docker_image` and of `environment/Dockerfile`. "{task_id}"
            stands for the id.
        workdir: Folder of the tasks that do not set `environment.workdir`; None takes the last WORKDIR of the
            Dockerfile.
        variables: Names of variables of this machine that tasks may read as `${NAME}`. Their values become part of the
            task.

    Raises:
        UsageError: The folder does not exist, or holds no task.
        TaskError: Two tasks have the same id.
    """

    def __init__(
        self, path: str, *, image: str | None = None, workdir: str | None = None, variables: Sequence[str] = ()
    ) -> None:
        super().__init__()
        if isinstance(variables, str):
            raise UsageError(f"variables must be a list of names, not {variables!r}")
        root = Path(path).expanduser().absolute()
        self._image = image
        self._workdir = workdir
        self._variables = frozenset(variables)
        for file in sorted(root.rglob("task.toml")) if root.is_dir() else []:
            self.add(task_name(file.parent.name), file.parent)
        if not self._items:
            raise UsageError(f"{root} holds no folder with a task.toml")

    def build(self, task_id: str, item: Path) -> Task:
        """Read the task in a folder.

        Raises:
            TaskError: The task is broken, or needs what swe_gym cannot do; the message names folder and field.
        """
        folder = TaskFolder(item)
        place = str(item / "task.toml")
        config = read_config(folder.text("task.toml"), place)
        for name in PLAYED_BY_HARBOR:
            if folder.has(name):
                raise TaskError(f"{item}: {name}: not supported. Play this task with Harbor")
        dockerfile = Dockerfile(folder)
        image, build = self._image_of(config, dockerfile, task_id)
        metadata = config.metadata
        tags = metadata.get("tags")
        return Task(
            task_id=task_id,
            problem_statement=without_canary(folder.text("instruction.md")).strip(),
            image=image,
            workdir=self._workdir_of(config, dockerfile),
            env=_fill_in(config.environment.env, self._variables, f"{place}: environment.env"),
            difficulty=str(metadata.get("difficulty", "")),
            tags=tuple(map(str, tags)) if isinstance(tags, list) else config.task.keywords,
            metadata=_metadata(config),
            needs=_needs(config, folder).model_copy(update={"build": build}),
            time_limit=config.agent.timeout_sec,
            oracle=Oracle(
                gold_patch=_gold(folder),
                evaluation=self._script_of(config, folder, place),
                timeout=config.verifier.timeout_sec,
            ),
        )

    def _script_of(self, config: HarborConfig, folder: TaskFolder, place: str) -> RewardScript:
        tests = folder.tree("tests")
        if "test.sh" not in tests:
            raise TaskError(f"file not found: {folder.path}/tests/test.sh")
        solution = folder.tree("solution")
        if "patch.diff" in solution and "solve.sh" not in solution:
            solution["solve.sh"] = FileContent(data=APPLY.encode(), mode=0o755)
        return RewardScript(
            script="/tests/test.sh",
            files={f"/tests/{name}": file for name, file in tests.items()},
            env=_fill_in(config.verifier.env, self._variables, f"{place}: verifier.env"),
            as_root=is_root(config.verifier.user),
            solve="/solution/solve.sh" if "solve.sh" in solution else "",
            solution={f"/solution/{name}": file for name, file in solution.items()},
            solution_env=_fill_in(config.solution.env, self._variables, f"{place}: solution.env"),
        )

    def _image_of(self, config: HarborConfig, dockerfile: "Dockerfile", task_id: str) -> tuple[str, ImageBuild | None]:
        """Return the image, and how it is built if the task only has a Dockerfile."""
        if self._image is not None:
            return self._image.replace("{task_id}", task_id), None
        image = config.environment.docker_image or dockerfile.plain_base
        dockerfile.refuse(built=not image)
        return (image, None) if image else _build(dockerfile, config, task_id)

    def _workdir_of(self, config: HarborConfig, dockerfile: "Dockerfile") -> str:
        workdir = config.environment.workdir or self._workdir or dockerfile.workdir
        if workdir:
            return workdir
        raise TaskError(
            f"{dockerfile.folder.path}: environment.workdir is not set, and no WORKDIR of environment/Dockerfile tells "
            "it: pass the image's folder as workdir="
        )


class Dockerfile:
    """The `environment/Dockerfile` of a task, which may be missing.

    Args:
        folder: The task's folder.

    Attributes:
        folder: The task's folder.
        steps: Its instructions, each as name in capitals and rest.
    """

    def __init__(self, folder: TaskFolder) -> None:
        self.folder = folder
        name = "environment/Dockerfile"
        text = folder.text(name) if folder.has(name) else ""
        joined = re.sub(r"\\[ \t]*\n(?:[ \t]*#.*\n)*", " ", text)
        lines = (line.strip() for line in joined.splitlines())
        words = (line.partition(" ") for line in lines if line and not line.startswith("#"))
        self.steps = [(name.upper(), rest.strip()) for name, _, rest in words]

    def refuse(self, *, built: bool) -> None:
        """Refuse steps that cannot be honoured: those that run at the start and, if the file is built, many others.

        Raises:
            TaskError: There is one.
        """
        for name, rest in self.steps:
            why = _run_at_start(name) or (_not_built(name, rest) if built else "")
            if why:
                raise TaskError(
                    f"{self.folder.path}: environment/Dockerfile: {f'{name} {rest}'[:200]}: {why}. Or build the image "
                    "and pass its name as image="
                )

    @property
    def plain_base(self) -> str:
        """The base image, if nothing is built on it."""
        if [name for name, _ in self.steps] != ["FROM", *["WORKDIR"] * (len(self.steps) - 1)]:
            return ""
        base = [word for word in self.steps[0][1].split() if not word.startswith("--")]  # without --platform
        return base[0] if base and "$" not in base[0] else ""

    @property
    def workdir(self) -> str:
        """The folder in which commands of the image start; empty if the file does not tell."""
        workdir = ""
        for name, rest in self.steps:
            if name not in (*STEPS, *RUN_AT_START) or HERE_TEXT.search(rest):
                return ""  # a line may be no step, but text
            if name == "FROM":
                workdir = ""
            elif name == "WORKDIR":
                place = rest.strip("\"'")
                if "$" in place or not (workdir or place.startswith("/")):
                    return ""
                workdir = posixpath.normpath(posixpath.join(workdir, place))
        return workdir


def _run_at_start(name: str) -> str:
    return "Harbor runs it at the start, and swe_gym does not. Leave it out" if name in RUN_AT_START else ""


def _not_built(name: str, rest: str) -> str:
    """Return why a step of a Dockerfile cannot be built; empty if it can."""
    if name not in STEPS:
        return "unknown step, or one of several lines that only BuildKit reads. Write it in one line"
    option = next((word for word in rest.split() if word.startswith(BUILDKIT_OPTIONS)), "")
    if option and name in ("RUN", "COPY", "ADD") and rest.startswith("--"):
        return f"{option} needs BuildKit. Leave it out"
    if name in ("RUN", "COPY", "ADD") and HERE_TEXT.search(rest):
        return "text of several lines (<<) needs BuildKit. Copy a file instead"
    return ""


def _fill_in(env: Mapping[str, str], allowed: Collection[str], place: str) -> dict[str, str]:
    """Return variables with the values of this machine; see `resolve_variables`.

    Raises:
        TaskError: A variable is not allowed or not set, or a value has a `{workdir}`.
    """
    for name, value in env.items():
        if "{workdir}" in value:
            raise TaskError(f"{place}.{name} = {value!r}: {{workdir}} has another meaning here. Write the folder")
    try:
        return resolve_variables(env, allowed, place)
    except UsageError as error:
        raise TaskError(str(error)) from error


def without_canary(text: str) -> str:
    """Return an instruction without the canary lines at its start."""
    lines = text.split("\n")
    while lines and CANARY.fullmatch(lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _build(dockerfile: Dockerfile, config: HarborConfig, task_id: str) -> tuple[str, ImageBuild]:
    """Return the name of the image that a Dockerfile makes, which stands for the content of its folder, and the build.

    Raises:
        TaskError: There is no Dockerfile, or it has a step that swe_gym cannot honour.
    """
    folder = dockerfile.folder
    if not dockerfile.steps:
        raise TaskError(
            f"{folder.path}: no image: set environment.docker_image, add environment/Dockerfile, or pass image="
        )
    digest = folder.digest("environment")[:16]
    build = ImageBuild(context=str(folder.path / "environment"), timeout=config.environment.build_timeout_sec)
    return f"swe-gym/harbor-{task_id.lower()}:{digest}", build


def _needs(config: HarborConfig, folder: TaskFolder) -> SandboxNeeds:
    """Return the demands on the sandbox. As in Harbor, a prebuilt image gets the files of `environment/`."""
    environment = config.environment
    added = environment.docker_image and not folder.has("environment/Dockerfile")
    return SandboxNeeds(
        user="root" if is_root(config.agent.user) else None,
        cpus=environment.cpus,
        memory_mb=environment.memory_mb,
        disk_mb=environment.storage_mb,
        network="none" if environment.mode == "no-network" else "egress",
        activate=False,
        files=folder.tree("environment") if added else {},
    )


def _metadata(config: HarborConfig) -> JsonObject:
    """Return what describes the task and changes neither play nor verdict."""
    package = config.task
    return facts(
        category=str(config.metadata.get("category", "")),
        name=package.name,
        version=package.version,
        description=package.description,
        source=config.source,
    )


def _gold(folder: TaskFolder) -> str:
    """Return the patch that the solution applies, for its size; empty if the solution does something else."""
    if folder.has("solution/patch.diff"):
        return folder.text("solution/patch.diff")
    text = folder.text("solution/solve.sh") if folder.has("solution/solve.sh") else ""
    match = re.search(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(diff --git .*?)^\2$", text, re.DOTALL | re.MULTILINE)
    return match[3] if match else ""
