"""Source releases on the index that pip is configured for."""

import base64
import functools
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swe_gym.errors import SandboxStartError, TaskError
from swe_gym.index import download_sdist, find_sdists, pip_command

DATA = b"the release"
SHA256 = hashlib.sha256(DATA).hexdigest()


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder behind a password."""

    expected = "Basic " + base64.b64encode(b"me:p@ss").decode()

    def do_GET(self) -> None:
        if self.headers["Authorization"] == self.expected:
            super().do_GET()
        else:
            self.send_error(401)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local index with one project, in pip's configuration."""
    root = tmp_path / "simple"
    (root / "my-pkg").mkdir(parents=True)
    (root / "my-pkg" / "index.html").write_text(
        f"<a href='../../files/my_pkg-1.0.tar.gz#sha256={SHA256}'>my_pkg-1.0.tar.gz</a>"
        "<a href='../../files/my_pkg-1.0-py3-none-any.whl'>x</a><a name=here>y</a>"
        "<a href='../../files/my_pkg-0.10.tar.gz'>w</a><a href='../../files/my_pkg-0.9.tar.gz'>v</a>"
        "<a href='../../files/My.Pkg-1.1%2Blocal.zip'>z</a>"
        "<a href='../../files/my-pkg-extra-2.0.tar.gz'>other</a>"
        "<a href='../../files/my-pkg-0.8.tar.bz2'>old</a><a href='../../files/my-pkg-1.0.win32.zip'>no version</a>"
    )
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "my_pkg-1.0.tar.gz").write_bytes(DATA)
    monkeypatch.setenv("PIP_INDEX_URL", root.as_uri())
    return root


def download(**changes: str) -> Path:
    wanted = {"name": "My_Pkg", "filename": "my_pkg-1.0.tar.gz", "sha256": SHA256, **changes}
    return download_sdist(**wanted, timeout=60)


def test_only_source_releases_of_the_project_are_listed(index: Path) -> None:
    found = find_sdists("My_Pkg", timeout=60)
    assert [str(sdist.version) for sdist in found] == ["0.8", "0.9", "0.10", "1.0", "1.1+local"]
    assert [(sdist.filename, str(sdist.version), sdist.sha256) for sdist in found[3:]] == [
        ("my_pkg-1.0.tar.gz", "1.0", SHA256),
        ("My.Pkg-1.1+local.zip", "1.1+local", ""),
    ]
    assert found[3].url == f"{index.parent.as_uri()}/files/my_pkg-1.0.tar.gz"


def test_a_release_is_fetched_once(index: Path) -> None:
    path = download()
    assert path.read_bytes() == DATA
    (index / "my-pkg" / "index.html").unlink()
    assert download() == path


@pytest.mark.usefixtures("index")
def test_a_file_with_another_digest_is_rejected() -> None:
    with pytest.raises(TaskError, match=f"has SHA-256 {SHA256}, not {'0' * 64}"):
        download(sha256="0" * 64)
    with pytest.raises(TaskError, match=r"has no file 'my_pkg-9.tar.gz'.*my_pkg-1.0.tar.gz"):
        download(filename="my_pkg-9.tar.gz")


@pytest.mark.usefixtures("index")
def test_an_unknown_project_is_a_task_error() -> None:
    with pytest.raises(TaskError, match="no package index in pip's configuration has a project 'other'"):
        find_sdists("other", timeout=60)


def test_an_unreachable_index_is_a_sandbox_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(SandboxStartError, match="cannot reach the package index") as caught:
        find_sdists("my-pkg", timeout=60)
    assert caught.value.retryable
    assert "secret" not in str(caught.value)


@pytest.fixture
def server(index: Path) -> Iterator[str]:
    """The address of the same index over HTTP, behind a password, with pages in JSON."""
    page = {"files": [{"filename": "my_pkg-1.0.tar.gz", "url": "/files/my_pkg-1.0.tar.gz", "hashes": {"sha256": "f"}}]}
    (index / "my-pkg" / "index.html").write_text(json.dumps(page))
    handler = functools.partial(Handler, directory=str(index.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"127.0.0.1:{served.server_port}/simple/"
        served.shutdown()
        thread.join()


def test_json_pages_passwords_and_further_indexes(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://me:p%40ss@{server}")
    assert [sdist.sha256 for sdist in find_sdists("my-pkg", timeout=60)] == ["f"]
    assert download(filename="my_pkg-1.0.tar.gz").read_bytes() == DATA


def test_a_refused_password_is_not_an_unknown_project(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{server}")
    with pytest.raises(SandboxStartError, match="401"):
        find_sdists("my-pkg", timeout=60)


def test_a_configuration_file_of_pip_applies(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = file:///nowhere\n[download]\nindex-url = {index.as_uri()}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert len(find_sdists("my-pkg", timeout=60)) == 5


def test_pip_is_found() -> None:
    assert pip_command()[0] == sys.executable
