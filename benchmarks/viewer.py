"""Measure the server and the page of `swe-gym view`.

    python benchmarks/viewer.py [10000 [500]]

Writes a run folder with that many episodes (20 turns of 2 kB each) and one long episode with that many turns of 1 MB.
Measures wall-clock and CPU time of the server: the first request, a request without and with a new episode, an episode,
the plots, and the memory of the index. If Chromium and Playwright are installed, measures the page: the first rows, a
search, a sort, the last row, an episode; and of the long episode the time until its first turn is shown, a jump to its
last turn, a search, and the memory of the page at first and after every turn was seen.
"""

import json
import resource
import shutil
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import LiveTable

from swe_gym.trajectories.run_folder import INDEX, TRAJECTORIES, RunFolder, RunInfo, index_line
from swe_gym.trajectories.trajectory import Trajectory, Turn, Usage
from swe_gym.viewer.index import RunIndex
from swe_gym.viewer.server import ViewServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

TURN = Turn(
    action="x" * 200,
    thought="I look at the next file.",
    tool="bash",
    arguments={"command": "sed -n 1,80p module.py"},
    observation="    return value  # a line of the file\n" * 50,
    seconds=0.3,
    policy_seconds=2.0,
    usage=Usage(prompt_tokens=4000, completion_tokens=80, calls=1),
)
EPISODE = Trajectory(
    task_id="task",
    config_hash="benchmark",
    observation="The issue.\n" * 20,
    turns=(TURN,) * 20,
    outcome="submitted",
    reason="submit",
    reward_valid=True,
    resolved=False,
    reward=0.0,
    usage=Usage(prompt_tokens=80_000, completion_tokens=1600, calls=20),
    seconds={"start": 2.0, "policy": 40.0, "tools": 6.0, "grading": 9.0, "total": 58.0},
    started="2026-01-01T00:00:00.000+00:00",
)


