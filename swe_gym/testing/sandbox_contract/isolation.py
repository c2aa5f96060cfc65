"""Cases of isolation from this machine, other sandboxes and the network, and of channels between sandboxes.

Nothing that one sandbox does can be read in another, so that no judge's work reaches a policy. The programs of both
ends are `guests.channels`. Load, time and memory of the machine are shared by design.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import FileError, Unsupported
from ...guests import bundle
from ...sandboxes import Sandbox
from ...types import FolderWorkspace
from .case import Opener, case, demand_isolation, eventually, new_marker, ok, processes_inside, python

CONNECT = r"""
import json, socket, sys, threading
reached = []
def attempt(family, kind, address):
    address = tuple(address) if isinstance(address, list) else "\0" + address
    try:
        with socket.socket(getattr(socket, family), getattr(socket, kind)) as one:
            one.settimeout(2)
            one.connect(address)
            one.send(b"from the sandbox")
            reached.append([kind, address])
    except OSError:
        pass
threads = [threading.Thread(target=attempt, args=attempted) for attempted in json.loads(sys.argv[1])]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(reached))
"""

ASK_PROXY = r"""
import os, socket, sys
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["https_proxy"])
for line in sys.argv[1:]:
    with socket.create_connection((proxy.hostname, proxy.port), timeout=20) as one:
        one.sendall((line + " HTTP/1.1\r\n\r\n").encode())
        print(one.recv(100).decode().split()[1])
"""

REFUSED = (
    "CONNECT other.example:443",
    "CONNECT allowed.invalid:22",
    "CONNECT 1.1.1.1:443",
    "CONNECT 127.0.0.1:443",
    "CONNECT [::1]:443",
    "CONNECT localhost:443",
    "GET http://other.example/",
    "GET http://169.254.169.254/",
    "GET http://allowed.invalid:8080/",
)

Address = tuple[str, int] | str


def host_address() -> str:
    """Return an address of this machine, loopback only if it has no other."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, only selects the source address
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def check_unreachable(make: Opener, *attempts: tuple[str, str, Address], network: str = "none") -> None:
    """Assert that a sandbox cannot connect to any (family, kind, address)."""
    reached = json.loads(python(make(network=network), CONNECT, json.dumps(attempts)))
    assert not reached, f"the sandbox has network={network!r} but reached {reached}"


@contextlib.contextmanager
def host_server(address: str, kind: str = "SOCK_STREAM") -> Iterator[tuple[socket.socket, int]]:
    """A server socket of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, getattr(socket, kind)) as server:
        server.bind((address, 0))
        if kind == "SOCK_STREAM":
            server.listen(8)
        yield server, server.getsockname()[1]


@contextlib.contextmanager
def host_secret(folder: Path | None = None) -> Iterator[tuple[Path, str]]:
    """A world-writable file of this machine and its content."""
    with tempfile.TemporaryDirectory(prefix=".swe-gym-contract-", dir=folder) as name:
        path = Path(name) / "secret.txt"
        text = secrets.token_hex(16)
        path.write_text(text)
        path.chmod(0o666)
        Path(name).chmod(0o777)
        yield path, text


def check_unreadable(make: Opener, path: Path, text: str) -> None:
    """Assert that neither a command nor `read_file` can read a file of this machine."""
    sandbox = make()
    seen = sandbox.exec(["cat", str(path)], merge=True).text
    assert text not in seen, f"a command can read {path} of this machine"
    try:
        found = sandbox.read_file(str(path)).decode("utf-8", "replace")
    except FileError:
        return
    assert text not in found, f"read_file can read {path} of this machine"


@case("isolation")
def host_temporary_files_are_invisible(make: Opener) -> None:
    """Temporary files of this machine cannot be read."""
    with host_secret() as (path, text):
        check_unreadable(make, path, text)


@case("isolation")
def host_home_is_invisible(make: Opener) -> None:
    """Files in the home folder of this machine's user cannot be read."""
    with host_secret(Path.home()) as (path, text):
        check_unreadable(make, path, text)


