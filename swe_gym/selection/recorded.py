"""Selectors that need only the record: equal patches vote, and log-probability."""

import math
from collections import Counter
from collections.abc import Sequence

from ..grading import Patch
from .attempts import (
    Candidate,
    Scores,
    ScoresOf,
    SelectionSettings,
    TaskAttempts,
    check_logprobs,
    fixed_scores,
    no_scores,
)


def score_by_votes(
    tasks: Sequence[TaskAttempts],
    settings: SelectionSettings,  # noqa: ARG001  the record is enough
    others: ScoresOf,  # noqa: ARG001
) -> list[Scores]:
    """Score an attempt by the share of attempts whose patch is equal. An empty patch scores 0."""
    return [_count_votes([Patch.normalize(one.patch) for one in attempts.candidates]) for attempts in tasks]


def _count_votes(forms: Sequence[str]) -> Scores:
    def among(places: Sequence[int]) -> list[float]:
        votes = Counter(forms[place] for place in places)
        return [votes[forms[place]] / len(places) if forms[place] else 0.0 for place in places]

    return Scores(among, fixed=False)


def score_by_logprob(
    tasks: Sequence[TaskAttempts],
    settings: SelectionSettings,  # noqa: ARG001  the record is enough
    others: ScoresOf,  # noqa: ARG001
) -> list[Scores]:
    """Score an attempt by the geometric mean of the probabilities of its sampled tokens.

    Raises:
        UsageError: No attempt has recorded tokens.
    """
    check_logprobs(tasks)
    return [_score_tokens(attempts.candidates) for attempts in tasks]


def _score_tokens(candidates: Sequence[Candidate]) -> Scores:
    logprobs = [one.logprob for one in candidates if one.logprob is not None]
    if len(logprobs) < len(candidates):
        return no_scores("the tokens of an attempt were not recorded")
    return fixed_scores([math.exp(logprob) for logprob in logprobs])
