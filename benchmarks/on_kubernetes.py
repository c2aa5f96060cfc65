"""Measure sandboxes on Kubernetes, and compare them with the official SDK on the same cluster.

    KUBECONFIG=... SWE_GYM_TEST_IMAGE=... python benchmarks/on_kubernetes.py [command start pool stress kill cycles]

command  One command, compared with the SDK's `stream()` in the same pod.
start    Many pods to their first command, compared with creating and watching the same pods.
pool     Warm pods to their first command.
stress   64 threads that create, execute and list.
kill     Clients that are killed at random moments.
cycles   Sandboxes on a server that fails on command. Needs no cluster.
"""

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import milliseconds, playing, process_size, show, wait_until
from kubernetes import client, config, watch
from kubernetes.stream import stream

from swe_gym.errors import SandboxError, SandboxStartError
from swe_gym.sandboxes import SandboxSpec, WarmPool
from swe_gym.sandboxes.kubernetes import KubernetesOptions, KubernetesSandbox, manifest, sweep
from swe_gym.sandboxes.kubernetes.api import Api
from swe_gym.sandboxes.kubernetes.pods import delete_pod, list_pods

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the servers are
from servers.kubernetes_server import KubernetesServer

COMMANDS, TURN = 200, 20
SETTLE_SECONDS = 15.0  # a node stays busy for a while after pods are deleted
THREADS = 64
PARTS = 5
OURS, THEIRS = "swe_gym", "SDK"


