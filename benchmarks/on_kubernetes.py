"""Sandboxes on Kubernetes, side by side with what the official SDK gives, in one run on one cluster.

    KUBECONFIG=... SWE_GYM_TEST_IMAGE=... python benchmarks/on_kubernetes.py [command start pool stress kill cycles]

`command`: one command, against an exec by the SDK's `stream()` in the same pod. `start`: many pods to their first
command, against creating the same pods and watching them until they run. `pool`: taking pods that were started ahead,
and a command in each. `stress`: 64 threads that create, execute and
list. `kill`: clients that are killed at a random moment. `cycles`: 1,000 sandboxes on a server that fails on command.
"""

import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kubernetes import client, config, watch
from kubernetes.stream import stream
from rich.console import Console
from rich.table import Table

from swe_gym.errors import SandboxError, SandboxStartError
from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.kubernetes import KubernetesOptions, KubernetesSandbox, manifest, sweep
from swe_gym.sandboxes.kubernetes.api import Api
from swe_gym.sandboxes.kubernetes.pods import delete_pod, list_pods
from swe_gym.sandboxes.pool import WarmPool

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the servers are
from servers.kubernetes_server import KubernetesServer

COMMANDS, TURN = 200, 20
PODS = int(os.environ.get("SWE_GYM_BENCH_PODS", "32"))
SETTLE_SECONDS = 15.0  # a node is busy for some time after pods were deleted
ROUNDS = int(os.environ.get("SWE_GYM_BENCH_ROUNDS", "3"))
THREADS = 64
STRESS_SECONDS = float(os.environ.get("SWE_GYM_BENCH_SECONDS", "60"))
KILLS = int(os.environ.get("SWE_GYM_BENCH_KILLS", "50"))
CYCLES = int(os.environ.get("SWE_GYM_BENCH_CYCLES", "1000"))

console = Console()


def main() -> None:
    """Run what the command line names."""
    for name in sys.argv[1:] or ["command", "start"]:
        BENCHMARKS[name]()


def options(**more: object) -> dict[str, object]:
    """The backend's own options."""
    return {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "image_pull_policy": "IfNotPresent", **more}


def open_one(**more: object) -> KubernetesSandbox:
    """A sandbox in the cluster of KUBECONFIG."""
    return KubernetesSandbox(SandboxSpec(options=options(**more), start_timeout=300.0)).start()


def milliseconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def namespace() -> str:
    """The namespace of the current context."""
    return Api(kubeconfig=None, context=None).namespace


# --- one command ------------------------------------------------------------------------------------------------


