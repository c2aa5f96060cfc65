"""The local backend's own promises: what of this process and this machine reaches a sandbox, and how it ends."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest

import swe_gym
from swe_gym.errors import FileError, SandboxClosed, SandboxError, SandboxLost, SandboxStartError, UsageError
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.local import LocalSandbox, problem
from swe_gym.testing.sandbox_contract.case import Background, eventually, new_marker, ok, processes_here, python

TIERS = ["namespace", "landlock"]

Make = Callable[..., Sandbox]


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    if problem(request.param):
        pytest.skip(f"no tier {request.param} on this machine: {problem(request.param)}")
    return request.param


@pytest.fixture
def make(tier: str) -> Make:
    """Opens a sandbox of each tier; the end of the test closes it."""
    opened = []

    def open_one(**fields: object) -> Sandbox:
        spec = SandboxSpec.model_validate({"pids": 100, "disk_mb": 256, "options": {"tier": tier}, **fields})
        opened.append(open_sandbox(spec, "local"))
        return opened[-1]

    yield open_one
    for sandbox in opened:
        sandbox.close()


def run_client(
    program: str, *arguments: str, timeout: float = 60.0, before: Sequence[str] = (), **options: object
) -> str:
    """What a process of its own prints that uses `box(tier)`, with every warning an error."""
    head = """
import os, resource, signal, socket, sys, threading, time
from pathlib import Path
from swe_gym.errors import *
from swe_gym.sandboxes import SandboxSpec, open_sandbox
def box(**fields):
    return open_sandbox(SandboxSpec(options={"tier": sys.argv[1]}, **fields), "local")
"""
    command = [*before, sys.executable, "-W", "error", "-c", head + textwrap.dedent(program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout


# --- what of the host process reaches a sandbox -----------------------------------------------------------


def test_no_descriptor_of_the_host_process_reaches_a_sandbox(tier: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    program = """
    folder = os.open(sys.argv[2], os.O_RDONLY)
    os.set_inheritable(folder, True)
    with box() as sandbox:
        names = sandbox.exec(["ls", "/proc/self/fd"]).text.split()
        pty = sandbox.open_pty("ls /proc/self/fd | tr '\\\\n' ' '; echo end")
        print(names == ["0", "1", "2", "3"], pty.read_until(b"end", timeout=10)[0])
        for number in range(3, 40):  # the runner must not have one either: it follows links
            for name in ("secret", "../" * 9 + sys.argv[2] + "/secret"):
                sandbox.exec(["ln", "-sfn", f"/proc/self/fd/{number}/{name}", "link"])
                try:
                    print("read", number, sandbox.read_file("link"))
                except FileError:
                    pass
    """
    assert run_client(program, tier, str(tmp_path)) == "True b'0 1 2 3 end'\n"


def test_signals_and_umask_of_the_host_process_do_not_reach_a_sandbox(tier: str) -> None:
    program = """
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1})
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with box() as sandbox:
        print(sandbox.exec("umask; kill -TERM $$; echo lives", timeout=10).describe())
        print(sandbox.exec("touch file; stat -c %a file", timeout=10).text)
    """
    assert run_client(program, tier) == "killed by signal 15\n644\n\n"


@pytest.mark.slow
def test_the_package_is_hidden_wherever_its_folder_is_shown(tmp_path: Path) -> None:
    if problem("namespace"):
        pytest.skip(problem("namespace"))
    prefix = tmp_path / "prefix"
    packages = prefix / "lib" / "site-packages"
    shutil.copytree(Path(swe_gym.__file__).parent, packages / "swe_gym", ignore=shutil.ignore_patterns("__pycache__"))
    (prefix / "bin").mkdir()
    (tmp_path / "alias").symlink_to(prefix)
    program = """
    import swe_gym
    print(swe_gym.__file__.startswith(os.path.realpath(sys.argv[2])))
    spec = SandboxSpec(options={"tier": "namespace", "python_prefix": sys.argv[2]})
    with open_sandbox(spec, "local") as sandbox:
        print(sandbox.exec("ls -d /opt/venv/lib/site-packages/swe_gym").ok)
        print(sandbox.exec("find / -path /proc -prune -o -name toy_repos -print").text)
    """
    for path in (prefix, tmp_path / "alias"):
        search = f"{packages}:{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "PYTHONPATH": search}
        assert run_client(program, "namespace", str(path), env=environment, cwd=tmp_path) == "True\nTrue\n\n"


KEYS = r"""
import ctypes, sys
call = ctypes.CDLL(None).syscall
print(call(250, 11, int(sys.argv[1]), ctypes.create_string_buffer(9), 9), call(249, b"user", b"swe-gym-test", None, 0))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are those of x86-64")
def test_keys_of_the_host_user_cannot_be_read(make: Make) -> None:
    call = ctypes.CDLL(None).syscall
    key = call(248, b"user", b"swe-gym-test", b"secret", 6, -3)  # add_key to the session's keyring
    if key < 0:
        pytest.skip("this machine keeps no keys")
    try:
        assert python(make(), KEYS, str(key)) == "-1 -1\n"
    finally:
        call(250, 9, key, -3)  # KEYCTL_UNLINK


