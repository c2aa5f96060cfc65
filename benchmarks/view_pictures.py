"""Make the pictures of `swe-gym view` for the documentation.

    python benchmarks/view_pictures.py [docs/images]

Runs a scripted policy on the bundled tasks, and takes pictures of the pages in Chromium. Needs Playwright.
"""

import itertools
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
from playwright.sync_api import Page, sync_playwright

from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.policies.base import render, shell_call, submit_call, swe_env
from swe_gym.viewer.server import ViewServer

NUMBERS = itertools.count()
TASKS = ("rota-month-end", "calcline-power-precedence", "chronicle-snapshot-drift", "larder-overwrite-evicts")


RUNS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("baseline", "baseline", {}),
    ("scripted", "view_pictures:Scripted", {}),
    ("scripted-3-turns", "view_pictures:Scripted", {"max_turns": 3}),
    ("gold", "gold", {}),
)
"""Name, policy and environment of each run."""


class Scripted:
    """A policy that reads the file in question, applies the gold patch in most episodes, and tests."""

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self._env = swe_env(env)

    def reset(self, info: dict[str, Any]) -> None:  # noqa: ARG002  the task is the environment's
        """Write the script for the task."""
        self._calls = self._script()

    def act(self, observation: str) -> str:  # noqa: ARG002  a script does not look
        """Return the next call."""
        thought, command = next(self._calls, ("The tests pass, so I submit.", ""))
        call = shell_call(self._env, command) if command else submit_call(self._env)
        return f"{thought}\n\n{render(self._env, call)}"

    def _script(self) -> Iterator[tuple[str, str]]:
        patch = self._env.task.oracle.gold_patch
        path = re.findall(r"^\+\+\+ b/(.*)", patch, re.MULTILINE)[0]
        yield "I look at the files first.", "git ls-files | head -40"
        yield f"The issue is about `{path}`. I read it as a whole.", f"cat {path}"
        yield "Do other modules use it?", f"grep -rn 'import.*{Path(path).stem}' --include=*.py ."
        if next(NUMBERS) % 5 < 3:
            yield (
                "The rule is missing here. I add it where the values are compared, and keep the public names.",
                f"GIT_DIR=/nonexistent git apply <<'END'\n{patch.rstrip()}\nEND",
            )
            yield "I test the change.", "python -m pytest -q 2>&1 | tail -20"


def take(page: Page, url: str, folder: Path) -> None:
    """Take the pictures."""
    page.goto(url)
    page.wait_for_selector("tr[data-id]")
    for row in (0, 2):
        page.locator("tr[data-id] input").nth(row).check()
    page.mouse.move(700, 5)
    page.screenshot(path=folder / "view-table.png")
    resolved = page.evaluate(
        "addressOf(run.rows.find((row) => row.state === 'resolved' && row.task === 'rota-month-end'))"
    )
    page.evaluate("(address) => { location.hash = address; }", resolved)
    page.wait_for_selector(".verdict")
    page.screenshot(path=folder / "view-episode.png")
    page.emulate_media(color_scheme="dark")
    page.evaluate("opened.list.show(4)")
    page.wait_for_selector("[data-turn='4'] .diff")
    page.wait_for_timeout(500)
    page.screenshot(path=folder / "view-turn.png")


def take_runs(page: Page, url: str, folder: Path) -> None:
    """Take the picture of the list of runs."""
    page.goto(url)
    page.wait_for_selector(".listing tbody tr")
    for row in (0, 2):
        page.locator(".listing input").nth(row).check()
    page.mouse.move(700, 5)
    page.screenshot(path=folder / "view-runs.png")


def main() -> None:
    """Run the episodes, and take the pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    runs = Path(tempfile.mkdtemp()) / "runs"
    for name, policy, env in RUNS:
        plan = Plan(source="toy", tasks=TASKS, attempts=4, policy=policy, env=env)
        rollout(plan, runs / name, RolloutOptions(workers=2))
    try:
        with ViewServer(runs / "scripted") as server, ViewServer(runs) as many, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            take(browser.new_page(viewport={"width": 1280, "height": 760}), server.url, folder)
            take_runs(browser.new_page(viewport={"width": 1280, "height": 400}), many.url, folder)
            browser.close()
    finally:
        shutil.rmtree(runs.parent)


if __name__ == "__main__":
    main()
