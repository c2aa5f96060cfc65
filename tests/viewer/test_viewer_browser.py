"""The page in a real browser: by mouse, by keyboard, during a run, and with 10,000 rows."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs_on_disk import SECRET_TEST, failed, run_info, trajectory, turn, write_run
from viewer_parts import CONTRAST, NASTY, Pages, until, until_text

from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan
from swe_gym.trajectories.run_folder import INDEX, TRAJECTORIES, RunFolder, index_line, open_trajectories
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.viewer.report import write_report
from swe_gym.viewer.runs import NOTES
from swe_gym.viewer.server import ViewServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Write a run: four attempts at `a-1`, one resolved, a slow `b-2`, and a failed try."""
    attempts = [trajectory(attempt=attempt, resolved=attempt == 2, turns=2 + attempt) for attempt in range(4)]
    slow = trajectory("b-2", turns=30, reason="turns", outcome="agent_limit", seconds={"total": 500.0})
    with ViewServer(write_run(tmp_path / "run", *attempts, slow, failed("c-3"))) as server:
        yield server.url


def tasks(page: "Page") -> list[str]:
    return page.locator("tr[data-id] td[data-key=task]").all_inner_texts()


def test_the_table_is_shown_and_only_this_server_is_asked(pages: Pages, url: str) -> None:
    page = pages(url)
    assert sorted(tasks(page)) == ["a-1"] * 4 + ["b-2", "c-3"]
    assert page.locator("#counts").inner_text() == "5 done · 1 resolved (20 %) · 1 failed try"
    assert page.locator("#found").inner_text() == "6 episodes"
    assert page.title() == "first · swe-gym"
    assert {address.startswith((url, "data:")) for address in pages.asked} == {True}
    assert pages.complaints == []


def test_search_filter_and_sort(pages: Pages, url: str) -> None:
    page = pages(url)
    page.fill("#search", "toy/a not")
    until(page, "document.querySelectorAll('tr[data-id]').length === 3")
    assert page.locator("#found").inner_text() == "3 of 6"
    page.fill("#search", "nothing like it")
    until_text(page, "tbody", "No episode matches.")
    page.fill("#search", "")
    page.select_option("select[aria-label='State']", "failed")
    until(page, "document.querySelectorAll('tr[data-id]').length === 1")
    assert tasks(page) == ["c-3"]
    page.select_option("select[aria-label='State']", "")
    page.get_by_role("button", name="Turns").click()
    assert tasks(page)[0] == "b-2"
    assert page.locator("th[data-key=turns]").get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="Turns").click()
    assert tasks(page)[-1] == "b-2"
    page.get_by_role("button", name="Turns").click()
    assert page.locator("th[data-key=turns]").get_attribute("aria-sort") == "none"


def test_an_episode_reads_as_a_conversation(pages: Pages, url: str) -> None:
    page = pages(url)
    page.locator("tr[data-id]", has_text="✓ resolved").click()
    page.wait_for_selector(".episode")
    assert page.locator("main h2").inner_text().startswith("a-1 attempt\u00a02")
    assert page.locator("article.turn").count() == 4
    first = page.locator("article.turn").first
    assert first.locator(".thought").inner_text() == "thought 1"
    assert first.locator(".command").inner_text() == "$ echo 1"
    assert first.locator(".observation").inner_text() == "observation 1"
    assert "model 1.0 s · tools 0.5 s · 100 → 10 tokens · $0.0100" in first.inner_text()
    assert first.locator(".bar").get_attribute("aria-label") == "model 1.0 s, tools 0.5 s"
    assert page.locator(".diff .add").all_inner_texts() == ["+new = 2\n"]
    assert page.locator(".diff .del").all_inner_texts() == ["-old = 1\n"]
    assert SECRET_TEST in page.locator(".verdict").inner_text()
    assert page.locator(".attempts a.badge").all_inner_texts() == ["✗ 0", "✗ 1", "✓ 2", "✗ 3"]
    page.locator(".attempts a.badge").nth(3).click()
    until_text(page, "main h2", "attempt\u00a03")
    assert pages.complaints == []


