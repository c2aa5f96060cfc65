"""The namespace tier: a root file system and namespaces of its own, without root and without any program but Python.

`launcher` calls it in a fresh, single-threaded process that becomes the sandbox. `layers` makes the writable files.
What the sandbox sees and may change of the kernel (/proc, /sys and its switches) is limited here too.
"""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import struct
from typing import Callable, NoReturn

from ..protocol import encode
from ..seccomp import MASKED, restrict_calls
from . import egress, groups, layers, linux
from .layers import copy_file
from .linux import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_REC, Config, check, libc, mount

SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
SWITCHES = ("sys", "bus", "fs", "irq")
"""Names in /proc of what root may change by writing."""
EMPTY = "/dev/shm/.empty"
"""File of this sandbox; /dev/null may be the host's."""
OWN_PID_MAX = (6, 14)
"""First Linux on which each PID namespace has a `pid_max` of its own."""


def set_read_only(target: str, *, wanted: bool = True, recursive: bool = True) -> bool:
    """Make mounts read-only, or writable again; return whether this kernel can (Linux 5.12)."""
    changes = (MOUNT_ATTR_RDONLY, 0) if wanted else (0, MOUNT_ATTR_RDONLY)
    attributes = struct.pack("QQQQ", *changes, 0, 0)
    depth = AT_RECURSIVE if recursive else 0
    path = os.fsencode(target)
    return not libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, depth, attributes, len(attributes))


def make_read_only(target: str) -> None:
    """Make a mount and the mounts below it read-only. Raises OSError if the kernel refuses."""
    if set_read_only(target):
        return
    flags = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)  # these are locked and must be repeated
    mount("", target, flags=MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | flags)


def limit(pids: int, disk_mb: int) -> None:
    """Forbid further user namespaces; cap processes and System V's shared memory, which no file system counts.

    Every user may listen on every port, as container engines set it.

    RLIMIT_NPROC does not bind the host's root, so the PID namespace is capped too. The kernel gives out numbers below
    300 only once, so a sandbox that has used them has `pids` left.
    """
    limits = {"user/max_user_namespaces": 0, "kernel/shmall": disk_mb * 256, "net/ipv4/ip_unprivileged_port_start": 0}
    if release() >= OWN_PID_MAX:  # before, it is the machine's
        limits["kernel/pid_max"] = 300 + pids
    for name, value in limits.items():
        try:
            with open("/proc/sys/" + name, "w") as file:
                file.write(str(value))
        except OSError:
            pass  # an older kernel; see `capabilities.notes`


def release() -> "tuple[int, ...]":
    """Return the first two numbers of the kernel's version."""
    return tuple(int(part) for part in os.uname().release.replace("-", ".").split(".")[:2] if part.isdigit())


def protect_host() -> None:
    """Hide what in /proc and /sys tells of the host, and freeze what reaches it: the host's root is root here."""
    frozen = {name for name in SWITCHES if os.path.exists("/proc/" + name)}
    if linux.is_host_root():
        frozen |= files_of_all()
    for name in frozen:
        mount("/proc/" + name, "/proc/" + name, flags=MS_BIND | MS_REC)
    mask()
    if set_read_only("/proc"):
        set_read_only("/proc", wanted=False, recursive=False)
    else:
        for name in frozen:
            make_read_only("/proc/" + name)


def mask() -> None:
    """Mount an empty file or folder over what `MASKED` names."""
    with open(EMPTY, "x"):
        pass
    for path in MASKED:
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", linux.MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k")
        elif os.path.exists(path):
            mount(EMPTY, path, flags=MS_BIND)
    os.unlink(EMPTY)


def files_of_all() -> "set[str]":
    """Return the names in /proc of which the kernel keeps one mode for all sandboxes."""
    masked = {path.split("/")[2] for path in MASKED if path.count("/") == 2}
    with os.scandir("/proc") as entries:
        return {entry.name for entry in entries if not (entry.name.isdigit() or entry.is_symlink())} - masked


CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x2000000, 0x4000000, 0x8000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
NAMESPACES = linux.CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
KEPT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 10}
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE: what programs expect of root.
None of them reaches beyond the sandbox."""
SHARED_MEMORY = "size=64m,mode=1777"
"""As container engines make it."""
ETC_FILES = (
    "ld.so.cache ld.so.conf nsswitch.conf mime.types services protocols bash.bashrc "
    "gai.conf debian_version os-release locale.alias magic"
).split()
ETC_FOLDERS = (
    "alternatives ld.so.conf.d ssl/certs ca-certificates pki/tls/certs pki/ca-trust/extracted terminfo fonts"
).split()


class Root:
    """The new root during its construction."""

    def __init__(self) -> None:
        mount("", "/", flags=MS_REC | MS_PRIVATE)
        self.sources: dict[str, int] = {}
        self.root = layers.ROOT

    def hold(self, *paths: str) -> None:
        """Open folders and files before the tmpfs covers them; `source` names them afterwards."""
        for path in {*paths, "/usr"} - {*self.sources, ""}:
            self.sources[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def source(self, path: str) -> str:
        return f"/proc/self/fd/{self.sources[path]}" if path in self.sources else path

    def place(self, path: str) -> str:
        """Return where a path of the new root is now. Links lead within the new root, as they will in the sandbox."""
        done, names = "", path.split("/")[::-1]
        for _ in range(1000):  # more than the names of a path and its links
            if not names:
                return self.root + done
            name = names.pop()
            here = f"{self.root}{done}/{name}"
            if name == "..":
                done = done.rpartition("/")[0]
            elif name in ("", "."):
                continue
            elif os.path.islink(here):
                link = os.readlink(here)
                done = "" if link.startswith("/") else done
                names += link.split("/")[::-1]
            else:
                done += "/" + name
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def folder(self, path: str, mode: int = 0o755) -> str:
        target = self.place(path)
        os.makedirs(target, exist_ok=True)
        os.chmod(target, mode)
        return target

    def show(self, path: str, target: "str | None" = None) -> None:
        """Show a host file or folder, read-only, at `target` (default: the same path).

        It has inodes of its own: locks and watches on it are not seen by others, nor is that it was read. Only on a
        file system that cannot be a lower layer they are the host's.
        """
        source, place = self.source(path), self.place(target or path)
        if not os.path.isdir(source):
            self.remove(place)
            copy_file(source, place)
            return
        try:
            os.makedirs(place, exist_ok=True)
            layers.mount_below(source, place)
        except OSError:
            self.bind(path, target)

    def bind(self, path: str, target: "str | None" = None) -> None:
        """Mount a host file or folder itself, read-only, at `target` (default: the same path)."""
        source, place = self.source(path), self.place(target or path)
        if os.path.isdir(source):
            os.makedirs(place, exist_ok=True)
        else:
            self.write(target or path, "")
        mount(source, place, flags=MS_BIND | MS_REC)
        make_read_only(place)

    def overlay(self, path: str, target: "str | None" = None) -> None:
        """Mount a held host folder copy-on-write."""
        layers.mount_overlay([self.sources[path]], self.folder(target or path), "userxattr")

    def is_covered(self, path: str) -> bool:
        """Return whether a mount hides the sandbox's own files at `path`."""
        return os.stat(self.folder(path)).st_dev != os.stat(self.root).st_dev

    def hide(self, path: str) -> None:
        """Mount an empty folder over one, if it exists in the new root."""
        place = self.place(path)
        if os.path.isdir(place):
            mount("tmpfs", place, "tmpfs", linux.MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=755")

    def write(self, path: str, text: str) -> None:
        """Write a new file, in place of any, which may be a pipe."""
        place = self.place(path)
        self.remove(place)
        with open(place, "x") as file:
            file.write(text)

    def remove(self, place: str) -> None:
        """Make way for a new file."""
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)

    def enter(self) -> None:
        """Make it the root of this mount namespace, and release the host's."""
        os.chdir(self.root)
        number = SYS_PIVOT_ROOT.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENOSYS, f"no number of pivot_root for {os.uname().machine}")
        check(libc.syscall(number, b".", b"."), "pivot_root")
        check(libc.umount2(b".", linux.MNT_DETACH), "umount of the host's root")
        os.chdir("/")
        for fd in self.sources.values():
            os.close(fd)