def test_terminals_of_the_host_user_can_neither_be_read_nor_written_to(make: Make) -> None:
    ours, inside = os.openpty()
    try:
        os.write(ours, b"typed\n")
        path = os.ttyname(inside)
        result = make().exec(f"timeout 1 head -n 1 {path}; echo 'from the sandbox' > {path}; cat /proc/$$/fd/0 <{path}")
        assert result.text == ""
        os.set_blocking(ours, False)
        assert b"sandbox" not in os.read(ours, 1000)
    finally:
        os.close(ours)
        os.close(inside)


SOCKETS = """
import socket
for family in (1, 2, 10, 16, 17, 31, 38, 40):  # the last four: packet, bluetooth, alg, vsock
    try:
        socket.socket(family, socket.SOCK_RAW if family == 16 else socket.SOCK_STREAM).close()
        print(family, end=" ")
    except OSError:
        pass
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        a, b = socket.socketpair(socket.AF_UNIX, kind)
        print(kind.name, end=" ")
    except OSError:
        pass
"""


@pytest.mark.parametrize("network", ["none", "egress"])
def test_which_sockets_can_be_made(make: Make, tier: str, network: Literal["none", "egress"]) -> None:
    if problem(tier, network):
        pytest.skip(f"no network on this machine: {problem(tier, network)}")
    made = {
        ("namespace", "none"): "1 2 10 16 SOCK_STREAM SOCK_DGRAM",
        ("namespace", "egress"): "1 2 10 16 SOCK_STREAM SOCK_DGRAM",
        ("landlock", "none"): "16 SOCK_STREAM",
        ("landlock", "egress"): "2 10 16 SOCK_STREAM",
    }
    assert python(make(network=network), SOCKETS).strip() == made[tier, network]


def test_with_network_the_hosts_abstract_sockets_are_closed(make: Make, tier: str) -> None:
    if problem(tier, "egress"):
        pytest.skip(f"no network on this machine: {problem(tier, 'egress')}")
    name = f"swe-gym-{new_marker()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        program = "import socket, sys\nsocket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])"
        result = make(network="egress").exec(["python3", "-c", program, name])
    assert ("PermissionError" if tier == "landlock" else "ConnectionRefusedError") in result.error_text


def test_a_sandbox_shares_what_the_kernel_counts() -> None:
    """One sandbox can neither take all terminals of the machine nor fill its memory with empty files."""
    if problem("namespace"):
        pytest.skip(problem("namespace"))
    spec = SandboxSpec(options={"tier": "namespace"}, disk_mb=16)
    take = "import pty\ntry:\n    for n in range(5000): pty.openpty()\nexcept OSError: print(n)"
    with open_sandbox(spec) as greedy, open_sandbox(spec) as other:
        assert int(python(greedy, take)) <= 64
        hold = f"{take}\nprint('held', flush=True)\nimport time; time.sleep(60)"
        greedy.open_pty(["python3", "-c", hold]).read_until(b"held", timeout=10)
        assert other.open_pty("echo on").read_until(b"on", timeout=10)[1]
        files = "import os\nfor n in range(10 ** 5): os.close(os.open(f'{n}', os.O_CREAT))"
        assert "No space left" in greedy.exec(["python3", "-c", files], timeout=30).error_text
        assert ok(greedy.exec("cat /proc/self/cgroup")).text.strip().endswith(":/")
        assert ok(greedy.exec("cat /proc/self/oom_score_adj")).text == "1000\n"


