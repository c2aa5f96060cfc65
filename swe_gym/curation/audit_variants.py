"""Wrong solutions of a task, made from its gold patch: they show what its tests do not ask for."""

import ast
import itertools
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..grading import file_diff, split_diff
from ..grading.counter import Source, TextEdit
from ..syntax import parse
from .mutation import Function, draw_mutations, find_mutations, mutate
from .releases import OUTSIDE

DOCUMENTS = (".md", ".rst", ".txt", ".po", ".pot", ".html", ".css", ".svg", ".png", ".pyi", ".lock")
"""Suffixes of files without behaviour."""

AFTER = re.compile(r"^(?:\+\+\+|rename to|copy to) .*", re.MULTILINE)
HUNK = re.compile(r"^(?=@@ )", re.MULTILINE)
RANGE = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
MODE = re.compile(r"^(?:new file mode |old mode |index \S+\.\.\S+ )(\d{6})$", re.MULTILINE)


class ChangedFile(NamedTuple):
    """A file that the gold patch changes.

    Attributes:
        path: Path, relative to the workspace.
        before: Content without the patch; None if it is new.
        after: Content with the patch; None if it is deleted.
    """

    path: str
    before: bytes | None
    after: bytes | None


class Variant(NamedTuple):
    """A wrong solution.

    Attributes:
        kind: "hunk" left out, "function" without its work, or the kind of a mutation.
        path: File that differs from the gold patch.
        diff: The solution, as a diff from the untouched repository.
        shown: Its difference to the gold patch.
    """

    kind: str
    path: str
    diff: str
    shown: str


class Section(NamedTuple):
    """The part of a git diff that is about one file.

    Attributes:
        path: Path of the file, after the change.
        head: Lines before the first hunk.
        hunks: The hunks.
    """

    path: str
    head: str
    hunks: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole section."""
        return self.head + "".join(self.hunks)

    def added_lines(self) -> set[int]:
        """Return the numbers of the lines that it adds, in the file after the change."""
        return set[int]().union(*map(_added_lines, self.hunks))


def _added_lines(hunk: str) -> set[int]:
    found: set[int] = set()
    number = _range(hunk)[0]
    for line in hunk.split("\n")[1:]:
        if line.startswith("+"):
            found.add(number)
        number += line[:1] in ("+", " ")
    return found


def split_sections(diff: str) -> list[Section]:
    """Split a git diff into its files. A diff without git's headers has none."""
    found = []
    for names, text in split_diff(diff):
        head, *hunks = HUNK.split(text)
        after = next(split_diff("\n".join(["diff --git ", *AFTER.findall(head)])))[0]
        found.append(Section(min(after or names, default=""), head, tuple(hunks)))
    return found


def added_code(diff: str) -> list[str]:
    """Return the lines that a diff adds to files with behaviour, without blanks at both ends."""
    found = []
    for section in split_sections(diff):
        if not section.path.endswith(DOCUMENTS):
            lines = [line[1:].strip() for hunk in section.hunks for line in hunk.split("\n")[1:] if line[:1] == "+"]
            found += [line for line in lines if line and not line.startswith("#")]
    return found


def make_variants(gold: str, files: Collection[ChangedFile], most: int) -> list[Variant]:
    """Return wrong solutions: hunks left out, functions without their work, and mutants of gold's own lines, in turn.

    Args:
        gold: The gold patch.
        files: The Python files that it changes.
        most: Largest number of variants.
    """
    sections = split_sections(gold)
    known = {file.path: file for file in files if file.after is not None}
    added = {section.path: section.added_lines() for section in sections}
    ways = [_left_out(sections, known), _without_work(sections, known, added), _mutants(sections, known, added)]
    found: dict[str, Variant] = {}
    for variant in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*ways))):
        found.setdefault(variant.diff, variant)
        if len(found) == most:
            break
    return list(found.values())


def break_hunk(gold: str, files: Collection[ChangedFile], left_out: Variant, most: int) -> list[Variant]:
    """Return wrong solutions in which a hunk is there, but does something else.

    Args:
        gold: The gold patch.
        files: The Python files that it changes.
        left_out: The variant without the hunk.
        most: Largest number of variants.
    """
    sections = split_sections(gold)
    known = {file.path: file for file in files if file.after is not None}
    added = {left_out.path: _added_lines(left_out.shown)}
    ways = _mutants(sections, known, added), _without_work(sections, known, added)
    return list(itertools.islice(itertools.chain(*ways), most))


# --- hunks --------------------------------------------------------------------------------------------------------


def _left_out(sections: Sequence[Section], files: Mapping[str, ChangedFile]) -> Iterator[Variant]:
    """Leave out each hunk in turn, or a whole file that is new or binary. Gold itself is more than one of them."""
    places = [(one, hunk) for one in sections for hunk in one.hunks or ("",)]
    for section, hunk in places if len(places) > 1 else ():
        if _matters(section, hunk, files):
            kept = [one._replace(hunks=tuple(h for h in one.hunks if h is not hunk)) for one in sections]
            diff = "".join(one.text for one in kept if one.hunks or (one.path != section.path and not one.hunks))
            yield Variant("hunk", section.path, diff, hunk or section.head)