def build(config: Config, files: "int | None", nodes: "int | None") -> None:
    """Build the root that `config` describes, and enter it as PID 1 of the new namespaces.

    `files` and `nodes` are the results of `layers.make_as_root` and `layers.make_devices`.
    """
    root = Root()
    mounts = config["mounts"]
    root.hold(config["python"], config["workspace"], *config["layers"], *config["read_only"], *mounts.values())
    if files is not None:
        layers.attach(files)
    elif config["overlay"] == "kernel":
        layers.make(config, [root.sources[one] for one in config["layers"]], root.sources.get(config["workspace"]))
    if config["image"]:
        image_folders(root, config)
    else:
        host_folders(root, config)
    for place, folder in mounts.items():
        root.show(folder, place)
    devices(root, nodes)
    mount("proc", root.folder("/proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    root.enter()
    limit(config["pids"], config["disk_mb"])
    protect_host()
    socket.sethostname("sandbox")
    raise_loopback()


def image_folders(root: Root, config: Config) -> None:
    """Add to an image's files what a container engine adds: host names and /sys."""
    os.makedirs(root.place(config["workdir"]), exist_ok=True)
    for path in ("/tmp", "/var/tmp"):
        root.folder(path, 0o1777)
    names(root, bool(config["pasta"]))
    with contextlib.suppress(OSError):  # the host hides a part of it
        mount("sysfs", root.folder("/sys"), "sysfs", linux.MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def host_folders(root: Root, config: Config) -> None:
    """Add the host's programs and the Python environment, and the workspace if a mount covers its place."""
    system_folders(root)
    for path in config["read_only"]:
        root.show(path)
    root.show(config["python"], "/opt/venv")
    for path in config["hidden"]:
        root.hide(path)
    if config["workspace"] and root.is_covered(config["workdir"]):
        root.overlay(config["workspace"], config["workdir"])
    os.utime(root.folder(config["workdir"]), (config["date"], config["date"]))
    etc(root, bool(config["pasta"]))


def system_folders(root: Root) -> None:
    """Add /usr with copy-on-write, other systems' /bin and /lib, and empty folders to work in."""
    try:
        root.overlay("/usr")
    except OSError:  # not every file system can be a lower layer: another overlay, for example
        root.bind("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink("/" + name):
            os.symlink(os.readlink("/" + name), f"{root.root}/{name}")
        elif os.path.isdir("/" + name):
            root.show("/" + name)
    for path in ("/root", "/home", "/run", "/var/lib", "/var/log", "/var/cache", "/opt", "/srv", "/mnt"):
        root.folder(path)
    for path in ("/tmp", "/var/tmp"):
        root.folder(path, 0o1777)


def etc(root: Root, network: bool) -> None:
    """Add an /etc of harmless, public files, without the host's accounts, keys and service settings."""
    root.write("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
    root.write("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
    names(root, network)
    for name in [*ETC_FILES, *ETC_FOLDERS]:
        if os.path.exists("/etc/" + name):
            root.show("/etc/" + name)


def names(root: Root, network: bool) -> None:
    """Add the files that name hosts."""
    root.write("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 ip6-localhost ip6-loopback\n")
    root.write("/etc/hostname", "sandbox\n")
    if not os.path.lexists(root.place("/etc") + "/mtab"):
        os.symlink("/proc/mounts", root.place("/etc") + "/mtab")
    root.write("/etc/resolv.conf", egress.resolvers() if network else "")


def devices(root: Root, nodes: "int | None") -> None:
    """Add harmless device nodes, shared memory and a pseudo-terminal file system."""
    if nodes is None:
        mount(layers.make_folder("dev"), root.folder("/dev"), flags=MS_BIND)
        for name in layers.DEVICES:
            root.bind("/dev/" + name)  # writing to one needs no writable mount
    else:
        layers.attach(nodes, root.folder("/dev"))
    mount("tmpfs", root.folder("/dev/shm"), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, SHARED_MEMORY)
    with contextlib.suppress(OSError):  # a kernel without message queues
        mount("mqueue", root.folder("/dev/mqueue"), "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink("/proc/self/" + target, root.place("/dev/" + name))
    options = "newinstance,ptmxmode=0666,mode=0620,max=64"  # all sandboxes share the kernel's few thousand
    mount("devpts", root.folder("/dev/pts"), "devpts", MS_NOSUID | MS_NOEXEC, options)
    os.symlink("pts/ptmx", root.place("/dev/ptmx"))


def raise_loopback() -> None:
    """Bring up `lo`, so that tests can connect to their own servers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS


def supervise(child: int, group: "groups.ControlGroup | None", *others: int) -> "NoReturn":
    """Wait for PID 1, and so for the whole namespace; SIGTERM, or the end of one of `others`, kills it."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    stream = os.dup(1)
    linux.let_go(stream, *([group.folder, group.parent] if group else []))
    linux.wait_for_end(child, others)
    os.waitpid(child, 0)
    if group:
        if group.ran_out_of_memory():
            os.set_blocking(stream, False)
            with contextlib.suppress(OSError):  # nobody reads any more
                os.write(stream, encode({"event": "oom"}))
        os.close(stream)
        group.end()
    os._exit(0)


def enter(config: Config) -> "tuple[Callable[[], tuple[int, int]], tuple[int, ...]]":
    """Become PID 1 of a new sandbox.

    Returns, in the new process only, its `forkpty` and the descriptors that it needs.
    """
    files, nodes = layers.make_as_root(config)
    with egress.connected(config["pasta"]) as pasta:
        if config["overlay"] == "kernel":
            linux.enter_user_namespace(NAMESPACES, config["ranges"], everyone=config["image"])
        else:
            linux.enter_user_namespace(linux.CLONE_NEWNS, config["ranges"])
            layers.make_without_overlay(config, not linux.has_one_user())
            config["layers"] = []  # done
            check(libc.unshare(NAMESPACES), "unshare")
    group = groups.ControlGroup(config["group"], config["group_limits"]) if config["group"] else None
    outside = os.getpid()
    child = os.fork()
    if child:
        supervise(child, group, config["host"], *pasta)
    linux.die_with_parent(outside)
    if group:
        group.join()
    check(libc.unshare(CLONE_NEWCGROUP), "unshare")
    build(config, files, nodes)
    linux.drop_privileges(KEPT_CAPABILITIES)
    restrict_calls()
    if config["image"]:
        become(config["user"])
    return os.forkpty, ()


def become(user: str) -> None:
    """Change to a user of the image: "name", "number", "name:group" or "number:number", as container engines do.

    The user's home becomes HOME, also if this namespace has no user but root.
    """
    name, _, group = user.partition(":")
    known = [line.rstrip("\n").split(":") for line in lines_of("/etc/passwd")]
    unknown = ["", "", name, "0", "", "/"]
    entry = next((one for one in known if len(one) > 5 and name in (one[0], one[2])), unknown)
    os.environ["HOME"] = entry[5] or "/"
    if user in ("root", "0") or linux.has_one_user():
        return
    groups = [line.rstrip("\n").split(":") for line in lines_of("/etc/group")]
    first = next((one[2] for one in groups if len(one) > 2 and group in (one[0], one[2])), group) or entry[3]
    if not (entry[2].isdigit() and first.isdigit()):
        raise OSError(errno.EINVAL, f"the image has no user {user!r}")
    others = [int(one[2]) for one in groups if len(one) > 3 and entry[0] and entry[0] in one[3].split(",")]
    os.setgroups([int(first), *others])
    os.setgid(int(first))
    os.setuid(int(entry[2]))


def lines_of(path: str) -> "list[str]":
    try:
        with open(path, errors="replace") as file:
            return file.readlines()
    except OSError:
        return []  # the image names no users
