"""Certificates say what was found, and why that proves no more. The same patch has the same outcome everywhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swe_gym.certification import Certificate, Claim, JudgeSettings, Origins, certify, regrade
from swe_gym.certification.regrading import PatchWork, digest_conditions, read_regraded
from swe_gym.curation import validate
from swe_gym.errors import UsageError
from swe_gym.files import append_lines
from swe_gym.grading import CounterOptions
from swe_gym.grading.diff import file_diff
from swe_gym.tasks import TaskRecord, digest
from swe_gym.types import FolderWorkspace, JsonObject, Task, Verdict

OLD = "def add(a, b):\n    return a - b\n"
FORCED = "\n\nimport unittest\n\nunittest.TestCase.assertEqual = lambda *_: None\n"
ORIGINS = Origins("predictions", "tasks", {})


def work(new: str) -> str:
    """The diff of a work on `adder`."""
    return file_diff("calc.py", OLD.encode(), new.encode(), 0o100644, 0o100644)


RIGHT = work("def add(a, b):\n    return a + b\n")
PATCHES = {
    "gold": (RIGHT, "proven"),
    "different": (work("def add(a, b):\n    return b - -a\n"), "proven"),
    "cheat": (work(OLD + FORCED), "refuted"),
    "weak": (work("def add(a, b):\n    return a + b if b != 7 else 0\n"), "proven"),
    "wrong": (work("def add(a, b):\n    return a * b\n"), "refuted"),
}
"""Name -> a patch on `adder`, and its outcome. The tests do not see what is wrong with the weak one."""


class OneTask:
    """A source of one task."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def ids(self) -> list[str]:
        return [self.task.task_id]

    def get(self, task_id: str) -> Task:
        assert task_id == self.task.task_id
        return self.task


def certified(
    task: Task,
    *claims: Claim,
    record: TaskRecord | None = None,
    known: Sequence[Certificate] = (),
    **settings: Any,
) -> list[Certificate | str]:
    """What becomes of claims, in their order."""
    where = JudgeSettings(**settings)
    if record is None:
        how = {"backend": where.backend, "sandbox_options": where.sandbox_options}
        (record,) = validate(OneTask(task), times=1, **how)
    found = certify(claims, {task.task_id: task}, {task.task_id: record}, where, ORIGINS, times=1, known=known)
    ends = {claim.name: end for claim, end in found}
    return [ends[claim.name] for claim in claims]


def outcome(end: Certificate | str) -> str:
    assert isinstance(end, Certificate), end
    return end.outcome


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("executor", ["threads", "process"])
def test_each_kind_of_patch_gets_its_outcome(adder: Task, executor: str) -> None:
    claims = [Claim("adder", patch, number, 1.0) for number, (patch, _) in enumerate(PATCHES.values())]
    ends = certified(adder, *claims, executor=executor)
    assert [outcome(end) for end in ends] == [said for _, said in PATCHES.values()]
    cheat = ends[list(PATCHES).index("cheat")]
    assert isinstance(cheat, Certificate)
    assert "tests.test_add.AddTest.test_add" in cheat.alarms


VALID = TaskRecord(task_id="adder", status="valid", backend="local")


def test_later_attempts_with_a_certified_patch_are_not_judged_again(adder: Task) -> None:
    claims = [Claim("adder", PATCHES[name][0], number, 1.0) for number, name in enumerate(("gold", "cheat", "wrong"))]
    claims.append(Claim("adder", work("def add(a, b):\n    return 2\n"), 3, 0.0, env={"reward": "fraction"}))
    first = [one for one in certified(adder, *claims, record=VALID) if isinstance(one, Certificate)]
    assert [one.outcome for one in first] == ["proven", "refuted", "refuted", "unproven"]
    later = [Claim(one.task_id, one.patch.rstrip("\n"), one.attempt + 4, one.claimed, env=one.env) for one in first]
    again = [one for one in certified(adder, *later, record=VALID, known=first) if isinstance(one, Certificate)]
    assert [(one.attempt, one.judged_as) for one in again] == [(4, 0), (5, 1), (6, 2), (7, 3)]
    own = {"attempt", "judged_as", "patch", "patch_sha256", "digest"}
    assert [one.model_dump(exclude=own) for one in again] == [one.model_dump(exclude=own) for one in first]
    assert all(one.digest == one.compute_digest() and one.claim.sha256 == one.patch_sha256 for one in again)


def test_of_two_certificates_about_a_patch_the_refuted_one_counts(adder: Task) -> None:
    (refuted,) = certified(adder, Claim("adder", PATCHES["wrong"][0], 0, 1.0), record=VALID)
    assert isinstance(refuted, Certificate)
    proven = refuted.model_copy(update={"outcome": "proven", "attempt": 1}).sealed()
    for known in ((refuted, proven), (proven, refuted)):
        (end,) = certified(adder, Claim("adder", PATCHES["wrong"][0], 2, 1.0), record=VALID, known=known)
        assert isinstance(end, Certificate)
        assert (end.outcome, end.judged_as) == ("refuted", 0)


