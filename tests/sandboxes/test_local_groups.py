"""Control groups of local sandboxes: their limits where the machine delegates a group, and their end anywhere."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_gym.errors import SandboxLost, Unsupported
from swe_gym.guests.local.groups import SANDBOX, ControlGroup, remove_abandoned
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.sandboxes.local import problem
from swe_gym.sandboxes.local.forkserver import launch
from swe_gym.sandboxes.local.image import launch_config
from swe_gym.sandboxes.local.tiers import delegated_group
from swe_gym.testing.sandbox_contract.case import eventually, new_marker, ok, processes_here
from swe_gym.testing.sandbox_contract.limits import children_started

NAMESPACE = {"tier": "namespace"}


@pytest.fixture
def delegated() -> Path:
    """The group below which sandboxes have theirs."""
    folder, why = delegated_group()
    if problem("namespace") or not folder:
        pytest.skip(f"no control group is delegated: {why}")
    return Path(folder)


def groups_in(folder: Path) -> list[Path]:
    return list(folder.glob(f"{SANDBOX}*"))


def test_a_sandbox_is_limited_as_a_whole(delegated: Path) -> None:
    spec = SandboxSpec(options=NAMESPACE, cpus=0.5, memory_mb=100, disk_mb=28, pids=60)
    with open_sandbox(spec, "local") as sandbox:
        (group,) = groups_in(delegated)
        said = {name: (group / name).read_text().strip() for name in ("cpu.max", "memory.max", "pids.max")}
        assert said == {"cpu.max": "50000 100000", "memory.max": str(128 << 20), "pids.max": "60"}
        assert ok(sandbox.exec("cat /proc/self/cgroup")).text.strip().endswith(":/")
        assert children_started(sandbox, 200) <= 60
        assert not any("capped" in note for note in sandbox.capabilities.notes)
    eventually(lambda: not groups_in(delegated), 60, "the group is removed")


def test_several_processes_that_exceed_the_memory_together_end_the_sandbox(delegated: Path) -> None:
    spec = SandboxSpec(options=NAMESPACE, memory_mb=100, disk_mb=28)
    hold = "python3 -c 'held = bytearray(b\"x\" * (60 << 20)); import time; time.sleep(60)' & "
    with open_sandbox(spec, "local") as sandbox:
        with pytest.raises(SandboxLost) as caught:
            sandbox.exec(f"{hold * 4} wait", timeout=50)
        assert caught.value.reason == "oom"
    eventually(lambda: not groups_in(delegated), 60, "the group is removed")


OPEN = """
import sys
from swe_gym.sandboxes import SandboxSpec, open_sandbox
sandbox = open_sandbox(SandboxSpec(options={"tier": "namespace"}), "local")
print("open", flush=True)
sys.stdin.read()
"""


def test_the_group_of_a_killed_process_is_removed(delegated: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"open\n"
        assert groups_in(delegated)
        client.kill()
    eventually(lambda: not groups_in(delegated), 60, "the group is removed")


def test_cpus_without_a_delegated_group_are_refused() -> None:
    if delegated_group()[0]:
        pytest.skip("this machine delegates a control group")
    with pytest.raises(Unsupported, match=r"cannot limit CPUs: .*systemd-run --user --scope -p Delegate=yes"):
        open_sandbox(SandboxSpec(cpus=1.0), "local")


# --- on any hierarchy of cgroup v2, with or without controllers ---------------------------------------------


@pytest.fixture
def parent() -> Iterator[Path]:
    """A group of this test, on a machine whose root may make one."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(place, os.W_OK):
            folder = Path(place) / f"swe-gym-test-{os.getpid()}"
            folder.mkdir()
            yield folder
            folder.rmdir()
            return
    pytest.skip("no writable cgroup v2 on this machine")


def test_the_end_of_a_group_kills_all_that_joined_it(parent: Path) -> None:
    marker = new_marker()
    group = ControlGroup(str(parent), {})
    folder = parent / group.name
    sleep = f"sleep {marker}"
    start = f"echo 0 > {folder}/cgroup.procs; setsid {sleep} & ({sleep} &); echo started; {sleep}"
    with subprocess.Popen(["sh", "-c", start], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"started\n"
        eventually(lambda: len(processes_here(marker)) >= 3, 60, "three processes have joined")
        assert not group.ran_out_of_memory()
        group.end()
    assert not processes_here(marker)
    assert not folder.exists()


def test_a_sandbox_joins_its_group_and_removes_it(parent: Path, tmp_path: Path) -> None:
    if problem("namespace"):
        pytest.skip(f"no tier namespace on this machine: {problem('namespace')}")
    config = {**launch_config(SandboxSpec(), [tmp_path]), "group": str(parent), "group_limits": {}}
    stream, supervisor = launch(config, time.monotonic() + 60)
    (group,) = groups_in(parent)
    assert len((group / "cgroup.procs").read_text().split()) == 1
    stream.close()
    supervisor.end(patience=10.0)
    assert not groups_in(parent)


def test_groups_of_killed_supervisors_are_removed(parent: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    (parent / f"{SANDBOX}{ended.pid}").mkdir()
    (parent / f"{SANDBOX}{os.getpid()}").mkdir()
    remove_abandoned(str(parent))
    assert groups_in(parent) == [parent / f"{SANDBOX}{os.getpid()}"]
    groups_in(parent)[0].rmdir()
