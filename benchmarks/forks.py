"""Time and truth of forks: a sandbox with the files of another one, by its snapshot and by a copy of everything.

python benchmarks/forks.py                       # 2,000 files, 50 changed
python benchmarks/forks.py --random 1000         # random edits, forks of forks, files compared
python benchmarks/forks.py --chain 100           # the same, each fork of the one before
python benchmarks/forks.py --kills 20            # SIGKILL while it forks: processes and folders that are left
python benchmarks/forks.py --backend docker
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import show

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.types import FilesWorkspace

CHANGE = "for j in $(seq {count}); do echo x >> d$((j % 2))/f$((j / 2)).py; done"

EDIT = r"""
import os, random, shutil, sys
draw = random.Random(int(sys.argv[1]))
roots = [os.getcwd(), os.path.expanduser("~/fork"), "/tmp/fork"]
for root in roots[1:]:
    os.makedirs(root, exist_ok=True)
def pick(folders):
    found = []
    root = draw.choice(roots)
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name != ".git")
        found += [os.path.join(folder, name) for name in (inner if folders else sorted(files))]
    return draw.choice(sorted(found)) if found else os.path.join(root, "new")
def name():
    return draw.choice(["a", "b", "odd\nname", "\udcff", "x y", ".dot"]) + str(draw.randrange(9))
for _ in range(12):
    place = os.path.join(os.path.dirname(pick(False)), name())
    what = draw.randrange(9)
    try:
        if what == 0:
            with open(pick(False), "ab") as file:
                file.write(os.urandom(9))
        elif what == 1:
            with open(place, "wb") as file:
                file.write(b"new" * draw.randrange(99))
        elif what == 2:
            os.unlink(pick(False))
        elif what == 3:
            shutil.rmtree(pick(True))
        elif what == 4:
            shutil.move(pick(True), place)
        elif what == 5:
            os.rename(pick(False), place)
        elif what == 6:
            os.symlink(pick(draw.random() < 0.5), place)
        elif what == 7:
            os.chmod(pick(False), draw.randrange(0o1000) | 0o400)
        else:
            os.makedirs(os.path.join(place, name()), exist_ok=True)
    except (OSError, shutil.Error):
        pass
"""

DESCRIBE = r"""
import hashlib, json, os, stat, sys
found = {}
for root in (os.getcwd(), os.path.expanduser("~/fork"), "/tmp/fork"):
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            entry = [info.st_mode, info.st_uid, info.st_nlink if stat.S_ISREG(info.st_mode) else 0]
            if stat.S_ISLNK(info.st_mode):
                entry = ["link", os.readlink(path)]
            elif stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    entry += [hashlib.sha256(file.read()).hexdigest(), info.st_mtime_ns]
            found[path] = entry
