"""Reads the files of a task folder that others wrote: within the folder, and of bounded size."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .cache import file_sha256
from .errors import TaskError
from .types import FileContent

LARGEST_TEXT = 1 << 20
LARGEST_TREE, MOST_FILES = 64 << 20, 10_000
"""Bytes and files of the folders of one task."""

LARGEST_CONTEXT = 4 << 30
"""Bytes of the folder that an image is built from."""

DEEPEST = 50


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
