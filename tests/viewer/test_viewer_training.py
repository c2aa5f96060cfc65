"""The pages of training runs, from recorded ones; tests/train/test_training_report.py records them."""

import html.parser
import json
import math
import shutil
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
from viewer_parts import NASTY, Pages

from swe_gym.errors import UsageError
from swe_gym.train.log import Log
from swe_gym.trajectories import Trajectory
from swe_gym.viewer.report import write_curves, write_training_report
from swe_gym.viewer.training import (
    METRICS,
    PARTS,
    Point,
    curve,
    differences,
    held_out,
    is_training,
    overhead,
    pass_at,
    read_training,
    smooth,
    spent,
    spent_in_all,
)

RUNS = Path(__file__).parent / "training_runs"
BOTH = [RUNS / "rloo", RUNS / "gae"]


# --- numbers ------------------------------------------------------------------------------------------------

SECONDS = {
    "all": 10.0,
    "start": 2.0,
    "tools": 4.0,
    "grading": 6.0,
    "policy": 20.0,
    "lost": 2.0,
    "rest": 2.0,
    "idle": 4.0,
    "forward": 1.0,
    "backward": 2.0,
    "step": 0.5,
    "weight_sync": 1.5,
    "waited": 10.0,
    "update": 15.25,
}
"""Four threads, ten seconds of episodes."""

ABSENT = (
    "kl",
    "frac_cut",
    "frac_cached",
    "frac_ratio_tails",
    "staleness_mean",
    "frac_stale_tokens",
    "rollout_idle_frac",
    "train_idle_frac",
)
"""Metrics that the runs of the examples do not have."""


def test_the_time_of_rollouts_is_split_in_proportion_to_the_threads() -> None:
    parts = spent({"seconds": SECONDS})
    assert set(parts) == set(PARTS)
    assert sum(parts.values()) == pytest.approx(15.25)
    assert (parts["generation"], parts["tools"], parts["reset"], parts["idle"]) == pytest.approx((5.0, 1.0, 0.5, 1.0))
    assert (parts["forward"], parts["backward"], parts["optimizer"], parts["weight sync"]) == (1.0, 2.0, 0.5, 1.5)
    assert parts["trainer"] == pytest.approx(0.5 + 0.25)  # between calls, and the rest of the update
    assert spent({"seconds": SECONDS}, 3.0)["trainer"] == pytest.approx(3.75)


def test_async_rollout_counts_only_the_time_waited() -> None:
    parts = spent({"seconds": {**SECONDS, "waited": 4.0, "update": 9.5}})
    assert parts["generation"] == pytest.approx(2.0)
    assert sum(parts.values()) == pytest.approx(9.5)


def test_an_update_without_episodes_is_all_trainer() -> None:
    nothing = dict.fromkeys(SECONDS, 0.0) | {"waited": 1.0, "update": 3.0}
    assert spent({"seconds": nothing}) == {**dict.fromkeys(PARTS, 0.0), "trainer": 3.0}


def test_the_data_of_a_log() -> None:
    rloo, gae = read_training(BOTH)
    assert (rloo.name, len(rloo.updates), len(rloo.evaluations), len(rloo.saves)) == ("rloo", 4, 3, 3)
    assert [(point.update, point.value) for point in held_out(rloo)] == [(0, 0.5), (2, 0.5), (4, 0.5)]
    assert 0 < held_out(rloo)[0].low < 0.5 < held_out(rloo)[0].high < 1
    assert list(pass_at(rloo)) == ["pass@2"]
    by_title = {metric.title: metric for metric in METRICS}
    left_out = [point.value for point in curve(rloo, by_title["Dropped episodes"])]
    assert left_out == [line["lost"] + line["stale"] + line["nonfinite"] for line in rloo.updates]
    assert curve(rloo, by_title["Value loss"]) == []
    assert len(curve(gae, by_title["Value loss"])) == 4
    assert 0 < overhead(rloo) < 1
    assert sum(spent_in_all(rloo).values()) > 0
    changed = differences([rloo, gae])
    assert changed["algorithm.advantage"] == ["rloo", "gae"]
    assert "run.output" not in changed


