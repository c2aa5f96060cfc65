"""Plans: which targets are made, in which order."""

from .graph import visit


def plan(buildfile, goals=(), is_fresh=lambda target: False):
    """The targets to make, in order.

    Args:
        buildfile: The rules.
        goals: What is wanted in the end; without any it is the first target of the file.
        is_fresh: Says which targets need not be made. One is made all the same if something that it needs is.

    Raises:
        CycleError: Targets need each other.
        UnknownTarget: There is no rule for something that is needed.
    """
    needs = {target: rule.needs for target, rule in buildfile.rules.items()}
    order = []
    for goal in goals or list(needs)[:1]:
        visit(goal, needs, order)
    stale = set()
    for target in order:
        if not is_fresh(target) or stale.intersection(needs[target]):
            stale.add(target)
    return [target for target in order if target in stale]