def test_a_branch_links_to_the_turn_that_it_continues(pages: Pages, tmp_path: Path) -> None:
    branch = trajectory("b-2").model_copy(update={"parent": "first/a-1/0:2", "branch_turn": 2})
    fork = trajectory("c-3").model_copy(update={"parent": "0123456789abcdef", "branch_turn": 4})
    other = trajectory("d-4").model_copy(update={"parent": "gone/a/b/0:2", "branch_turn": 2})
    write_run(tmp_path / "runs/first", trajectory("a-1", turns=3))
    write_run(tmp_path / "runs/second", branch, fork, other)
    with ViewServer(tmp_path / "runs") as server:
        page = pages(f"{server.url}#/second/c-3/0", shows=".episode")
        assert "continues\na checkpoint after turn 4 (01234567)" in page.locator("dl.facts").inner_text()
        page = pages(f"{server.url}#/second/d-4/0", shows=".episode")
        until_text(page, "dl.facts", "a/b, attempt 0 of gone, after turn 2")
        assert not page.locator("dl.facts a").count()
        page = pages(f"{server.url}#/second/b-2/0", shows=".episode dl.facts a")
        page.locator("dl.facts a", has_text="a-1, attempt 0 of first, after turn 2").click()
        until_text(page, "main h2", "a-1")
        assert page.evaluate("location.hash") == "#/first/a-1/0/2"
    assert pages.complaints == []


LOADED = "document.querySelectorAll('.turn .body:not(:empty)').length"
"""The number of turns whose texts are in the page."""


def test_a_long_episode_holds_only_the_turns_that_are_near(pages: Pages, tmp_path: Path) -> None:
    played = [turn(number, observation=f"line of {number}\n" * 10_000 + f"END {number}") for number in range(1, 61)]
    write_run(tmp_path / "run", trajectory(turns=0).model_copy(update={"turns": tuple(played)}))
    with ViewServer(tmp_path / "run") as server:
        page = pages(f"{server.url}#/run/a-1/0/40")
        until_text(page, "[data-turn='40'] .observation", "line of 40")
        assert page.evaluate("document.activeElement.closest('article').dataset.turn") == "40"
        until(page, "document.querySelector('.outline [aria-current]')?.dataset.line === '40'")
        assert page.locator(".outline [data-line]").count() == 60
        page.evaluate("document.querySelector('[data-turn=\"40\"]').dataset.mine = 'kept'")
        page.locator(".outline [data-line='3']").click()
        until_text(page, "[data-turn='3'] .observation", "line of 3")
        assert page.locator("[data-mine=kept]").count() == 1  # the page is not drawn again
        until(page, "!document.querySelector('[data-turn=\"40\"] .seen')")
        until(page, f"{LOADED} < 12")
        page.keyboard.press("/")
        page.keyboard.type("end 5")
        page.keyboard.press("Enter")
        until_text(page, ".outline form [role=status]", "11 matches")  # 5 and 50 to 59
        page.locator(".found a", has_text="57 observation").click()
        until(page, "document.querySelector('[data-turn=\"57\"] .observation')?.textContent.includes('END 57')")
        assert page.evaluate("location.hash") == "#/run/a-1/0/57"
        page.keyboard.press("f")
        assert page.locator(".turn details[open]").count() == 0
        until(page, f"{LOADED} === 0")
        page.keyboard.press("e")
        page.evaluate("window.print = () => { window.printed = " + LOADED + "; }")
        page.get_by_role("button", name="Print").click()
        until(page, "window.printed === 60")
    assert pages.complaints == []


