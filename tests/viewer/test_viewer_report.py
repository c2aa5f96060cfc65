"""The report: one self-contained file without what only the run's owner may see."""

import base64
import gzip
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from runs_on_disk import SECRET_TEST, failed, trajectory, turn, write_run

from swe_gym.errors import UsageError
from swe_gym.viewer.report import static_text, write_report

SCRIPTS = static_text("index.html").count("<script src=")
NASTY = "</script><script>document.title='owned'</script><!-- <img src=x onerror=alert(1)>"


class Page(html.parser.HTMLParser):
    """The elements and data blocks of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, str] = {}
        self._block = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._block = dict(attrs).get("id") or "" if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._block:
            self.blocks[self._block] = self.blocks.get(self._block, "") + data

    def episodes(self) -> list[Any]:
        packed = [data for name, data in self.blocks.items() if name.startswith("episode-")]
        return [json.loads(gzip.decompress(base64.b64decode(data))) for data in packed]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    nasty = trajectory("b-2", observation=NASTY, turns=1, reason=NASTY)
    nasty = nasty.model_copy(update={"turns": (turn(1, observation=NASTY),)})
    return write_run(tmp_path / "run", trajectory(resolved=True), trajectory(attempt=1), failed(), nasty)


def test_a_report_is_self_contained(run: Path, tmp_path: Path) -> None:
    written = write_report(run, tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert written == (1, 4, 4, len(text.encode()))
    page = Page(text)
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert not attributes.get("href", "").startswith(("http", "//")), tag
    assert len(json.loads(page.blocks["news"])["rows"]) == 4
    assert json.loads(page.blocks["stats"])["judged"] == 3
    assert [one["task_id"] for one in page.episodes()] == ["a-1", "a-1", "b-2", "a-1"]
    assert list(tmp_path.glob("*.new")) == []


def test_model_output_cannot_end_a_block(run: Path, tmp_path: Path) -> None:
    write_report(run, tmp_path / "out.html")
    page = Page((tmp_path / "out.html").read_text())
    kinds = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert kinds.count("application/json") == 2 + 4
    assert kinds.count(None) == SCRIPTS
    assert "img" not in [tag for tag, _ in page.tags]
    assert NASTY in [row[6] for row in json.loads(page.blocks["news"])["rows"]]


def test_only_its_own_scripts_and_style_are_allowed(run: Path, tmp_path: Path) -> None:
    write_report(run, tmp_path / "out.html")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', (tmp_path / "out.html").read_text())
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert len(re.findall("sha256-", policy)) == SCRIPTS + 1


def everything_in(path: Path) -> str:
    text = path.read_text()
    return text + json.dumps(Page(text).episodes())


def test_verdicts_and_failures_are_excluded(run: Path, tmp_path: Path) -> None:
    write_report(run, tmp_path / "out.html")
    assert SECRET_TEST not in everything_in(tmp_path / "out.html")
    write_report(run, tmp_path / "out.html", with_verdicts=True)
    assert SECRET_TEST in everything_in(tmp_path / "out.html")
    episodes = Page((tmp_path / "out.html").read_text()).episodes()
    assert episodes[0]["verdict"]["fail_to_pass"] == {SECRET_TEST: "passed"}


def test_most_episodes_limits_readable_episodes(run: Path, tmp_path: Path) -> None:
    assert write_report(run, tmp_path / "out.html", most_episodes=1)[1:3] == (4, 1)
    page = Page((tmp_path / "out.html").read_text())
    assert (len(page.episodes()), len(json.loads(page.blocks["news"])["rows"])) == (1, 4)


def test_a_failed_report_keeps_the_old_one(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out.html").write_text("old")
    path = run / "trajectories.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))  # the index still has it
    with pytest.raises(UsageError, match="not a trajectory"):
        write_report(run, tmp_path / "out.html")
    assert (tmp_path / "out.html").read_text() == "old"
