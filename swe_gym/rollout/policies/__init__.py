"""The built-in policies by name, and `make_policies`."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import gymnasium
from pydantic import ValidationError

from ...errors import UsageError, unknown_name, wrong_fields
from ...registry import Registry
from ...registry import load as _load
from ...types import JsonMapping, JsonObject
from .base import Policy as Policy
from .base import PolicyFactory as PolicyFactory

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .base import EpisodeSettings as EpisodeSettings
    from .base import HostedPolicy as HostedPolicy
    from .base import Player as Player
    from .base import PolicyReport as PolicyReport
    from .base import ReportingPolicy as ReportingPolicy
    from .base import ResumingPolicy as ResumingPolicy
    from .base import check_resumes as check_resumes
    from .base import message_of as message_of
    from .baseline import EmptyPolicy as EmptyPolicy
    from .baseline import ScriptedPolicy as ScriptedPolicy
    from .gold import GoldPolicy as GoldPolicy
    from .human import HumanPolicy as HumanPolicy
    from .llm import TOKENS_PER_CHARACTER as TOKENS_PER_CHARACTER
    from .llm import LLMPolicies as LLMPolicies
    from .llm import ModelJudge as ModelJudge
    from .llm import action_of as action_of
    from .llm import is_native as is_native
    from .server_check import ServerFacts as ServerFacts
    from .server_check import check_server as check_server

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


__all__ = [
    "POLICIES",
    "TOKENS_PER_CHARACTER",
    "EmptyPolicy",
    "EpisodeSettings",
    "GoldPolicy",
    "HostedPolicy",
    "HumanPolicy",
    "LLMPolicies",
    "ModelJudge",
    "Player",
    "Policy",
    "PolicyFactory",
    "PolicyReport",
    "ReportingPolicy",
    "ResumingPolicy",
    "ScriptedPolicy",
    "ServerFacts",
    "action_of",
    "check_policy",
    "check_resumes",
    "check_server",
    "is_native",
    "make_players",
    "make_policies",
    "message_of",
]

_AGENTS = "swe_gym.gateway.play:AgentPlayers"
"""The factory of players whose agents ask the model of another factory."""

POLICIES = Registry[Callable[..., Policy]](
    "policy",
    {
        "scripted": "swe_gym.rollout.policies.baseline:ScriptedPolicy",
        "empty": "swe_gym.rollout.policies.baseline:EmptyPolicy",
        "gold": "swe_gym.rollout.policies.gold:GoldPolicy",
        "expert": "swe_gym.rollout.policies.gold:ExpertPolicy",
        "random": "swe_gym.rollout.policies.baseline:RandomPolicy",
        "baseline": "swe_gym.rollout.policies.baseline:BaselinePolicy",
        "human": "swe_gym.rollout.policies.human:HumanPolicy",
        "llm": "swe_gym.rollout.policies.llm:LLMPolicy [llm]",
        "tree": "swe_gym.rollout.search:TreePlayer",
    },
    group="swe_gym.policies",
)

_PER_EPISODE = ("env", "seed")


def make_policies(name: str, options: JsonMapping | None = None) -> PolicyFactory:
    """Return the factory of a policy. The caller closes it.

    A policy is a class or another callable whose arguments are its options. An argument `env` gets the episode's
    environment, an argument `seed` the attempt's seed. A policy whose episodes share something, such as a connection,
    has a class method `factory` that takes the options and returns the `PolicyFactory`.

    Args:
        name: A built-in name, a dotted path "module:Class" or the name of an entry point.
        options: The policy's options.

    Raises:
        UsageError: The policy or an option is unknown, or a required option is missing.
        MissingDependency: The policy needs an extra that is not installed.
    """
    kind, given = POLICIES.load(name), dict(options or {})
    per_episode = check_policy(name, given)
    if factory := getattr(kind, "factory", None):
        return _shared(name, factory, given)
    return _Separate(kind, given, per_episode)


def check_policy(name: str, options: JsonMapping) -> list[str]:
    """Check the names of a policy's options; nothing is made. Return the arguments that each episode sets.

    Raises:
        UsageError, MissingDependency: See `make_policies`.
    """
    kind = POLICIES.load(name)
    make = getattr(kind, "factory", None) or kind
    parameters = inspect.signature(make).parameters
    per_episode = [one for one in _PER_EPISODE if make is kind and one in parameters]
    variadic = {name for name, one in parameters.items() if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    wanted = [parameter for parameter in parameters if parameter not in {*per_episode, *variadic}]
    for option in options:
        if option not in wanted and not takes_any:
            raise unknown_name(f"option of policy {name!r}:", option, wanted)
    missing = [one for one in wanted if parameters[one].default is inspect.Parameter.empty and one not in options]
    if missing:
        raise UsageError(f"policy {name!r} needs the option {missing[0]!r}")
    return per_episode


def make_players(
    name: str, options: JsonMapping | None = None, agent: str = "", agent_options: JsonMapping | None = None
) -> PolicyFactory:
    """Return the factory of a policy, or of players if there is an agent, which asks the policy's model.

    Args:
        name: Policy, as in `make_policies`. An agent needs "llm".
        options: The policy's options.
        agent: Name of the agent; empty if the policy plays.
        agent_options: The agent's options.

    Raises:
        UsageError: The policy, the agent or an option is unknown or invalid.
        MissingDependency: The policy needs an extra that is not installed, or the agent's kit a program.
        SandboxStartError: The agent's kit cannot be built.
    """
    policies = make_policies(name, options)
    if not agent:
        return policies
    made: PolicyFactory = POLICIES.load(_AGENTS)(agent, agent_options or {}, policies)  # type: ignore[assignment]
    return made


def _shared(name: str, make: Callable[..., PolicyFactory], options: JsonObject) -> PolicyFactory:
    try:
        return make(**options)
    except ValidationError as error:
        raise UsageError(f"options of policy {name!r}: {wrong_fields(error)}") from error


class _Separate:
    """A factory of policies that share nothing."""

    def __init__(self, kind: Callable[..., Policy], options: JsonObject, per_episode: list[str]) -> None:
        self._kind = kind
        self._options = options
        self._per_episode = per_episode

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> Policy:
        given = {"env": env, "seed": seed}
        return self._kind(**self._options, **{name: given[name] for name in self._per_episode})

    def close(self) -> None:
        """Do nothing: nothing is shared."""
