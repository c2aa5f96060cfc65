"""Facts about a source release: where its tests are, what they require, and what its changelog says.

Releases are only read, never run. `swe_gym.curation.new_task` makes tasks from them.
"""

import configparser
import email.parser
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import TaskError
from ..types import JsonObject

_TEST_FILE = ("test_*.py", "*_test.py", "tests.py", "test.py")
_TEST_FOLDER = re.compile(r"(?:.*/)?tests?|testing")
_TEST_GROUP = re.compile(r"(?:unit)?tests?(?:ing|_runner)?|pytest|hatch-test", re.IGNORECASE)
_GENERATED = ("PKG-INFO", "*.egg-info/*", ".git/*")
_REQUIREMENT_FILES = ("*requirements*.txt", "*requirements*/*.txt", "tests/requirements*.txt")
_CHANGELOG = re.compile(
    r"(?:changes|changelog|history|news|release[-_]?notes|releases)(?:\.(?:md|rst|txt))?", re.IGNORECASE
)
_HASH_HEADING = re.compile(r"#{1,4}\s")
_VERSION_LINE = re.compile(r"\*{0,2}\[?v?\d+\.\d+[\w.]*\]?\*{0,2}(\s*[-(:,*\u2013].*)?")
_UNDERLINE = re.compile(r"([=\-~^*+#\"'`])\1{2,}")
_DOTTED = re.compile(r"(?<![\w.])v?\d+(?:\.\w+)+")
_MAX_STATEMENT = 20_000


@dataclass(frozen=True)
class TestLayout:
    """The locations of a project's tests.

    Attributes:
        patterns: Glob patterns (fnmatch) of all test files.
        targets: Folders and files to pass to the test runner.
    """

    __test__ = False  # keeps pytest from collecting it

    patterns: tuple[str, ...]
    targets: tuple[str, ...]

    def __contains__(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)


OUTSIDE = TestLayout(
    (
        *("setup.py", "setup.cfg", "pyproject.toml", "tox.ini", "MANIFEST.in", "conftest.py", "noxfile.py"),
        *("docs/*", "doc/*", "examples/*", "benchmarks/*", "tools/*", "scripts/*", ".*", "*/.*", "*_version.py"),
    ),
    (),
)
"""Files that are not product code."""


def list_files(tree: Path) -> list[str]:
    """Return the relative paths of all files and links of a release, except files of packaging tools."""
    paths = (path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_symlink() or path.is_file())
    return sorted(path for path in paths if not is_generated(path))


def is_generated(path: str) -> bool:
    """Return whether a packaging tool generated a file."""
    return any(fnmatchcase(path, pattern) or fnmatchcase(path, f"*/{pattern}") for pattern in _GENERATED)


def find_tests(files: Sequence[str]) -> TestLayout:
    """Find the tests of a project by the conventions of pytest and unittest.

    These are the outermost folders named "test" or "tests" (at the top, also "testing") that hold files named like
    tests or, without such folders, only those files. A `conftest.py` at the top belongs to the tests.

    Raises:
        TaskError: There are no tests: many projects omit them from their source releases.
    """
    tests = [PurePosixPath(path) for path in files if any(fnmatchcase(Path(path).name, name) for name in _TEST_FILE)]
    folders = {outermost for path in tests if (outermost := _test_folder(path))}
    targets = folders or set(map(str, tests))
    if not targets:
        raise TaskError("the code holds no tests: choose another release or commit of the project")
    patterns = {f"{_escape(target)}/*" if folders else _escape(target) for target in targets}
    patterns |= {"conftest.py"} & set(files)
    return TestLayout(tuple(sorted(patterns)), tuple(sorted(targets)))


def _test_folder(path: PurePosixPath) -> str | None:
    """Return the outermost parent folder that is named like a test folder."""
    return next((str(folder) for folder in reversed(path.parents) if _TEST_FOLDER.fullmatch(str(folder))), None)


def _escape(path: str) -> str:
    """Return a pattern that matches only this path."""
    return re.sub(r"([*?[])", r"[\1]", path)


def find_source_root(tree: Path, package: str) -> str:
    """Return the folder that must be on the import path, relative to the release: "src", "lib" or "" (the top)."""
    names = {canonicalize_name(package).replace("-", "_")}
    for listing in tree.glob("*.egg-info/top_level.txt"):
        names |= set(listing.read_text(encoding="utf-8").split())
    for root in ("src", "lib"):
        if any((tree / root / name).is_dir() or (tree / root / f"{name}.py").is_file() for name in names):
            return root
    return ""


# --- requirements -------------------------------------------------------------------------------------