def test_a_run_without_updates(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not is_training(tmp_path)
    Log(tmp_path).add("sft", 0, step=0, loss=2.0)
    (run,) = read_training([tmp_path])
    assert (run.updates, run.minutes, held_out(run)) == ((), 0.0, [])
    assert math.isnan(overhead(run))
    assert write_training_report([tmp_path], tmp_path / "out.html")[:2] == (1, 0)


def test_values_that_are_not_finite_leave_a_gap(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for update, norm in enumerate([1.0, math.nan, 3.0, math.inf], 1):
        log.add("update", update, minutes=1.0 * update, grad_norm=norm, reward=0.5, seconds=SECONDS)
    (tmp_path / "config.json").write_text("{}")
    (run,) = read_training([tmp_path])
    (norms,) = [curve(run, metric) for metric in METRICS if metric.title == "Gradient norm"]
    assert [point.value for point in norms[::2]] == [1.0, 3.0]
    assert all(math.isnan(point.value) for point in norms[1::2])
    assert [point.value for point in smooth(norms, 2)] == [1.0, 1.0, 3.0, 3.0]
    write_training_report([tmp_path], tmp_path / "out.html")
    drawn = {plot["title"]: plot["lines"][0]["value"] for plot in Page(tmp_path / "out.html").data["plots"]}
    assert drawn["Gradient norm"] == [1.0, None, 3.0, None]


def test_runs_of_the_same_name_get_distinct_names(tmp_path: Path) -> None:
    for place in ("a", "b"):
        shutil.copytree(RUNS / "rloo", tmp_path / place / "rloo")
    names = [run.name for run in read_training([tmp_path / "a" / "rloo", tmp_path / "b" / "rloo"])]
    assert names == ["a/rloo", "b/rloo"]
    with pytest.raises(UsageError, match="twice"):
        read_training([RUNS / "rloo", RUNS / "gae" / ".." / "rloo"])
    with pytest.raises(UsageError, match="not a training run"):
        read_training([tmp_path])
    (tmp_path / "a" / "rloo" / "log.jsonl").write_text("{broken\n")
    with pytest.raises(UsageError, match="cannot read"):
        read_training([tmp_path / "a" / "rloo"])


def test_the_running_mean_looks_back_only() -> None:
    points = [Point(update, 0.0, value) for update, value in enumerate([0.0, 2.0, 4.0, 6.0])]
    assert [point.value for point in smooth(points, 2)] == [0.0, 1.0, 3.0, 5.0]


# --- the page -----------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """The elements and the data of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(path.read_text())
        self.data: dict[str, Any] = json.loads(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][1].get("id") == "training":
            self.words += data


def test_the_page_has_every_curve_and_loads_nothing(tmp_path: Path) -> None:
    written = write_training_report(BOTH, tmp_path / "out.html")
    assert written == (2, 8, (tmp_path / "out.html").stat().st_size)
    page = Page(tmp_path / "out.html")
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert "style" not in attributes  # the policy of the page refuses it
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
    titles = [plot["title"] for plot in page.data["plots"]]
    expected = [metric.title for metric in METRICS if metric.names[0] not in ABSENT]
    assert titles == ["Held-out reward", "pass@2", *expected]
    held_out_plot = page.data["plots"][0]["lines"][0]
    assert (held_out_plot["update"], held_out_plot["value"]) == ([0, 2, 4], [0.5, 0.5, 0.5])
    assert held_out_plot["low"][0] < 0.5 < held_out_plot["high"][0]
    assert [run["name"] for run in page.data["runs"]] == ["rloo", "gae"]
    assert page.data["runs"][1]["bars"]["first_updates"] == [1, 2, 3, 4]
    assert set(page.data["runs"][0]["seconds"]) == set(PARTS)
    assert list(tmp_path.glob("*.new")) == []


def test_the_name_of_a_run_never_becomes_markup(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(RUNS / "rloo", folder)
    config = json.loads((folder / "config.json").read_text())
    config["env"]["system"] = "</script><script>alert(1)</script>"
    (folder / "config.json").write_text(json.dumps(config))
    write_training_report([folder, RUNS / "gae"], tmp_path / "out.html")
    page = Page(tmp_path / "out.html")
    assert "img" not in {tag for tag, _ in page.tags}
    assert [tag for tag, _ in page.tags].count("script") == 1 + 4
    assert page.data["runs"][0]["config"]["env"]["system"] == "</script><script>alert(1)</script>"


def test_many_updates_are_smoothed_and_binned(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for update in range(1, 131):
        log.add("update", update, minutes=1.0 * update, reward=float(update % 2), seconds=SECONDS)
    (tmp_path / "config.json").write_text("{}")
    write_training_report([tmp_path], tmp_path / "out.html")
    data = Page(tmp_path / "out.html").data
    (line,) = data["plots"][0]["lines"]
    assert (len(line["value"]), line["mean"][-1]) == (130, 0.5)
    assert data["runs"][0]["bars"]["first_updates"][:3] == [1, 4, 7]
    assert sum(part[0] for part in data["runs"][0]["bars"]["parts"].values()) == pytest.approx(15.25)


def test_the_drawing_has_the_curves_of_every_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert write_curves(BOTH, tmp_path / "curves.svg")[:2] == (2, 8)
    words = set(xml.etree.ElementTree.parse(tmp_path / "curves.svg").getroot().itertext())
    assert {"rloo", "gae", "Held-out reward over minutes", "Entropy over updates"} <= words
    before = (tmp_path / "curves.svg").read_bytes()
    write_curves(BOTH, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_bytes() == before


def run_with_episodes(folder: Path) -> Path:
    """Return a copy of a run whose last update and first evaluation have episodes; those of the update were kept."""
    shutil.copytree(RUNS / "rloo", folder)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    row = {"task": "toy/one", "reward": 1.0, "reason": "submit", "turns": 1, "tokens": 7}
    rows = [{**row, "attempt": 0, "logprob_diff": 0.001}, {**row, "attempt": 1, "reward": 0.0, "logprob_diff": 2.5}]
    for line in lines:
        if line["event"] == "update" and line["update"] in (3, 4):
            line |= {"played": rows, "lost": line["update"] - 3}
        if line["event"] == "evaluation":
            line["played"] = [{**row, "attempt": 0, "task": NASTY}]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "episodes").mkdir()
    for attempt in (0, 1):
        Trajectory(
            task_id="toy/one",
            attempt=attempt,
            observation="Repair it.",
            turns=(),
            outcome="submitted",
            reason="submit",
            reward_valid=True,
            resolved=attempt == 0,
            reward=1.0 - attempt,
        ).append(folder / "episodes" / "update-4.jsonl")
    return folder


def test_episodes_that_were_kept_are_pages_beside_the_report(tmp_path: Path) -> None:
    write_training_report([run_with_episodes(tmp_path / "a"), RUNS / "gae"], tmp_path / "out.html")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")] == [
        "out.html",
        "out-episodes/a/update-4.html",
    ]
    one, other = Page(tmp_path / "out.html").data["runs"]
    assert (one["readable"], other["readable"]) == (["update-4"], [])
    assert (list(one["episodes"]["update"]), one["episodes"]["update"]["4"]["lost"]) == (["3", "4"], 1)
    assert other["episodes"] == {"update": {}, "evaluation": {}}


def test_a_report_of_a_running_training_leaves_out_episodes_that_it_removed(tmp_path: Path) -> None:
    """The log names an update whose file is gone, or is not whole, when its page is written."""
    run = run_with_episodes(tmp_path / "a")
    episodes = run / "episodes"
    for number in (3, 10):
        shutil.copy(episodes / "update-4.jsonl", episodes / f"update-{number}.jsonl")
    write_training_report([run], tmp_path / "out.html")
    assert Page(tmp_path / "out.html").data["runs"][0]["readable"] == ["update-3", "update-4", "update-10"]
    (episodes / "update-3.jsonl").write_text("{}\n")
    (episodes / "update-4.jsonl").unlink()
    (episodes / "update-4.jsonl").symlink_to("nowhere")
    write_training_report([run], tmp_path / "out.html")
    assert Page(tmp_path / "out.html").data["runs"][0]["readable"] == ["update-10"]
    assert [path.name for path in (tmp_path / "out-episodes" / "a").iterdir()] == ["update-10.html"]


def test_the_page_lists_the_episodes_of_the_last_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with_episodes(tmp_path / "a")
    for most, updates in ((3, ["4"]), (1, ["4"]), (4, ["3", "4"])):
        monkeypatch.setattr("swe_gym.viewer.report.MOST_ROWS", most)
        write_training_report([run], tmp_path / "out.html")
        assert list(Page(tmp_path / "out.html").data["runs"][0]["episodes"]["update"]) == updates


# --- in a browser -------------------------------------------------------------------------------------------


def test_runs_and_axes_are_chosen_by_keyboard(pages: Pages, tmp_path: Path) -> None:
    write_training_report(BOTH, tmp_path / "out.html")
    first = "document.querySelector('#curves .chart').plot"
    page = pages((tmp_path / "out.html").as_uri(), shows="#curves canvas", color_scheme="dark")
    assert page.locator("#curves figure").count() == 2 + len(METRICS) - len(ABSENT)
    assert page.locator("#time canvas").count() == 2
    shown = f"{first}.series.slice(1).map((one) => [one.label, one.show])"
    assert page.evaluate(shown) == [["rloo", True]] * 3 + [["gae", True]] * 3  # a mean and two ends
    colours = page.evaluate(f"[1, 4].map((i) => {first}.series[i].stroke())")
    assert len(set(colours)) == 2
    page.locator("#show-1").focus()
    page.keyboard.press("Space")
    assert page.evaluate(shown) == [["rloo", True]] * 3 + [["gae", False]] * 3
    page.locator("#by-update").focus()
    page.keyboard.press("ArrowRight")
    page.locator("canvas[aria-label='Held-out reward over minutes']").wait_for()
    assert page.evaluate(f"{first}.series[0].label") == "minutes"
    assert page.evaluate(shown)[3] == ["gae", False]
    page.locator("#curves summary").first.click()
    assert "0.5 (" in page.locator("#curves details tbody").first.inner_text()
    assert "algorithm.advantage\trloo\tgae" in page.locator("#configuration table").inner_text()
    assert pages.complaints == []


def test_a_point_of_a_curve_lists_its_episodes(pages: Pages, tmp_path: Path) -> None:
    write_training_report([run_with_episodes(tmp_path / "a #1"), RUNS / "gae"], tmp_path / "out.html")
    page = pages((tmp_path / "out.html").as_uri(), shows="#curves canvas")
    figure = page.locator("#curves figure").filter(has=page.locator("h3", has_text="Entropy"))
    place = "(box) => { const p = box.plot; return [p.valToPos(4, 'x'), p.valToPos(p.data[1].at(-1), 'y')]; }"
    x, y = figure.locator(".chart").evaluate(place)
    shown = figure.locator(".episodes")
    page.clock.install()
    figure.locator(".u-over").dblclick(position={"x": x - 2, "y": y})  # zooms out
    page.clock.run_for(1000)
    assert shown.count() == 0
    page.clock.resume()
    figure.locator(".u-over").click(position={"x": x - 2, "y": y})
    assert shown.locator("h4").inner_text() == "Update 4 of a #1: 2 episodes, 1 lost"
    assert [row.split("\t")[1::5] for row in shown.locator("tbody").inner_text().split("\n")] == [
        ["1", "2.5"],
        ["0", "0.001"],
    ]
    figure.locator("summary").click()
    figure.get_by_role("button", name="episodes of a #1 at 3").click()
    assert shown.locator("a").count() == 0
    assert "were not kept" in shown.inner_text()
    evaluated = page.locator("#curves figure").first
    evaluated.locator("summary").click()
    evaluated.get_by_role("button", name="episodes of a #1 at 2").click()
    assert evaluated.locator(".episodes tbody").inner_text().startswith(NASTY)
    figure.get_by_role("button", name="episodes of a #1 at 4").click()
    shown.get_by_role("link").first.click()
    page.get_by_text("Repair it.").first.wait_for()
    assert "a%20%231/update-4.html#/update-4.jsonl/toy%2Fone/1" in page.url
    assert pages.complaints == []
