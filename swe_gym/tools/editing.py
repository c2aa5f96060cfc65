"""Changes of files as pure functions, and where their lines went; the tools read, write and report."""

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ..errors import ToolError
from .files import Document, encode
from .text import harmless

CONTEXT_LINES = 4
"""Lines shown before and after a change in a snippet."""

MANY = 100
"""Number of matches at which counting stops."""

DIFF_CONTEXT = 3
"""Lines shown before and after a change in a diff."""

MAX_DIFF_LINES = 1000
"""Lines on each side up to which a diff aligns equal lines within a change."""


@dataclasses.dataclass(frozen=True)
class DocumentChange:
    """A change of one file.

    Attributes:
        before: Old content.
        after: New content, in the same encoding.
        start: Start of the change in both texts.
        added: Length of the replacement in characters.
    """

    before: Document
    after: Document
    start: int
    added: int


def replace_once(document: Document, old: str, new: str) -> DocumentChange:
    """Replace the only occurrence of `old`.

    Raises:
        ToolError: `old` is empty, equals `new`, or does not occur exactly once.
    """
    if not old:
        raise ToolError("old_str is empty: give the text to replace, exactly as it stands in the file.")
    found = _occurrences(document.text, old)
    if not found and "\r" not in old:  # lines copied from a view end with CRLF in the file
        old, new = old.replace("\n", "\r\n"), new if "\r" in new else new.replace("\n", "\r\n")
        found = _occurrences(document.text, old)
    else:
        new = document.with_newlines(new)
    if len(found) != 1:
        raise ToolError(_not_unique(document, found) if found else _not_found(document, old))
    return _change(document, found[0], found[0] + len(old), new)


def insert_after(document: Document, line: int, text: str) -> DocumentChange:
    """Insert whole lines after line `line`; 0 is the beginning of the file.

    Raises:
        ToolError: The file has no such line, or `text` is empty.
    """
    if not 0 <= line <= document.line_count:
        raise ToolError(f"insert_line is {line}, but must be from 0 to {document.line_count}, the file's last line.")
    if not text:
        raise ToolError("The text to insert is empty: nothing would change.")
    start = document.line_starts[line]
    return _change(document, start, start, _as_lines(document, start, start, text))


def replace_lines(document: Document, first: int, last: int, text: str) -> DocumentChange:
    """Replace the lines `first` to `last`, counted from 1, both included. An empty text deletes them.

    `first` may be the line after the last one, which appends.

    Raises:
        ToolError: The file does not have these lines, or `text` changes nothing.
    """
    count = document.line_count
    if not 1 <= first <= count + 1:
        raise ToolError(f"start is {first}, but the file has {count} lines; {count + 1} adds to its end.")
    if last < first:
        raise ToolError(f"end ({last}) is before start ({first}).")
    starts = [*document.line_starts, len(document.text)]
    start, end = starts[first - 1], starts[min(last, count)] if first <= count else len(document.text)
    return _change(document, start, end, _as_lines(document, start, end, text))


def replace_all(document: Document, text: str) -> DocumentChange:
    """Replace the whole text; byte order mark, encoding and line ends stay."""
    return _change(document, 0, len(document.text), document.with_newlines(text))


def new_file(text: str) -> DocumentChange:
    """Return the creation of a file that holds exactly `text`, in UTF-8."""
    return DocumentChange(Document.of(b""), Document(encode(text), "utf-8", b"", text), 0, len(text))


def _change(document: Document, start: int, end: int, new: str) -> DocumentChange:
    if document.text[start:end] == new:
        raise ToolError("The new text is what stands there already: nothing would change.")
    text = document.text[:start] + new + document.text[end:]
    after = dataclasses.replace(document, data=document.splice(start, end, new), text=text)
    return DocumentChange(document, after, start, len(new))


def _as_lines(document: Document, start: int, end: int, text: str) -> str:
    """Return `text` as whole lines that replace `document.text[start:end]`.

    A missing line end is added, also before lines that follow a last line without one.
    """
    if not text:
        return ""
    newline = document.newline
    text = document.with_newlines(text)
    if start and document.text[start - 1] != "\n":
        text = newline + text
        closed = False  # the file did not end with a line end, and still does not unless the policy adds one
    else:
        closed = end < len(document.text) or start == end or document.text.endswith("\n")
    return text + newline if closed and not text.endswith("\n") else text


def _occurrences(text: str, part: str) -> list[int]:
    """Return the positions of `part`, overlapping ones included, up to `MANY`."""
    found: list[int] = []
    position = text.find(part)
    while position >= 0 and len(found) < MANY:
        found.append(position)
        position = text.find(part, position + 1)
    return found


def _not_unique(document: Document, found: list[int]) -> str:
    lines = ", ".join(str(document.line_at(position)) for position in found[:10])
    more = ", ..." if len(found) > 10 else ""
    times = f"{len(found)} times" if len(found) < MANY else f"{MANY} times or more"
    return (
        f"old_str occurs {times}, at lines {lines}{more}, and nothing was changed: "
        "add lines before or after it until it occurs once."
    )