def test_subagents_and_side_conversations_are_branches(pages: Pages, tmp_path: Path) -> None:
    played = [turn(number).model_copy(update={"info": {"call": number}}) for number in range(7)]
    side = {"call": 2, "segment": "new_conversation"}
    played[2] = played[2].model_copy(
        update={"parent": -1, "tool": "", "arguments": {}, "action": "A title", "info": side}
    )
    played[3] = played[3].model_copy(update={"parent": 1, "info": {"call": 3, "segment": "subagent"}})
    played[5] = played[5].model_copy(update={"parent": 1})
    write_run(tmp_path / "run", trajectory(turns=0).model_copy(update={"turns": tuple(played)}))
    with ViewServer(tmp_path / "run") as server:
        page = pages(f"{server.url}#/run/a-1/0")
        until_text(page, "[data-turn='3'] .call", "A title")
        assert page.locator("[data-turn='3'] .what").inner_text() == "answer"
        depths = "[...document.querySelectorAll('.turn')].map((one) => one.style.getPropertyValue('--depth'))"
        assert page.evaluate(depths) == ["0", "0", "1", "1", "1", "0", "0"]
        marks = page.locator(".turn .mark:not(.warn, .bad, .good)").all_inner_texts()
        assert [mark for mark in marks if mark != "end"] == [
            "new conversation",
            "subagent of turn 2",
            "continues turn 2",
        ]
    assert pages.complaints == []


def test_the_issue_is_markdown_and_code_has_colours(pages: Pages, tmp_path: Path) -> None:
    write_run(tmp_path / "run", rich())
    with ViewServer(tmp_path / "run") as server:
        page = pages(f"{server.url}#/run/a-1/0")
        issue = page.locator(".issue .markdown")
        assert issue.locator("h2, li, td, strong").all_inner_texts() == ["Title", "bold", "one", "1"]
        links = issue.locator("a").evaluate_all("(links) => links.map((one) => [one.href, one.rel, one.target])")
        assert links == [[f"https://example.com/{name}", "noopener noreferrer", "_blank"] for name in ("a", "i.png")]
        assert '<b onclick="x()">raw</b>' in issue.inner_text()
        assert issue.locator("img, b, script, [onclick]").count() == 0
        keyword = page.locator(".hljs-keyword")
        assert issue.locator(keyword).all_inner_texts() == ["return"]
        assert page.locator(".patch").locator(keyword).all_inner_texts() == ["import", "from", "import"]
        page.wait_for_selector(".observation")
        assert page.locator(".observation").locator(keyword).all_inner_texts() == ["import"]
        page.get_by_role("button", name="Plain text").click()
        assert page.locator(".issue pre").inner_text() == rich().observation
    assert {address.startswith((server.url, "data:")) for address in pages.asked} == {True}
    assert pages.complaints == []


def rich() -> Trajectory:
    """An attempt with Markdown, code and a patch."""
    issue = "\n".join(
        (
            "## Title",
            "**bold** [web](https://example.com/a) [no](javascript:x) ![i](https://example.com/i.png)",
            '<b onclick="x()">raw</b>',
            "- one\n\n|a|\n|-|\n|1|\n",
            "```python\nreturn 1  # a comment\n```\n",
        )
    )
    patch = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-import os\n+from os import path  # 1\n"
    shown = turn(1, arguments={"command": "cat x.py"}, observation='import os\n"text"  # a comment\n', thought="")
    return trajectory(turns=1).model_copy(update={"observation": issue, "patch": patch, "turns": (shown,)})


def test_notes_are_written_by_keyboard_and_kept(pages: Pages, url: str, tmp_path: Path) -> None:
    page = pages(f"{url}#/run/a-1/0")
    page.wait_for_selector("article.turn")
    page.keyboard.press("n")
    page.keyboard.type("the attempt")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until_text(page, "[data-note='0']", "the attempt")
    page.keyboard.press("j")
    page.keyboard.press("n")
    page.keyboard.type("the turn")
    page.get_by_label("Labels").fill("odd, slow")
    page.keyboard.press("Enter")
    until_text(page, "[data-note='1']", "the turn")
    page.reload()
    until_text(page, "[data-note='1']", "oddslow the turn")
    notes = tmp_path / "run" / NOTES
    kept = notes.read_bytes()
    notes.unlink()
    notes.mkdir()  # nobody can write there, root included
    page.locator("[data-note='0']").get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Save").click()
    until_text(page, "#notice", "cannot save the note")
    notes.rmdir()
    notes.write_bytes(kept)