def command() -> None:
    """In turns of a few, so that what the machine does besides hits both alike."""
    config.load_kube_config()
    core = client.CoreV1Api(client.ApiClient())
    with open_one() as sandbox:
        pod = manifest.pod_name(sandbox.id)

        def by_sdk() -> None:
            said = stream(core.connect_get_namespaced_pod_exec, pod, namespace_, command=["echo", "x"], stdout=True)
            assert said == "x\n", said

        def by_us() -> None:
            assert sandbox.exec(["echo", "x"]).stdout == b"x\n"

        namespace_ = namespace()
        times: dict[str, list[float]] = {"sandbox.exec": [], "stream(exec) of the SDK": []}
        for _ in range(COMMANDS // TURN):
            for name, work in (("sandbox.exec", by_us), ("stream(exec) of the SDK", by_sdk)):
                times[name] += [milliseconds(work) for _ in range(TURN)]
                time.sleep(0.5)  # the node tidies up after an exec
    table = Table(
        "one command", "min ms", "median ms", "p95 ms", title=f"{COMMANDS} of each, {TURN} by {TURN}, in one pod"
    )
    for name, values in times.items():
        values.sort()
        row = (values[0], statistics.median(values), values[int(len(values) * 0.95)])
        table.add_row(name, *(f"{value:.2f}" for value in row))
    ratio = statistics.median(times["stream(exec) of the SDK"]) / statistics.median(times["sandbox.exec"])
    table.caption = f"the SDK's median is {ratio:.0f} times ours (bar: 20)"
    console.print(table)


# --- many pods ----------------------------------------------------------------------------------------------------


def start() -> None:
    """Rounds alternate, so that what else the machine does hits both alike."""
    times: dict[str, list[float]] = {"sandboxes, to the first command of all": [], "create and watch of the SDK": []}
    one: list[float] = []
    for _ in range(ROUNDS):
        for name, work in (
            ("sandboxes, to the first command of all", sandboxes),
            ("create and watch of the SDK", raw_pods),
        ):
            times[name].append(work())
            time.sleep(SETTLE_SECONDS)
        one.append(milliseconds(lambda: open_one().close()))
    table = Table("what", "median s", "all s", title=f"{PODS} pods at once, {ROUNDS} rounds, alternating")
    for name, values in times.items():
        table.add_row(name, f"{statistics.median(values):.2f}", " ".join(f"{value:.2f}" for value in values))
    ratio = statistics.median(times["sandboxes, to the first command of all"]) / statistics.median(
        times["create and watch of the SDK"]
    )
    table.caption = (
        f"ours is {ratio:.2f} times raw (bar: 1.2); one sandbox opened and closed: {min(one):.0f} ms at best"
    )
    console.print(table)


def sandboxes() -> float:
    """Seconds until every sandbox has answered its first command."""
    started = time.perf_counter()

    def one(_: int) -> KubernetesSandbox:
        sandbox = open_one()
        assert sandbox.exec(["echo", "x"]).stdout == b"x\n"
        return sandbox

    with ThreadPoolExecutor(PODS) as threads:
        opened = list(threads.map(one, range(PODS)))
        took = time.perf_counter() - started
        list(threads.map(lambda sandbox: sandbox.close(), opened))
    return took


def raw_pods() -> float:
    """The same pods, as a program with the SDK would make them; nobody attaches."""
    config.load_kube_config()
    core, run, where = client.CoreV1Api(client.ApiClient()), uuid.uuid4().hex, namespace()
    spec, given = SandboxSpec(), KubernetesOptions.model_validate(options())
    bodies = [
        manifest.pod(
            spec,
            given,
            name=f"swe-gym-raw-{uuid.uuid4().hex[:12]}",
            image=os.environ["SWE_GYM_TEST_IMAGE"],
            run=run,
            sandbox=str(number),
        )
        for number in range(PODS)
    ]
    started = time.perf_counter()
    with ThreadPoolExecutor(PODS) as threads:
        list(threads.map(lambda body: core.create_namespaced_pod(where, body), bodies))
    running: set[str] = set()
    watching = watch.Watch()
    selector = f"swe-gym/run={run}"
    for event in watching.stream(core.list_namespaced_pod, where, label_selector=selector, timeout_seconds=300):
        if event["object"].status.phase == "Running":
            running.add(event["object"].metadata.name)
        if len(running) == PODS:
            break
    took = time.perf_counter() - started
    watching.stop()
    api = Api(kubeconfig=None, context=None)
    for pod in list_pods(api, where, {"swe-gym/run": run}):
        delete_pod(api, where, pod["metadata"]["name"], uid=pod["metadata"]["uid"], timeout=30.0)
    return took


# --- started ahead ------------------------------------------------------------------------------------------------


def pool() -> None:
    """Taking sandboxes that were started ahead, to the end of a first command."""
    spec, times = SandboxSpec(options=options(), start_timeout=300.0), []
    with WarmPool("kubernetes", ready=PODS // 2) as warm, contextlib.ExitStack() as stack:
        warm.want(spec, PODS // 2)
        time.sleep(2 * SETTLE_SECONDS)
        for _ in range(PODS // 2):
            started = time.perf_counter()
            sandbox = warm.take(spec)
            assert sandbox.exec(["echo", "x"]).stdout == b"x\n"
            times.append((time.perf_counter() - started) * 1000)
            stack.callback(sandbox.close)
    text = f"median {statistics.median(times):.1f} ms, at most {max(times):.1f} ms (bar: 50 ms)"
    console.print(f"from the warm pool to the first command, {len(times)} pods: {text}")


# --- 64 threads ---------------------------------------------------------------------------------------------------


def stress() -> None:
    """Threads that create, execute and list on one client. Every error is counted."""
    end = time.monotonic() + STRESS_SECONDS
    counts, errors, lock = {"sandboxes": 0, "commands": 0, "lists": 0}, [], threading.Lock()
    api, where = Api(kubeconfig=None, context=None), namespace()

    def count(what: str) -> None:
        with lock:
            counts[what] += 1

    def play(number: int) -> None:
        while time.monotonic() < end:
            try:
                if number % 8 == 0:
                    list(list_pods(api, where, {}))
                    count("lists")
                    continue
                with open_one() as sandbox:
                    count("sandboxes")
                    for turn in range(20):
                        text = f"{number} {turn}"
                        assert sandbox.exec(["echo", text]).text == text + "\n"
                        count("commands")
            except Exception as error:  # noqa: BLE001  counting all of them is the point
                with lock:
                    errors.append(repr(error)[:300])

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(play, range(THREADS)))
    left = len(list(list_pods(api, where, {manifest.MANAGED_BY: manifest.MANAGER})))
    console.print(f"{THREADS} threads, {STRESS_SECONDS:g} s: {counts}; errors: {len(errors)}; pods left: {left}")
    for error in sorted(set(errors)):
        console.print(f"  {errors.count(error)} x {error}")


# --- killed clients -----------------------------------------------------------------------------------------------

CLIENT = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import on_kubernetes as bench
def play():
    while True:
        with bench.open_one(namespace=sys.argv[2]) as sandbox:
            sandbox.exec("sleep 1 & setsid sleep 1; true")
for _ in range(4):
    threading.Thread(target=play).start()
"""


def kill() -> None:
    """Clients with four busy sandboxes, killed at a random moment; then: what runs, and what a sweep leaves."""
    api = Api(kubeconfig=None, context=None)
    where = f"swe-gym-kill-{uuid.uuid4().hex[:8]}"
    api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": where}})
    try:
        for _ in range(KILLS):
            process = subprocess.Popen(
                [sys.executable, "-c", CLIENT, os.path.dirname(__file__), where], stderr=subprocess.DEVNULL
            )
            time.sleep(random.uniform(0.5, 5.0))
            process.kill()
            process.wait()
        killed = time.monotonic()
        while [pod for pod in list_pods(api, where, {}) if pod["status"]["phase"] == "Running"]:
            time.sleep(0.1)
        stopped = time.monotonic() - killed
        ended = len(list(list_pods(api, where, {})))
        pending = sum(pod["status"]["phase"] == "Pending" for pod in list_pods(api, where, {}))
        while time.monotonic() < killed + 5.0:
            time.sleep(0.1)
        sweep({"namespace": where}, older_than=1.0)
        left = [pod["status"]["phase"] for pod in list_pods(api, where, {})]
        console.print(
            f"{KILLS} clients killed: nothing runs {stopped:.1f} s after the last; {ended} ended pods were left "
            f"({pending} that never started); after a sweep: {left or 'none'}"
        )
    finally:
        api.request("DELETE", f"/api/v1/namespaces/{where}")


# --- many cycles under faults ---------------------------------------------------------------------------------------


FAULTS = [("POST", "*/pods", 0.1), ("GET", "*watch=*", 0.01), ("GET", "*/attach", 0.1), ("DELETE", "*/pods/*", 0.1)]
"""Method, path, share of the cycles."""


def cycles() -> None:
    """On a server of our own that fails one request in ten, in every way. Nothing may be left, nothing may grow."""
    chance = random.Random(7)
    outcomes: dict[str, int] = {}
    sizes: list[tuple[int, int, int]] = []
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder, KubernetesServer() as server:
        given = {"kubeconfig": server.kubeconfig(Path(folder)), "backoff": (0.02, 0.1), "create_rate": 1000.0}

        def one(_: int) -> None:
            with lock:
                for method, path, share in FAULTS:
                    if chance.random() < share:
                        status = chance.choice([None, 429, 500, 503])
                        done = chance.random() < 0.5 and method != "GET"
                        answer = (
                            {"status": status, "done": done} if status else {"lose_reply" if done else "drop": True}
                        )
                        server.inject(path, method=method, **answer)
            spec = SandboxSpec(image="any", start_timeout=30.0, options=given)
            try:
                with KubernetesSandbox(spec) as sandbox:
                    outcome = "played" if sandbox.exec(["x"]).text == "x" else "wrong output"
            except (SandboxStartError, SandboxError) as error:
                outcome = type(error).__name__
            with lock:
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                if sum(outcomes.values()) % (CYCLES // 5) == 0:
                    memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
                    sizes.append((len(os.listdir("/proc/self/fd")), threading.active_count(), memory))
                    server.requests.clear()
                    server.compact()  # its memory of what happened, and one more fault

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(one, range(CYCLES)))
        deadline = time.monotonic() + 90
        while server.pods and time.monotonic() < deadline:
            time.sleep(0.1)
        console.print(f"{CYCLES} cycles: {json.dumps(outcomes)}; pods left: {len(server.pods)}")
        console.print("file descriptors, threads, memory in MiB (server and client are one process) at each fifth:")
        console.print(f"  {sizes}")


BENCHMARKS = {"command": command, "start": start, "pool": pool, "stress": stress, "kill": kill, "cycles": cycles}

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
