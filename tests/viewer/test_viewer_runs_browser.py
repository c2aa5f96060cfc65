"""The list of runs and their comparison in a real browser."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs_on_disk import failed, run_info, trajectory, write_run
from viewer_parts import CONTRAST, NASTY, Pages, until, until_text

from swe_gym.trajectories.run_folder import INDEX, TRAJECTORIES, RunFolder, index_line
from swe_gym.trajectories.trajectory import Usage
from swe_gym.viewer.server import ViewServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

TASKS = tuple(f"t-{number}" for number in range(6))


def write(root: Path, name: str, resolved: int, *others: str, created: int = 1, **config: object) -> None:
    """Write a run of two attempts per task, which resolves the first tasks in both."""
    records = [
        trajectory(task, attempt, resolved=number < resolved)
        for number, task in enumerate(TASKS)
        for attempt in range(2)
        if task not in others
    ]
    write_run(
        root / name,
        *records,
        *(failed(task) for task in others),
        config={"policy": "llm", "policy_options": {"model": f"model of {name}"}, "env": config},
        tasks=TASKS,
        created=f"2026-11-0{created}T10:00:00.000+00:00",
    )


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    write(tmp_path / "runs", "small", 1, created=1, max_turns=30)
    write(tmp_path / "runs", "large-v2, new", 4, "t-5", created=2, max_turns=50)
    write(tmp_path / "runs", "plots", 4, created=3, max_turns=30)
    with ViewServer(tmp_path / "runs") as server:
        yield server.url


def names(page: "Page") -> list[str]:
    return page.locator("td[data-key=name] a").all_inner_texts()


def address(page: "Page") -> str:
    return str(page.evaluate("decodeURIComponent(location.hash)"))


def test_runs_are_listed_sorted_and_searched(pages: Pages, url: str) -> None:
    page = pages(url)
    assert names(page) == ["plots", "large-v2, new", "small"]
    assert page.locator("#counts").inner_text() == "3 runs · 34 graded attempts"
    row = page.locator(".listing tbody tr").nth(1)
    assert "interrupted" in row.inner_text()
    assert "80.0 % 37.6\u201396.4 %" in row.inner_text().replace("\n", " ")
    assert "max_turns 50" in row.inner_text()
    assert "80.0 % @2" in row.inner_text()
    assert row.locator("td[data-key=failed_tries]").inner_text() == "1"
    page.get_by_role("button", name="Resolved").click()
    assert names(page) == ["large-v2, new", "plots", "small"]
    assert page.locator("th[data-key=resolved]").get_attribute("aria-sort") == "descending"
    page.fill("#search", "turns 30")
    until(page, "document.querySelectorAll('.listing tbody tr').length === 2")
    assert page.locator("#found").inner_text() == "2 of 3"
    assert pages.complaints == []


CUT = """() => [...document.querySelectorAll("main td, main th, main a, main code, main button, select, h1")]
    .filter((node) => node.offsetWidth && !node.closest(".unseen") && node.className !== "unseen")
    .filter((node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline"
        || node.getBoundingClientRect().right > innerWidth + 1)
    .map((node) => node.outerHTML)"""


@pytest.mark.parametrize("width", [400, 760, 1000, 1280, 1920])
def test_the_main_numbers_of_a_run_are_shown_at_every_width(pages: Pages, url: str, width: int) -> None:
    page = pages(url, width=width)
    row = page.locator(".listing tbody tr").nth(1)
    for key, shown in (
        ("resolved", "80.0 %"),
        ("planned", "6 \u00d7 2"),
        ("duration", "7.0 s"),
        ("tokens", "2,420"),
        ("cost", "$0.22"),
    ):
        cell = row.locator(f"td[data-key={key}]")
        assert (key, cell.is_visible()) == (key, True)
        assert shown in cell.inner_text().replace("\u00a0", " ")
    planned = row.locator("td[data-key=planned]").inner_text().replace("\u00a0", " ")
    assert planned.split() == ["6", "\u00d7", "2", "10/12", "graded"]  # apart, also on one line
    assert page.locator("[data-key=retries]:visible").count() == 0  # no run has any
    assert page.evaluate(CUT) == []
    page.evaluate("location.hash = '#/compare/small,plots,large-v2%2C%20new'")
    page.wait_for_selector(".comparison")
    assert page.evaluate(CUT) == []
    assert page.evaluate(
        "[...document.querySelectorAll('.sideways')].every((one) => one.scrollWidth <= one.clientWidth)"
    )


def test_tokens_and_cost_that_are_unknown_are_told(pages: Pages, tmp_path: Path) -> None:
    for name, usage in (
        ("none", Usage(calls=2, uncounted=2)),
        ("some", Usage(calls=2, prompt_tokens=500, uncounted=1)),
        ("failed", Usage(retries=5)),
    ):
        config = {"policy": "llm", "policy_options": {"model": "m"}}
        write_run(tmp_path / name, trajectory().model_copy(update={"usage": usage}), config=config, created=name)
    with ViewServer(tmp_path) as view:
        page = pages(view.url)
        for name, tokens, cost in (
            ("none", "unknown", "unknown"),
            ("some", "500 + unknown", "unknown"),
            ("failed", "", ""),
        ):
            row = page.locator("tr", has=page.locator(f"a[data-row={name}]"))
            cells = [row.locator(f"td[data-key={key}]").inner_text() for key in ("tokens", "cost")]
            assert (name, *cells) == (name, tokens, cost)
        page.evaluate("location.hash = '#/none/plots'")
        until_text(page, ".tiles", "answers of unknown tokens")


def test_a_run_that_stops_early_says_so_beside_its_rates(pages: Pages, tmp_path: Path) -> None:
    write_run(tmp_path / "early", trajectory(), attempts=2, settings={"early_stop": "votes"})
    with ViewServer(tmp_path) as view:
        page = pages(view.url)
        until_text(page, "td[data-key=planned]", "graded, stops early")
        page.evaluate("location.hash = '#/early/plots'")
        until_text(page, "#main", "The run stops early")


def test_settings_that_tell_nothing_are_left_out(pages: Pages, tmp_path: Path) -> None:
    server = {"url": "http://10.0.0.5:8000/v1", "model": {"id": "big"}}
    for name, options, env, servers in (
        ("gold", {}, {"max_turns": 50}, ()),
        ("cold", {"model": "big", "temperature": 0.2}, {"max_turns": 50}, (server,)),
        ("short", {"model": "big"}, {"max_turns": 20}, (server,)),
    ):
        config = {"policy": "llm" if options else "gold", "policy_options": options, "env": env}
        write_run(tmp_path / name, trajectory(), config=config, servers=servers, created=name)
    with ViewServer(tmp_path) as view:
        page = pages(view.url)
        cells = page.locator("td[data-key=changes]").all_inner_texts()
        assert [cell.replace("\n", ", ") for cell in cells] == ["max_turns 20", "", "temperature 0.2"]
        page.evaluate("location.hash = '#/compare/gold,cold'")
        until_text(page, ".comparison", "http://10.0.0.5:8000/v1")
        said = page.locator("section:has(> h3:text('Settings')) tbody th").all_inner_texts()
        assert said == [
            *("policy", "policy_options.model", "policy_options.temperature", "server.model.id", "server.url"),
        ]


def test_runs_are_compared_by_keyboard(pages: Pages, url: str) -> None:
    page = pages(url)
    for key in ("j", "j", "x", "j", "x", "c"):
        page.keyboard.press(key)
    page.wait_for_selector(".comparison .tasks tbody tr")
    assert address(page) == "#/compare/small,large-v2, new"
    said = page.locator(".comparison").inner_text()
    assert "env.max_turns differs: 30 in small, 50 in large-v2, new" in said
    assert "large-v2, new\t+60.0\t" in said
    rows = page.locator(".tasks tbody th").all_inner_texts()
    assert rows == ["t-1", "t-2", "t-3", "t-5", "t-0", "t-4"]  # disagreements, then missing, then equal
    assert page.locator(".tasks tbody tr").first.locator("td").all_inner_texts() == ["0/2\n✗\n✗", "2/2\n✓\n✓"]
    page.select_option("select[aria-label=Tasks]", "differ")
    assert page.locator("#found").inner_text() == "3 of 6 tasks"
    page.locator("main").focus()
    for key in ("j", "j", "j", "j", "k"):  # the links of two runs, then those of tasks
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.textContent") == page.locator(".tasks th a").first.inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector("section.compare")
    assert address(page) == "#/compare/small,large-v2, new/t-1/0"
    assert page.locator(".cell.head .of").all_inner_texts() == ["small", "large-v2, new"]
    assert page.locator(".cell.head .badge").all_inner_texts() == ["✗ not resolved", "✓ resolved"]
    page.keyboard.press("Escape")
    page.wait_for_selector(".comparison")
    page.keyboard.press("Escape")
    page.wait_for_selector(".runs")
    assert page.locator("input:checked").count() == 2
    assert pages.complaints == []


def test_the_base_of_a_comparison_is_chosen(pages: Pages, url: str) -> None:
    page = pages(f"{url}#/compare/small,plots,large-v2%2C%20new", shows=".comparison")
    base = page.get_by_label("Run that the others are compared with")
    rows = page.locator("section:has(> h3 select) tbody th")
    assert rows.all_inner_texts() == ["plots", "large-v2, new"]
    base.select_option("plots")
    until(page, "location.hash.startsWith('#/compare/plots,small,')")
    until_text(page, "section:has(> h3 select) tbody th", "small")
    assert rows.all_inner_texts() == ["small", "large-v2, new"]
    assert base.input_value() == "plots"
    assert pages.complaints == []


def test_an_address_opens_an_attempt_of_a_run(pages: Pages, url: str) -> None:
    page = pages(f"{url}#/compare/small,plots")
    page.locator(".tasks td a").nth(2).click()
    page.wait_for_selector(".episode")
    assert address(page) == "#/plots/t-1/0"  # a run may be named like a page
    assert page.locator("main h2").inner_text().startswith("t-1 attempt\u00a00")
    page.keyboard.press("]")
    until_text(page, "main h2", "attempt\u00a01")
    page.keyboard.press("c")
    page.wait_for_selector("section.compare")
    page.locator(".cell.head a").nth(1).click()
    until_text(page, "main h2", "attempt\u00a01")
    page.keyboard.press("p")
    page.wait_for_selector(".plots")
    page.keyboard.press("Escape")
    until(page, "document.querySelectorAll('tr[data-id]').length === 12")
    assert page.locator("#name").inner_text() == "plots"
    page.evaluate("location.hash = '#/large-v2%2C%20new/t-5/0'")
    until_text(page, ".failure", "is gone")
    page.keyboard.press("Escape")
    until(page, "document.querySelectorAll('tr[data-id]').length === 11")
    page.keyboard.press("Escape")
    page.wait_for_selector(".runs")
    page.evaluate("location.hash = '#/compare/small,plots/t-2/7'")
    until_text(page, "section.compare", "plots has no attempt 7; its attempt 0 is shown.")
    for unknown in ("nothing", "compare/small,nothing", "small/t-9/0", "compare/small,plots/t-9/0"):
        page.evaluate("(place) => { location.hash = `#/${place}`; }", unknown)
        page.wait_for_selector(".problem")
        page.get_by_role("link", name="← Runs").click()
        page.wait_for_selector(".runs")
    assert all("404" in complaint for complaint in pages.complaints)


def test_a_running_run_updates_list_and_comparison(pages: Pages, tmp_path: Path) -> None:
    write(tmp_path, "old", 3)
    with (
        RunFolder(tmp_path / "new", run_info(tasks=("t-0", "t-4"), attempts=1)) as folder,
        ViewServer(tmp_path) as server,
    ):
        folder.progress({"running": 1, "total": 2})
        page = pages(server.url)
        until_text(page, "tbody tr", "running")
        page.locator("input[aria-label='Compare old']").focus()
        folder.add(trajectory("t-4", resolved=True))
        until_text(page, "tbody tr", "100.0 %")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Compare old"
        page.evaluate("location.hash = '#/compare/old,new'")
        until_text(page, ".comparison", "Differences to")
        assert page.locator(".tasks tbody tr").first.inner_text().startswith("t-4")
        folder.add(trajectory("t-0"))
        until_text(page, ".tasks tbody tr", "t-0")
        until(page, "document.querySelectorAll('.tasks .differs').length === 2")
    assert pages.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_controls_have_names(pages: Pages, url: str, scheme: str) -> None:
    page = pages(url, color_scheme=scheme, width=390)
    for place in ("", "compare/small,plots,large-v2%2C%20new"):
        page.evaluate("(place) => { location.hash = `#/${place}`; }", place)
        page.wait_for_selector(".comparison" if place else ".runs")
        contrasts = page.evaluate(CONTRAST, "th, td, th button, .badge, a, .dim, code, h3, .warnings li, .tools *")
        assert len(contrasts) > 10
        assert min(contrasts) >= 4.5
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        nameless = """() => [...document.querySelectorAll("button, select, input, a")].filter((node) =>
            !(node.getAttribute("aria-label") || node.textContent.trim())).map((node) => node.outerHTML)"""
        assert page.evaluate(nameless) == []


def test_names_are_only_text(pages: Pages, tmp_path: Path) -> None:
    bad = NASTY.replace("/", "\\")
    for name in (bad, f"{bad}%2F#?&+"):
        write_run(tmp_path / name, trajectory(NASTY), config={"policy_options": {"model": NASTY}, "env": {NASTY: name}})
    with ViewServer(tmp_path) as server:
        page = pages(server.url)
        assert sorted(names(page)) == sorted([bad, f"{bad}%2F#?&+"])
        for key in ("j", "x", "j", "x", "c"):
            page.keyboard.press(key)
        page.wait_for_selector(".tasks tbody tr")
        assert NASTY in page.locator(".tasks th").all_inner_texts()
        page.locator(".tasks th a").click()
        page.wait_for_selector("section.compare")
        assert page.locator(".cell.head .of").count() == 2
        assert page.evaluate("window.owned") is None
    assert pages.complaints == []


def test_many_runs_open_from_their_indexes(pages: Pages, tmp_path: Path) -> None:
    entry = index_line(trajectory(task="task-XXXXX"), 111_111_111, 1000).model_dump_json()
    tasks = tuple(f"task-{number:05}" for number in range(125))
    for number in range(20):
        created = f"2026-11-{number + 1:02}"
        folder = write_run(tmp_path / f"run-{number:02}", created=created, tasks=tasks, attempts=4)
        with (folder / INDEX).open("w") as entries:
            for line in range(500):
                text = entry.replace("task-XXXXX", f"task-{line // 4:05}").replace(
                    '"attempt":0', f'"attempt":{line % 4}'
                )
                entries.write(text.replace("111111111", str(1000 * line)) + "\n")
        os.truncate(folder / TRAJECTORIES, 500_000)  # nothing to read: the lists need the index only
    with ViewServer(tmp_path) as server:
        page = pages(server.url)
        until_text(page, "#counts", "20 runs · 10,000 graded attempts")
        assert names(page)[0] == "run-19"
        page.evaluate("location.hash = '#/compare/run-03,run-04'")
        page.wait_for_selector(".tasks tbody tr")
        assert page.locator("#found").inner_text() == "125 of 125 tasks"
    assert pages.complaints == []