def test_requirements(tree: Path, package: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the requirements of a release and its tests, as the release declares them.

    Returns:
        The test extras of the package, and requirement lines: those of the package, and the test requirements in
        dependency groups, tool tables and requirement files. Development requirements count only if there are no
        test requirements.
    """
    metadata = _metadata(tree)
    extras = tuple(name for name in metadata.get_all("Provides-Extra", []) if _TEST_GROUP.fullmatch(name))
    needs = [line for line in metadata.get_all("Requires-Dist", []) if not re.search(r"\bextra\s*==", line)]
    groups = dict(_groups(tree))
    tests = [line for name, lines in groups.items() if _TEST_GROUP.fullmatch(name) for line in lines]
    if not tests and not extras:
        tests = groups.get("dev", [])
    lines = [line.strip() for line in (*needs, *tests)]
    return extras, tuple(_merge(line for line in lines if _project(line) not in ("", canonicalize_name(package))))


def _merge(lines: Iterable[str]) -> Iterator[str]:
    """Yield one line per project. If lists disagree on a version, yield the bare name and let pip decide.

    Lines with environment markers do not disagree: each applies to another interpreter.
    """
    projects: dict[str, dict[str, None]] = {}
    for line in lines:
        projects.setdefault(_project(line), {})[line] = None
    for name, wishes in projects.items():
        agree = len(wishes) == 1 or all(";" in wish for wish in wishes)
        yield from wishes if agree else (name,)


def _metadata(tree: Path) -> Message:
    file = tree / "PKG-INFO"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return email.parser.HeaderParser().parsestr(text)


def _project(line: str) -> str:
    """Return the project that a requirement takes from an index; "" for a path, URL or option."""
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return ""
    return "" if requirement.url else canonicalize_name(requirement.name)


def _groups(tree: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield named lists of requirements from all places. Files yield the names "test" and "dev"."""
    found: dict[str, list[str]] = {}
    for name, lines in (*_pyproject_groups(tree), *_tox_groups(tree), *_file_groups(tree)):
        found.setdefault(name, []).extend(lines)
    yield from found.items()


def _pyproject_groups(tree: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        data = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return
    groups = data.get("dependency-groups", {})
    for name in groups:
        yield name, list(_group(groups, name, ()))
    tools = data.get("tool", {})
    for name, table in tools.get("hatch", {}).get("envs", {}).items():
        yield name, [*table.get("dependencies", []), *table.get("extra-dependencies", [])]
    poetry = tools.get("poetry", {})
    for name, table in {"dev": {"dependencies": poetry.get("dev-dependencies", {})}, **poetry.get("group", {})}.items():
        yield name, list(table.get("dependencies", {}))


def _group(groups: JsonObject, name: str, above: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a dependency group and of the groups that it includes."""
    for entry in groups.get(name, []) if name not in above else []:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _group(groups, entry.get("include-group", ""), (*above, name))


def _tox_groups(tree: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the dependencies of all test environments in `tox.ini`."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(tree / "tox.ini", encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return
    lines = parser.get("testenv", "deps", fallback="").splitlines()
    yield "test", [line for line in map(str.strip, lines) if not re.search(r"[{}]|^[\w,!-]+:|^-", line)]


def _file_groups(tree: Path) -> Iterator[tuple[str, list[str]]]:
    for file in sorted(path for pattern in _REQUIREMENT_FILES for path in tree.glob(pattern)):
        relative = file.relative_to(tree).as_posix()
        name = "test" if "test" in relative else "dev" if "dev" in relative else ""
        if name:
            yield name, list(_requirement_lines(file, ()))


def _requirement_lines(file: Path, above: tuple[Path, ...]) -> Iterator[str]:
    """Yield the lines of a requirements file and of the files that it includes, without comments and hashes."""
    if file in above or not file.is_file():
        return
    text = file.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    for line in text.splitlines():
        line = re.split(r"(?:^|\s)#|\s--hash", line)[0].strip()
        if included := re.fullmatch(r"(?:-r|--requirement)[\s=]*(.+)", line):
            yield from _requirement_lines(file.parent / included[1], (*above, file))
        elif line and not line.startswith("-"):
            yield line


# --- changelogs -----------------------------------------------------------------------------------------


def changes_between(tree: Path, files: Iterable[str], old: str, new: str) -> str:
    """Return the changelog of the versions after `old` up to `new`. It is empty if the release has none."""
    logs = [path for path in files if _CHANGELOG.fullmatch(PurePosixPath(path).name) and path.count("/") <= 2]
    for path in sorted(logs, key=lambda path: (path.count("/"), path)):
        text = (tree / path).read_text(encoding="utf-8", errors="replace")
        if section := _section(text.splitlines(), old, new):
            return section[:_MAX_STATEMENT]
    return ""


def _section(lines: Sequence[str], old: str, new: str) -> str:
    """Return the lines from the heading of `new` to that of `old` or, if it is missing, of any other version."""
    headings = [number for number in range(len(lines)) if _is_heading(lines, number)]
    start = next((number for number in headings if _names(lines[number], new)), None)
    if start is None:
        return ""
    after = [number for number in headings if number > start]
    end = next((number for number in after if _names(lines[number], old)), None)
    if end is None:
        end = next((number for number in after if re.search(r"\d+\.\d+", lines[number])), len(lines))
    return "\n".join(lines[start:end]).strip()


def _names(line: str, version: str) -> bool:
    """Return whether a line names exactly this version, in any spelling: 2024.02.02 is 2024.2.2."""
    if re.search(rf"(?<![\w.])v?{re.escape(version)}(?!\.?\w)", line):
        return True
    return any(_is_version(word, version) for word in _DOTTED.findall(line))


def _is_version(word: str, version: str) -> bool:
    try:
        return Version(word) == Version(version)
    except InvalidVersion:
        return False


def _is_heading(lines: Sequence[str], number: int) -> bool:
    """Return whether a line is a heading: "## 1.2", underlined (reStructuredText), or a lone version."""
    line = lines[number].strip()
    below = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return bool(line) and bool(
        _HASH_HEADING.match(line) or _VERSION_LINE.fullmatch(line) or _UNDERLINE.fullmatch(below)
    )
