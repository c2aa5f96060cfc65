"""Source releases on the Python package index that the user's pip is configured for.

pip cannot download a source release without running its build code. So pip only names the index (from its configuration
files, environment variables and defaults), and this module reads the index pages (PEP 503 and PEP 691).
"""

import base64
import hashlib
import importlib.util
import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from packaging.utils import canonicalize_name, parse_sdist_filename
from packaging.version import Version

from .cache import build_once, digest
from .commands import run_command
from .errors import MissingDependency, SandboxStartError, TaskError
from .syntax import evaluate

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_OLD_ENDING = re.compile(r"\.(?:tar\.bz2|tgz)$")
"""Endings of source releases before PEP 527."""

_CHUNK = 1 << 20

_ANSWERS: dict[tuple[str, ...], str] = {}
"""Arguments and environment of pip -> what it printed."""


@dataclass(frozen=True)
class Sdist:
    """A source release on an index.

    Attributes:
        name: Normalised project name: "charset-normalizer".
        version: Version in the file name (PEP 440).
        filename: File name: "charset_normalizer-3.4.0.tar.gz".
        url: Download URL, without credentials.
        sha256: Digest from the index, or "".
        yanked: Whether its project has withdrawn it (PEP 592).
    """

    name: str
    version: Version
    filename: str
    url: str
    sha256: str
    yanked: bool = False


def pip_command() -> list[str]:
    """Return the command that runs pip: the running Python's, or the one bundled with `ensurepip`.

    Raises:
        MissingDependency: Neither is installed.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    ensurepip = importlib.util.find_spec("ensurepip")
    folder = Path(ensurepip.origin).parent if ensurepip and ensurepip.origin else Path("/nonexistent")
    for wheel in sorted(folder.glob("_bundled/pip-*.whl")):
        return [sys.executable, str(wheel / "pip")]
    raise MissingDependency(f"pip is required, but {sys.executable} has none: install it with your package manager")


def find_sdists(name: str, *, timeout: float) -> list[Sdist]:
    """Return all source releases of a project, ordered by version. Files without a version (PEP 440) are omitted.

    Raises:
        TaskError: No configured index has the project.
        SandboxStartError: No configured index can be reached.
    """
    deadline = time.monotonic() + timeout
    return _find(_Indexes.of_pip(deadline), name, deadline)


def download_sdist(name: str, filename: str, sha256: str, *, timeout: float) -> Path:
    """Return the local path of a source release. It is downloaded unless the cache holds it.

    Raises:
        TaskError: No configured index has the file, or its digest is not `sha256`.
        SandboxStartError: No configured index can be reached, or the download failed.
    """
    deadline = time.monotonic() + timeout

    def fetch(folder: Path) -> None:
        indexes = _Indexes.of_pip(deadline)
        found = {sdist.filename: sdist for sdist in _find(indexes, name, deadline)}
        if filename not in found:
            shown = ", ".join(list(found)[-10:]) or "none"
            raise TaskError(f"the package index has no file {filename!r} for {name!r}. Files, newest last: {shown}")
        data = indexes.get(found[filename].url, deadline)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise TaskError(f"{filename} from the package index has SHA-256 {hashlib.sha256(data).hexdigest()}, "
                            f"not {sha256}: the file was replaced, or the task is wrong")  # fmt: skip
        (folder / filename).write_bytes(data)

    return build_once("sdists", digest(filename, sha256), fetch, deadline=deadline) / filename


def _find(indexes: "_Indexes", name: str, deadline: float) -> list[Sdist]:
    problems = []
    known = False
    found: dict[str, Sdist] = {}
    for base in indexes.urls:
        page_url = f"{base.rstrip('/')}/{canonicalize_name(name)}/"
        try:
            page = indexes.get(page_url, deadline)
        except OSError as error:
            if not _is_absent(error):
                problems.append(f"{_public(base)}: {error}")
            continue
        known = True
        for sdist in _sdists(page, page_url, canonicalize_name(name)):
            found.setdefault(sdist.filename, sdist)
    if problems and not found:
        raise SandboxStartError(
            f"cannot reach the package index to look up {name!r}",
            reason="setup",
            retryable=True,
            detail="\n".join(problems),
        )
    if not known:
        raise TaskError(f"no package index in pip's configuration has a project {name!r}")
    return sorted(found.values(), key=lambda sdist: sdist.version)


def _is_absent(error: OSError) -> bool:
    """Return whether the index was reached but does not have the project."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (404, 410)
    return isinstance(getattr(error, "reason", error), FileNotFoundError)