def main() -> None:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: command start)")
    parser.add_argument("--pods", type=int, default=32, help="pods of `start`; `pool` takes half (default: 32)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of `start` (default: 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of `stress` (default: 60)")
    parser.add_argument("--kills", type=int, default=50, help="clients to kill (default: 50)")
    parser.add_argument("--cycles", type=int, default=1000, help="sandboxes of `cycles` (default: 1000)")
    given = parser.parse_args()
    benchmarks = {
        "command": command,
        "start": lambda: start(given.pods, given.rounds),
        "pool": lambda: pool(given.pods // 2),
        "stress": lambda: stress(given.seconds),
        "kill": lambda: kill(given.kills),
        "cycles": lambda: cycles(given.cycles),
    }
    if unknown := set(given.names) - benchmarks.keys():
        parser.error(f"unknown benchmark {min(unknown)!r}: choose from {', '.join(benchmarks)}")
    for name in given.names or ["command", "start"]:
        benchmarks[name]()


def options(**more: object) -> dict[str, object]:
    """Return the backend's options."""
    return {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "image_pull_policy": "IfNotPresent", **more}


def open_one(**more: object) -> KubernetesSandbox:
    """Start a sandbox in the cluster of KUBECONFIG."""
    return KubernetesSandbox(SandboxSpec(options=options(**more), start_timeout=300.0)).start()


def namespace() -> str:
    """Return the namespace of the current context."""
    return Api(kubeconfig=None, context=None).namespace


# --- one command ------------------------------------------------------------------------------------------------


def command() -> None:
    """Time one command, in alternating batches."""
    config.load_kube_config()
    core = client.CoreV1Api(client.ApiClient())
    with open_one() as sandbox, playing("kubernetes", **options()) as step:
        pod = manifest.pod_name(sandbox.id)

        def by_sdk() -> None:
            said = stream(core.connect_get_namespaced_pod_exec, pod, namespace_, command=["echo", "x"], stdout=True)
            assert said == "x\n", said

        def by_us() -> None:
            assert sandbox.exec(["echo", "x"]).stdout == b"x\n"

        namespace_ = namespace()
        whole = f"{OURS}, a whole step"
        times: dict[str, list[float]] = {OURS: [], THEIRS: [], whole: []}
        for _ in range(COMMANDS // TURN):
            for name, work in ((OURS, by_us), (THEIRS, by_sdk), (whole, step)):
                times[name] += [milliseconds(work) for _ in range(TURN)]
                time.sleep(0.5)  # the node tidies up after an exec
    rows = []
    for name, values in times.items():
        values.sort()
        figures = (values[0], statistics.median(values), values[int(len(values) * 0.95)])
        rows.append((name, *(f"{value:.2f} ms" for value in figures)))
    ours, theirs, step_ = (statistics.median(values) for values in times.values())
    title = f"a command in a pod, {COMMANDS} times, in batches of {TURN}"
    show(
        title,
        ("by", "minimum", "median", "p95"),
        rows,
        f"the SDK takes {theirs / ours:.0f} and {theirs / step_:.0f} times as long (bar: 20)",
    )


# --- many pods ----------------------------------------------------------------------------------------------------


def start(pods: int, rounds: int) -> None:
    """Time the start of many pods, in alternating rounds."""
    times: dict[str, list[float]] = {OURS: [], THEIRS: []}
    one: list[float] = []
    for _ in range(rounds):
        for name, work in ((OURS, sandboxes), (THEIRS, raw_pods)):
            times[name].append(work(pods))
            time.sleep(SETTLE_SECONDS)
        one.append(milliseconds(lambda: open_one().close()))
    rows = [
        (name, f"{statistics.median(values):.2f} s", " ".join(f"{value:.2f}" for value in values))
        for name, values in times.items()
    ]
    ratio = statistics.median(times[OURS]) / statistics.median(times[THEIRS])
    caption = f"ratio {ratio:.2f} (bar: 1.2); opening and closing one sandbox: {min(one):.0f} ms at best"
    title = f"{pods} pods at once: every first command done (swe_gym), every pod running (SDK)"
    show(title, ("by", "median", "rounds"), rows, caption)


def sandboxes(pods: int) -> float:
    """Return the seconds until every sandbox has run its first command."""
    started = time.perf_counter()

    def one(_: int) -> KubernetesSandbox:
        sandbox = open_one()
        assert sandbox.exec(["echo", "x"]).stdout == b"x\n"
        return sandbox

    with ThreadPoolExecutor(pods) as threads:
        opened = list(threads.map(one, range(pods)))
        took = time.perf_counter() - started
        list(threads.map(lambda sandbox: sandbox.close(), opened))
    return took


def raw_pods(pods: int) -> float:
    """Return the seconds until the same pods run, created by the SDK and never attached to."""
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
        for number in range(pods)
    ]
    started = time.perf_counter()
    with ThreadPoolExecutor(pods) as threads:
        list(threads.map(lambda body: core.create_namespaced_pod(where, body), bodies))
    running: set[str] = set()
    watching = watch.Watch()
    selector = f"swe-gym/run={run}"
    for event in watching.stream(core.list_namespaced_pod, where, label_selector=selector, timeout_seconds=300):
        if event["object"].status.phase == "Running":
            running.add(event["object"].metadata.name)
        if len(running) == pods:
            break
    took = time.perf_counter() - started
    watching.stop()
    api = Api(kubeconfig=None, context=None)
    for pod in list_pods(api, where, {"swe-gym/run": run}):
        delete_pod(api, where, pod["metadata"]["name"], uid=pod["metadata"]["uid"], timeout=30.0)
    return took


# --- warm pool ----------------------------------------------------------------------------------------------------


def pool(pods: int) -> None:
    """Take warm sandboxes and run a command in each."""
    spec, times = SandboxSpec(options=options(), start_timeout=300.0), []
    with WarmPool("kubernetes", ready=pods) as warm, contextlib.ExitStack() as stack:
        warm.want(spec, pods)
        time.sleep(2 * SETTLE_SECONDS)
        for _ in range(pods):
            started = time.perf_counter()
            sandbox = warm.take(spec)
            assert sandbox.exec(["echo", "x"]).stdout == b"x\n"
            times.append((time.perf_counter() - started) * 1000)
            stack.callback(sandbox.close)
    row = (str(pods), f"{statistics.median(times):.1f} ms", f"{max(times):.1f} ms", "50 ms")
    show("warm pool to first command", ("pods", "median", "maximum", "bar"), [row])


# --- 64 threads ---------------------------------------------------------------------------------------------------


def stress(seconds: float) -> None:
    """Create, execute and list from many threads, and count every error."""
    end = time.monotonic() + seconds
    counts, errors, lock = {"sandboxes": 0, "commands": 0, "lists": 0}, Counter[str](), threading.Lock()
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
            except Exception as error:  # noqa: BLE001  every error counts
                with lock:
                    errors[repr(error)[:300]] += 1

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(play, range(THREADS)))
    left = len(list(list_pods(api, where, {manifest.MANAGED_BY: manifest.MANAGER})))
    row = [str(number) for number in (*counts.values(), errors.total(), left)]
    show(f"{THREADS} threads, {seconds:g} s", (*counts, "errors", "pods left"), [row])
    if errors:
        show("errors", ("error", "times"), [(error, str(number)) for error, number in errors.most_common()])


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