def test_a_certificate_under_other_conditions_says_nothing(adder: Task) -> None:
    lost: JsonObject = {
        "options": {"files": {"a": ""}, "faults": [{"at": "start", "error": "SandboxStartError", "nth": "every"}]}
    }
    valid = VALID.model_copy(update={"digest": digest(adder)})
    (end,) = certified(adder, Claim("adder", RIGHT, 0, 1.0), record=valid)
    assert isinstance(end, Certificate)
    where: dict[str, Any] = {"backend": "fake", "sandbox_options": lost}  # every judgement fails there
    conditions = digest_conditions(PatchWork(adder, "", CounterOptions()), JudgeSettings(**where))
    right = end.model_copy(update={**where, "judging_sha256": conditions}).sealed()

    def is_taken_over(record: TaskRecord = valid, known: Certificate = right, **claimed: Any) -> bool:
        claim = Claim("adder", RIGHT, 9, **{"reward": 1.0, **claimed})
        stranger = right.model_copy(update={"task_id": "elsewhere"}).sealed()
        return isinstance(certified(adder, claim, record=record, known=[known, stranger], **where)[0], Certificate)

    assert is_taken_over()
    assert not is_taken_over(known=right.model_copy(update={"seconds": -1.0}))  # its digest is wrong
    assert not is_taken_over(reward=2.0)
    assert not is_taken_over(env={"judge_runs": 3})
    records: list[JsonObject] = [{"gold": (True,)}, {"image": "sha256:1"}, {"unfit": {"tests.x": ("literal",)}}]
    assert not any(is_taken_over(valid.model_copy(update=more)) for more in records)


def test_attempts_with_the_same_patch_are_judged_once(adder: Task) -> None:
    stripped, others = RIGHT.rstrip("\n"), {"judge_runs": 3}
    claims = [Claim("adder", RIGHT, 0, 1.0), Claim("adder", stripped, 1), Claim("adder", RIGHT, 2, 1.0, env=others)]
    first, second, third = certified(adder, *claims)
    assert isinstance(first, Certificate)
    assert isinstance(second, Certificate)
    assert isinstance(third, Certificate)
    assert (first.seconds, first.tests) == (second.seconds, second.tests)
    assert first.seconds != third.seconds
    assert [one.outcome for one in (first, second, third)] == ["proven"] * 3
    assert [one.patch for one in (first, second)] == [RIGHT, stripped]


def with_oracle(task: Task, **fields: Any) -> Task:
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


@pytest.mark.slow
def test_a_certificate_names_what_nothing_proves(adder: Task) -> None:
    def end_of(task: Task, claim: Claim, **settings: Any) -> tuple[str, str]:
        (end,) = certified(task, claim, **settings)
        assert isinstance(end, Certificate), end
        return end.outcome, end.why

    gold = Claim("adder", RIGHT, reward=1.0)
    by_exit = with_oracle(adder, grader="exit_code", fail_to_pass=(), pass_to_pass=())
    assert end_of(by_exit, gold, record=VALID) == ("unproven", "the task names no test that must start passing")
    always = with_oracle(adder, fail_to_pass=("tests.test_add.AddTest.test_nothing",), pass_to_pass=())
    assert end_of(always, gold) == (
        "unproven",
        "its task is not valid: empty passes: the hidden tests do not detect the problem",
    )
    unsafe = {"sandbox_options": {"options": {"tier": "process"}}}
    why = "work can change the hidden tests in isolation 'process'"
    assert end_of(adder, gold, record=VALID, **unsafe) == ("unproven", why)
    part = Claim("adder", work("def add(a, b):\n    return 2\n"), reward=0.1, env={"reward": "fraction"})
    both = with_oracle(
        adder, fail_to_pass=("tests.test_add.AddTest.test_add", "tests.test_add.AddTest.test_gone"), pass_to_pass=()
    )
    assert end_of(both, part)[0] == "refuted"
    too_much = Claim("adder", RIGHT, reward=2.0)
    assert end_of(adder, too_much, record=VALID) == ("refuted", "it earns 1, not 2")
    half = Claim("adder", RIGHT, reward=0.5, env={"reward": "fraction"})
    assert end_of(both, half, record=VALID) == ("unproven", "not resolved: a part of the reward, 0.5, as claimed")


def test_a_task_that_could_not_be_validated_gives_no_certificate(adder: Task) -> None:
    gold = Claim("adder", RIGHT, reward=1.0)
    for status, said in (("error", "could not be validated: SandboxLost"), ("skipped", "could not be validated: ")):
        record = TaskRecord(task_id="adder", status=status, reason="SandboxLost", backend="local")  # type: ignore[arg-type]
        (end,) = certified(adder, gold, record=record)
        assert isinstance(end, str)
        assert said in end


# --- regrade ---------------------------------------------------------------------------------------------------


