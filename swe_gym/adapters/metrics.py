"""The numbers of an episode that frameworks average. Unknown ones are left out, so that no average has them."""

from __future__ import annotations

from collections.abc import Iterable

from ..spaces import Info

OF_A_VERDICT = ("resolved", "fail_to_pass_passed", "fail_to_pass_total", "pass_to_pass_passed", "pass_to_pass_total")
"""Values of the info that only a graded episode has."""


def known_numbers(info: Info, names: Iterable[str]) -> dict[str, float]:
    """Return values of the info as numbers, without those that are unknown.

    They are unknown if the episode was not graded. Counts of passed tests are also unknown, -1, if the reward did not
    need them; then the totals beside them are left out too.

    Args:
        info: Last info of the episode.
        names: Names of values.
    """
    unknown = set(OF_A_VERDICT) if not info["reward_valid"] else set()
    for kind in ("fail_to_pass", "pass_to_pass"):
        if info.get(f"{kind}_passed", 0) < 0:
            unknown |= {f"{kind}_passed", f"{kind}_total"}
    return {name: float(info[name]) for name in names if name not in unknown}
