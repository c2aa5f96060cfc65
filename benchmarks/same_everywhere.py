"""What a program sees that differs between backends: `python benchmarks/same_everywhere.py`.

One probe runs from one image in a local sandbox, in Docker and in Kubernetes: files, users, limits, network, signals,
tools. Docker is the reference. The differences must be those that docs/sandboxes/choosing.md explains.
"""

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import show

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox

PAGE = Path(__file__).parents[1] / "docs/sandboxes/choosing.md"
REFERENCE = "docker"

PROBE = r"""
import ctypes, errno, glob, json, os, pwd, resource, shutil, signal, socket, stat, subprocess, sys, tempfile
seen = {}
libc = ctypes.CDLL(None, use_errno=True)

def note(name, find):
    try:
        seen[name] = find()
    except OSError as error:
        seen[name] = errno.errorcode.get(error.errno, str(error.errno))
    except Exception as error:
        seen[name] = type(error).__name__

def call(name, *arguments):
    ctypes.set_errno(0)
    done = getattr(libc, name)(*arguments)
    return "ok" if done >= 0 else errno.errorcode[ctypes.get_errno()]

def forked(work):  # what may not be undone in this process
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            said = work()
        except OSError as error:
            said = errno.errorcode[error.errno]
        os.write(write, str(said).encode())
        os._exit(0)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    said = os.read(read, 999).decode()
    os.close(read)
    return said or "ended by signal %d" % os.WTERMSIG(status)

def mode(path):
    found = os.lstat(path)
    return "%s %d:%d" % (stat.filemode(found.st_mode), found.st_uid, found.st_gid)

def text(path):
    return open(path).read().strip()

def field(path, name):
    return next((line.split(":", 1)[1].strip() for line in open(path) if line.startswith(name + ":")), "")

def can_write(folder):
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
    return True

def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return [done.returncode, done.stdout.strip()[:200]]

for path in ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/dev/null", "/dev/tty", "/dev/fd", "/dev/pts", "/dev/ptmx",
             "/dev/mqueue", "/dev/full", "/dev/urandom", "/etc", "/etc/mtab", "/etc/hosts", "/etc/hostname",
             "/etc/resolv.conf", "/etc/passwd", "/root", "/home", "/mnt", "/opt", "/run", "/srv", "/usr", "/var",
             "/sys", "/proc", os.getcwd()):
    note("mode of " + ("the working folder" if path == os.getcwd() else path), lambda: mode(path))
note("entries of /", lambda: sorted(os.listdir("/")))
note("entries of /dev", lambda: sorted(os.listdir("/dev")))
note("entries of /tmp", lambda: sorted(os.listdir("/tmp")))
note("entries of the home folder", lambda: sorted(os.listdir(os.path.expanduser("~"))))
note("size of /dev/shm", lambda: os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize >> 20)
for folder in ("/", "/etc", "/usr/bin", "/opt", "/root", "/tmp", "/dev/shm", "/var/tmp", "/proc", "/sys", "/run"):
    note("can write to " + folder, lambda: can_write(folder))
note("lines of /etc/hosts", lambda: sorted({name for line in open("/etc/hosts") for name in
                                           line.split("#")[0].split()[1:]} - {socket.gethostname()}))
note("file of resolv.conf is empty", lambda: not text("/etc/resolv.conf"))
note("mounts in /etc/mtab", lambda: os.path.realpath("/etc/mtab").startswith("/proc/"))
note("user", lambda: [os.getuid(), os.geteuid(), os.getgid(), sorted(os.getgroups())])
note("user's name", lambda: pwd.getpwuid(os.getuid()).pw_name)
note("environment", lambda: sorted(set(os.environ) - {"HOSTNAME"}))
for name in ("HOME", "PATH", "LANG", "LC_ALL", "SHELL", "TERM", "USER", "LOGNAME", "TMPDIR", "PWD"):
    note("variable " + name, lambda: os.environ.get(name))
for name in sorted(name for name in dir(resource) if name.startswith("RLIMIT_")):
    note("limit " + name[7:], lambda: list(resource.getrlimit(getattr(resource, name))))
note("nice value", lambda: os.nice(0))
note("oom_score_adj", lambda: text("/proc/self/oom_score_adj"))
note("scheduler", lambda: os.sched_getscheduler(0))
note("processors", lambda: len(os.sched_getaffinity(0)) == os.cpu_count())
note("number of processes", lambda: len([one for one in os.listdir("/proc") if one.isdigit()]))
note("process 1 is hidden", lambda: not os.path.exists("/proc/1"))
note("bytes of all command lines without the probe", lambda: sum(len(open(one, "rb").read()) for one in
                                           glob.glob("/proc/[0-9]*/cmdline")) < 20000)
note("standard input", lambda: stat.filemode(os.fstat(0).st_mode)[0])
note("open descriptors", lambda: [one for one in range(3, 64) if os.path.exists("/proc/self/fd/%d" % one)][1:])
note("controlling terminal", lambda: os.close(os.open("/dev/tty", os.O_RDWR)))
OF_THE_C_LIBRARY = 0x180000000  # posix_spawn ignores them
note("blocked signals", lambda: field("/proc/self/status", "SigBlk"))
note("ignored at the start", lambda: hex(int(field("/proc/self/status", "SigIgn"), 16) & ~OF_THE_C_LIBRARY))
for name in ("CapEff", "CapBnd", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Umask"):
    note(name, lambda: field("/proc/self/status", name))
note("host name has an address", lambda: bool(socket.getaddrinfo(socket.gethostname(), 80)))
note("addresses of localhost", lambda: sorted({one[4][0] for one in socket.getaddrinfo("localhost", 80)}))
note("interfaces", lambda: sorted(name for _, name in socket.if_nameindex()))
note("a name of the internet", lambda: bool(socket.getaddrinfo("example.com", 80)))

def listen(address, port, family=socket.AF_INET):
    with socket.socket(family) as server:
        server.bind((address, port))
        server.listen()
        with socket.create_connection(server.getsockname()[:2], 5):
            return "ok"

note("listen on 127.0.0.1", lambda: listen("127.0.0.1", 0))
note("listen on ::1", lambda: listen("::1", 0, socket.AF_INET6))
note("listen on port 80", lambda: listen("127.0.0.1", 80))
note("connect outwards", lambda: socket.create_connection(("192.0.2.1", 80), 0.5))
STREAM, RAW, PACKETS = socket.SOCK_STREAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET
for name, family, kind in (("AF_UNIX", socket.AF_UNIX, STREAM), ("AF_VSOCK", socket.AF_VSOCK, STREAM),
                           ("AF_PACKET", socket.AF_PACKET, RAW), ("raw", socket.AF_INET, RAW),
                           ("AF_NETLINK", socket.AF_NETLINK, RAW), ("AF_ALG", socket.AF_ALG, PACKETS)):
    note("socket " + name, lambda: socket.socket(family, kind, 1 if name == "raw" else 0).close())
for path in ("net/ipv4/ip_unprivileged_port_start", "net/ipv4/ping_group_range", "kernel/shmmax",
             "fs/mqueue/msg_max", "kernel/yama/ptrace_scope", "kernel/core_pattern", "vm/overcommit_memory"):
    note("/proc/sys/" + path, lambda: text("/proc/sys/" + path))
for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kpageflags", "/proc/kmsg", "/proc/sysrq-trigger",
             "/proc/interrupts", "/proc/bus", "/proc/fs", "/proc/irq", "/sys/firmware", "/sys/devices/virtual/powercap",
             "/sys/kernel/security", "/sys/fs/cgroup", "/proc/acpi", "/proc/scsi", "/proc/locks"):
    note("read " + path, lambda: ("entries" if os.listdir(path) else "empty") if os.path.isdir(path)
         else ("data" if os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1) else "empty"))
work = tempfile.mkdtemp(dir=os.getcwd())
note("chown to another user", lambda: os.chown(work, 1234, 1234))
os.chown(work, os.getuid(), os.getgid()) if seen["chown to another user"] is None else None
note("mknod of a pipe", lambda: os.mkfifo(work + "/p"))
note("mknod of a device", lambda: os.mknod(work + "/d", stat.S_IFCHR | 0o600, os.makedev(1, 3)))
note("extended attribute user.", lambda: os.setxattr(work, "user.a", b"1"))
note("extended attribute trusted.", lambda: os.setxattr(work, "trusted.a", b"1"))
note("file without a name", lambda: os.close(os.open(work, os.O_TMPFILE | os.O_RDWR)))
note("hard link", lambda: (open(work + "/a", "w").close(), os.link(work + "/a", work + "/b"))[1])
note("setuid bit", lambda: (open(work + "/s", "w").close(), os.chmod(work + "/s", 0o4755), mode(work + "/s"))[2])
note("rename of a folder of the image", lambda: (os.rename("/opt", "/opt2"), os.rename("/opt2", "/opt"))[0])
note("attributes of a replaced folder", lambda: (os.makedirs("/srv/x"), shutil.rmtree("/srv"), os.mkdir("/srv"),
                                                os.listxattr("/srv"))[3])
note("own namespace", lambda: forked(lambda: call("unshare", 0x10000000)))
note("own mount namespace", lambda: forked(lambda: call("unshare", 0x00020000)))
note("mount", lambda: forked(lambda: call("mount", b"none", work.encode(), b"tmpfs", 0, None)))
note("chroot", lambda: forked(lambda: os.chroot(work) or "ok"))
note("ptrace of a child", lambda: forked(lambda: call("ptrace", 0, 0, None, None)))
note("personality", lambda: forked(lambda: call("personality", 0x0040000)))
for name, number in (("io_uring_setup", 425), ("userfaultfd", 323), ("bpf", 321), ("perf_event_open", 298),
                     ("keyctl", 250), ("add_key", 248), ("memfd_create", 319), ("pidfd_open", 434), ("clone3", 435),
                     ("landlock", 444), ("process_vm_readv", 310), ("kexec_load", 246), ("open_by_handle_at", 304),
                     ("name_to_handle_at", 303), ("syslog", 103), ("quotactl", 179), ("swapon", 167), ("reboot", 169),
                     ("init_module", 175),
                     ("setns", 308), ("pivot_root", 155), ("acct", 163), ("iopl", 172), ("adjtimex", 159)):
    note("call of " + name, lambda: forked(lambda: call("syscall", number, -1, 0, 0, 0, 0, 0)))
note("nice -5", lambda: forked(lambda: os.nice(-5)))
note("nice 5", lambda: forked(lambda: os.nice(5)))
note("core dump of a crash", lambda: forked(lambda: os.kill(os.getpid(), signal.SIGSEGV)))
note("kill of process 1", lambda: forked(lambda: os.kill(1, 0) or "ok"))
for tool in ("sh", "bash", "git", "python3", "ps", "find", "grep", "sed", "awk", "tar", "gcc", "curl", "pip"):
    note("tool " + tool, lambda: shutil.which(tool))
note("shell of a command line", lambda: output("sh", "-c", "echo $0 $-"))
note("git trusts the folder", lambda: output("git", "status", "--short")[0])
shutil.rmtree(work, ignore_errors=True)
print(json.dumps(seen, sort_keys=True))
"""
"""Prints what it sees as one JSON object. It must see the same in each run on one backend."""


