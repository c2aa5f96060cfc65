"""Working off a plan."""

from .planner import plan


def run(buildfile, goals, execute, is_fresh=lambda target: False):
    """Make the goals and everything that they need.

    Args:
        buildfile: The rules.
        goals: What is wanted in the end.
        execute: Is called with each command and says whether it went well.
        is_fresh: Says which targets need not be made.

    Returns:
        The targets that were made. The first command that fails is the last to be called.
    """
    made = []
    for target in plan(buildfile, goals, is_fresh):
        if not all(execute(command) for command in buildfile.rules[target].recipe):
            break
        made.append(target)
    return made