def run_info(episodes: int) -> RunInfo:
    """Return a run whose tasks are those of the short episodes, of the long one and of one more."""
    tasks = tuple(f"task-{task:06}" for task in range(episodes // 4 + 1))
    return RunInfo(experiment="benchmark", config={}, config_hash="benchmark", tasks=tasks, attempts=4)


def episode(number: int) -> Trajectory:
    """Return one of four attempts at a task, over 40 repositories."""
    task, attempt = divmod(number, 4)
    return EPISODE.model_copy(
        update={
            "task_id": f"task-{task:06}",
            "repo": f"owner/repository-{task % 40}",
            "attempt": attempt,
            "resolved": number % 3 == 0,
            "reward": float(number % 3 == 0),
        }
    )


def write(folder: Path, episodes: int, long_turns: int) -> None:
    """Write a run folder directly. The long episode is the last one."""
    RunFolder(folder, run_info(episodes + 1)).close()
    short = json.dumps(TURN.model_dump())
    long = json.dumps(TURN.model_copy(update={"observation": TURN.observation * 500}).model_dump())
    offset = 0
    with (folder / TRAJECTORIES).open("w") as lines, (folder / INDEX).open("w") as entries:
        for number in range(episodes + 1):
            record = episode(number)
            header, *_, result = record.to_lines()
            turns = [short] * len(EPISODE.turns) if number < episodes else [long] * long_turns
            size = sum(lines.write(line + "\n") for line in (header, *turns, result))
            entry = index_line(record, offset, size).model_copy(update={"turns": len(turns)})
            entries.write(entry.model_dump_json() + "\n")
            offset += size
    print(f"{episodes:,} episodes and one of {long_turns:,} turns of 1 MB: {offset / 1e6:,.0f} MB of trajectories\n")


def timed(
    table: LiveTable,
    what: str,
    call: Callable[[], Any],
    times: int = 1,
    cpu: Callable[[], float] = time.process_time,
) -> Any:
    """Print the medians of wall-clock and CPU time of a call, and return its last result.

    Args:
        table: The table to print to.
        what: What the call does.
        call: The call.
        times: How often it is called.
        cpu: Returns the CPU seconds so far, of the server (this process) or of the page.
    """
    taken, used = [], []
    for _ in range(times):
        start, busy = time.perf_counter(), cpu()
        result = call()
        taken.append(time.perf_counter() - start)
        used.append(cpu() - busy)
    median = times // 2
    table.add(f"{1000 * sorted(taken)[median]:,.1f} ms", f"{1000 * sorted(used)[median]:,.1f} ms", what)
    return result


def cpu_of(page: "Page") -> Callable[[], float]:
    """Return a function that returns the CPU seconds of the page's process, JavaScript and layout included."""
    chromium = page.context.new_cdp_session(page)
    chromium.send("Performance.enable")

    def seconds() -> float:
        metrics = {one["name"]: one["value"] for one in chromium.send("Performance.getMetrics")["metrics"]}
        return float(metrics["ProcessTime"])

    return seconds


def measure_server(table: LiveTable, folder: Path, server: ViewServer, episodes: int) -> None:
    """Send the requests of the page."""

    def ask(what: str) -> Any:
        with urllib.request.urlopen(server.url + "api/" + what, timeout=60) as reply:
            return json.load(reply)

    def first_request() -> Any:
        news = ask("rows")
        while news["behind"]:
            news = ask("rows")
        return news

    news = timed(table, "first request", first_request)
    known = f"rows?generation={news['generation']}&known={{}}"
    timed(table, "request, nothing new", lambda: ask(known.format(episodes + 1)), 21)
    with RunFolder(folder, run_info(episodes + 1)) as run:
        run.add(episode(episodes + 1))
    timed(table, "request, one new episode", lambda: ask(known.format(episodes + 1)))
    timed(table, "an episode", lambda: ask(f"episode?id={news['rows'][episodes // 2][0]}"), 21)
    plots = timed(table, "the plots", lambda: ask("stats"), 5)
    assert plots["judged"] == episodes + 2, f"the plots count {plots['judged']} of {episodes + 2} episodes"


def measure_memory(table: LiveTable, folder: Path) -> None:
    """Measure the memory of the index."""
    tracemalloc.start()
    index = RunIndex(folder)
    index.read_all()
    table.add(f"{tracemalloc.get_traced_memory()[0] / 1e6:,.1f} MB", "", "memory of the index")
    tracemalloc.stop()


def measure_page(table: LiveTable, url: str, long: str) -> None:
    """Measure the page in a browser.

    Args:
        table: The table to print to.
        url: Address of the page.
        long: Address of the long episode below it.

    Raises:
        ImportError: Playwright is not installed.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})

        def shown(script: str) -> None:
            page.evaluate(f"{script}; new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

        def opened() -> None:
            page.goto(url)
            page.wait_for_selector("tr[data-id]")

        def read() -> None:
            page.locator("tr[data-id]").first.click()
            page.wait_for_selector("article.turn .seen")

        cpu = cpu_of(page)
        timed(table, "page: first rows", opened, cpu=cpu)
        timed(table, "page: search", lambda: shown("table.words = 'repository-7 resolved'; changeView()"), 5, cpu)
        timed(table, "page: sort", lambda: shown("table.words = ''; table.sort = 'task'; changeView()"), 5, cpu)
        timed(table, "page: last row", lambda: shown("table.scroll.scrollTop = 1e9"), cpu=cpu)
        timed(table, "page: an episode", read, cpu=cpu)
        measure_long_episode(table, browser.new_page(viewport={"width": 1280, "height": 800}), url + long)
        browser.close()


def measure_long_episode(table: LiveTable, page: "Page", url: str) -> None:
    """Open an episode, jump to its end, search it, and scroll through all of it."""
    chromium = page.context.new_cdp_session(page)
    chromium.send("Performance.enable")

    def memory(when: str) -> None:
        chromium.send("HeapProfiler.collectGarbage")
        metrics = {one["name"]: one["value"] for one in chromium.send("Performance.getMetrics")["metrics"]}
        loaded = page.locator(".body:not(:empty)").count()
        table.add(
            f"{metrics['JSHeapUsedSize'] / 1e6:,.1f} MB", "", f"long episode: page's memory {when}, {loaded} turns"
        )

    def opened() -> None:
        page.goto(url)
        page.wait_for_selector("article.turn .seen", timeout=120_000)

    def searched() -> None:
        page.fill("#find", "nothing like it")
        page.press("#find", "Enter")
        page.wait_for_selector("#find + p:has-text('0 matches')", timeout=120_000)

    cpu = cpu_of(page)
    timed(table, "long episode: first turn", opened, cpu=cpu)
    memory("at first")
    last = page.locator("article.turn").count()
    timed(table, "long episode: last turn", lambda: page.evaluate(f"opened.list.show({last})"), cpu=cpu)
    timed(table, "long episode: search", searched, cpu=cpu)
    page.evaluate(f"(async () => {{ for (let n = 1; n <= {last}; n++) await opened.list.show(n); }})()")
    memory("after all turns")


def main() -> None:
    """Measure the server, the index and the page."""
    episodes, long_turns = (int(text) for text in [*sys.argv[1:], *("10000", "500")[len(sys.argv) - 1 :]])
    folder = Path(tempfile.mkdtemp(prefix="swe-gym-viewer-"))
    try:
        write(folder, episodes, long_turns)
        table = LiveTable("median", "CPU", "what")
        with ViewServer(folder) as server:
            measure_server(table, folder, server, episodes)
            measure_memory(table, folder)
            try:
                measure_page(table, server.url, f"#/{folder.name}/task-{episodes // 4:06}/{episodes % 4}")
            except ImportError:
                print("The page was not measured: pip install playwright")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        table.add(f"{peak:,.0f} MB", "", "peak memory of this process")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