def open_box(backend: str, image: str) -> Sandbox:
    """Open a sandbox of the image with the limits that all backends share."""
    options = {"default_image": image, "image_pull_policy": "Never"} if backend == "kubernetes" else {}
    return open_sandbox(SandboxSpec(image=image, options=options), backend)


def look(backend: str, image: str) -> dict[str, object]:
    """Return what the probe sees on a backend."""
    with open_box(backend, image) as sandbox:
        done = sandbox.exec(["python3", "-c", PROBE], timeout=120, max_output=1 << 20)
    if not done.ok:
        raise SystemExit(f"the probe failed on {backend}: {done.stderr[-2000:]}")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def differences(seen: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, str], tuple[object, object]]:
    """Return (backend, name) -> what the reference sees, and what the backend sees instead."""
    reference = seen[REFERENCE]
    return {
        (backend, name): (reference.get(name), found.get(name))
        for backend, found in seen.items()
        for name in sorted({*reference, *found})
        if found.get(name) != reference.get(name)
    }


def explained() -> set[tuple[str, str]]:
    """Return the (backend, name) of the differences in the table of the documentation."""
    table = PAGE.read_text().partition("## Differences that a program sees")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (local|kubernetes) \| (.+?) \|", table, re.MULTILINE)
    return {(backend, name.strip("`")) for backend, names in rows for name in names.split("`, `")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the probe everywhere and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    image = os.environ.get("SWE_GYM_TEST_IMAGE")
    parser.add_argument("--image", default=image, required=image is None)
    parser.add_argument("--backends", nargs="+", default=["local", REFERENCE, "kubernetes"])
    chosen = parser.parse_args(arguments)
    found = differences({backend: look(backend, chosen.image) for backend in chosen.backends})
    rows = [(*where, *map(str, values), "" if where in explained() else "new") for where, values in found.items()]
    show("What differs from Docker", ("backend", "what", "Docker", "here", ""), rows)
    if new := found.keys() - explained():
        raise SystemExit(f"{len(new)} differences are not in {PAGE.name}")


if __name__ == "__main__":
    main()
