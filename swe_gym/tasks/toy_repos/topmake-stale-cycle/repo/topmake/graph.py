"""Putting things in order."""

from .errors import CycleError, UnknownTarget


def visit(name, needs, order, trail=[]):
    """Append `name` to `order`, and before it everything that it needs and that is not there yet.

    Args:
        name: What to visit.
        needs: What each thing needs, by name.
        order: The things in order so far.
        trail: The things that are being visited right now, from the outside to the inside.

    Raises:
        CycleError: Things need each other.
        UnknownTarget: Something is needed that is not in `needs`.
    """
    if name in order:
        return
    if name in trail:
        raise CycleError(trail[trail.index(name) :] + [name])
    if name not in needs:
        raise UnknownTarget(name, list(trail))
    trail.append(name)
    for need in needs[name]:
        visit(need, needs, order, trail)
    trail.pop()
    order.append(name)
