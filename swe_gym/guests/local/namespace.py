"""A root file system of its own in namespaces of its own, without root and without any program but Python.

Runs in a fresh, single-threaded process that becomes the sandbox; `launcher` is its caller. `layers` makes the files
that it may write to.
"""

import errno
import fcntl
import os
import signal
import socket
import struct

from ..seccomp import restrict_calls
from . import layers
from .confined import close_abstract_sockets
from .linux import (
    CLONE_NEWNS,
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    check,
    die_with_parent,
    drop_privileges,
    libc,
    mount,
    wait_for_end,
)

CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
KEPT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 10}
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE: what root of a container is used to,
none of which reaches beyond the sandbox."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
ETC_FILES = (
    "ld.so.cache ld.so.conf nsswitch.conf mime.types services protocols bash.bashrc "
    "gai.conf debian_version os-release locale.alias magic"
).split()
ETC_FOLDERS = (
    "alternatives ld.so.conf.d ssl/certs ca-certificates pki/tls/certs pki/ca-trust/extracted terminfo fonts"
).split()
MASKED = "sysrq-trigger kcore keys timer_list sched_debug latency_stats kmsg interrupts 1/autogroup".split()
READ_ONLY_PROC = ("sys", "bus", "fs", "irq", "acpi", "scsi")


def separate(network):
    """Enter new namespaces and map our user to root in them; the next fork is PID 1."""
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    check(libc.unshare(flags | (0 if network else CLONE_NEWNET)), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:  # Ubuntu's way of refusing them
            raise OSError(error.errno, f"{name}: {error.strerror}") from error


class Root:
    """The new root while it is being built."""

    def __init__(self):
        mount("", "/", flags=MS_REC | MS_PRIVATE)
        self.sources = {}
        self.root = layers.ROOT

    def hold(self, *paths):
        """Open folders and files before the tmpfs covers them; `source` names them from then on."""
        for path in {*paths, "/usr"} - {*self.sources, ""}:
            self.sources[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def source(self, path):
        return f"/proc/self/fd/{self.sources[path]}" if path in self.sources else path

    def folder(self, path, mode=0o755):
        target = self.root + path
        os.makedirs(target, exist_ok=True)
        os.chmod(target, mode)
        return target

    def bind(self, path, target=None):
        """Show a host file or folder, read-only, at `target` (default: at the same path)."""
        source, target = self.source(path), self.root + (target or path)
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "a").close()
        mount(source, target, flags=MS_BIND | MS_REC)
        make_read_only(target)

    def overlay(self, path, target=None):
        """Show a host folder that is held, on a mount of its own that may be written to."""
        layers.mount_overlay(self.sources[path], self.folder(target or path), "userxattr")

    def is_covered(self, path):
        """Whether a mount has hidden what the sandbox's own files have there."""
        return os.stat(self.folder(path)).st_dev != os.stat(self.root).st_dev

    def hide(self, path):
        """Put an empty folder in the place of one, where what was shown so far holds it."""
        if os.path.isdir(self.root + path):
            mount("tmpfs", self.root + path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=755")

    def write(self, path, text):
        self.folder(os.path.dirname(path))
        with open(self.root + path, "w") as file:
            file.write(text)

    def enter(self):
        """Make it the root of this mount namespace and let go of the host's."""
        os.chdir(self.root)
        number = SYS_PIVOT_ROOT.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENOSYS, f"pivot_root is not known on {os.uname().machine}")
        check(libc.syscall(number, b".", b"."), "pivot_root")
        check(libc.umount2(b".", MNT_DETACH), "umount of the host's root")
        os.chdir("/")
        for fd in self.sources.values():
            os.close(fd)


def make_read_only(target):
    """Make a mount and the mounts below it read-only, or raise."""
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    path = os.fsencode(target)
    if libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, attributes, len(attributes)) == 0:
        return
    flags = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)  # these are locked and must be repeated
    mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | flags)


