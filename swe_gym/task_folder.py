"""Reads a task folder that others wrote: files within the folder and of bounded size, and its Dockerfile."""

import hashlib
import itertools
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from .cache import file_sha256
from .errors import TaskError
from .types import FileContent, ImageBuild

LARGEST_TEXT = 1 << 20
LARGEST_TREE, MOST_FILES = 64 << 20, 10_000
"""Bytes and files of the folders of one task."""

LARGEST_CONTEXT = 4 << 30
"""Bytes of the folder that an image is built from."""

DEEPEST = 50
NOT_TEXT = re.compile("[\udc80-\udcff]")
"""Bytes of a file name that are no UTF-8, as Python reads them."""


class TaskFolder:
    """The folder of one task. Whatever leads out of it is refused, links included.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = path.resolve()

    def has(self, name: str) -> bool:
        """Whether the folder holds a file, folder or link of this name."""
        return os.path.lexists(self.path / name)

    def text(self, name: str) -> str:
        """Return a file as text.

        Raises:
            TaskError: The file is missing, leads out of the folder, is too large, or is not UTF-8 text.
        """
        file = self.path / name
        if not os.path.lexists(file):
            raise TaskError(f"file not found: {file}")
        try:
            return self._read(file, LARGEST_TEXT).decode("utf-8")
        except UnicodeDecodeError:
            raise TaskError(f"{file}: not UTF-8 text") from None

    def services(self, name: str) -> str:
        """Return the names of the services of a Docker Compose file, for a message.

        Raises:
            TaskError: As `text`.
        """
        block = re.search(r"^services:[^\n]*\n((?:[ \t#][^\n]*(?:\n|\Z)|\n)*)", self.text(name), re.MULTILINE)
        found = re.findall(r"^( +)[\"']?([\w.-]+)[\"']?:", block[1] if block else "", re.MULTILINE)
        return ", ".join(service for indent, service in found if indent == found[0][0])

    def tree(self, name: str) -> dict[str, FileContent]:
        """Return all files below a subfolder: path relative to it -> content. A missing subfolder has none.

        A link counts as the file or folder that it points to. Empty folders do not count.

        Raises:
            TaskError: Something leads out of the folder, is neither file nor folder, or is too large.
        """
        top = self.path / name
        files: dict[str, FileContent] = {}
        left = LARGEST_TREE
        entries = self._entries(top, ()) if os.path.lexists(top) else iter(())
        for number, file in enumerate(entries):
            if number >= MOST_FILES:
                raise TaskError(f"{top}: more than {MOST_FILES} files and folders")
            if file.is_dir():
                continue
            data = self._read(file, left, f"{top}: more than {LARGEST_TREE >> 20} MiB in all")
            left -= len(data)
            files[file.relative_to(top).as_posix()] = FileContent(data=data, mode=file.stat().st_mode & 0o777)
        return files

    def digest(self, name: str) -> str:
        """Return a digest of all files below a subfolder, with their names, and whether they are executable.

        Raises:
            TaskError: Something leads out of the folder, is neither file nor folder, or is too large.
        """
        top = self.path / name
        total = hashlib.sha256()
        left = LARGEST_CONTEXT
        for number, file in enumerate(self._entries(top, ())):
            if number >= MOST_FILES:
                raise TaskError(f"{top}: more than {MOST_FILES} files and folders")
            left -= 0 if file.is_dir() else file.stat().st_size
            if left < 0:
                raise TaskError(f"{top}: more than {LARGEST_CONTEXT >> 20} MiB in all")
            content = "" if file.is_dir() else file_sha256(file)
            total.update(f"{file.relative_to(top).as_posix()}\0{file.stat().st_mode & 0o111:o}\0{content}\0".encode())
        return total.hexdigest()

    def _entries(self, folder: Path, above: tuple[Path, ...], place: Path | None = None) -> Iterator[Path]:
        """Yield all files and folders below a folder; `above` are the folders on the way to it, without links.

        `place` is the folder with few links on the way, which is faster to resolve.
        """
        resolved = self._check(folder, place)
        if not folder.is_dir():
            raise TaskError(f"{folder}: not a folder")
        if resolved in above:
            raise TaskError(f"{folder}: a link to a folder above it")
        if len(above) > DEEPEST:
            raise TaskError(f"{folder}: more than {DEEPEST} folders deep")
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:  # too many links on the way, for example
            raise TaskError(f"{folder}: cannot be read: {error}") from None
        for entry in entries:
            if NOT_TEXT.search(entry.name):
                raise TaskError(f"{str(entry)!a}: its name is not UTF-8")
            if entry.name == ".harborignore":
                raise TaskError(f"{entry}: ignore files are not supported. Remove what it names, and the file itself")
            inside = self._check(entry, resolved / entry.name)
            yield entry
            if inside.is_dir():
                yield from self._entries(entry, (*above, resolved), inside)

    def _check(self, path: Path, place: Path | None = None) -> Path:
        """Return a path without links. Refuse one that leads out of the folder or is neither file nor folder."""
        try:
            resolved = (place or path).resolve(strict=True)
            kind = resolved.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before Python 3.13
            raise TaskError(f"{path}: cannot be read: {error}") from None
        if not resolved.is_relative_to(self._root):
            raise TaskError(f"{path}: leads out of the task's folder. Copy the file into it")
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise TaskError(f"{path}: neither a file nor a folder")
        return resolved

    def _read(self, file: Path, limit: int, problem: str = "") -> bytes:
        self._check(file)
        try:
            with file.open("rb") as opened:
                data = opened.read(limit + 1)
        except OSError as error:
            raise TaskError(f"{file}: cannot be read: {error}") from None
        if len(data) > limit:
            raise TaskError(problem or f"{file}: larger than {limit >> 20} MiB")
        return data


STEPS = frozenset(
    "ADD ARG CMD COPY ENV EXPOSE FROM LABEL MAINTAINER ONBUILD RUN SHELL STOPSIGNAL USER VOLUME WORKDIR".split()
)
IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*+", re.ASCII)
"""Names of images that no program can take for an option or a path."""

RUN_AT_START = ("ENTRYPOINT", "HEALTHCHECK")
HERE_TEXT = re.compile(r"(?:^|\s)\d*<<-?[^\s<]")
DIRECTIVE = re.compile(r"\s*#\s*([a-z][a-z0-9]*)\s*=\s*(\S.*)", re.IGNORECASE)
"""A setting of the builder, if only settings stand above it; else a comment."""

PLAIN = r"[A-Za-z0-9_./*?+,-]+"
"""A file of the context: no address, variable or quote, and nothing that the builder reads otherwise."""

ADDED_FILES = re.compile(rf"""(?:--\S+\s+)*+(?:(?:{PLAIN}\s+)+\S+|\[\s*(?:"{PLAIN}"\s*,\s*)+"[^"\\\x00-\x1f]*"\s*\])""")
"""What ADD adds: files of the context. What comes last is the destination."""