def test_a_locked_or_vanished_folder_is_removed_and_its_parent_left_alone(tmp_path: Path) -> None:
    if problem("landlock"):
        pytest.skip(problem("landlock"))
    program = """
    import shutil
    locked, vanished = box(), box()
    locked.exec("mkdir -p a/b && touch a/b/file && chmod 000 a/b a . ..")
    shutil.rmtree(os.path.dirname(vanished.workdir))
    for sandbox in (locked, vanished):
        sandbox.close()
    """
    tmp_path.chmod(0o755)
    run_client(program, "landlock", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
    assert oct(tmp_path.stat().st_mode & 0o777) == "0o755"


RENAME = """
import os
os.rename("d0/f0", "/tmp/f0")
os.link("/tmp/f0", "linked")
try:
    os.rename("d1", "/tmp/d1")
    print(len(os.listdir("/tmp/d1")))
except OSError as error:
    print(error.strerror)
folders = {os.stat(path).st_dev for path in ("/", "/tmp", ".", "d2")}
print(folders == {os.stat(path).st_dev for path in ("linked", "/tmp/f0", "d2/f2")})
"""


@pytest.mark.parametrize("count", [40, 2020])
@pytest.mark.parametrize("rights", ["of the machine's root", "of a user"])
def test_workspace_and_temporary_folder_are_one_file_system(tmp_path: Path, count: int, rights: str) -> None:
    if problem("namespace"):
        pytest.skip(problem("namespace"))
    as_user = ["unshare", "--user", "--map-root-user"] if rights == "of a user" else []
    if rights == "of the machine's root" and os.geteuid():
        pytest.skip("the user who runs the tests is not root")
    if as_user and subprocess.run([*as_user, "true"], capture_output=True, check=False).returncode:
        pytest.skip("there is no `unshare`, or it may not")
    for number in range(count):
        path = tmp_path / "workspace" / f"d{number % 20}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    program = """
    from swe_gym.types import FolderWorkspace
    with box(workspace=FolderWorkspace(path=sys.argv[2])) as sandbox:
        print(sandbox.exec(["python3", "-c", sys.argv[3]]).text)
    """
    said = run_client(program, "namespace", str(tmp_path / "workspace"), RENAME, before=as_user)
    renamed = "Invalid cross-device link" if as_user and count > 2000 else str(count // 20)
    assert said == f"{renamed}\nTrue\n\n"


# --- forks, threads and handlers --------------------------------------------------------------------------


def test_a_fork_neither_uses_nor_closes_its_parents_sandbox(tier: str) -> None:
    program = """
    with box() as sandbox:
        pty = sandbox.open_pty("cat")
        child = os.fork()
        if child == 0:
            try:
                sandbox.exec("true")
            except SandboxClosed:
                pty.close()
                sandbox.close()
                with box() as own:
                    print(own.exec("echo own").text, end="", flush=True)
                os._exit(0)
            os._exit(1)
        print(os.waitpid(child, 0)[1])
        pty.write(b"typed\\n")
        print(sandbox.exec("echo on").text, pty.read_until(b"typed", timeout=10)[1])
    """
    assert run_client(program, tier) == "own\n0\non\n True\n"


def test_a_surviving_fork_keeps_no_sandbox_alive(tier: str, tmp_path: Path) -> None:
    marker = new_marker()
    program = """
    sandbox = box()
    sandbox.exec(f"sleep {sys.argv[2]} & (setsid sleep {sys.argv[2]} &) ; echo")
    child = os.fork()
    if child == 0:
        os.close(1)
        os.close(2)
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    head = "import os, signal, sys, time\nfrom swe_gym.sandboxes import SandboxSpec, open_sandbox\n"
    opener = "box = lambda: open_sandbox(SandboxSpec(options={'tier': sys.argv[1]}), 'local')\n"
    command = [sys.executable, "-c", head + opener + textwrap.dedent(program), tier, marker]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    fork = int(subprocess.run(command, stdout=subprocess.PIPE, check=False, env=environment).stdout)
    try:

        def left() -> list[str]:
            return [pid for pid in processes_here(marker) if int(pid) != fork]

        eventually(lambda: not left(), 60, "the sandbox of a killed process lives on with its fork")
        eventually(lambda: not list(tmp_path.iterdir()), 60, "the sandbox's folder is left")
    finally:
        os.kill(fork, signal.SIGKILL)


def test_closing_at_any_moment_of_a_start_leaves_nothing(tier: str) -> None:
    def descriptors() -> list[str]:
        return sorted(os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path))

    spec = SandboxSpec(options={"tier": tier})
    open_sandbox(spec).close()
    before = len(descriptors())
    pause = threading.Event()
    for moment in range(25):
        sandbox = LocalSandbox(spec)
        starting = Background(sandbox.start)
        pause.wait(moment * 0.002)
        sandbox.close()
        try:
            starting.result(60)
        except SandboxClosed:
            continue
        with pytest.raises(SandboxClosed):
            sandbox.exec("true")
    eventually(lambda: len(descriptors()) <= before, 60, f"descriptors are left: {descriptors()}")


