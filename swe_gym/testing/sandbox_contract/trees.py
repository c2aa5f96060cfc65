"""Cases of folders: tar archives and manifests."""

import contextlib
import hashlib
import io
import json
import os
import tarfile
from functools import partial

from ...errors import FileError, MissingFile
from ...sandboxes import Sandbox, Snapshot
from .case import Opener, case, check_refused, ok, python
from .files import ODD_NAMES

BUILD_TREE = r"""
import json, os, sys
os.makedirs("tree/empty/deep")
os.makedirs("tree/sub/.hidden")
for path, mode in (("run.sh", 0o755), ("sub/private", 0o600), ("sub/.hidden/file", 0o644), (".dot", 0o444)):
    with open("tree/" + path, "w") as file:
        file.write("content of " + path)
    os.chmod("tree/" + path, mode)
    os.utime("tree/" + path, (1500000000, 1500000000))
os.symlink("run.sh", "tree/link")
os.symlink("/nowhere/at/all", "tree/sub/dangling")
os.symlink("sub", "tree/to-folder")
os.symlink(".", "tree/sub/loop")
for index, name in enumerate(json.loads(sys.stdin.read())):
    os.makedirs("tree/odd", exist_ok=True)
    with open("tree/odd/" + name, "w") as file:
        file.write(str(index))
"""

DESCRIBE_TREE = r"""
import hashlib, json, os, stat, sys
found = {}
root = sys.argv[1]
for folder, folders, files in os.walk(root):
    for name in folders + files:
        path = os.path.join(folder, name)
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            found[os.path.relpath(path, root)] = ["link", os.readlink(path)]
        elif stat.S_ISDIR(info.st_mode):
            found[os.path.relpath(path, root)] = ["folder"]
        elif stat.S_ISREG(info.st_mode):
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, root)] = [stat.S_IMODE(info.st_mode), int(info.st_mtime), digest]
print(json.dumps(found))
"""


def build_tree(sandbox: Sandbox) -> None:
    """Create the folder "tree" with everything that a repository may contain."""
    python(sandbox, BUILD_TREE, stdin=json.dumps(ODD_NAMES).encode())


def describe(sandbox: Sandbox, path: str) -> dict[str, list[object]]:
    """Return the content of a folder as a program in the sandbox sees it."""
    seen: dict[str, list[object]] = json.loads(python(sandbox, DESCRIBE_TREE, path))
    return seen


