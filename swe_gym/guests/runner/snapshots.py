"""Snapshots: what was written since the start, in every folder that may be written, and the way back.

The start is a moment, `mark`. The kernel dates each change of a file (ctime), and nobody in a sandbox can set a date.
`mark` waits for a date that no file has yet. So a file with an older date is as it was at the start, unless a folder
above it was moved. `mark` keeps the inodes of folders that can be moved; a folder at another place, or one that it does
not know, is taken whole. A folder that has changed is listed: what is not in the list was deleted.

Lower layers of an overlay were there before the sandbox. A folder that is only there is older than the sandbox, and
nothing below it was written, so it is not searched. If such folders can be moved, the host may know their inodes, and
tells which of the changed ones are in place.
"""

import contextlib
import errno
import os
import shutil
import stat
import time
from collections import deque

from .files import FILE_CHUNK, LONGEST_NAMES, check_folder, open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    import io
    from collections.abc import Generator, Iterable, Iterator
    from typing import Any

    from ..protocol import (
        MarkRequest,
        Nothing,
        RestoreRequest,
        SnapshotReply,
        SnapshotRequest,
    )
    from .loop import Steps

    Entry = list[Any]  # kind, mode, user, group, time in ns, and what the kind needs

FOLDER, FILE, LINK, SAME, PIPE = "folder", "file", "link", "same", "pipe"
"""Kinds of entries. What each needs: the names in it; its size; its target; the path of its first hard link; None."""

NOT_ON_DISK = frozenset(
    "proc sysfs devpts mqueue cgroup cgroup2 debugfs tracefs securityfs pstore bpf configfs fusectl devtmpfs nsfs "
    "rpc_pipefs hugetlbfs binfmt_misc efivarfs selinuxfs autofs".split()
)
MOST_FOLDERS = 20000  # that `mark` keeps where all can be moved
MOST_ENTRIES = 200000
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL))
"""What the name of a file gives that was removed or replaced meanwhile."""
SLACK = 60.0  # seconds that a message may be under way
SMALLEST_STEP = 0.1  # seconds; a clock that is wrong by less is slowed down instead
NO_FOLDER_IN_IT = 2
"""Links to a folder without folders: its name and its ".". A file system that does not count them says 1."""
COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, by which file systems date changes


class WrittenMount:
    """A mount that may be written.

    Attributes:
        path: Its path.
        layered: Whether it is an overlay.
        fixed: Whether folders of its lower layers cannot be moved.
    """

    def __init__(self, path: str, layered: bool = False, fixed: bool = False) -> None:
        self.path = path
        self.layered = layered
        self.fixed = fixed


