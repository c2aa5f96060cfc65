"""Source files: changes on disk, lines with code, statements of several lines."""

import dis
import os
import sys
import types


class Watch:
    """Notices that source files changed on disk after the program loaded them."""

    def __init__(self) -> None:
        self.root = ""
        self.stamps: dict[str, tuple[int, int] | None] = {}

    def add(self, files: "set[str]") -> None:
        for file in files - self.stamps.keys():
            self.stamps[file] = self.stamp(file)

    def add_loaded(self) -> None:
        """Add the files of all modules below the root."""
        files = set()
        for module in list(sys.modules.values()):
            try:
                file = object.__getattribute__(module, "__dict__").get("__file__")
            except Exception:  # noqa: BLE001  sys.modules may hold anything
                continue
            if isinstance(file, str) and file.endswith(".py") and file.startswith(self.root):
                files.add(file)
        self.add(files)

    def changed(self) -> "list[str]":
        return sorted(file for file, stamp in self.stamps.items() if self.stamp(file) != stamp)

    @staticmethod
    def stamp(file: str) -> "tuple[int, int] | None":
        try:
            status = os.stat(file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size


def code_lines(code: types.CodeType) -> "set[int]":
    """Return the lines of a file on which code starts."""
    lines = {line for _, line in dis.findlinestarts(code) if line}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            lines |= code_lines(constant)
    return lines


def continues_block(lines: "list[str]") -> bool:
    """Return whether the lines after a complete statement begin with more of it."""
    line = next((line for line in lines if line.strip()), "")
    words = line.replace(":", " ").split()
    return line[:1].isspace() or (bool(words) and words[0] in ("else", "elif", "except", "finally"))
