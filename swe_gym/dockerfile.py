"""The Dockerfile of a task that others wrote: its steps, its image, and what is refused."""

import posixpath
import re

from .errors import TaskError
from .task_folder import TaskFolder
from .types import ImageBuild

STEPS = frozenset(
    "ADD ARG CMD COPY ENV EXPOSE FROM LABEL MAINTAINER ONBUILD RUN SHELL STOPSIGNAL USER VOLUME WORKDIR".split()
)
IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*+", re.ASCII)
"""Names of images that no program can take for an option or a path."""

RUN_AT_START = ("ENTRYPOINT", "HEALTHCHECK")
HERE_TEXT = re.compile(r"""(?:^|\s)<<-?["']?\w+["']?(?:\s|$)""")
BUILDKIT_OPTIONS = ("--mount", "--network", "--security", "--link", "--chmod", "--parents", "--exclude", "--checksum")
"""Options of steps that the engine's plain builder does not know."""


def read_steps(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, each as name in capitals and rest."""
    lines = (line for line in text.replace("\r\n", "\n").split("\n") if not line.lstrip().startswith("#"))
    joined = re.sub(r"(?<!\\)\\[ \t]*\n(?:[ \t]*\n)*", "", "\n".join(lines))
    words = (line.split(maxsplit=1) for line in joined.split("\n") if line.strip())
    return [(name.upper(), "".join(rest).strip()) for name, *rest in words]


class Dockerfile:
    """The Dockerfile in a subfolder of a task, which may be missing.

    Args:
        folder: The task's folder.
        place: Name of the subfolder, which is the context of the build.

    Attributes:
        steps: Its instructions, each as name in capitals and rest.
    """

    def __init__(self, folder: TaskFolder, place: str = "environment") -> None:
        self._folder = folder
        self._place = place
        self.steps = read_steps(folder.text(self._name)) if folder.has(self._name) else []

    def choose_image(self, given: str | None, name: str, timeout: float) -> tuple[str, ImageBuild | None]:
        """Return the task's image, and its build if it must be built.

        Args:
            given: Image that the task names beside its Dockerfile, and that goes first.
            name: Name of the task.
            timeout: Seconds that the build may take.

        Raises:
            TaskError: There is neither image nor Dockerfile, or a step cannot be honoured.
        """
        image = given or self.plain_base
        self._refuse(built=not image)
        if image:
            return image, None
        if not self.steps:
            raise TaskError(
                f"{self._folder.path}: no image: set environment.docker_image, add {self._name}, or pass image="
            )
        digest = self._folder.digest(self._place)[:16]
        build = ImageBuild(context=str(self._folder.path / self._place), timeout=timeout)
        return f"swe-gym/harbor-{re.sub('[^a-z0-9._]+', '-', name.lower()).strip('-')}:{digest}", build

    def choose_workdir(self, given: str | None) -> str:
        """Return a workdir that the task sets, or that of the image.

        Raises:
            TaskError: Neither task nor Dockerfile tells.
        """
        if workdir := given or self.workdir:
            return workdir
        raise TaskError(
            f"{self._folder.path}: environment.workdir is not set, and no WORKDIR of {self._name} tells it: pass the "
            "image's folder as workdir="
        )

    @property
    def plain_base(self) -> str:
        """The base image, if nothing is built on it."""
        if [name for name, _ in self.steps] != ["FROM", *["WORKDIR"] * (len(self.steps) - 1)]:
            return ""
        base = [word for word in self.steps[0][1].split() if not word.startswith("--")]  # without --platform
        return base[0] if base and IMAGE.fullmatch(base[0]) else ""

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

    @property
    def _name(self) -> str:
        return f"{self._place}/Dockerfile"

    def _refuse(self, *, built: bool) -> None:
        """Refuse steps that cannot be honoured: those that run at the start and, if the file is built, many others."""
        for name, rest in self.steps:
            why = _run_at_start(name) or (_not_built(name, rest) if built else "")
            if why:
                raise TaskError(
                    f"{self._folder.path}: {self._name}: {f'{name} {rest}'[:200]}: {why}. Or build the image and pass "
                    "its name as image="
                )


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