@dataclass(frozen=True)
class _Indexes:
    """The indexes in pip's configuration, and how to connect to them."""

    urls: tuple[str, ...]
    cert: str

    @classmethod
    def of_pip(cls, deadline: float) -> "_Indexes":
        settings = _pip_settings(deadline)
        main = settings.get("index-url") or _pip_default_index(deadline)
        return cls((main, *settings.get("extra-index-url", "").split()), settings.get("cert", ""))

    def get(self, url: str, deadline: float) -> bytes:
        """Download `url`. Credentials of an index are sent only to its own host.

        Raises:
            OSError: The download failed.
        """
        parts = urlsplit(url)
        if parts.scheme == "file" and url.endswith("/"):
            url += "index.html"
        request = urllib.request.Request(_public(url), headers={"Accept": _ACCEPT, "User-Agent": "swe-gym"})
        for index in (url, *self.urls):
            owner = urlsplit(index)
            if owner.username and owner.hostname == parts.hostname:
                secret = f"{unquote(owner.username)}:{unquote(owner.password or '')}".encode()
                request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(secret).decode())
                break
        context = ssl.create_default_context(cafile=self.cert or None)
        chunks = []
        with urllib.request.urlopen(request, timeout=_left(deadline), context=context) as answer:
            while chunk := answer.read(_CHUNK):
                _left(deadline)
                chunks.append(chunk)
        return b"".join(chunks)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the package index timed out")
    return left


def _public(url: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# --- pip's configuration --------------------------------------------------------------------------------


def _pip(arguments: list[str], deadline: float) -> str:
    """Return what pip prints. An answer holds for the process, unless its environment changes: pip starts slowly."""
    key = (*arguments, *sorted(map("=".join, os.environ.items())))
    if key not in _ANSWERS:
        _ANSWERS[key] = _ask_pip(arguments, deadline)
    return _ANSWERS[key]


def _ask_pip(arguments: list[str], deadline: float) -> str:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "4000"}
    failure = f"pip {' '.join(arguments)} failed"
    result = run_command([*pip_command(), *arguments], deadline=deadline, env=environment, failure=failure)
    return result.stdout.decode("utf-8", "replace")


def _pip_settings(deadline: float) -> dict[str, str]:
    """Return the settings of `pip download`: environment variables, then its own section, then the global one."""
    found: dict[str, dict[str, str]] = {}
    for line in _pip(["config", "list"], deadline).splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        found.setdefault(section, {})[option] = str(evaluate(value))
    return {**found.get("global", {}), **found.get("download", {}), **found.get(":env:", {})}


def _pip_default_index(deadline: float) -> str:
    """Return pip's default index, which its help text names."""
    match = re.search(r"--index-url <url>[^(]*\(default\s+(\S+?)\)", _pip(["download", "--help"], deadline))
    if not match:
        raise TaskError("cannot determine the package index of pip: set PIP_INDEX_URL")
    return match[1]


# --- index pages ----------------------------------------------------------------------------------------


def _sdists(page: bytes, page_url: str, project: str) -> Iterator[Sdist]:
    for filename, link, sha256, yanked in _files(page):
        try:
            name, version = parse_sdist_filename(_OLD_ENDING.sub(".tar.gz", filename))
        except ValueError:
            continue  # not a source release
        if name == project:
            yield Sdist(project, version, filename, urljoin(_public(page_url), link), sha256, yanked)


def _files(page: bytes) -> Iterator[tuple[str, str, str, bool]]:
    """Yield all files on a project's page, JSON or HTML: file name, link, SHA-256, and whether it was yanked."""
    if page.lstrip()[:1] == b"{":
        for file in json.loads(page)["files"]:
            yanked = file.get("yanked", False) is not False  # true, or the reason
            yield file["filename"], file["url"], file.get("hashes", {}).get("sha256", ""), yanked
        return
    parser = _Links()
    parser.feed(page.decode("utf-8", "replace"))
    for href, yanked in parser.found:
        link, fragment = urldefrag(href)
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        yield unquote(urlsplit(link).path.rpartition("/")[2]), link, sha256, yanked


class _Links(HTMLParser):
    """Parser that collects the link targets of a page, and whether they were yanked."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "a" and (target := named.get("href")):
            self.found.append((target, "data-yanked" in named))
