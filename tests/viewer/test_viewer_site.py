"""The report of several runs: a folder that a browser opens from disk or from any web server."""

import base64
import contextlib
import functools
import gzip
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs_on_disk import SECRET_TEST, failed, run_info, trajectory, write_run
from viewer_parts import NASTY, Pages, until, until_text

from swe_gym.errors import UsageError
from swe_gym.trajectories.run_folder import RunFolder
from swe_gym.viewer.report import write_site
from swe_gym.viewer.runs import Runs

TASKS = ("t-0", "t-1", "t-2")


def model(name: str, **env: object) -> dict[str, Any]:
    return {"policy": "llm", "policy_options": {"model": name}, "env": env}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write three runs, one of them with a nasty name, whose last task failed, and one run of another task."""
    root = tmp_path / "runs"
    for number, (name, resolved) in enumerate((("small", 1), ("large #1%2F", 2), (NASTY.replace("/", "\\"), 3))):
        made = [trajectory(task, resolved=place < resolved) for place, task in enumerate(TASKS)]
        more = [failed("t-2")] if number == 1 else []
        records = [*(made[:2] if more else made), *more]
        created = f"2026-11-0{number + 1}T10:00:00+00:00"
        write_run(
            root / name, *records, config=model(name, max_turns=30 + number), tasks=TASKS, attempts=1, created=created
        )
    write_run(root / "other", trajectory("u-9"), config=model("other", max_turns=30), tasks=("u-9",), attempts=1)
    return root


@pytest.fixture
def site(runs: Path, tmp_path: Path) -> Path:
    write_site([runs], tmp_path / "site")
    return tmp_path / "site"


def content(path: Path) -> Any:
    """Read a data file."""
    (text,) = re.findall(r'^arrived\("([A-Za-z0-9+/=]*)"\);\n$', path.read_text())
    return json.loads(gzip.decompress(base64.b64decode(text)))


def everything(site: Path) -> str:
    data = [json.dumps(content(path)) for path in site.rglob("*.js")]
    return (site / "index.html").read_text() + "".join(data)


def test_a_site_has_no_secret_and_no_place(runs: Path, site: Path, tmp_path: Path) -> None:
    assert SECRET_TEST not in everything(site)
    assert str(tmp_path) not in everything(site)
    written = write_site([runs], site, with_verdicts=True, most_episodes=1)
    assert written[:3] == (4, 10, 4)
    assert SECRET_TEST in everything(site)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "site"]


def test_a_site_has_the_finished_episodes_of_a_running_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", run_info(tasks=("a-1", "b-2"), attempts=1)) as folder:
        folder.progress({"running": 1, "total": 2, "done": 1, "given_up": 0})
        folder.add(trajectory())
        with contextlib.closing(folder.start(trajectory("b-2"))):
            write_site([tmp_path / "run"], tmp_path / "site")
    (text,) = re.findall(r'id="runs">(.*?)</script>', (tmp_path / "site" / "index.html").read_text())
    (run,) = json.loads(text)["runs"]
    assert (run["active"], run["state"], run["running"], run["graded"]) == (False, "interrupted", 0, 1)
    assert content(tmp_path / "site" / "data" / "0" / "news.js")["live"] == []


def test_a_failed_site_keeps_the_old_one(runs: Path, site: Path, tmp_path: Path) -> None:
    path = runs / "small" / "trajectories.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))  # the index still has it
    before = everything(site)
    with pytest.raises(UsageError, match="not a trajectory"):
        write_site([runs], site)
    assert everything(site) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "site"]


@pytest.fixture(params=["disk", "server"])
def url(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """The address of the page on disk, and below a folder of a web server."""
    if request.param == "disk":
        yield f"{site.as_uri()}/index.html"
        return

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    handler = functools.partial(Quiet, directory=str(site.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/site/"
        server.shutdown()


def test_a_site_works_without_the_viewer(pages: Pages, url: str) -> None:
    page = pages(url)
    assert page.locator("td[data-key=name] a").all_inner_texts()[-1:] == ["small"]
    assert page.locator("#counts").inner_text() == "4 runs · 9 graded attempts"
    page.get_by_role("link", name="large #1%2F").click()
    page.wait_for_selector("tr[data-id]")
    assert page.locator("tr[data-id]").count() == 3
    page.locator("tr[data-id] a").first.click()
    until_text(page, ".turn", "thought 1")
    assert "does not include the verdict" in page.locator(".episode").inner_text()
    page.keyboard.press("p")
    page.wait_for_selector(".plots figure")
    page.goto(f"{url}#/compare/small,large%20%231%252F/t-1/0")
    page.wait_for_selector(".cell.head .of")
    assert page.locator(".cell.head .of").all_inner_texts() == ["small", "large #1%2F"]
    assert page.locator(".cell.head .badge").all_inner_texts() == ["✗ not resolved", "✓ resolved"]
    assert page.evaluate("window.owned") is None
    assert all(one.startswith(url.removesuffix("index.html")) for one in pages.asked if not one.startswith("data:"))
    assert pages.complaints == []


def test_comparisons_are_those_of_the_viewer(pages: Pages, runs: Path, site: Path) -> None:
    page = pages(f"{site.as_uri()}/index.html")
    nasty = NASTY.replace("/", "\\")
    for names in (["small", nasty], [nasty, "small", "large #1%2F"], ["other", "small"], ["small", "large #1%2F"]):
        here = page.evaluate("(names) => source.compareRuns(names)", names)
        there = json.loads(json.dumps(Runs(runs).compare(names)))
        differs = [warning for warning in there["warnings"] if " differs: " in warning]
        assert {*there["warnings"]} - {*differs} == {one for one in here["warnings"] if " differs: " not in one}
        for key in ("pairs", "tasks", "settings", "attempts"):
            assert here[key] == there[key], key
    page.evaluate("location.hash = '#/compare/small,nothing'")
    until_text(page, ".problem", "Choose two or more runs")


def test_an_episode_that_was_left_out_is_named(pages: Pages, runs: Path, tmp_path: Path) -> None:
    write_site([runs / "small"], tmp_path / "one", most_episodes=1)
    page = pages(f"{(tmp_path / 'one').as_uri()}/index.html#/small/t-1/0", shows=".problem")
    assert "--most-episodes" in page.locator(".problem").inner_text()
    page.evaluate("location.hash = '#/small/t-0/0'")
    until(page, "document.querySelector('.episode')")
