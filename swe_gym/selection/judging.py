"""Selectors that ask a model: "judge", and "hybrid", which combines it with the tests."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ..errors import PolicyError
from ..rollout.policies import ModelJudge
from .attempts import (
    Candidate,
    Scores,
    ScoresOf,
    SelectionSettings,
    TaskAttempts,
    check_models,
    fixed_scores,
    no_scores,
)


class _Judged(NamedTuple):
    """A score, its tokens, and why there is no score."""

    score: float = 0.0
    tokens: int = 0
    failure: str = ""


def score_by_judge(tasks: Sequence[TaskAttempts], settings: SelectionSettings, others: ScoresOf) -> list[Scores]:  # noqa: ARG001
    """Score an attempt by the probability that a model gives it, who reads the issue and the patch.

    Equal patches are judged once. An empty patch scores 0, and nobody is asked.

    Raises:
        UsageError: No model is named, or its server needs a key.
    """
    check_models(settings)
    asked = [
        (place, patch)
        for place, attempts in enumerate(tasks)
        for patch in dict.fromkeys(one.patch for one in attempts.candidates if one.patch)
    ]
    answers: list[list[_Judged]] = [[] for _ in asked]
    for model in settings.models:
        pairs = [(tasks[place].task.problem_statement, patch) for place, patch in asked]
        for row, answer in zip(answers, _ask_all(model, pairs, settings), strict=True):
            row.append(answer)
    known = {pair: _mean(row) for pair, row in zip(asked, answers, strict=True)}
    return [_join(place, attempts.candidates, known) for place, attempts in enumerate(tasks)]


def _ask_all(model: str, pairs: Sequence[tuple[str, str]], settings: SelectionSettings) -> list[_Judged]:
    """Return the answers of a model to pairs of issue and patch, in order."""
    # The judge is closed before the pool waits for its threads: their calls end at once.
    with (
        ThreadPoolExecutor(settings.workers) as pool,
        contextlib.closing(ModelJudge(model, settings.base_url)) as judge,
    ):

        def ask(pair: tuple[str, str]) -> _Judged:
            try:
                score, usage = judge.judge(*pair)
            except PolicyError as error:
                return _Judged(failure=str(error))
            if score is None:
                return _Judged(tokens=usage.tokens, failure=f"{model} gave no score to a patch")
            return _Judged(score, usage.tokens)

        return list(pool.map(ask, pairs))


def _mean(row: Sequence[_Judged]) -> _Judged:
    failure = next((one.failure for one in row if one.failure), "")
    return _Judged(sum(one.score for one in row) / len(row), sum(one.tokens for one in row), failure)


def _join(place: int, candidates: Sequence[Candidate], known: dict[tuple[int, str], _Judged]) -> Scores:
    judged = {patch: one for (of, patch), one in known.items() if of == place}
    tokens = sum(one.tokens for one in judged.values())
    failure = next((one.failure for one in judged.values() if one.failure), "")
    if failure:
        return no_scores(failure, tokens)
    return fixed_scores([judged[one.patch].score if one.patch else 0.0 for one in candidates], tokens)


def score_by_both(tasks: Sequence[TaskAttempts], settings: SelectionSettings, others: ScoresOf) -> list[Scores]:  # noqa: ARG001
    """Score attempts by a judge and by tests, after R2E-Gym (arXiv 2504.07164).

    The better half by the judge scores the mean of both scores; the other half scores 0. Attempts that the judge
    scores like the last one of the better half belong to it.

    Raises:
        UsageError: As of the selector "judge".
    """
    pairs = zip(others("judge"), others("tests"), strict=True)
    return [_combine(judged, tested) for judged, tested in pairs]


def _combine(judged: Scores, tested: Scores) -> Scores:
    if judged.failure or tested.failure:
        return no_scores(judged.failure or tested.failure, judged.tokens)

    def among(places: Sequence[int]) -> list[float]:
        free, run = judged.among(places), tested.among(places)
        least = sorted(free, reverse=True)[(len(places) - 1) // 2]
        return [(one + two) / 2 if one >= least else 0.0 for one, two in zip(free, run, strict=True)]

    return Scores(among, fixed=False, tokens=judged.tokens)
