"""Writes and reads git diffs."""

import base64
import difflib
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

from ..files import is_test_path

CONTEXT = 3
MAX_COMPARED = 25_000_000
"""Largest product of line counts for which lines are matched. Beyond it, the differing middle is replaced whole."""
NO_NEWLINE = "\\ No newline at end of file\n"


def file_diff(path: str, old: bytes | None, new: bytes | None, old_mode: int | None, new_mode: int | None) -> str:
    """Return the diff of one file, in the form that `git apply` reads.

    Args:
        path: Path relative to the root.
        old: Content before; None for a new file.
        new: Content after; None for a deleted file.
        old_mode: Git's mode before; None for a new file.
        new_mode: Git's mode after; None for a deleted file.
    """
    if old_mode is not None and new_mode is not None and old_mode >> 12 != new_mode >> 12:  # a file became a link
        return file_diff(path, old, None, old_mode, None) + file_diff(path, None, new, None, new_mode)
    source, target = quote("a/" + path), quote("b/" + path)
    parts = [f"diff --git {source} {target}\n", *_mode_lines(old_mode, new_mode)]
    if old != new:
        unchanged_mode = f" {new_mode:o}" if old_mode == new_mode and new_mode is not None else ""
        parts.append(f"index {blob_id(old)}..{blob_id(new)}{unchanged_mode}\n")
        before, after = _lines(old), _lines(new)
        if before is None or after is None:
            parts.append(_binary(new or b""))
        elif before or after:
            parts.append(f"--- {source if old is not None else '/dev/null'}\n")
            parts.append(f"+++ {target if new is not None else '/dev/null'}\n")
            parts.extend(_hunks(before, after))
    return "".join(parts)


def quote(name: str) -> str:
    """Return a file name, in C quotes if git needs them."""
    data = name.encode()
    if all(0x20 < byte < 0x7F and byte not in b'"\\' for byte in data):
        return name
    plain = (0x20 <= byte < 0x7F and byte not in b'"\\' for byte in data)
    return '"' + "".join(chr(byte) if ok else f"\\{byte:03o}" for byte, ok in zip(data, plain, strict=True)) + '"'


def blob_id(data: bytes | None) -> str:
    """Return git's name of a content. Binary patches are checked against it."""
    if data is None:
        return "0" * 40
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _mode_lines(old: int | None, new: int | None) -> list[str]:
    if old is None:
        return [f"new file mode {new:o}\n"]
    if new is None:
        return [f"deleted file mode {old:o}\n"]
    return [f"old mode {old:o}\n", f"new mode {new:o}\n"] if old != new else []


def _lines(data: bytes | None) -> list[str] | None:
    """The lines with their ends; None for content that a text diff cannot hold."""
    if not data:
        return []
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    lines = text.split("\n")  # not splitlines: to git, a lone carriage return does not end a line
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


Opcode = tuple[str, int, int, int, int]
"""An operation as in difflib: its name, the range of old lines, the range of new lines."""


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in _groups(_opcodes(old, new)):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from _mark_lines(" ", old[i1:i2])
            else:
                yield from _mark_lines("-", old[i1:i2])
                yield from _mark_lines("+", new[j1:j2])


def _opcodes(old: list[str], new: list[str]) -> Iterator[Opcode]:
    """The operations from old to new, with context at both ends: without it, git takes a hunk for the file's end."""
    head = _common(old, new)
    foot = min(_common(old[::-1], new[::-1]), min(len(old), len(new)) - head)
    old_end, new_end = len(old) - foot, len(new) - foot
    # Only the middle is compared, within a limit, so that a hostile file cannot take long.
    yield "equal", max(0, head - CONTEXT), head, max(0, head - CONTEXT), head
    if (old_end - head) * (new_end - head) <= MAX_COMPARED:
        matcher = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end])
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            yield tag, head + i1, head + i2, head + j1, head + j2
    else:
        yield "replace", head, old_end, head, new_end
    foot = min(foot, CONTEXT)
    yield "equal", old_end, old_end + foot, new_end, new_end + foot


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """The number of common lines at the start."""
    return next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _groups(opcodes: Iterable[Opcode]) -> Iterator[list[Opcode]]:
    """The hunks: changes with a few equal lines around them, split where more lie between."""
    group: list[Opcode] = []
    for tag, i1, i2, j1, j2 in opcodes:
        if tag == "equal" and i2 - i1 > 2 * CONTEXT:
            yield [*group, (tag, i1, i1 + CONTEXT, j1, j1 + CONTEXT)]
            group = [(tag, i2 - CONTEXT, i2, j2 - CONTEXT, j2)]
        else:
            group.append((tag, i1, i2, j1, j2))
    yield group


