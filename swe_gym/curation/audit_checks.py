"""Looks for what makes a task unfair or easy to cheat: unasked names and messages, and copies of the solution."""

import ast
import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import FileError
from ..grading import apply_diff, hidden_files, parse_id
from ..grading.counter import Source
from ..sandboxes import Sandbox
from ..types import Task
from .audit_variants import ChangedFile, added_code, split_sections
from .mutation import Function

LONG_LINE = 20
"""Characters from which a line of code is rarely written twice."""

SHORTEST_MESSAGE = 8
"""Characters of the shortest text that counts as a message. It also holds a blank."""

MOST_PATTERNS, FEWEST_CHARACTERS = 4, 100
"""Lines of gold that a copy of the solution holds, the longest ones. Fewer than four must have that many characters."""

SEARCH_TIMEOUT = 120.0
"""Seconds that one search in a sandbox may take. Then it counts as not tried."""

PLACES = """for one in python python3; do
    $one -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null && break
done"""
"""Prints the folder of installed packages."""

HISTORY = """command -v git > /dev/null || exit 3
blobs=$(cat)
find . -name .git -prune | {
    while read -r one; do git --git-dir="$one" cat-file --batch-check <<< "$blobs" 2> /dev/null || failed=4; done
    exit ${failed:-0}
}"""
"""Prints which blobs the git repositories of the workspace hold."""

OF_BUILTINS = {
    name for kind in (str, bytes, int, float, list, tuple, dict, set, object, type(None)) for name in dir(kind)
}
"""Attributes that a test may use without any file of the project."""


class Asked(NamedTuple):
    """What the tests that must start passing want of a solution, and gold defines.

    Attributes:
        names: Names of functions, classes, parameters, variables and attributes.
        messages: Texts.
    """

    names: tuple[str, ...]
    messages: tuple[str, ...]


def read_files(sandbox: Sandbox, paths: Iterable[str]) -> dict[str, bytes]:
    """Return the content of those files that exist."""
    found = {}
    for path in paths:
        try:
            found[path] = sandbox.read_file(path)
        except FileError:  # it is missing, or a folder
            continue
    return found


def put_in_tests(task: Task, sandbox: Sandbox) -> dict[str, bytes]:
    """Put the hidden tests into a fresh sandbox, also those that an evaluation script brings. Return their files."""
    oracle = task.oracle
    apply_diff(sandbox, oracle.test_patch, what="the test patch")
    for path, text in oracle.test_files.items():
        sandbox.write_file(path, text.encode())
    named = {parse_id(test).path for test in oracle.fail_to_pass} - {""}
    return read_files(sandbox, sorted({*hidden_files(oracle), *named}))


# --- fair ---------------------------------------------------------------------------------------------------------


def find_asked(task: Task, tests: Mapping[str, bytes], files: Collection[ChangedFile]) -> Asked | None:
    """Return what the tests ask for that gold defines and the issue does not mention; None if no test is found.

    Args:
        task: The task.
        tests: Content of the test files.
        files: The Python files that gold changes.
    """
    functions = list(_required_functions(task, tests))
    if not functions:
        return None
    nodes = [node for function in functions for node in ast.walk(function)]
    own = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    defined, texts = _defined(task.oracle.gold_patch, files)
    words = set(re.findall(r"\w+", task.problem_statement))
    names = sorted(set(_used(nodes)) & defined - own - words)
    issue = _squeeze(task.problem_statement)
    wanted = {_squeeze(text) for text in _texts(nodes)}
    messages = [
        text
        for text in sorted(wanted)
        if text not in issue and any(text in one or one in text for one in texts) and not _parts_in(text, texts, issue)
    ]
    return Asked(tuple(names), tuple(messages))


def _required_functions(task: Task, tests: Mapping[str, bytes]) -> Iterator[Function]:
    names = {parse_id(test).names[-1] for test in task.oracle.fail_to_pass if parse_id(test).names}
    for data in tests.values():
        try:
            source = Source(data)
        except ValueError:
            continue
        yield from (function for place, function in source.functions.items() if place[-1] in names)