class Snapshots:
    """The start, and what was written since.

    Attributes:
        since: Time of the start in ns; None before `mark`.
        horizon: A time in ns before the sandbox began; 0 if older folders may hold what a sandbox wrote.
        identified: Whether the host knows the folders of the lower layers.
        kept: Device and inode -> path of a folder at the start.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self.horizon = 0
        self.drift = 0.0
        self.identified = False
        self.kept: dict[tuple[int, int], str] = {}

    def mark(self, request: "MarkRequest", _: bytes) -> "Steps[Nothing]":
        self.kept.clear()
        self.since = None
        since = wait_for_tick()
        self.drift = time.time() - time.monotonic()
        self.identified = request["identified"]
        old = request["age"]
        self.horizon = int((time.time() - old - SLACK) * 1e9) if old >= 0 else 0
        places, mounts = find_places(request["path"])
        since = min([since] + [date_of_change(place.path, since) for place in places])
        for place in places:
            yield from self.keep(place, mounts)
        self.since = since
        return {}, b""

    def keep(self, place: WrittenMount, mounts: "set[str]") -> "Generator[None, None, None]":
        """Keep the folders of a mount that can be moved, those near its top first."""
        todo = deque([place.path])
        fixed = self.is_fixed(place) or self.is_identified(place)
        while todo and (fixed or len(self.kept) < MOST_FOLDERS):
            yield
            path = todo.popleft()
            try:
                info = os.lstat(path)
                if fixed and info.st_ctime_ns < self.horizon and path != place.path:
                    continue
                self.kept[info.st_dev, info.st_ino] = path
                if info.st_nlink == NO_FOLDER_IN_IT:
                    continue
                with os.scandir(path) as entries:
                    folders = [one.path for one in entries if one.is_dir(follow_symlinks=False)]
                todo.extend(path for path in folders if path not in mounts)
            except OSError:  # of another user, who alone can change it; or gone
                continue

    def is_fixed(self, place: WrittenMount) -> bool:
        """Return whether no folder of a lower layer can be moved."""
        return place.fixed and self.horizon > 0

    def is_identified(self, place: WrittenMount) -> bool:
        """Return whether the host knows which folders of lower layers are in place."""
        return place.layered and self.identified and self.horizon > 0

    def snapshot(self, request: "SnapshotRequest", _: bytes) -> "Steps[SnapshotReply]":
        taking = self.take(request["path"], request["max_bytes"], request["in_place"] or {})
        for place in taking.places:
            if request["in_place"] is not None:
                yield from taking.walk(place)
            elif self.is_identified(place) and not place.fixed:
                yield from taking.list_changed(place)
        return {"entries": taking.entries, "folders": taking.undecided}, b"".join(taking.chunks)

    def take(self, root: str, max_bytes: int, in_place: "dict[str, int]") -> "Taking":
        if self.since is None:
            raise OSError(errno.EINVAL, "the start of the sandbox was not marked")
        set_back = self.drift - (time.time() - time.monotonic())  # the clock, told inexactly: this may be interrupted
        since = self.since - (int((set_back + 1.0) * 1e9) if set_back > SMALLEST_STEP else 0)
        return Taking(self, root, since, max_bytes, in_place)

    def restore(self, request: "RestoreRequest", payload: bytes) -> "Steps[Nothing]":
        root = os.path.realpath(request["path"])
        check_folder(root)
        entries = request["entries"]
        check_entries(entries, len(payload))
        _, mounts = find_places(request["path"])
        content = memoryview(payload)
        checked = ""
        for name, entry in entries.items():
            yield
            place = os.path.join(root, name) if name else root
            folder = os.path.dirname(place)
            if name and folder != checked:
                check_way(folder)
                checked = folder
            if entry[0] == FOLDER:
                put_folder(place, entry[5], mounts)
                continue
            clear(place)
            if entry[0] == FILE:
                put_file(place, content[: entry[5]], entry)
                content = content[entry[5] :]
            else:
                put_special(root, place, entry)
                checked = ""  # a link may have replaced a folder
        for name, entry in reversed(list(entries.items())):
            if entry[0] == FOLDER:
                yield
                put_status(os.path.join(root, name) if name else root, entry)
        return {}, b""


def wait_for_tick() -> int:
    """Wait until a change gets a later date than every change so far, and return that date in ns.

    Dates change with the clock's tick, every 1 to 10 ms. Without the wait, what the sandbox's own start wrote in the
    same tick would have the date of what is written afterwards.
    """
    now, tick = time.time(), time.clock_getres(COARSE_CLOCK)
    for _ in range(100):  # one or two, unless the clock is set back meanwhile
        date = time.clock_gettime(COARSE_CLOCK)
        if date > now:
            break
        time.sleep(max(1e-4, min(tick, date + tick - time.time())))
    return int(date * 1e9) - 1000  # a float is not exact


def date_of_change(folder: str, now: int) -> int:
    """Return the date that a file system gives to a change in a folder now, or one before it; `now` if it is unknown.

    The clock of a file system may be that of another machine, or count whole seconds.
    """
    named = os.path.join(folder, ".swe-gym-%s" % os.urandom(8).hex())
    for path, flags in (folder, os.O_TMPFILE), (named, os.O_CREAT | os.O_EXCL):
        try:
            before = os.stat(folder)
            fd = os.open(path, flags | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError:  # files of this file system have names, or only another user can make one
            continue
        found = os.fstat(fd).st_ctime_ns
        os.close(fd)
        if path == named:
            os.unlink(named)
            with contextlib.suppress(OSError):  # the folder of another user
                os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
        return found if found % 10**9 else found - 10**9
    return now


def find_places(root: str) -> "tuple[list[WrittenMount], set[str]]":
    """Return the mounts to search, and the paths of all mounts. Below a folder of its own, a sandbox has none."""
    root = os.path.realpath(root)
    if root != "/":
        return [WrittenMount(root)], set()
    found: dict[str, WrittenMount] = {}
    mounts = set()
    with open("/proc/self/mountinfo", "rb") as file:
        lines = os.fsdecode(file.read()).split("\n")[:-1]
    for line in lines:
        fields, _, source = line.partition(" - ")
        path, options = fields.split(" ", 6)[4:6]
        name = decode_octal(path)
        mounts.add(name)
        found.pop(name, None)
        kind, _, more = source.partition(" ")
        if kind in NOT_ON_DISK or "rw" not in options.split(","):
            continue
        flags = more.rpartition(" ")[2].split(",")
        if "rw" in flags and os.path.isdir(name):
            layered = kind == "overlay"
            found[name] = WrittenMount(name, layered, layered and not moves_folders(flags))
    return sorted(found.values(), key=lambda one: one.path), mounts


def decode_octal(path: str) -> str:
    if "\\" not in path:
        return path
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        path = path.replace("\\" + code, character)
    return path


def moves_folders(flags: "list[str]") -> bool:
    """Return whether folders of an overlay's lower layers can be moved, by its options or the kernel's default."""
    told = [one.partition("=")[2] for one in flags if one.startswith("redirect_dir=")]
    if told:
        return told[-1] == "on"
    try:
        with open("/sys/module/overlay/parameters/redirect_dir") as file:
            return file.read(1) in "Y1"
    except OSError:
        return True


class Taking:
    """A snapshot so far.

    Attributes:
        in_place: Changed folders that are where they were at the start, as the host knows, and their inodes.
        undecided: Changed folders of which only the host may know that, and their inodes.
    """

    def __init__(self, marked: Snapshots, root: str, since: int, max_bytes: int, in_place: "dict[str, int]") -> None:
        self.marked = marked
        self.root = os.path.realpath(root)
        self.since = since
        self.left = max_bytes
        self.max_bytes = max_bytes
        self.in_place = in_place
        self.places, self.mounts = find_places(root)
        self.names = 0
        self.undecided: dict[str, int] = {}
        self.entries: dict[str, Entry] = {}
        self.chunks: list[bytes] = []
        self.links: dict[tuple[int, int], str] = {}

    def list_changed(self, place: WrittenMount) -> "Generator[None, None, None]":
        todo = [place.path]
        while todo:
            yield
            path = todo.pop()
            try:
                info = os.lstat(path)
                changed = info.st_ctime_ns >= self.since
                if changed and (info.st_dev, info.st_ino) not in self.marked.kept:
                    self.undecided[path] = info.st_ino
                if path == place.path or info.st_ctime_ns >= self.marked.horizon:
                    todo += self.folders_in(path)
            except OSError:  # gone meanwhile, or of another user
                continue

    def folders_in(self, path: str) -> "list[str]":
        with os.scandir(path) as entries:
            found = [one.path for one in entries if one.is_dir(follow_symlinks=False)]
        return [one for one in found if one not in self.mounts]

    def walk(self, place: WrittenMount) -> "Generator[None, None, None]":
        todo = [(place.path, False)]
        while todo:
            yield
            path, whole = todo.pop()
            files: list[tuple[str, os.stat_result]] = []
            with contextlib.ExitStack() as opened:
                with self.meet(path):
                    info = os.lstat(path)
                    old = place.layered and path != place.path and info.st_ctime_ns < self.marked.horizon
                    if whole or not old:
                        fd = open_folder(path)
                        opened.callback(os.close, fd)
                        files = self.search(place, path, fd, whole, todo)
                for name, info in files:
                    with self.meet(os.path.join(path, name)):
                        yield from self.take(os.path.join(path, name), name, info, fd)

    @contextlib.contextmanager
    def meet(self, path: str) -> "Iterator[None]":
        """Leave out one file or folder that is gone meanwhile, or that another user alone can read and change.

        Raises:
            OSError: It cannot be read for another reason. The message names it.
        """
        try:
            yield
        except OSError as error:
            if error.errno in GONE and path != self.root:
                above = self.entries.get(self.name_of(os.path.dirname(path)))
                if above and os.path.basename(path) in above[5]:
                    above[5].remove(os.path.basename(path))
            elif not (error.errno in (errno.EACCES, errno.EPERM) and is_of_another(path)):
                said = str(error.strerror)
                raise OSError(error.errno, said if path in said else "%s: %s" % (path, said)) from error

    def search(
        self, place: WrittenMount, path: str, fd: int, whole: bool, todo: "list[tuple[str, bool]]"
    ) -> "list[tuple[str, os.stat_result]]":
        """Return the files of a folder to take, and add the folders in it to `todo`. `whole`: also what is unchanged.

        The descriptor is read: what takes the place of the folder meanwhile is not followed.
        """
        info = os.fstat(fd)
        changed = info.st_ctime_ns >= self.since
        whole = whole or (changed and self.has_moved(place, path, info))
        names, files = [], []
        for name in sorted(os.listdir(fd)):
            if os.path.join(path, name) in self.mounts:
                names.append(name)
                continue
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            written = whole or status.st_ctime_ns >= self.since
            if stat.S_ISDIR(status.st_mode):
                todo.append((os.path.join(path, name), whole))
            elif written and stat.S_ISSOCK(status.st_mode):
                continue
            elif written:
                files.append((name, status))
            names.append(name)
        if whole or changed or files:  # its time would change when a file in it is restored
            self.add(path, FOLDER, info, names)
        return files

    def has_moved(self, place: WrittenMount, path: str, info: os.stat_result) -> bool:
        """Return whether a folder that changed may have been elsewhere at the start."""
        known = self.marked.kept.get((info.st_dev, info.st_ino))
        if path == place.path:
            return False
        if known is not None:
            return known != path
        if self.marked.is_fixed(place):
            return False
        return not self.marked.is_identified(place) or self.in_place.get(path) != info.st_ino

    def name_of(self, path: str) -> str:
        name = os.path.relpath(path, self.root)
        return "" if name == "." else name

    def add(self, path: str, kind: str, info: os.stat_result, more: object) -> None:
        name = self.name_of(path)
        self.entries[name] = [
            *(kind, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns),
            more,
        ]
        self.names += len(name) + (len("".join(more)) if isinstance(more, (list, str)) else 0)
        if len(self.entries) > MOST_ENTRIES or self.names > LONGEST_NAMES:
            raise OSError(errno.EFBIG, "more than %d files and folders were written, or too long paths" % MOST_ENTRIES)

    def take(self, path: str, name: str, info: os.stat_result, folder: int) -> "Generator[None, None, None]":
        if stat.S_ISLNK(info.st_mode):
            self.add(path, LINK, info, os.readlink(name, dir_fd=folder))
        elif stat.S_ISFIFO(info.st_mode):
            self.add(path, PIPE, info, None)
        elif stat.S_ISREG(info.st_mode):
            with open_regular(name, os.O_NOFOLLOW, folder) as file:
                yield from self.read(path, file)

    def read(self, path: str, file: "io.FileIO") -> "Generator[None, None, None]":
        """Take a regular file, no more of it than it has now: it may grow for ever."""
        info = os.fstat(file.fileno())
        key = info.st_dev, info.st_ino
        if key in self.links:
            self.add(path, SAME, info, self.links[key])
            return
        if info.st_size > self.left:
            text = "%s has %d bytes, and what was written would have more than %d"
            raise OSError(errno.EFBIG, text % (path, info.st_size, self.max_bytes))
        left, chunks = info.st_size, []
        while left > 0:
            chunk = file.read(min(FILE_CHUNK, left))
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
            yield
        self.chunks += chunks
        self.left -= info.st_size - left
        self.add(path, FILE, info, info.st_size - left)
        if info.st_nlink > 1:
            self.links[key] = self.name_of(path)


def open_folder(path: str) -> int:
    """Open a folder to list it. One that is reached through a link was replaced meanwhile.

    Raises:
        OSError: It is gone, or it cannot be listed.
    """
    fd = os.open(path, FOLDER_FLAGS)
    try:
        found = os.readlink("/proc/self/fd/%d" % fd)
    except OSError as error:
        os.close(fd)
        raise OSError(errno.ENOSYS, "/proc, which tells what was opened, is not there") from error
    if found != path:
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return fd


def is_of_another(path: str) -> bool:
    """Return whether a file belongs to another user than the runner's."""
    try:
        return os.lstat(path).st_uid != os.geteuid()
    except OSError:
        return False