def _range(start: int, stop: int) -> str:
    count = stop - start
    return f"{start + 1 if count else start},{count}"


def _mark_lines(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line if line.endswith("\n") else f"{mark}{line}\n{NO_NEWLINE}"


def _binary(new: bytes) -> str:
    """The new content, deflated, in lines of up to 52 bytes of base 85."""
    packed = zlib.compress(new)
    lines = ["GIT binary patch\n", f"literal {len(new)}\n"]
    for start in range(0, len(packed), 52):
        chunk = packed[start : start + 52]
        mark = chr(ord("A") + len(chunk) - 1 if len(chunk) <= 26 else ord("a") + len(chunk) - 27)
        lines.append(mark + base64.b85encode(chunk, pad=True).decode() + "\n")
    return "".join([*lines, "\n"])


# --- reading --------------------------------------------------------------------------------------------------------


def touched_files(diff: str) -> set[str]:
    """Return the paths that a git diff names, before and after."""
    found: set[str] = set()
    in_header = not re.search(r"^diff --git ", diff, re.MULTILINE)  # a plain diff: read every line as a header
    plain = in_header
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            in_header = True
            found |= _header_names(line.removeprefix("diff --git "))
        elif line.startswith(("@@", "GIT binary patch")):
            in_header = plain
        elif in_header and (match := re.match(r"(?:---|\+\+\+|rename (?:from|to)|copy (?:from|to)) (.*)", line)):
            name = _unquote(match[1].partition("\t")[0].rstrip("\r"))
            found.add(name if line[0] in "rc" else _without_prefix(name))
    return found - {"/dev/null", ""}


def _header_names(names: str) -> set[str]:
    """The names in `a/OLD b/NEW`. For an empty file, a mode or a binary, no other line holds them."""
    if names.startswith('"') or names.endswith('"'):
        return {_without_prefix(_unquote(name)) for name in re.findall(r'"(?:[^"\\]|\\.)*"|\S+', names)}
    half = len(names) // 2
    if names[half : half + 1] == " " and names[2:half] == names[half + 3 :]:
        return {names[2:half]}
    return {_without_prefix(name) for name in names.split(" ")}


def _without_prefix(name: str) -> str:
    return name[2:] if name.startswith(("a/", "b/")) else name


def _unquote(name: str) -> str:
    """The file name behind git's C quotes."""
    if not name.startswith('"'):
        return name
    special = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) if len(code) == 3 else special.get(code[0], code[0])])

    return re.sub(rb"\\([0-7]{3}|.)", byte, name.strip('"').encode(), flags=re.DOTALL).decode("utf-8", "replace")


def split_diff(diff: str) -> Iterator[tuple[set[str], str]]:
    """Yield the part of each file of a git diff, with the paths that it names."""
    for part in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        if part.startswith("diff --git "):
            yield touched_files(part), part


COMMENT = re.compile(r"\s*#.*")
"""A line of Python with a comment only."""

HEADERS = ("old mode", "new mode", "new file mode", "deleted file mode", "rename ", "copy ")
"""Starts of the header lines that are work by themselves."""


def normalize_patch(patch: str) -> str:
    """Return the headers and the removed and added lines of a git diff in a form that equal changes share.

    Tests, context, places, blank lines, Python's comments, spaces at the ends of lines and spaces in rows do not count.
    Indentation and spaces in quotes do.
    """
    parts = []
    for names, text in sorted(split_diff(patch), key=lambda one: sorted(one[0])):
        if all(map(is_test_path, names)):
            continue
        head, _, hunks = text.partition("\n@@ ")
        changed = [line for line in hunks.split("\n")[1:] if line.startswith(("+", "-"))]
        python = all(name.endswith((".py", ".pyi")) for name in names)
        lines = [_squeeze(one) for one in changed if one[1:].strip() and not (python and COMMENT.fullmatch(one[1:]))]
        header = head.split("\n")[1:]  # without hunks, a mode, a binary or an empty file
        body = [*(one for one in header if one.startswith(HEADERS)), *lines] if hunks else header
        if body:
            parts.append("\n".join([" ".join(sorted(names)), *body]))
    return "\n".join(parts)


QUOTED_OR_SPACES = re.compile(r"""(?P<quote>["'`])(?:\\.|(?!(?P=quote)).)*(?:(?P=quote)|$)|(?<=\S) {2,}""")
"""A quoted text, also one that the line does not end, or spaces in a row behind the indentation."""


def _squeeze(line: str) -> str:
    """Return a line without spaces at its end, and with one space for those in rows, but as it is in quotes."""
    text = line[1:].rstrip(" \t")
    return line[0] + QUOTED_OR_SPACES.sub(lambda found: found[0] if found["quote"] else " ", text)
