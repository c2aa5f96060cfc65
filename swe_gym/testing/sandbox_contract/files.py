"""Cases of files: content, names, modes and errors."""

import contextlib
import hashlib
import json
import os
import tempfile
from functools import partial
from pathlib import Path

from ...errors import FileError, MissingFile, NoPermission, NotAFile, UsageError
from ...sandboxes import Sandbox
from ...types import FolderWorkspace
from .case import SLACK, Background, Opener, case, check_refused, ok, python, run_all

ODD_NAMES = [
    "with space",
    "new\nline",
    "-n",
    "--help",
    'it\'s "quoted"',
    "$HOME `id` \\ * ? [a]",
    "ünï-😀",
    "%s%n",
    "trailing.",
    "n" * 255,
    os.fsdecode(b"not-utf8-\xff\xfe"),
]


@case("files")
def round_trip(sandbox: Sandbox) -> None:
    """Files are written and read byte for byte, by calls and by commands."""
    for data in (b"text\n", b"", b"no newline", b"a\r\nb\r", b"\xff\xfe\x00", bytes(range(256)) * 1000):
        sandbox.write_file("file", data)
        assert sandbox.read_file("file") == data
        assert ok(sandbox.exec("cat file")).stdout == data
    ok(sandbox.exec("printf 'by a command' > other"))
    assert sandbox.read_file("other") == b"by a command"


@case("files", "slow")
def fifty_megabytes(sandbox: Sandbox) -> None:
    """50 MB are written and read unchanged."""
    data = hashlib.shake_256(b"contract").digest(50_000_000)
    sandbox.write_file("large", data, timeout=30)
    digest = ok(sandbox.exec("sha256sum large")).text.split()[0]
    assert digest == hashlib.sha256(data).hexdigest(), "changed while writing"
    assert sandbox.read_file("large", timeout=30) == data, "changed while reading"


@case("files")
def odd_names(sandbox: Sandbox) -> None:
    """Every valid file name works: spaces, newlines, quotes, dashes, letters of any script, invalid UTF-8."""
    for index, name in enumerate(ODD_NAMES):
        data = f"file {index}".encode()
        sandbox.write_file(f"odd/{name}", data)
        assert sandbox.read_file(f"odd/{name}") == data, f"{name!r} cannot be read again"
    listing = python(sandbox, "import json, os; print(json.dumps(os.listdir('odd')))")
    assert sorted(json.loads(listing)) == sorted(ODD_NAMES), f"a name was changed: {listing}"


@case("files")
def paths(sandbox: Sandbox) -> None:
    """A path is relative to the workdir or absolute, and `..` is resolved."""
    sandbox.write_file("sub/file", b"x")
    for path in ("./sub/file", "sub/../sub//file", f"{sandbox.workdir}/sub/file", f"{sandbox.spec.workdir}/sub/file"):
        assert sandbox.read_file(path) == b"x", path
    folder = ok(sandbox.exec("mktemp -d")).text.strip()
    sandbox.write_file(f"{folder}/deep/absolute", b"y")
    assert ok(sandbox.exec(f"cat {folder}/deep/absolute")).stdout == b"y"


@case("files")
def senseless_paths(sandbox: Sandbox) -> None:
    """An impossible path is a `FileError` or a `UsageError`, and the sandbox stays open."""
    for path in ("a\0b", "\ud800", "", ".", "..", "/", "x" * 5000, "folder/"):
        calls = {"read_file": partial(sandbox.read_file, path), "write_file": partial(sandbox.write_file, path, b"")}
        for name, call in calls.items():
            with contextlib.suppress(FileError, UsageError):
                call()  # type: ignore[operator]  # two signatures
                assert (name, path) == ("write_file", "folder/"), f"{name}({path!r}) did something"
        assert ok(sandbox.exec("echo on")).text == "on\n", f"after {path!r}"


