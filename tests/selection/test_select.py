"""Someone has several attempts at each task and wants the best of each."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs_on_disk import trajectory, write_run

from swe_gym.cli.certify import Where
from swe_gym.cli.select import _settings
from swe_gym.errors import UsageError
from swe_gym.grading.diff import normalize_patch
from swe_gym.rollout.policies.llm import SCORE, read_score
from swe_gym.selection import Candidate, Scores, Selection, SelectionSettings, TaskAttempts, fixed_scores, select
from swe_gym.selection.choosing import measure
from swe_gym.selection.execution import RunOutcome, _score
from swe_gym.tasks.file import write_tasks
from swe_gym.testing.openai_server import ModelReply, OpenAIServer
from swe_gym.trajectories.statistics import calibration_error, expected_choice, pairwise_auc, pass_at_k, score_bins
from swe_gym.trajectories.trajectory import Segment
from swe_gym.types import FolderWorkspace, Oracle, Task
from swe_gym_command import main

SETTINGS = SelectionSettings()


def change(new: str, *, old: str = "    return a - b", path: str = "calc.py") -> str:
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return f"{head}@@ -1,2 +1,2 @@\n def add(a, b):\n-{old}\n+{new}\n"


def new_test(value: str, path: str = "tests/test_mine.py") -> str:
    lines = [
        "import unittest",
        "from calc import add",
        "",
        "class MineTest(unittest.TestCase):",
        f"    def test_add(self): self.assertEqual(add(2, 3), {value})",
    ]
    body = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n{body}"
    )


# --- the numbers --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=7), st.data())
def test_the_expected_choice_is_the_mean_over_all_subsets(rows: list[tuple[int, bool]], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(rows)))
    scores, values = [float(score) for score, _ in rows], [float(value) for _, value in rows]
    means = []
    for some in itertools.combinations(range(len(rows)), k):
        best = max(scores[place] for place in some)
        tied = [values[place] for place in some if scores[place] == best]
        means.append(sum(tied) / len(tied))
    assert expected_choice(scores, values, k) == pytest.approx(sum(means) / len(means))
    assert expected_choice(values, values, k) == pytest.approx(pass_at_k(len(rows), int(sum(values)), k))


def test_auc_and_calibration_of_known_scores() -> None:
    assert pairwise_auc([([0.9, 0.1], [True, False]), ([0.5, 0.5], [True, False]), ([1.0], [True])]) == 0.75
    assert pairwise_auc([([0.9], [True])]) is None
    bins = score_bins([0.05, 0.95, 1.0, 1.0], [False, True, True, False])
    assert [one.attempts for one in bins] == [1, 3]
    assert calibration_error(bins) == pytest.approx((0.05 + 3 * abs(2.95 / 3 - 2 / 3)) / 4)
    assert calibration_error([]) is None


# --- runs with known answers --------------------------------------------------------------------------------


def tasks_of(count: int) -> dict[str, Task]:
    return {f"t-{number}": Task(task_id=f"t-{number}", problem_statement="Sums are wrong.") for number in range(count)}


def noisy_run(path: Path, tasks: dict[str, Task], *, permuted: bool = False) -> Path:
    """Write eight attempts at each task: right ones are equal, wrong ones differ, log-probability says a little."""
    draw, records = random.Random(1), []
    for task_id in tasks:
        right = [draw.random() < 0.55 for _ in range(8)]
        told = random.Random(2).sample(right, 8) if permuted else right
        for number, good in enumerate(right):
            logprob = -0.1 - (0.0 if good else 0.2) - draw.random() / 2
            patch = change("    return a + b" if good else f"    return a - b - {number}")
            row = Segment(token_ids=(1, 2), loss_mask=(0, 1), logprobs=(0.0, logprob), versions=(-1, 0))
            changes: dict[str, Any] = {"patch": patch, "segments": (row,)}
            records.append(trajectory(task_id, number, resolved=told[number], **changes))
    return write_run(path, *records, tasks=tuple(tasks))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    tasks = tasks_of(20)
    run = noisy_run(tmp_path_factory.mktemp("runs") / "noisy", tasks)
    found = select(run, tasks, ["votes", "logprob"], SETTINGS)
    assert Selection.model_validate_json((run / "selection.json").read_text()) == found
    return found


def test_choices_are_never_below_random_and_grow_with_k(noisy: Selection) -> None:
    for result in noisy.results:
        chosen = [point.chosen for point in result.points]
        assert [point.k for point in result.points] == list(range(1, 9))
        assert chosen[0] == pytest.approx(result.points[0].random)
        assert all(after >= before - 1e-9 for before, after in itertools.pairwise(chosen[1:]))
        for point in result.points:
            assert point.random - 1e-9 <= point.chosen <= point.oracle + 1e-9
            assert point.low <= point.chosen <= point.high
        assert result.difference is not None
        assert result.difference > 0.2
        assert result.p_value < 0.05
        assert result.auc is not None
        assert result.auc > 0.6


def test_outcomes_that_change_change_no_choice(tmp_path: Path, noisy: Selection) -> None:
    tasks = tasks_of(20)
    permuted = select(noisy_run(tmp_path / "run", tasks, permuted=True), tasks, ["votes", "logprob"], SETTINGS)
    for one, other in zip(noisy.results, permuted.results, strict=True):
        assert one.choices == other.choices
        assert one.points[-1].chosen != other.points[-1].chosen


def test_a_candidate_holds_nothing_of_the_grading() -> None:
    patch = change("    return a + b")
    graded = [trajectory("t-0", resolved=resolved, patch=patch, info={}) for resolved in (False, True)]
    assert Candidate.of(graded[0]) == Candidate.of(graded[1])


def test_many_attempts_are_sampled_where_they_depend_on_each_other(tmp_path: Path) -> None:
    tasks = tasks_of(1)
    patches = [change("    return a + b"), *(change(f"    return {number}") for number in range(13))]
    records = [trajectory("t-0", n, resolved=not n, patch=patch) for n, patch in enumerate(patches)]
    run = write_run(tmp_path / "run", *records, tasks=("t-0",))
    points = select(run, tasks, ["votes"], SETTINGS).results[0].points
    assert [point.chosen for point in points] == pytest.approx([1 / 14] * 14, abs=0.01)


def by_length(tasks: list[TaskAttempts], settings: SelectionSettings, others: Any) -> list[Scores]:  # noqa: ARG001
    """A selector of the user's."""
    return [fixed_scores([1 / len(one.patch) for one in attempts.candidates]) for attempts in tasks]