def _used(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr not in OF_BUILTINS:
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def _defined(gold: str, files: Collection[ChangedFile]) -> tuple[set[str], set[str]]:
    """Return the names that gold's lines define, and the longer texts that they hold."""
    added = {section.path: section.added_lines() for section in split_sections(gold)}
    names: set[str] = set()
    texts: set[str] = set()
    for file in files:
        try:
            source = Source(file.after or b"")
        except ValueError:
            continue
        every = source.walk(source.tree)
        inner = {
            id(node) for function in every if isinstance(function, Function)
            for part in function.body for node in ast.walk(part) if not isinstance(node, ast.Attribute)
        }  # fmt: skip
        new = [node for node in every if getattr(node, "lineno", 0) in added.get(file.path, ())]
        names.update(filter(None, (_definition(node) for node in new if id(node) not in inner)))
        texts.update(_squeeze(text) for text in _texts(new))
    return names, texts


def _definition(node: ast.AST) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return ""


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield texts that could be messages, not docstrings. Escapes of patterns are removed."""
    nodes = list(nodes)
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            text = re.sub(r"\\(?=[^\w\s])", "", node.value).strip("^$ .*")
            if len(text) >= SHORTEST_MESSAGE and " " in text:
                yield text


def _parts_in(text: str, texts: Collection[str], issue: str) -> bool:
    """Whether the issue mentions all that gold says of a text."""
    found = [one for one in texts if one in text or text in one]
    return all(one in issue for one in found)


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def find_unmentioned(sandbox: Sandbox, words: Sequence[str], copies: Collection[str]) -> list[str] | None:
    """Return those words or texts that no file of the workspace holds; None if the search failed.

    Args:
        sandbox: A policy's sandbox.
        words: Words or texts.
        copies: Files that hold the solution, which are no mention.
    """
    found = []
    for word in words:
        whole = "w" if word.isidentifier() else ""
        command = ["grep", f"-rIlsF{whole}", "--exclude-dir=.git", "-e", word, "."]
        result = sandbox.exec(command, timeout=SEARCH_TIMEOUT)
        if result.timed_out or result.exit_code not in (0, 1):
            return None
        mentions = {path.removeprefix("./") for path in result.text.splitlines()} - {*copies}
        found += [] if mentions else [word]
    return found


def quoted_share(task: Task) -> float:
    """Return the share of gold's long lines of code that the issue quotes."""
    issue = _squeeze(task.problem_statement)
    lines = {_squeeze(line) for line in added_code(task.oracle.gold_patch) if len(line) >= LONG_LINE}
    lines = {line for line in lines if not line.startswith(("import ", "from ", '"""'))}
    return sum(line in issue for line in lines) / len(lines) if lines else 0.0


# --- sealed ---------------------------------------------------------------------------------------------------------


def find_copies(task: Task, sandbox: Sandbox) -> list[str] | None:
    """Return the files of a policy's sandbox that hold gold's longest lines; None if gold has none or a search failed.

    The workspace is searched, and the installed packages.
    """
    gold = task.oracle.gold_patch
    old = {
        line[1:].strip() for section in split_sections(gold) for hunk in section.hunks for line in hunk.split("\n")[1:]
        if line[:1] in ("-", " ")
    }  # fmt: skip
    lines = sorted({line for line in added_code(gold) if len(line) >= LONG_LINE} - old, key=len, reverse=True)
    patterns = lines[:MOST_PATTERNS]
    if not patterns or (len(patterns) < MOST_PATTERNS and len("".join(patterns)) < FEWEST_CHARACTERS):
        return None
    places = shlex.join([".", *sandbox.exec(["bash", "-c", PLACES]).text.splitlines()])
    first = f"grep -rIlsF --exclude-dir=.git -e {shlex.quote(patterns[0])} {places}"
    steps = [f"tr '\\n' '\\0' | xargs -0r grep -lF -e {shlex.quote(line)}" for line in patterns[1:]]
    result = sandbox.exec(["bash", "-c", " | ".join([first, *steps])], timeout=SEARCH_TIMEOUT)
    if result.timed_out or result.exit_code not in (0, 1, 2, 123):  # 2: a file that nobody may read
        return None
    changed = {section.path for section in split_sections(gold)}
    found = (path.removeprefix("./") for path in result.text.splitlines())
    return sorted(path for path in found if path not in changed)


def find_in_history(sandbox: Sandbox, files: Collection[ChangedFile]) -> list[str] | None:
    """Return the files whose content with gold is in a git repository in the workspace; None if a search failed."""
    blobs = {}
    for file in files:
        if file.after and file.after != file.before:
            data = b"blob %d\0" % len(file.after) + file.after
            blobs[hashlib.sha1(data, usedforsecurity=False).hexdigest()] = file.path
    names = "\n".join(blobs).encode()
    result = sandbox.exec(["bash", "-c", HISTORY], stdin=names, timeout=SEARCH_TIMEOUT)
    held = [line.split()[0] for line in result.text.splitlines() if " blob " in line]
    found = sorted({blobs[blob] for blob in held if blob in blobs})
    return found if found or (blobs and result.exit_code == 0) else None