def check_entries(entries: "dict[str, Entry]", size: int) -> None:
    """Refuse entries that could write elsewhere, or that do not fit to the content."""
    total, files = 0, set()
    if len(entries) > MOST_ENTRIES:
        raise OSError(errno.EINVAL, "refused %d entries: more than %d" % (len(entries), MOST_ENTRIES))
    for name, entry in entries.items():
        kind, mode, user, group, when, more = entry
        parts = name.split("/")
        above = entries.get(os.path.dirname(name), [FOLDER])
        whole = all(isinstance(one, int) and 0 <= one < 1 << 63 for one in (mode, user, group)) and isinstance(
            when, int
        )
        listed = kind == FOLDER and isinstance(more, list) and all(isinstance(one, str) for one in more)
        right = listed or {
            FILE: isinstance(more, int) and more >= 0,
            LINK: isinstance(more, str) and more != "",
            SAME: isinstance(more, str) and more in files,
            PIPE: more is None,
        }.get(kind, False)
        outside = (name != "" or kind != FOLDER) and ("" in parts or "." in parts or ".." in parts)
        if outside or above[0] != FOLDER or "\0" in name or not (whole and right and mode <= 0o7777):
            raise OSError(errno.EINVAL, "refused entry %r: it leads out of the folder or is not an entry" % name)
        total += more if kind == FILE else 0
        files.update([name] if kind == FILE else [])
    if total != size:
        raise OSError(errno.EINVAL, "the entries have %d bytes, and %d came" % (total, size))


