"""Episodes as trainers take them: token rows, and numbers to average.

One rule for episodes of several segments: each segment is a row, and all rows carry the episode's reward. A framework
that takes one row per prompt plays conversations that only grow (`TokenPolicy(..., append_only=True)`), which are one
segment. So every sampled token stands in exactly one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..spaces import Info
from ..trajectories import Segment


class Row(NamedTuple):
    """One prompt and the response to it.

    Attributes:
        prompt_ids: Token ids before the first sampled token.
        response_ids: The sampled tokens, and those of the environment between them.
        mask: 1 for sampled tokens of the response, 0 for others.
        logprobs: Log-probabilities of the sampler; 0.0 where the mask is 0.
        versions: Version of the weights that sampled each token; -1 where the mask is 0.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]


def segment_row(segment: Segment) -> Row:
    """Return a segment as a row. Its first sampled token starts the response."""
    start = segment.loss_mask.index(1)
    return Row(
        prompt_ids=list(segment.token_ids[:start]),
        response_ids=list(segment.token_ids[start:]),
        mask=list(segment.loss_mask[start:]),
        logprobs=list(segment.logprobs[start:]),
        versions=list(segment.versions[start:]),
    )


def single_row(rows: Sequence[Row], pad: int, *, masked: bool) -> Row:
    """Return the row of an episode for a framework that needs exactly one for each prompt.

    Args:
        rows: Rows of a conversation that only grew: one, or none if nothing was sampled.
        pad: Token that stands for an episode without a sampled token.
        masked: Whether nothing is trained, because the episode does not count.
    """
    row = rows[0] if rows else Row([pad], [pad], [0], [0.0], [-1])
    return row._replace(mask=[0] * len(row.mask)) if masked else row


OF_A_VERDICT = ("resolved", "fail_to_pass_passed", "fail_to_pass_total", "pass_to_pass_passed", "pass_to_pass_total")
"""Values of the info that only a graded episode has."""

METRICS = ("resolved", "turn", "cheat_signs", "alarms", "fail_to_pass_passed", "fail_to_pass_total")
"""Values of the info that are averaged."""


def known_numbers(info: Info, names: Iterable[str]) -> dict[str, float]:
    """Return values of the info as numbers, without those that are unknown.

    They are unknown if the episode was not graded. Counts of passed tests are also unknown, -1, if the reward did not
    need them; then the totals beside them are left out too.

    Args:
        info: Last info of the episode.
        names: Names of values. Those that the info lacks are left out.
    """
    unknown = set(OF_A_VERDICT) if not info["reward_valid"] else set()
    for kind in ("fail_to_pass", "pass_to_pass"):
        if info.get(f"{kind}_passed", 0) < 0:
            unknown |= {f"{kind}_passed", f"{kind}_total"}
    return {name: float(info[name]) for name in names if name in info and name not in unknown}


def outcome_shares(info: Info) -> dict[str, float]:
    """Return whether the episode ended at a limit or was lost, as numbers whose mean is a share of the episodes.

    Args:
        info: Last info of the episode.
    """
    return {name: float(info["outcome"] == name) for name in ("agent_limit", "infra_failed")}