BUILDKIT_OPTIONS = ("--mount", "--network", "--security", "--link", "--chmod", "--parents", "--exclude", "--checksum")
"""Options of steps that the engine's plain builder does not know."""


def read_steps(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, each as name in capitals and rest.

    A setting of another escape character is an unknown one.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    settings = [line for line in itertools.takewhile(DIRECTIVE.match, lines) if _sets_escape(line)]
    lines = [*settings, *(line for line in lines if not line.lstrip().startswith("#"))]
    joined = re.sub(r"(?<!\\)\\[ \t]*\n(?:[ \t]*\n)*", "", "\n".join(lines))
    words = (line.split(maxsplit=1) for line in joined.split("\n") if line.strip())
    return [(name.upper(), "".join(rest).strip()) for name, *rest in words]


def _sets_escape(line: str) -> bool:
    """Return whether a setting makes another character than the backslash continue lines."""
    found = DIRECTIVE.match(line)
    return bool(found and found[1].lower() == "escape" and found[2].strip() != "\\")


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
    def user(self) -> str:
        """The user of the image, as in `name:group`; empty if it is root, or if the file does not tell."""
        user = ""
        for name, rest in self.steps:
            if name in ("FROM", "USER"):
                told = re.fullmatch(r"([\w.-]+)(:[\w.-]+)?", rest) if name == "USER" else None
                user = rest if told and told[1] not in ("root", "0") else ""
        return user

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
    if name.startswith("#"):
        return "only the backslash can continue lines. Leave it out"
    if name == "ONBUILD":
        return "it runs in another build. Write the step there"
    if name not in STEPS:
        return "unknown step, or one of several lines that only BuildKit reads. Write it in one line"
    option = next((word for word in rest.split() if word.startswith(BUILDKIT_OPTIONS)), "")
    if option and name in ("RUN", "COPY", "ADD") and rest.startswith("--"):
        return f"{option} needs BuildKit. Leave it out"
    if name in ("RUN", "COPY", "ADD") and HERE_TEXT.search(rest):
        return "text of several lines (<<) needs BuildKit. Copy a file instead"
    if name == "ADD" and not ADDED_FILES.fullmatch(rest):
        return (
            "only plain names of files may be added: an engine fetches addresses outside of any sandbox. Use RUN to "
            "fetch, COPY for other names"
        )
    return ""
