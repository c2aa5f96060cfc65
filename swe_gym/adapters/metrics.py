"""The numbers of an episode that frameworks average. Unknown ones are left out, so that no average has them."""

from __future__ import annotations

from collections.abc import Iterable

from ..spaces import Info

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