@case("files")
def parents_and_modes(sandbox: Sandbox) -> None:
    """Parents are created; the mode is the given one, else that of the existing file, else 0o644."""

    def mode(path: str) -> str:
        return ok(sandbox.exec(["stat", "-c", "%a", path])).text.strip()

    sandbox.write_file("a/b/c/file", b"")
    assert mode("a/b/c/file") == "644"
    for bits in (0o755, 0o600, 0o666, 0o777, 0o444):
        sandbox.write_file("file", b"x", mode=bits)
        assert mode("file") == f"{bits:o}"
    sandbox.write_file("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    sandbox.write_file("run.sh", b"#!/bin/sh\necho again\n")
    assert mode("run.sh") == "755", "an existing file's mode must be kept"
    assert ok(sandbox.exec("./run.sh")).text == "again\n"
    assert ok(sandbox.exec("touch touched && stat -c %a touched")).text == "644\n", "the umask is not 022"


@case("files")
def ownership(sandbox: Sandbox) -> None:
    """Written files belong to the user who runs the commands, who can change and delete them."""
    sandbox.write_file("new/file", b"a")
    assert ok(sandbox.exec("stat -c %u new/file; id -u")).text.split()[0] == ok(sandbox.exec("id -u")).text.strip()
    ok(sandbox.exec("echo b >> new/file && mv new/file moved && rm -r new moved"))


@case("files")
def overwriting(sandbox: Sandbox) -> None:
    """A file is written whole, whether it becomes longer or shorter, and leaves no other file beside it."""
    for size in (10, 100_000, 3, 0, 5000):
        sandbox.write_file("sub/file", b"z" * size)
        assert len(sandbox.read_file("sub/file")) == size
    assert ok(sandbox.exec("ls -A sub")).text == "file\n"


@case("files", "threads")
def writing_is_atomic(sandbox: Sandbox) -> None:
    """A reader sees the old or the new content, never a part."""
    watch = (
        "import os\nseen = set()\nopen('watching', 'w').close()\n"
        "while not os.path.exists('stop'):\n"
        "    data = open('file', 'rb').read()\n    seen.add((len(data), data[:1], data[-1:]))\n"
        "print(len(seen - {(300000, b'a', b'a'), (300000, b'b', b'b')}))"
    )
    sandbox.write_file("file", b"a" * 300_000)
    watcher = Background(lambda: python(sandbox, watch))
    for letter in (b"b", b"a") * 25:
        sandbox.write_file("file", letter * 300_000)
    sandbox.write_file("stop", b"")
    assert watcher.result(20) == "0\n", "a reader saw a half-written file"


@case("files")
def missing_files(sandbox: Sandbox) -> None:
    """A missing file is `MissingFile`, which is a `FileNotFoundError`."""
    check_refused(MissingFile, lambda: sandbox.read_file("nothing"), "reading a missing file")
    check_refused(MissingFile, lambda: sandbox.read_file("no/such/folder/file"), "reading below a missing folder")
    ok(sandbox.exec("ln -s nowhere dangling"))
    check_refused(MissingFile, lambda: sandbox.read_file("dangling"), "reading a dangling link")
    assert issubclass(MissingFile, FileNotFoundError)
    ok(sandbox.exec("true"))


@case("files")
def not_files(make: Opener, sandbox: Sandbox) -> None:
    """Reading a folder is `NotAFile`; a file as a folder, a loop of links and a pipe are refused."""
    ok(sandbox.exec("mkdir folder; touch file; ln -s loop loop; mkfifo pipe"))
    check_refused(NotAFile, lambda: sandbox.read_file("folder"), "reading a folder")
    check_refused(NotAFile, lambda: sandbox.write_file("folder", b""), "writing a folder")
    check_refused(FileError, lambda: sandbox.read_file("file/below"), "reading below a file")
    check_refused(FileError, lambda: sandbox.write_file("file/below", b""), "writing below a file")
    check_refused(FileError, lambda: sandbox.read_file("loop"), "reading a loop of links")
    with make.within(SLACK, "reading a pipe"):
        check_refused(FileError, lambda: sandbox.read_file("pipe"), "reading a pipe")
    check_refused(FileError, lambda: sandbox.write_file("n" * 300, b""), "a name that is too long")
    assert ok(sandbox.exec("ls -A")).text.split() == ["file", "folder", "loop", "pipe"], "a refused write left a file"


@case("files")
def no_more_rights_than_commands(sandbox: Sandbox) -> None:
    """File calls have the rights of the sandbox's user; the rest is `NoPermission`, a `PermissionError`."""
    ok(sandbox.exec("echo secret > locked; chmod 000 locked; mkdir closed; chmod 500 closed"))
    if sandbox.exec("cat locked").ok:
        assert sandbox.read_file("locked") == b"secret\n"
    else:
        check_refused(NoPermission, lambda: sandbox.read_file("locked"), "reading a locked file")
    if sandbox.exec("touch closed/by-command").ok:
        sandbox.write_file("closed/file", b"")
    else:
        check_refused(NoPermission, lambda: sandbox.write_file("closed/file", b""), "writing into a closed folder")
    check_refused(FileError, lambda: sandbox.write_file("/proc/contract", b""), "writing into /proc")
    assert issubclass(NoPermission, PermissionError)
    ok(sandbox.exec("chmod 700 closed"))


@case("files")
def reading_is_bounded(make: Opener, sandbox: Sandbox) -> None:
    """A file larger than `max_bytes` is refused at once; one of exactly that size is read."""
    sandbox.write_file("thousand", b"x" * 1000)
    assert len(sandbox.read_file("thousand", max_bytes=1000)) == 1000
    check_refused(FileError, lambda: sandbox.read_file("thousand", max_bytes=999), "reading more than max_bytes")
    if sandbox.exec("truncate -s 20G sparse").ok:
        with make.within(SLACK, "refusing a file of 20 GB"):
            check_refused(FileError, lambda: sandbox.read_file("sparse"), "reading 20 GB")
    ok(sandbox.exec("true"))


@case("files")
def files_without_a_size(sandbox: Sandbox) -> None:
    """Files of /proc, whose size is 0, are read whole."""
    assert sandbox.read_file("/proc/version") == ok(sandbox.exec("cat /proc/version")).stdout


@case("files")
def links_are_followed(sandbox: Sandbox) -> None:
    """Reading follows links inside the sandbox, including absolute ones."""
    sandbox.write_file("real/file", b"content")
    ok(sandbox.exec('ln -s real/file one; ln -s "$PWD/real" two'))
    assert sandbox.read_file("one") == sandbox.read_file("two/file") == b"content"
    sandbox.write_file("two/new", b"through a folder's link")
    assert ok(sandbox.exec("cat real/new")).text == "through a folder's link"


@case("files", "isolation")
def links_never_reach_the_host(make: Opener) -> None:
    """Writing to a link out of the workdir changes no file of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder) / "outside"
        outside.write_bytes(b"untouched")
        sandbox = make()
        ok(sandbox.exec(["ln", "-s", str(outside), "link"]))
        try:
            sandbox.write_file("link", b"changed")
        except FileError:
            pass
        else:
            assert sandbox.read_file("link") == b"changed"
        assert outside.read_bytes() == b"untouched", "a file of this machine was overwritten"


@case("files", "threads")
def files_from_many_threads(sandbox: Sandbox) -> None:
    """Sixteen threads write and read concurrently; the last write of a shared file is whole."""

    def one(number: int) -> None:
        data = bytes([number]) * 200_000
        for _ in range(5):
            sandbox.write_file(f"own-{number}", data)
            sandbox.write_file("shared", data)
            assert sandbox.read_file(f"own-{number}") == data, "another thread's content"
            shared = sandbox.read_file("shared")
            assert len(shared) == 200_000, "a half-written file"
            assert len(set(shared)) == 1, "two writers' content in one file"

    run_all([partial(one, number) for number in range(16)])


_RENAME_AND_LINK = """
import os, tempfile
folder = tempfile.mkdtemp()
os.rename("pkg/a.txt", folder + "/a.txt")
os.rename(folder + "/a.txt", "a.txt")
os.link("a.txt", folder + "/linked")
os.link(folder + "/linked", "pkg/linked")
with open("pkg/linked", "a") as file:
    file.write("b")
print(open("a.txt").read(), os.stat("a.txt").st_nlink)
"""


@case("files")
def renaming_and_linking_to_the_temporary_folder(make: Opener) -> None:
    """A file of the workspace can be renamed and hard-linked to the temporary folder and back."""
    with tempfile.TemporaryDirectory() as name:
        fill(name)
        assert python(make(workspace=FolderWorkspace(path=name)), _RENAME_AND_LINK) == "ab 3\n"


_RENAME_FOLDER = """
import os, tempfile
os.rename("pkg", "renamed")
os.rename("renamed", tempfile.mkdtemp() + "/moved")
os.mkdir("pkg")
print(os.listdir("pkg"))
"""


@case("files")
def renaming_an_original_folder(make: Opener) -> None:
    """A folder of the workspace can be renamed, even to the temporary folder; its name becomes free."""
    with tempfile.TemporaryDirectory() as name:
        fill(name)
        assert python(make(workspace=FolderWorkspace(path=name)), _RENAME_FOLDER) == "[]\n"


@case("files")
def git_moves_an_original_folder(make: Opener) -> None:
    """`git mv` renames a folder of the workspace."""
    with tempfile.TemporaryDirectory() as name:
        fill(name)
        sandbox = make(workspace=FolderWorkspace(path=name))
        ok(sandbox.exec("git mv pkg renamed && mv renamed moved && mv moved renamed"))
        assert ok(sandbox.exec("git status --short")).text == "R  pkg/a.txt -> renamed/a.txt\n"


def fill(folder: str) -> None:
    """Create a workspace of one folder with one file."""
    (Path(folder) / "pkg").mkdir()
    (Path(folder) / "pkg" / "a.txt").write_text("a")