@pytest.mark.slow
def test_a_handler_of_signals_may_close_the_sandbox_that_it_interrupts(tier: str) -> None:
    program = """
    def close(*_):
        sandbox.close()
    signal.signal(signal.SIGALRM, close)
    for turn in range(40):
        sandbox = box()
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + turn * 0.0003)
        try:
            while True:
                sandbox.exec(["true"])
                sandbox.write_file("file", b"x" * 100000)
        except SandboxClosed:
            print(end=".")
    """
    assert run_client(program, tier) == "." * 40


# --- starts that fail -----------------------------------------------------------------------------------


def test_a_start_without_free_descriptors_is_an_error_that_says_so(tier: str, tmp_path: Path) -> None:
    program = """
    box().close()
    used = len(os.listdir("/proc/self/fd")) - 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in range(used, used + 12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            with box() as sandbox:
                assert sandbox.exec("true").ok
            break
        except SandboxStartError as error:
            assert "Too many open files" in str(error), error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    else:
        print("never started")
    print(len(os.listdir("/proc/self/fd")) - 1 - used)
    """
    assert run_client(program, tier, env={**os.environ, "TMPDIR": str(tmp_path)}) == "0\n"
    assert list(tmp_path.iterdir()) == []


def test_a_shortage_does_not_select_a_weaker_tier() -> None:
    program = """
    from swe_gym.sandboxes.local import best_tier
    from swe_gym.sandboxes.contents.pythons import prepare_python
    from swe_gym.types import PythonEnv
    prepare_python(PythonEnv(), timeout=60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) - 1
    for limit in range(used, used + 6):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            best_tier()
        except SandboxStartError:
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(best_tier())
    """
    if problem("namespace"):
        pytest.skip(problem("namespace"))
    assert run_client(program) == "namespace\n"


@pytest.mark.slow
def test_a_killed_launcher_fails_at_most_one_start(tier: str) -> None:
    program = """
    def kill_launcher():
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    old = box()
    for turn in range(20):
        if turn % 2:
            kill_launcher()
        else:  # while it starts one
            killer = threading.Timer(turn * 0.002, kill_launcher)
            killer.start()
        try:
            box().close()
        except SandboxStartError as error:
            assert error.retryable, error
        if turn % 2 == 0:
            killer.join()
        box().close()
    print(old.exec("echo on").text)
    old.close()
    """
    assert run_client(program, tier).strip() == "on"


def test_a_workdir_cannot_lead_out_of_the_sandbox(make: Make, tmp_path: Path) -> None:
    sandbox = make(workdir="/testbed/" + "../" * 9 + str(tmp_path) + "/../made")
    sandbox.write_file("file", b"x")
    assert sandbox.spec.workdir == f"{tmp_path.parent}/made"
    assert not (tmp_path.parent / "made").exists()