def test_the_page_works_by_keyboard(pages: Pages, url: str) -> None:
    page = pages(url)
    page.keyboard.press("/")
    until(page, "document.activeElement.id === 'search'")
    page.keyboard.type("a-1")
    page.keyboard.press("Escape")
    for key in ("j", "j", "k"):
        page.keyboard.press(key)
    focused = "document.activeElement.dataset.id"
    second = page.evaluate("table.view[1].id")
    assert page.evaluate(focused) == second
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector(".episode")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('article').dataset.turn") == "2"
    page.keyboard.press("Enter")
    assert page.locator("article.turn details[open]").count() == page.locator("article.turn").count() - 1
    page.keyboard.press("]")
    until(page, "opened.id === table.view[2].id")
    page.keyboard.press("Escape")
    until(page, "document.activeElement.dataset.id === table.view[2].id")
    page.keyboard.press("x")
    page.keyboard.press("k")
    page.keyboard.press("x")
    page.keyboard.press("c")
    page.wait_for_selector("section.compare")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    assert page.locator("details.cell[open]").count() == 1
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()
    assert page.locator("section.compare").is_visible()
    page.keyboard.press("p")
    page.wait_for_selector(".plots")
    page.keyboard.press("/")
    until(page, "document.activeElement.id === 'search'")
    assert pages.complaints == []


def test_attempts_are_compared_side_by_side(pages: Pages, url: str) -> None:
    page = pages(url)
    for row in page.locator("tr[data-id]", has_text="a-1").all()[:3]:
        row.locator("input").check()
    page.get_by_role("button", name="Compare 3").click()
    page.wait_for_selector(".compare")
    assert page.locator(".cell.head").count() == 3
    assert "The calls of the first 2 turns are equal." in page.locator(".compare").inner_text()
    page.locator("details.cell.turn").nth(1).locator("summary").first.click()
    until_text(page, "details.cell[open] .observation", "observation 1")


@pytest.mark.parametrize("key", [True, False], ids=["by-key", "by-button"])
def test_attempts_are_compared_from_an_episode(pages: Pages, url: str, key: bool) -> None:
    page = pages(f"{url}#/run/a-1/0")
    page.wait_for_selector(".episode")
    if key:
        page.keyboard.press("c")
    else:
        page.get_by_role("button", name="Side by side").click()
    page.wait_for_selector("section.compare")
    assert page.locator(".cell.head").count() == 4
    assert pages.complaints == []


def test_keys_work_from_an_address_of_an_episode(pages: Pages, url: str) -> None:
    page = pages(f"{url}#/run/a-1/0")
    until_text(page, "main h2", "attempt\u00a00")
    page.keyboard.press("x")
    until_text(page, "#notice", "1 episode selected for comparison.")
    page.keyboard.press("]")
    until_text(page, "main h2", "attempt\u00a01")
    page.keyboard.press("x")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Compare 2").click()
    page.wait_for_selector("section.compare")
    assert pages.complaints == []


@pytest.mark.parametrize(
    "place", ["nothing", "constructor/x", "run/a-1/7", "run/%/0", "other/a-1/0", "compare/line-0,x"]
)
def test_an_unknown_address_links_back(pages: Pages, url: str, place: str) -> None:
    page = pages(f"{url}#/{place}")
    page.keyboard.press("Escape")
    page.wait_for_selector("tr[data-id]")


def test_plots_have_tables_of_numbers(pages: Pages, url: str) -> None:
    page = pages(f"{url}#/plots")
    page.wait_for_selector(".chart canvas")
    figures = page.locator("figure")
    titles = page.locator("figure h2").all_inner_texts()
    assert titles[:4] == ["Resolved by repository", "pass@k", "Turns", "Wall-clock time"]
    for summary in page.locator("figure summary").all():
        summary.click()
    assert "toy/a\t1\t4\t25 %" in figures.nth(0).inner_text()
    assert [line.split("\t") for line in figures.nth(1).locator("details tbody").inner_text().splitlines()] == [
        ["1", "13 %", "2"],
        ["2", "50 %", "1"],
        ["3", "75 %", "1"],
        ["4", "100 %", "1"],
    ]
    assert "SandboxLost (oom)" in figures.nth(5).inner_text()
    drawn = page.evaluate("[...document.querySelectorAll('.chart')].map((box) => box.plot.data.map((one) => [...one]))")
    assert drawn[0] == [[1, 2, 3, 4], [0.125, 0.5, 0.75, 1]]
    assert pages.complaints == []


