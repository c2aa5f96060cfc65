"""The runner's loop, its files and its listings, run on the host."""

import errno
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_gym.guests.protocol import (
    GET_TAR,
    MANIFEST,
    OPERATIONS,
    PUT_TAR,
    READ_FILE,
    WRITE_FILE,
    Decoder,
    Operation,
    encode,
    fields_of,
)
from swe_gym.guests.runner.files import get_tar, list_files, put_tar, read_file, write_file
from swe_gym.guests.runner.loop import Loop

SLEEP = Operation("sleep", {"timeout": "float"}, {})
EXPIRE = Operation("expire", {}, {})
LISTING = {"exclude": [], "max_files": 100, "max_ignored": None, "max_hashed": None, "only": False}


class Client:
    """The host's end of a loop in another thread."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests = requests
        self.replies = replies
        self.decoder = Decoder()

    def ask(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        if op in OPERATIONS and "timeout" in fields_of(OPERATIONS[op].request):
            fields["timeout"] = 10.0
        os.write(self.requests, encode({"id": 7, "op": op, **fields}, payload))
        while True:
            data = os.read(self.replies, 1 << 20)
            assert data, "the loop ended"
            for message, reply in self.decoder.feed(data):
                assert message.pop("id", 7) == 7
                return message, reply


@pytest.fixture
def client() -> Iterator[Client]:
    source, requests = os.pipe()
    replies, sink = os.pipe()
    loop = Loop(source, sink)
    loop.offer(READ_FILE, read_file)
    loop.offer(WRITE_FILE, write_file)
    loop.offer(PUT_TAR, put_tar)
    loop.offer(GET_TAR, get_tar)
    loop.offer(MANIFEST, list_files)
    loop.offer(SLEEP, lambda *_: endless())
    loop.offer(EXPIRE, lambda *_: setattr(loop, "expires", 1e-9))
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield Client(requests, replies)
    os.close(requests)  # ends the loop
    thread.join(60)
    assert not thread.is_alive()
    for fd in (source, replies, sink):
        os.close(fd)


def endless() -> Iterator[None]:
    while True:
        yield


def test_a_file_is_written_and_read_whole(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    data = os.urandom(3 << 20)
    assert client.ask("write", data, path=str(path), mode=0o600) == ({}, b"")
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600
    assert client.ask("read", path=str(path), max_bytes=4 << 20) == ({}, data)
    assert client.ask("write", b"less", path=str(path), mode=None) == ({}, b"")
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["file"]


def test_an_error_is_a_reply_with_the_name_of_its_number(client: Client, tmp_path: Path) -> None:
    def failure(op: str, **fields: Any) -> str:
        message, _ = client.ask(op, **fields)
        return str(message["error"][0])

    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    (tmp_path / "file").write_bytes(b"12345")
    assert failure("read", path=str(tmp_path / "none"), max_bytes=9) == "ENOENT"
    assert failure("read", path=str(fifo), max_bytes=9) == "EISDIR"
    assert failure("read", path=str(tmp_path / "file"), max_bytes=4) == "EFBIG"
    assert failure("write", path=str(tmp_path), mode=None) == "EISDIR"
    assert failure("get_tar", path=str(tmp_path / "none"), max_bytes=9) == "ENOENT"
    assert failure("get_tar", path=str(tmp_path / "file"), max_bytes=9) == "ENOTDIR"
    assert failure("get_tar", path=str(tmp_path), max_bytes=4) == "EFBIG"
    assert failure("put_tar", payload=b"no tar", path=str(tmp_path)) == "EINVAL"


@pytest.mark.parametrize(
    ("op", "fields", "words"),
    [
        ("made_up", {}, "unknown operation: made_up"),
        ("read", {"max_bytes": 9}, "missing or unknown fields of read: path"),
        ("write", {"path": "x", "mode": None, "owner": "me"}, "missing or unknown fields of write: owner"),
    ],
)
def test_an_unknown_operation_or_field_is_refused_by_name(
    client: Client, op: str, fields: dict[str, Any], words: str
) -> None:
    message, _ = client.ask(op, **fields)
    assert message["error"][0] == "BadRequest"
    assert words in message["error"][1]


def test_a_long_operation_ends_at_its_limit_and_others_get_their_turn(client: Client, tmp_path: Path) -> None:
    os.write(client.requests, encode({"id": 1, "op": "sleep", "timeout": 0.2}))
    os.write(client.requests, encode({"id": 2, "op": "write", "path": str(tmp_path / "file"), "mode": None}))
    answers: list[dict[str, Any]] = []
    while len(answers) < 2:
        answers += [message for message, _ in client.decoder.feed(os.read(client.replies, 1 << 20))]
    assert [answer["id"] for answer in answers] == [2, 1]
    assert answers[1]["error"][0] == "ETIMEDOUT"


def test_a_loop_whose_time_is_up_says_so_and_ends(client: Client) -> None:
    os.write(client.requests, encode({"id": 1, "op": "expire"}))
    data = b""
    while b"expired" not in data:
        data += os.read(client.replies, 1 << 20)


def test_folders_are_packed_and_unpacked_with_their_links(client: Client, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_text("text")
    (source / "link").symlink_to("folder/file")
    _, data = client.ask("get_tar", path=str(source), max_bytes=1 << 20)
    target = tmp_path / "target"
    target.mkdir()
    (target / "link").symlink_to(source / "folder" / "file")
    assert client.ask("put_tar", data, path=str(target)) == ({}, b"")
    assert (target / "folder" / "file").read_text() == "text"
    assert os.readlink(target / "link") == "folder/file"


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../out", tarfile.REGTYPE, ""),
        ("device", tarfile.CHRTYPE, ""),
        ("hard", tarfile.LNKTYPE, "../../etc/passwd"),
        ("away/file", tarfile.REGTYPE, ""),
    ],
)
def test_a_member_that_leads_out_is_refused(client: Client, tmp_path: Path, name: str, kind: bytes, link: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        away = tarfile.TarInfo("away")
        away.type, away.linkname = tarfile.SYMTYPE, "/tmp"
        archive.addfile(away)
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    message, _ = client.ask("put_tar", buffer.getvalue(), path=str(tmp_path))
    assert message["error"][0] == "EINVAL"
    assert not os.listdir(tmp_path)


def test_a_listing_has_modes_sizes_digests_links_and_what_ignores_a_file(client: Client, tmp_path: Path) -> None:
    for name in ("kept", "left.out", "build/made", "env/bin/python", "env/pyvenv.cfg", "folder/.gitignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("build/\n!kept\n")
    (tmp_path / "link").symlink_to("kept")
    os.mkfifo(tmp_path / "pipe")
    message, _ = client.ask("manifest", path=str(tmp_path), **{**LISTING, "exclude": ["*.out"], "max_ignored": 9})
    ignored = {name: row[4] for name, row in message["entries"].items()}
    assert ignored == {
        ".gitignore": "",
        "kept": "",
        "link": "",
        "folder/.gitignore": "",
        "build/made": "build",
        "env/bin/python": "env",
        "env/pyvenv.cfg": "env",
    }
    assert message["entries"]["link"][3] == "kept"


def test_a_listing_is_bounded(client: Client, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}").write_text("text")
    message, _ = client.ask("manifest", path=str(tmp_path), **{**LISTING, "max_files": 3})
    assert message["error"][0] == errno.errorcode[errno.EFBIG]
    message, _ = client.ask("manifest", path=str(tmp_path), **{**LISTING, "max_hashed": 8})
    assert sorted(row[2] == "" for row in message["entries"].values()) == [False, False, True, True]


def test_a_listing_of_named_files_follows_no_link(client: Client, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    (tmp_path / "link").symlink_to("folder")
    names = b"folder/file\0link/file\0missing"
    message, _ = client.ask("manifest", names, path=str(tmp_path), **{**LISTING, "only": True})
    assert list(message["entries"]) == ["folder/file"]


def test_a_loop_without_a_listener_ends_even_while_requests_come() -> None:
    source, requests = os.pipe()
    replies, sink = os.pipe()
    loop = Loop(source, sink)
    os.close(replies)
    os.write(requests, encode({"id": 1, "op": "unknown"})[:-1])  # no reply to it would find out again
    loop.send({"event": "anything"})
    assert not loop.alive
    loop.on_requests(source)
    assert not loop.alive
    for fd in (source, requests, sink):
        os.close(fd)