# --- what would cost the episode its reward, were it a lost sandbox -------------------------------------------


@pytest.mark.sample(every=2)
def test_looking_through_endless_files_ends_in_time_and_delays_no_command(make: Make) -> None:
    sandbox = make(disk_mb=4096)
    ok(sandbox.exec("for i in $(seq 60); do truncate -s 4000M big$i; done"))
    manifest = Background(lambda: sandbox.manifest(timeout=1.5))
    while not manifest.wait(0):
        assert ok(sandbox.exec("echo on", timeout=1, grace=0)).text == "on\n"
    with pytest.raises(FileError, match="took longer"):
        manifest.result(60)
    with pytest.raises(FileError, match="larger"):
        sandbox.get_tar("")
    assert ok(sandbox.exec("echo on")).text == "on\n"


def test_paths_too_long_for_a_frame_are_a_file_error(make: Make) -> None:
    sandbox = make(disk_mb=1024)
    program = (
        "import os\npath = '/'.join(['n' * 250] * 14)\nos.makedirs(path); os.chdir(path)\n"
        "for n in range(6000): os.close(os.open(f'{n}', os.O_CREAT))"
    )
    python(sandbox, program, timeout=60)
    with pytest.raises(FileError, match="too long paths"):
        sandbox.manifest()
    assert ok(sandbox.exec("echo on")).text == "on\n"


OTHER_ENTRIES = r"""
import ctypes, errno, mmap, os, struct
libc = ctypes.CDLL(None, use_errno=True)
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 89f8 89f3 89d1 31d2 cd80 5b c3"))
enter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)(
    ctypes.addressof(ctypes.c_char.from_buffer(page)))  # as a 32-bit program: int 0x80
def as_x32(*arguments):
    return -ctypes.get_errno() if libc.syscall(*arguments) < 0 else 0
runner = os.getppid()
answers = {
    "ioprio_set": as_x32(251, 1, runner, 3 << 13), "of a user": as_x32(251, 3, os.getuid(), 3 << 13),
    "x32 sched_setaffinity": as_x32(203 | 1 << 30, runner, 8, struct.pack("Q", 1)),
    "x32 setpriority": as_x32(141 | 1 << 30, 2, os.getuid(), 19),
    "i386 prlimit": enter(340, runner, 7), "i386 setpriority": enter(97, 2, os.getuid()),
    "i386 ioprio_set": enter(289, 3, os.getuid()),
}
print({name: number for name, number in answers.items() if number != -errno.EPERM})
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are those of x86-64")
def test_the_runner_is_protected_whatever_the_entry_to_the_kernel(make: Make) -> None:
    assert python(make(), OTHER_ENTRIES) == "{}\n"


def test_a_command_cannot_slow_down_the_runner_by_its_group_of_the_scheduler(make: Make) -> None:
    sandbox = make()
    assert "nice 19" not in sandbox.exec("echo 19 > /proc/$PPID/autogroup; cat /proc/$PPID/autogroup").text


SHARED = """
import ctypes
libc = ctypes.CDLL(None)
made = [libc.shmget(0x5ed5, 4096, 0o1666), libc.semget(0x5ed6, 1, 0o1666), libc.msgget(0x5ed7, 0o1666)]
print(*(number >= 0 for number in made), libc.mq_open(b"/swe-gym", 0o102, 0o666, None) >= 0)
"""
FIND_SHARED = """
import ctypes
libc = ctypes.CDLL(None)
print(*(number >= 0 for number in (libc.shmget(0x5ed5, 0, 0), libc.semget(0x5ed6, 0, 0), libc.msgget(0x5ed7, 0))))
"""


def test_no_shared_memory_or_message_reaches_the_next_sandbox(make: Make, tier: str) -> None:
    first = make()
    said = python(first, SHARED)
    assert said == ("False False False False\n" if tier == "landlock" else "True True True True\n")
    assert python(make(), FIND_SHARED) == "False False False\n"
    first.close()
    assert python(make(), FIND_SHARED) == "False False False\n"
    ours = subprocess.run([sys.executable, "-c", FIND_SHARED], capture_output=True, text=True, check=True)
    assert ours.stdout == "False False False\n"


FLIP = """
import os
os.mkdir("tree"); os.chdir("tree")
print("flips", flush=True)
while True:
    os.close(os.open("a", os.O_CREAT)); os.rename("a", "x")
    os.mkfifo("b"); os.rename("b", "x")
    os.symlink("/dev/zero", "c"); os.rename("c", "x")