def test_a_running_run_is_followed(pages: Pages, tmp_path: Path) -> None:
    with RunFolder(tmp_path, run_info()) as folder, ViewServer(tmp_path) as server:
        page = pages(server.url)
        until_text(page, "tbody", "No episodes yet.")
        file = folder.start(trajectory(turns=0, outcome="running", reason="", verdict=None))
        folder.progress({"running": 1, "total": 4, "eta": 90.0})
        until_text(page, "tr[data-id]", "running")
        until_text(page, "#counts", "0/4 done · 0 resolved · 1 running · ETA 1 min 30 s")
        page.locator("tr[data-id]").click()
        until_text(page, ".waiting", "The episode is running")
        file.add(turn(1))
        until_text(page, "article.turn", "observation 1")
        page.evaluate("document.querySelector('article.turn').dataset.mine = 'kept'")
        with (tmp_path / "live" / "a-1.0.jsonl").open("ab") as half:
            told = turn(2).usage.model_copy(update={"cost": None, "answered_as": ("cheaper",)})
            line = json.dumps(turn(2).model_copy(update={"usage": told}).model_dump()).encode()
            half.write(line[:100])
            half.flush()
            page.evaluate("update()")
            assert page.locator("article.turn").count() == 1
            half.write(line[100:] + b"\n")
        until_text(page, "article.turn", "observation 2")
        until_text(page, "dl.facts", "200 read (0 cached), 20 written in 2 calls")
        facts = page.locator("dl.facts").inner_text().split("\n")
        assert facts[facts.index("cost") + 1] == "unknown"  # as that of a turn
        assert facts[facts.index("answered as") + 1] == "cheaper"
        assert page.locator("[data-mine=kept]").count() == 1  # existing turns are not drawn again
        file.close()
        folder.add(trajectory(resolved=True))
        page.wait_for_selector(".verdict")
        assert page.evaluate("location.hash") == f"#/{tmp_path.name}/a-1/0"
        folder.add(trajectory(attempt=1))
        page.keyboard.press("Escape")
        until(page, "document.querySelectorAll('tr[data-id]').length === 2")
        folder.add(trajectory("b-2"))
        until(page, "document.querySelectorAll('tr[data-id]').length === 3")
        server.close()
        until_text(page, "#notice", "The server does not answer")


def test_a_real_rollout_is_followed_to_its_end(pages: Pages, tmp_path: Path) -> None:
    begun = threading.Event()
    plan = Plan(source="toy", tasks=("larder-overwrite-evicts",), attempts=2)
    options = RolloutOptions(workers=1)
    play = threading.Thread(
        target=rollout, args=(plan, tmp_path, options), kwargs={"on_progress": lambda _: begun.set()}
    )
    play.start()
    try:
        assert begun.wait(60)
        with ViewServer(tmp_path) as server:
            page = pages(server.url)
            until_text(page, "#counts", "2/2 done · 0 resolved (0 %)")
            for row, played in enumerate(open_trajectories(tmp_path)):
                page.evaluate(f"location.hash = addressOf(run.rows[{row}])")
                until_text(page, "main h2", f"attempt\u00a0{played.attempt}")
                assert page.locator("article.turn").count() == len(played.turns) > 2
                page.evaluate("opened.list.all()")
                text = page.evaluate("document.querySelector('.episode').textContent")
                for turn_played in played.turns:
                    assert turn_played.observation[:200] in text
                assert played.verdict is not None
                for test in played.verdict.fail_to_pass:
                    assert test in text
    finally:
        play.join(60)
    assert pages.complaints == []