def test_a_selector_of_the_users_is_named_by_its_path(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        trajectory("t-0", 0, patch=change("    return a + b  # ...")),
        trajectory("t-0", 1, resolved=True, patch=change("    return a + b")),
        tasks=("t-0",),
    )
    result = select(run, tasks_of(1), [f"{__name__}:by_length"], SETTINGS).results[0]
    assert result.choices["t-0"].best == (1,)
    assert [point.chosen for point in result.points] == [0.5, 1.0]


def wrong_scores(tasks: list[TaskAttempts], settings: SelectionSettings, others: Any) -> list[Scores]:  # noqa: ARG001
    return [fixed_scores([float("nan")])]


def too_few(tasks: list[TaskAttempts], settings: SelectionSettings, others: Any) -> list[Scores]:  # noqa: ARG001
    return []


@pytest.mark.parametrize(
    ("name", "said"), [("wrong_scores", "from 0 to 1"), ("too_few", "scores of 0 tasks, not of 1")]
)
def test_a_wrong_selector_is_named_and_keeps_the_others(tmp_path: Path, name: str, said: str) -> None:
    run = write_run(tmp_path / "run", trajectory("t-0"), tasks=("t-0",))
    with pytest.raises(UsageError, match=f"selector '{__name__}:{name}'.*{said}"):
        select(run, tasks_of(1), ["votes", f"{__name__}:{name}"], SETTINGS)
    assert [one.selector for one in Selection.model_validate_json((run / "selection.json").read_text()).results] == [
        "votes"
    ]


def test_the_interval_is_of_the_difference_beside_it() -> None:
    tasks = tasks_of(100)
    rows = [TaskAttempts(task, tuple(Candidate(attempt=n, patch="") for n in range(4))) for task in tasks.values()]
    scores = [fixed_scores([1, 1, 1, 0]) for _ in rows]
    found = measure("x", rows, scores, dict.fromkeys(tasks, (True, False, False, False)))
    assert found.difference == pytest.approx(1 / 12)
    assert 0 < found.low < found.difference < found.high


@pytest.mark.parametrize(("name", "said"), [("logprob", "no recorded tokens"), ("judge", "--model"), ("vote", "votes")])
def test_what_cannot_choose_says_why(tmp_path: Path, name: str, said: str) -> None:
    run = write_run(tmp_path / "run", trajectory("t-0"), tasks=("t-0",))
    with pytest.raises(UsageError, match=said):
        select(run, tasks_of(1), ["votes", name], SETTINGS)
    assert not (run / "selection.json").exists()