def make_tar(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    """Return a tar archive of members, or of names with contents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    """Return a tar member other than a regular file."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@case("trees")
def tar_round_trip(sandbox: Sandbox) -> None:
    """A folder is packed and unpacked with contents, modes, times, links, empty folders and odd names."""
    build_tree(sandbox)
    archive = sandbox.get_tar("tree")
    sandbox.put_tar("new/parent/copy", archive)
    before, after = describe(sandbox, "tree"), describe(sandbox, "new/parent/copy")
    assert before == after, {name: (before.get(name), after.get(name)) for name in before.keys() ^ after.keys()}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = opened.getnames()
    assert not [name for name in names if name.startswith("/") or ".." in name.split("/")], names


@case("trees")
def tar_between_sandboxes(make: Opener) -> None:
    """An archive of one sandbox unpacks to the same files in another."""
    first, second = make(), make()
    build_tree(first)
    second.put_tar("tree", first.get_tar("tree"))
    assert describe(first, "tree") == describe(second, "tree")
    assert first.manifest("tree") == second.manifest("tree")


@case("trees")
def tar_merges(sandbox: Sandbox) -> None:
    """Unpacking replaces files of the same name and leaves the others."""
    sandbox.write_file("folder/old", b"old", mode=0o600)
    sandbox.write_file("folder/both", b"a longer text")
    sandbox.put_tar("folder", make_tar(("both", b"new"), ("./sub/added", b"added")))
    contents = [sandbox.read_file(f"folder/{name}") for name in ("old", "both", "sub/added")]
    assert contents == [b"old", b"new", b"added"], contents
    sandbox.put_tar("", make_tar(("at-the-top", b"x")))
    assert sandbox.read_file("at-the-top") == b"x"


@case("trees", "hostile")
def hostile_tars(sandbox: Sandbox) -> None:
    """A tar with a device, or with a member outside its folder, is refused and nothing is unpacked."""
    outside = f"{sandbox.workdir}/outside"
    ok(sandbox.exec(f"mkdir -p {outside} folder; echo kept > {outside}/file; ln -s {outside} folder/existing"))
    good = ("good", b"good")
    hostile = {
        "a parent": make_tar(good, ("../escaped", b"x")),
        "a parent further in": make_tar(good, ("a/../../escaped", b"x")),
        "an absolute path": make_tar(good, (f"{outside}/escaped", b"x")),
        "its own link": make_tar(good, special("way", tarfile.SYMTYPE, outside), ("way/escaped", b"x")),
        "a relative link": make_tar(good, special("way", tarfile.SYMTYPE, "../outside"), ("way/escaped", b"x")),
        "an existing link": make_tar(good, ("existing/escaped", b"x")),
        "a hard link": make_tar(good, special("way", tarfile.LNKTYPE, f"{outside}/file"), ("way", b"x")),
        "a relative hard link": make_tar(good, special("way", tarfile.LNKTYPE, "../outside/file")),
        "a hard link through its own link": make_tar(
            good, special("way", tarfile.SYMTYPE, outside), special("hard", tarfile.LNKTYPE, "way/file")
        ),
        "a file in the place of its own link": make_tar(
            good, special("way", tarfile.SYMTYPE, f"{outside}/new"), ("way", b"x")
        ),
        "a folder in the place of a link": make_tar(good, special("existing", tarfile.DIRTYPE)),
        "a device": make_tar(good, special("device", tarfile.CHRTYPE)),
        "a block device": make_tar(good, special("device", tarfile.BLKTYPE)),
    }
    for what, archive in hostile.items():
        check_refused(FileError, partial(sandbox.put_tar, "folder", archive), f"a tar with {what}")
        listing = ok(sandbox.exec(f"ls -A folder; ls -A . .. | grep escaped; ls -A {outside}; cat {outside}/*"))
        assert listing.text == "existing\nfile\nkept\n", f"after a tar with {what}: {listing.text!r}"
    sandbox.put_tar("folder", make_tar(good))
    assert sandbox.read_file("folder/good") == b"good"


@case("trees", "hostile")
def unpacking_replaces_links(sandbox: Sandbox) -> None:
    """Unpacking over a link replaces the link or is refused; the link's target stays unchanged."""
    outside = f"{sandbox.workdir}/outside"
    ok(sandbox.exec(f"echo kept > {outside}; mkdir folder; ln -s {outside} folder/link; ln {outside} folder/hard"))
    for name in ("link", "hard"):
        with contextlib.suppress(FileError):
            sandbox.put_tar("folder", make_tar((name, b"changed")))
            assert sandbox.read_file(f"folder/{name}") == b"changed"
        assert sandbox.read_file(outside) == b"kept\n", f"a file outside was changed through a {name}"


@case("trees")
def broken_tars(sandbox: Sandbox) -> None:
    """An invalid or truncated tar archive is a `FileError`."""
    whole = make_tar(("file", os.urandom(100_000)))
    check_refused(FileError, lambda: sandbox.put_tar("folder", b"garbage" * 1000), "garbage")
    check_refused(FileError, lambda: sandbox.put_tar("folder", whole[:50_000]), "half a tar")
    ok(sandbox.exec("true"))


@case("trees")
def tar_limits(make: Opener, sandbox: Sandbox) -> None:
    """A folder whose tar exceeds the limit is refused; so are a missing folder and a file."""
    sandbox.write_file("folder/file", b"x" * 100_000)
    check_refused(FileError, lambda: sandbox.get_tar("folder", max_bytes=50_000), "a tar over its limit")
    check_refused(MissingFile, lambda: sandbox.get_tar("nothing"), "a missing folder")
    check_refused(FileError, lambda: sandbox.get_tar("folder/file"), "a file in the place of a folder")
    check_refused(FileError, lambda: sandbox.put_tar("folder/file", make_tar()), "unpacking into a file")
    if sandbox.exec("truncate -s 20G folder/sparse").ok:
        with make.within(5, "refusing a folder of 20 GB"):
            check_refused(FileError, lambda: sandbox.get_tar("folder"), "a folder of 20 GB")
    ok(sandbox.exec("true"))


@case("trees")
def thousands_of_files(sandbox: Sandbox) -> None:
    """Two thousand small files are unpacked, packed and listed."""
    members = [(f"{number % 50}/{number}.txt", str(number).encode()) for number in range(2000)]
    sandbox.put_tar("many", make_tar(*members))
    manifest = sandbox.manifest("many")
    assert len(manifest) == 2000, len(manifest)
    assert manifest["7/7.txt"].digest == hashlib.sha256(b"7").hexdigest()
    with tarfile.open(fileobj=io.BytesIO(sandbox.get_tar("many"))) as archive:
        assert sum(member.isfile() for member in archive) == 2000


@case("trees")
def manifest_is_true(sandbox: Sandbox) -> None:
    """A manifest lists every file and link with mode, size and digest, sorted, and follows no link."""
    build_tree(sandbox)
    ok(sandbox.exec("mkfifo tree/pipe"))
    manifest = sandbox.manifest("tree")
    seen = {name: entry for name, entry in describe(sandbox, "tree").items() if entry != ["folder"]}
    assert list(manifest) == sorted(manifest), "not sorted"
    assert manifest.keys() == seen.keys(), sorted(manifest.keys() ^ seen.keys())
    for name, entry in manifest.items():
        if entry.link is None:
            assert [entry.mode, entry.digest] == [seen[name][0], seen[name][2]], (name, entry, seen[name])
            assert entry.size == len(sandbox.read_file(f"tree/{name}")), (name, entry)
        else:
            assert ["link", entry.link] == seen[name], (name, entry, seen[name])
            assert entry.digest == hashlib.sha256(os.fsencode(entry.link)).hexdigest(), (name, entry)
    assert sandbox.manifest() == {f"tree/{name}": entry for name, entry in manifest.items()}
    sandbox.write_file("tree/run.sh", b"changed")
    changed = sandbox.manifest("tree")
    assert [name for name in changed if changed[name] != manifest[name]] == ["run.sh"]


@case("trees")
def manifest_leaves_out(sandbox: Sandbox) -> None:
    """Excluded names are omitted at any depth, files and folders, by pattern."""
    for path in ("keep.py", "skip.pyc", "a/b/skip.pyc", "a/.git/config", ".git/HEAD", "a/gitlike/x", "z/.git"):
        sandbox.write_file(path, b"")
    assert list(sandbox.manifest(exclude=[".git", "*.pyc"])) == ["a/gitlike/x", "keep.py"]
    assert len(sandbox.manifest()) == 7


@case("trees")
def manifest_limits(sandbox: Sandbox) -> None:
    """Too many files are a `FileError`, a missing folder is `MissingFile`, an empty folder is empty."""
    ok(sandbox.exec("mkdir -p some empty && touch some/1 some/2 some/3"))
    assert len(sandbox.manifest("some", max_files=3)) == 3
    check_refused(FileError, lambda: sandbox.manifest("some", max_files=2), "more than max_files")
    check_refused(MissingFile, lambda: sandbox.manifest("nothing"), "a missing folder")
    check_refused(FileError, lambda: sandbox.manifest("some/1"), "a file in the place of a folder")
    assert sandbox.manifest("empty") == {}


@case("trees")
def manifest_bounds_what_is_ignored(sandbox: Sandbox) -> None:
    """Files that git ignores, and files of virtual environments, are marked and limited separately."""
    rules = "out/\n*.o\n!keep.o\n/deep/*.log\n"
    ok(sandbox.exec("mkdir -p out/a deep/x env/bin && touch out/a/1 a.o keep.o deep/1.log deep/x/2.log z.py"))
    ok(sandbox.exec("touch env/pyvenv.cfg env/bin/python; seq 100 | sed s#^#out/# | xargs touch"))
    sandbox.write_file(".gitignore", rules.encode())
    sandbox.write_file("deep/x/.gitignore", b"*\n!.gitignore\n")
    every = sandbox.manifest(max_files=4, max_ignored=1000)
    kept = [".gitignore", "deep/x/.gitignore", "keep.o", "z.py"]
    assert [name for name, entry in every.items() if not entry.ignored] == kept
    places = {entry.ignored for entry in every.values()} - {""}
    assert places == {"out", "a.o", "deep/1.log", "deep/x/2.log", "env"}, places
    few = sandbox.manifest(max_files=4, max_ignored=10)
    assert [name for name, entry in few.items() if not entry.ignored] == kept
    assert len(few) == 14, len(few)


@case("trees")
def manifest_bounds_what_is_hashed(sandbox: Sandbox) -> None:
    """A file beyond the bytes to hash has an empty digest; named files are listed alone, but not behind a link."""
    ok(sandbox.exec("printf 123 > a; truncate -s 20G b || truncate -s 1G b; mkdir c; echo > c/d; ln -s c e"))
    whole, none = sandbox.manifest(max_hashed=10), sandbox.manifest(max_hashed=0, only=["a", "c/d", "gone", "e/d", "e"])
    assert whole["a"].digest == hashlib.sha256(b"123").hexdigest()
    assert not whole["b"].digest
    assert [(name, bool(entry.digest)) for name, entry in none.items()] == [("a", False), ("c/d", False), ("e", True)]


@case("trees", "hostile")
def files_of_the_sandbox_change_nothing(sandbox: Sandbox) -> None:
    """Programs, modules and settings in the sandbox do not affect reading, writing, packing and listing."""
    evil = b"import os\nos._exit(3)\n"
    for name in ("os", "hashlib", "json", "tarfile", "io", "stat", "subprocess", "sitecustomize", "usercustomize"):
        sandbox.write_file(f"{name}.py", evil)
    for name in ("find", "sha256sum", "tar", "cat", "git", "python3"):
        sandbox.write_file(f"bin/{name}", b"#!/bin/sh\nexit 3\n", mode=0o755)
    names = set(sandbox.manifest())
    assert {"os.py", "bin/find"} <= names, names
    sandbox.put_tar("copy", sandbox.get_tar("bin"))
    assert sandbox.manifest("copy") == sandbox.manifest("bin")
    assert sandbox.read_file("os.py") == evil
    assert ok(sandbox.exec("echo on")).text == "on\n"


START_TREE = r"""
import os
for folder in "abcdefgh":
    os.makedirs("start/%s/sub" % folder)
    for name in ("1", "2", "sub/3"):
        with open("start/%s/%s" % (folder, name), "w") as file:
            file.write("%s %s" % (folder, name))
        os.utime("start/%s/%s" % (folder, name), (1500000000, 1500000000))
"""

CHANGE_TREE = r"""
import json, os, shutil, sys
os.chdir("start")
with open("a/1", "a") as file:
    file.write("more")
os.unlink("a/2")
shutil.rmtree("b")
os.mkdir("b")
with open("b/1", "wb") as file:
    file.write(bytes(range(256)))
shutil.rmtree("c")
os.symlink("a", "c")
shutil.rmtree("d")
with open("d", "w") as file:
    file.write("a file now")
try:
    os.rename("e", "way"), os.rename("f", "e"), os.rename("way", "f")
except OSError:  # an overlay on which folders cannot be moved
    shutil.move("e", "way"), shutil.move("f", "e"), shutil.move("way", "f")
os.unlink("g/1")
os.symlink("/nowhere", "g/1")
os.chmod("g/2", 0o751)
os.chmod("g/sub", 0o711)
os.utime("h/sub/3", (1400000000, 1400000000))
os.makedirs("new/empty/deep")
os.link("a/1", "new/linked")
os.mkfifo("new/pipe")
for index, name in enumerate(json.loads(sys.stdin.read())):
    with open("new/" + name, "w") as file:
        file.write(str(index))
os.mkdir(os.path.expanduser("~/away"))
with open(os.path.expanduser("~/away/file"), "w") as file:
    file.write("outside of the workspace")
"""

DESCRIBE_ALL = r"""
import hashlib, json, os, stat, sys
found = {}
for root in ("start", os.path.expanduser("~/away")):
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            entry = [stat.S_IFMT(info.st_mode), info.st_uid, info.st_gid]
            if stat.S_ISLNK(info.st_mode):
                entry.append(os.readlink(path))
            else:
                entry += [stat.S_IMODE(info.st_mode), info.st_nlink]
            if stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    entry += [hashlib.sha256(file.read()).hexdigest(), int(info.st_mtime)]
            found[path] = entry
print(json.dumps(found))
"""


def _started(make: Opener) -> Sandbox:
    sandbox = make()
    python(sandbox, START_TREE)
    sandbox.mark_start()
    return sandbox


def _describe_all(sandbox: Sandbox) -> dict[str, list[object]]:
    seen: dict[str, list[object]] = json.loads(python(sandbox, DESCRIBE_ALL))
    root = sandbox.workdir.removesuffix(sandbox.spec.workdir)
    return {name.removeprefix(root): entry for name, entry in seen.items()}


@case("snapshots")
def snapshot_and_restore(make: Opener) -> None:
    """A snapshot holds what was written, and brings another sandbox to the same files.

    Contents, modes, links, deletions, moved folders, odd names, empty folders, files outside of the workspace.
    """
    first, second = _started(make), _started(make)
    python(first, CHANGE_TREE, stdin=json.dumps(ODD_NAMES).encode())
    taken = first.snapshot()
    assert len(taken.data) < 2000, [(name, entry[5]) for name, entry in taken.entries.items() if entry[0] == "file"]
    second.restore(Snapshot.unpack(taken.pack()))
    before, after = _describe_all(first), _describe_all(second)
    assert before == after, {
        name: (before.get(name), after.get(name)) for name in before if before[name] != after[name]
    }
    assert second.snapshot().entries.keys() >= taken.entries.keys()


@case("snapshots")
def snapshots_of_snapshots(make: Opener) -> None:
    """Sandboxes that were restored from one snapshot share nothing, and one of them gives snapshots in turn."""
    parent, child, grandchild = _started(make), _started(make), _started(make)
    ok(parent.exec("echo 1 > start/a/1; rm -r start/b"))
    first = parent.snapshot()
    child.restore(first)
    ok(child.exec("echo 2 > start/a/1; mkdir start/b; rm start/c/1"))
    ok(parent.exec("echo 3 > start/a/1; echo 3 > start/d/1"))
    grandchild.restore(child.snapshot())
    assert _describe_all(grandchild) == _describe_all(child)
    seen = [ok(one.exec("cat start/a/1 start/d/1; ls start start/c")).text for one in (parent, child)]
    assert seen[0].split() == [*"33", "start:", *"acdefgh", "start/c:", *"12", "sub"], seen
    assert seen[1].split() == ["2", "d", "1start:", *"abcdefgh", "start/c:", "2", "sub"], seen
    grandchild.restore(first)
    assert ok(grandchild.exec("cat start/a/1; ls start")).text.split() == [*"1acdefgh"]


@case("snapshots", "hostile")
def hostile_snapshots(sandbox: Sandbox) -> None:
    """A snapshot that leads out of its folder, makes a device or is not whole is refused, and nothing is written."""
    root = sandbox.workdir.removesuffix(sandbox.spec.workdir)
    ok(sandbox.exec("mkdir folder; ln -s / folder/way; echo kept > folder/file"))
    below = sandbox.workdir.removeprefix(root).strip("/") + "/folder"
    head = [0o644, 0, 0, 1]
    hostile: dict[str, dict[str, list[object]]] = {
        "a parent": {f"{below}/../../../escaped": ["file", *head, 1]},
        "an absolute path": {"/escaped": ["file", *head, 1]},
        "an empty path": {"": ["file", *head, 1]},
        "a link in its way": {f"{below}/way/escaped": ["file", *head, 1]},
        "a link of its own": {f"{below}/own": ["link", *head, "/"], f"{below}/own/escaped": ["file", *head, 1]},
        "a hard link": {f"{below}/escaped": ["same", *head, "etc/passwd"], f"{below}/x": ["file", *head, 1]},
        "a device": {f"{below}/escaped": ["device", *head, 1], f"{below}/x": ["file", *head, 1]},
        "another size": {f"{below}/escaped": ["file", *head, 100]},
        "a NUL": {f"{below}/escaped\0": ["file", *head, 1]},
    }
    for what, entries in hostile.items():
        check_refused(FileError, partial(sandbox.restore, Snapshot(entries, b"x")), f"a snapshot with {what}")
        listing = ok(sandbox.exec("ls -A folder; ls -A / . .. | grep escaped; cat folder/file"))
        assert listing.text in ("file\nway\nkept\n", "file\nown\nway\nkept\n"), f"after {what}: {listing.text!r}"
    check_refused(FileError, sandbox.snapshot, "a snapshot without a start")
    sandbox.mark_start()
    ok(sandbox.exec("truncate -s 300M folder/huge"))
    said = check_refused(FileError, sandbox.snapshot, "a snapshot of a huge file")
    assert "folder/huge" in str(said), said