def _not_found(document: Document, old: str) -> str:
    """Return why there is no match; if only spaces differ, with the nearest line."""
    wanted = [line.strip() for line in old.splitlines() if line.strip()]
    shown = document.lines(1, document.line_count)
    near = [number for number, line in enumerate(shown, 1) if wanted and line.strip() == wanted[0]]
    if not near:
        numbers = all(re.match(r"\s*\d+\t", line) for line in old.splitlines())
        hint = "leave out the line numbers" if numbers else "view the file and copy the text exactly"
        return f"old_str does not occur in the file, and nothing was changed: {hint}."
    text = harmless(shown[near[0] - 1])
    return (
        "old_str does not occur in the file, and nothing was changed. Its first line stands at line "
        f"{', '.join(map(str, near[:5]))}, so a space, a tab or a later line differs. Line {near[0]} is {text[:200]!r}."
    )


def number_lines(lines: list[str], first: int) -> str:
    """Return lines with their numbers, as `cat -n` prints them."""
    return "".join(f"{number:6}\t{harmless(line)}\n" for number, line in enumerate(lines, first))


def snippet(change: DocumentChange) -> str:
    """Return the changed lines with a few lines around them, numbered."""
    result = change.after
    first = max(1, result.line_at(change.start) - CONTEXT_LINES)
    last = result.line_at(change.start + max(0, change.added - 1)) + CONTEXT_LINES
    return number_lines(result.lines(first, last), first)


def unified_diff(change: DocumentChange, path: str) -> str:
    """Return the change as a unified diff, in bounded time for files of any length.

    Common lines at both ends are removed first. The rest is aligned up to `MAX_DIFF_LINES`, and is one block beyond.
    """
    old, new = _display_lines(change.before.text), _display_lines(change.after.text)
    if change.before.newline == change.after.newline == "\r\n":
        old, new = ([line.replace("\u240d\n", "\n") for line in lines] for lines in (old, new))
    skip = _common(old, new)
    same_end = _common(old[skip:][::-1], new[skip:][::-1])
    low = max(0, skip - DIFF_CONTEXT)
    high = max(0, same_end - DIFF_CONTEXT)
    old_part, new_part = old[low : len(old) - high], new[low : len(new) - high]
    if max(len(old_part), len(new_part)) > MAX_DIFF_LINES:
        body = _one_block(old[skip : len(old) - same_end], new[skip : len(new) - same_end], skip)
    else:
        body = [_shift(line, low) for line in difflib.unified_diff(old_part, new_part, n=DIFF_CONTEXT)][2:]
    return "".join([f"--- a/{path}\n", f"+++ b/{path}\n", *(_close_line(line) for line in body)])


def _display_lines(text: str) -> list[str]:
    return [harmless(line) for line in re.findall("[^\n]*\n|[^\n]+", text)]


def _common(one: list[str], other: list[str]) -> int:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def _one_block(old: list[str], new: list[str], skip: int) -> list[str]:
    header = f"@@ -{skip + bool(old)},{len(old)} +{skip + bool(new)},{len(new)} @@\n"
    return [header, *("-" + line for line in old), *("+" + line for line in new)]


def _shift(line: str, by: int) -> str:
    """Shift the line numbers of a hunk header; return other lines unchanged."""
    match = re.match(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@", line)
    if not match:
        return line
    return f"@@ -{int(match[1]) + by}{match[2] or ''} +{int(match[3]) + by}{match[4] or ''} @@\n"


def _close_line(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


ALIKE = 0.6
"""Minimum `difflib` ratio for a line to count as a rewritten version of another."""


MAX_EQUAL_PAIRS = 5_000_000
"""Maximum number of pairs of equal old and new lines, each of which `difflib` visits."""

MAX_COMPARED = 10_000
"""Maximum number of pairs of lines that are compared for similarity."""


def moved_lines(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """Map line numbers before an edit to those after it, both counted from 1. Deleted lines have no entry.

    A rewritten line keeps its place: equal numbers of replaced lines match one by one, others by similarity.
    """
    moved: dict[int, int] = {}
    for kind, i1, i2, j1, j2 in _opcodes(old, new):
        if kind == "equal" or (kind == "replace" and i2 - i1 == j2 - j1):
            moved.update(zip(range(i1 + 1, i2 + 1), range(j1 + 1, j2 + 1), strict=True))
        elif kind == "replace":
            moved.update(_most_alike(old, new, range(i1, i2), range(j1, j2)))
    return moved


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Iterable[tuple[str, int, int, int, int]]:
    """Return the opcodes of difflib. Texts with too many equal pairs become one replacement."""
    counts = Counter(new)
    if sum(counts[line] for line in old) > MAX_EQUAL_PAIRS:
        return [("replace", 0, len(old), 0, len(new))]
    return difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _most_alike(old: Sequence[str], new: Sequence[str], gone: range, come: range) -> dict[int, int]:
    """Match similar replaced lines in order, each new line once; match nothing if there are too many."""
    pairs: dict[int, int] = {}
    if len(gone) * len(come) > MAX_COMPARED:
        return pairs
    start = come.start
    for i in gone:
        ratios = [(_ratio(old[i], new[j]), -j) for j in range(start, come.stop)]
        ratio, position = max(ratios, default=(0.0, 0))
        if ratio >= ALIKE:
            pairs[i + 1] = 1 - position
            start = 1 - position
    return pairs


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.strip(), other.strip()).ratio() if one.strip() else 0.0
