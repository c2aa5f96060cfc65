"""Certificates: what the judge found about rewarded attempts, as JSON that anyone can check.

A certificate holds digests of everything that led to it, and a digest of itself. A digest is not a signature: anyone
who changes a file can compute it again. So a check repeats the whole judgement.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from ..errors import TaskError, UsageError, quantify, wrong_fields
from ..files import write_text
from ..grading import REWARDS
from ..rollout import without_secrets
from ..tasks import TaskRecord, digest
from ..types import Frozen, JsonObject, Task, TestStatus, Verdict
from .claims import Claim, Origin, read_object
from .regrading import (
    MOST_RUNS,
    Judged,
    JudgeSettings,
    PatchWork,
    Versions,
    WorkKey,
    as_diff,
    digest_conditions,
    find_invalid,
    find_versions,
    is_close,
    judge_works,
    reward_of,
    works_of,
)

Outcome = Literal["proven", "unproven", "refuted"]

UNSAFE = ("", "none", "process")
"""Isolations in which work can change the hidden tests."""

DECIDING = ("reward", "alarm_reward", "counter", "judge_runs")
"""Arguments of an environment that decide on rewards."""

CHANGED = "it was changed after it was written"

REPORTED = ("image_digest", "backend", "sandbox_options", "isolation", "versions", "source", "source_options", "why")
"""Fields that may differ between machines. Differences are reported, and refute nothing."""

OF_CHANCE = ("tests", "alarms", "dropped")
"""Fields that may differ if both runs refute the work: another test may find the cheat."""

OF_A_RECORD = ("record.reason", "record.gold", "record.empty", "record.flaky")
"""Details of a validation. Its status must be the same."""

OF_THE_RUN = ("date", "seconds", "test_seconds", "judged_as", "judging_sha256", "digest")
"""Fields that belong to one run of the judge."""

OF_THE_CLAIM = ("version", "task_id", "attempt", "origin", "model", "claimed", "patch", "env", "times")
"""Input of a check. Only the file with the attempts can confirm these fields."""


def find_unsafe(env: JsonObject) -> str:
    """Return why a reward must not be computed by arguments from a file; empty if it may."""
    reward = env.get("reward", "binary")
    if not isinstance(reward, str) or reward not in REWARDS:
        return f"the reward {reward!r} is not built in: `swe-gym regrade` computes others"
    return find_invalid(env)


class Deviation(NamedTuple):
    """A field in which a check differs from its certificate.

    Attributes:
        field: Name of the field.
        certified: What the certificate says.
        found: What the check found.
        refutes: Whether the certificate is wrong. Otherwise the machines or the runs differ.
    """

    field: str
    certified: str
    found: str
    refutes: bool = True

    def __str__(self) -> str:
        return f"{self.field}: {self.certified}, here {self.found}"


class CertifiedTest(Frozen):
    """A required test.

    Attributes:
        status: How it ended.
        starts: Whether it must start passing. Otherwise it must keep passing.
        texts: Number of its texts among which only a guess finds the original; 0 without a counter-test. With 1, work
            that reads the test can tell the original.
    """

    status: TestStatus
    starts: bool
    texts: int = 0


class CertifiedTask(Frozen):
    """What validating the task found.

    Attributes:
        status: As in `TaskRecord`.
        reason: Why the task is not usable; empty if it is.
        gold: Whether each run judged the gold patch resolved.
        empty: Whether each run judged the untouched repository resolved.
        flaky: Required tests that pass in some runs of the same work and not in others.
    """

    status: str
    reason: str = ""
    gold: tuple[bool, ...] = ()
    empty: tuple[bool, ...] = ()
    flaky: tuple[str, ...] = ()


class Certificate(Frozen):
    """What the judge found about one rewarded attempt. Hidden from policies, because it names tests.

    Attributes:
        version: Version of the format.
        task_id: Task of the attempt.
        attempt: Number of the attempt.
        origin: Kind of the file that claims the reward.
        model: Model or policy, as the file names it.
        claimed: Reward as the file claims it; None if the file has none.
        outcome: "proven": the reward holds, and each test that must start passing has a counter-test that the work
            failed, as correct work does. "unproven": the reward holds, but `why` says what nothing proves. "refuted":
            the reward does not hold.
        why: The reason, in one sentence.
        reward: Reward as re-graded.
        alarms: Counter-tests that passed, although they fail with the gold patch.
        tests: Required test -> its result.
        record: What validating the task found.
        dropped: Paths that the patch changes and grading set back.
        source: Name of the task source.
        source_options: Its arguments.
        task_sha256: SHA-256 of the task, its oracle and its code.
        patch_sha256: SHA-256 of the patch.
        judging_sha256: SHA-256 of what else the judgement follows from, as `digest_conditions`.
        image: Image of the task; empty without one.
        image_digest: Its digest, as the backend knows it.
        backend: Kind of sandbox.
        sandbox_options: Options as in `SweEnv`.
        isolation: Isolation of the sandbox.
        env: Arguments of the environment that decide on the reward.
        times: Runs of the validation in each state.
        versions: What judged.
        date: Date of the judgement (ISO 8601).
        judged_as: Number of the attempt with the same patch whose judgement it repeats; None if it was judged itself.
        seconds: Wall-clock time of judging.
        test_seconds: Part of it that the tests took.
        patch: The work as a git diff.
        digest: SHA-256 of all other fields.
    """

    version: Literal[1] = 1
    task_id: str
    attempt: int = Field(ge=0)
    origin: Origin
    model: str = ""
    claimed: float | None = None
    outcome: Outcome
    why: str
    reward: float
    alarms: tuple[str, ...] = ()
    tests: dict[str, CertifiedTest] = Field(default={}, repr=False)
    record: CertifiedTask
    dropped: tuple[str, ...] = ()
    source: str
    source_options: JsonObject = {}
    task_sha256: str
    patch_sha256: str
    judging_sha256: str = ""
    image: str = ""
    image_digest: str = ""
    backend: str
    sandbox_options: JsonObject = {}
    isolation: str = ""
    env: JsonObject = {}
    times: int = Field(ge=1, le=MOST_RUNS)
    versions: Versions
    date: str = ""
    judged_as: int | None = None
    seconds: float = 0.0
    test_seconds: float = 0.0
    patch: str = Field(repr=False)
    digest: str = ""

    @model_validator(mode="after")
    def _can_be_repeated(self) -> Self:
        """Refuse a file whose check would run code that it names, or run for ever."""
        if why := find_unsafe(self.env):
            raise ValueError(f"env: {why}")
        return self

    def compute_digest(self) -> str:
        """Return the SHA-256 of all fields but `digest`, as JSON with sorted keys and no blanks."""
        fields = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def sealed(self) -> Self:
        """Return the certificate with its digest."""
        return self.model_copy(update={"digest": self.compute_digest()})

    def write(self, folder: Path) -> None:
        """Write the certificate into a folder, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(file_of(folder, self.claim), self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a certificate. Its digest may be wrong.

        Raises:
            UsageError: The file is missing, or not a certificate.
        """
        try:
            found = cls.model_validate_json(data := path.read_bytes())
            json.loads(data, object_pairs_hook=_refuse_repeated)
        except FileNotFoundError:
            raise UsageError(f"file not found: {path}") from None
        except ValidationError as error:
            raise UsageError(f"{path} is not a certificate of version 1: {wrong_fields(error)}") from error
        except ValueError as error:
            raise UsageError(f"{path} is not a certificate of version 1: {error}") from error
        return found

    @classmethod
    def read_all(cls, path: Path) -> dict[Path, Self]:
        """Read a certificate, or all of a folder.

        Raises:
            UsageError: There is none, a file is not a certificate, or two are about one attempt.
        """
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{path} holds no certificate: `swe-gym certify ATTEMPTS {path}` writes them")
        found = {file: cls.read(file) for file in files}
        names = Counter(one.claim.name for one in found.values())
        for file, one in found.items():
            if names[one.claim.name] > 1:
                raise UsageError(
                    f"{file} certifies {one.claim.name}, and so does another file in the folder: check it alone"
                )
        return found

    def deviations(self, again: Certificate) -> list[Deviation]:
        """Return how a repetition differs, and which digests do not match the content of the certificate."""
        digests = (
            ("digest", self.digest, self.compute_digest()),
            ("patch_sha256", self.patch_sha256, self.claim.sha256),
        )
        wrong = [Deviation(name, old or "none", f"{new}: {CHANGED}") for name, old, new in digests if old != new]
        old, new = (one.model_dump(mode="json") for one in (self, again))
        refuted = self.outcome == again.outcome == "refuted"
        for name in Certificate.model_fields.keys() - {*OF_THE_RUN, *OF_THE_CLAIM, "patch_sha256"}:
            reported = name in REPORTED or (refuted and name in OF_CHANCE)
            wrong.extend(_differ(name, old[name], new[name], refutes=not reported))
        return sorted(wrong, key=lambda one: (not one.refutes, one.field))

    def passed_on(self, claim: Claim, origins: Origins) -> Self:
        """Return the certificate of another attempt with the same patch, claimed reward and environment."""
        own = {"attempt": claim.attempt, "model": claim.model, "patch": claim.patch, "patch_sha256": claim.sha256}
        return self.model_copy(update={**own, **origins._asdict(), "judged_as": self.attempt}).sealed()

    @property
    def claim(self) -> Claim:
        """The claim that it is about."""
        return Claim(
            self.task_id, self.patch, self.attempt, self.claimed, self.model, f"attempt {self.attempt}", env=self.env
        )


def _refuse_repeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON. Programs differ in which of two equal fields they read."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name}: occurs twice")
    return found


def holds_certificates(path: Path) -> bool:
    """Return whether a file is a certificate, or a folder holds one."""
    if path.is_dir():
        return any(map(holds_certificates, sorted(path.glob("*.json"))))
    marks = {"task_id", "patch_sha256", "digest"}
    return path.suffix == ".json" and marks <= read_object(path).keys()


def file_of(folder: Path, claim: Claim) -> Path:
    """Return the file of a claim's certificate."""
    return folder / f"{claim.task_id}.{claim.attempt}.json"


def read_known(
    folder: Path, claims: Sequence[Claim], tasks: Mapping[str, Task], settings: JudgeSettings, times: int
) -> dict[str, Certificate]:
    """Return the certificates of an earlier call, by the names of their attempts.

    Args:
        folder: The folder.
        claims: The attempts.
        tasks: Their tasks by id.
        settings: Where to judge.
        times: Runs of the validation in each state.

    Raises:
        UsageError: A certificate is about another patch, task or setting, was changed, or cannot be read.
    """
    known, versions = {}, find_versions()
    find_digest = functools.cache(lambda task_id: digest(tasks[task_id], strict=True))  # may read a folder
    for claim in claims:
        if not (file := file_of(folder, claim)).exists():
            continue
        try:
            old = Certificate.read(file)
        except UsageError as error:
            raise UsageError(f"{error}. Name another folder, or remove the file") from error
        if old.digest != old.compute_digest():
            raise UsageError(f"{file}: {CHANGED}: name another folder, or remove the file")
        try:
            sha256 = find_digest(claim.task_id)
        except TaskError:  # `certify` tells why its attempts are not judged
            continue
        of_claim = {"patch_sha256": claim.sha256, "claimed": claim.reward, "env": _find_deciding(claim.env)}
        asked = of_claim | _find_shared(sha256, settings, times, versions)
        if others := [name for name, value in asked.items() if getattr(old, name) != value]:
            raise UsageError(f"{file} was written with another {', '.join(others)}: name another folder")
        known[claim.name] = old
    return known


def _find_shared(sha256: str, settings: JudgeSettings, times: int, versions: Versions) -> JsonObject:
    """Return the fields that certificates share whose patches need one judgement only."""
    options = without_secrets(settings.sandbox_options)
    shared = {"backend": settings.backend, "sandbox_options": options, "times": times, "versions": versions}
    return {"task_sha256": sha256, **shared}


# --- making -------------------------------------------------------------------------------------------------


class Origins(NamedTuple):
    """Where the attempts and the tasks come from.

    Attributes:
        origin: Kind of the file with the attempts.
        source: Name of the task source.
        source_options: Its arguments.
    """

    origin: Origin
    source: str
    source_options: JsonObject


def certify(
    claims: Sequence[Claim],
    tasks: Mapping[str, Task],
    records: Mapping[str, TaskRecord],
    settings: JudgeSettings,
    origins: Origins,
    *,
    times: int = 3,
    date: str = "",
    known: Sequence[Certificate] = (),
) -> Iterator[tuple[Claim, Certificate | str]]:
    """Judge rewarded attempts again, and certify the results.

    Args:
        claims: The attempts.
        tasks: Their tasks by id.
        records: Validation record of each task. Attempts are not judged if it is missing, or ended by an
            infrastructure failure.
        settings: Where to judge.
        origins: Where the attempts and the tasks come from.
        times: Runs of the validation in each state.
        date: Date of the certificates.
        known: Certificates of earlier calls, which the caller trusts. An attempt with the patch, the claimed reward and
            the environment of one of them gets what it says, unless the task, its validation, the place or the judge
            has changed. Of several, a refuted one counts.

    Yields:
        Each attempt as soon as it is judged, with its certificate, or with the infrastructure failure for which it has
        none. A second call may succeed.

    Raises:
        UsageError: A reward is unknown.
        KeyboardInterrupt: Every sandbox is closed.
    """
    versions = find_versions()
    digests, gaps = {}, {}
    for task_id, task in tasks.items():
        gaps[task_id] = _find_gap(records.get(task_id))
        try:
            digests[task_id] = digest(task, strict=True)
        except TaskError as error:
            gaps[task_id] = str(error)
    yield from ((claim, gaps[claim.task_id]) for claim in claims if gaps[claim.task_id])
    left = [claim for claim in claims if not gaps[claim.task_id]]
    before: dict[str, Certificate] = {}
    for old in sorted(known, key=lambda one: one.outcome == "refuted"):  # the last one counts
        if old.digest == old.compute_digest():
            before[_key_of(old.claim)] = old
    todo: list[tuple[Claim, PatchWork, str]] = []
    for claim, work in zip(left, works_of(left, tasks, records), strict=True):
        record = records[claim.task_id]
        facts = _find_shared(digests[claim.task_id], settings, times, versions)
        conditions = digest_conditions(work, settings)
        facts |= {"judging_sha256": conditions, "record": _find_record(record)}
        facts |= {"image_digest": record.image} if record.image else {}
        one = before.get(_key_of(claim))
        if one is not None and all(getattr(one, name) == value for name, value in facts.items()):
            yield claim, one.passed_on(claim, origins)
        else:
            todo.append((claim, work, conditions))
    judged_as: dict[WorkKey, int] = {}
    for place, judged in judge_works([work for _, work, _ in todo], settings, {}):
        claim, work, conditions = todo[place]
        if judged.verdict is None:
            yield claim, judged.failure
            continue
        first = judged_as.setdefault(work.key, claim.attempt)
        facts = {"times": times, "versions": versions, "date": date, "task_sha256": digests[claim.task_id]}
        facts |= {"judging_sha256": conditions, "judged_as": None if first == claim.attempt else first}
        record = records[claim.task_id]
        yield claim, _certificate(claim, work.task, record, judged, settings, origins, facts)


def _key_of(claim: Claim) -> str:
    """What attempts share of which one judgement says the same."""
    return json.dumps([claim.task_id, as_diff(claim.patch), claim.reward, _find_deciding(claim.env)], sort_keys=True)


def _find_gap(record: TaskRecord | None) -> str:
    """Return why an attempt cannot be certified yet; empty if it can."""
    if record is None:
        return "its task was not validated"
    unknown = record.status in ("error", "skipped")
    return f"its task could not be validated: {record.reason}" if unknown else ""


def _certificate(
    claim: Claim,
    task: Task,
    record: TaskRecord,
    judged: Judged,
    settings: JudgeSettings,
    origins: Origins,
    facts: JsonObject,
) -> Certificate:
    verdict = judged.verdict
    assert verdict is not None
    reward = reward_of(claim.env, verdict)
    tests = _read_tests(task, verdict)
    outcome, why = decide(claim, record, judged, reward, tests)
    return Certificate(
        task_id=claim.task_id,
        attempt=claim.attempt,
        model=claim.model,
        claimed=claim.reward,
        outcome=outcome,
        why=why,
        reward=reward,
        alarms=tuple(sorted(verdict.counter_tests.alarms)),
        tests=tests,
        record=_find_record(record),
        dropped=verdict.dropped,
        **origins._asdict(),
        patch_sha256=claim.sha256,
        image=task.image or "",
        image_digest=judged.image,
        backend=settings.backend,
        sandbox_options=without_secrets(settings.sandbox_options),
        isolation=judged.isolation,
        env=_find_deciding(claim.env),
        seconds=judged.seconds,
        test_seconds=round(verdict.duration, 3),
        patch=claim.patch,
        **facts,
    ).sealed()


def _find_record(record: TaskRecord) -> CertifiedTask:
    return CertifiedTask.model_validate({name: getattr(record, name) for name in CertifiedTask.model_fields})


def _find_deciding(env: JsonObject) -> JsonObject:
    return {name: env[name] for name in DECIDING if name in env}


def _read_tests(task: Task, verdict: Verdict) -> dict[str, CertifiedTest]:
    """Return what is known of each required test."""
    found, oracle = verdict.counter_tests, task.oracle
    passing = [test for test, status in oracle.expected.items() if status is TestStatus.PASSED]
    starting, covered = set(oracle.fail_to_pass or passing), {*found.kinds, *found.kept} - found.unfit.keys()
    return {
        test: CertifiedTest(
            status=status, starts=test in starting, texts=max(1, found.texts.get(test, 1)) if test in covered else 0
        )
        for test, status in {**verdict.pass_to_pass, **verdict.fail_to_pass}.items()
    }


def decide(
    claim: Claim, record: TaskRecord, judged: Judged, reward: float, tests: Mapping[str, CertifiedTest]
) -> tuple[Outcome, str]:
    """Return the outcome of a claim, and why."""
    verdict = judged.verdict
    assert verdict is not None
    if verdict.counter_tests.alarms:
        return "refuted", f"alarm: {verdict.reason}"
    if claim.reward is None and not verdict.resolved:
        return "refuted", verdict.reason
    if claim.reward is not None and reward < claim.reward and not is_close(reward, claim.reward):
        return "refuted", verdict.reason or f"it earns {reward:g}, not {claim.reward:g}"
    starting = [test for test in tests.values() if test.starts]
    doubts = (
        (record.status != "valid", f"its task is not valid: {record.reason}"),
        (
            judged.isolation in UNSAFE,
            f"work can change the hidden tests in isolation {judged.isolation!r}",
        ),
        (not verdict.resolved, f"not resolved: a part of the reward, {reward:g}, as claimed"),
        (bool(verdict.unproven), verdict.unproven),
    )
    for doubtful, why in doubts:
        if doubtful:
            return "unproven", why
    counts = sorted(Counter(test.texts for test in starting).items(), reverse=True)
    parts = (f"{quantify(tests, 'test')} with {quantify(texts, 'text')}" for texts, tests in counts)
    return "proven", f"resolved; {', '.join(parts)}"


# --- checking -------------------------------------------------------------------------------------------------------


def _differ(name: str, old: object, new: object, *, refutes: bool) -> Iterator[Deviation]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differ(f"{name}.{key}", old.get(key, "none"), new.get(key, "none"), refutes=refutes)
    elif old != new:
        yield Deviation(name, _short(old), _short(new), refutes and name not in OF_A_RECORD)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
