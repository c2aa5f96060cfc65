"""Harbor task folders: `task.toml`, `instruction.md`, an image, a solution, and tests that write a reward.

Such a task is judged as Harbor does it: its own script runs in the sandbox in which the policy worked, or in one that
gets files from it, and the reward that it writes is believed.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..errors import TaskError, UsageError
from ..task_folder import Dockerfile, TaskFolder
from ..toml import resolve_variables
from ..types import (
    Artifact,
    CollectHook,
    FileContent,
    Healthcheck,
    ImageBuild,
    JsonObject,
    Oracle,
    RewardScript,
    SandboxNeeds,
    Task,
    TaskStep,
    VerifierSandbox,
)
from .base import ListedSource
from .dataset import facts, task_name
from .harbor_config import (
    Environment,
    HarborConfig,
    HarborHealthcheck,
    HarborStep,
    Policy,
    Verifier,
    is_root,
    read_config,
)

CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
"""A line at the start of an instruction that Harbor does not show."""

COMPOSE, RECORD = "{}/docker-compose.yaml", "trajectory.json"
NO_SERVICES = "services of Docker Compose ({}) are not supported. Play this task with Harbor"

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
        _refuse_files(config, folder)
        dockerfile = Dockerfile(folder)
        image, build = self._image_of(config, dockerfile, task_id)
        user = dockerfile.user if build else ""
        config = config.fill_in_users(user, _verifiers_user(config, folder, user))
        needs = _needs_of(config.environment, config.agent_network, _added_files(config, folder))
        metadata = config.metadata
        tags = metadata.get("tags")
        return Task(
            task_id=task_id,
            problem_statement=_instruction(folder, f"steps/{config.steps[0].name}/" if config.steps else ""),
            image=image,
            workdir=dockerfile.choose_workdir(config.environment.workdir or self._workdir),
            env=_fill_in(config.environment.env, self._variables, f"{place}: environment.env"),
            difficulty=str(metadata.get("difficulty", "")),
            tags=tuple(map(str, tags)) if isinstance(tags, list) else config.task.keywords,
            metadata=_metadata(config),
            needs=needs.model_copy(update={"user": "root" if config.as_root or user else None, "build": build}),
            time_limit=None if config.steps else config.agent.timeout_sec,
            oracle=Oracle(
                gold_patch=_gold(folder),
                evaluation=self._script_of(config, folder, place, task_id, user),
                timeout=config.verifier.timeout_sec,
            ),
        )

    def _script_of(self, config: HarborConfig, folder: TaskFolder, place: str, task_id: str, user: str) -> RewardScript:
        if config.steps:
            return RewardScript(
                healthcheck=_healthcheck(config.environment.healthcheck, user),
                steps=tuple(self._step_of(step, config, folder, place) for step in config.steps),
                final=config.multi_step_reward_strategy == "final",
            )
        verifier, bundled = None, False
        if config.verifier.separate:
            verifier, bundled = self._verifier_of(config, folder, place, task_id)
        tests = {} if bundled else folder.tree("tests")
        if "test.sh" not in tests and not bundled:
            raise TaskError(f"file not found: {folder.path}/tests/test.sh")
        solution = _solution(folder, "solution")
        return RewardScript(
            script="/tests/test.sh",
            files={f"/tests/{name}": file for name, file in tests.items()},
            collect=_hooks(config.verifier),
            verifier=verifier,
            env=_fill_in(config.verifier.env, self._variables, f"{place}: verifier.env"),
            user=_user(config.verifier.user),
            policy_user=None if is_root(config.agent.user) else _user(config.agent.user),
            healthcheck=_healthcheck(config.environment.healthcheck, user),
            solve="/solution/solve.sh" if "solve.sh" in solution else "",
            solution={f"/solution/{name}": file for name, file in solution.items()},
            solution_env=_fill_in(config.solution.env, self._variables, f"{place}: solution.env"),
        )

    def _step_of(self, step: HarborStep, config: HarborConfig, folder: TaskFolder, place: str) -> TaskStep:
        """Return a step: what it does not set is the task's."""
        top = f"steps/{step.name}"
        tests = {**folder.tree("tests"), **folder.tree(f"{top}/tests")}
        if "test.sh" not in tests:
            raise TaskError(f"file not found: {folder.path}/{top}/tests/test.sh")
        files = folder.tree(f"{top}/workdir")
        solution = _solution(folder, f"{top}/solution" if folder.has(f"{top}/solution") else "solution")
        env = {**config.verifier.env, **step.verifier.env}
        user = config.agent_user(step)
        script = RewardScript(
            files={f"/tests/{name}": file for name, file in tests.items()},
            named=step.min_reward is not None,
            collect=(*_hooks(config.verifier), *_hooks(step.verifier)),
            env=_fill_in(env, self._variables, f"{place}: steps.{step.name}.verifier.env"),
            user=_user(config.verifier.user if step.verifier.user is None else step.verifier.user),
            policy_user=None if is_root(user) else _user(user),
            solve="/solution/solve.sh" if "solve.sh" in solution else "",
            solution={f"/solution/{name}": file for name, file in solution.items()},
            solution_env=_fill_in(config.solution.env, self._variables, f"{place}: solution.env"),
        )
        return TaskStep(
            name=step.name,
            instruction=_instruction(folder, f"{top}/"),
            time_limit=step.agent.timeout_sec or config.agent.timeout_sec,
            files=files,
            setup="bash ./setup.sh" if "setup.sh" in files else "",
            healthcheck=_healthcheck(step.healthcheck),
            script=script,
            timeout=step.verifier.timeout_sec or config.verifier.timeout_sec,
            min_reward=step.least,
        )

    def _verifier_of(
        self, config: HarborConfig, folder: TaskFolder, place: str, task_id: str
    ) -> tuple[VerifierSandbox, bool]:
        """Return the verifier's own sandbox, and whether its image holds the tests.

        As in Harbor, that is an image that `verifier.environment` names, or one built from `tests/`; else it is the
        policy's image, and the tests are added.
        """
        environment, own = config.verifier_environment, config.verifier.environment
        table = "environment" if own is None else "verifier.environment"
        dockerfile, bundled = Dockerfile(folder, "tests"), True
        if own is not None and own.docker_image:
            image, build = own.docker_image, None
        elif dockerfile.steps:
            image, build = dockerfile.choose_image(None, f"{task_id}-verifier", environment.build_timeout_sec)
        else:
            dockerfile, bundled = Dockerfile(folder), False
            image, build = self._image_of(config, dockerfile, task_id)
        workdir = environment.workdir or (None if bundled else self._workdir) or dockerfile.workdir
        if not workdir:
            name = "tests/Dockerfile" if bundled else "environment/Dockerfile"
            raise TaskError(f"{place}: {table}.workdir is not set, and no WORKDIR of {name} tells it. Set it")
        network = config.verifier.policy or environment.network
        needs = _needs_of(environment, network, {} if bundled else _added_files(config, folder))
        user = None if config.verifier.user is None else "root"  # root alone can run the script as another user
        return VerifierSandbox(
            image=image,
            workdir=workdir,
            env=_fill_in(environment.env, self._variables, f"{place}: {table}.env"),
            needs=needs.model_copy(update={"user": user, "build": build}),
            artifacts=tuple(
                Artifact(path=entry.source, exclude=tuple(entry.exclude)) for entry in config.list_artifacts()
            ),
        ), bundled

    def _image_of(self, config: HarborConfig, dockerfile: Dockerfile, task_id: str) -> tuple[str, ImageBuild | None]:
        """Return the image, and how it is built if the task only has a Dockerfile."""
        if self._image is not None:
            return self._image.replace("{task_id}", task_id), None
        environment = config.environment
        return dockerfile.choose_image(environment.docker_image, task_id, environment.build_timeout_sec)


