"""`swe-gym view` and `swe-gym report`."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from swe_gym.curation import AuditRecord
from swe_gym.curation.audit import AuditFinding, EscapedVariant
from swe_gym.files import append_lines
from swe_gym.trajectories.run_folder import RunFolder, RunInfo
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import TestStatus, Verdict

TRAINING_RUNS = Path(__file__).parent.parent / "viewer" / "training_runs"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    info = RunInfo(experiment="first", config={}, config_hash="abc", tasks=("a",), attempts=3)
    with RunFolder(tmp_path / "runs" / "first", info) as folder:
        for attempt in range(3):
            folder.add(
                Trajectory(
                    task_id="a",
                    attempt=attempt,
                    config_hash="abc",
                    observation="issue",
                    turns=(),
                    outcome="submitted",
                    reason="submit",
                    reward_valid=True,
                    resolved=False,
                    reward=0.0,
                    verdict=Verdict(resolved=False, fail_to_pass={"hidden": TestStatus.FAILED}),
                )
            )
    return folder.path


def test_view_prints_an_address_serves_and_ends_at_ctrl_c(run: Path) -> None:
    command = [sys.executable, "-c", "from swe_gym_command import main; main()", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url + "api/rows", timeout=20) as reply:
                assert b'"name": "first"' in reply.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_view_refuses_other_folders(cli, run: Path) -> None:
    (run.parent / "empty").mkdir()
    refused = cli("view", run.parent / "empty")
    assert refused.status == 2
    assert "has no run.json" in refused.err


def test_report_describes_its_content(cli, run: Path, tmp_path: Path) -> None:
    result = cli("report", run)
    assert (result.status, result.err) == (0, "")
    assert re.search(r"first\.html: 3 episodes, \d+ kB, without verdicts", result.out)
    assert (tmp_path / "first.html").read_text().startswith("<!doctype html>")
    result = cli("report", run, "-o", "other.html", "--with-verdicts", "--most-episodes", 2)
    assert re.search(r"other\.html: 3 episodes, 2 can be opened, \d+ kB, with verdicts: they name", result.out)
    result = cli("report", run, "-o", "folder")
    assert re.search(r"^folder: 1 run, 3 episodes, \d+ kB, without verdicts. Open folder/index.html", result.out)


def test_report_puts_several_runs_into_a_folder(cli, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, run.parent / "second")
    for arguments, folder in (([run, run.parent / "second"], "report"), ([run.parent, "-o", "site"], "site")):
        result = cli("report", *arguments)
        assert (result.status, result.err) == (0, "")
        assert re.search(rf"^{folder}: 2 runs, 6 episodes, \d+ kB, without verdicts", result.out)
        assert {path.name for path in (tmp_path / folder).iterdir()} == {"index.html", "data"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text("mine")
    (tmp_path / "empty").mkdir()
    for arguments, problem in (
        ([run, run], "a run is given twice"),
        ([run, run.parent / "second", "-o", "both.html"], "several runs make a folder"),
        ([run.parent, "-o", "both.html"], "several runs make a folder"),
        ([run, "-o", "other"], "other holds something else"),
        ([run, "-o", run], "holds something else"),
        ([run, tmp_path / "empty"], "holds no run folder"),
        ([run, "nowhere"], "nowhere does not exist"),
    ):
        refused = cli("report", *arguments)
        assert (refused.status, problem in refused.err) == (2, True), refused.err
    assert (tmp_path / "other" / "index.html").read_text() == "mine"


def test_report_puts_training_runs_into_one_page(cli, run: Path, tmp_path: Path) -> None:
    folders = [TRAINING_RUNS / "rloo", TRAINING_RUNS / "gae"]
    assert "training.html: 2 training runs, 8 updates, " in cli("report", *folders).out
    assert "rloo.html: 1 training run, 4 updates, " in cli("report", folders[0]).out
    assert {path.name for path in tmp_path.glob("*.*ml")} == {"training.html", "rloo.html"}
    for arguments, problem in (
        ((folders[0], run), f"{run} is not a training run, and {folders[0]} is one"),
        ((run, "--svg", "a.svg"), "is not one"),
        ((*folders, "--svg", "a.png"), "must end with .svg"),
    ):
        refused = cli("report", *arguments)
        assert refused.status == 2
        assert problem.replace(" ", "") in "".join(refused.err.split())


def test_report_draws_the_curves_of_training_runs(cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = cli("report", TRAINING_RUNS / "rloo", TRAINING_RUNS / "gae", "--svg", "curves.svg")
    assert (drawn.status, drawn.out.startswith("curves.svg: 2 training runs, 8 updates, ")) == (0, True)
    assert {path.name for path in tmp_path.glob("*.*ml")} == set()


def test_report_of_audits_shows_the_worst_task_first_and_what_its_tests_accept(cli, tmp_path: Path) -> None:
    escaped = EscapedVariant(kind="number", path="a<b>.py", diff="@@ -1 +1 @@\n-x = 1\n+x = 2 < 3\n")
    for name, found in (("good", ()), ("bad", (AuditFinding(kind="weak", what="no test asks <it>"),))):
        audit = AuditRecord(
            task_id=name,
            status="audited",
            findings=found,
            strength=0.5 if found else 1.0,
            killed=1,
            tried=2 if found else 1,
            escaped=(escaped,) if found else (),
            conditions={"zone": "same", "clock": "not tried: \u202eno"} if found else {},
            not_tried={"copy": "too few lines"} if found else {},
            unjudged=2 if found else 0,
        )
        append_lines(tmp_path / "audits.jsonl", json.dumps(audit.model_dump(mode="json")))
    done = cli("report", "audits.jsonl")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("audits.html: 2 audits, ")
    page = (tmp_path / "audits.html").read_text()
    assert page.index('<a href="#task-bad">') < page.index('<a href="#task-good">')
    missing = "<li>clock: not tried: \\u202eno\n<li>copy: too few lines\n<li>2 wrong solutions: no test run judged it\n"
    assert page.count("Not checked:") == page.count(f"<p>Not checked:</p><ul>{missing}</ul>") == 1
    assert "0.50 (1 of 2)<td>1 weak" in page
    assert "no test asks &lt;it&gt;" in page
    assert 'number in a&lt;b&gt;.py</summary><pre><span class="hunk">@@ -1 +1 @@</span>' in page
    assert '<span class="add">+x = 2 &lt; 3</span>' in page
    assert "<script" not in page
    (tmp_path / "least.jsonl").write_text('{"task_id":"a","status":"audited"}\n')
    (tmp_path / "blank.jsonl").write_text('\n{"task_id":"a","status":"audited"}\n')
    assert cli("report", "least.jsonl").out.startswith("least.html: 1 audit, ")
    for arguments, message in (
        (["audits.jsonl", "-o", "page.txt"], "the name must end with .html"),
        (["blank.jsonl"], "blank.jsonl, line 1 is not an audit"),
        (["audits.jsonl", "least.jsonl"], "join the files, cat audits.jsonl least.jsonl > all.jsonl"),
        (["audits.jsonl", TRAINING_RUNS], "is not a record of audits, and audits.jsonl is one"),
        (["audits.jsonl", "--with-verdicts"], "--with-verdicts and --most-episodes need run folders"),
        (["audits.jsonl", "--svg", "a.svg"], "--svg needs training runs, and audits.jsonl is not one"),
    ):
        refused = cli("report", *arguments)
        assert (refused.status, message in refused.err) == (2, True), refused.err