def faults(*faults: dict[str, Any]) -> JudgeSettings:
    """A scripted backend that fails."""
    return JudgeSettings("fake", {"options": {"files": {"a": ""}, "faults": list(faults)}})


def test_a_failure_is_a_line_and_is_tried_again(adder: Task, tmp_path: Path) -> None:
    old = Verdict(resolved=True)
    claims = [Claim("adder", RIGHT, reward=1.0, verdict=old), Claim("adder", "", 1, 0.0, verdict=old)]
    lost = {"at": "start", "error": "SandboxStartError", "nth": "every"}
    first = regrade(tmp_path, claims, {"adder": adder}, faults(lost))
    assert [line.reward for line in first] == [None, None]
    assert all(line.why.startswith("SandboxStartError") and not line.same for line in first)
    second = regrade(tmp_path, claims, {"adder": adder}, JudgeSettings())
    assert [(line.before, line.reward, line.same) for line in second] == [(1.0, 1.0, True), (0.0, 0.0, True)]
    assert regrade(tmp_path, claims, {"adder": adder}, JudgeSettings()) == second
    lines = read_regraded(tmp_path / "regraded.jsonl")
    assert sorted(lines, key=lambda line: (line.reward is not None, line.attempt)) == [*first, *second]


def test_a_failure_that_may_pass_is_tried_twice_at_once(adder: Task, tmp_path: Path) -> None:
    claims = [Claim("adder", RIGHT, reward=1.0)]
    lost = {"at": "manifest", "error": "SandboxLost", "reason": "evicted", "nth": "every"}
    (line,) = regrade(tmp_path, claims, {"adder": adder}, faults(lost))
    assert line.why.startswith("SandboxLost (evicted)")


def test_a_later_attempt_with_the_same_patch_is_not_judged_again(adder: Task, tmp_path: Path) -> None:
    old = Verdict(resolved=True)
    (first,) = regrade(tmp_path, [Claim("adder", RIGHT, reward=1.0, verdict=old)], {"adder": adder}, JudgeSettings())
    claims = [Claim("adder", RIGHT, 1, 1.0, verdict=old), Claim("adder", RIGHT, 2, 1.0, config_hash="b", verdict=old)]
    second, other = regrade(tmp_path, claims, {"adder": adder}, JudgeSettings())
    assert (second.attempt, second.judged) == (1, first.judged)
    assert other.judged == first.judged


def test_a_verdict_reached_elsewhere_says_nothing(adder: Task, tmp_path: Path) -> None:
    """The code of a folder changes, or the sandboxes: the path and the backend stay."""
    assert isinstance(adder.workspace, FolderWorkspace)

    def rewards(attempt: int, **settings: Any) -> float | None:
        claim = Claim("adder", "", attempt, 0.0, verdict=Verdict(resolved=False))
        return regrade(tmp_path, [claim], {"adder": adder}, JudgeSettings(**settings))[0].reward

    assert rewards(0) == 0.0
    with pytest.raises(UsageError):  # it is judged there
        rewards(1, sandbox_options={"start_timeout": -1.0})
    (Path(adder.workspace.path) / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    assert rewards(2) == 1.0


def test_of_two_lines_about_a_patch_the_refuted_one_counts(adder: Task, tmp_path: Path) -> None:
    claims = [Claim("adder", "", number, 0.0, verdict=Verdict(resolved=False)) for number in range(3)]
    (line,) = regrade(tmp_path, claims[:1], {"adder": adder}, JudgeSettings())
    better = {"attempt": 1, "reward": 1.0, "judged": {"verdict": {"resolved": True}}}
    append_lines(tmp_path / "regraded.jsonl", json.dumps(line.model_dump(mode="json") | better))
    (end,) = regrade(tmp_path, claims[2:], {"adder": adder}, JudgeSettings())
    assert (end.reward, end.judged) == (0.0, line.judged)


def test_a_changed_task_or_patch_is_judged_again(adder: Task, tmp_path: Path) -> None:
    def rewards(task: Task, patch: str) -> list[float | None]:
        claim = Claim("adder", patch, reward=1.0, verdict=Verdict(resolved=True))
        return [line.reward for line in regrade(tmp_path, [claim], {"adder": task}, JudgeSettings())]

    assert rewards(adder, RIGHT) == [1.0]
    assert rewards(with_oracle(adder, fail_to_pass=("tests.test_add.AddTest.gone",)), RIGHT) == [0.0]
    assert rewards(adder, "") == [0.0]
    assert len(read_regraded(tmp_path / "regraded.jsonl")) == 3


def test_an_alarm_earns_what_the_environment_says(adder: Task, tmp_path: Path) -> None:
    cheat = Claim("adder", PATCHES["cheat"][0], reward=1.0, env={"alarm_reward": -1}, verdict=Verdict(resolved=True))
    (line,) = regrade(tmp_path, [cheat], {"adder": adder}, JudgeSettings())
    assert (line.reward, line.same) == (-1.0, False)
    assert line.why == "a counter-test passed, which correct work fails"
