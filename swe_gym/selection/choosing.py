"""Chooses among the attempts of a run, and measures how good the choices are.

    RUN/selection.json    the scores, the chosen attempts, and the curves

Selectors get `Candidate`s, which hold nothing of the grading. The outcomes meet the scores only here, in the curves.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
from ..files import write_text
from ..trajectories.run_folder import open_trajectories, read_run
from ..trajectories.statistics import (
    ScoreBin,
    calibration_error,
    difference_interval,
    expected_choice,
    pairwise_auc,
    score_bins,
    sign_flip_test,
    wilson,
)
from ..types import Frozen, Task
from . import SELECTORS
from .attempts import Candidate, Scores, SelectionSettings, TaskAttempts, check_logprobs, check_models

FILE = "selection.json"

MOST_SUBSETS = 1000
"""Subsets of k attempts at a task over which a mean is exact. Of more, as many are drawn with a fixed seed."""


class CandidateSet(NamedTuple):
    """The attempts of a run, and their outcomes apart from them.

    Attributes:
        candidates: Task -> attempts, by number.
        resolved: Task -> whether each of them is resolved.
        left_out: Attempts and tasks that cannot be compared, with the reason.
    """

    candidates: dict[str, tuple[Candidate, ...]]
    resolved: dict[str, tuple[bool, ...]]
    left_out: dict[str, str]

    def of_tasks(self, tasks: Mapping[str, Task]) -> list[TaskAttempts]:
        """Return the attempts with their tasks. Tasks that are judged in place are left out."""
        in_place = {task_id for task_id in self.candidates if tasks[task_id].oracle.in_place}
        self.left_out.update(
            dict.fromkeys(in_place, "it is judged in the policy's sandbox, so no patch holds the work")
        )
        return [TaskAttempts(tasks[task], row) for task, row in self.candidates.items() if task not in in_place]


def read_candidates(folder: Path, match: str = "*") -> CandidateSet:
    """Read the graded attempts of a run folder which its last call asked for.

    Raises:
        UsageError: The folder is not a run folder, or no attempt matches.
    """
    info = read_run(folder)
    left_out: dict[str, str] = {}
    found: dict[str, list[tuple[Candidate, bool]]] = {}
    for one in open_trajectories(folder):
        if not info.counts(one.task_id, one.attempt) or not fnmatch.fnmatchcase(one.task_id, match):
            continue
        if one.patch_bytes:
            why = f"only the beginning of its patch was recorded; the whole has {one.patch_bytes} bytes"
            left_out[f"{one.task_id}, attempt {one.attempt}"] = why
        else:
            found.setdefault(one.task_id, []).append((Candidate.of(one), one.resolved))
    if not found and not left_out:
        raise UsageError(f"{folder}: no graded attempt matches {match!r}")
    for row in found.values():
        row.sort(key=lambda pair: pair[0].attempt)
    return CandidateSet(
        {task_id: tuple(one for one, _ in row) for task_id, row in found.items()},
        {task_id: tuple(resolved for _, resolved in row) for task_id, row in found.items()},
        left_out,
    )


class ChoicePoint(Frozen):
    """The choice among k attempts, as means over the tasks with at least k and over all their subsets of k.

    Attributes:
        k: Number of attempts to choose from.
        tasks: Number of tasks.
        chosen: Share of the chosen attempts that is resolved. Ties are broken at random.
        low: Lower end of its 95 % confidence interval.
        high: Upper end of it.
        random: Share of an attempt that is chosen at random.
        oracle: Share if a resolved attempt is chosen whenever there is one: pass@k.
        tokens: Tokens per task: those of k attempts, and of their share of a judge's.
    """

    k: int
    tasks: int
    chosen: float
    low: float
    high: float
    random: float
    oracle: float
    tokens: float


class TaskChoice(Frozen):
    """The choice at one task.

    Attributes:
        attempts: Numbers of the attempts.
        scores: Their scores, with all of them there.
        best: The attempts with the best score. The first one is chosen.
    """

    attempts: tuple[int, ...]
    scores: tuple[float, ...]
    best: tuple[int, ...]


class SelectorResult(Frozen):
    """The choices of a selector.

    Attributes:
        selector: Name of the selector.
        points: The choice among 1, 2, ... attempts.
        difference: Share resolved of the choice among all attempts, minus that of a random one; None without a task.
        low: Lower end of its 95 % confidence interval.
        high: Upper end of it.
        p_value: Two-sided p-value of `sign_flip_test`.
        auc: How often a resolved attempt scores above an unresolved one of its task; None without such a pair.
        calibration_error: Mean distance of score and share resolved, over ten bins.
        bins: The bins.
        tokens: Tokens of the models that were asked for scores.
        choices: Task -> the choice among all its attempts.
        unscored: Task -> why it has no scores. No number counts it.
    """

    selector: str
    points: tuple[ChoicePoint, ...] = ()
    difference: float | None = None
    low: float = -1.0
    high: float = 1.0
    p_value: float = 1.0
    auc: float | None = None
    calibration_error: float | None = None
    bins: tuple[ScoreBin, ...] = ()
    tokens: int = 0
    choices: dict[str, TaskChoice] = {}
    unscored: dict[str, str] = {}


class Selection(Frozen):
    """The choices of several selectors among the attempts of a run: the content of `selection.json`.

    Attributes:
        run: Name of the run folder.
        tasks: Number of tasks.
        attempts: Number of attempts.
        results: The selectors.
        left_out: Attempts and tasks that were not compared, with the reason.
    """

    run: str
    tasks: int
    attempts: int
    results: tuple[SelectorResult, ...]
    left_out: dict[str, str] = {}


def select(
    folder: Path,
    tasks: Mapping[str, Task],
    selectors: Sequence[str],
    settings: SelectionSettings,
    *,
    match: str = "*",
    on_selector: Callable[[str], None] = lambda _: None,
) -> Selection:
    """Choose among the attempts of a run, and write `selection.json`, which replaces that of an earlier call.

    Args:
        folder: The run folder.
        tasks: Its tasks by id.
        selectors: Names of selectors, or dotted paths.
        settings: What the selectors need.
        match: Glob pattern of task ids.
        on_selector: Called with the name of each selector before it scores.

    Raises:
        UsageError: A selector is unknown or cannot work with these attempts: nothing ran. Or a selector returned
            something else than scores: those before it are in the file. See `read_candidates` too.
    """
    found = read_candidates(folder, match)
    rows, chosen = found.of_tasks(tasks), {name: SELECTORS.load(name) for name in selectors}
    for name in chosen:
        _check_selector(name, rows, settings)

    @functools.cache
    def scores_of(name: str) -> Sequence[Scores]:
        return _check_scores(name, rows, SELECTORS.load(name)(rows, settings, scores_of))

    selection = Selection(
        run=folder.resolve().name,
        tasks=len(rows),
        attempts=sum(len(row.candidates) for row in rows),
        results=(),
        left_out=found.left_out,
    )
    for name in chosen:
        on_selector(name)
        result = measure(name, rows, scores_of(name), found.resolved)
        selection = selection.model_copy(update={"results": (*selection.results, result)})
        write_text(folder / FILE, selection.model_dump_json(indent=1) + "\n")
    return selection


def _check_selector(name: str, tasks: Sequence[TaskAttempts], settings: SelectionSettings) -> None:
    """Check what a built-in selector needs, before any of them runs."""
    if name in ("judge", "hybrid"):
        check_models(settings)
    if name == "logprob":
        check_logprobs(tasks)


def _check_scores(name: str, tasks: Sequence[TaskAttempts], scores: Sequence[Scores]) -> Sequence[Scores]:
    """Return the scores of a selector, one for each attempt.

    Raises:
        UsageError: They are not.
    """
    if len(scores) != len(tasks):
        raise UsageError(f"selector {name!r} returned scores of {len(scores)} tasks, not of {len(tasks)}")
    for row, found in zip(tasks, scores, strict=True):
        values = found.among(range(len(row.candidates)))
        if len(values) != len(row.candidates) or not all(0 <= value <= 1 for value in values):
            raise UsageError(
                f"selector {name!r} must return a score from 0 to 1 for each of the {len(row.candidates)} attempts at "
                f"task {row.task.task_id}, not {list(values)}"
            )
    return scores


# --- how good the choices are -------------------------------------------------------------------------------


class _Scored(NamedTuple):
    """The attempts at a task with their scores and outcomes."""

    attempts: TaskAttempts
    scores: Scores
    resolved: tuple[bool, ...]

    @property
    def all(self) -> Sequence[float]:
        """Scores with all attempts there."""
        return self.scores.among(range(len(self.resolved)))


def measure(
    name: str, tasks: Sequence[TaskAttempts], scores: Sequence[Scores], resolved: Mapping[str, Sequence[bool]]
) -> SelectorResult:
    """Return the choices of a selector, and compare them with a random choice and the best one.

    Args:
        name: Name of the selector.
        tasks: The attempts at each task.
        scores: Their scores.
        resolved: Task -> whether each attempt is resolved.
    """
    rows = [_Scored(row, found, tuple(resolved[row.task.task_id])) for row, found in zip(tasks, scores, strict=True)]
    counted = [row for row in rows if not row.scores.failure]
    differences = [_find_difference(row) for row in counted]
    low, high = difference_interval(differences, max((len(row.resolved) for row in counted), default=1))
    flat = [pair for row in counted for pair in zip(row.all, row.resolved, strict=True)]
    bins = score_bins([score for score, _ in flat], [good for _, good in flat])
    return SelectorResult(
        selector=name,
        points=tuple(_points(counted)),
        difference=float(sum(differences) / len(differences)) if differences else None,
        low=low,
        high=high,
        p_value=sign_flip_test(differences),
        auc=pairwise_auc([(row.all, row.resolved) for row in counted]),
        calibration_error=calibration_error(bins),
        bins=tuple(bins),
        tokens=sum(found.tokens for found in scores),
        choices={row.attempts.task.task_id: _choose(row) for row in counted},
        unscored={row.attempts.task.task_id: row.scores.failure for row in rows if row.scores.failure},
    )


def _choose(row: _Scored) -> TaskChoice:
    numbers = tuple(one.attempt for one in row.attempts.candidates)
    return TaskChoice(attempts=numbers, scores=tuple(row.all), best=tuple(numbers[place] for place in _best(row.all)))


def _best(scores: Sequence[float]) -> list[int]:
    """Return the places of the best scores."""
    most = max(scores)
    return [place for place, score in enumerate(scores) if score == most]


def _find_difference(row: _Scored) -> Fraction:
    """Return the share resolved of the choice among all attempts, minus that of a random one."""
    best = _best(row.all)
    chosen = Fraction(sum(row.resolved[place] for place in best), len(best))
    return chosen - Fraction(sum(row.resolved), len(row.resolved))


def _points(rows: Sequence[_Scored]) -> Iterator[ChoicePoint]:
    for k in range(1, max((len(row.resolved) for row in rows), default=0) + 1):
        some = [row for row in rows if len(row.resolved) >= k]
        chosen = sum(_expect(row, k) for row in some)
        low, high = wilson(chosen, len(some))
        yield ChoicePoint(
            k=k,
            tasks=len(some),
            chosen=chosen / len(some),
            low=low,
            high=high,
            random=sum(sum(row.resolved) / len(row.resolved) for row in some) / len(some),
            oracle=sum(expected_choice(row.resolved, row.resolved, k) for row in some) / len(some),
            tokens=sum(_tokens(row, k) for row in some) / len(some),
        )


def _expect(row: _Scored, k: int) -> float:
    """Return the probability that the choice among k random attempts is resolved."""
    if row.scores.fixed:
        return expected_choice(row.all, row.resolved, k)
    n = len(row.resolved)
    subsets = itertools.combinations(range(n), k) if math.comb(n, k) <= MOST_SUBSETS else _draw(n, k)
    total = count = 0.0
    for places in subsets:
        best = _best(row.scores.among(places))
        total += sum(row.resolved[places[place]] for place in best) / len(best)
        count += 1
    return total / count


def _draw(n: int, k: int) -> Iterator[Sequence[int]]:
    rng = random.Random(0)
    return (rng.sample(range(n), k) for _ in range(MOST_SUBSETS))


def _tokens(row: _Scored, k: int) -> float:
    """Return the tokens of k of the attempts, and of a judge that scores k of them."""
    spent = sum(one.tokens for one in row.attempts.candidates) + row.scores.tokens
    return spent * k / len(row.resolved)