def test_ten_thousand_rows_are_fast(pages: Pages, tmp_path: Path) -> None:
    write_run(tmp_path, tasks=tuple(f"task-{number:05}" for number in range(10_000)))
    record = trajectory(task="task-XXXXX")
    template = "".join(line + "\n" for line in record.to_lines())
    entry = index_line(record, 111_111_111, len(template)).model_dump_json()
    with (tmp_path / TRAJECTORIES).open("w") as lines, (tmp_path / INDEX).open("w") as entries:
        for number in range(10_000):
            name, offset = f"task-{number:05}", number * len(template)
            lines.write(template.replace("task-XXXXX", name))
            entries.write(entry.replace("task-XXXXX", name).replace("111111111", str(offset)) + "\n")
    with ViewServer(tmp_path) as server:
        page = pages(server.url)
        until_text(page, "#found", "10,000 episodes")
        assert page.locator("tr").count() < 80
        assert page.locator("table").first.get_attribute("aria-rowcount") == "10001"
        page.evaluate("table.scroll.scrollTop = table.scroll.scrollHeight")
        until_text(page, "tr[data-id]", "task-09999")
        assert page.locator("tr").count() < 80
        spent = page.evaluate(
            """() => {
                const start = performance.now();
                table.sort = "task"; table.down = -1; changeView();
                table.words = "task-0 resolved"; changeView();
                return performance.now() - start;
            }"""
        )
        assert spent < 2_000
        page.fill("#search", "task-04242")
        until(page, "document.querySelectorAll('tr[data-id]').length === 1")
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        until_text(page, "main h2", "task-04242")
        until_text(page, ".issue", "The issue of task-04242")
        page.goto(f"{server.url}#/plots")
        page.wait_for_selector(".chart canvas")
    assert pages.complaints == []


def nasty_run(path: Path) -> Path:
    verdict = trajectory().verdict
    assert verdict is not None
    said = turn(1, thought=NASTY, observation=NASTY, arguments={"command": NASTY, NASTY: NASTY}, action=NASTY)
    other = turn(2, tool="", arguments={}, action=NASTY, observation=f"diff --git {NASTY}\n+{NASTY}")
    record = trajectory(
        task=NASTY,
        repo=NASTY,
        turns=2,
        reason=NASTY,
        observation=NASTY,
        patch=f"diff --git a/x b/x\n+{NASTY}\n",
        verdict=verdict.model_copy(update={"reason": NASTY, "log": NASTY, "notes": (NASTY,)}),
    ).model_copy(update={"turns": (said, other)})
    return write_run(path, record, record.model_copy(update={"attempt": 1}), failed(failure=NASTY), experiment=NASTY)


def visit_everything(page: "Page") -> None:
    """Visit all pages and open all details."""
    names = page.evaluate("run.rows.map((row) => row.id)")
    attempts = page.evaluate("run.rows.map((row) => addressOf(row))")
    for place in (*attempts, f"#/compare/{names[0]},{names[1]}", "#/plots", "#/"):
        page.evaluate("(place) => { location.hash = place; }", place)
        page.wait_for_selector({"c": ".compare", "p": ".plots", "": "section.table"}.get(place[2:3], ".episode"))
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        if page.locator(".episode").count():
            page.evaluate("opened.list.all()")
        assert (
            page.evaluate("document.querySelectorAll('main img, main script, main [onload], main [onerror]').length")
            == 0
        )
        assert NASTY in page.evaluate("document.body.textContent")


def test_model_output_is_only_text(pages: Pages, tmp_path: Path) -> None:
    with ViewServer(nasty_run(tmp_path)) as server:
        page = pages(server.url)
        visit_everything(page)
        assert page.evaluate("window.owned") is None
        # even injected, the browser would not run it
        page.evaluate(
            "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x onerror=window.owned=1>')"
        )
        page.evaluate("new Promise((done) => setTimeout(done, 100))")
        assert page.evaluate("window.owned") is None
    assert all("Content Security Policy" in complaint for complaint in pages.complaints)