def test_a_cut_patch_is_left_out_by_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", trajectory("t-0"), trajectory("t-0", 1, patch_bytes=2 << 20), tasks=("t-0",))
    found = select(run, tasks_of(1), ["votes"], SETTINGS)
    assert found.attempts == 1
    assert "2097152 bytes" in found.left_out["t-0, attempt 1"]


# --- equal patches ------------------------------------------------------------------------------------------

SAME = [
    change("    return a + b"),
    change("    return  a + b  "),
    change("    # the sum\n+\n+    return a + b"),
    change("    return a + b").replace("@@ -1,2 +1,2 @@\n def", "@@ -7,2 +9,2 @@ class X:\n def"),
    change("    return a + b") + new_test("5"),
]


def test_equal_changes_have_one_form() -> None:
    assert len({normalize_patch(patch) for patch in SAME}) == 1


def test_other_changes_have_other_forms() -> None:
    others = [
        SAME[0],
        change("        return a + b"),  # Python's indentation
        change("    return a + b", path="other.py"),
        change("#define A", path="calc.h"),
        change("#define B", path="calc.h"),
        change("    return a +\tb"),
        change("\treturn a + b"),
        change("    return 'a  b'"),
        change("    return 'a b'"),
        change("    return a + b").replace("--- ", "old mode 100644\nnew mode 100755\n--- ", 1),
        "diff --git a/y b/y\ndeleted file mode 100644\n--- a/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-y\n",
        "diff --git a/y b/y\n--- a/y\n+++ b/y\n@@ -1 +0,0 @@\n-y\n",
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        "",
    ]
    assert len({normalize_patch(patch) for patch in others}) == len(others)


def test_a_package_for_tests_is_work() -> None:
    work = [change("x", path=path) for path in ("django/test/client.py", "numpy/testing/utils.py", "a/spec/b.py")]
    tests = [change("x", path=path) for path in ("test/a.py", "a/tests/b.py", "src/test/java/A.java", "lib/a_test.go")]
    one = Candidate(attempt=0, patch="".join([*work, *tests]))
    assert (one.work, one.tests) == ("".join(work), "".join(tests))


def test_lost_sandboxes_are_the_works_fault_only_where_others_keep_theirs() -> None:
    """Tests that no work survives do not count; a task without a test has no scores."""
    row = TaskAttempts(
        tasks_of(1)["t-0"], (Candidate(attempt=0, patch=RIGHT + new_test("5")), Candidate(attempt=1, patch=WRONG))
    )
    good, lost = RunOutcome(frozenset({"a"})), RunOutcome(failure="SandboxLost: gone")
    start = {("", ""): good, (RIGHT, ""): good}
    assert _score(row, {**start, (WRONG, ""): lost}).among([0, 1]) == [0.5, 0.0]
    bad_tests = {(RIGHT, new_test("5")): lost, (WRONG, new_test("5")): lost}
    assert _score(row, {**start, (WRONG, ""): good, **bad_tests}).among([0, 1]) == [0.5, 0.5]
    assert _score(row, {("", ""): good, (RIGHT, ""): lost, (WRONG, ""): lost}).failure == "SandboxLost: gone"
    untested = row._replace(candidates=row.candidates[1:])
    assert "no visible test" in _score(untested, {("", ""): RunOutcome(), (WRONG, ""): RunOutcome()}).failure


def test_no_work_is_never_chosen_by_tests_though_it_breaks_none() -> None:
    """A right solution may have to break a visible test. Tests alone are no work."""
    patches = ("", new_test("5"), RIGHT)
    row = TaskAttempts(tasks_of(1)["t-0"], tuple(Candidate(attempt=n, patch=one) for n, one in enumerate(patches)))
    start, kept = RunOutcome(frozenset({"a", "b"})), RunOutcome(frozenset({"a"}))
    results = {("", ""): start, (RIGHT, ""): kept, ("", new_test("5")): RunOutcome(), (RIGHT, new_test("5")): kept}
    assert _score(row, results).among([0, 1, 2]) == [0.0, 0.0, 0.25]


