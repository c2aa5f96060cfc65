"""Demonstrations by an agent: the shell commands of a policy, written as the model would call the agent's shell."""

from collections.abc import Iterable, Iterator, Sequence

from ..actions import parse_action, render_call
from ..actions.arguments import shell_tool
from ..envs.swe_env import SweEnv
from ..errors import UsageError
from ..gateway.agents import make_agent
from ..gateway.agents.base import Agent
from ..gateway.play import AgentPlayer
from ..gateway.token_sampler import TokenSampler
from ..gateway.tool_calls import STYLES, style_of
from ..rollout.episode import play
from ..rollout.policies import make_policies
from ..rollout.policy import Player, Policy
from ..rollout.tokens import ChatTemplate, Completion
from ..trajectories.trajectory import Trajectory
from ..types import ToolCall
from .collect import make_env
from .config import EnvConfig, GenerationConfig

OVER = "Done."
"""The answer after the last command."""


class Script:
    """A generator that writes texts in order, then `OVER`.

    Args:
        texts: The texts; computed at the first call, when the environment has its task.
        template: Chat template, for its tokenizer.
        end: The token that ends an answer.
    """

    def __init__(self, texts: Iterable[str], template: ChatTemplate, end: int) -> None:
        self._texts, self._template, self._end = iter(texts), template, end

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        """See `Generator`."""
        ids = [*self._template.encode(next(self._texts, OVER)), self._end]
        return Completion(ids, [0.0] * len(ids), "stop", 0)


def agent_demonstrations(
    config: EnvConfig,
    generation: GenerationConfig,
    policy: str,
    template: ChatTemplate,
    end: int,
    task_ids: Iterable[str],
) -> list[Trajectory]:
    """Let the agent play what a policy would do, and return the episodes that resolved their task, with their tokens.

    Raises:
        UsageError: None did, or the agent lacks a tool that the policy uses.
    """
    agent = make_agent(config.agent, config.agent_options)
    if not agent.shell[0]:
        raise UsageError(f"the agent {config.agent!r} has no shell tool, which demonstrations need: use another agent")
    env = make_env(config, config.train)
    swe_env, factory = env.unwrapped, make_policies(policy)
    assert isinstance(swe_env, SweEnv)
    played = []
    try:
        for task_id in task_ids:
            actor = factory(env)
            assert not isinstance(actor, Player)
            texts = _texts(swe_env, actor, task_id, agent, STYLES[style_of(template.source)])
            sampler = TokenSampler(
                Script(texts, template, end), template, max_tokens=1 << 30, max_context=generation.max_context
            )
            played.append(play(env, AgentPlayer(config.agent, agent, sampler), options={"task_id": task_id}))
    finally:
        env.close()
        factory.close()
    found = [trajectory for trajectory in played if trajectory.resolved]
    if played and not found:
        raise UsageError(
            f"sft.policy {policy!r} resolved none of {len(played)} tasks as the agent {config.agent!r}: check "
            "generation.max_context, and the last episode's end: " + played[-1].turns[-1].observation[-500:]
        )
    return found


def _texts(env: SweEnv, policy: Policy, task_id: str, agent: Agent, style: str) -> Iterator[str]:
    """Yield the text of each call of the agent's shell."""
    tool, argument = agent.shell
    policy.reset({"task_id": task_id})
    for command in (*_commands(env, policy), *filter(None, [agent.ending])):
        yield render_call(ToolCall(name=tool, arguments={argument: command, **agent.required}), style)


def _commands(env: SweEnv, policy: Policy) -> Iterator[str]:
    """Yield the shell commands of a policy until it submits.

    Raises:
        UsageError: It calls another tool.
    """
    shell = shell_tool(env.tools)
    while True:
        call = parse_action(policy.act(""), env.tools, format=env.config["action_format"]).call
        if shell is not None and call.name == shell[0].name:
            yield str(call.arguments[shell[1]])
        elif call.name in ("submit", "finish"):
            return
        else:
            raise UsageError(
                f"the demonstrating policy calls {call.name!r}, and an agent has only a shell: use sft.policy = "
                '"gold", or generated tasks of rung 1 or 2'
            )