def _refuse_files(config: HarborConfig, folder: TaskFolder) -> None:
    """Refuse files that change what Harbor runs, and that swe_gym cannot honour."""
    composed = [COMPOSE.format("environment"), *([COMPOSE.format("tests")] if config.verifier.separate else [])]
    for name in filter(folder.has, composed):
        raise TaskError(f"{folder.path}: {name}: {NO_SERVICES.format(folder.services(name) or 'none')}")
    for name in filter(folder.has, [RECORD, *(f"steps/{step.name}/{RECORD}" for step in config.steps)]):
        raise TaskError(f"{folder.path}: {name}: not supported. Play this task with Harbor")


def _fill_in(env: Mapping[str, str], allowed: Collection[str], place: str) -> dict[str, str]:
    """Return variables with the values of this machine; see `resolve_variables`.

    Raises:
        TaskError: A variable is not allowed or not set, or a value has a `{workdir}`.
    """
    for name, value in env.items():
        if "{workdir}" in value:
            raise TaskError(f"{place}.{name} = {value!r}: {{workdir}} has another meaning here. Write the folder")
    try:
        return resolve_variables(env, allowed, place, "--source-option variables")
    except UsageError as error:
        raise TaskError(str(error)) from error


def without_canary(text: str) -> str:
    """Return an instruction without the canary lines at its start."""
    lines = text.split("\n")
    while lines and CANARY.fullmatch(lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _needs_of(environment: Environment, network: Policy, files: dict[str, FileContent]) -> SandboxNeeds:
    """Return the demands of an environment on its sandbox."""
    return SandboxNeeds(
        cpus=environment.cpus,
        memory_mb=environment.memory_mb,
        disk_mb=environment.storage_mb,
        network=network,
        activate=False,
        files=files,
    )


def _added_files(config: HarborConfig, folder: TaskFolder) -> dict[str, FileContent]:
    """Return the files of `environment/` if the image does not have them: as in Harbor, if it is a prebuilt one."""
    added = config.environment.docker_image and not folder.has("environment/Dockerfile")
    return folder.tree("environment") if added else {}


def _instruction(folder: TaskFolder, place: str) -> str:
    return without_canary(folder.text(f"{place}instruction.md")).strip()


def _solution(folder: TaskFolder, place: str) -> dict[str, FileContent]:
    """Return the files of a solution, with a script if it is only a patch."""
    solution = folder.tree(place)
    if "patch.diff" in solution and "solve.sh" not in solution:
        solution["solve.sh"] = FileContent(data=APPLY.encode(), mode=0o755)
    return solution


def _hooks(verifier: Verifier) -> tuple[CollectHook, ...]:
    return tuple(
        CollectHook(command=hook.command, timeout=hook.timeout_sec, user=_user(hook.user)) for hook in verifier.collect
    )


def _verifiers_user(config: HarborConfig, folder: TaskFolder, user: str) -> str:
    """Return the user of the image in which the verifier runs; empty if it is root, or if no Dockerfile tells."""
    environment = config.verifier.environment
    if not config.verifier.separate:
        return user
    if environment is not None and environment.docker_image:
        return ""
    own = Dockerfile(folder, "tests")
    return own.user if own.steps else user


def _healthcheck(check: HarborHealthcheck | None, user: str = "") -> Healthcheck | None:
    if check is None:
        return None
    fields = check.model_dump()
    return Healthcheck(**{name.removesuffix("_sec"): value for name, value in fields.items()}, user=user or None)


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