def _matters(section: Section, hunk: str, files: Mapping[str, ChangedFile]) -> bool:
    """Whether a hunk changes behaviour: not only comments, docstrings, imports, a version or documents."""
    if section.path.endswith(DOCUMENTS) or section.path in OUTSIDE or "." not in posixpath.basename(section.path):
        return False
    file = files.get(section.path)
    if not hunk or file is None or file.after is None:
        return file is None or file.after != b""
    first, count = _range(hunk)
    lines = file.after.decode("utf-8", "replace").split("\n")
    old = [line[1:] for line in hunk.split("\n")[1:] if line[:1] in ("-", " ")]
    without = "\n".join([*lines[: first - 1], *old, *lines[first - 1 + count :]])
    return _meaning(without) != _meaning("\n".join(lines))


def _range(hunk: str) -> tuple[int, int]:
    """Return the first line of a hunk after the change, and the number of lines."""
    match = RANGE.match(hunk)
    if match is None:
        return 1, 0
    count = 1 if match[2] is None else int(match[2])
    return int(match[1]) + (count == 0), count


def _meaning(text: str) -> str:
    """Return a Python program without comments, docstrings, imports and version.

    A text that is no such program, or one that is nested too deeply, is returned itself.
    """
    try:
        tree = parse(text)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                body[:] = [one for one in body if not _means_nothing(one)]
        return ast.dump(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


def _means_nothing(node: ast.stmt) -> bool:
    """Whether a statement does nothing by itself. A missing import that code needs is not a likely mistake."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__version__" | "version" | "VERSION")]):
            return True
    return False


# --- functions, mutants ---------------------------------------------------------------------------------------------


def _without_work(
    sections: Sequence[Section], files: Mapping[str, ChangedFile], added: Mapping[str, Collection[int]]
) -> Iterator[Variant]:
    """Give each function that gold adds or changes a constant result: None, and one that it returns itself."""
    for section, source in _sources(sections, files):
        of_gold = added.get(section.path, ())
        for function in source.functions.values():
            body = function.body[1:] if ast.get_docstring(function) is not None else function.body
            lines = range(body[0].lineno, (body[-1].end_lineno or 0) + 1) if body else range(0)
            works = any(line in lines for line in of_gold) and not all(map(_does_nothing, body))
            if works and not source.before(body[0]).strip():
                span = source.span(body[0])[0], source.span(body[-1])[1]
                for text in _constants(function, body):
                    yield from _changed(
                        sections, section, files, "function", source.apply_edits([TextEdit(*span, text)])
                    )


def _does_nothing(node: ast.stmt) -> bool:
    """Whether a statement is all that a function without work holds."""
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Return(value=None | ast.Constant(value=None)):
            return True
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
    return False


def _constants(function: Function, body: Sequence[ast.stmt]) -> list[str]:
    """Return statements that could stand for the body of a function."""
    known = [
        node.value.value
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and node.value.value is not None
    ]
    found = ["return None", *(f"return {value!r}" for value in known[:1])]
    try:
        return [text for text in found if ast.dump(parse(text)) != ast.dump(ast.Module([*body], []))]
    except RecursionError:  # it is nested too deeply
        return []


def _mutants(
    sections: Sequence[Section], files: Mapping[str, ChangedFile], added: Mapping[str, Collection[int]]
) -> Iterator[Variant]:
    """Change one thing in the lines that gold adds, or two."""
    data = {section.path: files[section.path].after or b"" for section, _ in _sources(sections, files)}
    by_path = {section.path: section for section in sections}
    of_gold = []
    for mutation in find_mutations(data):
        lines, text = added.get(mutation.path, ()), data[mutation.path]
        if all(text.count(b"\n", 0, edit.start) + 1 in lines for edit in mutation.edits):
            of_gold.append(mutation)
    for mutation in draw_mutations(of_gold, 0):
        section = by_path[mutation.path]
        try:
            after = mutate(data[mutation.path], mutation)
        except ValueError:
            continue
        yield from _changed(sections, section, files, mutation.kind, after)


def _sources(sections: Sequence[Section], files: Mapping[str, ChangedFile]) -> Iterator[tuple[Section, Source]]:
    for section in sections:
        file = files.get(section.path)
        if file is not None and file.after is not None and section.hunks and section.path not in OUTSIDE:
            try:
                yield section, Source(file.after)
            except ValueError:
                continue


def _changed(
    sections: Sequence[Section], section: Section, files: Mapping[str, ChangedFile], kind: str, after: bytes
) -> Iterator[Variant]:
    """Yield the solution in which one file has another content."""
    file = files[section.path]
    if file.before is None and not section.head.count("\nnew file mode"):
        return  # it was renamed
    match = MODE.search(section.head)
    mode = int(match[1], 8) if match else 0o100644
    old_mode = mode if file.before is not None else None
    part = file_diff(file.path, file.before, after, old_mode, mode)
    diff = "".join(part if one is section else one.text for one in sections)
    if after != file.before:
        yield Variant(kind, file.path, diff, file_diff(file.path, file.after, after, mode, mode))
