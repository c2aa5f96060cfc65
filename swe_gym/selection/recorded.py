"""Selectors that need only the record: equal patches vote, and log-probability."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from ..grading import split_diff
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

COMMENT = re.compile(r"\s*#.*")
"""A line of Python with a comment only."""


def score_by_votes(
    tasks: Sequence[TaskAttempts],
    settings: SelectionSettings,  # noqa: ARG001  the record is enough
    others: ScoresOf,  # noqa: ARG001
) -> list[Scores]:
    """Score an attempt by the share of attempts whose patch is equal. An empty patch scores 0."""
    return [_count_votes([normalize_patch(one) for one in attempts.candidates]) for attempts in tasks]


def _count_votes(forms: Sequence[str]) -> Scores:
    def among(places: Sequence[int]) -> list[float]:
        votes = Counter(forms[place] for place in places)
        return [votes[forms[place]] / len(places) if forms[place] else 0.0 for place in places]

    return Scores(among, fixed=False)


def normalize_patch(candidate: Candidate) -> str:
    """Return the removed and added lines of a patch in a form that equal changes share.

    Tests, context, places, blank lines, Python's comments, and spaces at the ends of lines and in rows do not count.
    Indentation does.
    """
    parts = []
    for names, text in sorted(split_diff(candidate.work), key=lambda one: sorted(one[0])):
        _, _, hunks = text.partition("\n@@ ")
        changed = [line for line in hunks.split("\n")[1:] if line.startswith(("+", "-"))]
        python = all(name.endswith((".py", ".pyi")) for name in names)
        lines = [_squeeze(one) for one in changed if one[1:].strip() and not (python and COMMENT.fullmatch(one[1:]))]
        body = lines if hunks else text.split("\n")[1:]  # a mode, a binary or an empty file
        if body:
            parts.append("\n".join([" ".join(sorted(names)), *body]))
    return "\n".join(parts)


def _squeeze(line: str) -> str:
    """Return a line without spaces at its end, and with one space for each row of them behind the indentation."""
    indented = line[1:].expandtabs(8)
    text = indented.lstrip()
    return line[0] + " " * (len(indented) - len(text)) + " ".join(text.split())


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