def check_way(folder: str) -> None:
    """Refuse a folder that is reached through a link."""
    if os.path.realpath(folder) != folder:
        raise OSError(errno.EINVAL, "refused entries of %r: they lead through a link" % folder)


def clear(place: str) -> None:
    """Remove what an entry replaces: nothing is written into a file that is there."""
    try:
        os.unlink(place)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        unlock(place)
        for path, folders, _ in os.walk(place):
            for name in folders:
                unlock(os.path.join(path, name))
        shutil.rmtree(place)


def unlock(folder: str) -> None:
    """Let the runner write to a folder of its own user, which may be read-only; root may always."""
    if os.geteuid() and not os.path.islink(folder) and not is_of_another(folder):
        os.chmod(folder, 0o700)


def put_folder(place: str, names: "Iterable[str]", mounts: "set[str]") -> None:
    """Make a folder, and remove what is not in it any more."""
    if os.path.islink(place) or not os.path.isdir(place):
        clear(place)
        os.mkdir(place, 0o700)
    unlock(place)
    kept = set(names)
    with os.scandir(place) as entries:
        gone = [one.path for one in entries if one.name not in kept]
    for path in gone:
        if not any((mount + "/").startswith(path + "/") for mount in mounts):
            clear(path)


def put_file(place: str, data: memoryview, entry: "Entry") -> None:
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    put_status(place, entry)


def put_special(root: str, place: str, entry: "Entry") -> None:
    """Make a link, a hard link to a file that was written before, or a pipe."""
    if entry[0] == SAME:
        first = os.path.join(root, entry[5])
        check_way(os.path.dirname(first))
        os.link(first, place, follow_symlinks=False)
        return
    if entry[0] == LINK:
        os.symlink(entry[5], place)
    else:
        os.mkfifo(place)
    put_status(place, entry)


def put_status(place: str, entry: "Entry") -> None:
    """Set owner, mode and time, in this order: a change of owner clears setuid."""
    kind, mode, user, group, when = entry[:5]
    if os.geteuid() and is_of_another(place):
        return  # who alone can change it
    if os.geteuid() == 0:
        os.chown(place, user, group, follow_symlinks=False)
    if kind != LINK:
        os.chmod(place, mode)
    os.utime(place, ns=(when, when), follow_symlinks=False)