@case("isolation")
def host_files_cannot_be_changed(make: Opener) -> None:
    """No file of this machine can be changed, created or deleted."""
    with host_secret() as (path, text):
        sandbox = make()
        sandbox.exec(f"echo changed > {path}; echo new > {path.parent}/new; rm -f {path}; rm -rf {path.parent}")
        with contextlib.suppress(FileError):
            sandbox.write_file(f"{path.parent}/written", b"x")
        assert path.exists(), "a file of this machine was deleted"
        assert path.read_text() == text, "a file of this machine was changed"
        assert os.listdir(path.parent) == ["secret.txt"], "a file was created on this machine"


@case("isolation", "workspace")
def workspace_is_never_written(make: Opener) -> None:
    """The workspace is in the workdir; commands do not change the folder that it came from."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sub").mkdir()
        (folder / "sub" / "file.txt").write_text("original")
        (folder / "gone.txt").write_text("gone")
        (folder / "run.sh").write_text("echo ran")
        (folder / "run.sh").chmod(0o755)
        (folder / "link").symlink_to("sub/file.txt")
        first, second = (make(workspace=FolderWorkspace(path=name)) for _ in range(2))
        assert ok(first.exec("./run.sh; cat link")).text == "ran\noriginal"
        ok(first.exec("echo changed > sub/file.txt; rm gone.txt; chmod 600 run.sh; mkdir new; touch new/file sub/more"))
        assert first.read_file("sub/file.txt") == b"changed\n"
        assert ok(second.exec("cat sub/file.txt gone.txt; ls")).text == "originalgonegone.txt\nlink\nrun.sh\nsub\n"
        assert (folder / "sub" / "file.txt").read_text() == "original", "the workspace's folder was written to"
        assert sorted(os.listdir(name)) == ["gone.txt", "link", "run.sh", "sub"], os.listdir(name)
        assert os.listdir(folder / "sub") == ["file.txt"]
        assert (folder / "run.sh").stat().st_mode & 0o777 == 0o755, "a mode in the workspace's folder was changed"


@case("isolation")
def host_processes_are_invisible(make: Opener) -> None:
    """Processes of this machine, their arguments and their environments cannot be seen."""
    marker = f"marker-{secrets.token_hex(16)}"
    waiting = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", marker]
    with subprocess.Popen(
        waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "SECRET": f"env-{marker}"}
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sandbox = make()
        seen = processes_inside(sandbox, marker)
        environment = sandbox.exec(f"cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c env-{marker[:-1]}")
        process.communicate(timeout=10)
    assert not seen, "a process of this machine is visible"
    assert environment.text.strip() in ("", "0"), "an environment of a process of this machine is readable"


@case("isolation")
def host_sockets_are_unreachable(make: Opener) -> None:
    """Sockets of this machine, such as Docker's, cannot be reached."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = f"{folder}/socket"
        server.bind(path)
        server.listen()
        Path(folder).chmod(0o777)
        Path(path).chmod(0o777)
        program = "import socket, sys\nsocket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        sandbox = make()
        for name in (path, "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
            assert sandbox.exec(["python3", "-c", program, name]).exit_code == 1, f"{name} can be connected to"


@case("isolation", "network")
def host_abstract_sockets_are_unreachable(make: Opener) -> None:
    """Sockets of this machine in the abstract name space cannot be reached."""
    if sys.platform != "linux":
        return
    name = f"swe-gym-contract-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        check_unreachable(make, ("AF_UNIX", "SOCK_STREAM", name))


@case("isolation", "network")
def no_network_tcp(make: Opener) -> None:
    """Without network, no TCP connection leaves the sandbox, to the internet or to this machine's address."""
    with host_server("0.0.0.0") as (_, port):
        addresses: list[Address] = [("1.1.1.1", 80), ("8.8.8.8", 53), (host_address(), port)]
        check_unreachable(make, *(("AF_INET", "SOCK_STREAM", address) for address in addresses))


@case("isolation", "network")
def no_network_host_loopback(make: Opener) -> None:
    """Servers on this machine's loopback interface cannot be reached."""
    with host_server("127.0.0.1") as (_, port):
        check_unreachable(make, ("AF_INET", "SOCK_STREAM", ("127.0.0.1", port)))


@case("isolation", "network")
def egress_spares_host_loopback(make: Opener) -> None:
    """With network="egress" too, servers on this machine's loopback cannot be reached; or there is no egress at all."""
    with host_server("127.0.0.1") as (_, port), contextlib.suppress(Unsupported):
        check_unreachable(make, ("AF_INET", "SOCK_STREAM", ("127.0.0.1", port)), network="egress")


@case("isolation", "network")
def hosts_are_reached_by_name_only(make: Opener) -> None:
    """With a network of some hosts, nothing but a proxy is reached, which knows only these; or it is refused."""
    with contextlib.suppress(Unsupported), host_server("0.0.0.0") as (_, port):
        sandbox = make(network=("allowed.invalid",))
        assert sandbox.capabilities.network == "hosts"
        addresses: list[Address] = [("1.1.1.1", 443), ("8.8.8.8", 53), ("127.0.0.1", port), (host_address(), port)]
        attempts = [("AF_INET", "SOCK_STREAM", address) for address in addresses]
        reached = json.loads(python(sandbox, CONNECT, json.dumps(attempts)))
        assert not reached, f"the sandbox reached {reached}"
        said = python(sandbox, ASK_PROXY, *REFUSED, "GET http://allowed.invalid/").split()
        assert said == ["403"] * len(REFUSED) + ["502"], f"the proxy answered {said}"


@case("isolation", "network")
def no_network_udp(make: Opener) -> None:
    """No datagram leaves the sandbox."""
    with host_server("0.0.0.0", "SOCK_DGRAM") as (server, port):
        attempts = [("AF_INET", "SOCK_DGRAM", (address, port)) for address in ("127.0.0.1", host_address())]
        python(make(), CONNECT, json.dumps(attempts))  # UDP always connects; only a received datagram counts
        server.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            raise AssertionError(f"a datagram arrived: {server.recv(100)!r}")


@case("isolation", "network")
def no_network_ipv6(make: Opener) -> None:
    """Without network, no IPv6 connection leaves the sandbox."""
    attempts: list[tuple[str, str, Address]] = [("AF_INET6", "SOCK_STREAM", ("2606:4700:4700::1111", 80))]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a machine without IPv6
            _, port = stack.enter_context(host_server("::1"))
            attempts.append(("AF_INET6", "SOCK_STREAM", ("::1", port)))
        check_unreachable(make, *attempts)


@case("isolation", "network")
def no_network_metadata(make: Opener) -> None:
    """The metadata service of a cloud cannot be reached."""
    addresses: list[Address] = [("169.254.169.254", 80), ("169.254.170.2", 80), ("100.100.100.200", 80)]
    check_unreachable(make, *(("AF_INET", "SOCK_STREAM", address) for address in addresses))


@case("isolation", "network")
def no_network_names(make: Opener) -> None:
    """No name is resolved, and lookups fail within seconds."""
    program = (
        "import socket\n"
        "for name in ('example.com', 'github.com'):\n"
        "    try:\n        print(socket.getaddrinfo(name, 80))\n    except OSError:\n        pass\n"
    )
    with make.within(15, "resolving two names without network"):
        assert python(make(), program) == "", "a name was resolved"


@case("isolation")
def sandboxes_share_no_files(make: Opener) -> None:
    """Files in the workdir, /tmp, HOME or /dev/shm of one sandbox are invisible in another."""
    first, second = make(), make()
    name = f"contract-{secrets.token_hex(8)}"
    paths = f'./{name} /tmp/{name} "$HOME/{name}" /dev/shm/{name} /var/tmp/{name} "$TMPDIR/{name}"'
    first.exec(f"for path in {paths}; do echo secret > $path; done")
    seen = second.exec(f"ls {paths} 2>/dev/null").text
    here = [str(path) for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(folder).glob(name)]
    ok(first.exec(f"rm -f {paths}"))
    assert seen == "", f"another sandbox's files are visible: {seen.split()}"
    assert not here, f"files of the sandbox are on this machine: {here}"


@case("isolation")
def sandboxes_share_no_processes(make: Opener) -> None:
    """Processes of one sandbox are invisible in another."""
    first, second = make(), make()
    marker = new_marker()
    ok(first.exec(f"sleep {marker} & echo started"))
    assert processes_inside(first, marker)
    assert not processes_inside(second, marker), "another sandbox's processes are visible"


@case("isolation")
def sandboxes_share_no_ports(make: Opener) -> None:
    """A server in one sandbox cannot be reached from another, which may use the same port."""
    first, second = make(), make()
    serve = (
        "import os, socket, sys\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "open('port.new', 'w').write(str(s.getsockname()[1])); os.rename('port.new', 'port')\n"
        "while True: s.accept()\n"
    )
    for sandbox in (first, second):
        sandbox.write_file("serve.py", serve.encode())
    ok(first.exec("python3 serve.py 0 & until [ -e port ] || ! kill -0 $!; do sleep 0.05; done; test -e port"))
    port = int(first.read_file("port"))
    reached = json.loads(python(second, CONNECT, json.dumps([["AF_INET", "SOCK_STREAM", ["127.0.0.1", port]]])))
    assert not reached, "another sandbox's server was reached"
    ok(second.exec(f"python3 serve.py {port} >/dev/null 2>&1 & echo"))
    eventually(lambda: second.exec("test -e port").ok, 5, "the same port can be used in another sandbox")


@case("isolation", "network")
def names_of_its_own(sandbox: Sandbox) -> None:
    """The sandbox's own host name and "localhost" resolve."""
    python(sandbox, "import socket\nfor name in (socket.gethostname(), 'localhost'): socket.gethostbyname(name)")


@case("isolation", "network")
def own_loopback_ipv6(sandbox: Sandbox) -> None:
    """A server listens on ::1."""
    python(sandbox, "import socket\nsocket.socket(socket.AF_INET6).bind(('::1', 0))")


@case("isolation")
def processes_show_no_program(sandbox: Sandbox) -> None:
    """What runs commands has a short command line: a list of processes is an observation."""
    shown = python(sandbox, "import os; print(open('/proc/%d/cmdline' % os.getppid()).read())")
    assert len(shown) < 2000, f"the runner's command line has {len(shown)} characters"


@case("isolation")
def sandboxes_die_alone(make: Opener) -> None:
    """Closing or losing one sandbox does not affect the others."""
    first, second = make(), make()
    marker = new_marker()
    ok(second.exec(f"sleep {marker} & echo started"))
    first.close()
    assert ok(second.exec("echo on")).text == "on\n"
    assert processes_inside(second, marker), "closing one sandbox ended another's processes"


MOUNT = "/opt/channel"
SIGNALS = (0, 1, 1, 0, 1, 0, 0, 1)
"""What is sent, one after the other."""
KERNEL_FILES = (
    "/proc/kpageflags /proc/kpagecount /proc/kpagecgroup /proc/kcore /proc/keys /proc/key-users /proc/timer_list "
    "/proc/sched_debug /proc/slabinfo /proc/vmallocinfo /proc/pagetypeinfo /proc/interrupts"
)


@contextlib.contextmanager
def shared_folder() -> Iterator[str]:
    """A folder of this machine that nobody has read since 1970, with a file and a folder for each signal."""
    with tempfile.TemporaryDirectory(prefix="swe-gym-contract-") as name:
        for number in range(len(SIGNALS)):
            Path(name, str(number)).write_text("x")
            Path(name, f"{number}.d").mkdir()
            for place in (f"{name}/{number}", f"{name}/{number}.d"):
                os.utime(place, (1, os.stat(place).st_mtime))
        Path(name).chmod(0o755)
        yield name


def check_silent(make: Opener, *channels: str, **fields: object) -> None:
    """Assert that no signal of one sandbox arrives in another."""
    first, second = make(**fields), make(**fields)
    assert first.capabilities.isolation != "process", "not tried: it would lock files of this machine"
    heard = listen(first, second, ",".join(channels))
    assert not heard, f"signals arrive in another sandbox: {heard}"


def listen(first: Sandbox, second: Sandbox, channels: str) -> list[str]:
    """Send signals on all channels at once; return the names of the numbers that tell them apart."""
    token = secrets.token_hex(8)
    seen: dict[str, list[int]] = {}
    for number, signal in enumerate(SIGNALS):
        words = (channels, str(number), token)
        senders = python(first, bundle("channels"), "send", *words).strip() if signal else ""
        for channel, numbers in json.loads(python(second, bundle("channels"), "receive", *words)).items():
            for name, value in numbers.items():
                seen.setdefault(f"{channel}: {name}", []).append(int(value))
        if senders:
            python(first, bundle("channels"), "clear", *words, senders)
    return sorted(name for name, values in seen.items() if tells_apart(values))


def tells_apart(values: list[int]) -> bool:
    """Return whether all values at a signal are above, or all are below, those without one."""
    if len(values) < len(SIGNALS):
        return False
    silent, loud = ([value for value, sent in zip(values, SIGNALS, strict=True) if sent == bit] for bit in (0, 1))
    return max(silent) < min(loud) or max(loud) < min(silent)


@case("channels")
def locks_are_not_shared(make: Opener) -> None:
    """Locks and leases on the files and folders of a sandbox do not exist in another."""
    check_silent(make, "flock", "posix", "ofd", "lease")


@case("channels")
def use_of_files_is_not_seen(make: Opener) -> None:
    """Opening, reading and listing files and folders causes no event in another sandbox."""
    check_silent(make, "events")


@case("channels")
def devices_are_not_shared(make: Opener) -> None:
    """Locks on devices such as /dev/null, and their use, are invisible in another sandbox."""
    check_silent(make, "devices:flock", "devices:posix", "devices:events")


@case("channels")
def mounts_are_not_shared(make: Opener) -> None:
    """Two sandboxes with one folder of this machine see no lock, event or access time of each other in it."""
    with shared_folder() as folder, contextlib.suppress(Unsupported):
        check_silent(make, "access", mounts={MOUNT: folder})  # first: the others list the folders too
        check_silent(make, "flock", "posix", "ofd", "lease", "events", mounts={MOUNT: folder})


@case("channels")
def modes_of_kernel_files_are_not_shared(make: Opener) -> None:
    """Changing the mode of a file in /proc changes nothing in another sandbox."""
    demand_isolation(make(), "it changes the modes of files of the kernel")
    check_silent(make, "modes")


@case("channels")
def names_are_not_shared(make: Opener) -> None:
    """Sockets, shared memory, semaphores, message queues and keys have no name in another sandbox."""
    check_silent(make, "abstract", "vsock", "system_v", "queue", "key")


@case("channels")
def counters_of_the_kernel_are_closed(make: Opener) -> None:
    """The kernel's counts of files, terminals, requests, keys and locks do not show another sandbox's."""
    check_silent(make, "counts")


@case("channels")
def tables_of_the_kernel_are_closed(sandbox: Sandbox) -> None:
    """Tables of the kernel's memory, keys and timers cannot be read."""
    readable = sandbox.exec(f"for f in {KERNEL_FILES}; do head -c 1 $f 2>/dev/null | grep -qa . && echo $f; done").text
    assert readable == "", f"readable: {readable.split()}"
