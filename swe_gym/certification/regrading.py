"""Judges attempts again: their patches in fresh sandboxes, by the current judge.

    RUN/regraded.jsonl    new verdicts of a run folder, one line each, beside the old ones

A line is never changed. An infrastructure failure is a line too, and the next call tries that attempt again.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, get_args

from pydantic import Field, ValidationError

from ..curation import judge_diff
from ..envs import SandboxGroup
from ..errors import GradingError, MissingInterpreter, SandboxError, TaskError, UsageError, wrong_fields
from ..files import append_lines, json_lines
from ..grading import REWARDS, CounterOptions, DiffReader
from ..grading.counter import Scope
from ..guests import bundle
from ..rollout import DriverLink, Executor, OutcomeJob, run_outcomes, without_secrets
from ..rollout.executors import open_executor
from ..tasks import TaskRecord, digest, doubt
from ..types import Frozen, JsonObject, Task, TestStatus, Verdict
from .claims import Claim

logger = logging.getLogger(__name__)

REGRADED = "regraded.jsonl"

MOST_RUNS = 100
"""Runs that a file may ask for."""

MOST_NAMED = 3
"""Tests that an explanation names."""

RUNNER = "runner/serve"
"""The guest that runs in every sandbox."""


class Versions(Frozen):
    """What judged.

    Attributes:
        swe_gym: Version of the package.
        python: Version of the Python that ran it.
        runner: SHA-256 of the program that runs in every sandbox.
    """

    swe_gym: str
    python: str
    runner: str


def find_versions() -> Versions:
    """Return the versions of this process."""
    from importlib.metadata import version  # slow to import

    runner = hashlib.sha256(bundle(RUNNER).encode()).hexdigest()
    return Versions(swe_gym=version("swe-gym"), python=platform.python_version(), runner=runner)


class Judged(Frozen):
    """The result of judging a patch.

    Attributes:
        verdict: ORACLE CONTENT: the verdict; None if there is none.
        failure: Why there is no verdict; empty if there is one.
        isolation: Isolation of the sandbox; empty if none started.
        image: Digest of its image, as the backend knows it; empty without an image.
        seconds: Wall-clock time.
    """

    verdict: Verdict | None = Field(default=None, repr=False)
    failure: str = ""
    isolation: str = ""
    image: str = ""
    seconds: float = 0.0


class Regraded(Frozen):
    """A line of `regraded.jsonl`: the new verdict on one attempt. Hidden from policies, because it names tests.

    Attributes:
        task_id: Task of the attempt.
        attempt: Number of the attempt.
        config_hash: Configuration of the run.
        patch: SHA-256 of the patch.
        task: SHA-256 of the task, its oracle and its code; empty if the code cannot be read.
        backend: Kind of sandbox.
        judging: SHA-256 of the sandbox options and the counter-tests, as `digest_conditions`.
        versions: What judged.
        date: Date (ISO 8601).
        before: Reward that the run recorded.
        reward: Reward now; None if there is no verdict.
        why: Why the rewards differ, or why there is no verdict; empty if they are equal.
        judged: The verdict, and where it was reached.
    """

    task_id: str
    attempt: int
    config_hash: str = ""
    patch: str
    task: str
    backend: str
    judging: str = ""
    versions: Versions
    date: str = ""
    before: float
    reward: float | None = None
    why: str = ""
    judged: Judged

    @property
    def same(self) -> bool:
        """Whether the reward is as before."""
        return self.reward is not None and is_close(self.reward, self.before)

    @property
    def patch_key(self) -> tuple[object, ...]:
        """What identifies its judgement: a patch, its task, the place and the judge."""
        return self.task_id, self.patch, self.task, self.backend, self.judging, self.versions

    @property
    def key(self) -> tuple[object, ...]:
        """What identifies a line: an attempt of a configuration, and its judgement."""
        return self.attempt, self.config_hash, *self.patch_key

    @property
    def harm(self) -> tuple[bool, bool]:
        """Sorts lines: of several about one patch, the one that refutes it comes last."""
        verdict = self.judged.verdict
        return verdict is None or bool(verdict.counter_tests.alarms), verdict is None or not verdict.resolved


def is_close(one: float, other: float) -> bool:
    """Return whether two rewards are equal but for rounding."""
    return abs(one - other) < 1e-9


def regrade(
    folder: Path,
    claims: Sequence[Claim],
    tasks: Mapping[str, Task],
    settings: "JudgeSettings",
    *,
    records: Mapping[str, TaskRecord] | None = None,
    date: str = "",
    on_line: Callable[[Regraded], None] = lambda _: None,
) -> list[Regraded]:
    """Judge the attempts of a run again. Append a line for each to `regraded.jsonl`, unless it has one.

    Args:
        folder: The run folder.
        claims: Its attempts.
        tasks: Their tasks by id.
        settings: Where to judge.
        records: Records of valid tasks, whose counter-tests are used.
        date: Date of the lines.
        on_line: Callback for each line, old ones first. It runs in this thread.

    Returns:
        One line per attempt, in order.

    Raises:
        UsageError: The file is broken, or a reward is unknown.
        KeyboardInterrupt: Every sandbox is closed, and finished attempts are in the file.
    """
    path, versions = folder / REGRADED, find_versions()
    digests = {task_id: _digest_readable(task) for task_id, task in tasks.items()}
    known = {line.key: line for line in read_regraded(path) if line.reward is not None and line.task}
    of_patch = {line.patch_key: line.judged for line in sorted(known.values(), key=lambda one: one.harm)}
    found: dict[int, Regraded] = {}
    judged_before: dict[WorkKey, Judged] = {}
    left = []
    works = works_of(claims, tasks, records or {})
    judging = [digest_conditions(work, settings) for work in works]
    for number, claim in enumerate(claims):
        place = (settings.backend, judging[number], versions)
        key = (claim.task_id, claim.sha256, digests[claim.task_id], *place)
        if key in of_patch:
            judged_before[works[number].key] = of_patch[key]
        if (old := known.get((claim.attempt, claim.config_hash, *key))) is not None:
            found[number] = old
            on_line(old)
        else:
            left.append(number)
    for index, judged in judge_works([works[number] for number in left], settings, judged_before):
        number = left[index]
        claim = claims[number]
        reward = None if judged.verdict is None else reward_of(claim.env, judged.verdict)
        line = Regraded(
            task_id=claim.task_id,
            attempt=claim.attempt,
            config_hash=claim.config_hash,
            patch=claim.sha256,
            task=digests[claim.task_id],
            backend=settings.backend,
            judging=judging[number],
            versions=versions,
            date=date,
            before=claim.reward or 0.0,
            reward=reward,
            why=_why(claim, judged, reward),
            judged=judged,
        )
        append_lines(path, json.dumps(line.model_dump(mode="json")))
        found[number] = line
        on_line(line)
    return [found[number] for number in range(len(claims))]


def read_regraded(path: Path) -> list[Regraded]:
    """Read the lines of a file, in order. A missing file has none.

    Raises:
        UsageError: A line is invalid. The message names file and line.
    """
    found = []
    for number, line in json_lines(path) if path.exists() else ():
        try:
            found.append(Regraded.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(f"{path}, line {number} is invalid ({wrong_fields(error)}): move the file away") from error
    return found


def find_invalid(env: JsonObject) -> str:
    """Return why arguments from a file do not decide on a reward; empty if they do."""
    runs, lost = env.get("judge_runs", 2), env.get("alarm_reward", 0.0)
    if isinstance(runs, bool) or not isinstance(runs, int) or not 2 <= runs <= MOST_RUNS:
        return f"judge_runs is not from 2 to {MOST_RUNS}"
    if isinstance(lost, bool) or not isinstance(lost, int | float) or not -math.inf < lost <= 0:
        return "alarm_reward is not a number of at most 0"
    if env.get("counter", "few") not in list(get_args(Scope)):
        return "counter is neither few nor all"
    if not isinstance(reward := env.get("reward", "binary"), str):
        return f"the reward {reward!r} is not a name"
    try:
        REWARDS.load(reward)
    except UsageError as error:
        return str(error)
    return ""


def reward_of(env: JsonObject, verdict: Verdict) -> float:
    """Return the reward of a verdict in an environment with these arguments.

    The arguments are valid: see `find_invalid`.
    """
    lost = env.get("alarm_reward") or 0.0
    if lost and verdict.counter_tests.alarms:
        return float(lost)
    return float(REWARDS.load(env.get("reward", "binary"))(verdict).value)


def _why(claim: Claim, judged: Judged, reward: float | None) -> str:
    """Return why a reward has changed, or is missing; empty if it is as before."""
    old, new = claim.verdict, judged.verdict
    if new is None:
        return judged.failure
    if old is None or (reward is not None and is_close(reward, claim.reward or 0.0)):
        return ""
    if new.counter_tests.alarms:
        return new.reason
    reasons = [] if new.resolved else [new.reason]
    if old.reason and old.reason != new.reason:
        reasons.append(f"before: {old.reason}")
    reasons.extend(_changed_tests(old, new))
    return "; ".join(filter(None, reasons)) or "its tests ended as before: the reward is computed differently"


def _changed_tests(old: Verdict, new: Verdict) -> Iterator[str]:
    """Yield the required tests that are new, gone, or ended differently."""
    before, now = ({**one.fail_to_pass, **one.pass_to_pass} for one in (old, new))
    shared = before.keys() & now.keys()
    changed = [f"{test} ({before[test]}, now {now[test]})" for test in sorted(shared) if before[test] is not now[test]]
    for what, tests in (
        ("required now", sorted(now.keys() - before.keys())),
        ("no longer required", sorted(before.keys() - now.keys())),
        ("ended differently", [one for one in changed if TestStatus.NOT_RUN not in one]),
    ):
        if tests:
            more = f" and {len(tests) - MOST_NAMED} more" if len(tests) > MOST_NAMED else ""
            yield f"{what}: {', '.join(tests[:MOST_NAMED])}{more}"


# --- judging ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class JudgeSettings:
    """Where patches are judged.

    Attributes:
        backend: Kind of sandbox.
        sandbox_options: Options as in `SweEnv`.
        workers: Patches at once.
        executor: As in `validate`.
        executor_options: Options of the executor.
    """

    backend: str = "local"
    sandbox_options: JsonObject = dataclasses.field(default_factory=dict)
    workers: int = 2
    executor: str = "threads"
    executor_options: JsonObject = dataclasses.field(default_factory=dict)


WorkKey: TypeAlias = tuple[str, str, str, int]
"""Task, diff, and the scope and the runs of its counter-tests."""


class PatchWork(NamedTuple):
    """A patch to judge, as data."""

    task: Task
    diff: str
    counter: CounterOptions
    backend: str = ""
    sandbox_options: JsonObject = {}
    number: int = 0

    @property
    def key(self) -> WorkKey:
        """What identifies it in one call: works of equal keys have one result."""
        return self.task.task_id, self.diff, self.counter.counter, self.counter.runs

    def make(self, link: DriverLink) -> "_JudgePatch":  # noqa: ARG002  it sends only its result
        """Make the job on a node."""
        return _JudgePatch(self, 1, DiffReader())


def works_of(claims: Sequence[Claim], tasks: Mapping[str, Task], records: Mapping[str, TaskRecord]) -> list[PatchWork]:
    """Return the works of claims. The record of a valid task gives the scope of its counter-tests."""
    doubts = {name: doubt(tasks[name], records) for name in {claim.task_id for claim in claims}}  # may read folders
    works = []
    for claim in claims:
        options = CounterOptions(claim.env.get("counter", "few"), claim.env.get("judge_runs", 2))
        options = options if doubts[claim.task_id] else options.of_record(records[claim.task_id])
        works.append(PatchWork(tasks[claim.task_id], as_diff(claim.patch), options))
    return works


def digest_conditions(work: PatchWork, settings: JudgeSettings) -> str:
    """Return the SHA-256 of what a judgement follows from beside its task, its patch, the backend and the judge.

    Sandbox options that hold keys or URLs do not count.
    """
    options = without_secrets(settings.sandbox_options)
    parts = {"counter": dataclasses.asdict(work.counter), "sandbox_options": options}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=sorted).encode()).hexdigest()


def _digest_readable(task: Task) -> str:
    """Return the SHA-256 of a task; empty if its code cannot be read, of which its judgement will tell."""
    try:
        return digest(task, strict=True)
    except TaskError:
        return ""


def as_diff(patch: str) -> str:
    """Return a patch as a diff that git reads, although another program has stripped or converted its line ends.

    Many programs strip the last newline, and some convert every line end to CRLF, also of headers. If the headers end
    in LF, a CRLF belongs to the file.
    """
    headers = [line for line in patch.split("\n") if line.startswith(("diff --git ", "--- ", "+++ ", "@@ "))]
    if headers and all(line.endswith("\r") for line in headers):
        patch = patch.replace("\r\n", "\n")
    return patch if patch.endswith("\n") or not patch else f"{patch}\n"


def judge_works(
    works: Sequence[PatchWork], settings: JudgeSettings, known: Mapping[WorkKey, Judged]
) -> Iterator[tuple[int, Judged]]:
    """Judge patches, several at once. Yield number and result of each, in any order.

    A patch whose sandbox failed in a way that may pass is judged once more. One that several attempts share is judged
    for all of them: a second judgement would be a second chance to guess.

    Args:
        works: The patches.
        settings: Where to judge.
        known: Results of earlier calls, in the same place.
    """
    shared: dict[WorkKey, list[int]] = {}
    for number, work in enumerate(works):
        if work.key in known:
            yield number, known[work.key]
        else:
            shared.setdefault(work.key, []).append(number)
    options, numbers = settings.sandbox_options, list(shared.values())
    placed = [
        works[same[0]]._replace(backend=settings.backend, sandbox_options=options, number=place)
        for place, same in enumerate(numbers)
    ]
    with open_executor(settings.executor, settings.executor_options, options, workers=settings.workers) as executor:
        for place, judged in _play(placed, settings.workers, executor):
            yield from ((number, judged) for number in numbers[place])


def _play(works: Sequence[PatchWork], workers: int, executor: Executor) -> Iterator[tuple[int, Judged]]:
    diffs: dict[str, list[str]] = {}
    for work in works:
        diffs.setdefault(work.task.task_id, []).append(work.diff)
    readers = {task_id: DiffReader(ahead) for task_id, ahead in diffs.items()}
    left = {task_id: len(ahead) for task_id, ahead in diffs.items()}
    make = functools.partial(_make_job, works, readers)
    for job in run_outcomes(make, range(len(works)), workers=workers, executor=executor):
        if job.lost is not None:
            raise job.lost
        task_id = works[job.key].task.task_id
        left[task_id] -= 1
        if not left[task_id]:
            del readers[task_id]  # patches are large
        yield job.key, job.outcome


def _make_job(works: Sequence[PatchWork], readers: Mapping[str, DiffReader], number: int, tries: int) -> "_JudgePatch":
    return _JudgePatch(works[number], tries, readers[works[number].task.task_id])


class _JudgePatch(OutcomeJob[int, Judged]):
    """The judging of one patch."""

    def __init__(self, work: PatchWork, number: int, reader: DiffReader) -> None:
        super().__init__(work.number, number)
        self._work = work
        self._reader = reader

    @property
    def name(self) -> str:
        """Id of the task, and number of the patch."""
        return f"{self._work.task.task_id}/{self.key}"

    def run(self) -> None:
        """Judge the patch. Failures become a result; only the caller's mistakes are raised."""
        started, work = time.monotonic(), self._work
        try:
            with SandboxGroup(work.task, work.backend, work.sandbox_options) as group:
                self._open = group
                if self.cancelled:
                    group.close()
                verdict, where = judge_diff(group, work.diff, work.counter, claimed=True, reader=self._reader)
            self.outcome = Judged(verdict=verdict, **where, seconds=round(time.monotonic() - started, 3))
        except (MissingInterpreter, TaskError, SandboxError, GradingError) as error:
            logger.warning("no verdict: %s: %s", type(error).__name__, error, extra=self.ids)
            self.retryable = getattr(error, "retryable", False)
            seconds = round(time.monotonic() - started, 3)
            self.outcome = Judged(failure=f"{_name(error)}: {error}", seconds=seconds)

    def work(self) -> PatchWork:
        """Return the patch as data."""
        return self._work


def _name(error: Exception) -> str:
    """Return the name of an error, with its reason."""
    reason = getattr(error, "reason", "")
    return f"{type(error).__name__} ({reason})" if reason not in ("", "unknown") else type(error).__name__