"""


def test_a_file_that_becomes_a_pipe_is_never_waited_for(make: Make) -> None:
    sandbox = make()
    sandbox.open_pty(["python3", "-c", FLIP]).read_until(b"flips", timeout=10)
    for call in [lambda: sandbox.manifest("tree"), lambda: sandbox.get_tar("tree")] * 300:
        with contextlib.suppress(FileError):
            call()
    assert ok(sandbox.exec("echo on")).text == "on\n"


def test_a_tar_of_empty_files_is_bounded_too(make: Make) -> None:
    sandbox = make()
    ok(sandbox.exec("touch $(seq 2000)"))
    with pytest.raises(FileError, match="larger"):
        sandbox.get_tar("", max_bytes=100_000)


@pytest.mark.slow  # half a minute, in which it slows all other tests
def test_a_fork_bomb_left_behind_delays_no_other_command() -> None:
    if problem("namespace"):
        pytest.skip(problem("namespace"))
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    with open_sandbox(SandboxSpec(options={"tier": "namespace"}, pids=50)) as sandbox:
        ok(sandbox.exec(f"(setsid python3 -c '{bomb}' >/dev/null 2>&1 &); echo lit"))
        assert sandbox.exec("sleep 60", timeout=1, grace=20.0).timed_out  # the bomb takes 50 shares of the CPU
        assert ok(sandbox.exec("echo on", timeout=30)).text == "on\n"
        assert sandbox.open_pty("echo on").read_until(b"on", timeout=30)[1]


def test_a_terminal_makes_room_as_a_command_does() -> None:
    if problem("namespace"):
        pytest.skip(problem("namespace"))
    fill = "import os, time\ntry:\n    while os.fork(): pass\nexcept OSError: print('full')\nelse: time.sleep(60)"
    with open_sandbox(SandboxSpec(options={"tier": "namespace"}, pids=50)) as sandbox:
        result = sandbox.exec(
            [
                "python3",
                "-c",
                fill.replace("while os.fork(): pass", "while True:\n        if not os.fork(): time.sleep(60)"),
            ],
            timeout=10,
        )
        assert result.text.startswith("full"), result
        assert sandbox.open_pty("echo on").read_until(b"on", timeout=5)[1]


def test_two_reads_of_one_terminal(make: Make) -> None:
    sandbox = make()
    pty = sandbox.open_pty("echo ready; sleep 60")
    pty.read_until(b"ready", timeout=10)
    reading = Background(lambda: pty.read_until(b"never", timeout=300))
    assert not reading.wait(0.2)
    with pytest.raises(FileError, match="another call reads"):
        pty.read_until(b"never", timeout=1)
    pty.close()
    assert not reading.result(60)[1]
    assert ok(sandbox.exec("echo on")).text == "on\n"


LET_GO = """
import fcntl, signal, termios, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
terminal = open("/dev/tty")
fcntl.ioctl(terminal, termios.TIOCNOTTY)
print("alone", flush=True)
time.sleep(60)
"""


def test_a_signal_to_a_process_without_its_terminal_hits_no_other(make: Make) -> None:
    sandbox = make()
    pty = sandbox.open_pty(["python3", "-c", LET_GO])
    pty.read_until(b"alone", timeout=10)
    pty.signal(signal.SIGKILL)
    assert pty.read_until(b"never", timeout=10)[1] is False
    assert pty.exit_code == -signal.SIGKILL
    assert ok(sandbox.exec("echo on")).text == "on\n"


def test_closing_an_ended_terminal_spares_the_server_that_has_its_pid_now() -> None:
    if problem("namespace"):
        pytest.skip(problem("namespace"))
    with open_sandbox(SandboxSpec(options={"tier": "namespace"}, pids=50)) as sandbox:
        if int(sandbox.read_file("/proc/sys/kernel/pid_max")) > 1000:
            pytest.skip("this kernel gives no PID namespace a limit of its own: pids come back too late")
        ok(sandbox.exec("for i in $(seq 300); do (:); done"))  # the numbers below 300 do not come back
        ended = sandbox.open_pty("echo $$")
        pid = ended.read_until(b"\r\n", timeout=10)[0].decode().strip()
        ended.read_until(b"never", timeout=10)
        search = f"until sleep 300 & [ $! = {pid} ]; do kill $!; done >/dev/null 2>&1"
        ok(sandbox.exec(search, timeout=30))
        ended.close()
        assert ok(sandbox.exec(f"kill -0 {pid} && echo lives")).text == "lives\n"


def test_the_root_is_a_workdir_like_any_other(make: Make) -> None:
    """Of the sandbox's own: where nothing can be mounted, that is its folder."""
    sandbox = make(workdir="/")
    sandbox.write_file("file", b"inside")
    assert ok(sandbox.exec("cat file")).text == "inside"
    assert sandbox.read_file("/file") == b"inside"