def kill(times: int) -> None:
    """Kill clients that use four sandboxes each; time what keeps running, and count what a sweep leaves."""
    api = Api(kubeconfig=None, context=None)
    where = f"swe-gym-kill-{uuid.uuid4().hex[:8]}"
    api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": where}})
    try:
        for _ in range(times):
            process = subprocess.Popen(
                [sys.executable, "-c", CLIENT, os.path.dirname(__file__), where], stderr=subprocess.DEVNULL
            )
            time.sleep(random.uniform(0.5, 5.0))
            process.kill()
            process.wait()
        killed = time.monotonic()
        wait_until(lambda: not [pod for pod in list_pods(api, where, {}) if pod["status"]["phase"] == "Running"])
        stopped = time.monotonic() - killed
        ended = len(list(list_pods(api, where, {})))
        pending = sum(pod["status"]["phase"] == "Pending" for pod in list_pods(api, where, {}))
        time.sleep(max(0.0, killed + 5.0 - time.monotonic()))
        sweep(KubernetesOptions(namespace=where), older_than=1.0)
        left = len(list(list_pods(api, where, {})))
        columns = ("clients killed", "running for", "ended pods left", "never started", "left after a sweep")
        row = (str(times), f"{stopped:.1f} s", str(ended), str(pending), str(left))
        show("pods after their clients were killed", columns, [row])
    finally:
        api.request("DELETE", f"/api/v1/namespaces/{where}")


# --- many cycles under faults ---------------------------------------------------------------------------------------


FAULTS = [("POST", "*/pods", 0.1), ("GET", "*watch=*", 0.01), ("GET", "*/attach", 0.1), ("DELETE", "*/pods/*", 0.1)]
"""Method, path, share of the cycles that fail."""


def cycles(times: int) -> None:
    """Open and close sandboxes on a server that fails one request in ten. Nothing may be left or grow."""
    chance = random.Random(7)
    outcomes = Counter[str]()
    sizes: list[tuple[str, ...]] = []
    calls = 0
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder, KubernetesServer() as server:
        given = {"kubeconfig": server.kubeconfig(Path(folder)), "backoff": (0.02, 0.1), "create_rate": 1000.0}

        def one(_: int) -> None:
            nonlocal calls
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
                outcomes[outcome] += 1
                if outcomes.total() % (times // PARTS) == 0:
                    sizes.append((str(outcomes.total()), *process_size()))
                    calls += len(server.requests)
                    server.requests.clear()
                    server.compact()  # the server's history would grow; this also adds a fault

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(one, range(times)))
        wait_until(lambda: not server.pods)
        caption = (
            f"client and server in one process; {calls / times:.1f} API calls a sandbox, faults included; "
            f"pods left: {len(server.pods)}"
        )
        show(f"{times} sandboxes", ("cycles", "descriptors", "threads", "memory"), sizes, caption)
        show("outcomes", ("outcome", "sandboxes"), [(name, str(count)) for name, count in outcomes.most_common()])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
