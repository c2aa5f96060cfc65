"""The root of an image's sandbox where the kernel mounts no overlay in a user namespace: by FUSE, or as a copy.

Both are made in the sandbox's user namespace, before its other namespaces. What serves or holds them is a process that
no sandbox can see, and ends with the supervisor, also if that is killed.
"""

import errno
import fcntl
import os
import select
import shutil
import time

from . import layers, linux
from .linux import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_REC, Config, mount
from .merge import Merge

READY_SECONDS, REMOVE_SECONDS, PAUSE = 20.0, 60.0, 0.05


def make(config: Config, owners: bool) -> None:
    """Make the root at `layers.ROOT`."""
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    lowers = [os.open(layer, os.O_PATH | os.O_CLOEXEC) for layer in config["layers"]]
    copy = None if config["overlay"] == "fuse" else make_folder(config["copies"])
    layers.mount_tmpfs(config["disk_mb"])
    if copy is None:
        serve(config["fuse"], lowers)
    else:
        Merge(owners).copy([f"/proc/self/fd/{lower}/." for lower in lowers], f"/proc/self/fd/{copy}/.")
        os.chmod(copy, 0o755)  # as that of an overlay
        mount(f"/proc/self/fd/{copy}", layers.ROOT, flags=MS_BIND)
        kept = os.statvfs(layers.ROOT).f_flag & MS_NOEXEC  # it is locked and must be repeated
        mount("", layers.ROOT, flags=MS_BIND | linux.MS_REMOUNT | MS_NOSUID | MS_NODEV | kept)
    for lower in lowers:
        os.close(lower)


def serve(program: str, lowers: "list[int]") -> None:
    """Mount folders, given as descriptors from top to bottom, by fuse-overlayfs."""
    places = []
    for number, lower in enumerate(lowers):  # it looks for the paths of its folders, which /tmp may hide by now
        places.append(layers.make_folder(f"{number}l"))
        mount(f"/proc/self/fd/{lower}", places[-1], flags=MS_BIND | MS_REC)
    upper, work = layers.make_folder("fu"), layers.make_folder("fw")
    options = f"lowerdir={':'.join(places)},upperdir={upper},workdir={work}"
    with open("/proc/self/mountinfo") as mounts:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                linux.die_with_parent(parent)
                linux.let_go()
                os.execv(program, [program, "-f", "-o", options, layers.ROOT])
            finally:
                os._exit(127)
        wait_for_mount(mounts.fileno(), child, program)


def wait_for_mount(mounts: int, child: int, program: str) -> None:
    """Wait until the mount is there, of which the kernel tells those who poll the list of mounts."""
    events = select.poll()
    events.register(mounts, select.POLLPRI)
    end = os.pidfd_open(child)
    events.register(end, select.POLLIN)
    deadline = time.monotonic() + READY_SECONDS
    while os.stat(layers.BASE).st_dev == os.stat(layers.ROOT).st_dev:
        if os.waitpid(child, os.WNOHANG)[0] or time.monotonic() > deadline:
            raise OSError(errno.EIO, f"{program} did not mount the image: it needs /dev/fuse")
        events.poll(1000)
    os.close(end)


def make_folder(folder: str) -> int:
    """Make a folder for a copy, and start the process that removes it. Return its descriptor, which holds its lock.

    Folders that others left behind, because all of their processes were killed, are removed.
    """
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(parent, fcntl.LOCK_EX)  # a folder is made and locked in one step
    left = [held for held in map(lock, os.scandir(folder)) if held]
    name = f"{os.getpid()}-{time.time_ns()}"
    os.mkdir(name, 0o700, dir_fd=parent)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    fcntl.flock(parent, fcntl.LOCK_UN)
    supervisor = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        try:
            linux.let_go(parent, supervisor, descriptor, *(held for _, held in left))
            for other, _ in left:
                remove(other, parent)
            select.select([supervisor], [], [])
            remove(name, parent)
        finally:
            os._exit(0)
    for held in (supervisor, parent, *(held for _, held in left)):
        os.close(held)
    return descriptor


def lock(entry: "os.DirEntry[str]") -> "tuple[str, int] | None":
    """Lock a folder that no process holds."""
    descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return entry.name, descriptor


def remove(name: str, parent: int) -> None:
    """Remove a folder. The last processes of its sandbox may still write for a moment."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            shutil.rmtree(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(PAUSE)