def test_a_report_is_the_same_page_without_a_server(pages: Pages, tmp_path: Path) -> None:
    write_report(nasty_run(tmp_path / "run"), tmp_path / "report.html")
    page = pages((tmp_path / "report.html").as_uri())
    visit_everything(page)
    assert page.evaluate("window.owned") is None
    page.evaluate("location.hash = addressOf(run.byId.get('line-0'))")
    until_text(page, ".end", "does not include the verdict")
    assert page.locator(".verdict").count() == 0
    assert {address.partition(":")[0] for address in pages.asked} <= {"file", "data"}
    assert pages.complaints == []


def test_legends_are_read_before_a_chart_is_pointed_at(pages: Pages, tmp_path: Path) -> None:
    write_run(tmp_path / "run", trajectory(resolved=True), trajectory("b-2", turns=3))
    with ViewServer(tmp_path / "run") as server:
        page = pages(f"{server.url}#/plots", shows=".u-legend")
        legend = page.locator(".chart").nth(1)
        seen = """(box) => [...box.querySelectorAll(".u-legend th, .u-legend td")]
            .filter((one) => one.checkVisibility({ visibilityProperty: true })).map((one) => one.textContent)"""
        assert legend.evaluate(seen) == ["not resolved", "resolved"]
        legend.locator(".u-over").hover()
        until(page, "document.querySelectorAll('.chart')[1].classList.contains('idle') === false")
        assert legend.evaluate(seen)[0] == "turns"
        assert page.get_by_text("Failures").count() == 0  # there are none


def test_a_report_with_verdicts_and_few_episodes(pages: Pages, tmp_path: Path) -> None:
    write_run(tmp_path / "run", trajectory(), trajectory("b-2"))
    write_report(tmp_path / "run", tmp_path / "report.html", with_verdicts=True, most_episodes=1)
    page = pages((tmp_path / "report.html").as_uri())
    assert tasks(page) == ["a-1", "b-2"]
    page.locator("tr[data-id]").first.click()
    until_text(page, ".verdict", SECRET_TEST)
    page.keyboard.press("]")
    until_text(page, ".problem", "This episode is not in the report")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(pages: Pages, tmp_path: Path, scheme: str) -> None:
    write_run(
        tmp_path / "run", rich().model_copy(update={"task_id": "rich", "reward": 1.0}), trajectory(), failed("c-3")
    )
    server = ViewServer(tmp_path / "run")
    page = pages(server.url, color_scheme=scheme)
    backs = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (backs == "rgb(255, 255, 255)") == (scheme == "light")
    readable = {
        "": "th button, td, .badge, #counts, a",
        "episode": ".dim, .badge, .diff span, .call dt, pre, .mark, summary, h3, .outline *, [class^=hljs]",
    }
    for place, selector in readable.items():
        if place:
            page.locator("tr[data-id]", has_text="rich").click()
            page.wait_for_selector(".episode .observation")
        contrasts = page.evaluate(CONTRAST, selector)
        assert len(contrasts) > 10
        assert min(contrasts) >= 4.5
    server.close()


def test_a_phone_does_not_scroll_sideways(pages: Pages, url: str) -> None:
    page = pages(url, width=390)
    visits: list[Callable[[], object]] = [
        lambda: page.wait_for_selector("section.table"),
        lambda: (page.locator("tr[data-id]").first.click(), page.wait_for_selector(".episode")),
        lambda: (page.keyboard.press("p"), page.wait_for_selector(".plots canvas")),
    ]
    for visit in visits:
        visit()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_every_control_has_a_name(pages: Pages, url: str) -> None:
    page = pages(url)
    nameless = """() => [...document.querySelectorAll("button, select, input, [role=img], a")].filter((node) =>
        !(node.getAttribute("aria-label") || node.textContent.trim())).map((node) => node.outerHTML)"""
    assert page.evaluate(nameless) == []
    page.locator("tr[data-id]").first.click()
    page.wait_for_selector(".episode")
    assert page.evaluate(nameless) == []