def test_any_timeout_can_be_waited_for(make: Make) -> None:
    sandbox = make(ttl=float("inf"), start_timeout=float("inf"))
    assert ok(sandbox.exec("echo on", timeout=1e12, grace=1e12)).text == "on\n"
    sandbox.write_file("file", b"x", timeout=float("inf"))
    assert sandbox.read_file("file", timeout=float("inf")) == b"x"
    assert list(sandbox.manifest(timeout=float("inf"))) == ["file"]


def test_a_request_that_is_too_large_is_a_usage_error(make: Make) -> None:
    sandbox = make()
    with pytest.raises(UsageError, match="too large"):
        sandbox.write_file("file", bytes((1 << 30) + 1))
    with pytest.raises(UsageError, match="max_output"):
        sandbox.exec("true", max_output=1 << 40)
    with pytest.raises(SandboxError):
        sandbox.read_file("file")
    assert ok(sandbox.exec("echo on")).text == "on\n"


def test_an_invalid_python_prefix_is_a_usage_error(tier: str) -> None:
    with pytest.raises(UsageError, match="/nowhere"):
        open_sandbox(SandboxSpec(options={"tier": tier, "python_prefix": "/nowhere"}))


def test_a_failed_build_is_a_start_error(make: Make) -> None:
    with pytest.raises(SandboxStartError, match="File name too long"):
        make(workdir="/" + "x" * 300)


def test_a_killed_runner_ends_forwarded_connections_and_the_next_call_reports_it() -> None:
    with open_sandbox(SandboxSpec(options={"tier": "process"}), "local") as sandbox:
        waiting: list[Background[bytes]] = []
        forward = sandbox.forward(
            0,
            lambda connection: (
                waiting.append(Background(lambda: connection.recv(1, timeout=300))) or str(waiting[0].wait(300))
            ),
        )
        with socket.create_connection(("127.0.0.1", forward.port), 10) as client:
            eventually(lambda: bool(waiting), 60, "the connection is served")
            os.kill(int(ok(sandbox.exec("echo $PPID")).text), signal.SIGKILL)
            with pytest.raises(SandboxLost):
                waiting[0].result(60)
            assert client.recv(1) == b""
        with pytest.raises(SandboxLost):
            sandbox.exec("true")
        assert sandbox.closed
        forward.close()


def test_every_user_may_listen_on_every_port(make: Make) -> None:
    box = make(options={"tier": "namespace"})
    assert box.exec("cat /proc/sys/net/ipv4/ip_unprivileged_port_start").text == "0\n"


def test_commands_do_not_ignore_the_signals_that_the_host_process_ignores(tmp_path: Path) -> None:
    """As under `nohup`, or in the background of a shell, which ignores SIGINT."""
    program = """
import signal
from swe_gym.sandboxes import SandboxSpec, open_sandbox
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
with open_sandbox(SandboxSpec(), "local") as sandbox:
    print(sandbox.exec("kill -HUP $$; echo alive").signal, sandbox.exec("kill -INT $$; echo alive").signal)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"1 2\n"
