"""Measure vector environments: utilization of slots, cost of live sandboxes, lost results, reset times.

python benchmarks/vector.py busy     # 64 slots, with the latencies of bash scaled down by 40
python benchmarks/vector.py live     # 64 and 512 local sandboxes in one process
python benchmarks/vector.py tickets  # 100,000 sends with kills, timeouts and closes
python benchmarks/vector.py warm     # reset times with and without a warm pool
"""

import heapq
import os
import random
import select
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import typer
from common import show
from gymnasium.vector import AsyncVectorEnv

import swe_gym  # noqa: F401  registers the ids
from swe_gym.guests.protocol import encode
from swe_gym.vector import ResultsNotReady, SweVectorEnv

SLOTS = 64
SCALE = 40
LATENCIES = (0.2, 5.0, 90.0)
SHARES = (0.90, 0.08, 0.02)
TRUE = '{"name": "bash", "arguments": {"command": "true"}}'
SUBMIT = '{"name": "submit", "arguments": {}}'

app = typer.Typer(add_completion=False)


class Sleeper(gymnasium.Env[Any, Any]):
    """An environment that sleeps as long as commands run, sums that time, and never ends."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": []}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002  Gymnasium's signature
        """Reset the sum."""
        super().reset(seed=seed)
        self.worked = 0.0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002  Gymnasium's signature
        """Sleep as long as a command runs."""
        seconds = self.np_random.choice(LATENCIES, p=SHARES) / SCALE
        time.sleep(seconds)
        self.worked += seconds
        return np.array([self.worked]), 0.0, False, False, {}


@app.command()
def busy(seconds: float = 15.0) -> None:
    """Measure the share of time that slots are busy, and simulate it without overhead (upper bound)."""
    rows = []
    actions = np.zeros(SLOTS, dtype=np.int64)
    with SweVectorEnv([Sleeper] * SLOTS) as envs:
        rows.append(("SweVectorEnv.step", *lockstep(envs, actions, seconds), at_best(SLOTS)))
    stock = AsyncVectorEnv([Sleeper] * SLOTS, context="fork")
    rows.append(("AsyncVectorEnv.step", *lockstep(stock, actions, seconds), at_best(SLOTS)))
    stock.close()
    for ready, timeout in ((32, None), (16, None), (8, None), (16, 0.5), (16, 0.25)):
        with SweVectorEnv([Sleeper] * SLOTS) as envs:
            name = f"recv({ready})" if timeout is None else f"recv({ready}, timeout={timeout})"
            rows.append((name, *out_of_order(envs, actions, ready, timeout, seconds), at_best(ready, timeout)))
    columns = ("method", "steps", "steps/s", "slots busy", "upper bound")
    show(f"{SLOTS} slots, {seconds:g} s each", columns, rows)


def at_best(ready: int, timeout: float | None = None, steps: int = 50_000) -> str:
    """Simulate the share of busy time if only commands took time."""
    chance = random.Random(0)
    ends = [(latency, latency) for latency in chance.choices(LATENCIES, SHARES, k=SLOTS)]
    heapq.heapify(ends)
    now = worked = done = 0.0
    while done < steps:
        full = heapq.nsmallest(ready, ends)[-1][0]
        now = max(now, ends[0][0], full if timeout is None else min(full, now + timeout))
        while ends and ends[0][0] <= now:
            worked += heapq.heappop(ends)[1]
            done += 1
        for latency in chance.choices(LATENCIES, SHARES, k=SLOTS - len(ends)):
            heapq.heappush(ends, (now + latency, latency))
    return f"{100 * worked / (now * SLOTS):.1f} %"


def lockstep(envs: Any, actions: Any, seconds: float) -> tuple[str, str, str]:
    """Step all slots together until the time is over."""
    envs.reset(seed=0)
    started, steps = time.monotonic(), 0
    while time.monotonic() < started + seconds:
        worked = envs.step(actions)[0].sum()
        steps += len(actions)
    return row(steps, worked, time.monotonic() - started)


def out_of_order(
    envs: SweVectorEnv, actions: Any, ready: int, timeout: float | None, seconds: float
) -> tuple[str, str, str]:
    """Send to every free slot until the time is over. Unfinished commands count up to that moment."""
    envs.reset(seed=0)
    worked, steps = np.zeros(SLOTS), 0
    started = time.monotonic()
    sent = np.full(SLOTS, started)
    envs.send(actions)
    while (now := time.monotonic()) < started + seconds:
        try:
            observations, *_, infos = envs.recv(ready, timeout=timeout and timeout / SCALE)
        except ResultsNotReady:
            continue
        slots = infos["env_id"]
        worked[slots] = observations[:, 0]
        steps += len(slots)
        sent[slots] = time.monotonic()
        envs.send(actions[slots], slots)
    running = [ticket.slot for ticket in envs._tickets.waiting()]
    return row(steps, worked.sum() + (now - sent[running]).clip(0).sum(), now - started)


def row(steps: int, worked: float, wall: float) -> tuple[str, str, str]:
    """Return the cells of a row."""
    return f"{steps:,}", f"{steps / wall:,.0f}", f"{100 * worked / (wall * SLOTS):.1f} %"


@app.command()
def live(counts: str = "64,512,64,512", steps: int = 8_000) -> None:
    """Measure memory and speed of local sandboxes. Bars: 1 MB each; 512 sandboxes reach 90 % of the steps/s of 64."""
    columns = (
        "sandboxes",
        "make",
        "reset all",
        "memory each",
        "steps/s",
        "CPU per step",
        "upper bound",
        "close",
        "load",
    )
    rows = [
        (str(count), *live_row(count, max(1, steps // count)), f"{os.getloadavg()[0]:.0f}")
        for count in map(int, counts.split(","))
    ]
    show("bash true; memory and CPU time of the client", columns, rows)


def live_row(count: int, rounds: int) -> tuple[str, ...]:
    """Make, reset, step and close `count` sandboxes."""
    before = memory()
    envs, making = timed(lambda: gymnasium.make_vec("SWE/Toy-v0", num_envs=count, max_turns=10**9, time_limit=3600.0))
    _, resetting = timed(lambda: envs.reset(seed=0))
    actions = (TRUE,) * count
    envs.step(actions)
    each = (memory() - before) / count
    cpu = time.process_time()
    _, stepping = timed(lambda: [envs.step(actions) for _ in range(rounds)])
    cpu = time.process_time() - cpu
    _, at_best = timed(lambda: run_true(envs, rounds))
    _, closing = timed(lambda: envs.close(60.0))
    return (
        f"{making:.2f} s",
        f"{resetting:.1f} s",
        f"{each:.2f} MB",
        f"{rounds * count / stepping:,.0f}",
        f"{1000 * cpu / (rounds * count):.2f} ms",
        f"{rounds * count / at_best:,.0f}",
        f"{closing:.1f} s",
    )


def run_true(envs: SweVectorEnv, rounds: int) -> None:
    """Run the same commands from one thread that only writes and reads bytes, as an upper bound."""
    boxes = [env.unwrapped.sandbox for env in envs.envs]
    streams = {box._channel._stream._socket.fileno(): box._channel._stream._socket for box in boxes}
    fields = {"argv": ["bash", "-c", "true"], "timeout": 60.0, "grace": 1.0, "max_output": 1 << 16, "merge": True}
    requests = [
        encode({"id": 0, "op": "exec", "cwd": box.workdir, "env": box.environment(), **fields}) for box in boxes
    ]
    poll = select.poll()
    for stream in streams:
        poll.register(stream, select.POLLIN)
    for _ in range(rounds):
        for stream, request in zip(streams.values(), requests, strict=True):
            stream.sendall(request)
        replies = 0
        while replies < len(streams):
            for ready, _ in poll.poll(60_000.0):
                assert b'"exit_code":0' in streams[ready].recv(1 << 16)
                replies += 1


def memory() -> float:
    """Return the resident memory of this process in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its seconds."""
    started = time.monotonic()
    result = work()
    return result, time.monotonic() - started


@app.command()
def tickets(sends: int = 100_000, slots: int = 16, backend: str = "fake", seed: int = 0) -> None:
    """Send, kill sandboxes, time out and close at random. Bar: every ticket is answered exactly once."""
    chance = random.Random(seed)
    counts = {"sent": 0, "received": 0, "infra_failed": 0, "timeouts": 0, "kills": 0, "closes": 0}
    started = time.monotonic()
    while counts["sent"] < sends:
        with gymnasium.make_vec("SWE/Toy-v0", num_envs=slots, backend=backend, max_turns=200) as envs:
            envs.reset(seed=seed + counts["closes"])
            sent, received = disturbed(envs, min(sends - counts["sent"], chance.randint(500, 5000)), chance, counts)
        assert sorted(received) == sent, "a ticket was lost or answered twice"
        counts["sent"] += len(sent)
        counts["received"] += len(received)
        counts["closes"] += 1
    row = (*(f"{count:,}" for count in counts.values()), f"{time.monotonic() - started:.0f}")
    show(f"{slots} slots, backend {backend}", (*counts, "seconds"), [row])


def disturbed(
    envs: SweVectorEnv, sends: int, chance: random.Random, counts: dict[str, int]
) -> tuple[list[int], list[int]]:
    """Use a vector environment until it is closed. Return the tickets sent and received."""
    sent: list[int] = []
    received: list[int] = []
    free = set(range(envs.num_envs))

    def receive(least: int, timeout: float | None) -> None:
        try:
            infos = envs.recv(least, timeout=timeout)[4]
        except ResultsNotReady:
            counts["timeouts"] += 1
            return
        received.extend(infos["ticket"].tolist())
        free.update(infos["env_id"].tolist())
        counts["infra_failed"] += int((infos["outcome"] == "infra_failed").sum())

    while len(sent) < sends:
        chosen = chance.sample(sorted(free), min(len(free), chance.randint(1, envs.num_envs)))
        if chosen:
            sent += envs.send(chance.choices([TRUE, "no call", SUBMIT], weights=[60, 38, 2], k=len(chosen)), chosen)
            free.difference_update(chosen)
        if chance.random() < 0.02:
            kill(envs, chance.randrange(envs.num_envs))
            counts["kills"] += 1
        if envs.in_flight:
            receive(chance.randint(1, 4), chance.choice([0.0, 0.001, None]))
    threading.Thread(target=envs.close).start()
    while envs.in_flight:
        receive(1, None)
    return sent, received


def kill(envs: SweVectorEnv, slot: int) -> None:
    """Close the sandbox of a slot while it works."""
    sandbox = envs.envs[slot].unwrapped.sandbox
    threading.Thread(target=sandbox.close).start()


@app.command()
def warm(backend: str = "local", slots: int = 8, episodes: int = 12, think: float = 0.5) -> None:
    """Measure the step in which slots reset. Bar: a median below 50 ms with a warm pool."""
    rows = []
    for count in (0, slots):
        with gymnasium.make_vec("SWE/Toy-v0", num_envs=slots, backend=backend, warm=count) as envs:
            envs.reset(seed=0)
            times = []
            for _ in range(episodes):
                time.sleep(think)
                envs.step((SUBMIT,) * slots)
                time.sleep(think)
                times.append(timed(lambda: envs.step((TRUE,) * slots))[1] * 1000)
        rows.append((str(count), f"{statistics.median(times):.0f} ms", f"{max(times):.0f} ms"))
    title = f"reset of {slots} slots, backend {backend}, {think:g} s between steps"
    show(title, ("warm sandboxes", "median", "maximum"), rows)


if __name__ == "__main__":
    app()
