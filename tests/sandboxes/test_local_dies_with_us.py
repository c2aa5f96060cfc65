import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swe_gym.sandboxes.local import problem
from swe_gym.testing.sandbox_contract.case import eventually, new_marker, processes_here

SANDBOXES = 20

BUSY = """
import sys, threading
from swe_gym.sandboxes import SandboxSpec, open_sandbox

tier, count, marker, end = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
spec = SandboxSpec(options={"tier": tier})
sandboxes = [open_sandbox(spec, "local") for _ in range(count)]
for sandbox in sandboxes:
    sandbox.write_file("file", b"x" * 10000)
    sandbox.exec(f"setsid sleep {marker} >/dev/null 2>&1 & (env -i nohup sleep {marker} >/dev/null 2>&1 &)")
    sandbox.open_pty(f"trap '' HUP; sleep {marker}")
    if tier != "landlock":
        sandbox.forward(0, lambda connection: None)
    busy = f"trap '' TERM; touch busy; while :; do sleep {marker}; done"
    threading.Thread(target=sandbox.exec, args=[busy], kwargs={"timeout": 600}, daemon=True).start()
while not all(sandbox.exec("test -e busy").ok for sandbox in sandboxes):
    pass
print("busy", flush=True)
if end == "wait":
    sys.stdin.read()
"""


def table() -> dict[int, tuple[int, str]]:
    """pid -> (parent, start) of every process of this machine that is not a zombie."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(name)] = (int(fields[1]), fields[19])
    return found


def below(pid: int) -> set[tuple[int, str]]:
    """(pid, start) of all that a process has started, as far as it can be found."""
    processes = table()
    found, todo = set(), [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, (of, _) in processes.items() if of == parent]
        found |= {(child, processes[child][1]) for child in children}
        todo += children
    return found


def mounts() -> set[str]:
    """The mounts of this machine, but for those of container engines, which come and go by themselves."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if not any(engine in line for engine in ("docker", "containerd", "kubelet"))}


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("end", ["wait", "exit"], ids=["killed", "forgot-to-close"])
@pytest.mark.parametrize("tier", ["namespace", "landlock", "process"])
def test_nothing_outlives_a_process_that_ends_with_busy_sandboxes(tier: str, end: str, tmp_path: Path) -> None:
    if problem(tier):
        pytest.skip(f"no tier {tier} on this machine: {problem(tier)}")
    marker = new_marker()
    mounts_before = mounts()
    command = [sys.executable, "-c", BUSY, tier, str(SANDBOXES), marker, end]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as client:
        assert client.stdout is not None
        started: set[tuple[int, str]] = set()
        if end == "wait":
            assert client.stdout.readline() == b"busy\n"
            started = below(client.pid)
            assert len(started) >= 5 * SANDBOXES, "the sandboxes are not busy"
            client.send_signal(signal.SIGKILL)
        client.wait(60)

    def gone() -> bool:
        alive = {(pid, start) for pid, (_, start) in table().items()}
        return not (started & alive or processes_here(marker) or list(tmp_path.iterdir()))

    eventually(gone, 60, f"no process and no folder is left: {list(tmp_path.iterdir())}")
    assert mounts() <= mounts_before
