"""Policies at the driver whose episodes run on a node: the node asks for each action."""

from typing import NamedTuple

from ..errors import PolicyError
from ..spaces import Info
from .policy import Policy, PolicyReport, ReportingPolicy
from .pool import DriverLink


class ActionReply(NamedTuple):
    """The answer to an observation.

    Attributes:
        action: The action; empty if the policy raised `error`.
        report: Report of the policy without the conversation, which stays at the driver.
        error: The policy's error.
    """

    action: str
    report: PolicyReport
    error: PolicyError | None = None


def answer_for(policy: Policy | None, observation: str) -> ActionReply:
    """Ask a policy for an action, at the driver. Errors other than `PolicyError` are raised."""
    assert policy is not None
    action, error = "", None
    try:
        action = policy.act(observation)
    except PolicyError as raised:
        error = raised
    whole = policy.report() if isinstance(policy, ReportingPolicy) else PolicyReport()
    return ActionReply(action, PolicyReport(policy=whole.policy, usage=whole.usage), error)


class HostedPolicy:
    """The policy of an episode on a node. It asks the driver.

    Args:
        link: The connection of the episode.
    """

    def __init__(self, link: DriverLink) -> None:
        self._link = link
        self._report = PolicyReport()

    def reset(self, info: Info) -> None:
        """Make the policy at the driver."""
        self._link.ask(("reset", info))

    def act(self, observation: str) -> str:
        """Return the action of the driver's policy.

        Raises:
            PolicyError: The policy raised it, or the episode was cancelled.
        """
        reply: ActionReply = self._link.ask(("act", observation))
        self._report = reply.report
        if reply.error is not None:
            raise reply.error
        return reply.action

    def report(self) -> PolicyReport:
        """Return the usage of the last action."""
        return self._report