print(hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest(), len(found))
"""


def make_workspace(files: int) -> FilesWorkspace:
    """Return small files, 50 to a folder. They are prepared once: a folder is searched while it is new."""
    return FilesWorkspace(
        files={f"d{number // 50}/f{number % 50}.py": f"line {number}\n" * 10 for number in range(files)}
    )


def start(spec: SandboxSpec, backend: str) -> Sandbox:
    """Start a sandbox and mark its start."""
    sandbox = open_sandbox(spec, backend)
    sandbox.mark_start()
    return sandbox


def fork(parent: Sandbox, spec: SandboxSpec, backend: str) -> Sandbox:
    """Return a new sandbox with the files of another one."""
    taken = parent.snapshot()
    child = start(spec, backend)
    child.restore(taken)
    return child


def copy_all(parent: Sandbox, spec: SandboxSpec, backend: str) -> Sandbox:
    """Return a new sandbox with the workspace of another one, by an archive of the whole workspace."""
    archive = parent.get_tar("")
    child = open_sandbox(spec, backend)
    child.exec("find . -mindepth 1 -delete")
    child.put_tar("", archive)
    return child


def percentiles(name: str, times: list[float]) -> list[str]:
    """Return a row: median and 95th percentile in milliseconds."""
    return [name, f"{statistics.median(times):.1f}", f"{sorted(times)[int(0.95 * (len(times) - 1))]:.1f}"]


def measure(spec: SandboxSpec, backend: str, changed: int, rounds: int) -> None:
    """Print the time of a fork beside that of a start and of a copy, each once in a round."""
    times: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        times.setdefault(name, []).append((time.perf_counter() - began) * 1000)
        return result

    with start(spec, backend) as parent:
        parent.exec(CHANGE.format(count=changed))
        taken = parent.snapshot()
        for _ in range(rounds):
            timed("snapshot", parent.snapshot)
            with open_sandbox(spec, backend) as child:
                timed("mark", child.mark_start)
                timed("restore", lambda: child.restore(taken))
            timed("start", lambda: open_sandbox(spec, backend)).close()
            timed("fork", lambda: fork(parent, spec, backend)).close()
            timed("copy of everything", lambda: copy_all(parent, spec, backend)).close()
    caption = f"{len(taken.entries)} entries, {len(taken.pack())} bytes packed; load {os.getloadavg()[0]:.1f}"
    rows = [percentiles(name, found) for name, found in times.items()]
    ratios = sorted(one / other for one, other in zip(times["fork"], times["start"], strict=True))
    rows.append(["fork / start", f"{statistics.median(ratios):.2f}", f"{ratios[int(0.95 * (len(ratios) - 1))]:.2f}"])
    show(f"A fork on {backend}, ms", ["", "p50", "p95"], rows, caption)


def describe(sandbox: Sandbox) -> str:
    """Return a digest of all files that the random edits may reach."""
    result = sandbox.exec(["python3", "-c", DESCRIBE])
    assert result.ok, result.error_text
    return result.text


def check(spec: SandboxSpec, backend: str, forks: int, seed: int, most: int) -> None:
    """Fork sandboxes after random edits, also forks of forks, and compare the files of parent and child.

    Args:
        spec: The sandboxes.
        backend: Their backend.
        forks: Number of forks.
        seed: Seed of the edits.
        most: Number of sandboxes that stay open as parents. With 1, each fork is of the one before.
    """
    draw = random.Random(seed)
    alive, times, wrong = [start(spec, backend)], [], 0
    for number in range(forks):
        parent = draw.choice(alive)
        parent.exec(["python3", "-c", EDIT, str(seed + number)])
        began = time.perf_counter()
        child = fork(parent, spec, backend)
        times.append((time.perf_counter() - began) * 1000)
        before = describe(parent)
        wrong += describe(child) != before
        child.exec(["python3", "-c", EDIT, str(-number)])
        wrong += describe(parent) != before
        alive.append(child)
        if len(alive) > most:
            alive.pop(draw.randrange(most)).close()
    for sandbox in alive:
        sandbox.close()
    rows = [percentiles("fork", times), ["differing", str(wrong), f"of {2 * forks}"]]
    show(f"{forks} random forks on {backend}, ms", ["", "p50", "p95"], rows, f"load {os.getloadavg()[0]:.1f}")


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, todo = [], [pid]
    while todo:
        todo = [child for child, parent in parents.items() if parent in todo]
        found += todo
    return found


def kill(times: int, seed: int) -> None:
    """Kill processes that fork sandboxes, and print what is left of them after at most 10 s."""
    draw, left, slowest = random.Random(seed), 0, 0.0
    for number in range(times):
        with tempfile.TemporaryDirectory(prefix="swe-gym-forks-") as folder:
            command = [sys.executable, __file__, "--random", "1000", "--files", "200", "--seed", str(number)]
            process = subprocess.Popen(command, env={**os.environ, "TMPDIR": folder})
            while len(started := descendants(process.pid)) < 4:
                time.sleep(0.1)
            time.sleep(draw.random())
            started = descendants(process.pid)
            process.kill()
            process.wait()
            began = time.monotonic()

            def remains(started: list[int] = started, folder: str = folder) -> int:
                return sum(Path(f"/proc/{pid}").exists() for pid in started) + len(list(Path(folder).glob("swe-gym-*")))

            while remains() and time.monotonic() < began + 10:
                time.sleep(0.05)
            slowest = max(slowest, time.monotonic() - began)
            left += remains()
    rows = [["kills", str(times)], ["processes and folders left", str(left)], ["slowest end, s", f"{slowest:.1f}"]]
    show("SIGKILL while it forks", ["", ""], rows, f"load {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Measure, or check random forks, or what a killed process leaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="local")
    parser.add_argument("--options", type=json.loads, default={}, help="fields of SandboxSpec, as JSON")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--changed", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--random", type=int, default=0, help="number of random forks")
    parser.add_argument("--chain", type=int, default=0, help="number of forks, each of the one before")
    parser.add_argument("--kills", type=int, default=0, help="number of processes that are killed")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    spec = SandboxSpec(workspace=make_workspace(given.files), **given.options)
    if given.kills:
        kill(given.kills, given.seed)
    elif given.random or given.chain:
        check(spec, given.backend, given.random or given.chain, given.seed, most=4 if given.random else 1)
    else:
        measure(spec, given.backend, given.changed, given.rounds)


if __name__ == "__main__":
    main()
