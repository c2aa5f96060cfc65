"""Time and truth of forks: a sandbox with the files of another one, by its snapshot and by a copy of everything.

python benchmarks/forks.py                       # all of it on local: 1,000 random forks
python benchmarks/forks.py --backend local docker kubernetes --image IMAGE  # on all of them: 100 on the others
python benchmarks/forks.py --only times          # 2,000 files, 50 changed
python benchmarks/forks.py --only random         # random edits, forks of forks, files compared
python benchmarks/forks.py --only chain          # the same, each fork of the one before
python benchmarks/forks.py --only children       # many forks of one sandbox, open at the same time
python benchmarks/forks.py --only bytes          # size of a checkpoint beside what was written
python benchmarks/forks.py --only toy            # time and CPU time of a fork and of a state signature, bundled task
python benchmarks/forks.py --only kills          # SIGKILL while it forks: processes and folders that are left

Random edits also make what is rare: hard links, pipes, deleted folders (whiteouts), names that are no text. CPU time
is that of all processes, the sandbox's among them, and compares on a busy machine.
"""

import argparse
import contextlib
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

from common import CpuClock, show

from swe_gym.envs import SweEnv, task_spec
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.types import FilesWorkspace
from swe_gym.wrappers import StateSignature

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
    what = draw.randrange(11)
    try:
        if what == 0 and os.path.isfile(path := pick(False)):  # a pipe would wait for a reader
            with open(path, "ab") as file:
                file.write(os.urandom(9))
        elif what == 1 and (os.path.isfile(place) or not os.path.lexists(place)):
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
        elif what == 8:
            os.link(pick(False), place, follow_symlinks=False)
        elif what == 9:
            os.mkfifo(place)
        elif what == 10:
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
        if number and number % 100 == 0:
            print(f"{number} forks, {wrong} differing", flush=True)
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


def fork_children(spec: SandboxSpec, backend: str, count: int) -> None:
    """Fork one sandbox many times, edit each fork while all are open, and compare the files of all."""
    with contextlib.ExitStack() as opened:
        parent = opened.enter_context(start(spec, backend))
        parent.exec(["python3", "-c", EDIT, "1"])
        before, began = describe(parent), time.perf_counter()
        children = [opened.enter_context(fork(parent, spec, backend)) for _ in range(count)]
        spent = time.perf_counter() - began
        wrong = sum(describe(child) != before for child in children)
        for number, child in enumerate(children):
            child.exec(["python3", "-c", EDIT, str(number)])
        after = [describe(child) for child in children]
        wrong += describe(parent) != before
        rows = [["children open", str(count)], ["seconds for all", f"{spent:.1f}"], ["differing", str(wrong)]]
        rows.append(["different after an edit each", str(len(set(after)))])
    show(f"Children of one sandbox on {backend}", ["", ""], rows, f"load {os.getloadavg()[0]:.1f}")


def count_bytes(spec: SandboxSpec, backend: str) -> None:
    """Print the size of checkpoints after random bytes, which cannot be compressed, were written."""
    rows = []
    with start(spec, backend) as sandbox:
        for size in (0, 1_000, 100_000, 10_000_000):
            sandbox.exec(f"head -c {size} /dev/urandom > written")
            taken = sandbox.snapshot()
            rows.append([f"{size:,}", f"{len(taken.pack()):,}", str(len(taken.entries))])
    show(f"A checkpoint on {backend}", ["bytes written", "bytes stored", "entries"], rows)


def measure_toy(backend: str, rounds: int) -> None:
    """Print wall-clock and CPU time of a fork of a bundled task, of its parts, and of a state signature."""
    clock = CpuClock()
    env = StateSignature(SweEnv("toy", task_id="larder-overwrite-evicts", backend=backend))
    with contextlib.closing(env):
        info = env.reset(seed=1)[1]
        box = env.unwrapped.sandbox
        box.exec("echo 1 >> larder/cache.py; echo 2 > new.py")
        spec, taken, rows = task_spec(env.unwrapped.task, {}), box.snapshot(), []
        child = start(spec, backend)
        parts: dict[str, Callable[[], Any]] = {
            "state signature": lambda: env._sign(info),
            "start": lambda: open_sandbox(spec, backend),
            "mark": child.mark_start,
            "snapshot": box.snapshot,
            "restore": lambda: child.restore(taken),
            "fork": lambda: fork(box, spec, backend),
        }
        for name, work in parts.items():
            opened, times, before = [], [], clock.now()
            for _ in range(rounds):
                began = time.perf_counter()
                opened.append(work())
                times.append((time.perf_counter() - began) * 1000)
            rows.append([*percentiles(name, times), f"{(clock.now() - before) * 1000 / rounds:.1f}"])
            for one in opened:
                if isinstance(one, Sandbox):
                    one.close()
        child.close()
    counted = "" if clock.exact else "; CPU without processes that still run"
    caption = f"load {os.getloadavg()[0]:.1f}{counted}"
    show(f"A bundled task on {backend}, ms", ["", "p50", "p95", "CPU"], rows, caption)


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
            command = [sys.executable, __file__, "--only", "random", "--seed", str(number)]
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
    parser.add_argument("--backend", nargs="+", default=["local"])
    parser.add_argument("--image", default="", help="of the backends other than local: with Python, bash and tar")
    parser.add_argument("--options", type=json.loads, default={}, help="fields of SandboxSpec, as JSON")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--changed", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--random", type=int, help="number of random forks (default: 1,000 on local, else 100)")
    parser.add_argument("--chain", type=int, help="number of forks, each of the one before (default: 100, else 20)")
    parser.add_argument("--children", type=int, help="number of forks of one sandbox (default: 64, else 8)")
    parser.add_argument("--kills", type=int, default=20, help="number of processes that are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["times", "random", "chain", "children", "bytes", "toy", "kills"])
    given = parser.parse_args()
    others = [backend for backend in given.backend if backend != "local"]
    if others and given.only in ("toy", "kills"):
        parser.error(f"--only {given.only} needs --backend local: the processes of others are not ours to count or end")
    if others and not (given.image or "image" in given.options):
        parser.error(f"{', '.join(others)}: name an image by --image")
    for backend in given.backend:
        run_on(backend, given)


def run_on(backend: str, given: argparse.Namespace) -> None:
    """Run the parts that are asked for on one backend."""
    local = backend == "local"
    image = {} if local or not given.image else {"image": given.image}
    spec = SandboxSpec(workspace=make_workspace(given.files), **{**given.options, **image})
    small = spec.model_copy(update={"workspace": make_workspace(min(given.files, 200))})
    parts: dict[str, Callable[[], None]] = {
        "times": lambda: measure(spec, backend, given.changed, given.rounds),
        "toy": lambda: measure_toy(backend, given.rounds),
        "bytes": lambda: count_bytes(small, backend),
        "children": lambda: fork_children(small, backend, given.children or (64 if local else 8)),
        "chain": lambda: check(small, backend, given.chain or (100 if local else 20), given.seed, most=1),
        "random": lambda: check(small, backend, given.random or (1000 if local else 100), given.seed, most=4),
        "kills": lambda: kill(given.kills, given.seed),
    }
    if not local:
        del parts["toy"], parts["kills"]  # their processes are not ours
    for part in [given.only] if given.only else parts:
        parts[part]()


if __name__ == "__main__":
    main()