@pytest.mark.parametrize(
    ("answer", "score"),
    [("SCORE: 85", 0.85), ("SCORE: 0.85", 0.85), ("SCORE: 1.0", 1.0), ("SCORE: 1", 0.01), ("SCORE = `90`/100", 0.9)],
)
def test_a_score_is_a_percentage_or_a_share(answer: str, score: float) -> None:
    found = SCORE.findall(answer)
    assert read_score(found[-1]) == score


def test_a_selector_of_a_plugin_runs_in_the_sandboxes_of_the_run() -> None:
    where = Where(None, None, "local", ["ttl=999"], 3, {"executor": None})
    assert _settings(where, [], ["mine"], (), None).sandbox_options
    assert not _settings(where, [], ["votes"], (), None).sandbox_options


# --- with tests and a model ---------------------------------------------------------------------------------

RIGHT, WRONG, BREAKS = change("    return a + b"), change("    return a * b"), change("    return 7")
PATCHES = [WRONG + new_test("5"), RIGHT + new_test("5"), BREAKS, "", RIGHT + new_test("6")]
"""A wrong one that wrote a right test, a right one, one that breaks the visible test, none, one with a wrong test."""


@pytest.fixture
def calc(tmp_path: Path) -> Path:
    """A task file; the visible test passes before any work."""
    folder = tmp_path / "calc"
    (folder / "tests").mkdir(parents=True)
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "tests/__init__.py").write_text("")
    old = "import unittest\nfrom calc import add\n\nclass OldTest(unittest.TestCase):\n"
    (folder / "tests/test_old.py").write_text(f"{old}    def test_one(self): self.assertEqual(add(1, 2) * 0, 0)\n")
    (folder / "tests/test_sign.py").write_text(f"{old}    def test_kind(self): self.assertNotEqual(add(9, 1), 7)\n")
    task = Task(
        task_id="calc",
        problem_statement="Sums are wrong.",
        workspace=FolderWorkspace(path=str(folder)),
        eval_cmd="python -m unittest discover -s tests -t .",
        oracle=Oracle(test_cmd="python -m unittest hidden", fail_to_pass=("hidden.T.test",)),
    )
    write_tasks([task], tmp_path / "tasks.jsonl")
    return tmp_path / "tasks.jsonl"


@pytest.fixture
def judge() -> Iterator[OpenAIServer]:
    """A judge that likes sums, and has to be asked twice about one patch."""
    asked: list[str] = []

    def reply(request: Any) -> ModelReply:
        prompt = request["messages"][-1]["content"]
        asked.append(prompt)
        if "return 7" in prompt and asked.count(prompt) == 1:
            return ModelReply(content="I am not sure.")
        return ModelReply(content=f"It is so.\n**SCORE: {90 if 'a + b' in prompt else 20}**")

    with OpenAIServer(reply) as server:
        yield server


def write_attempts(path: Path, source: Path, resolved: list[bool]) -> Path:
    env = {"source": "file", "source_options": {"path": str(source)}, "backend": "local", "sandbox_options": {}}
    records = [
        trajectory("calc", number, resolved=good, patch=patch)
        for number, (patch, good) in enumerate(zip(PATCHES, resolved, strict=True))
    ]
    return write_run(path, *records, tasks=("calc",), config={"policy": "x", "env": env})


def test_tests_and_a_judge_choose_by_the_command_line(
    calc: Path, judge: OpenAIServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", judge.api_key)
    run = write_attempts(calc.parent / "run", calc, [False, True, False, False, True])
    with pytest.raises(SystemExit) as end:
        main(["select", str(run), "--model", judge.model, "--base-url", judge.base_url])
    assert end.value.code in (0, None)
    found = json.loads((run / "selection.json").read_text())
    results = {result["selector"]: result for result in found["results"]}
    assert list(results) == ["votes", "tests", "judge", "hybrid"]
    # Of the others' suites, right work passes the right ones, wrong work the wrong one; one breaks a test, one is none.
    assert results["tests"]["choices"]["calc"]["scores"] == pytest.approx([0.75, 0.75, 0.25, 0.0, 1.0])
    assert results["judge"]["choices"]["calc"]["scores"] == [0.2, 0.9, 0.2, 0.0, 0.9]
    assert results["hybrid"]["choices"]["calc"]["best"] == [4]
    assert results["votes"]["choices"]["calc"]["best"] == [1, 4]
    assert results["judge"]["tokens"] > 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split() == ["k", "tasks", "random", "votes", "tests", "judge", "hybrid", "oracle"]
    assert f"5 attempts at 1 tasks. Choices and scores: {run}/selection.json" in printed