def build(config, files):
    """Build the root that `config` describes, and enter it. We are PID 1 of the new namespaces.

    `files` is what `layers.make_as_root` made.
    """
    root = Root()
    layer, workspace, shown = config["layer"], config["workspace"], config["read_only"]
    root.hold(config["python"], layer, workspace, *shown)
    if files is None:
        layers.make(config, root.sources.get(layer), root.sources.get(workspace))
    else:
        layers.attach(files)
    system_folders(root)
    for path in shown:
        root.bind(path)
    root.bind(config["python"], "/opt/venv")
    for path in config["hidden"]:
        root.hide(path)
    if workspace and root.is_covered(config["workdir"]):
        root.overlay(workspace, config["workdir"])
    os.utime(root.folder(config["workdir"]), (config["date"], config["date"]))
    etc(root, config["network"])
    devices(root)
    root.folder("/proc")
    mount("proc", root.root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    root.enter()
    limit(config["pids"], config["disk_mb"])
    protect_proc()
    socket.sethostname("sandbox")
    if not config["network"]:
        raise_loopback()


def system_folders(root):
    """/usr with copy-on-write, what other systems keep beside it, and empty places to work in."""
    try:
        root.overlay("/usr")
    except OSError:  # not every file system can be a lower layer, another overlay for one
        root.bind("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink("/" + name):
            os.symlink(os.readlink("/" + name), f"{root.root}/{name}")
        elif os.path.isdir("/" + name):
            root.bind("/" + name)
    for path in ("/root", "/home", "/run", "/var/lib", "/var/log", "/var/cache", "/opt", "/srv", "/mnt"):
        root.folder(path)
    for path in ("/tmp", "/var/tmp", "/dev/shm"):
        root.folder(path, 0o1777)


def etc(root, network):
    """An /etc of harmless, public files; the host's accounts, keys and service settings stay out."""
    root.write("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
    root.write("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
    root.write("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
    root.write("/etc/hostname", "sandbox\n")
    files = [*ETC_FILES, "resolv.conf"] if network else ETC_FILES
    for name in [*files, *ETC_FOLDERS]:
        if os.path.exists("/etc/" + name):
            root.bind("/etc/" + name)


def devices(root):
    """The harmless device nodes (writing to one needs no writable mount) and a pseudo-terminal file system."""
    for name in DEVICES:
        root.bind("/dev/" + name)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink("/proc/self/" + target, f"{root.root}/dev/{name}")
    options = "newinstance,ptmxmode=0666,mode=0620,max=64"  # all sandboxes share the kernel's few thousand
    mount("devpts", root.folder("/dev/pts"), "devpts", MS_NOSUID | MS_NOEXEC, options)
    os.symlink("pts/ptmx", root.root + "/dev/ptmx")


def limit(pids, disk_mb):
    """Forbid further user namespaces; cap processes, and System V's shared memory, which no file system counts.

    RLIMIT_NPROC does not bind a host's root, so the PID namespace is capped, where the kernel can (Linux 6.14).
    It gives out the numbers below 300 only once, so a sandbox that has used them has `pids` left.
    """
    limits = {"user/max_user_namespaces": 0, "kernel/pid_max": 300 + pids, "kernel/shmall": disk_mb * 256}
    for name, value in limits.items():
        try:
            with open("/proc/sys/" + name, "w") as file:
                file.write(str(value))
        except OSError:
            pass  # an older kernel; `capabilities.notes` says what that means


def protect_proc():
    """Hide or freeze what in /proc reaches the host, for the host's root is root of this one."""
    for name in READ_ONLY_PROC:
        if os.path.exists("/proc/" + name):
            mount("/proc/" + name, "/proc/" + name, flags=MS_BIND | MS_REC)
            make_read_only("/proc/" + name)
    for name in MASKED:
        if os.path.exists("/proc/" + name):
            mount("/dev/null", "/proc/" + name, flags=MS_BIND)


def raise_loopback():
    """Bring up `lo`, so that tests may talk to themselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS


def supervise(child, host, *unused):
    """Wait for PID 1 and so for all that it holds; SIGTERM kills it, and with it the whole namespace."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    for fd in (0, 1, *unused):
        os.close(fd)
    wait_for_end(child, host)
    os.waitpid(child, 0)
    os._exit(0)


def enter(config, report):
    """Become PID 1 of a new sandbox.

    Returns, in the new process only, how it forks on a terminal and which descriptors that takes.
    """
    files = layers.make_as_root(config)
    separate(config["network"])
    outside = os.getpid()
    child = os.fork()
    if child:
        supervise(child, config["host"], report, *([] if files is None else [files]))
    die_with_parent(outside)
    build(config, files)
    if config["network"]:
        close_abstract_sockets()
    drop_privileges(KEPT_CAPABILITIES)
    restrict_calls([socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK], host=False)
    return os.forkpty, ()
